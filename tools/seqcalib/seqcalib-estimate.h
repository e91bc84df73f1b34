// --dry-run: what a calibration will take.

#ifndef SC_ESTIMATE_H
#define SC_ESTIMATE_H

#include "seqcalib-sweep.h"

#include <stdio.h>

struct sc_estimate_params {
    const char * path_model;   // read again, without its tensors, to plan contexts
    int32_t      n_gpu_layers;
    int32_t      n_tau;        // floors or budgets
    bool         allocate;
    int32_t      n_holdout;
};

int sc_estimate(const struct sc_input * in, const struct sc_estimate_params * params, FILE * out, struct hwkv_error * err);

#endif // SC_ESTIMATE_H
