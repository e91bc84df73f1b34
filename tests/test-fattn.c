// Flash attention nodes of ggml with our kernel on and off, over random shapes, strides, types, masks and threads.
//
// usage: test-fattn                  compare
//        test-fattn --time [THREADS] time both, with the shapes of the default model

#include "hwkv-fattn-ggml.h"
#include "hwkv-fattn.h"
#include "testing.h"

#include "ggml-cpu.h"
#include "ggml.h"

#include <stdlib.h>
#include <time.h>

static uint64_t rng_state;

static uint32_t rng(void) {
    rng_state = rng_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t) (rng_state >> 33);
}

static int32_t pick(int32_t lo, int32_t hi) {
    return lo + (int32_t) (rng() % (uint32_t) (hi - lo + 1));
}

static float uniform(void) {
    return (float) rng() / 1073741824.0f - 1.0f;
}

#define PICK(array) (array)[rng() % (sizeof(array) / sizeof((array)[0]))]

enum mask_kind { MASK_NONE, MASK_CAUSAL, MASK_WINDOW, MASK_SPARSE, MASK_BIAS, MASK_KINDS };

struct shape {
    int32_t        n_token, n_head, n_head_kv, n_stream, n_kv, dk, dv;
    enum ggml_type type_k, type_v;
    enum mask_kind mask;
    bool           sinks;
    bool           heads_first; // heads are far apart in memory, keys beside each other
    float          softcap, max_bias, size;
};

struct graph {
    struct ggml_context * ctx;
    struct ggml_cgraph  * gf;
    struct ggml_tensor  * out;
};

static void fill(float * data, int64_t n, float size) {
    for (int64_t i = 0; i < n; i++) {
        data[i] = size * uniform();
    }
}

// K or V as the cache keeps it: [dim*head, key, stream] or, heads first, [dim, key, head*stream]; seen as [dim, key, head, stream].
// With exact the same rounded values as F32.
static struct ggml_tensor * kv_new(struct ggml_context * ctx, const struct shape * s, int32_t dim, enum ggml_type type, bool exact) {
    const enum ggml_type as = exact ? GGML_TYPE_F32 : type;
    struct ggml_tensor * t = s->heads_first ? ggml_new_tensor_3d(ctx, as, dim, s->n_kv, s->n_head_kv * s->n_stream)
                                            : ggml_new_tensor_3d(ctx, as, dim * s->n_head_kv, s->n_kv, s->n_stream);
    const int64_t n = ggml_nelements(t);
    float * x = malloc(sizeof(float) * (size_t) n);
    void  * y = malloc(ggml_row_size(type, n));
    fill(x, n, 2.0f);
    ggml_quantize_chunk(type, x, y, 0, n / dim, dim, NULL);
    if (exact && type != GGML_TYPE_F32) {
        ggml_get_type_traits(type)->to_float(y, t->data, n);
    } else {
        memcpy(t->data, y, ggml_row_size(type, n));
    }
    free(x);
    free(y);
    const size_t row = ggml_row_size(t->type, dim);
    const size_t nb_head   = s->heads_first ? t->nb[2] : row;
    const size_t nb_stream = s->heads_first ? t->nb[2] * (size_t) s->n_head_kv : t->nb[2];
    return ggml_view_4d(ctx, t, dim, s->n_kv, s->n_head_kv, s->n_stream, t->nb[1], nb_head, nb_stream, 0);
}

static float mask_value(const struct shape * s, int32_t token, int32_t key) {
    const int32_t pos = s->n_kv - s->n_token + token - 3; // cells beyond the last token are free
    switch (s->mask) {
        case MASK_CAUSAL: return key <= pos ? 0.0f : -INFINITY;
        case MASK_WINDOW: return key <= pos && (key > pos - 100 || key < 4) ? 0.0f : -INFINITY;
        case MASK_SPARSE: return token % 5 == 4 || rng() % 3 ? -INFINITY : 0.0f; // every fifth row sees nothing
        case MASK_BIAS:   return rng() % 4 == 0 ? -INFINITY : uniform();
        default:          return 0.0f;
    }
}

