// llama-kv-policy check

#include "kv-policy.h"

#include "tool-groups.h"
#include "tool-json.h"

#include <inttypes.h>
#include <stdarg.h>
#include <string.h>

#define WARNINGS_MAX 8

static const char USAGE[] =
    "usage: llama-kv-policy check FILE [-m MODEL] [options]\n"
    "\n"
    "Checks a policy file and, with -m, that it fits the model; then shows cells and bytes\n"
    "of every group as the runtime will allocate them, and what llama.cpp's own cache takes\n"
    "for the same layers. With -m also what each device needs in all, as llama-server\n"
    "would use it. Reads only the model's metadata.\n"
    "\n";

struct check_args {
    const char   * file;
    const char   * model;
    const char   * point;
    int32_t        n_ctx;      // 0: the policy's
    int32_t        n_seq_max;
    int32_t        n_pad;      // 0: as the devices have it
    int32_t        n_rollback;
    int32_t        n_batch;
    int32_t        n_ubatch;
    int32_t        n_gpu_layers;
    enum hwkv_type type_k;     // HWKV_TYPE_CACHE: the policy's
    enum hwkv_type type_v;
    bool           kv_unified;
    bool           flash_attn;
    bool           strict;
    bool           json;
    bool           verbose;
};

struct check {
    const struct check_args   * args;
    const struct hwkv_policy  * policy;
    int32_t                     ip;
    struct kvp_model           model;     // zeroed without -m
    struct hwkv_plan_params     params;
    struct hwkv_plan          * plan;
    struct tool_memory          memory;    // without devices if it is not known
    const char                * no_memory; // why
    char                        warnings[WARNINGS_MAX][256];
    int                         n_warnings;
};

HWKV_PRINTF(2, 3)
static void warn_add(struct check * check, const char * fmt, ...) {
    if (check->n_warnings < WARNINGS_MAX) {
        va_list args;
        va_start(args, fmt);
        vsnprintf(check->warnings[check->n_warnings++], sizeof(check->warnings[0]), fmt, args);
        va_end(args);
    }
}

static void set_params(struct check * check) {
    const struct check_args * args = check->args;
    struct hwkv_plan_params   params = tool_plan_params(check->policy);

    params.n_ctx      = args->n_ctx > 0 ? (uint32_t) args->n_ctx : params.n_ctx;
    params.n_seq_max  = (uint32_t) args->n_seq_max;
    params.n_pad      = args->n_pad > 0 ? (uint32_t) args->n_pad : params.n_pad;
    params.n_rollback = (uint32_t) args->n_rollback;
    params.n_ubatch   = args->n_pad >= 256 ? (uint32_t) args->n_ubatch : 0;
    params.type_k     = args->type_k != HWKV_TYPE_CACHE ? args->type_k : params.type_k;
    params.type_v     = args->type_v != HWKV_TYPE_CACHE ? args->type_v : params.type_v;
    params.kv_unified = args->kv_unified;
    params.flash_attn = args->flash_attn;
    params.v_width_max = check->model.geo.v_width_max; // which a policy file has no room for; 0 without a model
    check->params = params;
}

// Types of the command line are for a whole cache.
static int check_types(const struct check * check, struct hwkv_error * err) {
    const bool given_k = check->args->type_k != HWKV_TYPE_CACHE;
    const bool given_v = check->args->type_v != HWKV_TYPE_CACHE;
    return given_k || given_v ? hwkv_policy_check_types_option(check->policy, given_k ? "-ctk" : "-ctv", err) : HWKV_OK;
}

static void warn_params(struct check * check) {
    const enum hwkv_type type_k = hwkv_policy_type_k(check->policy);
    const enum hwkv_type type_v = hwkv_policy_type_v(check->policy);
    if (check->params.type_k != type_k || check->params.type_v != type_v) {
        warn_add(check, "cache types are %s/%s, the windows were chosen with %s/%s", hwkv_type_name(check->params.type_k),
                 hwkv_type_name(check->params.type_v), hwkv_type_name(type_k), hwkv_type_name(type_v));
    }
    const uint32_t context = (uint32_t) hwkv_policy_context(check->policy);
    if (check->params.n_ctx != context) {
        warn_add(check, "context is %" PRIu32 ", the windows were chosen for %" PRIu32, check->params.n_ctx, context);
    }
    const uint64_t size  = hwkv_plan_size(check->plan);
    const uint64_t plain = hwkv_plan_size_plain(check->plan);
    if (size > plain) {
        warn_add(check, "it takes %.2f MiB more than the plain cache of %s/%s", tool_mib(size - plain), hwkv_type_name(check->params.type_k),
                 hwkv_type_name(check->params.type_v));
    }
    if (check->model.n_ctx_train > 0 && hwkv_plan_n_ctx_seq(check->plan) > (uint32_t) check->model.n_ctx_train) {
        warn_add(check, "context per sequence is %" PRIu32 ", the model was trained for %d", hwkv_plan_n_ctx_seq(check->plan),
                 check->model.n_ctx_train);
    }
}

