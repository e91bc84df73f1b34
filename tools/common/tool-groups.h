// The memory of an operating point: a row for each group of heads.

#ifndef TOOL_GROUPS_H
#define TOOL_GROUPS_H

#include "hwkv.h"

#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif

struct hwkv_json;

// The policy's own context and cache types, everything else by default.
struct hwkv_plan_params tool_plan_params(const struct hwkv_policy * policy);

// One line: the settings that a plan was made with.
void tool_plan_print(FILE * out, const struct hwkv_plan * plan);

// Where the groups are: bytes of a group on its i-th device and the device's name, 0 past the last.
struct tool_devices {
    const void * user;
    size_t    (* size)(const void * user, int32_t ig, size_t i, const char ** name);
};

// The table: groups, total, llama.cpp's own cache, saved. With devices their names stand in place of the bytes.
void tool_groups_print(FILE * out, const struct hwkv_plan * plan, const struct tool_devices * devices);

// [{"entry" (of the codebook), "window", "type_k", "type_v", "n_layer", "n_head", "n_cells", "k_bytes", "v_bytes"}]; cells are those of one stream, as
// everywhere. NULL when memory is out.
struct hwkv_json * tool_groups_json(const struct hwkv_plan * plan);

#ifdef __cplusplus
}
#endif

#endif // TOOL_GROUPS_H
