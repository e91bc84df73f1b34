#pragma once

// Which devices hold the groups of a policy, and whether they can attend to them.

struct hwkv_policy;
struct llama_context_params;
struct llama_cparams;
struct llama_kv_headwise_setup;
struct llama_model;

// Whether any layer with heads of the policy is computed by a device whose attention wants whole blocks of cells: also one that gets
// them from the memory of the host at every step.
bool llama_kv_headwise_on_gpu(const llama_model & model, const hwkv_policy * policy);

// Throws std::runtime_error where a device cannot do its part. An operation that it lacks would be computed by the CPU with a copy of
// the cells at every step: nobody should run into that without having allowed it. Rows in its memory can be written by nobody else.
// Turns flash attention on where it was left open and a group needs it.
void llama_kv_headwise_check_devices(const llama_kv_headwise_setup & setup, const llama_model & model, const llama_context_params & params, llama_cparams & cparams);
