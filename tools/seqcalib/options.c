#include "options.h"

#include "hwkv-version.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define TOOL "llama-seqcalib"

static const char HELP[] =
    "usage: " TOOL " -m MODEL -f TEXT [options]\n"
    "\n"
    "Finds out, layer by layer, how much history every KV head of a model needs, and writes a policy for --kv-policy.\n"
    "\n"
    "  " TOOL " -m model.gguf -f text.txt -c 8192 --windows 256,512,1024,2048,4096 --tau 0.99,0.995 -o policy.json\n"
    "\n"
    "input\n"
    "  -m,   --model FILE         the model, a GGUF file\n"
    "  -f,   --file FILE          text to calibrate on; may be given several times\n"
    "        --parse-special      the text contains control tokens (a formatted chat)\n"
    "        --n-seq N            sequences, contiguous and disjoint pieces of the text (default: 1)\n"
    "  -c,   --ctx-size N         tokens of a sequence (default: the model's own context, at most 131072)\n"
    "\n"
    "what to choose\n"
    "        --windows LIST       candidate windows, ascending (default: 1/16, 1/8 and 1/4 of the context); full is always one\n"
    "        --sinks N            first positions that every window keeps; they count in it (default: 4; 0: the paper's setting)\n"
    "        --tau LIST           similarity floors; each becomes an operating point of the policy (default: 0.995)\n"
    "        --budget B           select the best point within B: a share of the full cache such as 0.7, or bytes such as\n"
    "                             512MiB or 2GiB as allocated at this context. Exit code 3 if none fits; the file is still\n"
    "                             written. Without it the first floor of the list is selected\n"
    "        --per-layer          one window for all KV heads of a layer, by the mean of their scores: to compare with\n"
    "        --n-query N          query positions scored in each sequence, from its last quarter (default: 256)\n"
    "        --seed N             of the query positions (default: 42)\n"
    "\n"
    "check on text the calibration has not seen\n"
    "        --holdout N          N more pieces, and one formatted as a chat if the model has a template; the results go into\n"
    "                             the policy as `validation`\n"
    "        --holdout-file FILE  take them from this text instead of the rest of the other; may be given several times\n"
    "\n"
    "output\n"
    "  -o,   --output FILE        the policy, - for stdout (default: policy.json)\n"
    "        --force              overwrite it if it is there already\n"
    "        --html FILE          a page to look at it\n"
    "        --resume             go on where a run with the same arguments was interrupted\n"
    "        --work FILE          where progress is kept for that (default: the output with .work added)\n"
    "        --json-progress      progress on stderr as JSON, one object a line\n"
    "        --dry-run            only estimate time and memory\n"
    "        --show-statistics FILE   print what is in a policy and exit\n"
    "\n"
    "how to run\n"
    "  -ctk, --cache-type-k TYPE  cache type for K (default: f16)\n"
    "  -ctv, --cache-type-v TYPE  cache type for V (default: f16)\n"
    "  -t,   --threads N          (default: number of cores)\n"
    "  -ub,  --ubatch-size N      tokens computed at once (default: 512)\n"
    "  -ngl, --n-gpu-layers N     layers on the GPU (default: as many as fit)\n"
    "        --naive              run all layers below from the start for every layer: slow, needs no memory for layer inputs\n"
    "  -v,   --verbose            show llama.cpp's log\n"
    "        --version\n"
    "  -h,   --help\n";

static bool g_json; // from the command line, and so for the whole run

static void say(const char * kind, const char * fmt, va_list args) {
    char line[1024];
    vsnprintf(line, sizeof(line), fmt, args);
    if (g_json) {
        fprintf(stderr, "{\"%s\": ", kind);
        sc_json_string(stderr, line);
        fputs("}\n", stderr);
    } else {
        fprintf(stderr, "%s: %s%s\n", TOOL, strcmp(kind, "warning") == 0 ? "warning: " : "", line);
    }
}

void sc_say(const char * kind, const char * fmt, ...) {
    va_list args;
    va_start(args, fmt);
    say(kind, fmt, args);
    va_end(args);
}

static int fail(const char * fmt, ...) SC_PRINTF(1, 2);

static int fail(const char * fmt, ...) {
    va_list args;
    va_start(args, fmt);
    say("error", fmt, args);
    va_end(args);
    return SC_EXIT_USAGE;
}

