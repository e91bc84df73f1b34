// llama-kv-policy make

#include "kv-policy-make.h"

#include "hwkv-error.h"

#include <stdlib.h>
#include <string.h>

static const char USAGE[] =
    "usage: llama-kv-policy make METHOD -o FILE [options]\n"
    "\n"
    "methods\n"
    "  uniform --window W            every head the same window\n"
    "  streaming --window W          the same with sinks, as StreamingLLM has it\n"
    "  layers --windows W1,W2,...    one window per full-attention layer\n"
    "  threshold --scores FILE --tau T[,T...]\n"
    "                                per head the cheapest entry with a score of at least T\n"
    "  duo --scores FILE --window W --ratio R\n"
    "                                the share R of heads with the lowest score at W is full,\n"
    "                                the others get W, as DuoAttention has it\n"
    "  retype --policy FILE [--types TYPES] [-ctk T] [-ctv T]\n"
    "                                the windows of a policy with other cache types\n"
    "\n"
    "W is a number of positions or \"full\", alone, with the cache types left to whoever runs\n"
    "the policy, or with those of its heads: 256:q8_0, or full:q8_0/q4_0 of K and V.\n"
    "\n";

static const char * const METHODS[MAKE_COUNT] = { "uniform", "streaming", "layers", "threshold", "duo", "retype" };

#define EXPECTED_METHOD "expected uniform, streaming, layers, threshold, duo or retype"

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
        return tool_usage("make", "%s needs %s", METHODS[args->method], name);
    }
    if (given && !needed && !allowed) {
        return tool_usage("make", "%s takes no %s", METHODS[args->method], name);
    }
    return TOOL_EXIT_OK;
}

static int check_args(const struct make_args * args) {
    const enum make_method m      = args->method;
    const bool             scores = uses_scores(m);
    const bool             source = scores || m == MAKE_RETYPE;
    const bool             window = m == MAKE_UNIFORM || m == MAKE_STREAMING;

    const struct { const char * name; bool given, needed, allowed; } rules[] = {
        { "-o",        args->out     != NULL,    true,                    true                          },
        { "--scores",  args->scores  != NULL,    scores,                  false                         },
        { "--policy",  args->policy  != NULL,    m == MAKE_RETYPE,        false                         },
        { "--types",   args->types.given,        false,                   window || m == MAKE_LAYERS || m == MAKE_RETYPE },
        { "--point",   args->point   != NULL,    false,                   scores                        },
        { "--tau",     args->taus    != NULL,    m == MAKE_THRESHOLD,     false                         },
        { "--ratio",   args->ratio   >= 0.0,     m == MAKE_DUO,           false                         },
        { "--windows", args->windows != NULL,    m == MAKE_LAYERS,        false                         },
        { "--window",  args->window.window > 0,  window || m == MAKE_DUO, false                         },
        { "--name",    args->name    != NULL,    false,                   m != MAKE_RETYPE              },
        { "--sinks",   args->sinks   >= 0,       false,                   m != MAKE_RETYPE              },
        { "-m",        args->model   != NULL,    !source,                 true                          },
        { "-c",        args->context > 0,        !source,                 m != MAKE_RETYPE              },
    };
    for (size_t i = 0; i < sizeof(rules) / sizeof(rules[0]); i++) {
        const int code = check_option(args, rules[i].name, rules[i].given, rules[i].needed, rules[i].allowed);
        if (code != TOOL_EXIT_OK) {
            return code;
        }
    }
    if (m == MAKE_RETYPE && !args->types.given && args->type_k == HWKV_TYPE_CACHE && args->type_v == HWKV_TYPE_CACHE) {
        return tool_usage("make", "retype needs --types, -ctk or -ctv");
    }
    if (args->name && strlen(args->name) >= HWKV_NAME_MAX) {
        return tool_usage("make", "--name: found %zu bytes, expected at most %d", strlen(args->name), HWKV_NAME_MAX - 1);
    }
    return TOOL_EXIT_OK;
}

