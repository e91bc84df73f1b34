// The replay's inner loops, one set per instruction set. Not part of the API.

#ifndef HWKV_REPLAY_IMPL_H
#define HWKV_REPLAY_IMPL_H

#include "hwkv.h"

#define HWKV_REPLAY_KEYS 64  // keys of a block
#define HWKV_REPLAY_ROWS 4   // (query, query head) pairs of a tile
#define HWKV_REPLAY_PAD  16  // columns of a matrix product come in multiples of this

struct hwkv_replay_kernel {
    const char * name;

    // c[r][n] = c[r][n]*keep[r] + sum of a[r][k]*b[k][n], without the first term if keep is NULL, for the rows of a tile or
    // for one row. Each row comes out the same in both. n is a multiple of HWKV_REPLAY_PAD.
    void (*mul_tile)(float * c, const float * a, const float * b, int32_t k, int32_t n, const float * keep);
    void (*mul_row) (float * c, const float * a, const float * b, int32_t k, int32_t n, const float * keep);

    // Logits of a tile: softcap if it is > 0, then everything into the finite range.
    void (*finish)(float * s, float softcap);

    // One row of HWKV_REPLAY_KEYS logits (-INFINITY: masked) to weights e^(logit - *max), *max raised before. Returns their sum.
    float (*weigh)(float * p, float * max);
};

// Those this CPU runs, fastest first; NULL past the last. The last is scalar.
const struct hwkv_replay_kernel * hwkv_replay_kernel(int32_t i);

int hwkv_replay_with(const struct hwkv_replay_kernel * kernel, const struct hwkv_trace_head * head, const struct hwkv_replay_params * params,
                     const float * q, const int32_t * pos, int32_t n_query, float * out, float * mass, struct hwkv_error * err);

#endif // HWKV_REPLAY_IMPL_H
