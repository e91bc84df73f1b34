#pragma once

// What a device can compute for a group, asked before anything is allocated on it.

#include "ggml-backend.h"

#include <string>

// the attention of a group in one layer, in numbers
struct llama_kv_headwise_attn {
    ggml_type type_k      = GGML_TYPE_F16;
    ggml_type type_v      = GGML_TYPE_F16;
    int64_t   head_dim_k  = 0;
    int64_t   head_dim_v  = 0;
    int64_t   n_head_kv   = 0;     // of the group, in this layer
    int64_t   n_head_q    = 0;     // that follow them
    int64_t   n_cells     = 0;     // of a stream
    int64_t   n_stream    = 1;
    int64_t   n_batch     = 1;     // tokens of a stream in the largest batch
    int64_t   n_staged    = 0;     // cells for such a batch beside the ring; 0: the ring has room for it
    float     max_bias    = 0.0f;
    float     softcap     = 0.0f;
    bool      sink_logits = false;
};

// whether it can write rows of these types: what lies in its memory nobody else can write
bool llama_kv_headwise_can_store(ggml_backend_dev_t dev, const llama_kv_headwise_attn & attn);

// whether it can attend with one token of each stream
bool llama_kv_headwise_can_decode(ggml_backend_dev_t dev, const llama_kv_headwise_attn & attn, bool flash_attn);

// the same, and with the largest batch, staged or not
bool llama_kv_headwise_can_attend(ggml_backend_dev_t dev, const llama_kv_headwise_attn & attn, bool flash_attn);

// the types that K and V may both have for it to store and attend: "f16, bf16 or q8_0"; empty if there is none
std::string llama_kv_headwise_types(ggml_backend_dev_t dev, llama_kv_headwise_attn attn, bool flash_attn);
