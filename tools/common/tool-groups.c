#include "tool-groups.h"

#include "tool-print.h"

#include "hwkv-json.h"

#include <inttypes.h>

struct hwkv_plan_params tool_plan_params(const struct hwkv_policy * policy) {
    struct hwkv_plan_params params = hwkv_plan_params_default();
    params.n_ctx  = (uint32_t) hwkv_policy_context(policy);
    params.type_k = hwkv_policy_type_k(policy);
    params.type_v = hwkv_policy_type_v(policy);
    return params;
}

// Do groups have types of their own?
static bool has_types(const struct hwkv_plan * plan) {
    const struct hwkv_plan_params * params = hwkv_plan_params_of(plan);
    for (int32_t ig = 0; ig < hwkv_plan_n_group(plan); ig++) {
        const struct hwkv_entry * entry = &hwkv_plan_group(plan, ig)->entry;
        if (entry->type_k != params->type_k || entry->type_v != params->type_v) {
            return true;
        }
    }
    return false;
}

void tool_plan_print(FILE * out, const struct hwkv_plan * plan) {
    const struct hwkv_plan_params * params  = hwkv_plan_params_of(plan);
    const char                    * streams = params->n_seq_max == 1 ? "" : params->kv_unified ? " (unified)" : " (one stream each)";
    const char                    * cache   = has_types(plan) ? "plain cache" : "cache";
    fprintf(out, "  context %" PRIu32 ", %s %s/%s, flash attention %s, sequences %" PRIu32 "%s, rollback %" PRIu32 "\n", params->n_ctx, cache,
            hwkv_type_name(params->type_k), hwkv_type_name(params->type_v), params->flash_attn ? "on" : "off", params->n_seq_max, streams,
            params->n_rollback);
}

//
// table
//

static void put_counts(FILE * out, const struct hwkv_group * group) {
    char name[16];
    fprintf(out, "  %10s %7d %7d %12" PRIu32, tool_window_name(group->entry.window, name), group->n_layer, group->n_head, group->n_cells);
}

// A column where groups differ in types: else the line above the table has them.
static void put_types(FILE * out, const struct hwkv_plan * plan, const struct hwkv_group * group) {
    if (has_types(plan)) {
        fprintf(out, "  %s", hwkv_type_name(group->entry.type_k));
        if (group->entry.type_v != group->entry.type_k) {
            fprintf(out, "/%s", hwkv_type_name(group->entry.type_v));
        }
    }
    fputc('\n', out);
}

static void put_group(FILE * out, const struct hwkv_plan * plan, int32_t ig, const struct tool_devices * devices) {
    const struct hwkv_group * group = hwkv_plan_group(plan, ig);
    if (!devices) {
        const uint64_t size = group->k_size + group->v_size;
        put_counts(out, group);
        fprintf(out, " %12.2f %16" PRIu64, tool_mib(size), size);
        put_types(out, plan, group);
        return;
    }
    const char * name = NULL;
    size_t       size;
    for (size_t i = 0; (size = devices->size(devices->user, ig, i, &name)) > 0; i++) {
        if (i == 0) {
            put_counts(out, group);
        } else {
            fprintf(out, "  %10s %7s %7s %12s", "", "", "", "");
        }
        fprintf(out, has_types(plan) ? " %12.2f  %-10s" : " %12.2f  %s", tool_mib(size), name);
        put_types(out, plan, group);
    }
}

// share: "" or a percentage
static void put_sum(FILE * out, const char * name, const char * heads, const char * share, uint64_t size, bool with_bytes) {
    fprintf(out, "  %10s %7s %7s %12s %12.2f", name, "", heads, share, tool_mib(size));
    if (with_bytes) {
        fprintf(out, " %16" PRIu64, size);
    }
    fputc('\n', out);
}

void tool_groups_print(FILE * out, const struct hwkv_plan * plan, const struct tool_devices * devices) {
    fprintf(out, "  %10s %7s %7s %12s %12s", "window", "layers", "heads", hwkv_plan_n_stream(plan) > 1 ? "cells/stream" : "cells", "MiB");
    fprintf(out, !devices ? " %16s" : has_types(plan) ? "  %-10s" : "  %s", devices ? "device" : "bytes");
    fputs(has_types(plan) ? "  types\n" : "\n", out);

    int32_t n_head = 0;
    for (int32_t ig = 0; ig < hwkv_plan_n_group(plan); ig++) {
        put_group(out, plan, ig, devices);
        n_head += hwkv_plan_group(plan, ig)->n_head;
    }

    const uint64_t size  = hwkv_plan_size(plan);
    const uint64_t plain = hwkv_plan_size_plain(plan);
    // types of their own may take more than the plain cache
    const double saved = (double) plain - (double) size;
    char heads[16];
    char share[16];
    snprintf(heads, sizeof(heads), "%d", n_head);
    snprintf(share, sizeof(share), "%.2f%%", plain > 0 ? 100.0 * saved / (double) plain : 0.0);
    put_sum(out, "total", heads, "", size, !devices);
    put_sum(out, "plain", "", "", plain, !devices);
    put_sum(out, "saved", "", share, plain > size ? plain - size : 0, !devices);
}

//
// JSON
//

static struct hwkv_json * group_json(const struct hwkv_group * group) {
    const int32_t window = group->entry.window;

    struct hwkv_json * object = hwkv_json_new_object();
    const bool ok = hwkv_json_add(object, "entry",   hwkv_json_new_int(group->ic)) &&
                    hwkv_json_add(object, "window",  window == HWKV_FULL ? hwkv_json_new_string("full") : hwkv_json_new_int(window)) &&
                    hwkv_json_add(object, "type_k",  hwkv_json_new_string(hwkv_type_name(group->entry.type_k))) &&
                    hwkv_json_add(object, "type_v",  hwkv_json_new_string(hwkv_type_name(group->entry.type_v))) &&
                    hwkv_json_add(object, "n_layer", hwkv_json_new_int(group->n_layer)) &&
                    hwkv_json_add(object, "n_head",  hwkv_json_new_int(group->n_head)) &&
                    hwkv_json_add(object, "n_cells", hwkv_json_new_int(group->n_cells)) &&
                    hwkv_json_add(object, "k_bytes", hwkv_json_new_uint(group->k_size)) &&
                    hwkv_json_add(object, "v_bytes", hwkv_json_new_uint(group->v_size));
    if (!ok) {
        hwkv_json_free(object);
        return NULL;
    }
    return object;
}

struct hwkv_json * tool_groups_json(const struct hwkv_plan * plan) {
    struct hwkv_json * array = hwkv_json_new_array();
    for (int32_t ig = 0; ig < hwkv_plan_n_group(plan); ig++) {
        if (!hwkv_json_append(array, group_json(hwkv_plan_group(plan, ig)))) {
            hwkv_json_free(array);
            return NULL;
        }
    }
    return array;
}
