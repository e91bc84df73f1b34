#include "seqcalib-options.h"

#include "tool-llama.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define SEED_MAX (INT64_C(1) << 53) // what a policy file can hold

static const char USAGE[] =
    "usage: llama-seqcalib -m MODEL -f TEXT [options]\n"
    "\n"
    "Finds out, layer by layer, how much history every KV head of a model needs and in which cache type, and writes a policy for --kv-policy.\n"
    "\n"
    "  llama-seqcalib -m model.gguf -f text.txt -c 8192 --windows 256,512,1024,2048,4096 --tau 0.99,0.995 -o policy.json\n";

static const char AFTER[] =
    "  --version\n"
    "  -h, --help\n";

HWKV_PRINTF(1, 2)
static int fail(const char * fmt, ...) {
    char    line[1024];
    va_list args;
    va_start(args, fmt);
    vsnprintf(line, sizeof(line), fmt, args);
    va_end(args);
    tool_say("error", "%s", line);
    return TOOL_EXIT_USAGE;
}

//
// values
//

static int read_windows(void * target, const char * list, struct hwkv_error * err) {
    struct sc_windows * windows = target;
    const char        * at      = list;
    char                field[16];

    windows->n = 0;
    while (tool_next_field(&at, field, sizeof(field))) {
        int64_t w;
        if (!tool_parse_int(field, &w) || w < 1 || w >= HWKV_FULL) {
            return hwkv_fail(err, HWKV_ERR_ARG, NULL, "found '%s', expected whole numbers separated by commas", list);
        }
        if (windows->n > 0 && w <= windows->w[windows->n - 1]) {
            return hwkv_fail(err, HWKV_ERR_ARG, NULL, "found %s after %d, expected ascending windows", field, windows->w[windows->n - 1]);
        }
        if (windows->n == HWKV_CODE_MAX - 1) {
            return hwkv_fail(err, HWKV_ERR_ARG, NULL, "found more than %d windows", HWKV_CODE_MAX - 1);
        }
        windows->w[windows->n++] = (int32_t) w;
    }
    return HWKV_OK;
}

const char * sc_tau_name(double tau, char buf[SC_TAU_NAME]) {
    snprintf(buf, SC_TAU_NAME, "%.12g", tau);
    return buf;
}

static int read_taus(void * target, const char * list, struct hwkv_error * err) {
    struct sc_taus * taus = target;
    const char     * at   = list;
    char             field[64];

    taus->n = 0;
    while (tool_next_field(&at, field, sizeof(field))) {
        double tau;
        if (!tool_parse_number(field, &tau) || !(tau > 0.0 && tau <= 1.0)) {
            return hwkv_fail(err, HWKV_ERR_ARG, NULL, "found '%s', expected numbers above 0 and at most 1, separated by commas", list);
        }
        for (int32_t i = 0; i < taus->n; i++) {
            // they give the points their names
            char name[2][SC_TAU_NAME];
            if (strcmp(sc_tau_name(taus->tau[i], name[0]), sc_tau_name(tau, name[1])) == 0) {
                return hwkv_fail(err, HWKV_ERR_ARG, NULL, "found %s twice", name[1]);
            }
        }
        if (taus->n == SC_TAU_MAX) {
            return hwkv_fail(err, HWKV_ERR_ARG, NULL, "found more than %d floors", SC_TAU_MAX);
        }
        taus->tau[taus->n++] = tau;
    }
    return HWKV_OK;
}

static bool parse_budget(struct sc_budget * budget, const char * text) {
    const size_t n    = strspn(text, "0123456789.");
    const char * unit = text + n;
    const double size = strcmp(unit, "KiB") == 0 ? 1024.0 : strcmp(unit, "MiB") == 0 ? 1048576.0 : strcmp(unit, "GiB") == 0 ? 1073741824.0 : 0.0;

    char   number[64];
    double value = 0.0;
    snprintf(number, sizeof(number), "%.*s", (int) (n < sizeof(number) ? n : sizeof(number) - 1), text);

    *budget = (struct sc_budget) { 0 };
    if (!tool_parse_number(number, &value) || !(value > 0.0)) {
        return false;
    }
    if (*unit == '\0') {
        budget->share = value;
        return value <= 1.0;
    }
    budget->bytes = size > 0.0 && value*size < 1e18 ? (uint64_t) (value*size) : 0;
    return budget->bytes > 0;
}