static struct ggml_tensor * mask_new(struct ggml_context * ctx, const struct shape * s) {
    if (s->mask == MASK_NONE) {
        return NULL;
    }
    const int32_t n_head   = pick(0, 3) == 0 ? s->n_head : 1;
    const int32_t n_stream = pick(0, 1) ? s->n_stream : 1;
    struct ggml_tensor * t = ggml_new_tensor_4d(ctx, GGML_TYPE_F16, s->n_kv, s->n_token, n_head, n_stream);
    ggml_fp16_t * data = t->data;
    for (int64_t i = 0; i < ggml_nelements(t); i++) {
        data[i] = ggml_fp32_to_fp16(mask_value(s, (int32_t) (i / s->n_kv % s->n_token), (int32_t) (i % s->n_kv)));
    }
    return t;
}

static struct graph graph_new(const struct shape * s, uint64_t seed, bool exact) {
    rng_state = seed;
    const size_t n_kv = (size_t) s->n_kv * (size_t) s->n_head_kv * (size_t) s->n_stream * (size_t) (s->dk + s->dv);
    const size_t n_q  = (size_t) s->n_token * (size_t) s->n_head * (size_t) s->n_stream * (size_t) (s->dk + s->dv);
    const size_t n_m  = (size_t) s->n_token * (size_t) s->n_head * (size_t) s->n_stream * (size_t) s->n_kv;
    struct ggml_init_params params = { ((size_t) 32 << 20) + 8 * n_kv + 8 * n_q + 2 * n_m, NULL, false };
    struct graph g;
    g.ctx = ggml_init(params);
    struct ggml_tensor * k = kv_new(g.ctx, s, s->dk, s->type_k, exact);
    struct ggml_tensor * v = kv_new(g.ctx, s, s->dv, s->type_v, exact);
    struct ggml_tensor * q = ggml_new_tensor_4d(g.ctx, GGML_TYPE_F32, s->dk, s->n_head, s->n_token, s->n_stream);
    struct ggml_tensor * m = mask_new(g.ctx, s);
    fill(q->data, ggml_nelements(q), s->size);
    g.out = ggml_flash_attn_ext(g.ctx, ggml_permute(g.ctx, q, 0, 2, 1, 3), k, v, m, 1.0f / sqrtf((float) s->dk), s->max_bias, s->softcap);
    if (s->sinks) {
        struct ggml_tensor * sinks = ggml_new_tensor_1d(g.ctx, GGML_TYPE_F32, s->n_head);
        fill(sinks->data, s->n_head, 3.0f);
        ggml_flash_attn_ext_add_sinks(g.out, sinks);
    }
    g.gf = ggml_new_graph(g.ctx);
    ggml_build_forward_expand(g.gf, g.out);
    return g;
}

// a copy of the result
static float * run(const struct graph * g, bool on, int n_thread) {
    hwkv_fattn_enable(on);
    memset(g->out->data, 0xff, ggml_nbytes(g->out)); // NaN where nothing is written
    CHECK(ggml_graph_compute_with_ctx(g->ctx, g->gf, n_thread) == GGML_STATUS_SUCCESS);
    float * copy = malloc(ggml_nbytes(g->out));
    memcpy(copy, g->out->data, ggml_nbytes(g->out));
    return copy;
}

// |a - b| / |b| over all values
static double distance(const float * a, const float * b, int64_t n) {
    double diff = 0.0, norm = 0.0;
    for (int64_t i = 0; i < n; i++) {
        diff += ((double) a[i] - (double) b[i]) * ((double) a[i] - (double) b[i]);
        norm += (double) b[i] * (double) b[i];
    }
    return diff == 0.0 ? 0.0 : sqrt(diff / norm);
}

