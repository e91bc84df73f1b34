#include "tool-memory.h"

#include "tool-print.h"

#include "hwkv-json.h"
#include "llama-hwkv.h"

#include <string.h>

// NULL: there are more devices than anybody has
static struct tool_memory_device * find_device(struct tool_memory * memory, const char * name, bool host) {
    for (int32_t i = 0; i < memory->n_device; i++) {
        struct tool_memory_device * device = &memory->devices[i];
        if (device->context.host == host && (host || strcmp(device->context.name, name) == 0)) {
            return device;
        }
    }
    if (memory->n_device == TOOL_MEMORY_DEVICES) {
        return NULL;
    }
    struct tool_memory_device * device = &memory->devices[memory->n_device++];
    memset(device, 0, sizeof(*device));
    snprintf(device->context.name, sizeof(device->context.name), "%.*s", LLAMA_HWKV_DEVICE_NAME - 1, name);
    device->context.host = host;
    return device;
}

static int32_t read_context(const struct tool_memory * memory, const struct llama_context * ctx, struct llama_hwkv_memory found[TOOL_MEMORY_DEVICES]) {
    const bool    mapped = llama_hwkv_model_is_mapped(llama_get_model(ctx), memory->load_mode);
    const int32_t n      = llama_hwkv_memory_read(ctx, mapped, found, TOOL_MEMORY_DEVICES);
    return n < TOOL_MEMORY_DEVICES ? n : TOOL_MEMORY_DEVICES;
}

static uint64_t context_size(const struct llama_hwkv_memory * context) {
    return context->weights + context->kv + context->swa + context->recurrent + context->compute;
}

void tool_memory_init(struct tool_memory * memory, const struct llama_context * ctx, enum llama_load_mode load_mode) {
    struct llama_hwkv_memory found[TOOL_MEMORY_DEVICES];
    const struct hwkv_plan * plan = llama_kv_policy_plan(ctx);

    memset(memory, 0, sizeof(*memory));
    memory->load_mode     = load_mode;
    memory->n_checkpoints = -1;
    memory->n_group       = plan ? hwkv_plan_n_group(plan) : 0;
    memory->n_device      = read_context(memory, ctx, found);
    for (int32_t i = 0; i < memory->n_device; i++) {
        memory->devices[i].context = found[i];
    }
}

bool tool_memory_add_plain(struct tool_memory * memory, struct llama_model * model, struct llama_context_params params) {
    params.kv_policy       = NULL;
    params.kv_policy_given = NULL;

    struct llama_context * ctx = llama_init_from_model(model, params);
    if (!ctx) {
        return false;
    }
    struct llama_hwkv_memory found[TOOL_MEMORY_DEVICES];
    const int32_t n = read_context(memory, ctx, found);
    llama_free(ctx);

    for (int32_t i = 0; i < n; i++) {
        struct tool_memory_device * device = find_device(memory, found[i].name, found[i].host);
        if (device) {
            device->plain = context_size(&found[i]);
        }
    }
    memory->has_plain = true;
    return true;
}

void tool_memory_add_draft(struct tool_memory * memory, const struct llama_context * ctx, bool shares_model) {
    struct llama_hwkv_memory found[TOOL_MEMORY_DEVICES];
    const int32_t n = read_context(memory, ctx, found);

    for (int32_t i = 0; i < n; i++) {
        struct tool_memory_device * device = find_device(memory, found[i].name, found[i].host);
        if (device) {
            device->draft += context_size(&found[i]) - (shares_model ? found[i].weights : 0);
        }
    }
}

void tool_memory_add_projector(struct tool_memory * memory, ggml_backend_dev_t dev, uint64_t size) {
    char name[LLAMA_HWKV_DEVICE_NAME];
    bool host;
    llama_hwkv_device_name(dev, name, &host);

    struct tool_memory_device * device = find_device(memory, name, host);
    if (device) {
        device->projector += size;
    }
}

uint64_t tool_memory_checkpoints(const struct hwkv_plan * plan) {
    const uint64_t size  = hwkv_plan_size(plan);
    const uint64_t plain = hwkv_plan_size_plain(plan);
    return plain > size ? (plain - size) / 2 : 0; // types of their own may take more
}

uint64_t tool_memory_total(const struct tool_memory_device * device) {
    return context_size(&device->context) + device->draft + device->projector;
}

uint64_t tool_memory_total_plain(const struct tool_memory_device * device) {
    return device->plain + device->draft + device->projector;
}

//
// what is shown of a device
//

enum column { WEIGHTS, KV, SWA, RECURRENT, COMPUTE, DRAFT, PROJECTOR, TOTAL, TOTAL_PLAIN, N_COLUMN };

static const struct {
    const char * title;
    const char * key;
} COLUMNS[N_COLUMN] = {
    [WEIGHTS]     = { "weights",   "weights_bytes" },
    [KV]          = { "KV",        "kv_bytes" },
    [SWA]         = { "SWA",       "swa_bytes" },
    [RECURRENT]   = { "recurrent", "recurrent_bytes" },
    [COMPUTE]     = { "compute",   "compute_bytes" },
    [DRAFT]       = { "draft",     "draft_bytes" },
    [PROJECTOR]   = { "projector", "projector_bytes" },
    [TOTAL]       = { "total",     "total_bytes" },
    [TOTAL_PLAIN] = { "plain",     "total_bytes_plain" },
};