static bool read_int(const char * text, int64_t min, int64_t max, int64_t * out) {
    if (text[0] == '\0' || strspn(text, "0123456789") != strlen(text)) {
        return false;
    }
    errno = 0;
    *out = strtoll(text, NULL, 10);
    return errno == 0 && *out >= min && *out <= max;
}

// A number that ends at *end.
static bool read_number(const char * text, double * out, char ** end) {
    if (strspn(text, "0123456789.") == 0) {
        return false;
    }
    *out = strtod(text, end);
    return *end != text && isfinite(*out);
}

static int read_windows(struct sc_options * opt, const char * list) {
    opt->n_window = 0;
    for (const char * at = list;; at++) {
        char word[16];
        const size_t n = strcspn(at, ",");
        int64_t w;
        snprintf(word, sizeof(word), "%.*s", (int) (n < sizeof(word) ? n : sizeof(word) - 1), at);
        if (n >= sizeof(word) || !read_int(word, 1, INT32_MAX - 1, &w)) {
            return fail("--windows: found '%s', expected whole numbers separated by commas", list);
        }
        if (opt->n_window > 0 && w <= opt->windows[opt->n_window - 1]) {
            return fail("--windows: found %s after %d, expected ascending windows", word, opt->windows[opt->n_window - 1]);
        }
        if (opt->n_window == HWKV_CODE_MAX - 1) {
            return fail("--windows: found more than %d windows", HWKV_CODE_MAX - 1);
        }
        opt->windows[opt->n_window++] = (int32_t) w;
        at += n;
        if (*at == '\0') {
            return SC_EXIT_OK;
        }
    }
}

const char * sc_tau_name(double tau, char buf[SC_TAU_NAME]) {
    snprintf(buf, SC_TAU_NAME, "%.12g", tau);
    return buf;
}

static int read_taus(struct sc_options * opt, const char * list) {
    opt->n_tau = 0;
    for (const char * at = list;; at++) {
        double tau;
        char * end;
        if (!read_number(at, &tau, &end) || (*end != ',' && *end != '\0') || !(tau > 0.0 && tau <= 1.0)) {
            return fail("--tau: found '%s', expected numbers above 0 and at most 1, separated by commas", list);
        }
        for (int32_t i = 0; i < opt->n_tau; i++) {
            // they give the points their names
            char name[2][SC_TAU_NAME];
            if (strcmp(sc_tau_name(opt->tau[i], name[0]), sc_tau_name(tau, name[1])) == 0) {
                return fail("--tau: found %s twice", name[1]);
            }
        }
        if (opt->n_tau == SC_TAU_MAX) {
            return fail("--tau: found more than %d floors", SC_TAU_MAX);
        }
        opt->tau[opt->n_tau++] = tau;
        at = end;
        if (*at == '\0') {
            return SC_EXIT_OK;
        }
    }
}

static int read_budget(struct sc_options * opt, const char * text) {
    double value;
    char * end;
    opt->budget       = 0.0;
    opt->budget_bytes = 0;

    if (read_number(text, &value, &end) && value > 0.0) {
        const double unit = strcmp(end, "KiB") == 0 ? 1024.0 : strcmp(end, "MiB") == 0 ? 1048576.0 : strcmp(end, "GiB") == 0 ? 1073741824.0 : 0.0;
        if (*end == '\0' && value <= 1.0) {
            opt->budget = value;
            return SC_EXIT_OK;
        }
        if (unit > 0.0 && value*unit < 1e18) {
            opt->budget_bytes = (uint64_t) (value*unit);
            return SC_EXIT_OK;
        }
    }
    return fail("--budget: found '%s', expected a share above 0 and at most 1, or bytes such as 512MiB or 2GiB", text);
}

static int read_type(const char * name, const char * text, enum hwkv_type * out) {
    const int type = hwkv_type_from_name(text);
    if (type < 0) {
        return fail("%s: found '%s', expected f32, f16, bf16, q8_0, q4_0, q4_1, q5_0, q5_1 or iq4_nl", name, text);
    }
    *out = (enum hwkv_type) type;
    return SC_EXIT_OK;
}

static int add_file(const char * name, const char * text, const char ** files, int32_t * n) {
    if (*n == SC_FILE_MAX) {
        return fail("%s: found more than %d files", name, SC_FILE_MAX);
    }
    files[(*n)++] = text;
    return SC_EXIT_OK;
}

