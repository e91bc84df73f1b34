#pragma once

// The heads of a layer by group: which are whose, and how the tensors of a graph are split and put together accordingly.

#include "ggml.h"

#include <cstdint>
#include <vector>

struct llm_graph_context;

// some heads of one layer that share a group: first, first + step, ...
struct llama_kv_head_run {
    uint32_t first;
    uint32_t count;
    uint32_t step;
};

using llama_kv_head_runs = std::vector<llama_kv_head_run>;

// adjacent heads that come from one of a layer's groups
struct llama_kv_head_span {
    uint32_t src;   // which of the groups that the layer has
    uint32_t from;  // first head in the group
    uint32_t to;    // first head in the layer
    uint32_t count;
};

// ascending heads as few evenly spaced runs
llama_kv_head_runs llama_kv_heads_runs(const int32_t * heads, int32_t n_head);

// whether these are all heads of a layer, in order
bool llama_kv_heads_are_all(const llama_kv_head_runs & runs, uint32_t n_head);

// where every head of a layer is, given the runs of all groups; inside a group heads ascend
std::vector<llama_kv_head_span> llama_kv_heads_spans(const std::vector<llama_kv_head_runs> & runs, uint32_t n_head);

//
// graph
//

// the heads of all runs of a tensor [n_embd_head, n_head, n_tokens] side by side; ratio heads of it belong to each head of a run
ggml_tensor * llama_kv_heads_gather(ggml_context * ctx, ggml_tensor * t, const llama_kv_head_runs & runs, int64_t ratio);

// stores the heads of the runs in the columns of a cache tensor [n_embd_gqa, n_cells, n_stream]; tokens: which, null for all
void llama_kv_heads_store(const llm_graph_context & gctx, ggml_tensor * cache, ggml_tensor * cur, ggml_tensor * rows, ggml_tensor * tokens, const llama_kv_head_runs & runs);

// a ring [n_embd_head, n_head, n_kv, n_stream] and the current tokens side by side, rounded as the cache does, in n_col cells;
// fill: with the nodes of a batch that does not fill the last cells, so that a graph for the sizes has them
ggml_tensor * llama_kv_heads_stage(const llm_graph_context & gctx, ggml_tensor * ring, ggml_tensor * cur, const llama_kv_head_runs & runs, int64_t n_col, bool fill);

// puts the outputs of a layer's groups [n_embd_head_v*n_head_group, n_tokens] back in the order of the heads; the spans must
// outlive the graph
ggml_tensor * llama_kv_heads_merge(const llm_graph_context & gctx, std::vector<ggml_tensor *> & outs, const std::vector<llama_kv_head_span> & spans,
        int64_t n_embd, int64_t n_head_kv, bool on_cpu);
