// What a context takes on every device.

#include "llama-hwkv-memory.h"

#include "llama-context.h"
#include "llama-ext.h"
#include "llama-kv-cache-iswa.h"
#include "llama-kv-headwise.h"
#include "llama-memory-hybrid-iswa.h"
#include "llama-memory-hybrid.h"
#include "llama-memory-recurrent.h"
#include "llama-model.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

using breakdown = std::map<ggml_backend_buffer_type_t, size_t>;

void llama_hwkv_device_name(ggml_backend_dev_t dev, char name[LLAMA_HWKV_DEVICE_NAME], bool * host) {
    *host = ggml_backend_dev_type(dev) == GGML_BACKEND_DEVICE_TYPE_CPU;
    snprintf(name, LLAMA_HWKV_DEVICE_NAME, "%s", ggml_backend_dev_name(dev));
}

int32_t llama_hwkv_model_n_gpu_layers(const llama_model * model) {
    return model->n_gpu_layers();
}

static void name_host(llama_hwkv_memory & device) {
    if (auto * cpu = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU)) {
        llama_hwkv_device_name(cpu, device.name, &device.host);
    }
    device.host = true;
}

static llama_hwkv_memory & device_of(std::vector<llama_hwkv_memory> & devices, ggml_backend_buffer_type_t buft) {
    llama_hwkv_memory res = {};

    auto * dev = ggml_backend_buft_get_device(buft);
    if (ggml_backend_buft_is_host(buft)) {
        res.host = true;
    } else if (dev) {
        llama_hwkv_device_name(dev, res.name, &res.host);
    } else {
        snprintf(res.name, sizeof(res.name), "%s", ggml_backend_buft_name(buft));
    }
    if (res.host) {
        return devices.front();
    }

    for (auto & device : devices) {
        if (strcmp(device.name, res.name) == 0) {
            return device;
        }
    }
    devices.push_back(res);
    return devices.back();
}

llama_model * llama_hwkv_model_load_meta(const char * path, llama_model_params params) {
    params.no_alloc          = true;
    params.load_mode         = LLAMA_LOAD_MODE_NONE;
    params.progress_callback = [](float, void *) { return true; };
    return llama_model_load_from_file(path, params);
}

bool llama_hwkv_model_is_mapped(const llama_model * model, llama_load_mode load_mode) {
    for (int32_t i = 0; i < llama_model_n_devices(model); ++i) {
        ggml_backend_dev_props props;
        ggml_backend_dev_get_props(llama_model_get_device(model, i), &props);
        if (!props.caps.mmap_support && load_mode == LLAMA_LOAD_MODE_AUTO) {
            return false;
        }
    }
    return load_mode == LLAMA_LOAD_MODE_AUTO || load_mode == LLAMA_LOAD_MODE_MMAP || load_mode == LLAMA_LOAD_MODE_MMAP_MLOCK;
}

// A buffer over a mapped file spans what lies between its tensors too, which may be weights of another device, and two tensors can be one
// piece of the file: only pieces count there.
static breakdown weights_of(const llama_model & model, bool mapped) {
    breakdown used;
    std::set<std::string> names;
    std::set<std::pair<ggml_backend_buffer_t, const void *>> pieces; // addresses on a device begin anew in every buffer

    for (const auto & [name, tensor] : model.tensors_by_name) {
        if (!tensor->buffer) {
            continue;
        }
        auto * buft = ggml_backend_buffer_get_type(tensor->buffer);

        const bool is_new = !model.hparams.no_alloc ? pieces.insert({ ggml_backend_buft_is_host(buft) ? nullptr : tensor->buffer, tensor->data }).second :
                            !mapped || !ggml_backend_buft_is_host(buft) || names.insert(name).second;
        if (is_new) {
            used[buft] += GGML_PAD(ggml_backend_buft_get_alloc_size(buft, tensor), ggml_backend_buft_get_alignment(buft));
        }
    }

    breakdown res = model.memory_breakdown();
    for (auto & [buft, size] : res) {
        size = std::min(size, used[buft]);
    }
    return res;
}

int32_t llama_hwkv_memory_read(const llama_context * ctx, bool mapped, llama_hwkv_memory * devices, int32_t n_max) {
    std::vector<llama_hwkv_memory> res(1);
    name_host(res.front());

    const auto add = [&](const breakdown & mb, uint64_t llama_hwkv_memory::* what) {
        for (const auto & [buft, size] : mb) {
            if (size > 0) {
                device_of(res, buft).*what += size;
            }
        }
    };
    const auto add_iswa = [&](const llama_kv_cache_iswa & iswa) {
        add(iswa.get_base()->memory_breakdown(), &llama_hwkv_memory::kv);
        add(iswa.get_swa()->memory_breakdown(),  &llama_hwkv_memory::swa);
    };

    add(weights_of(ctx->get_model(), mapped), &llama_hwkv_memory::weights);

    for (const auto & [buft, size] : ctx->memory_breakdown()) {
        add({ { buft, size.compute } }, &llama_hwkv_memory::compute);
    }

    auto * mem = llama_get_memory(ctx);
    if (auto * iswa = dynamic_cast<llama_kv_cache_iswa *>(mem)) {
        add_iswa(*iswa);
    } else if (auto * hybrid = dynamic_cast<llama_memory_hybrid *>(mem)) {
        add(hybrid->get_mem_attn()->memory_breakdown(), &llama_hwkv_memory::kv);
        add(hybrid->get_mem_recr()->memory_breakdown(), &llama_hwkv_memory::recurrent);
    } else if (auto * hybrid_iswa = dynamic_cast<llama_memory_hybrid_iswa *>(mem)) {
        add_iswa(*hybrid_iswa->get_mem_attn());
        add(hybrid_iswa->get_mem_recr()->memory_breakdown(), &llama_hwkv_memory::recurrent);
    } else if (auto * recr = dynamic_cast<llama_memory_recurrent *>(mem)) {
        add(recr->memory_breakdown(), &llama_hwkv_memory::recurrent);
    } else if (mem) {
        add(mem->memory_breakdown(), &llama_hwkv_memory::kv);
    }

    if (const auto * hw = llama_kv_headwise::find(mem)) {
        for (int32_t ig = 0; ig < hwkv_plan_n_group(hw->get_setup().plan.get()); ++ig) {
            for (const auto & [buft, size] : hw->group_breakdown(ig)) {
                device_of(res, buft).groups[ig] += size;
            }
        }
    }

    for (int32_t i = 0; i < n_max && i < (int32_t) res.size(); ++i) {
        devices[i] = res[i];
    }
    return res.size();
}