struct int_option {
    const char * name;
    const char * alias;
    int32_t    * value;
    int64_t      min;
    int64_t      max;
};

struct flag_option {
    const char * name;
    const char * alias;
    bool       * value;
};

struct text_option {
    const char  * name;
    const char  * alias;
    const char ** value;
};

static bool is(const char * arg, const char * name, const char * alias) {
    return strcmp(arg, name) == 0 || (alias && strcmp(arg, alias) == 0);
}

#define COUNT(a) (sizeof(a)/sizeof((a)[0]))

static bool read_flag(struct sc_options * opt, const char * arg) {
    const struct flag_option flags[] = {
        { "--parse-special", NULL, &opt->parse_special },
        { "--naive",         NULL, &opt->naive         },
        { "--per-layer",     NULL, &opt->per_layer     },
        { "--force",         NULL, &opt->force         },
        { "--resume",        NULL, &opt->resume        },
        { "--json-progress", NULL, &opt->json_progress },
        { "--dry-run",       NULL, &opt->dry_run       },
        { "--verbose",       "-v", &opt->verbose       },
    };
    for (size_t i = 0; i < COUNT(flags); i++) {
        if (is(arg, flags[i].name, flags[i].alias)) {
            *flags[i].value = true;
            return true;
        }
    }
    return false;
}

// -1: no option of this name
static int read_plain(struct sc_options * opt, const char * arg, const char * value) {
    const struct int_option ints[] = {
        { "--ctx-size",     "-c",   &opt->n_ctx,        64, 1 << 28   },
        { "--sinks",        NULL,   &opt->sinks,        0,  HWKV_SINKS_MAX },
        { "--n-seq",        NULL,   &opt->n_seq,        1,  4096      },
        { "--n-query",      NULL,   &opt->n_query,      1,  1 << 24   },
        { "--holdout",      NULL,   &opt->n_holdout,    1,  4096      },
        { "--threads",      "-t",   &opt->n_thread,     1,  512       },
        { "--ubatch-size",  "-ub",  &opt->n_ubatch,     1,  1 << 16   },
        { "--n-gpu-layers", "-ngl", &opt->n_gpu_layers, 0,  1 << 16   },
    };
    const struct text_option texts[] = {
        { "--model",           "-m", &opt->model      },
        { "--output",          "-o", &opt->out        },
        { "--work",            NULL, &opt->work       },
        { "--html",            NULL, &opt->html       },
        { "--show-statistics", NULL, &opt->statistics },
    };

    for (size_t i = 0; i < COUNT(ints); i++) {
        if (is(arg, ints[i].name, ints[i].alias)) {
            int64_t n;
            if (value && !read_int(value, ints[i].min, ints[i].max, &n)) {
                return fail("%s: found '%s', expected a whole number from %lld to %lld", ints[i].name, value, (long long) ints[i].min, (long long) ints[i].max);
            }
            *ints[i].value = value ? (int32_t) n : 0;
            return SC_EXIT_OK;
        }
    }
    for (size_t i = 0; i < COUNT(texts); i++) {
        if (is(arg, texts[i].name, texts[i].alias)) {
            *texts[i].value = value;
            return SC_EXIT_OK;
        }
    }
    return -1;
}

// value may be NULL: then only the name is of interest. -1: no option of this name.
static int read_option(struct sc_options * opt, const char * arg, const char * value) {
    const char * text = value ? value : "";
    if (value && value[0] == '\0') {
        return fail("%s: the value is empty", arg);
    }
    if (is(arg, "--file", "-f")) {
        return add_file("--file", text, opt->files, &opt->n_file);
    }
    if (is(arg, "--holdout-file", NULL)) {
        return add_file("--holdout-file", text, opt->holdout_files, &opt->n_holdout_file);
    }
    if (is(arg, "--windows", NULL)) {
        return value ? read_windows(opt, text) : SC_EXIT_OK;
    }
    if (is(arg, "--tau", NULL)) {
        return value ? read_taus(opt, text) : SC_EXIT_OK;
    }
    if (is(arg, "--budget", NULL)) {
        return value ? read_budget(opt, text) : SC_EXIT_OK;
    }
    if (is(arg, "--cache-type-k", "-ctk")) {
        return value ? read_type("--cache-type-k", text, &opt->type_k) : SC_EXIT_OK;
    }
    if (is(arg, "--cache-type-v", "-ctv")) {
        return value ? read_type("--cache-type-v", text, &opt->type_v) : SC_EXIT_OK;
    }
    if (is(arg, "--seed", NULL)) {
        int64_t seed = 0;
        if (value && !read_int(value, 0, INT64_MAX, &seed)) {
            return fail("--seed: found '%s', expected a whole number", value);
        }
        opt->seed = (uint64_t) seed;
        return SC_EXIT_OK;
    }
    return read_plain(opt, arg, value);
}

