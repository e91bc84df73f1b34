// The hooks in ggml-cpu's graph: nodes that don't depend on each other are computed without waiting between them. One by itself goes to
// hwkv_fattn_forward_one.

#ifndef HWKV_FUSE_H
#define HWKV_FUSE_H

#include "hwkv-fattn-ggml.h"

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

struct ggml_cgraph;
struct ggml_compute_params;

// Called by all threads. Computes node_n and some of those that follow it; returns how many nodes follow, or 0: nothing was done.
int hwkv_fuse(const struct ggml_cgraph * graph, int node_n, const struct ggml_compute_params * params);

// bytes of work memory that it wants for n_task threads
size_t hwkv_fuse_work_size(const struct ggml_cgraph * graph, int node_n, int n_task);

#ifdef __cplusplus
}
#endif

#endif // HWKV_FUSE_H
