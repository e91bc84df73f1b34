// Many rows, a part of hwkv-fattn-kernel.h: panels of VEC_PANEL vectors of query rows go through each block of keys.

INLINE void rows_to_float(float * out, const char * data, size_t nb, const struct keys * ks, int32_t dim, const int type) {
    const int32_t n = (ks->n + VEC_STEP - 1) / VEC_STEP * VEC_STEP;
    for (int32_t j = 0; j < n; j++) {
        const char * row = data + (size_t) ks->at[j] * nb;
        prefetch(row, KEYS * nb, row_size(dim, type));
        for (int32_t d = 0; d < dim; d += BLOCK(type)) {
            for (int i = 0; i < BLOCK_VEC(type); i++) {
                vec_store(out + j * dim + d + i * VEC_WIDTH, vec_kv(row + row_size(d, type), i, type));
            }
        }
    }
}

static void block_to_float(float * out, const char * data, size_t nb, const struct keys * ks, int32_t dim, int type) {
    switch (type) {
        case HWKV_FATTN_F16:  rows_to_float(out, data, nb, ks, dim, HWKV_FATTN_F16);  break;
        case HWKV_FATTN_Q8_0: rows_to_float(out, data, nb, ks, dim, HWKV_FATTN_Q8_0); break;
        default:              rows_to_float(out, data, nb, ks, dim, HWKV_FATTN_Q4_0);
    }
}

// s[key][row] = k[key] . q[.][row]
INLINE void panel_scores(float * restrict s, const float * q, const float * k, int32_t n_key, int32_t dk, const int n_vec) {
    for (int32_t j0 = 0; j0 < n_key; j0 += VEC_STEP) {
        vec sum[VEC_STEP][VEC_PANEL];
        for (int j = 0; j < VEC_STEP; j++) {
            for (int i = 0; i < n_vec; i++) {
                sum[j][i] = (vec) { 0 };
            }
        }
        const float * kj = k + j0 * dk;
        for (int32_t d = 0; d < dk; d++) {
            vec x[VEC_PANEL];
            for (int i = 0; i < n_vec; i++) {
                x[i] = vec_load(q + (d * n_vec + i) * VEC_WIDTH);
            }
#pragma GCC unroll 8
            for (int j = 0; j < VEC_STEP; j++) {
                const float y = kj[j * dk + d];
                for (int i = 0; i < n_vec; i++) {
                    sum[j][i] += x[i] * y;
                }
            }
        }
        for (int j = 0; j < VEC_STEP; j++) {
            for (int i = 0; i < n_vec; i++) {
                vec_store(s + ((j0 + j) * n_vec + i) * VEC_WIDTH, sum[j][i]);
            }
        }
    }
}

// o[dim][row] = o*keep + sum over keys of v[key][dim] * p[key][row]
INLINE void panel_values(float * restrict o, const float * p, const float * v, const float * keep, int32_t n_key, int32_t dv, const int n_vec) {
    for (int32_t d0 = 0; d0 < dv; d0 += VEC_STEP) {
        vec sum[VEC_STEP][VEC_PANEL];
        for (int j = 0; j < VEC_STEP; j++) {
            for (int i = 0; i < n_vec; i++) {
                sum[j][i] = vec_load(o + ((d0 + j) * n_vec + i) * VEC_WIDTH) * vec_load(keep + i * VEC_WIDTH);
            }
        }
        for (int32_t k = 0; k < n_key; k++) {
            vec x[VEC_PANEL];
            for (int i = 0; i < n_vec; i++) {
                x[i] = vec_load(p + (k * n_vec + i) * VEC_WIDTH);
            }
#pragma GCC unroll 8
            for (int j = 0; j < VEC_STEP; j++) {
                const float y = v[k * dv + d0 + j];
                for (int i = 0; i < n_vec; i++) {
                    sum[j][i] += x[i] * y;
                }
            }
        }
        for (int j = 0; j < VEC_STEP; j++) {
            for (int i = 0; i < n_vec; i++) {
                vec_store(o + ((d0 + j) * n_vec + i) * VEC_WIDTH, sum[j][i]);
            }
        }
    }
}

// scores to weights, in place; keep is what earlier weights are multiplied with
INLINE void panel_softmax(float * p, float * m, float * s, float * keep, int32_t n_key, const int n_vec) {
    for (int i = 0; i < n_vec; i++) {
        float * at = p + i * VEC_WIDTH;
        const vec old = vec_load(m + i * VEC_WIDTH);
        vec top = old;
        for (int32_t k = 0; k < n_key; k++) {
            top = vec_max(vec_load(at + k * n_vec * VEC_WIDTH), top);
        }
        vec sum = (vec) { 0 };
        for (int32_t k = 0; k < n_key; k++) {
            const vec e = vec_exp2(vec_load(at + k * n_vec * VEC_WIDTH) - top);
            vec_store(at + k * n_vec * VEC_WIDTH, e);
            sum += e;
        }
        const vec factor = vec_exp2(old - top);
        vec_store(keep + i * VEC_WIDTH, factor);
        vec_store(m    + i * VEC_WIDTH, top);
        vec_store(s    + i * VEC_WIDTH, vec_load(s + i * VEC_WIDTH) * factor + sum);
    }
}

