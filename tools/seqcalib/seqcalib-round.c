#include "seqcalib-round.h"

#include "hwkv-error.h"

#include "ggml-cpu.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

// Walsh-Hadamard, in place and its own inverse. Scaled first and added in the order of ggml's operation, for the same last bits.
static void rotate(float * x, int32_t n) {
    const float scale = 1.0f/sqrtf((float) n);
    for (int32_t i = 0; i < n; i++) {
        x[i] *= scale;
    }
    for (int32_t len = 1; len < n; len *= 2) {
        for (int32_t i = 0; i < n; i += 2*len) {
            for (int32_t j = i; j < i + len; j++) {
                const float a = x[j];
                const float b = x[j + len];
                x[j]       = a + b;
                x[j + len] = a - b;
            }
        }
    }
}

static void rotate_row(float * row, int32_t dim, int32_t n_rot) {
    for (int32_t i = 0; n_rot > 0 && i < dim; i += n_rot) {
        rotate(row + i, n_rot);
    }
}

int sc_round_rows(float * dst, const float * src, int64_t n_row, int32_t dim, const struct sc_rounding * rounding, struct hwkv_error * err) {
    const enum ggml_type type = rounding->type == GGML_TYPE_F32 ? GGML_TYPE_F16 : rounding->type;
    const int32_t        n    = rounding->n_rot;

    const ggml_from_float_t from_float = ggml_get_type_traits_cpu(type)->from_float; // as the CPU writes its cache
    const ggml_to_float_t   to_float   = ggml_get_type_traits(type)->to_float;
    if (dim % ggml_blck_size(type) != 0 || (n > 0 && (dim % n != 0 || (n & (n - 1)) != 0)) || !from_float || !to_float) {
        return hwkv_fail(err, HWKV_ERR_INTERNAL, NULL, "found rows of %d rotated by %d, expected whole blocks of %s", dim, n, ggml_type_name(type));
    }
    void * packed = malloc(ggml_row_size(type, dim));
    if (!packed) {
        return hwkv_fail(err, HWKV_ERR_NOMEM, NULL, "out of memory");
    }
    for (int64_t i = 0; i < n_row; i++) {
        float * row = dst + i*dim;
        memmove(row, src + i*dim, sizeof(float)*(size_t) dim);
        rotate_row(row, dim, n);
        from_float(row, packed, dim);
        to_float(packed, row, dim);
        rotate_row(row, dim, n);
    }
    free(packed);
    return HWKV_OK;
}