static int plan_make(struct check * check, struct hwkv_error * err) {
    const char * warning = NULL;
    const int    res     = check->args->model ? hwkv_policy_check_model(check->policy, &check->model.geo, check->args->strict, &warning, err) : HWKV_OK;
    if (warning) {
        warn_add(check, "%s", warning);
    }
    return res == HWKV_OK ? hwkv_plan_init(&check->plan, check->policy, check->ip, &check->params, err) : res;
}

// The plan becomes that of the context which was measured: its devices may want more cells.
static int measure(struct check * check, struct hwkv_error * err) {
    const struct check_args * args   = check->args;
    struct hwkv_plan_params   params = check->params;

    check->no_memory = !args->model ? "no model was given" : args->n_pad > 0 ? "no device has --pad" : NULL;
    if (check->no_memory) {
        return HWKV_OK;
    }
    if (!kvp_memory_measure(&check->memory, &check->model, check->policy, check->ip, &params, args->n_batch, args->n_ubatch)) {
        check->no_memory = tool_log_reason(&check->model.log);
        return HWKV_OK;
    }
    struct hwkv_plan * plan = NULL;
    const int          res  = hwkv_plan_init(&plan, check->policy, check->ip, &params, err);
    if (res == HWKV_OK) {
        hwkv_plan_free(check->plan);
        check->plan = plan;
    }
    return res;
}

static struct hwkv_json * memory_json(const struct check * check) {
    return check->no_memory ? hwkv_json_new_null() : tool_memory_json(&check->memory);
}

static struct hwkv_json * warnings_json(const struct check * check) {
    struct hwkv_json * array = hwkv_json_new_array();
    for (int i = 0; i < check->n_warnings; i++) {
        hwkv_json_append(array, tool_json_text(check->warnings[i]));
    }
    return array;
}

// The same words as in llama-server's /props.
static bool print_report_json(const struct check * check) {
    const struct hwkv_plan_params * params = hwkv_plan_params_of(check->plan);
    const uint64_t                  size   = hwkv_plan_size(check->plan);
    const uint64_t                  plain  = hwkv_plan_size_plain(check->plan);

    struct hwkv_json * o = hwkv_json_new_object();
    const bool ok = hwkv_json_add(o, "policy",        tool_json_text(check->args->file)) &&
                    hwkv_json_add(o, "policy_sha256", hwkv_json_new_string(hwkv_policy_hash(check->policy))) &&
                    hwkv_json_add(o, "point",         hwkv_json_new_string(hwkv_policy_point(check->policy, check->ip)->name)) &&
                    hwkv_json_add(o, "model",         tool_json_text(check->args->model)) &&
                    hwkv_json_add(o, "fits",          hwkv_json_new_bool(true)) &&
                    hwkv_json_add(o, "n_ctx",         hwkv_json_new_int(params->n_ctx)) &&
                    hwkv_json_add(o, "n_ctx_seq",     hwkv_json_new_int(hwkv_plan_n_ctx_seq(check->plan))) &&
                    hwkv_json_add(o, "n_seq_max",     hwkv_json_new_int(params->n_seq_max)) &&
                    hwkv_json_add(o, "n_stream",      hwkv_json_new_int(hwkv_plan_n_stream(check->plan))) &&
                    hwkv_json_add(o, "kv_unified",    hwkv_json_new_bool(params->kv_unified)) &&
                    hwkv_json_add(o, "flash_attn",    hwkv_json_new_bool(params->flash_attn)) &&
                    hwkv_json_add(o, "type_k",        hwkv_json_new_string(hwkv_type_name(params->type_k))) &&
                    hwkv_json_add(o, "type_v",        hwkv_json_new_string(hwkv_type_name(params->type_v))) &&
                    hwkv_json_add(o, "n_pad",         hwkv_json_new_int(params->n_pad)) &&
                    hwkv_json_add(o, "n_rollback",    hwkv_json_new_int(params->n_rollback)) &&
                    hwkv_json_add(o, "n_ubatch",      hwkv_json_new_int(params->n_ubatch)) &&
                    hwkv_json_add(o, "groups",        tool_groups_json(check->plan)) &&
                    hwkv_json_add(o, "bytes",         hwkv_json_new_uint(size)) &&
                    hwkv_json_add(o, "bytes_plain",   hwkv_json_new_uint(plain)) &&
                    hwkv_json_add(o, "bytes_saved",   hwkv_json_new_int((int64_t) (plain - size))) &&
                    hwkv_json_add(o, "memory",        memory_json(check)) &&
                    hwkv_json_add(o, "no_memory",     tool_json_text(check->no_memory)) &&
                    hwkv_json_add(o, "warnings",      warnings_json(check));
    if (!ok) {
        hwkv_json_free(o);
        return false;
    }
    return tool_json_print(stdout, o);
}

