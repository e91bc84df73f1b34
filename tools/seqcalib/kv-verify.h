// Shared by the files of llama-kv-verify.

#ifndef KV_VERIFY_H
#define KV_VERIFY_H

#include "verify.h"

// args.c of llama-kv-policy reads the options; what it says goes through the functions of kv-verify-args.c
#include "../kv-policy/kv-policy.h"

#undef  TOOL_NAME
#define TOOL_NAME "llama-kv-verify"

#define VERIFY_MIN_CTX 1024

struct verify_args {
    const char *  model;
    const char *  policy;
    const char *  point;
    const char *  json;
    const char ** files;      // [n_file]
    int32_t       n_file;
    int64_t       n_ctx;      // 0: the policy's
    int64_t       n_seq;      // 0: up to 4
    int64_t       n_threads;
    int64_t       n_ubatch;
    int64_t       n_gpu_layers; // -1: llama.cpp's choice
    int           type_k;     // -1: the policy's
    int           type_v;
    bool          all_points;
    bool          parse_special;
    bool          json_progress;
    bool          verbose;
};

// One operating point that is compared.
struct verify_point {
    const struct hwkv_point * point;
    double                    retention; // R_C at the context of this run
    uint64_t                  bytes;     // allocated
    struct llama_context    * ctx;
};

struct verify {
    const struct verify_args * args;
    struct hwkv_policy       * policy;
    struct llama_model       * model;
    struct sc_text             text;
    llama_token              * tokens;     // [n_seq][n_ctx]
    int32_t                    n_ctx;
    int32_t                    n_seq;
    enum hwkv_type             type_k;
    enum hwkv_type             type_v;

    struct sc_progress       * progress;
    double                     loaded;     // share of the model

    struct llama_context     * ctx_full;
    uint64_t                   bytes_full;
    struct verify_point      * points;     // [n_point]
    struct sc_verify_result  * results;    // [n_point]
    int32_t                    n_point;
    bool                       complete;   // not stopped before its end

    FILE                     * json;       // open while it is not yet written, NULL without --json FILE
    char                     * part;       // its name until then
};

// kv-verify-args.c

extern const char VERIFY_HELP[];

// False: a line about the first mistake is on stderr. args->files is allocated.
bool verify_read_args(struct verify_args * args, int argc, char ** argv);

// kv-verify-print.c

void verify_print_table(FILE * out, const struct verify * verify);
void verify_print_json (FILE * out, const struct verify * verify);

#endif // KV_VERIFY_H
