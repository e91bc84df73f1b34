#include "seqcalib-options.h"

#include "tool-llama.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define SEED_MAX (INT64_C(1) << 53) // what a policy file can hold

static const char USAGE[] =
    "usage: llama-seqcalib -m MODEL -f TEXT [options]\n"
    "\n"
    "Finds out, layer by layer, how much history every KV head of a model needs, and writes a policy for --kv-policy.\n"
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

static int read_budget(void * target, const char * text, struct hwkv_error * err) {
    struct sc_budget * budget = target;
    const size_t       n      = strspn(text, "0123456789.");
    const char       * unit   = text + n;
    const double       size   = strcmp(unit, "KiB") == 0 ? 1024.0 : strcmp(unit, "MiB") == 0 ? 1048576.0 : strcmp(unit, "GiB") == 0 ? 1073741824.0 : 0.0;

    char   number[64];
    double value = 0.0;
    snprintf(number, sizeof(number), "%.*s", (int) (n < sizeof(number) ? n : sizeof(number) - 1), text);

    *budget = (struct sc_budget) { 0 };
    if (tool_parse_number(number, &value) && value > 0.0) {
        if (*unit == '\0' && value <= 1.0) {
            budget->share = value;
            return HWKV_OK;
        }
        if (size > 0.0 && value*size < 1e18) {
            budget->bytes = (uint64_t) (value*size);
            return HWKV_OK;
        }
    }
    return hwkv_fail(err, HWKV_ERR_ARG, NULL, "found '%s', expected a share above 0 and at most 1, or bytes such as 512MiB or 2GiB", text);
}

//
// options
//

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
        .out = "policy.json", .sinks = 4, .taus = { { 0.995 }, 1 }, .n_seq = 1, .n_query = 256, .seed = 42, .type_k = HWKV_TYPE_F16, .type_v = HWKV_TYPE_F16,
        .n_ubatch = 512, .n_gpu_layers = -1,
    };
    opt->files.items         = opt->files_room;
    opt->holdout_files.items = opt->holdout_room;
}

static int read_line(struct sc_options * o, struct tool_args * line, int argc, char ** argv) {
    struct hwkv_error err;

    if (tool_args_has(argc, argv, "--help", "-h")) {
        tool_args_help(line, stdout);
        return tool_finish(TOOL_EXIT_OK);
    }
    if (tool_args_has(argc, argv, "--version", NULL)) {
        return tool_print_version();
    }
    const int res = tool_args_read(line, argc, argv, &err);
    if (res != HWKV_OK) {
        return fail("%s%s", err.msg, res == HWKV_ERR_UNKNOWN_KEY ? " (--help shows all options)" : "");
    }
    if (strcmp(o->out, "/dev/stdout") == 0) {
        o->out = "-"; // redirected into a file it looks like one, which must not be renamed over
    }
    return check(o);
}

