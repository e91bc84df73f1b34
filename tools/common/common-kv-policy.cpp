#include "common-kv-policy.h"

#include "arg.h"
#include "common.h"
#include "common-kv-memory.h"
#include "llama-hwkv.h"
#include "llama.h"
#include "log.h"
#include "tool-groups.h"
#include "tool-print.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <stdexcept>

void common_kv_policy::apply(llama_context_params & cparams, int32_t n_draft_max) const {
    cparams.kv_policy           = path.empty()  ? nullptr : path.c_str();
    cparams.kv_policy_point     = point.empty() ? nullptr : point.c_str();
    cparams.kv_policy_types     = types_option.empty() ? nullptr : types_option.c_str();
    cparams.kv_policy_rollback  = std::max(rollback, n_draft_max + 1);
    cparams.kv_policy_strict    = strict;
    cparams.kv_policy_allow_cpu = allow_cpu;
}

static const double MiB = 1024.0*1024.0;

//
// Why a policy was refused. A tool tries a policy more than once and goes on with lines of its own that say less: the reason is
// kept, and written once, as the last line.
//

static struct {
    std::mutex        mutex;
    ggml_log_callback callback  = nullptr;
    void            * user_data = nullptr;
    bool              over      = false; // a context was made: a tool may live on after a later refusal, or abort
    std::string       reason;
} g_refusal;

static void refusal_log(ggml_log_level level, const char * text, void *) {
    static const char mark[] = "failed to initialize the context: ";

    const char * reason = level == GGML_LOG_LEVEL_ERROR ? strstr(text, mark) : nullptr;
    if (reason && strncmp(reason += strlen(mark), "KV policy", 9) == 0) {
        std::lock_guard<std::mutex> lock(g_refusal.mutex);
        g_refusal.reason = reason;
        level = g_refusal.over ? level : GGML_LOG_LEVEL_DEBUG;
    }
    g_refusal.callback(level, text, g_refusal.user_data);
}

static void refusal_watch() {
    std::lock_guard<std::mutex> lock(g_refusal.mutex);
    if (!g_refusal.callback) {
        llama_log_get(&g_refusal.callback, &g_refusal.user_data);
        llama_log_set(refusal_log, nullptr);
    }
}

static void refusal_over() {
    std::lock_guard<std::mutex> lock(g_refusal.mutex);
    g_refusal.over = true;
    g_refusal.reason.clear();
}

static void refusal_print() {
    std::lock_guard<std::mutex> lock(g_refusal.mutex);
    if (!g_refusal.reason.empty()) {
        fflush(stdout); // llama-cli's own last words are there
        LOG_ERR("%s", g_refusal.reason.c_str()); // with its end of line
    }
}

// Slots that share one stream each have a window in every ring: what that costs, as a line, or "".
static std::string shared_cost(const llama_context * ctx) {
    const auto * plan = llama_kv_policy_plan(ctx);

    auto params = *hwkv_plan_params_of(plan);
    const uint32_t n_slot = params.n_seq_max;
    if (n_slot == 1 || !params.kv_unified) {
        return "";
    }
    params.n_seq_max = 1;

    hwkv_plan * alone = nullptr;
    if (hwkv_plan_init(&alone, llama_kv_policy_get(ctx), llama_kv_policy_point(ctx), &params, nullptr) != 0) {
        return "";
    }
    const uint64_t size_alone = hwkv_plan_size(alone);
    hwkv_plan_free(alone);
    return string_format("%u slots share the cache: %.2f MiB instead of %.2f MiB with one (-np 1)", n_slot, hwkv_plan_size(plan)/MiB, size_alone/MiB);
}

