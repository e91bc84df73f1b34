// The judge of a calibration: scores every candidate and takes the cheapest entry that clears the floor.

#ifndef SC_CALIBRATE_H
#define SC_CALIBRATE_H

#include "seqcalib-distort.h"
#include "seqcalib-sweep.h"

#define SC_POINT_NAME 64 // bytes of a point's name

struct sc_work;

struct sc_calib {
    struct sc_input * in;

    const double * tau;   // [n_tau]; NULL: the points are allocated by budget
    int32_t        n_tau; // points
    char        (* names)[SC_POINT_NAME]; // [n_tau]

    struct sc_work * work; // or NULL

    int32_t   n_unit;
    int32_t * unit_start;   // [n_full] first unit of a layer
    int32_t * entries;      // [n_tau][n_unit] of the codebook
    double  * scores;       // [n_tau][n_unit][codebook->n]
    bool    * known;        // [n_tau][n_full]
    char   ** validation;   // [n_tau] JSON text or NULL

    struct sc_distort * distort; // or NULL: losses are wanted too

    double  * sums;         // of the layer at hand: [n_head_kv][codebook->n]
    int64_t   n_sum;        // cosines in each sum
    double    agreement;    // lowest of replay and trace in this run; above 1 if nothing has been traced
};

// tau NULL: the caller decides, and names the points.
int  sc_calib_init(struct sc_calib * calib, struct sc_input * in, const double * tau, int32_t n_tau, struct hwkv_error * err);
void sc_calib_free(struct sc_calib * calib);

// Puts in what an earlier run has decided.
int sc_calib_restore(struct sc_calib * calib, int32_t jl, uint64_t mask, const double * scores, int32_t n_score, struct hwkv_error * err);

int sc_calib_run(struct sc_calib * calib, struct hwkv_error * err);

//
// for judges that decide otherwise
//

// Checks a sequence of a layer against its trace and adds it to the sums, and to calib->distort.
int  sc_calib_see  (struct sc_calib * calib, int32_t jl, int32_t iseq, const struct sc_trace * trace, struct hwkv_error * err);
void sc_calib_means(const struct sc_calib * calib, int32_t jl, double * cosines); // of the layer that has been seen: [n_head_kv][codebook->n]

bool            sc_calib_knows  (const struct sc_calib * calib, int32_t jl, uint64_t mask);
int32_t         sc_calib_n_known(const struct sc_calib * calib); // layers from the first on that all points know
const int32_t * sc_calib_entries(const struct sc_calib * calib, int32_t jl, int32_t ip);

// A line for each choice of the points in mask.
void sc_calib_print_layer(const struct sc_calib * calib, int32_t jl, uint64_t mask);

#endif // SC_CALIBRATE_H
