#include "server-kv-policy.h"

#include <cmath>

using json = common_json;

static json window_json(int32_t window) {
    return window == HWKV_FULL ? json("full") : json(window);
}

static json group_json(const hwkv_plan * plan, int32_t ig) {
    const auto * g = hwkv_plan_group(plan, ig);

    return {
        { "window",   window_json(g->window) },
        { "n_layer",  g->n_layer },
        { "n_head",   g->n_head },
        { "n_cells",  g->n_cells*hwkv_plan_n_stream(plan) },
        { "k_bytes",  g->k_size },
        { "v_bytes",  g->v_size },
    };
}

json server_kv_policy_props(const llama_context * ctx) {
    const auto * plan = llama_kv_policy_plan(ctx);
    if (!plan) {
        return nullptr;
    }

    const auto * policy = llama_kv_policy_get(ctx);
    const auto * point  = hwkv_policy_point(policy, llama_kv_policy_point(ctx));

    json groups = json::array();
    for (int32_t ig = 0; ig < hwkv_plan_n_group(plan); ++ig) {
        groups.push_back(group_json(plan, ig));
    }

    const uint64_t size       = hwkv_plan_size(plan);
    const uint64_t size_plain = hwkv_plan_size_plain(plan);

    return {
        { "sha256",      hwkv_policy_hash(policy) },
        { "point",       point->name },
        { "tau",         point->method[0] ? json(nullptr) : json(point->tau) },
        { "method",      point->method[0] ? json(point->method) : json(nullptr) },
        { "sinks",       hwkv_policy_sinks(policy) },
        { "context",     hwkv_policy_context(policy) },
        { "retention",   point->retention },
        { "min_score",   std::isnan(point->min_score) ? json(nullptr) : json(point->min_score) },
        { "groups",      groups },
        { "bytes",       size },
        { "bytes_plain", size_plain },
        { "bytes_saved", size_plain - size },
    };
}
