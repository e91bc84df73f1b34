// AVX2 with FMA and F16C

#if defined(__x86_64__)

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#define VEC_NAME  avx2
#define VEC_WIDTH 8
#define VEC_PANEL 3
#define VEC_STEP  4
#define VEC_ACC   12

typedef float    vec   __attribute__((vector_size(32)));
typedef uint32_t vec_i __attribute__((vector_size(32)));

#define F32(x) ((__m256) (x))

static inline vec vec_max(vec a, vec b) {
    return (vec) _mm256_max_ps(F32(a), F32(b));
}

static inline vec vec_f16(const char * p) {
    return (vec) _mm256_cvtph_ps(_mm_loadu_si128((const void *) p));
}

static inline vec vec_q8(const char * p) {
    return (vec) _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const void *) p)));
}

static inline vec vec_factor(const char * p) {
    int16_t x;
    memcpy(&x, p, sizeof(x));
    return (vec) _mm256_cvtph_ps(_mm_set1_epi16(x));
}

static inline vec vec_q4(const char * p, const int i, vec factor) {
    const __m256i pairs = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const void *) (p + i % 16)));
    const __m256i x     = i < 16 ? _mm256_and_si256(pairs, _mm256_set1_epi32(15)) : _mm256_srli_epi32(pairs, 4);
    return (vec) _mm256_cvtepi32_ps(x) * factor - 8.0f * factor; // nothing is rounded
}

static inline float f16_to_f32(uint16_t x) {
    return _cvtsh_ss(x);
}

static inline vec vec_fold4(const vec * x) {
    return (vec) _mm256_hadd_ps(_mm256_hadd_ps(F32(x[0]), F32(x[1])), _mm256_hadd_ps(F32(x[2]), F32(x[3])));
}

static inline vec vec_sums(const vec * x) {
    return (vec) _mm256_permute2f128_ps(F32(x[0]), F32(x[1]), 0x20) + (vec) _mm256_permute2f128_ps(F32(x[0]), F32(x[1]), 0x31);
}

#include "hwkv-fattn-kernel.h"

#else
typedef int hwkv_fattn_avx2_is_for_x86; // ISO C has no empty files
#endif
