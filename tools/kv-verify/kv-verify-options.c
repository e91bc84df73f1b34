// The options of llama-kv-verify.

#include "kv-verify.h"

#include "tool-llama.h"

#include <stdlib.h>

static const char USAGE[] =
    "usage: llama-kv-verify -m MODEL -f TEXT --kv-policy FILE [options]\n"
    "\n"
    "Runs a text with the full cache and under a policy, side by side, and compares the\n"
    "logits of the last quarter of each chunk: perplexity, KL divergence to the full cache\n"
    "(nats per position: mean, 99%, largest) and how often the most likely token is the\n"
    "same. Use text that the policy was not calibrated on.\n"
    "\n";

static const char AFTER[] =
    "  --version               the version of this program\n"
    "\n"
    "Ctrl-C shows the result of the chunks that are finished.\n"
    "exit code: 0 ok, 1 failed, 2 wrong usage, 3 no such operating point, 130 stopped\n";

#define AT(member) offsetof(struct kvv_args, member)

static const struct tool_option OPTIONS[] = {
    { "-m",                "--model",        TOOL_STRING,  AT(model), .value = "FILE", .help = "GGUF model" },
    { "-f",                "--file",         TOOL_STRINGS, AT(files), 0, INT32_MAX, .value = "FILE",
      .help = "text in UTF-8; several: chunks are taken from them in turns" },
    { "--kv-policy",       NULL,             TOOL_STRING,  AT(policy), .value = "FILE", .help = "the policy" },
    { "--kv-policy-point", NULL,             TOOL_STRING,  AT(point), .value = "NAME|N",
      .help = "operating point (default: the selected one)" },
    { "--all-points",      NULL,             TOOL_FLAG,    AT(all_points),
      .help = "every operating point, each with a context of its own" },
    { "-c",                "--ctx-size",     TOOL_INT,     AT(n_ctx), KVV_MIN_CTX, 1 << 24, .value = "N",
      .help = "tokens of a chunk, at least 1024 and more than the largest\n"
              "window (default: the policy's context)" },
    { "--n-seq",           NULL,             TOOL_INT,     AT(n_seq), 1, 1 << 16, .value = "N", .help = "chunks (default: up to 4)" },
    { "--parse-special",   NULL,             TOOL_FLAG,    AT(parse_special),
      .help = "the text contains control tokens, as a formatted chat does" },
    { "-ctk",              "--cache-type-k", TOOL_TYPE,    AT(type_k), .value = "T",
      .help = "of both caches (default: the policy's; not where its entries have\ntypes of their own)" },
    { "-ctv",              "--cache-type-v", TOOL_TYPE,    AT(type_v), .value = "T", .help = "the same for V" },
    { "-t",                "--threads",      TOOL_INT,     AT(n_threads), 1, 512, .value = "N",
      .help = "(default: the processors of this machine)" },
    { "-ub",               "--ubatch-size",  TOOL_INT,     AT(n_ubatch), 1, 1 << 16, .value = "N",
      .help = "largest physical batch (default: 512)" },
    { "-ngl",              "--gpu-layers",   TOOL_INT,     AT(n_gpu_layers), 0, 1 << 16, .value = "N",
      .help = "layers on the GPU (default: llama.cpp's choice)" },
    { "--json",            NULL,             TOOL_STRING,  AT(json), .value = "FILE",
      .help = "the result as JSON too; - is stdout, without the table" },
    { "--json-progress",   NULL,             TOOL_FLAG,    AT(json_progress),
      .help = "progress on stderr as one JSON object per line" },
    { "-v",                "--verbose",      TOOL_FLAG,    AT(verbose), .help = "show llama.cpp's log" },
};

static int check_args(const struct kvv_args * args) {
    const char * missing = !args->model ? "-m MODEL" : args->files.n == 0 ? "-f TEXT" : !args->policy ? "--kv-policy FILE" : NULL;
    if (missing) {
        return tool_usage("", "found no %s, expected -m MODEL -f TEXT --kv-policy FILE", missing);
    }
    if (args->all_points && args->point) {
        return tool_usage("", "found both --kv-policy-point and --all-points, expected one of them");
    }
    return -1;
}

int kvv_read_args(struct kvv_args * a, int argc, char ** argv) {
    *a = (struct kvv_args) {
        .n_threads = tool_n_processors(), .n_ubatch = 512, .n_gpu_layers = -1, .type_k = HWKV_TYPE_CACHE, .type_v = HWKV_TYPE_CACHE,
    };
    struct tool_args line = {
        .usage = USAGE, .after = AFTER, .options = OPTIONS, .n_option = sizeof(OPTIONS) / sizeof(OPTIONS[0]), .column = 26, .target = a,
    };

    if (tool_args_has(argc, argv, "--help", "-h")) {
        tool_args_help(&line, stdout);
        return tool_finish(TOOL_EXIT_OK);
    }
    if (tool_args_has(argc, argv, "--version", NULL)) {
        return tool_print_version();
    }
    a->files.items = calloc((size_t) argc + 1, sizeof(*a->files.items));
    if (!a->files.items) {
        return tool_fail("out of memory");
    }
    struct hwkv_error err;
    return tool_args_read(&line, argc, argv, &err) == HWKV_OK ? check_args(a) : tool_usage("", "%s", err.msg);
}
