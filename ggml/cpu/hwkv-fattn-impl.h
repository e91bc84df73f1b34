// Between hwkv-fattn.c and the kernels for each instruction set.

#ifndef HWKV_FATTN_IMPL_H
#define HWKV_FATTN_IMPL_H

#include "hwkv-fattn.h"

#define HWKV_FATTN_ROWS  192 // most query rows of a tile: K and V are converted once for all of them
#define HWKV_FATTN_KEYS  64  // keys that are scored together
#define HWKV_FATTN_HEADS 8   // most KV heads of a tile

// Scores are kept in units of log2: 2^s is cheaper than e^s.
struct hwkv_fattn_tile {
    int32_t n_head; // KV heads, more than one only with few rows
    int32_t n_row;  // of each head; the arrays below have all rows of the first head, then of the next
    int32_t key0, key1;
    const float    * q   [HWKV_FATTN_ROWS];
    const uint16_t * mask[HWKV_FATTN_ROWS]; // of key 0; all NULL: no mask
    float            slope[HWKV_FATTN_ROWS];

    const char         * k; // of the first head
    const char         * v;
    size_t               k_nb, v_nb;
    size_t               k_nb_head, v_nb_head;
    enum hwkv_fattn_type k_type, v_type;
    int32_t              dk, dv;

    float q_scale; // with softcap the scores are softcap*tanh(q_scale*q*k / (2*log2(e)))
    float softcap; // 0: none

    float * scratch; // hwkv_fattn_kernel::scratch floats

    // results: largest score, sum of 2^(score - m), and the values under these weights; -FLT_MAX, 0, 0 if all is masked
    float   m[HWKV_FATTN_ROWS];
    float   s[HWKV_FATTN_ROWS];
    float * o; // [n_head][n_row][dv]
};

struct hwkv_fattn_kernel {
    const char * name;
    int32_t      n_row_few; // as many rows are few
    void   (*run)(struct hwkv_fattn_tile * tile);
    size_t (*scratch)(int32_t n_row, int32_t dk, int32_t dv); // floats
};

extern const struct hwkv_fattn_kernel hwkv_fattn_kernel_c;
#if defined(__x86_64__)
extern const struct hwkv_fattn_kernel hwkv_fattn_kernel_avx2;
extern const struct hwkv_fattn_kernel hwkv_fattn_kernel_avx512;
#elif defined(__aarch64__)
extern const struct hwkv_fattn_kernel hwkv_fattn_kernel_neon;
#endif

#endif // HWKV_FATTN_IMPL_H
