// NEON of 64-bit ARM

#if defined(__aarch64__)

#include <arm_neon.h>
#include <stdint.h>
#include <string.h>

#define VEC_NAME  neon
#define VEC_WIDTH 4
#define VEC_PANEL 3
#define VEC_STEP  8
#define VEC_ACC   16

typedef float    vec   __attribute__((vector_size(16)));
typedef uint32_t vec_i __attribute__((vector_size(16)));

static inline vec vec_max(vec a, vec b) {
    return (vec) vmaxq_f32((float32x4_t) a, (float32x4_t) b);
}

static inline vec vec_f16(const char * p) {
    uint64_t x;
    memcpy(&x, p, sizeof(x));
    return (vec) vcvt_f32_f16(vreinterpret_f16_u64(vcreate_u64(x)));
}

static inline vec vec_q8(const char * p) {
    uint32_t x;
    memcpy(&x, p, sizeof(x));
    return (vec) vcvtq_f32_s32(vmovl_s16(vget_low_s16(vmovl_s8(vcreate_s8(x)))));
}

static inline vec vec_factor(const char * p) {
    uint16_t x;
    memcpy(&x, p, sizeof(x));
    return (vec) vcvt_f32_f16(vreinterpret_f16_u16(vdup_n_u16(x)));
}

static inline vec vec_q4(const char * p, const int i, vec factor) {
    const uint8x16_t pairs = vld1q_u8((const void *) p);
    const int8x16_t  x     = vsubq_s8(vreinterpretq_s8_u8(i < 16 ? vandq_u8(pairs, vdupq_n_u8(15)) : vshrq_n_u8(pairs, 4)), vdupq_n_s8(8));
    const int16x8_t  y     = vmovl_s8(i % 16 < 8 ? vget_low_s8(x) : vget_high_s8(x));
    return (vec) vcvtq_f32_s32(vmovl_s16(i % 8 < 4 ? vget_low_s16(y) : vget_high_s16(y))) * factor;
}

static inline float f16_to_f32(uint16_t x) {
    __fp16 y;
    memcpy(&y, &x, sizeof(y));
    return (float) y;
}

static inline vec vec_fold4(const vec * x) {
    return (vec) vpaddq_f32(vpaddq_f32((float32x4_t) x[0], (float32x4_t) x[1]), vpaddq_f32((float32x4_t) x[2], (float32x4_t) x[3]));
}

static inline vec vec_sums(const vec * x) {
    return x[0];
}

#include "hwkv-fattn-kernel.h"

#else
typedef int hwkv_fattn_neon_is_for_arm; // ISO C has no empty files
#endif
