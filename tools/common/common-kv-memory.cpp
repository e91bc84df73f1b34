#include "common-kv-memory.h"

#include "../src/llama-ext.h"
#include "common.h"
#include "llama-cpp.h"
#include "llama-hwkv.h"
#include "log.h"
#include "speculative.h"

#include <algorithm>
#include <cstring>

static common_kv_memory_more g_more = nullptr;

void common_kv_memory_set_more(common_kv_memory_more more) {
    g_more = more;
}

// What is only measured says nothing: a model that is really loaded says the same again.
class quiet_log {
public:
    quiet_log() {
        llama_log_get(&callback, &user_data);
        llama_log_set([](ggml_log_level, const char * text, void * self) {
            const auto * log = static_cast<const quiet_log *>(self);
            log->callback(GGML_LOG_LEVEL_DEBUG, text, log->user_data);
        }, this);
    }
    ~quiet_log() { llama_log_set(callback, user_data); }

    quiet_log(const quiet_log &) = delete;
    quiet_log & operator=(const quiet_log &) = delete;

private:
    ggml_log_callback callback;
    void            * user_data;
};

static bool has_mtp(const common_params & params) {
    const auto & types = params.speculative.types;
    return std::find(types.begin(), types.end(), COMMON_SPECULATIVE_TYPE_DRAFT_MTP) != types.end();
}

// As common_speculative_init_from_params makes it. False if there is one that cannot be measured.
static bool add_draft(const common_params & params, llama_model * model, llama_context * ctx, tool_memory & memory) {
    const bool has_draft = params.speculative.has_dft();
    if (!has_draft && !has_mtp(params)) {
        return true;
    }

    auto params_dft = common_base_params_to_speculative(params);
    auto cparams    = common_context_params_to_llama(params_dft);
    cparams.ctx_type  = has_mtp(params) ? LLAMA_CONTEXT_TYPE_MTP : cparams.ctx_type;
    cparams.n_ctx     = llama_n_ctx(ctx);
    cparams.n_rs_seq  = 0;
    cparams.ctx_other = ctx;

    llama_model_ptr own;
    if (has_draft) {
        own.reset(llama_hwkv_model_load_meta(params_dft.model.path.c_str(), common_model_params_to_llama(params_dft)));
        model = own.get();
    }
    llama_context_ptr ctx_dft(model ? llama_init_from_model(model, cparams) : nullptr);
    if (!ctx_dft) {
        return false;
    }
    tool_memory_add_draft(&memory, ctx_dft.get(), !has_draft);
    return true;
}

static void add_more(const common_params & params, const llama_context * ctx, tool_memory & memory) {
    if (g_more) {
        g_more(params, ctx, memory);
    }
}

void common_kv_memory_measure(common_params & params, llama_model * model, llama_context * ctx, const llama_context_params & cparams, tool_memory & memory) {
    quiet_log quiet;
    tool_memory_init(&memory, ctx, params.load_mode);
    if (!add_draft(params, model, ctx, memory)) {
        memory.missing = "draft";
    }
    tool_memory_add_plain(&memory, model, cparams);
    add_more(params, ctx, memory);
}

void common_kv_memory_read(common_params & params, llama_context * ctx, const llama_context * ctx_dft, tool_memory & memory) {
    quiet_log quiet;
    tool_memory_init(&memory, ctx, params.load_mode);
    if (ctx_dft) {
        tool_memory_add_draft(&memory, ctx_dft, llama_get_model(ctx_dft) == llama_get_model(ctx));
    }

    // as it runs, whatever --fit has made of the parameters
    auto mparams = common_model_params_to_llama(params);
    auto cparams = common_context_params_to_llama(params);
    mparams.n_gpu_layers = llama_hwkv_model_n_gpu_layers(llama_get_model(ctx));
    cparams.n_ctx        = llama_n_ctx(ctx);

    llama_model_ptr model(llama_hwkv_model_load_meta(params.model.path.c_str(), mparams));
    if (model) {
        tool_memory_add_plain(&memory, model.get(), cparams);
    }
    add_more(params, ctx, memory);
}

//
// --fit
//

// Where upstream's --fit looks on at most one device.
struct fit_device {
    bool    host;
    int64_t room; // what may be taken
};

static fit_device device_to_fit(const common_params & params, const llama_model * model) {
    const bool host = llama_model_n_devices(model) == 0;
    auto * dev = host ? ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU) : llama_model_get_device(model, 0);

    size_t free  = 0;
    size_t total = 0;
    ggml_backend_dev_memory(dev, &free, &total);
    return { host, (int64_t) (host ? total : free) - (int64_t) params.fit_params_target[0] };
}

static bool fits(const common_params & params, llama_model * model, const llama_context_params & cparams, const fit_device & where) {
    llama_context_ptr ctx(llama_init_from_model(model, cparams));
    if (!ctx) {
        return false;
    }

    tool_memory memory;
    tool_memory_init(&memory, ctx.get(), params.load_mode);
    add_draft(params, model, ctx.get(), memory);

    int64_t used = 0;
    for (int32_t i = 0; i < memory.n_device; ++i) {
        used += memory.devices[i].context.host == where.host ? tool_memory_total(&memory.devices[i]) : 0;
    }
    return used <= where.room;
}

void common_kv_memory_fit(common_params & params, const llama_model_params & mparams, llama_context_params & cparams) {
    quiet_log quiet;

    llama_model_ptr model(llama_hwkv_model_load_meta(params.model.path.c_str(), mparams));
    if (!model || llama_model_n_devices(model.get()) > 1) {
        return; // layers are spread over several devices by what a context takes
    }

    const uint32_t n_stream = cparams.kv_unified ? 1 : std::max<uint32_t>(1, cparams.n_seq_max);
    const uint32_t step     = 256*n_stream;
    const uint32_t n_min    = std::min<uint64_t>((uint64_t) params.fit_params_min_ctx*n_stream, UINT32_MAX);
    const uint32_t n_before = cparams.n_ctx;
    const auto     where    = device_to_fit(params, model.get());
    if (n_before <= n_min || fits(params, model.get(), cparams, where)) {
        return;
    }

    uint32_t lo = n_min/step;
    uint32_t hi = (n_before + step - 1)/step; // does not fit
    while (hi - lo > 1) {
        const uint32_t mid = lo + (hi - lo)/2;
        cparams.n_ctx = mid*step;
        (fits(params, model.get(), cparams, where) ? lo : hi) = mid;
    }
    cparams.n_ctx = std::max(lo*step, n_min);
    LOG_INF("KV policy: a context of %u fits, of %u does not\n", cparams.n_ctx, n_before);
}
