#include "llama-hwkv-model.h"

#include "hwkv-error.h"

#include "llama-arch.h"
#include "llama-hparams.h"
#include "llama-model.h"
#include "llama-vocab.h"

#include "ggml.h"

#include <cinttypes>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <map>
#include <new>
#include <string>
#include <vector>

//
// which layers
//

// nullptr, or why windows can't serve the model
static const char * model_refusal(const llama_model & model) {
    const auto & hparams = model.hparams;

    if (hparams.use_alibi || hparams.f_max_alibi_bias > 0.0f) {
        return "it uses ALiBi, whose slopes depend on the head's index";
    }

    // the same cases as in llama_model::create_memory
    switch (model.arch) {
        case LLM_ARCH_BERT:
        case LLM_ARCH_JINA_BERT_V2:
        case LLM_ARCH_JINA_BERT_V3:
        case LLM_ARCH_NOMIC_BERT:
        case LLM_ARCH_NOMIC_BERT_MOE:
        case LLM_ARCH_NEO_BERT:
        case LLM_ARCH_EUROBERT:
        case LLM_ARCH_MODERN_BERT:
        case LLM_ARCH_GEMMA_EMBEDDING:
        case LLM_ARCH_WAVTOKENIZER_DEC:
        case LLM_ARCH_DREAM:
        case LLM_ARCH_LLADA:
        case LLM_ARCH_LLADA_MOE:
        case LLM_ARCH_RND1:
            return "it runs without a KV cache";
        case LLM_ARCH_MINIMAX_M3:
        case LLM_ARCH_GLM_DSA:
        case LLM_ARCH_DEEPSEEK32:
        case LLM_ARCH_DEEPSEEK4:
        case LLM_ARCH_GLM5_NEXT:
        case LLM_ARCH_DOTS3NOTE:
        case LLM_ARCH_QWEN4EXP:
            return "its sparse attention has a cache of its own kind";
        case LLM_ARCH_EAGLE3:
        case LLM_ARCH_DFLASH:
        case LLM_ARCH_GEMMA4_ASSISTANT:
            return "it is a draft model that works on another model's context";
        case LLM_ARCH_T5:
        case LLM_ARCH_T5ENCODER:
            return "it is an encoder-decoder model";
        default:
            break;
    }

    if (llm_arch_is_recurrent(model.arch)) {
        return "it has no attention layers";
    }
    if (hparams.indexer_top_k > 0) {
        return "its sparse attention has a cache of its own kind";
    }
    if (hparams.is_mla()) {
        return "it caches one compressed row per token (MLA) instead of K and V per head";
    }
    if (!hparams.causal_attn || hparams.hrm_prefix_lm) {
        return "its attention is not causal";
    }
    if (hparams.router_layer >= 0) {
        return "its router layer keeps adapter choices in the KV cache";
    }

    return nullptr;
}

static bool model_layer_is_full(const llama_model & model, uint32_t il) {
    const auto & hparams = model.hparams;

    if (!hparams.has_kv(il) || hparams.is_swa(il) || hparams.n_head(il) == 0 || hparams.n_head_kv(il) == 0) {
        return false;
    }
    if (!llm_arch_is_hybrid(model.arch)) {
        return true;
    }

    switch (model.arch) {
        case LLM_ARCH_FALCON_H1: // attention and SSM side by side in every layer
            return true;
        case LLM_ARCH_NEMOTRON_H:
        case LLM_ARCH_NEMOTRON_H_MOE: // a layer with an FFN is nothing but that
            return !hparams.is_recr(il) && hparams.n_ff(il) == 0;
        default:
            return !hparams.is_recr(il);
    }
}

static int model_fill_layers(const llama_model & model, struct hwkv_geometry * geo, struct hwkv_error * err) {
    const auto & hparams = model.hparams;

    std::vector<uint32_t> full;
    for (uint32_t il = 0; il < hparams.n_layer(); ++il) {
        if (model_layer_is_full(model, il)) {
            full.push_back(il);
        }
    }

    if (full.empty()) {
        return hwkv_fail(err, HWKV_ERR_MISMATCH, nullptr, "architecture %s can't have windows: found no full-attention layer among %" PRIu32,
                model.arch_name().c_str(), hparams.n_layer());
    }

    const int res = hwkv_geometry_init(geo, (int32_t) full.size(), err);
    if (res != HWKV_OK) {
        return res;
    }

    for (size_t i = 0; i < full.size(); ++i) {
        const uint32_t il = full[i];

        geo->layers[i].il         = (int32_t) il;
        geo->layers[i].n_head     = (int32_t) hparams.n_head(il);
        geo->layers[i].n_head_kv  = (int32_t) hparams.n_head_kv(il);
        geo->layers[i].head_dim_k = (int32_t) hparams.n_embd_head_k(il);
        geo->layers[i].head_dim_v = (int32_t) hparams.n_embd_head_v(il);
    }

    geo->n_layer     = (int32_t) hparams.n_layer();
    geo->v_width_max = (int32_t) hparams.n_embd_v_gqa_max();

    return HWKV_OK;
}