static int check(const struct sc_options * opt) {
    if (opt->statistics) {
        return SC_EXIT_OK;
    }
    if (!opt->model) {
        return fail("no model, expected -m FILE (--help shows all options)");
    }
    if (opt->n_file == 0) {
        return fail("no text, expected -f FILE (--help shows all options)");
    }
    if (opt->n_holdout_file > 0 && opt->n_holdout == 0) {
        return fail("--holdout-file without --holdout, expected how many sequences to take from it");
    }
    if (opt->html && strcmp(opt->html, opt->out) == 0) {
        return fail("--html and --output: found %s for both, expected two files", opt->out);
    }
    if (opt->work && (strcmp(opt->work, opt->out) == 0 || (opt->html && strcmp(opt->work, opt->html) == 0))) {
        return fail("--work: found %s, which is an output too, expected a file of its own", opt->work);
    }
    return SC_EXIT_OK;
}

int sc_options_read(struct sc_options * opt, int argc, char ** argv) {
    *opt = (struct sc_options) {
        .out = "policy.json", .sinks = 4, .tau = { 0.995 }, .n_tau = 1, .n_seq = 1, .n_query = 256, .seed = 42,
        .type_k = HWKV_TYPE_F16, .type_v = HWKV_TYPE_F16, .n_ubatch = 512, .n_gpu_layers = -1,
    };

    for (int i = 1; i < argc; i++) {
        g_json = g_json || is(argv[i], "--json-progress", NULL);
        if (is(argv[i], "--help", "-h")) {
            fputs(HELP, stdout);
            return -1;
        }
        if (is(argv[i], "--version", NULL)) {
            printf("%s: %s\n", TOOL, hwkv_version_line());
            return -1;
        }
    }
    for (int i = 1; i < argc; i++) {
        if (read_flag(opt, argv[i])) {
            continue;
        }
        struct sc_options probe = *opt;
        if (argv[i][0] != '-' || read_option(&probe, argv[i], NULL) == -1) {
            return fail("unknown argument '%s' (--help shows all options)", argv[i]);
        }
        if (i + 1 >= argc) {
            return fail("%s needs a value", argv[i]);
        }
        const int status = read_option(opt, argv[i], argv[i + 1]);
        if (status != SC_EXIT_OK) {
            return status;
        }
        i++;
    }
    if (strcmp(opt->out, "/dev/stdout") == 0) {
        opt->out = "-"; // redirected into a file it looks like one, which must not be renamed over
    }
    return check(opt);
}

int sc_options_settle(struct sc_options * opt, int32_t n_ctx_train) {
    if (opt->n_ctx == 0) {
        opt->n_ctx = n_ctx_train < 131072 ? n_ctx_train : 131072;
    }
    if (opt->n_window == 0) {
        for (int32_t part = 16; part >= 4; part /= 2) {
            opt->windows[opt->n_window++] = opt->n_ctx/part;
        }
    }
    const int32_t largest = opt->windows[opt->n_window - 1];
    if (largest >= opt->n_ctx) {
        return fail("--windows: found %d at a context of %d, expected windows below the context", largest, opt->n_ctx);
    }
    if (opt->sinks >= opt->windows[0]) {
        return fail("--sinks: found %d with a window of %d, expected fewer than the smallest window", opt->sinks, opt->windows[0]);
    }
    if (opt->n_ubatch > opt->n_ctx) {
        opt->n_ubatch = opt->n_ctx;
    }
    if (opt->n_thread == 0) {
        const long n = sysconf(_SC_NPROCESSORS_ONLN);
        opt->n_thread = n > 0 ? (int32_t) n : 1;
    }
    return SC_EXIT_OK;
}
