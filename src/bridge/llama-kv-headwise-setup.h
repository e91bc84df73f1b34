#pragma once

// A policy made ready for one model and one set of context parameters: what a context hands to the memory it creates.

#include "hwkv.h"

#include "ggml.h"

#include <memory>
#include <string>

struct llama_context_params;
struct llama_cparams;
struct llama_model;

struct llama_kv_headwise_setup {
    std::string path;
    std::string point;
    std::string state_id; // same for setups whose states are interchangeable
    bool        on_gpu = false; // some of the cache is where a GPU attends
    uint32_t    n_pad  = 1;     // cells of a ring are a multiple of this

    std::shared_ptr<const struct hwkv_policy> policy;
    std::shared_ptr<const struct hwkv_plan>   plan;
    int32_t                                   ip = 0; // operating point

    // Null without a policy, and where llama.cpp's own cache serves the policy just as well.
    // Throws std::runtime_error with the reason when the policy cannot be used. Turns flash attention on where it was left open and
    // a group needs it.
    static std::unique_ptr<llama_kv_headwise_setup> make(const llama_model & model, const llama_context_params & params, llama_cparams & cparams);
};

ggml_type llama_kv_headwise_ggml_type(hwkv_type type);
