// llama-kv-policy make

#include "make.h"

#include <stdlib.h>
#include <string.h>

static const char * const METHODS[MAKE_COUNT] = { "uniform", "streaming", "layers", "threshold", "duo" };

static bool method_from_name(const char * name, enum make_method * out) {
    for (int i = 0; i < MAKE_COUNT; i++) {
        if (strcmp(name, METHODS[i]) == 0) {
            *out = (enum make_method) i;
            return true;
        }
    }
    return false;
}

static bool uses_scores(enum make_method method) {
    return method == MAKE_THRESHOLD || method == MAKE_DUO;
}

// One line per option that a method needs and lacks, or has and cannot use.
static int check_option(const struct make_args * args, const char * name, bool given, bool needed, bool allowed) {
    if (needed && !given) {
        return fail_usage("make", "%s needs %s", METHODS[args->method], name);
    }
    if (given && !needed && !allowed) {
        return fail_usage("make", "%s takes no %s", METHODS[args->method], name);
    }
    return EXIT_OK;
}

static int check_args(const struct make_args * args) {
    const enum make_method m      = args->method;
    const bool             scores = uses_scores(m);

    const struct { const char * name; bool given, needed, allowed; } rules[] = {
        { "-o",        args->out     != NULL, true,                                                      true   },
        { "--scores",  args->scores  != NULL, scores,                                                    false  },
        { "--point",   args->point   != NULL, false,                                                     scores },
        { "--tau",     args->taus    != NULL, m == MAKE_THRESHOLD,                                       false  },
        { "--ratio",   args->ratio   >= 0.0,  m == MAKE_DUO,                                             false  },
        { "--windows", args->windows != NULL, m == MAKE_LAYERS,                                          false  },
        { "--window",  args->window  > 0,     m == MAKE_UNIFORM || m == MAKE_STREAMING || m == MAKE_DUO, false  },
        { "-m",        args->model   != NULL, !scores,                                                   true   },
        { "-c",        args->context > 0,     !scores,                                                   true   },
    };
    for (size_t i = 0; i < sizeof(rules) / sizeof(rules[0]); i++) {
        const int code = check_option(args, rules[i].name, rules[i].given, rules[i].needed, rules[i].allowed);
        if (code != EXIT_OK) {
            return code;
        }
    }
    if (args->name && strlen(args->name) >= HWKV_NAME_MAX) {
        return fail_usage("make", "--name: found %zu bytes, expected at most %d", strlen(args->name), HWKV_NAME_MAX - 1);
    }
    return EXIT_OK;
}

static int read_args(struct make_args * args, int argc, char ** argv) {
    const struct opt opts[] = {
        { "-m",        "--model",        OPT_STRING, &args->model,   0, 0              },
        { "-o",        "--output",       OPT_STRING, &args->out,     0, 0              },
        { "-c",        "--ctx-size",     OPT_INT,    &args->context, 1, 1 << 30        },
        { "--sinks",   NULL,             OPT_INT,    &args->sinks,   0, HWKV_SINKS_MAX },
        { "--name",    NULL,             OPT_STRING, &args->name,    0, 0              },
        { "-ctk",      "--cache-type-k", OPT_TYPE,   &args->type_k,  0, 0              },
        { "-ctv",      "--cache-type-v", OPT_TYPE,   &args->type_v,  0, 0              },
        { "--window",  NULL,             OPT_INT,    &args->window,  1, 1 << 30        },
        { "--windows", NULL,             OPT_STRING, &args->windows, 0, 0              },
        { "--scores",  NULL,             OPT_STRING, &args->scores,  0, 0              },
        { "--point",   NULL,             OPT_STRING, &args->point,   0, 0              },
        { "--tau",     NULL,             OPT_STRING, &args->taus,    0, 0              },
        { "--ratio",   NULL,             OPT_RATIO,  &args->ratio,   0, 0              },
        { "-v",        "--verbose",      OPT_FLAG,   &args->verbose, 0, 0              },
    };
    const char * method = NULL;
    struct opt_set set = { "make", opts, sizeof(opts) / sizeof(opts[0]), &method, 1, 0 };
    if (!args_read(&set, argc, argv)) {
        return EXIT_USAGE;
    }
    if (!method) {
        return fail_usage("make", "no method given, expected uniform, streaming, layers, threshold or duo");
    }
    if (!method_from_name(method, &args->method)) {
        return fail_usage("make", "found method '%s', expected uniform, streaming, layers, threshold or duo", method);
    }
    return check_args(args);
}

// Scores belong to one context, one number of sinks and one cache format: asking for others is a mistake.
static int source_agrees(const struct make * make) {
    const struct make_args   * args   = &make->args;
    const struct hwkv_policy * source = make->source;

    if (args->context > 0 && args->context != hwkv_policy_context(source)) {
        return fail_usage("make", "-c: found %lld, expected %d as the scores have it", (long long) args->context,
                          hwkv_policy_context(source));
    }
    if (args->sinks >= 0 && args->sinks != hwkv_policy_sinks(source)) {
        return fail_usage("make", "--sinks: found %lld, expected %d as the scores have it", (long long) args->sinks,
                          hwkv_policy_sinks(source));
    }
    if ((args->type_k >= 0 && args->type_k != (int) hwkv_policy_type_k(source)) ||
        (args->type_v >= 0 && args->type_v != (int) hwkv_policy_type_v(source))) {
        return fail_usage("make", "-ctk/-ctv: expected %s/%s as the scores have it", hwkv_type_name(hwkv_policy_type_k(source)),
                          hwkv_type_name(hwkv_policy_type_v(source)));
    }
    return EXIT_OK;
}

