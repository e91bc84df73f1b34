// What llama-server needs besides its model: the projector, and context checkpoints.

#include "server-kv-policy.h"

#include "common-kv-memory.h"
#include "mtmd.h"

// As upstream's server makes the projector; one that is loaded does not tell what it takes.
static void add_projector(const common_params & params, tool_memory & memory) {
    auto mparams = mtmd_context_params_default();
    mparams.use_gpu          = params.mmproj_use_gpu;
    mparams.device           = params.mmproj_device;
    mparams.print_timings    = false;
    mparams.n_threads        = params.cpuparams.n_threads;
    mparams.flash_attn_type  = params.flash_attn_type;
    mparams.warmup           = params.warmup;
    mparams.image_min_tokens = params.image_min_tokens;
    mparams.image_max_tokens = params.image_max_tokens;
    mparams.batch_max_tokens = params.mtmd_batch_max_tokens;

    const auto found = mtmd_get_memory_usage(params.mmproj.path.c_str(), mparams);
    for (const auto & [dev, size] : found) {
        tool_memory_add_projector(&memory, dev, size);
    }
    if (found.empty()) {
        memory.missing = memory.missing ? "draft, projector" : "projector";
    }
}

size_t server_kv_policy::checkpoint_limit(const common_params & params, const hwkv_plan * plan) {
    return params.kv_policy.checkpoint_mib >= 0 ? (size_t) params.kv_policy.checkpoint_mib << 20 : tool_memory_checkpoints(plan);
}

server_kv_policy::server_kv_policy() {
    common_kv_memory_set_more([](const common_params & params, const llama_context * ctx, tool_memory & memory) {
        if (!params.mmproj.path.empty()) {
            add_projector(params, memory);
        }
        if (const auto * plan = llama_kv_policy_plan(ctx)) {
            memory.n_checkpoints = checkpoint_limit(params, plan);
        }
    });
}
