// AVX-512 (F, BW, DQ, VL)

#if defined(__x86_64__)

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#define VEC_NAME  avx512
#define VEC_WIDTH 16
#define VEC_PANEL 3
#define VEC_STEP  8
#define VEC_ACC   24

typedef float    vec   __attribute__((vector_size(64)));
typedef uint32_t vec_i __attribute__((vector_size(64)));

#define F32(x) ((__m512) (x))
#define F64(x) ((__m512d) (x))

static inline vec vec_max(vec a, vec b) {
    return (vec) _mm512_max_ps(F32(a), F32(b));
}

static inline vec vec_f16(const char * p) {
    return (vec) _mm512_cvtph_ps(_mm256_loadu_si256((const void *) p));
}

static inline vec vec_q8(const char * p) {
    return (vec) _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const void *) p)));
}

static inline vec vec_factor(const char * p) {
    int16_t x;
    memcpy(&x, p, sizeof(x));
    return (vec) _mm512_cvtph_ps(_mm256_set1_epi16(x));
}

// looked up: the low four bits of a lane choose
static inline vec vec_q4(const char * p, const int i, vec factor) {
    const vec     table = (vec) { -8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7 } * factor;
    const __m512i pairs = _mm512_cvtepu8_epi32(_mm_loadu_si128((const void *) p));
    return (vec) _mm512_permutexvar_ps(i < 16 ? pairs : _mm512_srli_epi32(pairs, 4), F32(table));
}

static inline float f16_to_f32(uint16_t x) {
    return _cvtsh_ss(x);
}

static inline vec vec_fold4(const vec * x) {
    const vec a = (vec) _mm512_unpacklo_ps(F32(x[0]), F32(x[1])) + (vec) _mm512_unpackhi_ps(F32(x[0]), F32(x[1]));
    const vec b = (vec) _mm512_unpacklo_ps(F32(x[2]), F32(x[3])) + (vec) _mm512_unpackhi_ps(F32(x[2]), F32(x[3]));
    return (vec) _mm512_unpacklo_pd(F64(a), F64(b)) + (vec) _mm512_unpackhi_pd(F64(a), F64(b));
}

static inline vec fold128(vec a, vec b) {
    return (vec) _mm512_shuffle_f32x4(F32(a), F32(b), 0x88) + (vec) _mm512_shuffle_f32x4(F32(a), F32(b), 0xdd);
}

static inline vec vec_sums(const vec * x) {
    return fold128(fold128(x[0], x[1]), fold128(x[2], x[3]));
}

#include "hwkv-fattn-kernel.h"

#else
typedef int hwkv_fattn_avx512_is_for_x86; // ISO C has no empty files
#endif