struct panel {
    int32_t row0, n_row;
    int     n_vec;
    float * q; // [dk][n_vec vectors]
    float * o; // [dv][n_vec vectors]
    float * m, * s;
};

INLINE void panel_block(const struct hwkv_fattn_tile * t, const struct panel * p, const struct keys * ks, const float * k,
                        const float * v, float * w, const int n_vec) {
    const int n = n_vec * VEC_WIDTH;
    float keep[ROWS_MANY];
    panel_scores(w, p->q, k, ks->n, t->dk, n_vec);
    if (t->softcap != 0.0f) {
        for (int32_t i = 0; i < ks->n * n; i += VEC_WIDTH) {
            vec_store(w + i, vec_softcap(vec_load(w + i), t->softcap));
        }
    }
    for (int32_t r = 0; ks->masked && r < p->n_row; r++) {
        const uint16_t * mask  = t->mask[p->row0 + r];
        const float      slope = t->slope[p->row0 + r];
        for (int32_t j = 0; j < ks->n; j++) {
            w[j * n + r] += slope * f16_to_f32(mask[ks->at[j]]);
        }
    }
    panel_softmax(w, p->m, p->s, keep, ks->n, n_vec);
    panel_values(p->o, w, v, keep, ks->n, t->dv, n_vec);
}

#define PANEL_BLOCK(i) \
    static void panel_block_##i(const struct hwkv_fattn_tile * t, const struct panel * p, const struct keys * ks, \
                                const float * k, const float * v, float * w) {                                    \
        panel_block(t, p, ks, k, v, w, i);                                                                        \
    }

PANEL_BLOCK(1)
PANEL_BLOCK(2)
PANEL_BLOCK(3)

static void (* const panel_blocks[])(const struct hwkv_fattn_tile *, const struct panel *, const struct keys *,
                                     const float *, const float *, float *) = { panel_block_1, panel_block_2, panel_block_3 };

// rows of q become columns; columns that no row fills are 0
static void panel_load(const struct hwkv_fattn_tile * t, struct panel * p) {
    const int32_t n = p->n_vec * VEC_WIDTH;
    memset(p->q, 0, sizeof(float) * (size_t) (t->dk * n));
    memset(p->o, 0, sizeof(float) * (size_t) (t->dv * n));
    for (int32_t r = 0; r < p->n_row; r++) {
        const float * q = t->q[p->row0 + r];
        for (int32_t d = 0; d < t->dk; d++) {
            p->q[d * n + r] = q[d] * t->q_scale;
        }
    }
    for (int32_t r = 0; r < n; r++) {
        p->m[r] = -FLT_MAX;
        p->s[r] = 0.0f;
    }
}

static void panel_store(struct hwkv_fattn_tile * t, const struct panel * p) {
    const int32_t n = p->n_vec * VEC_WIDTH;
    for (int32_t r = 0; r < p->n_row; r++) {
        t->m[p->row0 + r] = p->m[r];
        t->s[p->row0 + r] = p->s[r];
        float * o = t->o + (p->row0 + r) * t->dv;
        for (int32_t d = 0; d < t->dv; d++) {
            o[d] = p->o[d * n + r];
        }
    }
}

static void run_many(struct hwkv_fattn_tile * t) {
    struct panel panels[(HWKV_FATTN_ROWS + ROWS_MANY - 1) / ROWS_MANY];
    float * at = t->scratch;
    float * k  = at; at += KEYS * t->dk;
    float * v  = at; at += KEYS * t->dv;
    float * w  = at; at += KEYS * ROWS_MANY;
    int n_panel = 0;
    for (int32_t row = 0; row < t->n_row; row += ROWS_MANY) {
        struct panel * p = &panels[n_panel++];
        p->row0  = row;
        p->n_row = t->n_row - row < ROWS_MANY ? t->n_row - row : ROWS_MANY;
        p->n_vec = (p->n_row + VEC_WIDTH - 1) / VEC_WIDTH;
        p->q = at; at += t->dk * p->n_vec * VEC_WIDTH;
        p->o = at; at += t->dv * p->n_vec * VEC_WIDTH;
        p->m = at; at += p->n_vec * VEC_WIDTH;
        p->s = at; at += p->n_vec * VEC_WIDTH;
        panel_load(t, p);
    }
    struct keys ks = { .next = t->key0 };
    while (keys_next(&ks, t)) {
        block_to_float(k, t->k, t->k_nb, &ks, t->dk, t->k_type);
        block_to_float(v, t->v, t->v_nb, &ks, t->dv, t->v_type);
        for (int i = 0; i < n_panel; i++) {
            panel_blocks[panels[i].n_vec - 1](t, &panels[i], &ks, k, v, w);
        }
    }
    for (int i = 0; i < n_panel; i++) {
        panel_store(t, &panels[i]);
    }
}
