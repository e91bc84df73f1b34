// A small hybrid-like model for the policy tests: 8 layers, full attention in 3 and 7, with unlike geometry.

#ifndef POLICY_FIXTURE_H
#define POLICY_FIXTURE_H

#include "entries.h"
#include "hwkv.h"

static struct hwkv_layer fixture_layers[2] = {
    // il, n_head, n_head_kv, head_dim_k, head_dim_v
    { 3, 8, 2, 64, 64 },
    { 7, 6, 3, 128, 64 },
};

enum { W256, W1024, W4096, FULL }; // entries of the codebook
static const struct hwkv_entry fixture_codebook[4] = { WINDOW(256), WINDOW(1024), WINDOW(4096), WINDOW(HWKV_FULL) };

static struct hwkv_geometry fixture_geometry(void) {
    struct hwkv_geometry geo = { 0 };
    snprintf(geo.architecture, sizeof(geo.architecture), "qwen35");
    snprintf(geo.name, sizeof(geo.name), "fixture");
    geo.n_layer = 8;
    geo.n_full  = 2;
    geo.layers  = fixture_layers;
    return geo;
}

static inline struct hwkv_policy * fixture_policy(int32_t sinks) {
    const struct hwkv_geometry geo = fixture_geometry();
    struct hwkv_policy_params params = hwkv_policy_params_default();
    params.geometry   = &geo;
    params.context    = 8192;
    params.sinks      = sinks;
    params.codebook   = fixture_codebook;
    params.n_codebook = 4;
    struct hwkv_policy * policy = NULL;
    CHECK_EQ_INT(hwkv_policy_init(&policy, &params, NULL), 0);
    return policy;
}

static inline void fixture_add(struct hwkv_policy * policy, const char * name, const int32_t entries[5]) {
    const struct hwkv_point_params point = { .name = name, .method = "by hand", .entries = entries };
    CHECK_EQ_INT(hwkv_policy_add_point(policy, &point, NULL), 0);
}

#endif // POLICY_FIXTURE_H