static int read_window(void * target, const char * text, struct hwkv_error * err) {
    return hwkv_entry_parse(target, text, err);
}

// The types of an entry's spelling, or none.
static int read_types(void * target, const char * text, struct hwkv_error * err) {
    struct hwkv_entry entry = hwkv_entry_of_window(HWKV_FULL);
    char spelling[HWKV_ENTRY_SIZE];
    snprintf(spelling, sizeof(spelling), "full:%s", text);
    if (strcmp(text, "none") != 0 && (strlen(text) >= sizeof(spelling) - 5 || hwkv_entry_parse(&entry, spelling, NULL) != HWKV_OK)) {
        return hwkv_fail(err, HWKV_ERR_ARG, NULL, "found '%s', expected a type as q8_0, one for K and another for V as q8_0/q4_0, or none", text);
    }
    *(struct make_types *) target = (struct make_types) { .given = true, .k = entry.type_k, .v = entry.type_v };
    return HWKV_OK;
}

#define AT(member) offsetof(struct make_args, member)

static const struct tool_option OPTIONS[] = {
    { "-o",        "--output",       TOOL_STRING, AT(out), .value = "FILE", .help = "the policy to write; - is stdout" },
    { "-m",        "--model",        TOOL_STRING, AT(model), .value = "FILE", .help = "GGUF model; optional with --scores and --policy" },
    { "-c",        "--ctx-size",     TOOL_INT,    AT(context), 1, 1 << 30, .value = "N",
      .help = "context the policy is for; with --scores that of the scores" },
    { "--sinks",   NULL,             TOOL_INT,    AT(sinks), 0, HWKV_SINKS_MAX, .value = "S",
      .help = "first positions that stay (default: 0, streaming: 4)" },
    { "--name",    NULL,             TOOL_STRING, AT(name), .value = "NAME",
      .help = "name of the operating point; several T: NAME-T" },
    { "--types",   NULL,             TOOL_OTHER,  AT(types), .value = "TYPES",
      .help = "cache types of every W, as q8_0 or q8_0/q4_0 of K and V; retype: of every\nhead, none to leave them to the cache", .read = read_types },
    { "-ctk",      "--cache-type-k", TOOL_TYPE,   AT(type_k), .value = "T",
      .help = "type of the reference, and of the cache under windows alone (default: f16,\nwith --scores and --policy theirs)" },
    { "-ctv",      "--cache-type-v", TOOL_TYPE,   AT(type_v), .value = "T", .help = "the same for V" },
    { "--scores",  NULL,             TOOL_STRING, AT(scores), .value = "FILE", .help = "a policy whose operating point has scores" },
    { "--point",   NULL,             TOOL_STRING, AT(point), .value = "NAME|N",
      .help = "the point of --scores (default: the selected one)" },
    { "-v",        "--verbose",      TOOL_FLAG,   AT(verbose), .help = "show llama.cpp's log" },
    // told of with the methods
    { "--window",  NULL,             TOOL_OTHER,  AT(window), .help = NULL, .read = read_window },
    { "--policy",  NULL,             TOOL_STRING, AT(policy), .help = NULL },
    { "--windows", NULL,             TOOL_STRING, AT(windows), .help = NULL },
    { "--tau",     NULL,             TOOL_STRING, AT(taus), .help = NULL },
    { "--ratio",   NULL,             TOOL_RATIO,  AT(ratio), .help = NULL },
};

// -1 to go on, else the exit code
static int read_args(struct make_args * a, int argc, char ** argv) {
    const char     * method = NULL;
    struct tool_args line   = {
        .usage = USAGE, .options = OPTIONS, .n_option = sizeof(OPTIONS) / sizeof(OPTIONS[0]),
        .words = &method, .max_word = 1, .target = a,
    };

    int code = kvp_read_args(&line, "make", argc, argv);
    if (code >= 0) {
        return code;
    }
    if (!method) {
        return tool_usage("make", "no method given, " EXPECTED_METHOD);
    }
    if (!method_from_name(method, &a->method)) {
        return tool_usage("make", "found method '%s', " EXPECTED_METHOD, method);
    }
    code = check_args(a);
    return code == TOOL_EXIT_OK ? -1 : code;
}

