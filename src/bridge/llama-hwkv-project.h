// What becomes of a layer's attention before it joins the residual stream: gate, output projection, norm. A calibration needs it to tell how
// much an error in the output of one head moves the stream.

#ifndef LLAMA_HWKV_PROJECT_H
#define LLAMA_HWKV_PROJECT_H

#include "llama-hwkv-trace.h"

#ifdef __cplusplus
extern "C" {
#endif

// A layer adds  stream + [norm](weight * (gate x out))  where gate and norm are there or not.
struct llama_hwkv_project_shape {
    bool has_gate;
    bool has_norm; // the sum over all heads is brought to a root mean square of 1 before the factors of the weight
};

// Of the layer that the last decode traced. False: in this architecture it is something else, or weights and a stream that this does not know.
LLAMA_API bool llama_hwkv_tracer_get_project(const struct llama_hwkv_tracer * tracer, struct llama_hwkv_project_shape * shape);

// What follows is there if that is:

LLAMA_API void llama_hwkv_tracer_get_weight(const struct llama_hwkv_tracer * tracer, float * dst);  // [n_embd][n_head][head_dim_v]
LLAMA_API void llama_hwkv_tracer_get_factors(const struct llama_hwkv_tracer * tracer, float * dst); // [n_embd], of what the weight gives, after the norm
LLAMA_API void llama_hwkv_tracer_get_gate  (const struct llama_hwkv_tracer * tracer, float * dst);  // [n_tokens][n_head][head_dim_v], with has_gate
LLAMA_API void llama_hwkv_tracer_get_stream(const struct llama_hwkv_tracer * tracer, float * dst);  // [n_tokens][n_embd], what it is added to

#ifdef __cplusplus
}

#include <string>
#include <vector>

struct ggml_tensor;

// Found in the graph by following the attention's output.
struct llama_hwkv_projection {
    ggml_tensor * weight = nullptr;
    ggml_tensor * gate   = nullptr;
    ggml_tensor * stream = nullptr;
    bool          norm   = false;
    float         scale  = 1.0f;
    std::vector<ggml_tensor *> factors; // [n_embd] or [1] each

    // nodes: of the whole graph, in order. Everything is null where the way is not known.
    void find(const std::vector<ggml_tensor *> & nodes, ggml_tensor * fattn);

    // what has to be computed beside what the attention needs
    std::vector<ggml_tensor *> tensors() const;

private:
    bool follow(const std::vector<ggml_tensor *> & nodes, ggml_tensor * fattn);
};

// of a tracer
const llama_hwkv_projection & llama_hwkv_projection_of(const llama_hwkv_tracer * tracer);
#endif

#endif // LLAMA_HWKV_PROJECT_H
