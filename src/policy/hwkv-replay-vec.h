// The inner loops of the replay over vectors of VEC_WIDTH floats; hwkv-replay-kernel.c includes this once per instruction set, with
//   VEC_FN(name)      the name with the set's suffix
//   VEC_TARGET        attribute that switches the set on
//   VEC_WIDTH         floats in a vector
//   VEC_TILE          vectors beside each other in a tile of a product: as many as the registers hold
//   VEC_FMA(a, b, c)  a*b + c

#define VEC_INLINE static inline __attribute__((always_inline)) VEC_TARGET

typedef float    VEC_FN(vec)   __attribute__((vector_size(4 * VEC_WIDTH)));
typedef float    VEC_FN(vec_u) __attribute__((vector_size(4 * VEC_WIDTH), aligned(4), may_alias)); // in memory
typedef uint32_t VEC_FN(vec_i) __attribute__((vector_size(4 * VEC_WIDTH)));

#define vec   VEC_FN(vec)
#define vec_u VEC_FN(vec_u)
#define vec_i VEC_FN(vec_i)

VEC_INLINE vec VEC_FN(load)(const float * p) {
    return (vec) *(const vec_u *) (const void *) p;
}

VEC_INLINE void VEC_FN(store)(float * p, vec x) {
    *(vec_u *) (void *) p = (vec_u) x;
}

VEC_INLINE vec VEC_FN(set)(float x) {
    return x - (vec) { 0 }; // not x + 0, which turns -0 into 0
}

// where mask (all bits or none) is set a, else b
VEC_INLINE vec VEC_FN(pick)(vec_i mask, vec a, vec b) {
    return (vec) ((mask & (vec_i) a) | (~mask & (vec_i) b));
}

// b where a is NaN
VEC_INLINE vec VEC_FN(max)(vec a, vec b) {
    return VEC_FN(pick)((vec_i) (a > b), a, b);
}

VEC_INLINE vec VEC_FN(min)(vec a, vec b) {
    return VEC_FN(pick)((vec_i) (a < b), a, b);
}

// e^x for x <= 0: 2^n * e^r with |r| <= ln(2)/2. Under -87, where floats stop being normal, 0.
VEC_INLINE vec VEC_FN(exp)(vec x) {
    const vec shift = VEC_FN(set)(12582912.0f); // 1.5 * 2^23: what is added to it is rounded, and n stands in the low bits
    const vec t = VEC_FMA(x, VEC_FN(set)(1.44269504f), shift);
    const vec n = t - shift;
    // ln(2) in two parts; the first has few enough bits for n*part to be exact
    vec r = VEC_FMA(n, VEC_FN(set)(-0.693359375f), x);
    r = VEC_FMA(n, VEC_FN(set)(2.12194440e-4f), r);
    // minimax fit of (e^r - 1 - r)/r^2, error 3e-9 of e^r
    vec p = VEC_FN(set)(0.00138143206f);
    p = VEC_FMA(p, r, VEC_FN(set)(0.00836885069f));
    p = VEC_FMA(p, r, VEC_FN(set)(0.0416684002f));
    p = VEC_FMA(p, r, VEC_FN(set)(0.166665196f));
    p = VEC_FMA(p, r, VEC_FN(set)(0.49999994f));
    p = VEC_FMA(p, r * r, r) + 1.0f;
    const vec_i y = (vec_i) p + ((vec_i) t << 23);
    return (vec) (y & (vec_i) (x >= VEC_FN(set)(-87.0f)));
}

VEC_INLINE vec VEC_FN(tanh)(vec x) {
    const vec_i sign = (vec_i) VEC_FN(set)(-0.0f);
    const vec a = (vec) ((vec_i) x & ~sign);
    // small: minimax fit of (tanh(a) - a)/a^3 in a^2, error 4e-9 of tanh(a)
    const vec z = a * a;
    vec p = VEC_FN(set)(-0.00570498733f);
    p = VEC_FMA(p, z, VEC_FN(set)(0.020639088f));
    p = VEC_FMA(p, z, VEC_FN(set)(-0.0537397154f));
    p = VEC_FMA(p, z, VEC_FN(set)(0.133314416f));
    p = VEC_FMA(p, z, VEC_FN(set)(-0.333332807f));
    p = VEC_FMA(p, z * a, a);
    const vec e = VEC_FN(exp)(a * -2.0f);
    const vec y = VEC_FN(pick)((vec_i) (a < VEC_FN(set)(0.625f)), p, (1.0f - e) / (1.0f + e));
    return (vec) ((vec_i) y | ((vec_i) x & sign));
}

