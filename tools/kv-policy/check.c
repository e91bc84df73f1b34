// llama-kv-policy check

#include "kv-policy.h"

#include <inttypes.h>
#include <stdarg.h>
#include <string.h>

#define WARNINGS_MAX 8

struct check_args {
    const char * file;
    const char * model;
    const char * point;
    int64_t      n_ctx;      // 0: the policy's
    int64_t      n_seq_max;
    int64_t      n_pad;
    int64_t      n_rollback;
    int          type_k;     // -1: the policy's
    int          type_v;
    bool         kv_unified;
    bool         flash_attn;
    bool         strict;
    bool         json;
    bool         verbose;
};

struct check {
    const struct check_args   * args;
    const struct hwkv_policy  * policy;
    int32_t                     ip;
    struct model_info           model;     // zeroed without -m
    struct hwkv_plan_params     params;
    struct hwkv_plan          * plan;
    char                        warnings[WARNINGS_MAX][256];
    int                         n_warnings;
};

TOOL_PRINTF(2, 3)
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
    struct hwkv_plan_params   params = plan_params_of(check->policy);

    params.n_ctx      = args->n_ctx > 0 ? (uint32_t) args->n_ctx : params.n_ctx;
    params.n_seq_max  = (uint32_t) args->n_seq_max;
    params.n_pad      = (uint32_t) args->n_pad;
    params.n_rollback = (uint32_t) args->n_rollback;
    params.type_k     = args->type_k >= 0 ? (enum hwkv_type) args->type_k : params.type_k;
    params.type_v     = args->type_v >= 0 ? (enum hwkv_type) args->type_v : params.type_v;
    params.kv_unified = args->kv_unified;
    params.flash_attn = args->flash_attn;
    check->params = params;
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
    if (check->model.n_ctx_train > 0 && hwkv_plan_n_ctx_seq(check->plan) > (uint32_t) check->model.n_ctx_train) {
        warn_add(check, "context per sequence is %" PRIu32 ", the model was trained for %d", hwkv_plan_n_ctx_seq(check->plan),
                 check->model.n_ctx_train);
    }
}

// A file has no room for the widest V row of all layers, the model knows it: plan with the model's geometry.
static int plan_for_model(struct check * check, struct hwkv_error * err) {
    const struct hwkv_point * point = hwkv_policy_point(check->policy, check->ip);
    struct hwkv_policy      * bound = NULL;

    struct hwkv_policy_params params = hwkv_policy_params_default();
    params.geometry = &check->model.geo;
    params.context  = hwkv_policy_context(check->policy);
    params.sinks    = hwkv_policy_sinks(check->policy);
    params.codebook = hwkv_policy_codebook(check->policy, &params.n_codebook);
    params.type_k   = hwkv_policy_type_k(check->policy);
    params.type_v   = hwkv_policy_type_v(check->policy);

    int res = hwkv_policy_init(&bound, &params, err);
    if (res == HWKV_OK) {
        const struct hwkv_point_params add = { .name = point->name, .method = "copy", .windows = point->windows };
        res = hwkv_policy_add_point(bound, &add, err);
    }
    if (res == HWKV_OK) {
        res = hwkv_plan_init(&check->plan, bound, 0, &check->params, err);
    }
    hwkv_policy_free(bound);
    return res;
}

static int plan_make(struct check * check, struct hwkv_error * err) {
    if (!check->args->model) {
        return hwkv_plan_init(&check->plan, check->policy, check->ip, &check->params, err);
    }
    const char * warning = NULL;
    const int res = hwkv_policy_check_model(check->policy, &check->model.geo, check->args->strict, &warning, err);
    if (res != HWKV_OK) {
        return res;
    }
    if (warning) {
        warn_add(check, "%s", warning);
    }
    return plan_for_model(check, err);
}

static void json_groups(const struct hwkv_plan * plan) {
    printf("  \"groups\": [");
    for (int32_t ig = 0; ig < hwkv_plan_n_group(plan); ig++) {
        const struct hwkv_group * group = hwkv_plan_group(plan, ig);
        char name[16];
        const bool full = group->window == HWKV_FULL;
        const char * quote = full ? "\"" : "";
        printf("%s\n    {\"window\": %s%s%s, \"layers\": %d, \"heads\": %d, ", ig > 0 ? "," : "", quote,
               window_name(group->window, name), quote, group->n_layer, group->n_head);
        printf("\"cells\": %" PRIu32 ", \"k_bytes\": %" PRIu64 ", \"v_bytes\": %" PRIu64 "}", group->n_cells, group->k_size, group->v_size);
    }
    printf("\n  ],\n");
}

static void json_text(const char * key, const char * value) {
    printf("  \"%s\": ", key);
    if (value) {
        print_json(stdout, value);
    } else {
        printf("null");
    }
    printf(",\n");
}