static void print_report(const struct check * check) {
    const struct check_args * args = check->args;

    tool_put_text(stdout, args->file);
    printf(": point ");
    tool_put_text(stdout, hwkv_policy_point(check->policy, check->ip)->name);
    if (args->model) {
        printf(" fits ");
        tool_put_text(stdout, args->model);
        printf(" (%s)\n", check->model.geo.architecture);
    } else {
        printf(" is valid; not compared with a model (-m)\n");
    }
    tool_plan_print(stdout, check->plan);
    fputc('\n', stdout);
    tool_groups_print(stdout, check->plan, NULL);
    if (!check->no_memory) {
        fputc('\n', stdout);
        tool_memory_print(stdout, &check->memory);
    } else if (args->model) {
        printf("\nmemory of the devices is not known: %s\n", check->no_memory);
    }
}

// With --json the answer "no" is a document too.
static int report_misfit(const struct check * check, const struct hwkv_error * err) {
    if (check->args->json && err->code == HWKV_ERR_MISMATCH) {
        char text[512];
        struct hwkv_json * o = hwkv_json_new_object();
        hwkv_json_add(o, "policy", tool_json_text(check->args->file));
        hwkv_json_add(o, "model",  tool_json_text(check->args->model));
        hwkv_json_add(o, "fits",   hwkv_json_new_bool(false));
        hwkv_json_add(o, "error",  tool_json_text(hwkv_error_format(err, text, sizeof(text))));
        tool_json_print(stdout, o);
        tool_finish(TOOL_EXIT_FAIL);
    }
    return tool_fail_file(check->args->file, err);
}

static int check_run(struct check * check) {
    struct hwkv_error err;

    if (check_types(check, &err) != HWKV_OK) {
        return tool_fail_file(check->args->file, &err);
    }
    check->ip = kvp_find_point(check->args->file, check->policy, check->args->point);
    if (check->ip < 0) {
        return TOOL_EXIT_NO_POINT;
    }
    if (check->args->model && !kvp_model_load(&check->model, check->args->model, check->args->n_gpu_layers, check->args->verbose)) {
        return TOOL_EXIT_FAIL;
    }
    set_params(check);
    if (plan_make(check, &err) != HWKV_OK) {
        return report_misfit(check, &err);
    }
    warn_params(check);
    if (measure(check, &err) != HWKV_OK) {
        return tool_fail_file(check->args->file, &err);
    }

    if (!check->args->json) {
        print_report(check);
    } else if (!print_report_json(check) && !ferror(stdout)) {
        return tool_fail("out of memory");
    }
    for (int i = 0; i < check->n_warnings; i++) {
        tool_warn("%s: %s", check->args->file, check->warnings[i]);
    }
    return tool_finish(TOOL_EXIT_OK);
}

#define AT(member) offsetof(struct check_args, member)