// one tile of n_row rows and n_vec vectors
VEC_INLINE void VEC_FN(mul_part)(float * c, const float * a, const float * b, int32_t k, int32_t n, const float * keep, const int n_row, const int n_vec) {
    vec sum[HWKV_REPLAY_ROWS][VEC_TILE];
    for (int r = 0; r < n_row; r++) {
        for (int j = 0; j < n_vec; j++) {
            sum[r][j] = (vec) { 0 };
        }
    }
    for (int32_t i = 0; i < k; i++) {
        for (int j = 0; j < n_vec; j++) {
            const vec x = VEC_FN(load)(b + (size_t) i * (size_t) n + j * VEC_WIDTH);
            for (int r = 0; r < n_row; r++) {
                sum[r][j] = VEC_FMA(VEC_FN(set)(a[(size_t) r * (size_t) k + (size_t) i]), x, sum[r][j]);
            }
        }
    }
    for (int r = 0; r < n_row; r++) {
        for (int j = 0; j < n_vec; j++) {
            float * at = c + (size_t) r * (size_t) n + j * VEC_WIDTH;
            VEC_FN(store)(at, keep ? VEC_FMA(VEC_FN(load)(at), VEC_FN(set)(keep[r]), sum[r][j]) : sum[r][j]);
        }
    }
}

VEC_INLINE void VEC_FN(mul)(float * c, const float * a, const float * b, int32_t k, int32_t n, const float * keep, const int n_row) {
    int32_t i = 0;
    for (; i + VEC_TILE * VEC_WIDTH <= n; i += VEC_TILE * VEC_WIDTH) {
        VEC_FN(mul_part)(c + i, a, b + i, k, n, keep, n_row, VEC_TILE);
    }
    for (; i < n; i += VEC_WIDTH) {
        VEC_FN(mul_part)(c + i, a, b + i, k, n, keep, n_row, 1);
    }
}

VEC_TARGET static void VEC_FN(mul_tile)(float * c, const float * a, const float * b, int32_t k, int32_t n, const float * keep) {
    VEC_FN(mul)(c, a, b, k, n, keep, HWKV_REPLAY_ROWS);
}

VEC_TARGET static void VEC_FN(mul_row)(float * c, const float * a, const float * b, int32_t k, int32_t n, const float * keep) {
    VEC_FN(mul)(c, a, b, k, n, keep, 1);
}

VEC_TARGET static void VEC_FN(finish)(float * s, float softcap) {
    const vec top = VEC_FN(set)(FLT_MAX);
    const vec cap = VEC_FN(set)(softcap);
    for (int i = 0; i < HWKV_REPLAY_ROWS * HWKV_REPLAY_KEYS; i += VEC_WIDTH) {
        vec x = VEC_FN(min)(VEC_FN(max)(VEC_FN(load)(s + i), -top), top);
        if (softcap > 0.0f) {
            x = cap * VEC_FN(tanh)(x / cap);
        }
        VEC_FN(store)(s + i, x);
    }
}

VEC_TARGET static float VEC_FN(weigh)(float * p, float * max) {
    vec m = VEC_FN(load)(p);
    for (int i = VEC_WIDTH; i < HWKV_REPLAY_KEYS; i += VEC_WIDTH) {
        m = VEC_FN(max)(m, VEC_FN(load)(p + i));
    }
    float lane[16];
    VEC_FN(store)(lane, m);
    const float here = fold(lane, VEC_WIDTH, true);
    const float top  = here > *max ? here : *max;
    const vec t = VEC_FN(set)(top);
    vec sum = { 0 };
    for (int i = 0; i < HWKV_REPLAY_KEYS; i += VEC_WIDTH) {
        const vec e = VEC_FN(exp)(VEC_FN(load)(p + i) - t);
        VEC_FN(store)(p + i, e);
        sum += e;
    }
    *max = top;
    VEC_FN(store)(lane, sum);
    return fold(lane, VEC_WIDTH, false);
}

static const struct hwkv_replay_kernel VEC_FN(kernel) = {
    VEC_FN_NAME, VEC_FN(mul_tile), VEC_FN(mul_row), VEC_FN(finish), VEC_FN(weigh),
};

#undef vec
#undef vec_u
#undef vec_i
#undef VEC_INLINE
