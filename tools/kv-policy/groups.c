// The memory of an operating point as a table.

#include "kv-policy.h"

#include <inttypes.h>

struct hwkv_plan_params plan_params_of(const struct hwkv_policy * policy) {
    struct hwkv_plan_params params = hwkv_plan_params_default();
    params.n_ctx  = (uint32_t) hwkv_policy_context(policy);
    params.type_k = hwkv_policy_type_k(policy);
    params.type_v = hwkv_policy_type_v(policy);
    return params;
}

void groups_print(const struct hwkv_plan * plan, const struct hwkv_plan_params * params) {
    const uint32_t n_stream = hwkv_plan_n_stream(plan);

    const char * streams = params->n_seq_max == 1 ? "" : params->kv_unified ? " (unified)" : " (one stream each)";
    printf("  context %" PRIu32 ", cache %s/%s, flash attention %s, sequences %" PRIu32 "%s, rollback %" PRIu32 "\n\n",
           params->n_ctx, hwkv_type_name(params->type_k), hwkv_type_name(params->type_v), params->flash_attn ? "on" : "off",
           params->n_seq_max, streams, params->n_rollback);

    printf("  %10s %7s %7s %12s %12s %16s\n", "window", "layers", "heads", n_stream > 1 ? "cells/stream" : "cells", "MiB", "bytes");

    int32_t n_head = 0;
    for (int32_t ig = 0; ig < hwkv_plan_n_group(plan); ig++) {
        const struct hwkv_group * group = hwkv_plan_group(plan, ig);
        const uint64_t size = group->k_size + group->v_size;
        char name[16];
        printf("  %10s %7d %7d %12" PRIu32 " %12.2f %16" PRIu64 "\n", window_name(group->window, name), group->n_layer,
               group->n_head, group->n_cells, mib(size), size);
        n_head += group->n_head;
    }

    const uint64_t size  = hwkv_plan_size(plan);
    const uint64_t plain = hwkv_plan_size_plain(plan);
    printf("  %10s %7s %7d %12s %12.2f %16" PRIu64 "\n", "total", "", n_head, "", mib(size), size);
    printf("  %10s %7s %7s %12s %12.2f %16" PRIu64 "\n", "plain", "", "", "", mib(plain), plain);
    printf("  %10s %7s %7s %11.2f%% %12.2f %16" PRIu64 "\n", "saved", "", "",
           plain > 0 ? 100.0 * (double) (plain - size) / (double) plain : 0.0, mib(plain - size), plain - size);
}