// Scores belong to one context, one number of sinks and one cache format: asking for others is a mistake.
static int source_agrees(const struct make * make) {
    const struct make_args   * args   = &make->args;
    const struct hwkv_policy * source = make->source;

    if (args->context > 0 && args->context != hwkv_policy_context(source)) {
        return tool_usage("make", "-c: found %d, expected %d as the scores have it", args->context,
                          hwkv_policy_context(source));
    }
    if (args->sinks >= 0 && args->sinks != hwkv_policy_sinks(source)) {
        return tool_usage("make", "--sinks: found %d, expected %d as the scores have it", args->sinks,
                          hwkv_policy_sinks(source));
    }
    if ((args->type_k != HWKV_TYPE_CACHE && args->type_k != hwkv_policy_type_k(source)) ||
        (args->type_v != HWKV_TYPE_CACHE && args->type_v != hwkv_policy_type_v(source))) {
        return tool_usage("make", "-ctk/-ctv: expected %s/%s as the scores have it", hwkv_type_name(hwkv_policy_type_k(source)),
                          hwkv_type_name(hwkv_policy_type_v(source)));
    }
    return TOOL_EXIT_OK;
}

// The point whose scores are used.
static int find_scores(struct make * make) {
    make->source_ip = kvp_find_point(make->args.scores, make->source, make->args.point);
    if (make->source_ip < 0) {
        return TOOL_EXIT_NO_POINT;
    }
    const struct hwkv_point * point = hwkv_policy_point(make->source, make->source_ip);
    if (!hwkv_point_scores(point, make->source, "cosine")) {
        return tool_fail("%s: point '%s' has no scores, expected a calibrated one", make->args.scores, point->name);
    }
    return source_agrees(make);
}

static int load_source(struct make * make, const char * file) {
    struct hwkv_error err;
    if (hwkv_policy_load(&make->source, file, &err) != HWKV_OK) {
        return tool_fail_file(file, &err);
    }
    const int code = make->args.scores ? find_scores(make) : TOOL_EXIT_OK;
    if (code != TOOL_EXIT_OK || !make->args.model) {
        return code;
    }
    const char * warning = NULL;
    if (hwkv_policy_check_model(make->source, &make->model.geo, false, &warning, &err) != HWKV_OK) {
        return tool_fail_file(file, &err);
    }
    if (warning) {
        tool_warn("%s: %s", file, warning);
    }
    return TOOL_EXIT_OK;
}

struct hwkv_cache make_cache_of(const struct hwkv_policy * policy) {
    return (struct hwkv_cache) { hwkv_policy_context(policy), hwkv_policy_type_k(policy), hwkv_policy_type_v(policy) };
}

static int32_t count_units(const struct hwkv_geometry * geo) {
    int32_t n = 0;
    for (int32_t i = 0; i < geo->n_full; i++) {
        n += geo->layers[i].n_head_kv;
    }
    return n;
}

static int32_t smallest_window(const struct hwkv_entry * codebook, int32_t n) {
    int32_t smallest = HWKV_FULL;
    for (int32_t i = 0; i < n; i++) {
        smallest = codebook[i].window < smallest ? codebook[i].window : smallest;
    }
    return smallest;
}

