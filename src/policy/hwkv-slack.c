#include "hwkv-slack.h"

#include <stdbool.h>
#include <stddef.h>

// Decoding reads slack cells too, so a ring may have no more than this share of them.
#define SHARE_MAX 8

static uint64_t slack_size(const struct hwkv_ring * ring) {
    return (uint64_t) (ring->n_cells_slack - ring->n_cells) * ring->cell_size;
}

static bool is_staged(const struct hwkv_ring * ring) {
    return ring->n_cells < ring->n_cells_slack;
}

static bool can_have_slack(const struct hwkv_ring * ring) {
    return (uint64_t) (ring->n_cells_slack - ring->n_cells) * SHARE_MAX <= ring->n_cells_slack;
}

static uint64_t scratch_size(const struct hwkv_ring * ring, uint32_t n_tokens) {
    return ring ? ((uint64_t) ring->n_cells + n_tokens) * ring->scratch_size : 0;
}

// Of the rings after `last` in the order of falling scratch memory (all, if that is NULL), the first that is staged.
static struct hwkv_ring * next_ring(struct hwkv_ring * rings, int32_t n_ring, const struct hwkv_ring * last, uint32_t n_tokens) {
    struct hwkv_ring * res = NULL;
    for (int32_t ir = 0; ir < n_ring; ir++) {
        struct hwkv_ring * ring = &rings[ir];
        const uint64_t     size = scratch_size(ring, n_tokens);
        const uint64_t     from = scratch_size(last, n_tokens);
        const bool         left = !last || size < from || (size == from && ring > last);
        if (is_staged(ring) && left && (!res || size > scratch_size(res, n_tokens))) {
            res = ring;
        }
    }
    return res;
}

// Scratch memory shrinks only when the largest ring gets slack, so the candidates are the first rings in the order of falling
// scratch memory, up to one that may have no slack.
void hwkv_slack_choose(struct hwkv_ring * rings, int32_t n_ring, uint32_t n_tokens) {
    struct hwkv_ring * ring = next_ring(rings, n_ring, NULL, n_tokens);
    uint64_t slack  = 0;
    uint64_t least  = scratch_size(ring, n_tokens);
    int32_t  n_best = 0;
    for (int32_t n = 1; ring && can_have_slack(ring); n++) {
        slack += slack_size(ring);
        ring = next_ring(rings, n_ring, ring, n_tokens);
        const uint64_t size = slack + scratch_size(ring, n_tokens);
        if (size < least) {
            least  = size;
            n_best = n;
        }
    }
    for (int32_t n = 0; n < n_best; n++) {
        ring = next_ring(rings, n_ring, NULL, n_tokens); // the largest that is still staged
        ring->n_cells = ring->n_cells_slack;
    }
}