static void print_report_json(const struct check * check) {
    const struct hwkv_plan_params * params = &check->params;

    printf("{\n");
    json_text("policy", check->args->file);
    json_text("policy_sha256", hwkv_policy_hash(check->policy));
    json_text("point", hwkv_policy_point(check->policy, check->ip)->name);
    json_text("model", check->args->model);
    printf("  \"fits\": true,\n");
    printf("  \"n_ctx\": %" PRIu32 ",\n  \"n_ctx_seq\": %" PRIu32 ",\n  \"n_seq_max\": %" PRIu32 ",\n",
           params->n_ctx, hwkv_plan_n_ctx_seq(check->plan), params->n_seq_max);
    printf("  \"n_stream\": %" PRIu32 ",\n  \"kv_unified\": %s,\n  \"flash_attn\": %s,\n", hwkv_plan_n_stream(check->plan),
           params->kv_unified ? "true" : "false", params->flash_attn ? "true" : "false");
    printf("  \"type_k\": \"%s\",\n  \"type_v\": \"%s\",\n  \"n_pad\": %" PRIu32 ",\n  \"n_rollback\": %" PRIu32 ",\n",
           hwkv_type_name(params->type_k), hwkv_type_name(params->type_v), params->n_pad, params->n_rollback);
    json_groups(check->plan);

    const uint64_t size  = hwkv_plan_size(check->plan);
    const uint64_t plain = hwkv_plan_size_plain(check->plan);
    printf("  \"bytes\": %" PRIu64 ",\n  \"plain_bytes\": %" PRIu64 ",\n  \"saved_bytes\": %" PRIu64 ",\n", size, plain, plain - size);

    printf("  \"warnings\": [");
    for (int i = 0; i < check->n_warnings; i++) {
        fputs(i > 0 ? ", " : "", stdout);
        print_json(stdout, check->warnings[i]);
    }
    printf("]\n}\n");
}

static void print_report(const struct check * check) {
    const struct check_args * args = check->args;

    print_text(stdout, args->file);
    printf(": point ");
    print_text(stdout, hwkv_policy_point(check->policy, check->ip)->name);
    if (args->model) {
        printf(" fits ");
        print_text(stdout, args->model);
        printf(" (%s)\n", check->model.geo.architecture);
    } else {
        printf(" is valid; not compared with a model (-m)\n");
    }
    groups_print(check->plan, &check->params);
}

// With --json the answer "no" is a document too.
static int report_misfit(const struct check * check, const struct hwkv_error * err) {
    if (check->args->json && err->code == HWKV_ERR_MISMATCH) {
        char text[512];
        printf("{\n");
        json_text("policy", check->args->file);
        json_text("model", check->args->model);
        printf("  \"fits\": false,\n  \"error\": ");
        print_json(stdout, hwkv_error_format(err, text, sizeof(text)));
        printf("\n}\n");
        finish_stdout(EXIT_FAIL);
    }
    return fail_file(check->args->file, err);
}

static int check_run(struct check * check) {
    struct hwkv_error err;

    check->ip = find_point(check->args->file, check->policy, check->args->point);
    if (check->ip < 0) {
        return EXIT_NO_POINT;
    }
    if (check->args->model && !model_load(&check->model, check->args->model, check->args->verbose)) {
        return EXIT_FAIL;
    }
    set_params(check);
    if (plan_make(check, &err) != HWKV_OK) {
        return report_misfit(check, &err);
    }
    warn_params(check);

    if (check->args->json) {
        print_report_json(check);
    } else {
        print_report(check);
    }
    for (int i = 0; i < check->n_warnings; i++) {
        warn_text("%s: %s", check->args->file, check->warnings[i]);
    }
    return finish_stdout(EXIT_OK);
}

static bool read_args(struct check_args * args, int argc, char ** argv) {
    const struct opt opts[] = {
        { "-m",              "--model",        OPT_STRING, &args->model,      0, 0         },
        { "-c",              "--ctx-size",     OPT_INT,    &args->n_ctx,      1, 1 << 30   },
        { "--point",         NULL,             OPT_STRING, &args->point,      0, 0         },
        { "-np",             "--parallel",     OPT_INT,    &args->n_seq_max,  1, 256       },
        { "--kv-unified",    "-kvu",           OPT_FLAG,   &args->kv_unified, 0, 0         },
        { "--no-kv-unified", "-no-kvu",        OPT_CLEAR,  &args->kv_unified, 0, 0         },
        { "-fa",             "--flash-attn",   OPT_ON_OFF, &args->flash_attn, 0, 0         },
        { "-ctk",            "--cache-type-k", OPT_TYPE,   &args->type_k,     0, 0         },
        { "-ctv",            "--cache-type-v", OPT_TYPE,   &args->type_v,     0, 0         },
        { "--pad",           NULL,             OPT_INT,    &args->n_pad,      1, 1 << 20   },
        { "--rollback",      NULL,             OPT_INT,    &args->n_rollback, 0, 1 << 20   },
        { "--strict",        NULL,             OPT_FLAG,   &args->strict,     0, 0         },
        { "--json",          NULL,             OPT_FLAG,   &args->json,       0, 0         },
        { "-v",              "--verbose",      OPT_FLAG,   &args->verbose,    0, 0         },
    };
    struct opt_set set = { "check", opts, sizeof(opts) / sizeof(opts[0]), &args->file, 1, 0 };
    if (!args_read(&set, argc, argv)) {
        return false;
    }
    if (set.n_words == 0) {
        fail_usage("check", "no policy file given");
        return false;
    }
    return true;
}

int cmd_check(int argc, char ** argv) {
    const struct hwkv_plan_params defaults = hwkv_plan_params_default();

    struct check_args args = {
        .n_seq_max  = defaults.n_seq_max,
        .n_pad      = defaults.n_pad,
        .n_rollback = defaults.n_rollback,
        .type_k     = -1,
        .type_v     = -1,
        .kv_unified = defaults.kv_unified,
        .flash_attn = defaults.flash_attn,
    };
    if (!read_args(&args, argc, argv)) {
        return EXIT_USAGE;
    }

    struct hwkv_policy * policy = NULL;
    struct hwkv_error    err;
    if (hwkv_policy_load(&policy, args.file, &err) != HWKV_OK) {
        return fail_file(args.file, &err);
    }

    struct check check = { .args = &args, .policy = policy };
    const int code = check_run(&check);

    hwkv_plan_free(check.plan);
    model_free(&check.model);
    hwkv_policy_free(policy);
    return code;
}
