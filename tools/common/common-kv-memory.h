#pragma once

// The memory of a tool that takes the common arguments, on every device: before anything is loaded, and of what runs.

#include "llama.h"
#include "tool-memory.h"

struct common_params;

// What a tool has besides: llama-server's projector and checkpoints. The context may be one without memory of its own.
using common_kv_memory_more = void (*)(const common_params & params, const llama_context * ctx, tool_memory & memory);
void common_kv_memory_set_more(common_kv_memory_more more);

// What a context on a model of metadata only would take, with the draft and what the tool has besides, beside the same without a policy.
void common_kv_memory_measure(common_params & params, llama_model * model, llama_context * ctx, const llama_context_params & cparams, tool_memory & memory);

// What running contexts take; ctx_dft may be null. The plain cache's total is measured.
void common_kv_memory_read(common_params & params, llama_context * ctx, const llama_context * ctx_dft, tool_memory & memory);

// The largest context of at most cparams.n_ctx that leaves the margin of --fit.
void common_kv_memory_fit(common_params & params, const llama_model_params & mparams, llama_context_params & cparams);