void common_kv_policy::report(const llama_context * ctx) const {
    if (path.empty()) {
        return;
    }
    refusal_over();

    const auto * plan = llama_kv_policy_plan(ctx);
    if (!plan) {
        LOG_INF("KV policy %s: every head keeps the whole context, the plain cache serves it\n", path.c_str());
        return;
    }

    const auto * policy = llama_kv_policy_get(ctx);
    LOG_INF("KV policy %s, operating point \"%s\", %d sinks\n", path.c_str(), hwkv_policy_point(policy, llama_kv_policy_point(ctx))->name,
            hwkv_policy_sinks(policy));

    for (int32_t ig = 0; ig < hwkv_plan_n_group(plan); ++ig) {
        const auto * g = hwkv_plan_group(plan, ig);

        char name[HWKV_ENTRY_SIZE];
        LOG_INF("KV window %14s: %3d layers, %4d heads, %7u cells%s, K %9.2f MiB, V %9.2f MiB\n", hwkv_entry_format(&g->entry, name), g->n_layer, g->n_head,
                g->n_cells, hwkv_plan_n_stream(plan) > 1 ? " a stream" : "", g->k_size/MiB, g->v_size/MiB);
    }

    const uint64_t size       = hwkv_plan_size(plan);
    const uint64_t size_plain = hwkv_plan_size_plain(plan);
    const double   saved      = (double) size_plain - (double) size; // types of their own may take more
    LOG_INF("KV total %.2f MiB, plain cache %.2f MiB, saved %.2f MiB (%.1f%%)\n", size/MiB, size_plain/MiB, saved/MiB, 100.0*saved/size_plain);

    const auto cost = shared_cost(ctx);
    if (!cost.empty()) {
        LOG_INF("KV: %s\n", cost.c_str());
    }
}

static void print_plan(const llama_context * ctx) {
    const auto * plan = llama_kv_policy_plan(ctx);

    if (!plan) {
        printf("every head keeps the whole context: the plain cache, %.2f MiB\n", llama_kv_policy_cache_size(ctx)/MiB);
        return;
    }

    const tool_devices devices = { ctx, [](const void * user, int32_t ig, size_t i, const char ** name) {
        return llama_kv_policy_group_device((const llama_context *) user, ig, i, name);
    } };
    tool_groups_print(stdout, plan, &devices);

    const auto cost = shared_cost(ctx);
    if (!cost.empty()) {
        printf("%s\n", cost.c_str());
    }
}

static void print_memory(common_params & params, llama_model * model, llama_context * ctx, const llama_context_params & cparams) {
    tool_memory memory;
    common_kv_memory_measure(params, model, ctx, cparams, memory);
    putchar('\n');
    tool_memory_print(stdout, &memory);
}

void common_kv_policy::run_dry(common_params & params, const llama_model_params & mparams, const llama_context_params & cparams) const {
    if (!path.empty()) {
        refusal_watch();
    }
    if (!dry_run) {
        return;
    }
    if (path.empty()) {
        fprintf(stderr, "error: --kv-policy-dry-run needs --kv-policy\n");
        exit(1);
    }

    int status = 1;
    if (auto * model = llama_hwkv_model_load_meta(params.model.path.c_str(), mparams)) {
        if (auto * ctx = llama_init_from_model(model, cparams)) {
            print_plan(ctx);
            print_memory(params, model, ctx, cparams);
            llama_free(ctx);
            status = 0;
        }
        llama_model_free(model);
    }
    fflush(stdout);
    exit(status);
}

void common_kv_policy::fit(common_params & params, const llama_model_params & mparams, llama_context_params & cparams) const {
    if (!path.empty() && params.n_ctx == 0) {
        common_kv_memory_fit(params, mparams, cparams);
    }
}

// The log is written by a thread of its own that nobody waits for at the end: without this a tool's last lines, its result
// among them, are lost now and then. All tools pass here.
static void flush_log_at_exit() {
    static const int once = std::atexit([]() {
        refusal_print();
        common_log_flush(common_log_main());
    });
    GGML_UNUSED(once);
}

void common_kv_policy_watch() {
    flush_log_at_exit();
    refusal_watch();
}

