// Every group of every layer that is on a device, held against what that device can do.

#include "llama-kv-headwise-check.h"

#include "llama-hwkv.h"
#include "llama-kv-headwise-device.h"
#include "llama-kv-headwise-setup.h"

#include "llama-cparams.h"
#include "llama-impl.h"
#include "llama-model.h"

#include <algorithm>
#include <set>
#include <stdexcept>
#include <utility>

// the device that computes a layer, null for the CPU
static ggml_backend_dev_t gpu_of(const llama_model & model, int32_t il) {
    auto * dev = model.dev_layer(il);
    return dev && ggml_backend_dev_type(dev) != GGML_BACKEND_DEVICE_TYPE_CPU ? dev : nullptr;
}

bool llama_kv_headwise_on_gpu(const llama_model & model, const hwkv_policy * policy) {
    const auto * geo = hwkv_policy_geometry(policy);
    return std::any_of(geo->layers, geo->layers + geo->n_full, [&](const hwkv_layer & l) { return gpu_of(model, l.il) != nullptr; });
}

// what a layer brings, for some of its heads in cells of these types
static llama_kv_headwise_attn attention_of(const llama_model & model, const hwkv_layer & layer, int32_t n_head_kv, hwkv_type type_k, hwkv_type type_v) {
    llama_kv_headwise_attn res;
    res.type_k      = llama_kv_headwise_ggml_type(type_k);
    res.type_v      = llama_kv_headwise_ggml_type(type_v);
    res.head_dim_k  = layer.head_dim_k;
    res.head_dim_v  = layer.head_dim_v;
    res.n_head_kv   = n_head_kv;
    res.n_head_q    = n_head_kv*(model.hparams.n_head(layer.il)/layer.n_head_kv);
    res.max_bias    = model.hparams.f_max_alibi_bias;
    res.softcap     = model.hparams.attn_soft_cap ? model.hparams.f_attn_logit_softcapping : 0.0f;
    res.sink_logits = model.layers[layer.il].attn_sinks != nullptr;
    return res;
}

static llama_kv_headwise_attn attention_of(const llama_kv_headwise_setup & setup, const llama_model & model, const llama_cparams & cparams, int32_t ig, int32_t jl) {
    const auto * plan  = setup.plan.get();
    const auto * group = hwkv_plan_group(plan, ig);

    int32_t n_head_kv = 0;
    hwkv_plan_heads(plan, ig, jl, &n_head_kv);

    auto res = attention_of(model, hwkv_policy_geometry(setup.policy.get())->layers[jl], n_head_kv, group->entry.type_k, group->entry.type_v);
    res.n_cells  = group->n_cells;
    res.n_stream = hwkv_plan_n_stream(plan);
    res.n_batch  = std::max<int64_t>(1, cparams.n_ubatch/res.n_stream);
    res.n_staged = cparams.n_ubatch > group->n_room ? GGML_PAD(res.n_cells + res.n_batch, setup.n_pad) - res.n_cells : 0;
    return res;
}

// all groups of layers that keep them on a device
template <typename F>
static void for_groups_on_gpus(const llama_kv_headwise_setup & setup, const llama_model & model, const llama_cparams & cparams, F && fn) {
    const auto * geo = hwkv_policy_geometry(setup.policy.get());

    for (int32_t jl = 0; jl < geo->n_full && cparams.offload_kqv; ++jl) {
        auto * dev = gpu_of(model, geo->layers[jl].il);
        for (int32_t ig = 0; dev && ig < hwkv_plan_n_group(setup.plan.get()); ++ig) {
            const auto attn = attention_of(setup, model, cparams, ig, jl);
            if (attn.n_head_kv > 0) {
                fn(dev, ig, geo->layers[jl].il, attn);
            }
        }
    }
}

// Where flash attention is left to llama.cpp: what it will come to. It asks with one token of each stream, for all layers together.
static bool settle_flash_attn(const llama_kv_headwise_setup & setup, const llama_model & model, llama_cparams & cparams) {
    const auto * plan = setup.plan.get();

    bool res = cparams.flash_attn;
    for (int32_t ig = 0; ig < hwkv_plan_n_group(plan) && cparams.auto_fa; ++ig) {
        if (ggml_is_quantized(llama_kv_headwise_ggml_type(hwkv_plan_group(plan, ig)->entry.type_v))) {
            LLAMA_LOG_INFO("%s: enabling flash_attn since it is required for quantized V cache\n", __func__);
            cparams.auto_fa = false;
        }
    }
    if (cparams.auto_fa) {
        for_groups_on_gpus(setup, model, cparams, [&](ggml_backend_dev_t dev, int32_t, int32_t, const llama_kv_headwise_attn & attn) {
            res = res && llama_kv_headwise_can_decode(dev, attn, true);
        });
    }
    return res;
}