#define BUDGET_EXPECTED "a share above 0 and at most 1, or bytes such as 512MiB or 2GiB"

static int read_budget(void * target, const char * text, struct hwkv_error * err) {
    return parse_budget(target, text) ? HWKV_OK : hwkv_fail(err, HWKV_ERR_ARG, NULL, "found '%s', expected " BUDGET_EXPECTED, text);
}

static int read_budgets(void * target, const char * list, struct hwkv_error * err) {
    struct sc_budgets * budgets = target;
    const char        * at      = list;
    char                field[SC_TAU_NAME];

    budgets->n = 0;
    while (tool_next_field(&at, field, sizeof(field))) {
        if (budgets->n == SC_TAU_MAX) {
            return hwkv_fail(err, HWKV_ERR_ARG, NULL, "found more than %d budgets", SC_TAU_MAX);
        }
        if (!parse_budget(&budgets->budget[budgets->n], field)) {
            return hwkv_fail(err, HWKV_ERR_ARG, NULL, "found '%s', expected " BUDGET_EXPECTED ", separated by commas", list);
        }
        for (int32_t i = 0; i < budgets->n; i++) {
            // they give the points their names
            if (strcmp(budgets->text[i], field) == 0) {
                return hwkv_fail(err, HWKV_ERR_ARG, NULL, "found %s twice", field);
            }
        }
        snprintf(budgets->text[budgets->n++], SC_TAU_NAME, "%s", field);
    }
    return HWKV_OK;
}

//
// options
//

#define AT(member) offsetof(struct sc_options, member)

