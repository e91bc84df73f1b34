// Keys and values as llama-seqcalib rounds them, held against what a cache of these types really has, for tests/py/test_seqcalib_types.py.
//
//   round-test MODEL TYPE_K TYPE_V [fake]
//
// The first full-attention layer is run once with a cache in F32 and once with these types, all on the CPU or on bridge-test's fake device.
// Prints JSON: how the rows are rotated, how many numbers differ, and by how much at most, as a share of the largest number of the row.
// Or, if there is one, only the device that cannot have these types.

#include "seqcalib-round.h"

#include "bridge/devices.h"

#include "tool-llama.h"

#include "hwkv.h"
#include "llama-hwkv-model.h"
#include "llama-hwkv-trace.h"
#include "llama-hwkv.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define N_POS 150

struct rows {
    float * k; // [n_head_kv][N_POS][head_dim]
    float * v;
};

struct difference {
    int64_t n_other;
    double  most;
};

static int fail(const char * what, const struct hwkv_error * err) {
    fprintf(stderr, "round-test: %s: %s\n", what, err ? err->msg : "failed");
    return 1;
}

// A policy with a point for the types and one for F32, full everywhere.
static int make_policy(struct hwkv_policy ** policy, const struct hwkv_geometry * geo, enum hwkv_type type_k, enum hwkv_type type_v, struct hwkv_error * err) {
    const struct hwkv_cache cache = { 256, HWKV_TYPE_F32, HWKV_TYPE_F32 };
    struct hwkv_entry codebook[2] = { { HWKV_FULL, HWKV_TYPE_F32, HWKV_TYPE_F32 }, { HWKV_FULL, type_k, type_v } };
    int status = hwkv_codebook_sort(codebook, 2, geo, &cache, err);

    struct hwkv_policy_params params = hwkv_policy_params_default();
    params.geometry   = geo;
    params.context    = (int32_t) cache.n_ctx;
    params.codebook   = codebook;
    params.n_codebook = 2;
    params.sinks      = 0;
    params.type_k     = cache.type_k;
    params.type_v     = cache.type_v;
    status = status ? status : hwkv_policy_init(policy, &params, err);

    int32_t * entries = status ? NULL : calloc((size_t) hwkv_policy_n_unit(*policy), sizeof(*entries));
    for (int32_t ip = 0; ip < 2 && status == 0; ip++) {
        for (int32_t i = 0; i < hwkv_policy_n_unit(*policy); i++) {
            entries[i] = ip; // F32 takes more than any other
        }
        const struct hwkv_point_params point = { .name = ip == 0 ? "types" : "exact", .method = "one entry", .entries = entries };
        status = hwkv_policy_add_point(*policy, &point, err);
    }
    free(entries);
    return status;
}

// What the cache of a point holds of the first full-attention layer after some tokens.
static int trace(struct rows * rows, struct llama_model * model, const struct hwkv_policy * policy, int32_t ip, struct hwkv_error * err) {
    const struct hwkv_layer * layer = &hwkv_policy_geometry(policy)->layers[0];

    struct llama_context_params params = llama_context_default_params();
    params.n_ctx           = 256;
    params.n_ubatch        = N_POS;
    params.n_seq_max       = 1;
    params.n_threads       = 1;
    params.n_threads_batch = 1;
    params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_ENABLED;
    params.type_k          = GGML_TYPE_F32;
    params.type_v          = GGML_TYPE_F32;

    struct llama_context * ctx = llama_kv_policy_init_from_model(model, params, policy, ip);
    if (!ctx) {
        return fail("no context", NULL);
    }
    llama_token tokens[N_POS];
    for (int32_t i = 0; i < N_POS; i++) {
        tokens[i] = 3 + (i*i*7 + i) % 60;
    }
    const struct llama_hwkv_part part = { .first = 0, .last = layer->il };
    struct llama_hwkv_tracer * tracer = llama_hwkv_tracer_init(ctx);
    const int status = llama_hwkv_tracer_decode(tracer, tokens, N_POS, 0, &part, err);

    const size_t n_row = (size_t) layer->n_head_kv*N_POS;
    rows->k = malloc(sizeof(float)*n_row*(size_t) layer->head_dim_k);
    rows->v = malloc(sizeof(float)*n_row*(size_t) layer->head_dim_v);
    if (status == 0) {
        llama_hwkv_tracer_get_k(tracer, N_POS, rows->k);
        llama_hwkv_tracer_get_v(tracer, N_POS, rows->v);
    }
    llama_hwkv_tracer_free(tracer);
    llama_free(ctx);
    return status;
}