static int init_policy(struct make * make) {
    const struct make_args * args = &make->args;
    struct hwkv_entry codebook[HWKV_CODE_MAX];

    struct hwkv_policy_params params = hwkv_policy_params_default();
    params.geometry = make->geo;
    params.codebook = codebook;
    if (make->source) {
        params.context = hwkv_policy_context(make->source);
        params.sinks   = hwkv_policy_sinks(make->source);
        params.type_k  = hwkv_policy_type_k(make->source);
        params.type_v  = hwkv_policy_type_v(make->source);
    } else {
        params.context = args->context;
        params.sinks   = args->sinks >= 0 ? args->sinks : args->method == MAKE_STREAMING ? 4 : 0;
    }
    params.type_k = args->type_k != HWKV_TYPE_CACHE ? args->type_k : params.type_k;
    params.type_v = args->type_v != HWKV_TYPE_CACHE ? args->type_v : params.type_v;

    const struct hwkv_cache cache = { params.context, params.type_k, params.type_v };
    const int code = make_codebook(make, codebook, &params.n_codebook, &cache);
    if (code != TOOL_EXIT_OK) {
        return code;
    }
    const int32_t smallest = smallest_window(codebook, params.n_codebook);
    if (params.sinks >= smallest) {
        return tool_usage("make", "--sinks: found %d, expected less than the smallest window %d", params.sinks, smallest);
    }
    struct hwkv_error err;
    if (hwkv_policy_init(&make->policy, &params, &err) != HWKV_OK) {
        return tool_fail_file(args->out, &err);
    }
    // the scores' origin stays on record
    const struct hwkv_calibration * calib = make->source ? hwkv_policy_calibration(make->source) : NULL;
    if (calib && hwkv_policy_set_calibration(make->policy, calib, &err) != HWKV_OK) {
        return tool_fail_file(args->out, &err);
    }
    return TOOL_EXIT_OK;
}

// Nothing is written that can't be read again, such as a model name that is no UTF-8.
static int write_policy(const struct make * make) {
    const char         * out   = make->args.out;
    char               * text  = NULL;
    struct hwkv_policy * again = NULL;
    struct hwkv_error    err;

    int code = TOOL_EXIT_OK;
    if (hwkv_policy_print(&text, make->policy, &err) != HWKV_OK || hwkv_policy_parse(&again, text, strlen(text), &err) != HWKV_OK) {
        code = tool_fail_file(out, &err);
    } else if (strcmp(out, "-") == 0) {
        fputs(text, stdout);
        code = tool_finish(TOOL_EXIT_OK);
    } else if (hwkv_policy_save(make->policy, out, &err) != HWKV_OK) {
        code = tool_fail_file(out, &err);
    }
    hwkv_policy_free(again);
    hwkv_string_free(text);
    return code;
}

static int make_run(struct make * make) {
    int code = TOOL_EXIT_OK;

    if (make->args.model && !kvp_model_load(&make->model, make->args.model, KVP_NO_DEVICE, make->args.verbose)) {
        return TOOL_EXIT_FAIL;
    }
    const char * source = make->args.scores ? make->args.scores : make->args.policy;
    if (source && (code = load_source(make, source)) != TOOL_EXIT_OK) {
        return code;
    }
    make->geo     = make->args.model ? &make->model.geo : hwkv_policy_geometry(make->source);
    make->n_unit  = count_units(make->geo);
    make->entries = malloc((size_t) make->n_unit * sizeof(*make->entries));
    if (!make->entries) {
        return tool_fail("out of memory");
    }
    if ((code = init_policy(make)) != TOOL_EXIT_OK || (code = make_points(make)) != TOOL_EXIT_OK) {
        return code;
    }
    return write_policy(make);
}

int kvp_make(int argc, char ** argv) {
    struct make make = { .args = { .sinks = -1, .ratio = -1.0, .type_k = HWKV_TYPE_CACHE, .type_v = HWKV_TYPE_CACHE } };

    int code = read_args(&make.args, argc, argv);
    if (code < 0) {
        code = make_run(&make);
    }
    free(make.entries);
    hwkv_policy_free(make.policy);
    hwkv_policy_free(make.source);
    kvp_model_free(&make.model);
    return code;
}