static std::string describe(const hwkv_entry & entry, const llama_kv_headwise_attn & a, ggml_backend_dev_t dev, int32_t il) {
    const auto window = entry.window == HWKV_FULL ? std::string("full") : std::to_string(entry.window);
    const auto dims   = a.head_dim_k == a.head_dim_v ? std::to_string(a.head_dim_k) : format("%d and %d", (int) a.head_dim_k, (int) a.head_dim_v);

    return format("KV policy: window %s: found K %s and V %s in %d cells, heads of %s, in layer %d on %s", window.c_str(),
            ggml_type_name(a.type_k), ggml_type_name(a.type_v), (int) a.n_cells, dims.c_str(), il, ggml_backend_dev_name(dev));
}

// what the device could do instead
static std::string expected_of(ggml_backend_dev_t dev, const llama_kv_headwise_attn & attn, bool flash_attn) {
    const auto types = llama_kv_headwise_types(dev, attn, flash_attn);
    if (!types.empty()) {
        return types + " for both";
    }
    const auto without = flash_attn ? llama_kv_headwise_types(dev, attn, false) : "";
    return without.empty() ? "another device" : "-fa off with " + without;
}

void llama_kv_headwise_check_devices(const llama_kv_headwise_setup & setup, const llama_model & model, const llama_context_params & params, llama_cparams & cparams) {
    if (model.split_mode() == LLAMA_SPLIT_MODE_TENSOR) {
        throw std::runtime_error("KV policy: found -sm tensor, which spreads the heads of a layer over devices, expected -sm layer, row or none");
    }

    const char * func = __func__;
    const bool flash_attn = settle_flash_attn(setup, model, cparams);

    std::set<std::pair<int32_t, ggml_backend_dev_t>> warned;

    for_groups_on_gpus(setup, model, cparams, [&](ggml_backend_dev_t dev, int32_t ig, int32_t il, const llama_kv_headwise_attn & attn) {
        const bool stores = llama_kv_headwise_can_store(dev, attn);
        if (stores && llama_kv_headwise_can_attend(dev, attn, flash_attn)) {
            return;
        }

        const auto found = describe(hwkv_plan_group(setup.plan.get(), ig)->entry, attn, dev, il);
        if (stores && params.kv_policy_allow_cpu) {
            if (warned.insert({ ig, dev }).second) {
                LLAMA_LOG_WARN("%s: %s, to which it cannot attend: the CPU does, with a copy of the cells at every step\n", func, found.c_str());
            }
            return;
        }

        const auto expect = expected_of(dev, attn, flash_attn);
        throw std::runtime_error(format("%s, which cannot %s, expected %s, -nkvo%s", found.c_str(), stores ? "attend to them" : "store them", expect.c_str(),
                    stores ? ", or --kv-policy-allow-cpu to have the CPU attend" : " or fewer layers on it (-ngl)"));
    });
}

// with flash attention: all heads and one alone, with the whole context and in the smallest ring, which has no room for a batch
static bool can_hold(ggml_backend_dev_t dev, llama_kv_headwise_attn attn, uint32_t n_ctx, uint32_t n_ubatch) {
    const int64_t n_pad = 256;

    attn.n_batch = n_ubatch;
    for (const bool ring : { false, true }) {
        attn.n_cells  = ring ? n_pad : GGML_PAD(n_ctx, n_pad);
        attn.n_staged = ring ? GGML_PAD(n_pad + attn.n_batch, n_pad) - n_pad : 0;
        for (const int64_t n_head : { attn.n_head_kv, (int64_t) 1 }) {
            auto part = attn;
            part.n_head_kv = n_head;
            part.n_head_q  = n_head*(attn.n_head_q/attn.n_head_kv);
            if (!llama_kv_headwise_can_store(dev, part) || !llama_kv_headwise_can_attend(dev, part, true)) {
                return false;
            }
        }
    }
    return true;
}

const char * llama_kv_policy_device_without(const llama_model * model, const hwkv_geometry * geo, hwkv_type type_k, hwkv_type type_v, uint32_t n_ctx, uint32_t n_ubatch) {
    for (int32_t jl = 0; jl < geo->n_full; ++jl) {
        const auto & layer = geo->layers[jl];
        auto * dev = gpu_of(*model, layer.il);
        if (dev && !can_hold(dev, attention_of(*model, layer, layer.n_head_kv, type_k, type_v), n_ctx, n_ubatch)) {
            return ggml_backend_dev_name(dev);
        }
    }
    return nullptr;
}