// Options of llama.cpp whose use is noticed. What they did before, by their place in this list.
static const char * const TYPES_OPTIONS[] = { "-ctk", "-ctv" };
static void (*g_set_type[2])(common_params & params, const std::string & value);

template <int I>
static void set_type(common_params & params, const std::string & value) {
    g_set_type[I](params, value);
    params.kv_policy.types_option = TYPES_OPTIONS[I];
}

// A policy whose entries have types of their own is not for a cache of others: the default has to be told from a wish.
static void watch_types(std::vector<common_arg> & options) {
    static void (* const watchers[2])(common_params &, const std::string &) = { set_type<0>, set_type<1> };
    for (auto & option : options) {
        for (int i = 0; i < 2; ++i) {
            if (std::any_of(option.args.begin(), option.args.end(), [&](const char * arg) { return strcmp(arg, TYPES_OPTIONS[i]) == 0; })) {
                g_set_type[i] = option.handler_string;
                option.handler_string = watchers[i];
            }
        }
    }
}

void common_kv_policy_add_args(const std::function<void(common_arg)> & add_opt, std::vector<common_arg> & options) {
    flush_log_at_exit();
    watch_types(options);

    add_opt(common_arg(
        {"--kv-policy"}, "FILE",
        "policy file: every KV head keeps only its window of the context (default: every head keeps all)",
        [](common_params & params, const std::string & value) {
            params.kv_policy.path = value;
        }
    ).set_env("LLAMA_ARG_KV_POLICY"));
    add_opt(common_arg(
        {"--kv-policy-point"}, "NAME|N",
        "operating point of the policy, by name or number (default: the one the file selects)",
        [](common_params & params, const std::string & value) {
            params.kv_policy.point = value;
        }
    ).set_env("LLAMA_ARG_KV_POLICY_POINT"));
    add_opt(common_arg(
        {"--kv-policy-rollback"}, "N",
        string_format("positions at the end of a sequence that can be taken back without processing the prompt again, at most its context (default: %d)",
            common_kv_policy().rollback),
        [](common_params & params, int value) {
            if (value < 0) {
                throw std::invalid_argument("found a negative rollback, expected 0 or more");
            }
            params.kv_policy.rollback = value;
        }
    ).set_env("LLAMA_ARG_KV_POLICY_ROLLBACK"));
    add_opt(common_arg(
        {"--kv-policy-checkpoint-mib"}, "N",
        "with a policy: memory for the context checkpoints of all slots together (default: half of what the policy saves, 0 = no checkpoints)",
        [](common_params & params, int value) {
            if (value < 0) {
                throw std::invalid_argument("found a negative size, expected 0 or more MiB");
            }
            params.kv_policy.checkpoint_mib = value;
        }
    ).set_examples({LLAMA_EXAMPLE_SERVER, LLAMA_EXAMPLE_CLI}).set_env("LLAMA_ARG_KV_POLICY_CHECKPOINT_MIB"));
    add_opt(common_arg(
        {"--kv-policy-dry-run"},
        "print the cells, heads and MiB of every window and what every device needs in all, and exit",
        [](common_params & params) {
            params.kv_policy.dry_run = true;
        }
    ));
    add_opt(common_arg(
        {"--kv-policy-strict"},
        "refuse a policy that was made for the same model with other tensor types (default: warn)",
        [](common_params & params) {
            params.kv_policy.strict = true;
        }
    ).set_env("LLAMA_ARG_KV_POLICY_STRICT"));
    add_opt(common_arg(
        {"--kv-policy-allow-cpu"},
        "let the CPU attend to windows that their device cannot, with a copy of the cells at every step (default: refuse to start)",
        [](common_params & params) {
            params.kv_policy.allow_cpu = true;
        }
    ).set_env("LLAMA_ARG_KV_POLICY_ALLOW_CPU"));
}
