// The replay's inner loops for each instruction set, and the choice between them. GNU vectors give plain scalar code,
// SSE2 or NEON from the same lines; wider x86 sets are chosen at run time, since the library is built for any CPU.

#include "hwkv-replay-impl.h"

#include <float.h>
#include <stdbool.h>

// largest or sum of the lanes of a vector, halved step by step; the steps are written out so that they need no loop
static inline __attribute__((always_inline)) float fold(float * lane, const int width, const bool max) {
#define FOLD(half)                                                                                                      \
    for (int i = 0; i < (half) && (half) < width; i++) {                                                                \
        lane[i] = !max ? lane[i] + lane[i + (half)] : lane[i] > lane[i + (half)] ? lane[i] : lane[i + (half)];          \
    }
    FOLD(8)
    FOLD(4)
    FOLD(2)
    FOLD(1)
#undef FOLD
    return lane[0];
}

#define VEC_FN(name)     name##_scalar
#define VEC_FN_NAME      "scalar"
#define VEC_TARGET
#define VEC_WIDTH        1
#define VEC_TILE         4
#define VEC_FMA(a, b, c) ((a) * (b) + (c))
#include "hwkv-replay-vec.h"
#undef VEC_FN
#undef VEC_FN_NAME
#undef VEC_TARGET
#undef VEC_WIDTH
#undef VEC_TILE
#undef VEC_FMA

#define VEC_FN(name)     name##_vec4
#define VEC_FN_NAME      "vec4"
#define VEC_TARGET
#define VEC_WIDTH        4
#define VEC_TILE         2
#define VEC_FMA(a, b, c) ((a) * (b) + (c))
#include "hwkv-replay-vec.h"
#undef VEC_FN
#undef VEC_FN_NAME
#undef VEC_TARGET
#undef VEC_WIDTH
#undef VEC_TILE
#undef VEC_FMA

#if defined(__x86_64__)
#include <immintrin.h>

#define VEC_FN(name)     name##_avx2
#define VEC_FN_NAME      "avx2"
#define VEC_TARGET       __attribute__((target("avx2,fma")))
#define VEC_WIDTH        8
#define VEC_TILE         2
#define VEC_FMA(a, b, c) ((vec) _mm256_fmadd_ps((__m256) (a), (__m256) (b), (__m256) (c)))
#include "hwkv-replay-vec.h"
#undef VEC_FN
#undef VEC_FN_NAME
#undef VEC_TARGET
#undef VEC_WIDTH
#undef VEC_TILE
#undef VEC_FMA

#define VEC_FN(name)     name##_avx512
#define VEC_FN_NAME      "avx512"
#define VEC_TARGET       __attribute__((target("avx512f")))
#define VEC_WIDTH        16
#define VEC_TILE         4
#define VEC_FMA(a, b, c) ((vec) _mm512_fmadd_ps((__m512) (a), (__m512) (b), (__m512) (c)))
#include "hwkv-replay-vec.h"
#endif

const struct hwkv_replay_kernel * hwkv_replay_kernel(int32_t i) {
    const struct hwkv_replay_kernel * found[4];
    int32_t n = 0;
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f")) {
        found[n++] = &kernel_avx512;
    }
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
        found[n++] = &kernel_avx2;
    }
#endif
    found[n++] = &kernel_vec4;
    found[n++] = &kernel_scalar;
    return i >= 0 && i < n ? found[i] : NULL;
}
