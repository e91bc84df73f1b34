// Shared by the files of llama-kv-verify.

#ifndef KV_VERIFY_H
#define KV_VERIFY_H

#include "tool-args.h"
#include "tool-compare.h"
#include "tool-say.h"

#define KVV_MIN_CTX 1024

struct kvv_args {
    const char        * model;
    const char        * policy;
    const char        * point;
    const char        * json;
    struct tool_strings files;
    int32_t             n_ctx;        // 0: the policy's
    int32_t             n_seq;        // 0: up to 4
    int32_t             n_threads;
    int32_t             n_ubatch;
    int32_t             n_gpu_layers; // -1: llama.cpp's choice
    enum hwkv_type      type_k;       // HWKV_TYPE_CACHE: the policy's
    enum hwkv_type      type_v;
    bool                all_points;
    bool                parse_special;
    bool                json_progress;
    bool                verbose;
};

// One operating point that is compared.
struct kvv_point {
    const struct hwkv_point * point;
    double                    retention; // R_C at the context of this run
    uint64_t                  bytes;     // allocated
    struct llama_context    * ctx;
};

struct kvv_run {
    const struct kvv_args * args;
    struct hwkv_policy       * policy;
    struct llama_model       * model;
    struct tool_text             text;
    llama_token              * tokens;     // [n_seq][n_ctx]
    int32_t                    n_ctx;
    int32_t                    n_seq;
    enum hwkv_type             type_k;
    enum hwkv_type             type_v;

    struct tool_progress       * progress;
    double                     loaded;     // share of the model

    struct llama_context     * ctx_full;
    uint64_t                   bytes_full;
    struct kvv_point      * points;     // [n_point]
    struct tool_compare_result  * results;    // [n_point]
    int32_t                    n_point;
    bool                       complete;   // not stopped before its end

};

// kv-verify-options.c

// -1 to go on, else the exit code: help or version are on stdout, or a line about a mistake on stderr. args->files is allocated.
int kvv_read_args(struct kvv_args * args, int argc, char ** argv);

// kv-verify-print.c

void kvv_print_table(FILE * out, const struct kvv_run * verify);

// The result as JSON, NULL when memory is out.
struct hwkv_json * kvv_json(const struct kvv_run * verify);

#endif // KV_VERIFY_H
