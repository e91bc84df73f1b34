// The memory of every device: weights, KV, recurrent state, compute, a draft and a projector, beside what it would be without a policy.

#ifndef TOOL_MEMORY_H
#define TOOL_MEMORY_H

#include "llama-hwkv-memory.h"

#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TOOL_MEMORY_DEVICES 64

struct hwkv_json;

struct tool_memory_device {
    struct llama_hwkv_memory context;
    uint64_t                 plain;     // what the context would take without a policy
    uint64_t                 draft;     // a draft model or an MTP context, all of it
    uint64_t                 projector; // of images and sound
};

struct tool_memory {
    struct tool_memory_device devices[TOOL_MEMORY_DEVICES];
    int32_t                   n_device;
    int32_t                   n_group;       // of the plan
    enum llama_load_mode      load_mode;     // of models that are only measured
    bool                      has_plain;
    int64_t                   n_checkpoints; // bytes that context checkpoints may take on the host besides, -1: there are none to speak of
    const char              * missing;       // what is used and could not be measured, NULL: nothing
};

// What a context takes, or would take on a model that was loaded with no_alloc, if it were loaded that way.
void tool_memory_init(struct tool_memory * memory, const struct llama_context * ctx, enum llama_load_mode load_mode);

// The same without a policy, measured on a model that was loaded with no_alloc. False if no such context can be made.
bool tool_memory_add_plain(struct tool_memory * memory, struct llama_model * model, struct llama_context_params params);

// A draft's context; the weights are its own unless it runs on those of the main model.
void tool_memory_add_draft    (struct tool_memory * memory, const struct llama_context * ctx, bool shares_model);
void tool_memory_add_projector(struct tool_memory * memory, ggml_backend_dev_t dev, uint64_t size);

// What llama-server lets context checkpoints take unless it is told otherwise: half of what the policy saves.
uint64_t tool_memory_checkpoints(const struct hwkv_plan * plan);

uint64_t tool_memory_total      (const struct tool_memory_device * device); // checkpoints are not in it
uint64_t tool_memory_total_plain(const struct tool_memory_device * device); // with has_plain

// A row for each device. Columns that are empty everywhere are left out.
void tool_memory_print(FILE * out, const struct tool_memory * memory);

// {"devices": [{"name", "host", "weights_bytes", "kv_bytes", "kv_group_bytes" (in the order of the groups), "swa_bytes", "recurrent_bytes",
// "compute_bytes", "draft_bytes", "projector_bytes", "total_bytes", "total_bytes_plain"}], "total_bytes", "total_bytes_plain" (null where it
// could not be measured), "checkpoint_bytes_max" (null outside of a server), "not_measured" (null or what it is)}. NULL when memory is out.
struct hwkv_json * tool_memory_json(const struct tool_memory * memory);

#ifdef __cplusplus
}
#endif

#endif // TOOL_MEMORY_H
