// What a llama.cpp context with a KV policy tells: the plan it runs and what its rings still hold.
// The policy is given by the kv_policy fields of llama_context_params.

#ifndef LLAMA_HWKV_H
#define LLAMA_HWKV_H

#include "hwkv.h"
#include "llama.h"

#ifdef __cplusplus
extern "C" {
#endif

// A context under an operating point of a policy that is at hand, not in a file. The policy must outlive the context.
// NULL on failure; the reason goes to the log.
LLAMA_API struct llama_context * llama_kv_policy_init_from_model(struct llama_model * model, struct llama_context_params params,
        const struct hwkv_policy * policy, int32_t ip);

// The plan and the policy of a context, NULL without groups (no policy, or one that the plain cache serves).
// They live as long as the context.
LLAMA_API const struct hwkv_plan   * llama_kv_policy_plan (const struct llama_context * ctx);
LLAMA_API const struct hwkv_policy * llama_kv_policy_get  (const struct llama_context * ctx);
LLAMA_API int32_t                    llama_kv_policy_point(const struct llama_context * ctx); // operating point, -1 without

// Whether heads can be given these types, before there is a policy: the name of a device of some layer that cannot store and attend to
// them with flash attention; NULL if all can. The CPU can everything whose blocks divide the head dims, which is not asked here.
LLAMA_API const char * llama_kv_policy_device_without(const struct llama_model * model, const struct hwkv_geometry * geo, enum hwkv_type type_k,
        enum hwkv_type type_v, uint32_t n_ctx, uint32_t n_ubatch);

// Bytes of all K and V (and recurrent state) a context holds, with or without a policy.
LLAMA_API size_t llama_kv_policy_cache_size(const struct llama_context * ctx);

// Bytes of the compute buffers of a context, on all devices.
LLAMA_API size_t llama_kv_policy_compute_size(const struct llama_context * ctx);

// Allocated bytes of K and V of one head: which of the policy's layers, which KV head.
LLAMA_API size_t llama_kv_policy_head_size(const struct llama_context * ctx, int32_t jl, int32_t ih);

// Bytes of a group on the i-th device that has some, with the name of its buffers; 0 past the last.
LLAMA_API size_t llama_kv_policy_group_device(const struct llama_context * ctx, int32_t ig, size_t i, const char ** name);

// Cells of a group of the plan that hold something: of any sequence, or of one.
LLAMA_API uint32_t llama_kv_policy_cells_used    (const struct llama_context * ctx, int32_t ig);
LLAMA_API uint32_t llama_kv_policy_cells_used_seq(const struct llama_context * ctx, int32_t ig, llama_seq_id seq_id);

// True if a sequence can go on at position p with the same result as a run from the start: every head and every
// sliding-window layer still holds what p attends to. Recurrent state speaks for itself: llama_memory_seq_rm returns
// false where it cannot go back. A context without memory (an encoder's) can go on at 0 only.
LLAMA_API bool llama_kv_policy_can_resume(const struct llama_context * ctx, llama_seq_id seq_id, llama_pos p);

// The window of the first group that stands against it; HWKV_FULL if none does.
LLAMA_API int32_t llama_kv_policy_lost_window(const struct llama_context * ctx, llama_seq_id seq_id, llama_pos p);

// How many of the first n tokens the memory of a sequence was computed from, with nothing moved since: rows of other tokens must
// not serve a prompt. n without a policy.
LLAMA_API int32_t llama_kv_policy_n_same(const struct llama_context * ctx, llama_seq_id seq_id, const llama_token * tokens, int32_t n);

// Tells the first n tokens of a sequence's memory, and what was done to them, from any others. 0: it has not so many.
LLAMA_API uint64_t llama_kv_policy_mark(const struct llama_context * ctx, llama_seq_id seq_id, int32_t n);

// What a saved state must have in common with a context to be read there: the windows, the model's geometry and tensors
// (not their values) and how the cache stores its rows, in words. "" without a policy.
LLAMA_API const char * llama_kv_policy_state_id  (const struct llama_context * ctx); // lives as long as the context
LLAMA_API void         llama_kv_policy_model_id  (const struct llama_context * ctx, char hex[65]);
LLAMA_API void         llama_kv_policy_cache_text(const struct llama_context * ctx, char * text, size_t size);

// The state of a sequence (flags: LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY is what a context checkpoint holds), in pieces instead of one
// buffer, for any context. A function that returns false ends it. Returns the bytes, 0 if that failed: then nothing of the
// sequence may be left. With a policy a checkpoint is read only beside the tokens that it was written with.
typedef bool (*llama_kv_policy_write_fn)(const void * data, size_t size, void * arg);
typedef bool (*llama_kv_policy_read_fn) (void * data, size_t size, void * arg);

LLAMA_API size_t llama_kv_policy_state_write(struct llama_context * ctx, llama_seq_id seq_id, llama_state_seq_flags flags, llama_kv_policy_write_fn fn,
                                             void * arg);
LLAMA_API size_t llama_kv_policy_state_read (struct llama_context * ctx, llama_seq_id seq_id, llama_state_seq_flags flags, llama_kv_policy_read_fn fn,
                                             void * arg);

// What these bytes look like, so that they can be checked before they are read (hwkv-state.h); false for a memory of unknown kind.
struct hwkv_state_shape;
LLAMA_API bool llama_kv_policy_state_shape(const struct llama_context * ctx, struct hwkv_state_shape * shape);

#ifdef __cplusplus
}
#endif

#endif // LLAMA_HWKV_H
