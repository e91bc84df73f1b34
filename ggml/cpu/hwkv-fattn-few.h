// Few rows, a part of hwkv-fattn-kernel.h: up to ROWS_FEW query rows of a head, whose number is a constant to the compiler.

// Fetches a part of the next block into the L2 cache while head h of this one is at key j: in the order of memory, whatever
// the order in which heads and keys are used, so that the CPU sees a stream.
INLINE void few_fetch(const struct hwkv_fattn_tile * t, const struct keys * ks, int32_t h, int32_t j, const char * base, size_t nb, size_t nb_head,
                      size_t size) {
    const int32_t at  = h * KEYS + j;
    int32_t       sub = at % t->n_head;
    const char *  row = base + (size_t) (ks->next + at / t->n_head) * nb;
    for (int i = 0; i < VEC_WIDTH; i++) {
        prefetch(row, (size_t) sub * nb_head, size);
        if (++sub == t->n_head) {
            sub = 0;
            row += nb;
        }
    }
}

// sc[row][key] = k[key] . q[row] for head h
INLINE void few_scores(float * sc, const struct hwkv_fattn_tile * t, int32_t h, const struct keys * ks, const float * q, const int n_row,
                       const int type) {
    const char * k = t->k + (size_t) h * t->k_nb_head;
    const int step = n_row * 4 <= VEC_ACC ? 4 : 2; // keys at once
    for (int32_t j0 = 0; j0 < ks->n; j0 += VEC_WIDTH) {
        few_fetch(t, ks, h, j0, t->k, t->k_nb, t->k_nb_head, row_size(t->dk, type));
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
            for (int32_t d = 0; d < t->dk; d += VEC_WIDTH) {
                for (int i = 0; i < step; i++) {
                    const vec x = vec_kv(row[i], d, type);
                    for (int r = 0; r < n_row; r++) {
                        sum[i][r] += x * vec_load(q + r * t->dk + d);
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

// n_vec vectors of the values, from dim d on
INLINE void few_values_part(float * o, const struct hwkv_fattn_tile * t, int32_t h, const struct keys * ks, const float * sc,
                            const float * keep, int32_t d, const int n_row, const int type, const int n_vec) {
    const char * v = t->v + (size_t) h * t->v_nb_head;
    vec sum[ROWS_FEW][4];
    for (int r = 0; r < n_row; r++) {
        for (int i = 0; i < n_vec; i++) {
            sum[r][i] = vec_load(o + r * t->dv + d + i * VEC_WIDTH) * keep[r];
        }
    }
    for (int32_t j = 0; j < ks->n; j++) {
        const char * row = v + (size_t) ks->at[j] * t->v_nb;
        if (d == 0 && j % VEC_WIDTH == 0) {
            few_fetch(t, ks, h, j, t->v, t->v_nb, t->v_nb_head, row_size(t->dv, type));
        }
        vec x[4];
        for (int i = 0; i < n_vec; i++) {
            x[i] = vec_kv(row, d + i * VEC_WIDTH, type);
        }
        for (int r = 0; r < n_row; r++) {
            for (int i = 0; i < n_vec; i++) {
                sum[r][i] += x[i] * sc[r * KEYS + j];
            }
        }
    }
    for (int r = 0; r < n_row; r++) {
        for (int i = 0; i < n_vec; i++) {
            vec_store(o + r * t->dv + d + i * VEC_WIDTH, sum[r][i]);
        }
    }
}

INLINE void few_values(float * o, const struct hwkv_fattn_tile * t, int32_t h, const struct keys * ks, const float * sc,
                       const float * keep, const int n_row, const int type) {
    const int n_vec = n_row * 4 <= VEC_ACC ? 4 : 2;
    int32_t d = 0;
    for (; d + n_vec * VEC_WIDTH <= t->dv; d += n_vec * VEC_WIDTH) {
        few_values_part(o, t, h, ks, sc, keep, d, n_row, type, n_vec);
    }
    for (; d < t->dv; d += VEC_WIDTH) {
        few_values_part(o, t, h, ks, sc, keep, d, n_row, type, 1);
    }
}

#define FEW_SCORES(name, n, type)                                                                                                        \
    static void name##_##n(float * sc, const struct hwkv_fattn_tile * t, int32_t h, const struct keys * ks, const float * q) {           \
        few_scores(sc, t, h, ks, q, n, type);                                                                                            \
    }
#define FEW_VALUES(name, n, type)                                                                                                        \
    static void name##_##n(float * o, const struct hwkv_fattn_tile * t, int32_t h, const struct keys * ks, const float * sc,             \
                           const float * keep) {                                                                                         \
        few_values(o, t, h, ks, sc, keep, n, type);                                                                                      \
    }
#define FEW(n)                                     \
    FEW_SCORES(few_scores_f16, n, HWKV_FATTN_F16)  \
    FEW_SCORES(few_scores_q8,  n, HWKV_FATTN_Q8_0) \
    FEW_VALUES(few_values_f16, n, HWKV_FATTN_F16)  \
    FEW_VALUES(few_values_q8,  n, HWKV_FATTN_Q8_0)

#define FEW_2(f) f(1) f(2)
#if VEC_WIDTH >= 8
#define FEW_4(f) FEW_2(f) f(3) f(4)
#else
#define FEW_4(f) FEW_2(f)
#endif
#if VEC_WIDTH >= 16
#define FEW_ALL(f) FEW_4(f) f(5) f(6) f(7) f(8)
#else
#define FEW_ALL(f) FEW_4(f)
#endif

FEW_ALL(FEW)

typedef void (* few_scores_fn)(float *, const struct hwkv_fattn_tile *, int32_t, const struct keys *, const float *);
typedef void (* few_values_fn)(float *, const struct hwkv_fattn_tile *, int32_t, const struct keys *, const float *, const float *);

#define SCORES_F16(n) few_scores_f16_##n,
#define SCORES_Q8(n)  few_scores_q8_##n,
#define VALUES_F16(n) few_values_f16_##n,
#define VALUES_Q8(n)  few_values_q8_##n,

static const few_scores_fn few_scores_table[2][ROWS_FEW] = { { FEW_ALL(SCORES_F16) }, { FEW_ALL(SCORES_Q8) } };
static const few_values_fn few_values_table[2][ROWS_FEW] = { { FEW_ALL(VALUES_F16) }, { FEW_ALL(VALUES_Q8) } };

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
