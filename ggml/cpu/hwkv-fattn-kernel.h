// The kernels over vectors of VEC_WIDTH floats; included once by each hwkv-fattn-<set>.c, with
//   VEC_NAME           the set
//   VEC_WIDTH          floats in a vector, at most 16
//   VEC_PANEL          vectors of query rows in a register tile, times VEC_STEP keys or dims
//   VEC_STEP           divides 16
//   VEC_ACC            sums that the registers hold, for a few rows
// and vec_max, f16_to_f32, vec_f16, vec_factor (one F16 value for all lanes), vec_q8 (bytes), vec_q4 (values i and on of the 32
// that start at p, times a factor), vec_fold4 (four vectors to one that has a partial sum of each in every 128 bits) and
// vec_sums (VEC_WIDTH / 4 of those to the sums).
//
// Two ways through the keys. Many rows: vectors run over the rows, so that softmax needs nothing across lanes; a block
// of K and V is converted once and both products are small matrix products from the cache. Few rows (decode): vectors
// run over the dims of a key, each row of K and V is converted in registers and used for all rows at once.

#include "hwkv-fattn-impl.h"

#include <float.h>
#include <math.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))

#define ROWS_FEW  (VEC_WIDTH / 2)
#define ROWS_MANY (VEC_PANEL * VEC_WIDTH)
#define KEYS      HWKV_FATTN_KEYS
#define MASKED    0xfc00 // -inf in F16

typedef float vec_u __attribute__((vector_size(4 * VEC_WIDTH), aligned(4), may_alias)); // in memory

INLINE vec vec_load(const float * p) {
    return (vec) *(const vec_u *) (const void *) p;
}

INLINE void vec_store(float * p, vec x) {
    *(vec_u *) (void *) p = (vec_u) x;
}

INLINE vec vec_set(float x) {
    return x - (vec) { 0 };
}

// 2^x for x <= 126; 0 under -126.5; NaN stays
INLINE vec vec_exp2(vec x) {
    x = vec_max(vec_set(-127.0f), x);
    const vec shift = vec_set(12582912.0f); // 1.5 * 2^23: what is added to it is rounded
    const vec t = x + shift;
    const vec r = x - (t - shift);
    // minimax fit on [-0.5, 0.5], error 1e-7
    vec p = vec_set(1.32647273e-3f);
    p = p * r + vec_set(9.67151299e-3f);
    p = p * r + vec_set(5.55073358e-2f);
    p = p * r + vec_set(2.40222424e-1f);
    p = p * r + vec_set(6.93147004e-1f);
    p = p * r + vec_set(1.0f);
    // the low bits of t hold the exponent; at -127 the factor is 0
    return p * (vec) (((vec_i) t + 127) << 23);
}

// softcap*tanh: x is the score times 2*log2(e)/softcap
INLINE vec vec_softcap(vec x, float softcap) {
    x = -vec_max(vec_set(-126.0f), -x);
    return softcap - 2.0f * softcap / (vec_exp2(x) + 1.0f);
}

// Rows of K and V are read in blocks of so many dims. Where in its block a vector lies is a constant to the compiler: what vectors
// share, as the factor, is computed once.
#define BLOCK(type)     ((type) == HWKV_FATTN_F16 ? 16 : 32)
#define BLOCK_VEC(type) (BLOCK(type) / VEC_WIDTH)

INLINE size_t row_size(int32_t dim, const int type) {
    return (size_t) (dim / BLOCK(type)) * (type == HWKV_FATTN_F16 ? 32 : type == HWKV_FATTN_Q8_0 ? 34 : 18);
}

// vector i of a block
INLINE vec vec_kv(const char * block, const int i, const int type) {
    if (type == HWKV_FATTN_F16) {
        return vec_f16(block + 2 * i * VEC_WIDTH);
    }
    if (type == HWKV_FATTN_Q8_0) {
        return vec_q8(block + 2 + i * VEC_WIDTH) * vec_factor(block);
    }
    return vec_q4(block + 2, i * VEC_WIDTH, vec_factor(block));
}

