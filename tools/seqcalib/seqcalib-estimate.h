// --dry-run: what a calibration will take.

#ifndef SC_ESTIMATE_H
#define SC_ESTIMATE_H

#include "seqcalib-sweep.h"

#include <stdio.h>

int sc_estimate(const struct sc_input * in, int32_t n_tau, int32_t n_holdout, FILE * out, struct hwkv_error * err);

#endif // SC_ESTIMATE_H
