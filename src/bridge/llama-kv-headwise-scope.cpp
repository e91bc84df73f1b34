// From context parameters to a plan, and from there into the one cache that takes it.

#include "llama-kv-headwise.h"

#include "llama-hwkv-model.h"
#include "llama-hwkv-trace.h"

#include "llama-cparams.h"
#include "llama-impl.h"
#include "llama-model.h"

#include <stdexcept>

static thread_local std::shared_ptr<llama_kv_headwise_plan> g_pending;

// a policy that is at hand instead of in a file
struct given_policy {
    const hwkv_policy * policy;
    int32_t             ip;
};
static thread_local const given_policy * g_given = nullptr;

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

// whether any layer's cache is on a device whose attention wants whole blocks of cells
static bool on_gpu(const llama_model & model, const llama_cparams & cparams) {
    for (uint32_t il = 0; il < model.hparams.n_layer_all && cparams.offload_kqv; ++il) {
        auto * dev = model.dev_layer(il);
        if (dev && ggml_backend_dev_type(dev) != GGML_BACKEND_DEVICE_TYPE_CPU) {
            return true;
        }
    }
    return false;
}

// what tells interchangeable states from others: windows, sinks and heads
static std::string state_id(const llama_kv_headwise_plan & plan) {
    const auto * policy = plan.policy.get();
    const auto * point  = hwkv_policy_point(policy, plan.ip);

    hwkv_sha256 s;
    hwkv_sha256_init(&s);
    hwkv_sha256_i64(&s, plan.sinks);
    for (int32_t i = 0; i < hwkv_policy_n_unit(policy); ++i) {
        hwkv_sha256_i64(&s, point->windows[i]);
    }
    char hex[65];
    hwkv_sha256_final(&s, hex);
    return hex;
}

static std::shared_ptr<llama_kv_headwise_plan> make_plan(const llama_model & model, const llama_context_params & params, const llama_cparams & cparams) {
    hwkv_error err = {};

    auto res = std::make_shared<llama_kv_headwise_plan>();
    if (g_given) {
        res->policy.reset(g_given->policy, [](const hwkv_policy *) {});
    } else {
        hwkv_policy * loaded = nullptr;
        if (hwkv_policy_load(&loaded, params.kv_policy, &err) != 0) {
            throw std::runtime_error(format("KV policy %s: %s", params.kv_policy, describe(err).c_str()));
        }
        res->policy.reset(loaded, hwkv_policy_free);
    }

    const auto * policy = res->policy.get();
    res->path       = params.kv_policy;
    res->sinks      = hwkv_policy_sinks(policy);
    res->n_rollback = params.kv_policy_rollback >= 0 ? params.kv_policy_rollback : 64;
    if (g_given) {
        res->ip = g_given->ip;
    } else if (hwkv_policy_choose_point(&res->ip, policy, params.kv_policy_point, &err) != 0) {
        throw std::runtime_error(format("KV policy %s: %s", params.kv_policy, describe(err).c_str()));
    }
    res->point    = hwkv_policy_point(policy, res->ip)->name;
    res->state_id = state_id(*res);

    check_model(policy, model, params);
    if (!cparams.causal_attn) {
        throw std::runtime_error("KV policy: found attention that is not causal, expected causal attention");
    }

    const auto type_k = cache_type(params.type_k);
    const auto type_v = cache_type(params.type_v);
    if (type_k != hwkv_policy_type_k(policy) || type_v != hwkv_policy_type_v(policy)) {
        LLAMA_LOG_WARN("%s: KV policy: made for a %s/%s cache, used with %s/%s\n", __func__, hwkv_type_name(hwkv_policy_type_k(policy)),
                hwkv_type_name(hwkv_policy_type_v(policy)), hwkv_type_name(type_k), hwkv_type_name(type_v));
    }
    if ((int64_t) cparams.n_ctx_seq != hwkv_policy_context(policy)) {
        LLAMA_LOG_WARN("%s: KV policy: made for a context of %d, used with %u\n", __func__, hwkv_policy_context(policy), cparams.n_ctx_seq);
    }

    res->n_pad = on_gpu(model, cparams) ? 256 : 64;

    auto pp = hwkv_plan_params_default();
    pp.n_ctx       = cparams.n_ctx;
    pp.n_seq_max   = cparams.n_seq_max;
    pp.kv_unified  = cparams.kv_unified;
    pp.flash_attn  = cparams.flash_attn;
    pp.type_k      = type_k;
    pp.type_v      = type_v;
    pp.n_rollback  = res->n_rollback;
    pp.n_pad       = res->n_pad;
    pp.v_width_max = model.hparams.n_embd_v_gqa_max();

    hwkv_plan * plan = nullptr;
    if (hwkv_plan_init(&plan, policy, res->ip, &pp, &err) != 0) {
        throw std::runtime_error(format("KV policy %s: %s", params.kv_policy, describe(err).c_str()));
    }
    res->plan.reset(plan, hwkv_plan_free);

    return res;
}

llama_kv_headwise_scope::llama_kv_headwise_scope(const llama_model & model, const llama_context_params & params, const llama_cparams & cparams) {
    // a context of draft layers has a cache of its own, to which the policy does not speak
    if (!params.kv_policy || !params.kv_policy[0] || params.ctx_type == LLAMA_CONTEXT_TYPE_MTP) {
        return;
    }

    plan = make_plan(model, params, cparams);

    if (hwkv_plan_n_group(plan->plan.get()) == 1 && hwkv_plan_group(plan->plan.get(), 0)->window == HWKV_FULL) {
        LLAMA_LOG_INFO("%s: KV policy %s, operating point \"%s\": every head keeps the whole context, the plain cache serves it\n", __func__,
                plan->path.c_str(), plan->point.c_str());
        plan.reset();
        return;
    }

    g_pending = plan;
}

llama_kv_headwise_scope::~llama_kv_headwise_scope() {
    g_pending.reset();
}

void llama_kv_headwise_scope::check() const {
    if (plan && g_pending) {
        throw std::runtime_error("KV policy: this model's memory has no cache that can take it");
    }
}

std::shared_ptr<llama_kv_headwise> llama_kv_headwise::attach(const llama_hparams & hparams, llama_swa_type swa_type, llama_memory_t mem_other, const char * name_tag) {
    if (mem_other && find(mem_other)) {
        throw std::runtime_error("KV policy: a draft model cannot share the cache of a model with window groups");
    }
    if (!g_pending || swa_type != LLAMA_SWA_TYPE_NONE || mem_other || name_tag[0]) {
        return nullptr;
    }

    return std::make_shared<llama_kv_headwise>(hparams, std::move(g_pending));
}

llama_context * llama_kv_policy_init_from_model(llama_model * model, llama_context_params params, const hwkv_policy * policy, int32_t ip) {
    const given_policy given = { policy, ip };

    params.kv_policy = "(in memory)";

    g_given = &given;
    auto * res = llama_init_from_model(model, params);
    g_given = nullptr;
    return res;
}