static const struct tool_option OPTIONS[] = {
    { .help = "input" },
    { "--model",           "-m",   TOOL_STRING,  AT(model), .value = "FILE", .help = "the model, a GGUF file" },
    { "--file",            "-f",   TOOL_STRINGS, AT(files), 0, SC_FILE_MAX, .value = "FILE",
      .help = "text to calibrate on; may be given several times" },
    { "--parse-special",   NULL,   TOOL_FLAG,    AT(parse_special), .help = "the text contains control tokens (a formatted chat)" },
    { "--n-seq",           NULL,   TOOL_INT,     AT(n_seq), 1, 4096, .value = "N",
      .help = "sequences, contiguous and disjoint pieces of the text (default: 1)" },
    { "--ctx-size",        "-c",   TOOL_INT,     AT(n_ctx), 64, 1 << 28, .value = "N",
      .help = "tokens of a sequence (default: the model's own context, at most 131072)" },
    { .help = "what to choose" },
    { "--windows",         NULL,   TOOL_OTHER,   AT(windows), .value = "LIST", .read = read_windows,
      .help = "candidate windows, ascending (default: 1/16, 1/8 and 1/4 of the context); full is always one" },
    { "--types",           NULL,   TOOL_OTHER,   AT(types), .value = "LIST", .read = sc_types_read,
      .help = "cache types that go with every window, of K and V alike or two such as q8_0/q4_0 (default:\n"
              "f16,q8_0,q4_0 as far as the model and its devices can; cache: windows alone, their types are\n"
              "left to the cache)" },
    { "--sinks",           NULL,   TOOL_INT,     AT(sinks), 0, HWKV_SINKS_MAX, .value = "N",
      .help = "first positions that every window keeps; they count in it (default: 4; 0: the paper's setting)" },
    { "--tau",             NULL,   TOOL_OTHER,   AT(taus), .value = "LIST", .read = read_taus,
      .help = "similarity floors; each becomes an operating point of the policy (default: 0.995)" },
    { "--budget",          NULL,   TOOL_OTHER,   AT(budget), .value = "B", .read = read_budget,
      .help = "select the best point within B: a share of the full cache such as 0.7, or bytes such as\n"
              "512MiB or 2GiB as allocated at this context. Exit code 3 if none fits; the file is still\n"
              "written. Without it the first floor of the list is selected" },
    { "--allocate",        NULL,   TOOL_OTHER,   AT(allocate), .value = "LIST", .read = read_budgets,
      .help = "instead of floors: a point for each budget, given as for --budget, in which every head gets\n"
              "the entry that is worth its bytes most. It takes one sweep through the layers, and one for\n"
              "each budget. Exit code 3 if one is below what the smallest entries take" },
    { "--per-layer",       NULL,   TOOL_FLAG,    AT(per_layer),
      .help = "one entry for all KV heads of a layer, by the mean of their scores: to compare with" },
    { "--n-query",         NULL,   TOOL_INT,     AT(n_query), 1, 1 << 24, .value = "N",
      .help = "query positions scored in each sequence, from its last quarter (default: 256)" },
    { "--seed",            NULL,   TOOL_INT64,   AT(seed), 0, SEED_MAX, .value = "N", .help = "of the query positions (default: 42)" },
    { .help = "check on text the calibration has not seen" },
    { "--holdout",         NULL,   TOOL_INT,     AT(n_holdout), 1, 4096, .value = "N",
      .help = "N more pieces, and one formatted as a chat if the model has a template; the results go into\n"
              "the policy as `validation`" },
    { "--holdout-file",    NULL,   TOOL_STRINGS, AT(holdout_files), 0, SC_FILE_MAX, .value = "FILE",
      .help = "take them from this text instead of the rest of the other; may be given several times" },
    { .help = "output" },
    { "--output",          "-o",   TOOL_STRING,  AT(out), .value = "FILE", .help = "the policy, - for stdout (default: policy.json)" },
    { "--force",           NULL,   TOOL_FLAG,    AT(force), .help = "overwrite it if it is there already" },
    { "--html",            NULL,   TOOL_STRING,  AT(html), .value = "FILE", .help = "a page to look at it" },
    { "--resume",          NULL,   TOOL_FLAG,    AT(resume), .help = "go on where a run with the same arguments was interrupted" },
    { "--work",            NULL,   TOOL_STRING,  AT(work), .value = "FILE",
      .help = "where progress is kept for that (default: the output with .work added)" },
    { "--json-progress",   NULL,   TOOL_FLAG,    AT(json_progress), .help = "progress on stderr as JSON, one object a line" },
    { "--dry-run",         NULL,   TOOL_FLAG,    AT(dry_run), .help = "only estimate time and memory" },
    { "--show-statistics", NULL,   TOOL_STRING,  AT(statistics), .value = "FILE", .help = "print what is in a policy and exit" },
    { .help = "how to run" },
    { "--cache-type-k",    "-ctk", TOOL_TYPE,    AT(type_k), .value = "TYPE", .help = "cache type for K, of what all else is compared with (default: f16)" },
    { "--cache-type-v",    "-ctv", TOOL_TYPE,    AT(type_v), .value = "TYPE", .help = "the same for V (default: f16)" },
    { "--threads",         "-t",   TOOL_INT,     AT(n_thread), 1, 512, .value = "N", .help = "(default: number of cores)" },
    { "--ubatch-size",     "-ub",  TOOL_INT,     AT(n_ubatch), 1, 1 << 16, .value = "N",
      .help = "tokens computed at once (default: 512)" },
    { "--n-gpu-layers",    "-ngl", TOOL_INT,     AT(n_gpu_layers), 0, 1 << 16, .value = "N",
      .help = "layers on the GPU (default: as many as fit)" },
    { "--naive",           NULL,   TOOL_FLAG,    AT(naive),
      .help = "run all layers below from the start for every layer: slow, needs no memory for layer inputs" },
    { "--verbose",         "-v",   TOOL_FLAG,    AT(verbose), .help = "show llama.cpp's log" },
};

