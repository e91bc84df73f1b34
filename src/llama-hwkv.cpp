#include "llama-hwkv.h"

#include "llama-context.h"
#include "llama-kv-headwise.h"

static llama_kv_headwise * find(const llama_context * ctx) {
    return llama_kv_headwise::find(llama_get_memory(ctx));
}

const hwkv_plan * llama_kv_policy_plan(const llama_context * ctx) {
    const auto * hw = find(ctx);
    return hw ? hw->get_plan().plan.get() : nullptr;
}

const hwkv_policy * llama_kv_policy_get(const llama_context * ctx) {
    const auto * hw = find(ctx);
    return hw ? hw->get_plan().policy.get() : nullptr;
}

int32_t llama_kv_policy_point(const llama_context * ctx) {
    const auto * hw = find(ctx);
    return hw ? hw->get_plan().ip : -1;
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

size_t llama_kv_policy_group_device(const llama_context * ctx, int32_t ig, size_t i, const char ** name) {
    const auto * hw = find(ctx);
    return hw ? hw->group_device(ig, i, name) : 0;
}

uint32_t llama_kv_policy_cells_used(const llama_context * ctx, int32_t ig) {
    const auto * hw = find(ctx);
    return hw ? hw->n_cells_used(ig) : 0;
}

bool llama_kv_policy_can_resume(const llama_context * ctx, llama_seq_id seq_id, llama_pos p) {
    return llama_kv_headwise::can_resume(llama_get_memory(ctx), seq_id, p);
}
