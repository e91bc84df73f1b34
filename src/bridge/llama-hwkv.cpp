#include "llama-hwkv.h"

#include "llama-context.h"
#include "llama-hwkv-model.h"
#include "llama-kv-headwise.h"

#include "hwkv-number.h"

#include <cstdio>
#include <set>
#include <string>

static llama_kv_headwise * find(const llama_context * ctx) {
    return llama_kv_headwise::find(llama_get_memory(ctx));
}

const hwkv_plan * llama_kv_policy_plan(const llama_context * ctx) {
    const auto * hw = find(ctx);
    return hw ? hw->get_setup().plan.get() : nullptr;
}

const hwkv_policy * llama_kv_policy_get(const llama_context * ctx) {
    const auto * hw = find(ctx);
    return hw ? hw->get_setup().policy.get() : nullptr;
}

int32_t llama_kv_policy_point(const llama_context * ctx) {
    const auto * hw = find(ctx);
    return hw ? hw->get_setup().ip : -1;
}

size_t llama_kv_policy_cache_size(const llama_context * ctx) {
    size_t res = 0;
    if (auto * mem = llama_get_memory(ctx)) {
        for (const auto & [buft, size] : mem->memory_breakdown()) {
            GGML_UNUSED(buft);
            res += size;
        }
    }
    return res;
}

size_t llama_kv_policy_compute_size(const llama_context * ctx) {
    size_t res = 0;
    for (const auto & [buft, size] : ctx->memory_breakdown()) {
        GGML_UNUSED(buft);
        res += size.compute;
    }
    return res;
}

size_t llama_kv_policy_head_size(const llama_context * ctx, int32_t jl, int32_t ih) {
    const auto * hw = find(ctx);
    if (!hw) {
        return 0;
    }

    const auto * plan  = hw->get_setup().plan.get();
    const auto & layer = hwkv_policy_geometry(hw->get_setup().policy.get())->layers[jl];
    const auto * g     = hwkv_plan_group(plan, hwkv_plan_group_of(plan, jl, ih));

    return (size_t) g->n_cells*hwkv_plan_n_stream(plan)*(hwkv_type_row_size(g->entry.type_k, layer.head_dim_k) + hwkv_type_row_size(g->entry.type_v, layer.head_dim_v));
}

size_t llama_kv_policy_group_device(const llama_context * ctx, int32_t ig, size_t i, const char ** name) {
    const auto * hw = find(ctx);
    return hw ? hw->group_device(ig, i, name) : 0;
}

uint32_t llama_kv_policy_cells_used(const llama_context * ctx, int32_t ig) {
    const auto * hw = find(ctx);
    return hw ? hw->n_cells_used(ig) : 0;
}

uint32_t llama_kv_policy_cells_used_seq(const llama_context * ctx, int32_t ig, llama_seq_id seq_id) {
    const auto * hw = find(ctx);
    return hw ? hw->n_cells_used(ig, seq_id) : 0;
}

bool llama_kv_policy_can_resume(const llama_context * ctx, llama_seq_id seq_id, llama_pos p) {
    return llama_kv_headwise::can_resume(llama_get_memory(ctx), seq_id, p);
}

int32_t llama_kv_policy_lost_window(const llama_context * ctx, llama_seq_id seq_id, llama_pos p) {
    const auto * hw = find(ctx);
    return hw ? hw->lost_window(seq_id, p) : HWKV_FULL;
}

int32_t llama_kv_policy_n_same(const llama_context * ctx, llama_seq_id seq_id, const llama_token * tokens, int32_t n) {
    const auto * hw = find(ctx);
    return hw ? hwkv_history_n_same(&hw->get_history(seq_id), tokens, n) : n;
}

uint64_t llama_kv_policy_mark(const llama_context * ctx, llama_seq_id seq_id, int32_t n) {
    const auto * hw = find(ctx);
    return hw && n > 0 ? hwkv_history_mark(&hw->get_history(seq_id), n) : 0;
}

const char * llama_kv_policy_state_id(const llama_context * ctx) {
    const auto * hw = find(ctx);
    return hw ? hw->get_setup().state_id.c_str() : "";
}

void llama_kv_policy_model_id(const llama_context * ctx, char hex[65]) {
    hex[0] = '\0';

    hwkv_error    err = {};
    hwkv_geometry geo = {};
    if (!find(ctx) || llama_hwkv_model_geometry(&ctx->get_model(), &geo, &err) != 0) {
        return;
    }

    hwkv_sha256 s;
    hwkv_sha256_init(&s);
    hwkv_sha256_string(&s, geo.fingerprint);
    hwkv_sha256_string(&s, geo.type_fingerprint);
    hwkv_geometry_free(&geo);
    hwkv_sha256_final(&s, hex);
}

void llama_kv_policy_cache_text(const llama_context * ctx, char * text, size_t size) {
    const auto * hw = find(ctx);
    if (!hw) {
        snprintf(text, size, "%s", "");
        return;
    }

    const auto & cparams = ctx->get_cparams();
    const auto * plan    = hw->get_setup().plan.get();

    std::set<std::string> seen;
    std::string types;
    for (int32_t ig = 0; ig < hwkv_plan_n_group(plan); ++ig) {
        const auto & entry = hwkv_plan_group(plan, ig)->entry;
        const std::string pair = std::string("K ") + hwkv_type_name(entry.type_k) + ", V " + hwkv_type_name(entry.type_v) + ", ";
        if (seen.insert(pair).second && seen.size() <= 6) { // all of them are in the state's id, and what follows must have room
            types += pair;
        }
    }

    hwkv_snprintf(text, size, "%s%u stream%s, flash attention %s, RoPE %g/%g", types.c_str(), hwkv_plan_n_stream(plan), hwkv_plan_n_stream(plan) == 1 ? "" : "s",
            cparams.flash_attn ? "on" : "off", cparams.rope_freq_base, cparams.rope_freq_scale);
}