// what lies `ahead` bytes behind p will be read soon; may point beyond the end
INLINE void prefetch(const void * p, size_t ahead, size_t size) {
    for (size_t i = 0; i < size; i += 64) {
        __builtin_prefetch((const void *) ((uintptr_t) p + ahead + i), 0, 2);
    }
}

//
// the keys of a tile that at least one of its rows sees
//

struct keys {
    int32_t next;
    int32_t n;
    bool    masked;            // some row has a mask other than 0 here
    int32_t at[KEYS + VEC_WIDTH];
};

// what the masks of all rows say about n <= KEYS keys: seen[i] is 0 where all are masked, bias[i] where all are 0
static void scan(const struct hwkv_fattn_tile * t, int32_t key, int32_t n, uint16_t * restrict seen, uint16_t * restrict bias) {
    memset(seen, 0, KEYS * sizeof(*seen));
    memset(bias, 0, KEYS * sizeof(*bias));
    for (int32_t r = 0; r < t->n_head * t->n_row; r++) {
        if (r > 0 && t->mask[r] == t->mask[r - 1]) {
            continue;
        }
        const uint16_t * m = t->mask[r] + key;
        prefetch(m, 2 * KEYS, 2 * KEYS);
        if (n == KEYS) {
            for (int i = 0; i < KEYS; i++) {
                seen[i] = (uint16_t) (seen[i] | (m[i] ^ MASKED));
                bias[i] = (uint16_t) (bias[i] | (m[i] << 1));
            }
        } else {
            for (int32_t i = 0; i < n; i++) {
                seen[i] = (uint16_t) (seen[i] | (m[i] ^ MASKED));
                bias[i] = (uint16_t) (bias[i] | (m[i] << 1));
            }
        }
    }
}

// The next block of up to KEYS keys; masked ones are left out. The list is filled up with its last key to a multiple of
// VEC_WIDTH.
static bool keys_next(struct keys * ks, const struct hwkv_fattn_tile * t) {
    ks->n      = 0;
    ks->masked = false;
    while (ks->n == 0 && ks->next < t->key1) {
        const int32_t n = t->key1 - ks->next < KEYS ? t->key1 - ks->next : KEYS;
        uint16_t seen[KEYS], bias[KEYS];
        uint16_t any = 0;
        if (t->mask[0]) {
            scan(t, ks->next, n, seen, bias);
            for (int i = 0; i < KEYS; i++) {
                any = (uint16_t) (any | bias[i]);
            }
        }
        if (any == 0) {
            for (int32_t i = 0; i < n; i++) {
                ks->at[i] = ks->next + i;
            }
            ks->n = n;
        } else {
            for (int32_t i = 0; i < n; i++) {
                ks->at[ks->n] = ks->next + i;
                ks->n += seen[i] != 0;
            }
            ks->masked = true;
        }
        ks->next += n;
    }
    for (int i = 0; ks->n > 0 && i < VEC_WIDTH; i++) {
        ks->at[ks->n + i] = ks->at[ks->n - 1];
    }
    return ks->n > 0;
}

#include "hwkv-fattn-many.h"
#include "hwkv-fattn-few.h"

//
// the set
//

static void run(struct hwkv_fattn_tile * t) {
    if (t->n_row <= ROWS_FEW) {
        run_few(t);
    } else {
        run_many(t);
    }
}

static size_t scratch(int32_t n_row, int32_t dk, int32_t dv) {
    const size_t n = (size_t) (n_row + VEC_WIDTH);
    return (size_t) KEYS * (size_t) (dk + dv + ROWS_MANY) + n * (size_t) (dk + dv + 2);
}

#define KERNEL_NAME(name)  KERNEL_NAME2(name)
#define KERNEL_NAME2(name) hwkv_fattn_kernel_##name
#define KERNEL_STR(name)   KERNEL_STR2(name)
#define KERNEL_STR2(name)  #name

const struct hwkv_fattn_kernel KERNEL_NAME(VEC_NAME) = { KERNEL_STR(VEC_NAME), ROWS_FEW, run, scratch };