static uint64_t value_of(const struct tool_memory_device * device, enum column column) {
    switch (column) {
        case WEIGHTS:     return device->context.weights;
        case KV:          return device->context.kv;
        case SWA:         return device->context.swa;
        case RECURRENT:   return device->context.recurrent;
        case COMPUTE:     return device->context.compute;
        case DRAFT:       return device->draft;
        case PROJECTOR:   return device->projector;
        case TOTAL:       return tool_memory_total(device);
        case TOTAL_PLAIN: return tool_memory_total_plain(device);
        case N_COLUMN:    break;
    }
    return 0;
}

static uint64_t sum_of(const struct tool_memory * memory, enum column column) {
    uint64_t sum = 0;
    for (int32_t i = 0; i < memory->n_device; i++) {
        sum += value_of(&memory->devices[i], column);
    }
    return sum;
}

//
// table
//

void tool_memory_print(FILE * out, const struct tool_memory * memory) {
    bool shown[N_COLUMN];
    int  width = 10;
    for (int32_t i = 0; i < memory->n_device; i++) {
        const int n = (int) strlen(memory->devices[i].context.name);
        width = n > width ? n : width;
    }

    fprintf(out, "  %*s", width, "MiB");
    for (int c = 0; c < N_COLUMN; c++) {
        shown[c] = (c != TOTAL_PLAIN || memory->has_plain) && sum_of(memory, (enum column) c) > 0;
        if (shown[c]) {
            fprintf(out, " %12s", COLUMNS[c].title);
        }
    }
    fputc('\n', out);

    // one device is its own total
    const int32_t n_row = memory->n_device > 1 ? memory->n_device + 1 : 1;
    for (int32_t i = 0; i < n_row; i++) {
        const struct tool_memory_device * device = i < memory->n_device ? &memory->devices[i] : NULL;
        fprintf(out, "  %*s", width, device ? device->context.name : "total");
        for (int c = 0; c < N_COLUMN; c++) {
            if (shown[c]) {
                fprintf(out, " %12.2f", tool_mib(device ? value_of(device, (enum column) c) : sum_of(memory, (enum column) c)));
            }
        }
        fputc('\n', out);
    }

    if (memory->n_checkpoints >= 0) {
        fprintf(out, "context checkpoints take at most %.2f MiB of the host's memory besides\n", tool_mib((uint64_t) memory->n_checkpoints));
    }
    if (memory->missing) {
        fprintf(out, "not measured: %s\n", memory->missing);
    }
}

//
// JSON
//

static struct hwkv_json * group_sizes_json(const struct tool_memory * memory, const struct tool_memory_device * device) {
    struct hwkv_json * array = hwkv_json_new_array();
    for (int32_t ig = 0; ig < memory->n_group; ig++) {
        if (!hwkv_json_append(array, hwkv_json_new_uint(device->context.groups[ig]))) {
            hwkv_json_free(array);
            return NULL;
        }
    }
    return array;
}

static struct hwkv_json * size_json(const struct tool_memory * memory, enum column column, uint64_t size) {
    return column == TOTAL_PLAIN && !memory->has_plain ? hwkv_json_new_null() : hwkv_json_new_uint(size);
}

static struct hwkv_json * device_json(const struct tool_memory * memory, const struct tool_memory_device * device) {
    struct hwkv_json * o = hwkv_json_new_object();
    bool ok = hwkv_json_add(o, "name", hwkv_json_new_string(device->context.name)) &&
              hwkv_json_add(o, "host", hwkv_json_new_bool(device->context.host));
    for (int c = 0; ok && c < N_COLUMN; c++) {
        ok = hwkv_json_add(o, COLUMNS[c].key, size_json(memory, (enum column) c, value_of(device, (enum column) c)));
        if (ok && c == KV) {
            ok = hwkv_json_add(o, "kv_group_bytes", group_sizes_json(memory, device));
        }
    }
    if (!ok) {
        hwkv_json_free(o);
        return NULL;
    }
    return o;
}

static struct hwkv_json * devices_json(const struct tool_memory * memory) {
    struct hwkv_json * array = hwkv_json_new_array();
    for (int32_t i = 0; i < memory->n_device; i++) {
        if (!hwkv_json_append(array, device_json(memory, &memory->devices[i]))) {
            hwkv_json_free(array);
            return NULL;
        }
    }
    return array;
}

static struct hwkv_json * checkpoints_json(const struct tool_memory * memory) {
    return memory->n_checkpoints < 0 ? hwkv_json_new_null() : hwkv_json_new_int(memory->n_checkpoints);
}

static struct hwkv_json * missing_json(const struct tool_memory * memory) {
    return memory->missing ? hwkv_json_new_string(memory->missing) : hwkv_json_new_null();
}

struct hwkv_json * tool_memory_json(const struct tool_memory * memory) {
    struct hwkv_json * o = hwkv_json_new_object();
    const bool ok = hwkv_json_add(o, "devices",                devices_json(memory)) &&
                    hwkv_json_add(o, COLUMNS[TOTAL].key,       size_json(memory, TOTAL,       sum_of(memory, TOTAL))) &&
                    hwkv_json_add(o, COLUMNS[TOTAL_PLAIN].key, size_json(memory, TOTAL_PLAIN, sum_of(memory, TOTAL_PLAIN))) &&
                    hwkv_json_add(o, "checkpoint_bytes_max",   checkpoints_json(memory)) &&
                    hwkv_json_add(o, "not_measured",           missing_json(memory));
    if (!ok) {
        hwkv_json_free(o);
        return NULL;
    }
    return o;
}
