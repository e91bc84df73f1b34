// Few rows, a part of hwkv-fattn-kernel.h: up to ROWS_FEW query rows of a head, whose number is a constant to the compiler.

// Fetches a part of the next block into the L2 cache while head h of this one is at key j: in the order of memory, whatever
// the order in which heads and keys are used, so that the CPU sees a stream. `size` bytes are the rows of all heads of a key.
static __attribute__((noinline)) void few_fetch(const struct hwkv_fattn_tile * t, const struct keys * ks, int32_t h, int32_t j,
                                                const char * base, size_t nb, size_t size) {
    const int32_t first = (h * KEYS + j) / t->n_head;
    const int32_t n     = (h * KEYS + j + VEC_WIDTH) / t->n_head - first;
    const size_t  ahead = (size_t) (ks->next + first) * nb;
    if (size + 64 > nb) {
        prefetch(base, ahead, (size_t) n * nb);
        return;
    }
    for (int32_t i = 0; i < n; i++) {
        prefetch(base, ahead + (size_t) i * nb, size);
    }
}

// sc[row][key] = k[key] . q[row] for head h
INLINE void few_scores(float * sc, const struct hwkv_fattn_tile * t, int32_t h, const struct keys * ks, const float * q, const int n_row,
                       const int type) {
    const char * k = t->k + (size_t) h * t->k_nb_head;
    const int step = n_row * 4 <= VEC_ACC ? 4 : 2; // keys at once
    for (int32_t j0 = 0; j0 < ks->n; j0 += VEC_WIDTH) {
        few_fetch(t, ks, h, j0, t->k, t->k_nb, (size_t) (t->n_head - 1) * t->k_nb_head + row_size(t->dk, type));
        vec part[ROWS_FEW][4], folded[ROWS_FEW][VEC_WIDTH / 4]; // at once, or the sums would go through memory
        for (int j = 0; j < VEC_WIDTH; j += step) {
            vec sum[4][ROWS_FEW];
            const char * row[4];
            for (int i = 0; i < step; i++) {
                row[i] = k + (size_t) ks->at[j0 + j + i] * t->k_nb;
                for (int r = 0; r < n_row; r++) {
                    sum[i][r] = (vec) { 0 };
                }
            }
            for (int32_t d = 0; d < t->dk; d += BLOCK(type)) {
                for (int i = 0; i < step; i++) {
                    for (int b = 0; b < BLOCK_VEC(type); b++) {
                        const vec x = vec_kv(row[i] + row_size(d, type), b, type);
                        for (int r = 0; r < n_row; r++) {
                            sum[i][r] += x * vec_load(q + r * t->dk + d + b * VEC_WIDTH);
                        }
                    }
                }
            }
            for (int i = 0; i < step; i++) {
                for (int r = 0; r < n_row; r++) {
                    part[r][j % 4 + i] = sum[i][r];
                }
            }
            for (int r = 0; r < n_row && (j + step) % 4 == 0; r++) {
                folded[r][j / 4] = vec_fold4(part[r]);
            }
        }
        for (int r = 0; r < n_row; r++) {
            vec_store(sc + r * KEYS + j0, vec_sums(folded[r]));
        }
    }
}

// n_vec vectors of the values; the first is vector b of the block at dim d
INLINE void few_values_part(float * o, const struct hwkv_fattn_tile * t, int32_t h, const struct keys * ks, const float * sc,
                            const float * keep, int32_t d, const int b, const int n_row, const int type, const int n_vec) {
    const char * v = t->v + (size_t) h * t->v_nb_head;
    const int per = BLOCK_VEC(type);
    float * to = o + d + b * VEC_WIDTH;
    vec sum[ROWS_FEW][4];
    for (int r = 0; r < n_row; r++) {
        for (int i = 0; i < n_vec; i++) {
            sum[r][i] = vec_load(to + r * t->dv + i * VEC_WIDTH) * keep[r];
        }
    }
    for (int32_t j = 0; j < ks->n; j++) {
        const char * row = v + (size_t) ks->at[j] * t->v_nb;
        if (d == 0 && b == 0 && j % VEC_WIDTH == 0) {
            few_fetch(t, ks, h, j, t->v, t->v_nb, (size_t) (t->n_head - 1) * t->v_nb_head + row_size(t->dv, type));
        }
        vec x[4];
        for (int i = 0; i < n_vec; i++) {
            x[i] = vec_kv(row + row_size(d, type) + row_size((b + i) / per * BLOCK(type), type), (b + i) % per, type);
        }
        for (int r = 0; r < n_row; r++) {
            for (int i = 0; i < n_vec; i++) {
                sum[r][i] += x[i] * sc[r * KEYS + j];
            }
        }
    }
    for (int r = 0; r < n_row; r++) {
        for (int i = 0; i < n_vec; i++) {
            vec_store(to + r * t->dv + i * VEC_WIDTH, sum[r][i]);
        }
    }
}

INLINE void few_values(float * o, const struct hwkv_fattn_tile * t, int32_t h, const struct keys * ks, const float * sc,
                       const float * keep, const int n_row, const int type) {
    const int n_vec = n_row * 4 <= VEC_ACC ? 4 : 2;
    const int per   = BLOCK_VEC(type);
    int32_t d = 0;
    for (; per < n_vec && d + n_vec * VEC_WIDTH <= t->dv; d += n_vec * VEC_WIDTH) { // several blocks at once
        few_values_part(o, t, h, ks, sc, keep, d, 0, n_row, type, n_vec);
    }
    for (; d < t->dv; d += BLOCK(type)) {
        for (int b = 0; b < per; b += n_vec) {
            few_values_part(o, t, h, ks, sc, keep, d, b, n_row, type, per < n_vec ? per : n_vec);
        }
    }
}