// any that the kernel does
static enum ggml_type type_random(int32_t dim) {
    static const enum ggml_type TYPES[] = { GGML_TYPE_F16, GGML_TYPE_F16, GGML_TYPE_Q8_0, GGML_TYPE_Q4_0 };
    const enum ggml_type type = PICK(TYPES);
    return dim % 32 == 0 ? type : GGML_TYPE_F16;
}

static struct shape shape_random(void) {
    static const int32_t DIMS[][2] = { { 64, 64 }, { 64, 64 }, { 128, 128 }, { 80, 80 }, { 96, 96 }, { 192, 128 }, { 256, 256 }, { 512, 512 } };
    static const int32_t TOKENS[]  = { 1, 1, 1, 2, 5, 8, 16, 70, 150 };
    static const int32_t SHARE[]   = { 1, 2, 3, 4, 7, 8, 9, 16 };
    struct shape s;
    do {
        const int32_t * dims = PICK(DIMS);
        s.dk        = dims[0];
        s.dv        = dims[1];
        s.n_token   = PICK(TOKENS);
        s.n_head_kv = pick(1, 4);
        s.n_head    = s.n_head_kv * PICK(SHARE);
        s.n_stream  = pick(0, 3) == 0 ? pick(2, 3) : 1;
        s.n_kv      = pick(0, 2) == 0 ? pick(1, 100) : pick(100, 1500);
    } while ((double) s.n_token * s.n_head * s.n_stream * s.n_kv * (s.dk + s.dv) > 4e7);
    s.type_k      = type_random(s.dk);
    s.type_v      = type_random(s.dv);
    s.mask        = (enum mask_kind) pick(0, MASK_KINDS - 1);
    s.sinks       = pick(0, 3) == 0;
    s.heads_first = pick(0, 1);
    s.softcap     = pick(0, 3) == 0 ? 30.0f : 0.0f;
    s.max_bias    = s.mask != MASK_NONE && pick(0, 3) == 0 ? 8.0f : 0.0f;
    s.size        = 3.0f;
    return s;
}

static void describe(const struct shape * s, int i) {
    fprintf(stderr, "    shape %d: %d tokens, %d/%d heads, %d streams, %d keys, dims %d %d, %s %s, mask %d, sinks %d, softcap %g, bias %g\n", i,
            (int) s->n_token, (int) s->n_head, (int) s->n_head_kv, (int) s->n_stream, (int) s->n_kv, (int) s->dk, (int) s->dv,
            ggml_type_name(s->type_k), ggml_type_name(s->type_v), (int) s->mask, s->sinks, (double) s->softcap, (double) s->max_bias);
}

// F32 sums in another order
#define TOLERANCE_F32 1e-5
// what ggml's kernel itself is away from its F32 result: few tokens round Q to F16, or bytes for q8_0, and add up in F16
#define TOLERANCE_TYPES 2e-2

// largest distances: from ggml on the same values in F32, on the same tensors, and of ggml's two results
static double worst_f32, worst_types, worst_ggml;

static void test_shape(int i) {
    rng_state = (uint64_t) i;
    const struct shape s = shape_random();
    const struct graph g = graph_new(&s, (uint64_t) i + 1000, false);
    const struct graph e = graph_new(&s, (uint64_t) i + 1000, true);
    const int64_t n = ggml_nelements(g.out);
    float * exact = run(&e, false, 1);
    float * stock = run(&g, false, 1);
    worst_ggml = fmax(worst_ggml, distance(stock, exact, n));
    float * first = NULL;
    for (int32_t k = 0; hwkv_fattn_kernel_name(k); k++) {
        hwkv_fattn_kernel_set(k);
        hwkv_fattn_enable(true);
        CHECK(hwkv_fattn_work_size(g.out, 1) > 0);
        for (int n_thread = 1; n_thread <= (k == 0 ? 3 : 1); n_thread++) {
            float * ours = run(&g, true, n_thread);
            const double d_f32   = distance(ours, exact, n);
            const double d_types = distance(ours, stock, n);
            const bool   ok      = d_f32 < TOLERANCE_F32 && d_types < TOLERANCE_TYPES; // not if NaN
            CHECK(ok);
            if (!ok) {
                fprintf(stderr, "    kernel %s, %d threads: %g from F32, %g from the same types\n", hwkv_fattn_kernel_name(k), n_thread,
                        d_f32, d_types);
                describe(&s, i);
            }
            worst_f32   = fmax(worst_f32, d_f32);
            worst_types = fmax(worst_types, d_types);
            if (n_thread == 1) {
                free(first);
                first = ours;
            } else {
                CHECK(memcmp(first, ours, sizeof(float) * (size_t) n) == 0);
                free(ours);
            }
        }
    }
    free(first);
    free(exact);
    free(stock);
    ggml_free(g.ctx);
    ggml_free(e.ctx);
}

