// Writes and attention of several groups in one graph, where no thread waits between them, against one graph for each node; and
// nodes that do depend on each other, which have to wait.

#include "hwkv-fattn-ggml.h"
#include "testing.h"

#include "ggml-cpu.h"
#include "ggml.h"

#include <stdint.h>
#include <stdlib.h>

#define N_GROUP 3
#define N_NODE  (3 * N_GROUP)
#define DIM     64
#define RATIO   3

enum hazard { NONE, READ_AFTER_WRITE, WRITE_AFTER_READ, ROWS_READ_AFTER_WRITE, ROWS_WRITTEN_TWICE, HAZARDS };

static uint32_t rng_state;

static float uniform(void) {
    rng_state = rng_state * 1664525u + 1013904223u;
    return (float) (rng_state >> 8) / 8388608.0f - 1.0f;
}

static struct ggml_tensor * random_f32(struct ggml_context * ctx, int64_t ne0, int64_t ne1, int64_t ne2) {
    struct ggml_tensor * t = ggml_new_tensor_3d(ctx, GGML_TYPE_F32, ne0, ne1, ne2);
    for (int64_t i = 0; i < ggml_nelements(t); i++) {
        ((float *) t->data)[i] = uniform();
    }
    return t;
}

static struct ggml_tensor * cache_new(struct ggml_context * ctx, enum ggml_type type, int64_t n_head, int64_t n_cell) {
    struct ggml_tensor * t = ggml_new_tensor_2d(ctx, type, DIM * n_head, n_cell);
    const int64_t n = ggml_nelements(t);
    float * x = malloc(sizeof(float) * (size_t) n);
    for (int64_t i = 0; i < n; i++) {
        x[i] = uniform();
    }
    ggml_quantize_chunk(type, x, t->data, 0, n / DIM, DIM, NULL);
    free(x);
    return t;
}

static struct ggml_tensor * rows_new(struct ggml_context * ctx, int64_t n, int64_t n_cell) {
    struct ggml_tensor * t = ggml_new_tensor_1d(ctx, GGML_TYPE_I64, n);
    for (int64_t i = 0; i < n; i++) {
        ((int64_t *) t->data)[i] = n_cell - n + i;
    }
    return t;
}

static struct ggml_tensor * attend(struct ggml_context * ctx, struct ggml_tensor * q, struct ggml_tensor * k, struct ggml_tensor * v) {
    struct ggml_tensor * kv[2] = { k, v };
    for (int i = 0; i < 2; i++) {
        kv[i] = ggml_view_3d(ctx, kv[i], DIM, kv[i]->ne[1], kv[i]->ne[0] / DIM, kv[i]->nb[1], ggml_row_size(kv[i]->type, DIM), 0);
    }
    return ggml_flash_attn_ext(ctx, ggml_permute(ctx, q, 0, 2, 1, 3), kv[0], kv[1], NULL, 0.125f, 0.0f, 0.0f);
}

// a layer: all nodes in the order in which they have to seem to be computed
struct layer {
    struct ggml_context * ctx;
    struct ggml_tensor  * nodes[N_NODE + 2];
    int                   n;
    struct ggml_tensor  * outs[N_GROUP + 2];
    int                   n_out;
};

static void add(struct layer * l, struct ggml_tensor * node) {
    l->nodes[l->n++] = node;
}

