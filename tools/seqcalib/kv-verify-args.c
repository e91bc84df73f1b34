// The options of llama-kv-verify, and how it says what is wrong.

#include "kv-verify.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const char VERIFY_HELP[] =
    "usage: llama-kv-verify -m MODEL -f TEXT --kv-policy FILE [options]\n"
    "\n"
    "Runs a text with the full cache and under a policy, side by side, and compares the\n"
    "logits of the last quarter of each chunk: perplexity, KL divergence to the full cache\n"
    "(nats per position: mean, 99%, largest) and how often the most likely token is the\n"
    "same. Use text that the policy was not calibrated on.\n"
    "\n"
    "  -m, --model FILE        GGUF model\n"
    "  -f, --file FILE         text in UTF-8; several: chunks are taken from them in turns\n"
    "  --kv-policy FILE        the policy\n"
    "  --kv-policy-point NAME|N\n"
    "                          operating point (default: the selected one)\n"
    "  --all-points            every operating point, each with a context of its own\n"
    "  -c, --ctx-size N        tokens of a chunk, at least 1024 and more than the largest\n"
    "                          window (default: the policy's context)\n"
    "  --n-seq N               chunks (default: up to 4)\n"
    "  --parse-special         the text contains control tokens, as a formatted chat does\n"
    "  -ctk, --cache-type-k T  of both caches (default: the policy's)\n"
    "  -ctv, --cache-type-v T  of both caches (default: the policy's)\n"
    "  -t, --threads N         (default: the processors of this machine)\n"
    "  -ub, --ubatch-size N    largest physical batch (default: 512)\n"
    "  -ngl, --gpu-layers N    layers on the GPU (default: llama.cpp's choice)\n"
    "  --json FILE             the result as JSON too; - is stdout, without the table\n"
    "  --json-progress         progress on stderr as one JSON object per line\n"
    "  -v, --verbose           show llama.cpp's log\n"
    "  --version               the version of this program\n"
    "\n"
    "Ctrl-C shows the result of the chunks that are finished.\n"
    "exit code: 0 ok, 1 failed, 2 wrong usage, 3 no such operating point, 130 stopped\n";

//
// messages
//

void print_text(FILE * out, const char * text) {
    for (; *text; text++) {
        const unsigned char c = (unsigned char) *text;
        fputc(c < 0x20 || c == 0x7F ? '?' : c, out);
    }
}

SC_PRINTF(3, 0)
static void say(const char * before, const char * after, const char * fmt, va_list args) {
    char line[1024];
    vsnprintf(line, sizeof(line), fmt, args);
    fprintf(stderr, "%s: %s", TOOL_NAME, before);
    print_text(stderr, line);
    fprintf(stderr, "%s\n", after);
}

int fail_usage(const char * command, const char * fmt, ...) {
    (void) command;
    va_list args;
    va_start(args, fmt);
    say("", " (see " TOOL_NAME " --help)", fmt, args);
    va_end(args);
    return EXIT_USAGE;
}

int fail_text(const char * fmt, ...) {
    va_list args;
    va_start(args, fmt);
    say("", "", fmt, args);
    va_end(args);
    return EXIT_FAIL;
}

void warn_text(const char * fmt, ...) {
    va_list args;
    va_start(args, fmt);
    say("warning: ", "", fmt, args);
    va_end(args);
}

int fail_file(const char * file, const struct hwkv_error * err) {
    char text[512];
    return fail_text("%s: %s", file, hwkv_error_format(err, text, sizeof(text)));
}

//
// options
//

// -f can be given several times, which the table of options does not know: takes its files out of argv.
static bool take_files(struct verify_args * args, int * argc, char ** argv) {
    int n = 0;
    for (int i = 0; i < *argc; i++) {
        const char * value = NULL;
        if (strcmp(argv[i], "-f") == 0 || strcmp(argv[i], "--file") == 0) {
            if (i + 1 == *argc) {
                fail_usage("", "%s needs a value", argv[i]);
                return false;
            }
            value = argv[++i];
        } else if (strncmp(argv[i], "--file=", 7) == 0) {
            value = argv[i] + 7;
        } else {
            argv[n++] = argv[i];
            continue;
        }
        if (value[0] == '\0') {
            fail_usage("", "-f: the value is empty");
            return false;
        }
        args->files[args->n_file++] = value;
    }
    *argc = n;
    return true;
}

static bool check_args(const struct verify_args * args) {
    const char * missing = !args->model ? "-m MODEL" : args->n_file == 0 ? "-f TEXT" : !args->policy ? "--kv-policy FILE" : NULL;
    if (missing) {
        fail_usage("", "found no %s, expected -m MODEL -f TEXT --kv-policy FILE", missing);
        return false;
    }
    if (args->all_points && args->point) {
        fail_usage("", "found both --kv-policy-point and --all-points, expected one of them");
        return false;
    }
    return true;
}

bool verify_read_args(struct verify_args * args, int argc, char ** argv) {
    const long n_cpu = sysconf(_SC_NPROCESSORS_ONLN);
    *args = (struct verify_args) {
        .n_threads    = n_cpu > 0 ? n_cpu : 1,
        .n_ubatch     = 512,
        .n_gpu_layers = -1,
        .type_k       = -1,
        .type_v       = -1,
    };
    const struct opt opts[] = {
        { "-m",                "--model",        OPT_STRING, &args->model,         0,              0        },
        { "--kv-policy",       NULL,             OPT_STRING, &args->policy,        0,              0        },
        { "--kv-policy-point", NULL,             OPT_STRING, &args->point,         0,              0        },
        { "--all-points",      NULL,             OPT_FLAG,   &args->all_points,    0,              0        },
        { "-c",                "--ctx-size",     OPT_INT,    &args->n_ctx,         VERIFY_MIN_CTX, 1 << 24  },
        { "--n-seq",           NULL,             OPT_INT,    &args->n_seq,         1,              1 << 16  },
        { "--parse-special",   NULL,             OPT_FLAG,   &args->parse_special, 0,              0        },
        { "-ctk",              "--cache-type-k", OPT_TYPE,   &args->type_k,        0,              0        },
        { "-ctv",              "--cache-type-v", OPT_TYPE,   &args->type_v,        0,              0        },
        { "-t",                "--threads",      OPT_INT,    &args->n_threads,     1,              512      },
        { "-ub",               "--ubatch-size",  OPT_INT,    &args->n_ubatch,      1,              1 << 16  },
        { "-ngl",              "--gpu-layers",   OPT_INT,    &args->n_gpu_layers,  0,              1 << 16  },
        { "--json",            NULL,             OPT_STRING, &args->json,          0,              0        },
        { "--json-progress",   NULL,             OPT_FLAG,   &args->json_progress, 0,              0        },
        { "-v",                "--verbose",      OPT_FLAG,   &args->verbose,       0,              0        },
    };
    struct opt_set set = { "", opts, sizeof(opts) / sizeof(opts[0]), NULL, 0, 0 };

    args->files = calloc((size_t) argc + 1, sizeof(*args->files));
    if (!args->files) {
        fail_text("out of memory");
        return false;
    }
    return take_files(args, &argc, argv) && args_read(&set, argc, argv) && check_args(args);
}
