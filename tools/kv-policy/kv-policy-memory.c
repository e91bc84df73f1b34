// What a context takes on the devices there are.

#include "kv-policy.h"

#include "llama-hwkv.h"

// What differs from llama.cpp's defaults is as llama-server has it.
static struct llama_context_params context_params(const struct hwkv_plan_params * plan, int32_t n_batch, int32_t n_ubatch) {
    const uint32_t n_outputs = plan->n_seq_max < (uint32_t) n_batch ? plan->n_seq_max : (uint32_t) n_batch;

    struct llama_context_params params = llama_context_default_params();
    params.n_ctx              = plan->n_ctx;
    params.n_seq_max          = plan->n_seq_max;
    params.n_batch            = (uint32_t) n_batch;
    params.n_ubatch           = (uint32_t) n_ubatch;
    params.n_outputs_max      = n_outputs;
    params.kv_unified         = plan->kv_unified;
    params.flash_attn_type    = plan->flash_attn ? LLAMA_FLASH_ATTN_TYPE_ENABLED : LLAMA_FLASH_ATTN_TYPE_DISABLED;
    params.type_k             = tool_ggml_type(plan->type_k);
    params.type_v             = tool_ggml_type(plan->type_v);
    params.swa_full           = false;
    params.kv_policy_rollback = (int32_t) plan->n_rollback;
    return params;
}

bool kvp_memory_measure(struct tool_memory * memory, struct kvp_model * model, const struct hwkv_policy * policy, int32_t ip,
                        struct hwkv_plan_params * params, int32_t n_batch, int32_t n_ubatch) {
    const struct llama_context_params cparams = context_params(params, n_batch, n_ubatch);

    model->log.error[0] = '\0';
    struct llama_context * ctx = llama_kv_policy_init_from_model(model->llama, cparams, policy, ip);
    if (!ctx) {
        return false;
    }
    tool_memory_init(memory, ctx, llama_model_default_params().load_mode);
    const struct hwkv_plan * plan = llama_kv_policy_plan(ctx);
    if (plan) {
        *params = *hwkv_plan_params_of(plan);
        memory->n_checkpoints = (int64_t) tool_memory_checkpoints(plan);
    }
    llama_free(ctx);
    tool_memory_add_plain(memory, model->llama, cparams);
    return true;
}