// both for n rows, in the tables at the type and n - 1
typedef void (* few_scores_fn)(float *, const struct hwkv_fattn_tile *, int32_t, const struct keys *, const float *);
typedef void (* few_values_fn)(float *, const struct hwkv_fattn_tile *, int32_t, const struct keys *, const float *, const float *);

#define FEW(n, type)                                                                                                                     \
    static void few_scores_##type##_##n(float * sc, const struct hwkv_fattn_tile * t, int32_t h, const struct keys * ks,                 \
                                        const float * q) {                                                                               \
        few_scores(sc, t, h, ks, q, n, HWKV_FATTN_##type);                                                                               \
    }                                                                                                                                    \
    static void few_values_##type##_##n(float * o, const struct hwkv_fattn_tile * t, int32_t h, const struct keys * ks,                  \
                                        const float * sc, const float * keep) {                                                          \
        few_values(o, t, h, ks, sc, keep, n, HWKV_FATTN_##type);                                                                         \
    }
#define FEW_SCORES(n, type) few_scores_##type##_##n,
#define FEW_VALUES(n, type) few_values_##type##_##n,

#define FEW_2(f, type) f(1, type) f(2, type)
#if VEC_WIDTH >= 8
#define FEW_4(f, type) FEW_2(f, type) f(3, type) f(4, type)
#else
#define FEW_4(f, type) FEW_2(f, type)
#endif
#if VEC_WIDTH >= 16
#define FEW_ALL(f, type) FEW_4(f, type) f(5, type) f(6, type) f(7, type) f(8, type)
#else
#define FEW_ALL(f, type) FEW_4(f, type)
#endif

FEW_ALL(FEW, F16)
FEW_ALL(FEW, Q8_0)
FEW_ALL(FEW, Q4_0)

static const few_scores_fn few_scores_table[HWKV_FATTN_TYPES][ROWS_FEW] = {
    { FEW_ALL(FEW_SCORES, F16) }, { FEW_ALL(FEW_SCORES, Q8_0) }, { FEW_ALL(FEW_SCORES, Q4_0) },
};
static const few_values_fn few_values_table[HWKV_FATTN_TYPES][ROWS_FEW] = {
    { FEW_ALL(FEW_VALUES, F16) }, { FEW_ALL(FEW_VALUES, Q8_0) }, { FEW_ALL(FEW_VALUES, Q4_0) },
};

// scores of one row to weights; sum adds up lane by lane. Returns what earlier weights are multiplied with.
static float few_softmax(float * sc, const struct hwkv_fattn_tile * t, const struct keys * ks, int32_t row, float * m, vec * sum) {
    const int32_t n = ks->n;
    if (t->softcap != 0.0f) {
        for (int32_t j = 0; j < n; j += VEC_WIDTH) {
            vec_store(sc + j, vec_softcap(vec_load(sc + j), t->softcap));
        }
    }
    for (int32_t j = 0; ks->masked && j < n; j++) {
        sc[j] += t->slope[row] * f16_to_f32(t->mask[row][ks->at[j]]);
    }
    for (int32_t j = n; j % VEC_WIDTH != 0; j++) {
        sc[j] = -INFINITY; // weight 0
    }
    vec top = vec_set(*m);
    for (int32_t j = 0; j < n; j += VEC_WIDTH) {
        top = vec_max(vec_load(sc + j), top);
    }
    float max = *m;
    for (int i = 0; i < VEC_WIDTH; i++) {
        max = top[i] > max ? top[i] : max;
    }
    const vec factor = vec_exp2(vec_set(*m - max));
    vec add = (vec) { 0 };
    for (int32_t j = 0; j < n; j += VEC_WIDTH) {
        const vec e = vec_exp2(vec_load(sc + j) - max);
        vec_store(sc + j, e);
        add += e;
    }
    *sum = *sum * factor + add;
    *m   = max;
    return factor[0];
}

// All heads of a block before the next one: where they lie side by side, memory is read in one stream.
static void run_few(struct hwkv_fattn_tile * t) {
    const int32_t n_row = t->n_row;
    const int32_t n_all = t->n_head * n_row;
    const few_scores_fn scores = few_scores_table[t->k_type][n_row - 1];
    const few_values_fn values = few_values_table[t->v_type][n_row - 1];

    float * q = t->scratch;
    vec sum[HWKV_FATTN_HEADS * ROWS_FEW];
    for (int32_t r = 0; r < n_all; r++) {
        for (int32_t d = 0; d < t->dk; d++) {
            q[r * t->dk + d] = t->q[r][d] * t->q_scale;
        }
        t->m[r] = -FLT_MAX;
        sum[r]  = (vec) { 0 };
    }
    memset(t->o, 0, sizeof(float) * (size_t) (n_all * t->dv));

    float sc[ROWS_FEW * KEYS];
    float keep[ROWS_FEW];
    struct keys ks = { .next = t->key0 };
    while (keys_next(&ks, t)) {
        for (int32_t h = 0; h < t->n_head; h++) {
            const int32_t row0 = h * n_row;
            scores(sc, t, h, &ks, q + row0 * t->dk);
            for (int32_t r = 0; r < n_row; r++) {
                keep[r] = few_softmax(sc + r * KEYS, t, &ks, row0 + r, &t->m[row0 + r], &sum[row0 + r]);
            }
            values(t->o + row0 * t->dv, t, h, &ks, sc, keep);
        }
    }
    for (int32_t r = 0; r < n_all; r++) {
        t->s[r] = 0.0f;
        for (int i = 0; i < VEC_WIDTH; i++) {
            t->s[r] += sum[r][i];
        }
    }
}