static struct layer layer_new(uint32_t seed, int64_t n_token, enum hazard hazard) {
    static const int64_t n_cell[N_GROUP] = { 2048, 320, 64 };
    static const enum ggml_type type_k[N_GROUP] = { GGML_TYPE_F16, GGML_TYPE_Q8_0, GGML_TYPE_Q4_0 };
    static const enum ggml_type type_v[N_GROUP] = { GGML_TYPE_F16, GGML_TYPE_Q4_0, GGML_TYPE_Q4_0 };
    struct layer l = { 0 };
    struct ggml_init_params params = { (size_t) 64 << 20, NULL, false };
    l.ctx = ggml_init(params);
    rng_state = seed;
    struct ggml_tensor * k[N_GROUP], * v[N_GROUP], * q[N_GROUP];
    for (int g = 0; g < N_GROUP; g++) {
        const int64_t n_head = g == 1 ? 2 : 1;
        k[g] = cache_new(l.ctx, type_k[g], n_head, n_cell[g]);
        v[g] = cache_new(l.ctx, type_v[g], n_head, n_cell[g]);
        q[g] = random_f32(l.ctx, DIM, RATIO * n_head, n_token);
        struct ggml_tensor * rows = rows_new(l.ctx, n_token, n_cell[g]);
        add(&l, ggml_set_rows(l.ctx, k[g], random_f32(l.ctx, DIM * n_head, n_token, 1), rows));
        add(&l, ggml_set_rows(l.ctx, v[g], random_f32(l.ctx, DIM * n_head, n_token, 1), rows));
    }
    if (hazard == ROWS_WRITTEN_TWICE) {
        // fewer rows, so that other threads write them
        const int64_t n = (n_token + 1) / 2;
        add(&l, ggml_set_rows(l.ctx, k[0], random_f32(l.ctx, DIM, n, 1), rows_new(l.ctx, n, n_cell[0])));
    }
    if (hazard == ROWS_READ_AFTER_WRITE) {
        struct ggml_tensor * to = random_f32(l.ctx, DIM, n_token, 1);
        struct ggml_tensor * rows = rows_new(l.ctx, n_token, n_token);
        add(&l, ggml_set_rows(l.ctx, to, random_f32(l.ctx, DIM, n_token, 1), rows));
        add(&l, ggml_set_rows(l.ctx, k[0], to, rows_new(l.ctx, n_token, n_cell[0])));
    }
    for (int g = 0; g < N_GROUP; g++) {
        struct ggml_tensor * out = attend(l.ctx, hazard == READ_AFTER_WRITE && g == 2 ? l.outs[0] : q[g], k[g], v[g]);
        if (hazard == WRITE_AFTER_READ && g == 2) {
            out->data = q[0]->data; // as an allocator does when the first was its last reader
        }
        add(&l, out);
        l.outs[l.n_out++] = out;
    }
    return l;
}

// all results side by side
static float * run(const struct layer * l, bool together, int n_thread, size_t * size) {
    if (together) {
        struct ggml_cgraph * gf = ggml_new_graph(l->ctx);
        for (int i = 0; i < l->n; i++) {
            ggml_build_forward_expand(gf, l->nodes[i]);
        }
        CHECK(ggml_graph_compute_with_ctx(l->ctx, gf, n_thread) == GGML_STATUS_SUCCESS);
    } else {
        for (int i = 0; i < l->n; i++) {
            // what was computed before is a value now
            struct ggml_tensor node = *l->nodes[i];
            struct ggml_cgraph * gf = ggml_new_graph(l->ctx);
            const enum ggml_op op = l->nodes[i]->op;
            ggml_build_forward_expand(gf, l->nodes[i]);
            CHECK(ggml_graph_compute_with_ctx(l->ctx, gf, 1) == GGML_STATUS_SUCCESS);
            CHECK_EQ_INT(op, node.op);
            l->nodes[i]->op = GGML_OP_NONE;
        }
    }
    *size = 0;
    for (int i = 0; i < l->n_out; i++) {
        *size += ggml_nbytes(l->outs[i]);
    }
    float * res = malloc(*size);
    size_t at = 0;
    for (int i = 0; i < l->n_out; i++) {
        memcpy((char *) res + at, l->outs[i]->data, ggml_nbytes(l->outs[i]));
        at += ggml_nbytes(l->outs[i]);
    }
    ggml_free(l->ctx);
    return res;
}

static void test_layers(enum hazard hazard, int64_t n_token) {
    for (uint32_t seed = 1; seed <= 2; seed++) {
        size_t size, size_alone;
        const struct layer alone = layer_new(seed, n_token, hazard);
        float * expected = run(&alone, false, 1, &size_alone);
        for (int n_thread = 1; n_thread <= 4; n_thread++) {
            for (int i = 0; i < 8; i++) { // a race shows now and then only
                const struct layer l = layer_new(seed, n_token, hazard);
                float * found = run(&l, true, n_thread, &size);
                CHECK_EQ_INT(size, size_alone);
                CHECK(memcmp(found, expected, size) == 0);
                free(found);
            }
        }
        free(expected);
    }
}

int main(void) {
    hwkv_fattn_enable(true);
    for (int hazard = NONE; hazard < HAZARDS; hazard++) {
        test_layers((enum hazard) hazard, 1);
        test_layers((enum hazard) hazard, 64);
    }
    return testing_result();
}