//
// fingerprints
//

static void hash_text(struct hwkv_sha256 * s, const std::string & text) {
    // with its length: token texts may hold any byte
    hwkv_sha256_i64   (s, (int64_t) text.size());
    hwkv_sha256_update(s, text.data(), text.size());
}

// NextN/MTP tensors are there or not depending on how the model is loaded and converted; the windows don't concern them
static bool is_trunk_tensor(const std::string & name, uint32_t n_layer) {
    if (name.rfind("nextn.", 0) == 0) {
        return false;
    }
    if (name.rfind("blk.", 0) != 0) {
        return true;
    }

    return strtoull(name.c_str() + 4, nullptr, 10) < n_layer;
}

static void model_fingerprints(const llama_model & model, struct hwkv_geometry * geo) {
    // by name, each once: tied and per-device tensors occur several times, in an order that depends on the devices
    std::map<std::string, const ggml_tensor *> tensors;
    for (const auto & [name, tensor] : model.tensors_by_name) {
        if (is_trunk_tensor(name, model.hparams.n_layer())) {
            tensors.emplace(name, tensor);
        }
    }

    struct hwkv_sha256 s;
    hwkv_sha256_init(&s);
    hwkv_sha256_string(&s, "headwisekv-model-1");

    hash_text(&s, model.arch_name());
    hwkv_sha256_i64(&s, model.hparams.n_embd);
    hwkv_sha256_i64(&s, geo->n_layer);
    hwkv_sha256_i64(&s, geo->n_full);
    for (int32_t i = 0; i < geo->n_full; ++i) {
        const struct hwkv_layer & layer = geo->layers[i];

        hwkv_sha256_i64(&s, layer.il);
        hwkv_sha256_i64(&s, layer.n_head);
        hwkv_sha256_i64(&s, layer.n_head_kv);
        hwkv_sha256_i64(&s, layer.head_dim_k);
        hwkv_sha256_i64(&s, layer.head_dim_v);
    }

    hash_text(&s, model.vocab.get_tokenizer_model());
    hash_text(&s, model.vocab.get_tokenizer_pre());
    hwkv_sha256_i64(&s, model.vocab.n_tokens());
    for (uint32_t i = 0; i < model.vocab.n_tokens(); ++i) {
        const auto & data = model.vocab.get_token_data((llama_token) i);

        hash_text(&s, data.text);
        hwkv_sha256_i64(&s, data.attr);
    }

    hwkv_sha256_i64(&s, (int64_t) tensors.size());
    for (const auto & [name, tensor] : tensors) {
        hash_text(&s, name);
        for (int i = 0; i < GGML_MAX_DIMS; ++i) {
            hwkv_sha256_i64(&s, tensor->ne[i]);
        }
    }
    hwkv_sha256_final(&s, geo->fingerprint);

    hwkv_sha256_init(&s);
    hwkv_sha256_string(&s, "headwisekv-types-1");
    for (const auto & [name, tensor] : tensors) {
        hash_text(&s, name);
        hash_text(&s, ggml_type_name(tensor->type));
    }
    hwkv_sha256_final(&s, geo->type_fingerprint);
}

static int model_geometry(const llama_model & model, struct hwkv_geometry * geo, struct hwkv_error * err) {
    const char * refusal = model_refusal(model);
    if (refusal) {
        return hwkv_fail(err, HWKV_ERR_MISMATCH, nullptr, "architecture %s can't have windows: %s", model.arch_name().c_str(), refusal);
    }

    const int res = model_fill_layers(model, geo, err);
    if (res != HWKV_OK) {
        return res;
    }

    hwkv_copy(geo->architecture, sizeof(geo->architecture), model.arch_name().c_str());
    hwkv_copy(geo->name,         sizeof(geo->name),         model.name.c_str());
    model_fingerprints(model, geo);

    return hwkv_geometry_validate(geo, err);
}

extern "C" int llama_hwkv_model_geometry(const struct llama_model * model, struct hwkv_geometry * geo, struct hwkv_error * err) {
    if (!geo) {
        return hwkv_fail(err, HWKV_ERR_ARG, nullptr, "geometry is NULL");
    }
    memset(geo, 0, sizeof(*geo));

    if (!model) {
        return hwkv_fail(err, HWKV_ERR_ARG, nullptr, "model is NULL");
    }

    int res;
    try {
        res = model_geometry(*model, geo, err);
    } catch (const std::bad_alloc &) {
        res = hwkv_fail(err, HWKV_ERR_NOMEM, nullptr, "out of memory");
    } catch (const std::exception & e) {
        res = hwkv_fail(err, HWKV_ERR_INTERNAL, nullptr, "%s", e.what());
    } catch (...) {
        res = hwkv_fail(err, HWKV_ERR_INTERNAL, nullptr, "unknown exception");
    }

    if (res != HWKV_OK) {
        hwkv_geometry_free(geo);
        memset(geo, 0, sizeof(*geo));
    }

    return res;
}