int sc_options_read(struct sc_options * o, int argc, char ** argv) {
    set_defaults(o);

    const struct tool_option options[] = {
        { .help = "input" },
        { "--model",           "-m",   TOOL_STRING,  &o->model,         0, 0, "FILE", "the model, a GGUF file", NULL },
        { "--file",            "-f",   TOOL_STRINGS, &o->files,         0, SC_FILE_MAX, "FILE", "text to calibrate on; may be given several times", NULL },
        { "--parse-special",   NULL,   TOOL_FLAG,    &o->parse_special, 0, 0, NULL,   "the text contains control tokens (a formatted chat)", NULL },
        { "--n-seq",           NULL,   TOOL_INT,     &o->n_seq,         1, 4096, "N", "sequences, contiguous and disjoint pieces of the text (default: 1)", NULL },
        { "--ctx-size",        "-c",   TOOL_INT,     &o->n_ctx,         64, 1 << 28, "N", "tokens of a sequence (default: the model's own context, at most 131072)", NULL },
        { .help = "what to choose" },
        { "--windows",         NULL,   TOOL_OTHER,   &o->windows,       0, 0, "LIST", "candidate windows, ascending (default: 1/16, 1/8 and 1/4 of the context); full is always one", read_windows },
        { "--sinks",           NULL,   TOOL_INT,     &o->sinks,         0, HWKV_SINKS_MAX, "N", "first positions that every window keeps; they count in it (default: 4; 0: the paper's setting)", NULL },
        { "--tau",             NULL,   TOOL_OTHER,   &o->taus,          0, 0, "LIST", "similarity floors; each becomes an operating point of the policy (default: 0.995)", read_taus },
        { "--budget",          NULL,   TOOL_OTHER,   &o->budget,        0, 0, "B",    "select the best point within B: a share of the full cache such as 0.7, or bytes such as\n"
                                                                                      "512MiB or 2GiB as allocated at this context. Exit code 3 if none fits; the file is still\n"
                                                                                      "written. Without it the first floor of the list is selected", read_budget },
        { "--per-layer",       NULL,   TOOL_FLAG,    &o->per_layer,     0, 0, NULL,   "one window for all KV heads of a layer, by the mean of their scores: to compare with", NULL },
        { "--n-query",         NULL,   TOOL_INT,     &o->n_query,       1, 1 << 24, "N", "query positions scored in each sequence, from its last quarter (default: 256)", NULL },
        { "--seed",            NULL,   TOOL_INT64,   &o->seed,          0, SEED_MAX, "N", "of the query positions (default: 42)", NULL },
        { .help = "check on text the calibration has not seen" },
        { "--holdout",         NULL,   TOOL_INT,     &o->n_holdout,     1, 4096, "N", "N more pieces, and one formatted as a chat if the model has a template; the results go into\n"
                                                                                      "the policy as `validation`", NULL },
        { "--holdout-file",    NULL,   TOOL_STRINGS, &o->holdout_files, 0, SC_FILE_MAX, "FILE", "take them from this text instead of the rest of the other; may be given several times", NULL },
        { .help = "output" },
        { "--output",          "-o",   TOOL_STRING,  &o->out,           0, 0, "FILE", "the policy, - for stdout (default: policy.json)", NULL },
        { "--force",           NULL,   TOOL_FLAG,    &o->force,         0, 0, NULL,   "overwrite it if it is there already", NULL },
        { "--html",            NULL,   TOOL_STRING,  &o->html,          0, 0, "FILE", "a page to look at it", NULL },
        { "--resume",          NULL,   TOOL_FLAG,    &o->resume,        0, 0, NULL,   "go on where a run with the same arguments was interrupted", NULL },
        { "--work",            NULL,   TOOL_STRING,  &o->work,          0, 0, "FILE", "where progress is kept for that (default: the output with .work added)", NULL },
        { "--json-progress",   NULL,   TOOL_FLAG,    &o->json_progress, 0, 0, NULL,   "progress on stderr as JSON, one object a line", NULL },
        { "--dry-run",         NULL,   TOOL_FLAG,    &o->dry_run,       0, 0, NULL,   "only estimate time and memory", NULL },
        { "--show-statistics", NULL,   TOOL_STRING,  &o->statistics,    0, 0, "FILE", "print what is in a policy and exit", NULL },
        { .help = "how to run" },
        { "--cache-type-k",    "-ctk", TOOL_TYPE,    &o->type_k,        0, 0, "TYPE", "cache type for K (default: f16)", NULL },
        { "--cache-type-v",    "-ctv", TOOL_TYPE,    &o->type_v,        0, 0, "TYPE", "cache type for V (default: f16)", NULL },
        { "--threads",         "-t",   TOOL_INT,     &o->n_thread,      1, 512, "N",  "(default: number of cores)", NULL },
        { "--ubatch-size",     "-ub",  TOOL_INT,     &o->n_ubatch,      1, 1 << 16, "N", "tokens computed at once (default: 512)", NULL },
        { "--n-gpu-layers",    "-ngl", TOOL_INT,     &o->n_gpu_layers,  0, 1 << 16, "N", "layers on the GPU (default: as many as fit)", NULL },
        { "--naive",           NULL,   TOOL_FLAG,    &o->naive,         0, 0, NULL,   "run all layers below from the start for every layer: slow, needs no memory for layer inputs", NULL },
        { "--verbose",         "-v",   TOOL_FLAG,    &o->verbose,       0, 0, NULL,   "show llama.cpp's log", NULL },
    };
    struct tool_args line = { .usage = USAGE, .after = AFTER, .options = options, .n_option = sizeof(options)/sizeof(options[0]), .column = 29 };
    return read_line(o, &line, argc - 1, argv + 1);
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
