// Runs a part of a model and reads what the attention of one layer sees: the view a calibration needs.
//
// A part begins at the tokens or at the input of a layer, whose values the caller kept from an earlier run, and ends
// with the attention of another layer. It is cut out of the very graph that serves requests.

#ifndef LLAMA_HWKV_TRACE_H
#define LLAMA_HWKV_TRACE_H

#include "hwkv.h"
#include "llama.h"

#ifdef __cplusplus
extern "C" {
#endif

struct llama_hwkv_part {
    int32_t       first;   // first layer to run; 0 begins at the tokens
    int32_t       last;    // the layer to trace: it runs up to the inputs of its attention, whose K and V are stored
    bool          attend;  // run its attention as well
    bool          project; // and what llama-hwkv-project.h reads
    const float * hidden;  // input of layer first, [n_tokens][n_embd]; not used when first is 0
};

struct llama_hwkv_tracer;

// A context for runs of layers first to last only: its compute buffers have room for these and no logits, and the caches of
// other layers are as small as the policy makes them. NULL on failure; the reason goes to the log.
LLAMA_API struct llama_context * llama_hwkv_tracer_context(struct llama_model * model, struct llama_context_params params,
        const struct hwkv_policy * policy, int32_t ip, int32_t first, int32_t last);

// For one context, which has flash attention and one sequence and is used by the tracer only. The tracer goes first.
LLAMA_API struct llama_hwkv_tracer * llama_hwkv_tracer_init(struct llama_context * ctx);
LLAMA_API void                       llama_hwkv_tracer_free(struct llama_hwkv_tracer * tracer);

// Runs a part on at most n_ubatch tokens that follow what the memory of the context holds. HWKV_ERR_MISMATCH: this
// architecture cannot be cut there (only first = 0 will do, or its attention is not one call); other errors are final.
LLAMA_API int llama_hwkv_tracer_decode(struct llama_hwkv_tracer * tracer, const llama_token * tokens, int32_t n_tokens, llama_pos pos,
        const struct llama_hwkv_part * part, struct hwkv_error * err);

// What the last decode left:

struct llama_hwkv_trace_shape {
    int32_t n_tokens;
    int32_t n_embd;
    int32_t n_head;
    int32_t n_head_kv;
    int32_t head_dim_k;
    int32_t head_dim_v;
    float   scale;
    float   softcap;    // 0: none
    bool    has_sink_logits; // learned: one for each query head, without a value
};

LLAMA_API struct llama_hwkv_trace_shape llama_hwkv_tracer_shape(const struct llama_hwkv_tracer * tracer);

// input of layer last (> 0): [n_tokens][n_embd]; false: in this architecture it is not one tensor of that shape
LLAMA_API bool llama_hwkv_tracer_get_hidden(const struct llama_hwkv_tracer * tracer, float * dst);

LLAMA_API void llama_hwkv_tracer_get_q     (const struct llama_hwkv_tracer * tracer, float * dst); // [n_tokens][n_head][head_dim_k]
LLAMA_API void llama_hwkv_tracer_get_out   (const struct llama_hwkv_tracer * tracer, float * dst); // [n_tokens][n_head][head_dim_v], after attend
LLAMA_API void llama_hwkv_tracer_get_sink_logits (const struct llama_hwkv_tracer * tracer, float * dst); // [n_head], with has_sink_logits

// K and V of the positions [0, n_pos) as the cache holds them: [n_head_kv][n_pos][head_dim]. What it holds as F32 is F16 to the attention.
LLAMA_API void llama_hwkv_tracer_get_k(const struct llama_hwkv_tracer * tracer, int32_t n_pos, float * dst);
LLAMA_API void llama_hwkv_tracer_get_v(const struct llama_hwkv_tracer * tracer, int32_t n_pos, float * dst);

// What a cache of these types does to the rows of the model's full-attention layers before it rounds them: every n elements are multiplied
// by the Hadamard matrix of that size, which is its own inverse. 0: nothing.
LLAMA_API int llama_hwkv_rotation(const struct llama_model * model, const struct hwkv_geometry * geo, enum hwkv_type type_k, enum hwkv_type type_v,
        int32_t * n_k, int32_t * n_v, struct hwkv_error * err);

#ifdef __cplusplus
}
#endif

#endif // LLAMA_HWKV_TRACE_H
