// Room for a batch or scratch memory, whichever takes less.
//
// A ring that has no room for a batch is put beside the batch's tokens in scratch memory, layer by layer; the layers share that
// memory, so it is as large as the largest. A ring with slack cells for a whole batch needs none, but has them in every layer.
//
// Part of the library, not of its public API.

#ifndef HWKV_SLACK_H
#define HWKV_SLACK_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// The cells of one window, in one stream.
struct hwkv_ring {
    int32_t  window;
    uint32_t n_cells;       // without slack; hwkv_slack_choose puts the number to allocate here
    uint32_t n_cells_slack; // with slack for a batch
    uint64_t cell_size;     // bytes of a cell in all layers
    uint64_t scratch_size;  // bytes of a cell in the largest thing that is staged at once
};

// Which rings get slack so that slack and scratch together take the fewest bytes for batches of n_tokens.
void hwkv_slack_choose(struct hwkv_ring * rings, int32_t n_ring, uint32_t n_tokens);

#ifdef __cplusplus
}
#endif

#endif // HWKV_SLACK_H
