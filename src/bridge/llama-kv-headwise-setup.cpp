// From context parameters to a plan.

#include "llama-kv-headwise-setup.h"

#include "llama-hwkv-model.h"
#include "llama-hwkv.h"
#include "llama-kv-headwise-check.h"

#include "llama-cparams.h"
#include "llama-impl.h"
#include "llama-model.h"

#include <cstring>
#include <stdexcept>

static std::string describe(const hwkv_error & err) {
    char buf[512];
    return hwkv_error_format(&err, buf, sizeof(buf));
}

static hwkv_type cache_type(ggml_type type) {
    const int res = hwkv_type_from_name(ggml_type_name(type));
    if (res < 0) {
        throw std::runtime_error(format("KV policy: cache type %s is not supported, expected f32, f16, bf16, q8_0, q4_0, q4_1, q5_0, q5_1 or iq4_nl",
                    ggml_type_name(type)));
    }
    return (hwkv_type) res;
}

ggml_type llama_kv_headwise_ggml_type(hwkv_type type) {
    for (int i = 0; i < GGML_TYPE_COUNT; ++i) {
        const char * name = ggml_type_name((ggml_type) i);
        if (name && strcmp(name, hwkv_type_name(type)) == 0) {
            return (ggml_type) i;
        }
    }
    throw std::runtime_error(format("KV policy: ggml has no type %s", hwkv_type_name(type)));
}

static void check_model(const hwkv_policy * policy, const llama_model & model, const llama_context_params & params) {
    hwkv_error    err = {};
    hwkv_geometry geo = {};

    if (llama_hwkv_model_geometry(&model, &geo, &err) != 0) {
        throw std::runtime_error("KV policy: " + describe(err));
    }

    const char * warning = nullptr;
    const int status = hwkv_policy_check_model(policy, &geo, params.kv_policy_strict, &warning, &err);
    hwkv_geometry_free(&geo);

    if (status != 0) {
        throw std::runtime_error(format("KV policy %s does not fit the model: %s", params.kv_policy, describe(err).c_str()));
    }
    if (warning) {
        LLAMA_LOG_WARN("%s: KV policy: %s\n", __func__, warning);
    }
}

// what tells interchangeable states from others: sinks, and the window and types of every head
static std::string state_id(const llama_kv_headwise_setup & setup) {
    const auto * policy   = setup.policy.get();
    const auto * plan     = setup.plan.get();
    const auto * codebook = hwkv_policy_codebook(policy, nullptr);
    const auto * geo      = hwkv_policy_geometry(policy);

    hwkv_sha256 s;
    hwkv_sha256_init(&s);
    hwkv_sha256_i64(&s, hwkv_policy_sinks(policy));
    for (int32_t jl = 0; jl < geo->n_full; ++jl) {
        for (int32_t ih = 0; ih < geo->layers[jl].n_head_kv; ++ih) {
            const auto * group = hwkv_plan_group(plan, hwkv_plan_group_of(plan, jl, ih));

            hwkv_sha256_i64(&s, codebook[hwkv_policy_point(policy, setup.ip)->entries[hwkv_policy_unit(policy, jl, ih)]].window);
            hwkv_sha256_i64(&s, group->entry.type_k);
            hwkv_sha256_i64(&s, group->entry.type_v);
        }
    }
    char hex[65];
    hwkv_sha256_final(&s, hex);
    return hex;
}

static std::shared_ptr<const hwkv_policy> open_policy(const llama_context_params & params) {
    if (params.kv_policy_given) {
        return { params.kv_policy_given, [](const hwkv_policy *) {} };
    }

    hwkv_error    err    = {};
    hwkv_policy * loaded = nullptr;
    if (hwkv_policy_load(&loaded, params.kv_policy, &err) != 0) {
        throw std::runtime_error(format("KV policy %s: %s", params.kv_policy, describe(err).c_str()));
    }
    return { loaded, hwkv_policy_free };
}