static const struct shape DECODE = { .n_token = 1, .n_head = 9, .n_head_kv = 3, .n_stream = 1, .n_kv = 7168, .dk = 64, .dv = 64,
    .type_k = GGML_TYPE_F16, .type_v = GGML_TYPE_F16, .mask = MASK_CAUSAL, .size = 3.0f };

// what our kernel does not do is left to ggml's, bit for bit; off is off
static void test_left_alone(void) {
    struct shape s = DECODE;
    s.n_kv = 600;
    for (int i = 0; i < 4; i++) {
        s.type_k = i == 0 ? GGML_TYPE_F32 : i == 1 ? GGML_TYPE_Q4_1 : GGML_TYPE_F16;
        s.type_v = i == 2 ? GGML_TYPE_BF16 : s.type_k;
        s.dk     = i == 3 ? 72 : 64;
        const struct graph g = graph_new(&s, 1, false);
        hwkv_fattn_enable(true);
        CHECK_EQ_INT(hwkv_fattn_work_size(g.out, 1), 0);
        float * on  = run(&g, true, 2);
        float * off = run(&g, false, 2);
        CHECK(memcmp(on, off, ggml_nbytes(g.out)) == 0);
        free(on);
        free(off);
        ggml_free(g.ctx);
    }
    const struct graph g = graph_new(&DECODE, 1, false);
    hwkv_fattn_enable(false);
    CHECK_EQ_INT(hwkv_fattn_work_size(g.out, 1), 0);
    // work memory planned with the kernel off is too small for it: it must see that
    struct ggml_cplan plan = ggml_graph_plan(g.gf, 1, NULL);
    plan.work_data = malloc(plan.work_size);
    hwkv_fattn_enable(true);
    CHECK(hwkv_fattn_work_size(g.out, 1) > 0);
    CHECK(ggml_graph_compute(g.gf, &plan) == GGML_STATUS_SUCCESS);
    free(plan.work_data);
    ggml_free(g.ctx);
}

//
// --time
//

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double) t.tv_sec + 1e-9 * (double) t.tv_nsec;
}

static double time_once(struct graph * g, int n_layer, bool on, int n_thread) {
    hwkv_fattn_enable(on);
    const double start = now();
    for (int i = 0; i < n_layer; i++) {
        struct ggml_cplan plan = ggml_graph_plan(g[i].gf, n_thread, NULL);
        plan.work_data = malloc(plan.work_size);
        ggml_graph_compute(g[i].gf, &plan);
        free(plan.work_data);
    }
    return (now() - start) / n_layer;
}

struct timing {
    const char    * what;
    struct shape    s;
    struct graph  * g; // of n_layer layers: more than the caches hold
    int             n_layer;
    double          best[2]; // off and on
};

