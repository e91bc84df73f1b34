// time-inputs MODEL POLICY [CONTEXT]: the host's time for placing a ubatch and filling its inputs at the end of a context, with
// llama.cpp's own cache and with window groups, in microseconds. Nothing is computed and no weights are read.

#include "llama-batch.h"
#include "llama-context.h"
#include "llama-kv-cache.h"
#include "llama-kv-headwise-input.h"
#include "llama-memory-hybrid.h"
#include "llama-model.h"

#include "ggml-alloc.h"
#include "ggml-cpu.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <vector>

static void quiet(ggml_log_level level, const char * text, void *) {
    if (level == GGML_LOG_LEVEL_ERROR) {
        fputs(text, stderr);
    }
}

static void die(const char * what) {
    fprintf(stderr, "time-inputs: %s\n", what);
    exit(1);
}

static llama_kv_cache * cache_of(llama_context * ctx) {
    auto * mem = llama_get_memory(ctx);
    if (auto * hybrid = dynamic_cast<llama_memory_hybrid *>(mem)) {
        return hybrid->get_mem_attn();
    }
    return dynamic_cast<llama_kv_cache *>(mem);
}

struct times {
    double place  = 0.0;
    double inputs = 0.0;
};

class bench {
public:
    bench(llama_model * model, const char * policy, uint32_t n_ctx, uint32_t n_ubatch) {
        auto params = llama_context_default_params();
        params.n_ctx           = n_ctx;
        params.n_ubatch        = n_ubatch;
        params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_ENABLED;
        params.kv_policy       = policy;
        ctx.reset(llama_init_from_model(model, params));
        if (!ctx || !cache_of(ctx.get())) {
            die("cannot create the context, or its cache is of another kind");
        }
        kv = cache_of(ctx.get());
        n_pos_per_embd = model->hparams.n_pos_per_embd();
    }

    times step(uint32_t n_tokens) {
        times res;

        llama_batch_allocr allocr(n_pos_per_embd);
        auto ubatch = allocr.ubatch_reserve(n_tokens, 1);
        llama_seq_id seq = 0;
        for (uint32_t i = 0; i < n_tokens; ++i) {
            for (uint32_t k = 0; k < n_pos_per_embd; ++k) {
                ubatch.pos[i + k*n_tokens] = k < 3 ? n_past + i : 0; // text: all places of a token are its position
            }
            ubatch.n_seq_id[i] = 1;
            ubatch.seq_id  [i] = &seq;
        }

        auto t0 = ggml_time_us();
        llama_kv_cache_context mctx(kv, kv->prepare({ ubatch }), { ubatch });
        if (!mctx.apply()) {
            die("no room");
        }
        res.place = ggml_time_us() - t0;

        res.inputs = kv->get_headwise() ? fill_groups(ubatch) : fill_plain(mctx, ubatch);

        n_past += n_tokens;
        return res;
    }

private:
    using ggml_ptr   = std::unique_ptr<ggml_context, void (*)(ggml_context *)>;
    using buffer_ptr = std::unique_ptr<ggml_backend_buffer, void (*)(ggml_backend_buffer_t)>;

    static ggml_ptr make_context() {
        return { ggml_init({ 64*ggml_tensor_overhead(), nullptr, true }), ggml_free };
    }

    // in memory that was used before, as it is in a graph that was computed before
    template <typename F>
    double fill(ggml_context * meta, F && fn) {
        buffer_ptr buffer { ggml_backend_alloc_ctx_tensors_from_buft(meta, ggml_backend_cpu_buffer_type()), ggml_backend_buffer_free };
        ggml_backend_buffer_clear(buffer.get(), 1);

        const auto t0 = ggml_time_us();
        fn();
        return ggml_time_us() - t0;
    }

    double fill_groups(const llama_ubatch & ubatch) {
        auto meta = make_context();
        llm_graph_input_headwise input(kv->get_headwise(), ctx->get_cparams(), meta.get(), ubatch);
        return fill(meta.get(), [&]() { input.set_input(&ubatch); });
    }

    double fill_plain(const llama_kv_cache_context & mctx, const llama_ubatch & ubatch) {
        auto meta = make_context();
        auto * k_idxs = mctx.build_input_k_idxs(meta.get(), ubatch);
        auto * v_idxs = mctx.build_input_v_idxs(meta.get(), ubatch);
        auto * mask   = ggml_new_tensor_4d(meta.get(), GGML_TYPE_F16, mctx.get_n_kv(), ubatch.n_tokens, 1, 1);
        return fill(meta.get(), [&]() {
            mctx.set_input_k_idxs(k_idxs, &ubatch);
            mctx.set_input_v_idxs(v_idxs, &ubatch);
            mctx.set_input_kq_mask(mask, &ubatch, true);
        });
    }

    std::unique_ptr<llama_context, void (*)(llama_context *)> ctx { nullptr, llama_free };

    llama_kv_cache * kv = nullptr;
    uint32_t n_pos_per_embd = 1;
    uint32_t n_past = 0;
};

static times median(std::vector<times> all) {
    times res;
    const auto middle = all.begin() + all.size()/2;
    std::nth_element(all.begin(), middle, all.end(), [](const times & a, const times & b) { return a.place < b.place; });
    res.place = middle->place;
    std::nth_element(all.begin(), middle, all.end(), [](const times & a, const times & b) { return a.inputs < b.inputs; });
    res.inputs = middle->inputs;
    return res;
}

int main(int argc, char ** argv) {
    if (argc < 3) {
        fprintf(stderr, "usage: time-inputs MODEL POLICY [CONTEXT]\n");
        return 2;
    }
    const uint32_t n_ctx    = argc > 3 ? strtoul(argv[3], nullptr, 10) : 131072;
    const uint32_t n_ubatch = 512;
    const uint32_t n_rounds = 9;
    if (n_ctx < 64*n_ubatch) {
        die("found a context that is too short, expected at least 32768");
    }

    llama_log_set(quiet, nullptr);
    llama_backend_init();
    auto params = llama_model_default_params();
    params.no_alloc  = true;
    params.load_mode = LLAMA_LOAD_MODE_NONE;
    std::unique_ptr<llama_model, void (*)(llama_model *)> model(llama_model_load_from_file(argv[1], params), llama_model_free);
    if (!model) {
        die("cannot load the model");
    }

    bench plain (model.get(), nullptr, n_ctx, n_ubatch);
    bench policy(model.get(), argv[2], n_ctx, n_ubatch);
    for (uint32_t n = 0; n < n_ctx - 2*n_rounds*n_ubatch; n += n_ubatch) {
        plain .step(n_ubatch);
        policy.step(n_ubatch);
    }

    printf("| %u tokens before | cache | placed, us | inputs, us | together |\n|---|---|---:|---:|---:|\n", n_ctx - 2*n_rounds*n_ubatch);
    for (const uint32_t n_tokens : { n_ubatch, 1u }) {
        std::vector<times> all[2];
        for (uint32_t i = 0; i < n_rounds; ++i) {
            all[0].push_back(plain .step(n_tokens));
            all[1].push_back(policy.step(n_tokens));
        }
        for (int i = 0; i < 2; ++i) {
            const auto t = median(all[i]);
            printf("| %u token%s | %s | %.0f | %.0f | %.0f |\n", n_tokens, n_tokens == 1 ? "" : "s", i == 0 ? "plain" : "policy", t.place, t.inputs, t.place + t.inputs);
        }
    }
    return 0;
}
