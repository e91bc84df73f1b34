// The judge of a calibration: scores every candidate and takes the cheapest entry that clears the floor.

#ifndef SC_CALIBRATE_H
#define SC_CALIBRATE_H

#include "seqcalib-sweep.h"

struct sc_work;

struct sc_calib {
    struct sc_input * in;

    const double * tau;   // [n_tau]
    int32_t        n_tau;

    struct sc_work * work; // or NULL

    int32_t   n_unit;
    int32_t * unit_start;   // [n_full] first unit of a layer
    int32_t * entries;      // [n_tau][n_unit] of the codebook
    double  * scores;       // [n_tau][n_unit][codebook->n]
    bool    * known;        // [n_tau][n_full]
    char   ** validation;   // [n_tau] JSON text or NULL

    double  * sums;         // of the layer at hand: [n_head_kv][codebook->n]
    int64_t   n_sum;        // cosines in each sum
    double    agreement;    // lowest of replay and trace in this run; above 1 if nothing has been traced
};

int  sc_calib_init(struct sc_calib * calib, struct sc_input * in, const double * tau, int32_t n_tau, struct hwkv_error * err);
void sc_calib_free(struct sc_calib * calib);

// Puts in what an earlier run has decided.
int sc_calib_restore(struct sc_calib * calib, int32_t jl, uint64_t mask, const double * scores, int32_t n_score, struct hwkv_error * err);

int sc_calib_run(struct sc_calib * calib, struct hwkv_error * err);

#endif // SC_CALIBRATE_H