static const struct tool_option OPTIONS[] = {
    { "-m",              "--model",        TOOL_STRING, AT(model), .value = "FILE",
      .help = "GGUF model; without it only the policy's own geometry is used" },
    { "--point",         NULL,             TOOL_STRING, AT(point), .value = "NAME|N",
      .help = "operating point (default: the selected one)" },
    { "-c",              "--ctx-size",     TOOL_INT,    AT(n_ctx), 1, 1 << 30, .value = "N",
      .help = "context (default: the policy's)" },
    { "-np",             "--parallel",     TOOL_INT,    AT(n_seq_max), 1, 256, .value = "N", .help = "sequences (default: 1)" },
    { "--kv-unified",    "-kvu",           TOOL_FLAG,   AT(kv_unified), .help = "one stream for all sequences (default)" },
    { "--no-kv-unified", "-no-kvu",        TOOL_CLEAR,  AT(kv_unified), .help = "one stream per sequence" },
    { "-fa",             "--flash-attn",   TOOL_ON_OFF, AT(flash_attn), .value = "on|off", .help = "flash attention (default: on)" },
    { "-ctk",            "--cache-type-k", TOOL_TYPE,   AT(type_k), .value = "T",
      .help = "(default: the policy's; not where its entries have types of their own)" },
    { "-ctv",            "--cache-type-v", TOOL_TYPE,   AT(type_v), .value = "T", .help = "the same for V" },
    { "--pad",           NULL,             TOOL_INT,    AT(n_pad), 1, 1 << 20, .value = "N",
      .help = "cells of a group are a multiple of N, whatever the devices want; from 256 on\nwith the room for batches that a GPU is given\n(default: 64, or 256 when a GPU of this machine holds some)" },
    { "--rollback",      NULL,             TOOL_INT,    AT(n_rollback), 0, 1 << 20, .value = "N",
      .help = "positions per sequence that can be taken back (default: 64)" },
    { "-b",              "--batch-size",   TOOL_INT,    AT(n_batch), 1, 1 << 20, .value = "N",
      .help = "tokens of a prompt that are taken at once (default: 2048)" },
    { "-ub",             "--ubatch-size",  TOOL_INT,    AT(n_ubatch), 1, 1 << 20, .value = "N",
      .help = "tokens of a batch, which groups on a GPU may have room for (default: 512)" },
    { "-ngl",            "--n-gpu-layers", TOOL_INT,    AT(n_gpu_layers), 0, 1 << 20, .value = "N",
      .help = "layers on GPUs (default: all)" },
    { "--strict",        NULL,             TOOL_FLAG,   AT(strict), .help = "other tensor types are an error, not a warning" },
    { "--json",          NULL,             TOOL_FLAG,   AT(json), .help = "the result as JSON" },
    { "-v",              "--verbose",      TOOL_FLAG,   AT(verbose), .help = "show llama.cpp's log" },
};

static int read_args(struct check_args * a, int argc, char ** argv) {
    struct tool_args line = {
        .usage = USAGE, .options = OPTIONS, .n_option = sizeof(OPTIONS) / sizeof(OPTIONS[0]),
        .words = &a->file, .max_word = 1, .target = a,
    };

    const int code = kvp_read_args(&line, "check", argc, argv);
    return code < 0 && line.n_word == 0 ? tool_usage("check", "no policy file given") : code;
}

int kvp_check(int argc, char ** argv) {
    const struct hwkv_plan_params defaults = hwkv_plan_params_default();

    struct check_args args = {
        .n_seq_max  = (int32_t) defaults.n_seq_max,
        .n_rollback = (int32_t) defaults.n_rollback,
        .n_batch    = 2048,
        .n_ubatch   = 512,
        .n_gpu_layers = -1,
        .type_k     = HWKV_TYPE_CACHE,
        .type_v     = HWKV_TYPE_CACHE,
        .kv_unified = defaults.kv_unified,
        .flash_attn = defaults.flash_attn,
    };
    int code = read_args(&args, argc, argv);
    if (code >= 0) {
        return code;
    }

    struct hwkv_policy * policy = NULL;
    struct hwkv_error    err;
    if (hwkv_policy_load(&policy, args.file, &err) != HWKV_OK) {
        return tool_fail_file(args.file, &err);
    }

    struct check check = { .args = &args, .policy = policy };
    code = check_run(&check);

    hwkv_plan_free(check.plan);
    kvp_model_free(&check.model);
    hwkv_policy_free(policy);
    return code;
}
