// The judge of an allocation: what every entry of every head loses is measured once with the reference everywhere; then each budget gets a
// sweep of its own, in which a layer is measured under the choices below it and takes its share of the bytes that are left.

#ifndef SC_ALLOCATE_H
#define SC_ALLOCATE_H

#include "seqcalib-calibrate.h"
#include "seqcalib-options.h"

#define SC_LOSS_KIND "residual" // of scores in a policy

struct sc_allocate {
    struct sc_calib  * calib;   // of which every budget is a point: it gets the choices and the cosines
    uint64_t         * budgets; // [n_point] bytes

    uint64_t * bytes;   // [n_unit][codebook] as allocated at this context
    bool     * known;   // [n_full] layers that the first sweep has measured
    double   * losses;  // [n_point][n_unit][codebook] under the choices below; of layers that have not been decided, of the first sweep
    double   * lambdas; // [n_point]

    int32_t  * references; // [n_unit] what all heads have in the first sweep
};

// Names the points of calib. HWKV_ERR_BUDGET: a budget is below the smallest allocation.
int  sc_allocate_init(struct sc_allocate * alloc, struct sc_calib * calib, const struct sc_budgets * budgets, struct hwkv_error * err);
void sc_allocate_free(struct sc_allocate * alloc);

// What an earlier run has measured.
int sc_allocate_restore(struct sc_allocate * alloc, int32_t jl, uint64_t mask, const double * scores, int32_t n_score, struct hwkv_error * err);

int sc_allocate_run(struct sc_allocate * alloc, struct hwkv_error * err);

#endif // SC_ALLOCATE_H
