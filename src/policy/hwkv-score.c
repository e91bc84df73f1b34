// What a calibration computes beside the replay: how alike two outputs are, and which queries are looked at.

#include "hwkv-hash.h"
#include "hwkv-impl.h"

#include <math.h>

double hwkv_cosine(const float * a, const float * b, int32_t n) {
    const double eps = 1e-12;
    double aa = 0.0;
    double bb = 0.0;
    double ab = 0.0;
    // a product of two floats is exact in double, so fused operations give the same sums
    for (int32_t i = 0; i < n; i++) {
        aa += (double) a[i] * (double) a[i];
        bb += (double) b[i] * (double) b[i];
        ab += (double) a[i] * (double) b[i];
    }
    const bool a_zero = sqrt(aa) <= eps;
    const bool b_zero = sqrt(bb) <= eps;
    if (a_zero || b_zero) {
        return a_zero && b_zero ? 1.0 : 0.0;
    }
    // one root, so that equal vectors give exactly 1
    const double cosine = ab / sqrt(aa * bb);
    return cosine > 1.0 ? 1.0 : cosine < -1.0 ? -1.0 : cosine;
}

// SplitMix64
static uint64_t draw(uint64_t * state) {
    *state += UINT64_C(0x9E3779B97F4A7C15);
    return hwkv_mix(*state);
}

// uniform in [0, n)
static uint64_t draw_below(uint64_t * state, uint64_t n) {
    const uint64_t limit = UINT64_MAX - UINT64_MAX % n;
    uint64_t x = draw(state);
    while (x >= limit) {
        x = draw(state);
    }
    return x % n;
}

int32_t hwkv_sample(int32_t * out, int32_t n, int32_t first, int32_t count, uint64_t seed, uint64_t stream) {
    if (n < 1 || count < 1 || first > INT32_MAX - (count - 1)) {
        return 0;
    }
    uint64_t state = hwkv_mix(seed + UINT64_C(0x9E3779B97F4A7C15)) ^ hwkv_mix(stream + UINT64_C(0xD1B54A32D192ED03));
    int32_t n_out = 0;
    // each value is taken with the chance (still wanted)/(still to come): ascending, and every subset equally likely
    for (int32_t i = 0; i < count && n_out < n; i++) {
        const uint64_t left = (uint64_t) (count - i);
        if (n - n_out >= count - i || draw_below(&state, left) < (uint64_t) (n - n_out)) {
            out[n_out++] = first + i;
        }
    }
    return n_out;
}