static void timing_init(struct timing * t, const char * what, struct shape s) {
    const size_t  n_row = (size_t) s.n_kv * (size_t) s.n_head_kv;
    const size_t  size  = n_row * (ggml_row_size(s.type_k, s.dk) + ggml_row_size(s.type_v, s.dv));
    *t = (struct timing) { .what = what, .s = s, .n_layer = s.n_token > 8 ? 2 : (int) (((size_t) 128 << 20) / size), .best = { 1e9, 1e9 } };
    t->n_layer = t->n_layer < 100 ? t->n_layer : 100;
    t->g = malloc(sizeof(*t->g) * (size_t) t->n_layer);
    for (int i = 0; i < t->n_layer; i++) {
        t->g[i] = graph_new(&s, (uint64_t) i, false);
    }
}

// all of them with the kernel off and on in turns; the best of each, since other work on the machine only ever adds
static void time_together(struct timing * t, int n, int n_thread) {
    for (int round = 0; round < (t[0].s.n_token > 8 ? 3 : 10); round++) {
        for (int i = 0; i < 2 * n; i++) {
            double * best = &t[i / 2].best[i % 2];
            *best = fmin(*best, time_once(t[i / 2].g, t[i / 2].n_layer, i % 2, n_thread));
        }
    }
    for (int i = 0; i < n; i++) {
        printf("%-30s %8.3f ms   %8.3f ms   %.2fx\n", t[i].what, 1e3 * t[i].best[0], 1e3 * t[i].best[1], t[i].best[0] / t[i].best[1]);
        for (int j = 0; j < t[i].n_layer; j++) {
            ggml_free(t[i].g[j].ctx);
        }
        free(t[i].g);
    }
    fflush(stdout);
}

static void time_shape(const char * what, struct shape s, int n_thread) {
    struct timing t;
    timing_init(&t, what, s);
    time_together(&t, 1, n_thread);
}

static void time_types(const char * what, struct shape s, int n_thread) {
    static const enum ggml_type TYPES[][2] = { { GGML_TYPE_F16, GGML_TYPE_F16 }, { GGML_TYPE_Q8_0, GGML_TYPE_Q8_0 },
                                               { GGML_TYPE_Q8_0, GGML_TYPE_Q4_0 }, { GGML_TYPE_Q4_0, GGML_TYPE_Q4_0 } };
    struct timing t[4];
    char name[4][64];
    for (int i = 0; i < 4; i++) {
        s.type_k = TYPES[i][0];
        s.type_v = TYPES[i][1];
        snprintf(name[i], sizeof(name[i]), "%s, %s %s", what, ggml_type_name(s.type_k), ggml_type_name(s.type_v));
        timing_init(&t[i], name[i], s);
    }
    time_together(t, 4, n_thread);
}

static int time_all(int n_thread) {
    printf("%d threads, kernel %s, one layer\n%-30s %11s   %11s\n", n_thread, hwkv_fattn_kernel_name(0), "", "ggml", "ours");
    struct shape s = DECODE;
    time_types("decode at 7168", s, n_thread);
    s.heads_first = true;
    time_types("heads first", s, n_thread);
    s = DECODE;
    s.n_token = 4;
    time_shape("4 tokens at 7168", s, n_thread);
    s = DECODE;
    s.n_kv = 256;
    time_shape("decode at 256", s, n_thread);
    s.n_token = 512;
    s.n_kv    = 512 + 3;
    time_shape("prefill of 512 at 0", s, n_thread);
    s.n_kv = 7168;
    time_types("512 at 7168", s, n_thread);
    return 0;
}

int main(int argc, char ** argv) {
    ggml_cpu_init();
    if (argc > 1) {
        const int n_thread = argc > 2 ? atoi(argv[2]) : 1;
        if (strcmp(argv[1], "--time") != 0 || argc > 3 || n_thread < 1) {
            fprintf(stderr, "usage: test-fattn [--time [THREADS]]\n");
            return 2;
        }
        return time_all(n_thread);
    }
    for (int i = 0; i < 60; i++) {
        test_shape(i);
    }
    hwkv_fattn_kernel_set(0);
    test_left_alone();
    printf("largest distance from ggml: %.2g on the same values in F32, %.2g on the same tensors; between these %.2g\n", worst_f32,
           worst_types, worst_ggml);
    return testing_result();
}
