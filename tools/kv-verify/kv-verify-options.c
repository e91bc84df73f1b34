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
    const struct tool_option options[] = {
        { "-m",                "--model",        TOOL_STRING,  &a->model,         0, 0, "FILE",   "GGUF model", NULL },
        { "-f",                "--file",         TOOL_STRINGS, &a->files,         0, argc, "FILE", "text in UTF-8; several: chunks are taken from them in turns", NULL },
        { "--kv-policy",       NULL,             TOOL_STRING,  &a->policy,        0, 0, "FILE",   "the policy", NULL },
        { "--kv-policy-point", NULL,             TOOL_STRING,  &a->point,         0, 0, "NAME|N", "operating point (default: the selected one)", NULL },
        { "--all-points",      NULL,             TOOL_FLAG,    &a->all_points,    0, 0, NULL,     "every operating point, each with a context of its own", NULL },
        { "-c",                "--ctx-size",     TOOL_INT,     &a->n_ctx,         KVV_MIN_CTX, 1 << 24, "N", "tokens of a chunk, at least 1024 and more than the largest\n"
                                                                                                            "window (default: the policy's context)", NULL },
        { "--n-seq",           NULL,             TOOL_INT,     &a->n_seq,         1, 1 << 16, "N", "chunks (default: up to 4)", NULL },
        { "--parse-special",   NULL,             TOOL_FLAG,    &a->parse_special, 0, 0, NULL,     "the text contains control tokens, as a formatted chat does", NULL },
        { "-ctk",              "--cache-type-k", TOOL_TYPE,    &a->type_k,        0, 0, "T",      "of both caches (default: the policy's)", NULL },
        { "-ctv",              "--cache-type-v", TOOL_TYPE,    &a->type_v,        0, 0, "T",      "of both caches (default: the policy's)", NULL },
        { "-t",                "--threads",      TOOL_INT,     &a->n_threads,     1, 512, "N",    "(default: the processors of this machine)", NULL },
        { "-ub",               "--ubatch-size",  TOOL_INT,     &a->n_ubatch,      1, 1 << 16, "N", "largest physical batch (default: 512)", NULL },
        { "-ngl",              "--gpu-layers",   TOOL_INT,     &a->n_gpu_layers,  0, 1 << 16, "N", "layers on the GPU (default: llama.cpp's choice)", NULL },
        { "--json",            NULL,             TOOL_STRING,  &a->json,          0, 0, "FILE",   "the result as JSON too; - is stdout, without the table", NULL },
        { "--json-progress",   NULL,             TOOL_FLAG,    &a->json_progress, 0, 0, NULL,     "progress on stderr as one JSON object per line", NULL },
        { "-v",                "--verbose",      TOOL_FLAG,    &a->verbose,       0, 0, NULL,     "show llama.cpp's log", NULL },
    };
    struct tool_args line = { .usage = USAGE, .after = AFTER, .options = options, .n_option = sizeof(options) / sizeof(options[0]), .column = 26 };

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