static int check(const struct sc_options * opt) {
    if (opt->statistics) {
        return -1;
    }
    if (!opt->model) {
        return fail("no model, expected -m FILE (--help shows all options)");
    }
    if (opt->files.n == 0) {
        return fail("no text, expected -f FILE (--help shows all options)");
    }
    if (opt->allocate.n > 0 && (opt->taus.n > 0 || opt->budget.share > 0.0 || opt->budget.bytes > 0)) {
        return fail("--allocate and %s: found both, expected points by budget or by floor", opt->taus.n > 0 ? "--tau" : "--budget");
    }
    if (opt->holdout_files.n > 0 && opt->n_holdout == 0) {
        return fail("--holdout-file without --holdout, expected how many sequences to take from it");
    }
    if (opt->html && strcmp(opt->html, opt->out) == 0) {
        return fail("--html and --output: found %s for both, expected two files", opt->out);
    }
    if (opt->work && (strcmp(opt->work, opt->out) == 0 || (opt->html && strcmp(opt->work, opt->html) == 0))) {
        return fail("--work: found %s, which is an output too, expected a file of its own", opt->work);
    }
    return -1;
}

static void set_defaults(struct sc_options * opt) {
    *opt = (struct sc_options) {
        .out = "policy.json", .sinks = 4, .n_seq = 1, .n_query = 256, .seed = 42, .type_k = HWKV_TYPE_F16, .type_v = HWKV_TYPE_F16,
        .n_ubatch = 512, .n_gpu_layers = -1,
    };
    opt->files.items         = opt->files_room;
    opt->holdout_files.items = opt->holdout_room;
}

int sc_options_read(struct sc_options * opt, int argc, char ** argv) {
    set_defaults(opt);
    struct tool_args line = {
        .usage = USAGE, .after = AFTER, .options = OPTIONS, .n_option = sizeof(OPTIONS)/sizeof(OPTIONS[0]), .column = 29, .target = opt,
    };
    if (tool_args_has(argc, argv, "--help", "-h")) {
        tool_args_help(&line, stdout);
        return tool_finish(TOOL_EXIT_OK);
    }
    if (tool_args_has(argc, argv, "--version", NULL)) {
        return tool_print_version();
    }
    struct hwkv_error err;
    const int res = tool_args_read(&line, argc, argv, &err);
    if (res != HWKV_OK) {
        return fail("%s%s", err.msg, res == HWKV_ERR_UNKNOWN_KEY ? " (--help shows all options)" : "");
    }
    if (strcmp(opt->out, "/dev/stdout") == 0) {
        opt->out = "-"; // redirected into a file it looks like one, which must not be renamed over
    }
    if (opt->taus.n == 0 && opt->allocate.n == 0) {
        opt->taus = (struct sc_taus) { { 0.995 }, 1 }; // the paper's
    }
    return check(opt);
}

int sc_options_settle(struct sc_options * opt, int32_t n_ctx_train) {
    struct sc_windows * windows = &opt->windows;

    if (opt->n_ctx == 0) {
        opt->n_ctx = n_ctx_train < 131072 ? n_ctx_train : 131072;
    }
    if (windows->n == 0) {
        for (int32_t part = 16; part >= 4; part /= 2) {
            windows->w[windows->n++] = opt->n_ctx/part;
        }
    }
    const int32_t largest = windows->w[windows->n - 1];
    if (largest >= opt->n_ctx) {
        return fail("--windows: found %d at a context of %d, expected windows below the context", largest, opt->n_ctx);
    }
    if (opt->sinks >= windows->w[0]) {
        return fail("--sinks: found %d with a window of %d, expected fewer than the smallest window", opt->sinks, windows->w[0]);
    }
    if (opt->n_ubatch > opt->n_ctx) {
        opt->n_ubatch = opt->n_ctx;
    }
    if (opt->n_thread == 0) {
        opt->n_thread = tool_n_processors();
    }
    return TOOL_EXIT_OK;
}
