// Plain C; GNU vectors of four become whatever the compiler may use

#include <stdint.h>
#include <string.h>

#define VEC_NAME  c
#define VEC_WIDTH 4
#define VEC_PANEL 3
#define VEC_STEP  4
#define VEC_ACC   12

typedef float    vec   __attribute__((vector_size(16)));
typedef uint32_t vec_i __attribute__((vector_size(16)));

// b where one of them is NaN
static inline vec vec_max(vec a, vec b) {
    const vec_i first = (vec_i) (a > b);
    return (vec) ((first & (vec_i) a) | (~first & (vec_i) b));
}

static inline float f16_to_f32(uint16_t x) {
    const uint32_t sign = (uint32_t) (x & 0x8000) << 16;
    const uint32_t rest = (uint32_t) (x & 0x7fff) << 13;
    uint32_t bits = rest + (112u << 23);
    float y;
    if (rest >= 31u << 23) {
        bits = rest | 255u << 23; // inf, NaN
    } else if (rest < 1u << 23) {
        y = (float) (x & 0x7fff) * 0x1p-24f; // 0 and what is too small for an exponent
        memcpy(&bits, &y, sizeof(bits));
    }
    bits |= sign;
    memcpy(&y, &bits, sizeof(y));
    return y;
}

static inline vec vec_f16(const char * p) {
    uint16_t x[4];
    memcpy(x, p, sizeof(x));
    return (vec) { f16_to_f32(x[0]), f16_to_f32(x[1]), f16_to_f32(x[2]), f16_to_f32(x[3]) };
}

static inline vec vec_q8(const char * p) {
    int8_t x[4];
    memcpy(x, p, sizeof(x));
    return (vec) { x[0], x[1], x[2], x[3] };
}

static inline vec vec_factor(const char * p) {
    uint16_t x;
    memcpy(&x, p, sizeof(x));
    return f16_to_f32(x) - (vec) { 0 };
}

static inline vec vec_q4(const char * p, const int i, vec factor) {
    uint8_t x[4];
    memcpy(x, p + i % 16, sizeof(x));
    const int shift = i < 16 ? 0 : 4;
    const vec y = { x[0] >> shift & 15, x[1] >> shift & 15, x[2] >> shift & 15, x[3] >> shift & 15 };
    return (y - 8.0f) * factor;
}

static inline vec vec_fold4(const vec * x) {
    vec y;
    for (int i = 0; i < 4; i++) {
        y[i] = (x[i][0] + x[i][1]) + (x[i][2] + x[i][3]);
    }
    return y;
}

static inline vec vec_sums(const vec * x) {
    return x[0];
}

#include "hwkv-fattn-kernel.h"