static int load_source(struct make * make) {
    struct hwkv_error err;
    if (hwkv_policy_load(&make->source, make->args.scores, &err) != HWKV_OK) {
        return fail_file(make->args.scores, &err);
    }
    make->source_ip = find_point(make->args.scores, make->source, make->args.point);
    if (make->source_ip < 0) {
        return EXIT_NO_POINT;
    }
    const struct hwkv_point * point = hwkv_policy_point(make->source, make->source_ip);
    if (!point->scores) {
        return fail_text("%s: point '%s' has no scores, expected a calibrated one", make->args.scores, point->name);
    }
    const int code = source_agrees(make);
    if (code != EXIT_OK) {
        return code;
    }

    if (make->args.model) {
        const char * warning = NULL;
        if (hwkv_policy_check_model(make->source, &make->model.geo, false, &warning, &err) != HWKV_OK) {
            return fail_file(make->args.scores, &err);
        }
        if (warning) {
            warn_text("%s: %s", make->args.scores, warning);
        }
    }
    return EXIT_OK;
}

static int32_t count_units(const struct hwkv_geometry * geo) {
    int32_t n = 0;
    for (int32_t i = 0; i < geo->n_full; i++) {
        n += geo->layers[i].n_head_kv;
    }
    return n;
}

static int init_policy(struct make * make) {
    const struct make_args * args = &make->args;
    int32_t codebook[HWKV_CODE_MAX];

    struct hwkv_policy_params params = hwkv_policy_params_default();
    params.geometry = make->geo;
    params.codebook = codebook;
    if (make->source) {
        params.context = hwkv_policy_context(make->source);
        params.sinks   = hwkv_policy_sinks(make->source);
        params.type_k  = hwkv_policy_type_k(make->source);
        params.type_v  = hwkv_policy_type_v(make->source);
    } else {
        params.context = (int32_t) args->context;
        params.sinks   = args->sinks >= 0 ? (int32_t) args->sinks : args->method == MAKE_STREAMING ? 4 : 0;
        params.type_k  = args->type_k >= 0 ? (enum hwkv_type) args->type_k : HWKV_TYPE_F16;
        params.type_v  = args->type_v >= 0 ? (enum hwkv_type) args->type_v : HWKV_TYPE_F16;
    }

    const int code = make_codebook(make, codebook, &params.n_codebook);
    if (code != EXIT_OK) {
        return code;
    }
    if (params.n_codebook > 1 && params.sinks >= codebook[0]) {
        return fail_usage("make", "--sinks: found %d, expected less than the smallest window %d", params.sinks, codebook[0]);
    }
    struct hwkv_error err;
    if (hwkv_policy_init(&make->policy, &params, &err) != HWKV_OK) {
        return fail_file(args->out, &err);
    }
    // the scores' origin stays on record
    const struct hwkv_calibration * calib = make->source ? hwkv_policy_calibration(make->source) : NULL;
    if (calib && hwkv_policy_set_calibration(make->policy, calib, &err) != HWKV_OK) {
        return fail_file(args->out, &err);
    }
    return EXIT_OK;
}

// Nothing is written that can't be read again, such as a model name that is no UTF-8.
static int write_policy(const struct make * make) {
    const char         * out   = make->args.out;
    char               * text  = NULL;
    struct hwkv_policy * again = NULL;
    struct hwkv_error    err;

    int code = EXIT_OK;
    if (hwkv_policy_print(&text, make->policy, &err) != HWKV_OK || hwkv_policy_parse(&again, text, strlen(text), &err) != HWKV_OK) {
        code = fail_file(out, &err);
    } else if (strcmp(out, "-") == 0) {
        fputs(text, stdout);
        code = finish_stdout(EXIT_OK);
    } else if (hwkv_policy_save(make->policy, out, &err) != HWKV_OK) {
        code = fail_file(out, &err);
    }
    hwkv_policy_free(again);
    hwkv_string_free(text);
    return code;
}

static int make_run(struct make * make) {
    int code = EXIT_OK;

    if (make->args.model && !model_load(&make->model, make->args.model, make->args.verbose)) {
        return EXIT_FAIL;
    }
    if (make->args.scores && (code = load_source(make)) != EXIT_OK) {
        return code;
    }
    make->geo     = make->args.model ? &make->model.geo : hwkv_policy_geometry(make->source);
    make->n_unit  = count_units(make->geo);
    make->windows = malloc((size_t) make->n_unit * sizeof(*make->windows));
    if (!make->windows) {
        return fail_text("out of memory");
    }
    if ((code = init_policy(make)) != EXIT_OK || (code = make_points(make)) != EXIT_OK) {
        return code;
    }
    return write_policy(make);
}

int cmd_make(int argc, char ** argv) {
    struct make make = { .args = { .sinks = -1, .ratio = -1.0, .type_k = -1, .type_v = -1 } };

    int code = read_args(&make.args, argc, argv);
    if (code == EXIT_OK) {
        code = make_run(&make);
    }
    free(make.windows);
    hwkv_policy_free(make.policy);
    hwkv_policy_free(make.source);
    model_free(&make.model);
    return code;
}
