// The head map: one symbol and one colour for each window of the codebook, and a mark for cache types other than the reference's.

#ifndef TOOL_MAP_H
#define TOOL_MAP_H

#include "hwkv.h"

#include <stdio.h>

struct tool_map_params {
    bool color;
    bool all;    // every layer, however many
    int  width;  // columns of the terminal
};

// The entries of a point, layers as rows and KV heads as columns, and a legend. False: memory is out.
bool tool_map_print(FILE * out, const struct hwkv_policy * policy, int32_t ip, const struct tool_map_params * params);

#endif // TOOL_MAP_H