static std::shared_ptr<const hwkv_plan> make_plan(const llama_kv_headwise_setup & setup, const llama_model & model, const llama_context_params & params, const llama_cparams & cparams) {
    const auto * policy = setup.policy.get();

    auto pp = hwkv_plan_params_default();
    pp.n_ctx       = cparams.n_ctx;
    pp.n_seq_max   = cparams.n_seq_max;
    pp.kv_unified  = cparams.kv_unified;
    pp.flash_attn  = cparams.flash_attn;
    pp.type_k      = cache_type(params.type_k);
    pp.type_v      = cache_type(params.type_v);
    pp.n_pad       = setup.n_pad;
    pp.v_width_max = model.hparams.n_embd_v_gqa_max();
    pp.n_ubatch    = setup.on_gpu && cparams.offload_kqv ? cparams.n_ubatch : 0; // scratch memory is dear on a device only
    if (params.kv_policy_rollback >= 0) {
        pp.n_rollback = params.kv_policy_rollback;
    }

    if (!hwkv_policy_has_types(policy) && (pp.type_k != hwkv_policy_type_k(policy) || pp.type_v != hwkv_policy_type_v(policy))) {
        LLAMA_LOG_WARN("%s: KV policy: made for a %s/%s cache, used with %s/%s\n", __func__, hwkv_type_name(hwkv_policy_type_k(policy)),
                hwkv_type_name(hwkv_policy_type_v(policy)), hwkv_type_name(pp.type_k), hwkv_type_name(pp.type_v));
    }
    if ((int64_t) cparams.n_ctx_seq != hwkv_policy_context(policy)) {
        LLAMA_LOG_WARN("%s: KV policy: made for a context of %d, used with %u\n", __func__, hwkv_policy_context(policy), cparams.n_ctx_seq);
    }

    hwkv_error  err  = {};
    hwkv_plan * plan = nullptr;
    if (hwkv_plan_init(&plan, policy, setup.ip, &pp, &err) != 0) {
        throw std::runtime_error(format("KV policy %s: %s", setup.path.c_str(), describe(err).c_str()));
    }
    return { plan, hwkv_plan_free };
}

std::unique_ptr<llama_kv_headwise_setup> llama_kv_headwise_setup::make(const llama_model & model, const llama_context_params & params, llama_cparams & cparams) {
    // a context of draft layers has a cache of its own, to which the policy does not speak
    if (!params.kv_policy || !params.kv_policy[0] || params.ctx_type == LLAMA_CONTEXT_TYPE_MTP) {
        return nullptr;
    }

    auto res = std::make_unique<llama_kv_headwise_setup>();

    res->path   = params.kv_policy;
    res->policy = open_policy(params);

    hwkv_error err = {};
    if (hwkv_policy_choose_point(&res->ip, res->policy.get(), params.kv_policy_point, &err) != 0) {
        throw std::runtime_error(format("KV policy %s: %s", params.kv_policy, describe(err).c_str()));
    }
    res->point = hwkv_policy_point(res->policy.get(), res->ip)->name;

    if (params.kv_policy_types && hwkv_policy_check_types_option(res->policy.get(), params.kv_policy_types, &err) != 0) {
        throw std::runtime_error(format("KV policy %s: %s", params.kv_policy, describe(err).c_str()));
    }

    check_model(res->policy.get(), model, params);
    if (!cparams.causal_attn) {
        throw std::runtime_error("KV policy: found attention that is not causal, expected causal attention");
    }

    res->on_gpu   = llama_kv_headwise_on_gpu(model, res->policy.get());
    res->n_pad    = res->on_gpu ? 256 : 64; // a GPU's kernels want whole blocks of cells
    res->plan     = make_plan(*res, model, params, cparams);
    res->state_id = ::state_id(*res);

    if (hwkv_plan_is_plain(res->plan.get())) {
        LLAMA_LOG_INFO("%s: KV policy %s, operating point \"%s\": every head keeps the whole context, the plain cache serves it\n", __func__,
                res->path.c_str(), res->point.c_str());
        return nullptr;
    }
    llama_kv_headwise_check_devices(*res, model, params, cparams);
    return res;
}

llama_context * llama_kv_policy_init_from_model(llama_model * model, llama_context_params params, const hwkv_policy * policy, int32_t ip) {
    params.kv_policy       = "(in memory)";
    params.kv_policy_given = policy;
    params.kv_policy_point = hwkv_policy_point(policy, ip)->name;

    return llama_init_from_model(model, params);
}
