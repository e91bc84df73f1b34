// Rows of K and V as a cache of a type gives them back.

#ifndef SC_ROUND_H
#define SC_ROUND_H

#include "hwkv.h"

#include "ggml.h"

// What a cache does to rows: rotate every n_rot elements (0: none), and round to the type. Attention reads F32 as F16.
struct sc_rounding {
    enum ggml_type type;
    int32_t        n_rot;
};

// src, dst: [n_row][dim], may be the same. What is given back is not rotated.
int sc_round_rows(float * dst, const float * src, int64_t n_row, int32_t dim, const struct sc_rounding * rounding, struct hwkv_error * err);

#endif // SC_ROUND_H