// From the definition: an element of the matrix is negative where its row and column have an odd number of bits in common.
static void rotate_back(float * row, int32_t dim, int32_t n) {
    for (int32_t first = 0; n > 0 && first < dim; first += n) {
        double sum[1024];
        for (int32_t i = 0; i < n; i++) {
            sum[i] = 0.0;
            for (int32_t j = 0; j < n; j++) {
                sum[i] += __builtin_parity((unsigned) (i & j)) ? -(double) row[first + j] : (double) row[first + j];
            }
        }
        for (int32_t i = 0; i < n; i++) {
            row[first + i] = (float) (sum[i]/sqrt(n));
        }
    }
}

static struct difference compare(const float * rounded, float * held, int64_t n_row, int32_t dim, int32_t n_rot) {
    struct difference res = { 0 };
    for (int64_t i = 0; i < n_row; i++) {
        rotate_back(held + i*dim, dim, n_rot);
        double largest = 0.0;
        for (int32_t j = 0; j < dim; j++) {
            largest = fmax(largest, fabs((double) held[i*dim + j]));
        }
        for (int32_t j = 0; j < dim; j++) {
            const double d = fabs((double) rounded[i*dim + j] - (double) held[i*dim + j]);
            res.n_other += d != 0.0;
            res.most = fmax(res.most, d/largest);
        }
    }
    return res;
}

static int run(struct llama_model * model, enum hwkv_type type_k, enum hwkv_type type_v) {
    struct hwkv_error    err;
    struct hwkv_geometry geo;
    struct hwkv_policy * policy = NULL;
    struct rows held;
    struct rows exact;
    int32_t n_rot_k, n_rot_v;

    if (llama_hwkv_model_geometry(model, &geo, &err)) {
        return fail("no geometry", &err);
    }
    const char * device = llama_kv_policy_device_without(model, &geo, type_k, type_v, 256, N_POS);
    if (device) {
        printf("{\"device\": \"%s\"}\n", device);
        hwkv_geometry_free(&geo);
        return 0;
    }
    if (make_policy(&policy, &geo, type_k, type_v, &err) || trace(&held, model, policy, 0, &err) ||
        trace(&exact, model, policy, 1, &err) || llama_hwkv_rotation(model, &geo, type_k, type_v, &n_rot_k, &n_rot_v, &err)) {
        return fail("cannot trace", &err);
    }
    const struct hwkv_layer * layer = &geo.layers[0];
    const int64_t n_row = (int64_t) layer->n_head_kv*N_POS;
    const struct sc_rounding k = { tool_ggml_type(type_k), n_rot_k };
    const struct sc_rounding v = { tool_ggml_type(type_v), n_rot_v };

    // what is rounded must not be that already
    float * before = malloc(sizeof(float)*(size_t) n_row*(size_t) layer->head_dim_k);
    memcpy(before, exact.k, sizeof(float)*(size_t) n_row*(size_t) layer->head_dim_k);
    if (sc_round_rows(exact.k, exact.k, n_row, layer->head_dim_k, &k, &err) || sc_round_rows(exact.v, exact.v, n_row, layer->head_dim_v, &v, &err)) {
        return fail("cannot round", &err);
    }
    const struct difference was    = compare(before, exact.k, n_row, layer->head_dim_k, 0);
    const struct difference diff_k = compare(exact.k, held.k, n_row, layer->head_dim_k, n_rot_k);
    const struct difference diff_v = compare(exact.v, held.v, n_row, layer->head_dim_v, n_rot_v);
    printf("{\"rotated_k\": %d, \"rotated_v\": %d, \"rounding\": %g, \"k\": [%lld, %g], \"v\": [%lld, %g]}\n", n_rot_k, n_rot_v, was.most,
           (long long) diff_k.n_other, diff_k.most, (long long) diff_v.n_other, diff_v.most);

    free(before);
    free(held.k);
    free(held.v);
    free(exact.k);
    free(exact.v);
    hwkv_policy_free(policy);
    hwkv_geometry_free(&geo);
    return 0;
}

int main(int argc, char ** argv) {
    const bool fake = argc == 5 && strcmp(argv[4], "fake") == 0;
    const int type_k = argc == 4 || fake ? hwkv_type_from_name(argv[2]) : -1;
    const int type_v = argc == 4 || fake ? hwkv_type_from_name(argv[3]) : -1;
    if (type_k < 0 || type_v < 0) {
        fprintf(stderr, "usage: round-test MODEL TYPE_K TYPE_V [fake]\n");
        return 2;
    }
    struct tool_log log = { 0 };
    llama_log_set(tool_log_callback, &log);
    llama_backend_init();
    add_fake_devices(fake);
    struct llama_model * model = llama_model_load_from_file(argv[1], llama_model_default_params());
    const int code = model ? run(model, (enum hwkv_type) type_k, (enum hwkv_type) type_v) : fail(log.error, NULL);
    if (model) {
        llama_model_free(model);
    }
    llama_backend_free();
    return code;
}
