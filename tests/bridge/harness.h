// Shared by the bridge tests: contexts with a policy against a slow reference.
//
// The reference is llama.cpp's plain cache with flash attention off and F32 K/V, whose raw attention scores are set to
// minus infinity outside of each head's window by an evaluation callback. It knows nothing of window groups and always
// starts from an empty cache: what a context with a policy computes must equal such a cold run.

#ifndef HARNESS_H
#define HARNESS_H

#include "hwkv.h"
#include "llama.h"

struct options {
    const char * model;
    const char * policy;
    const char * point;
    enum ggml_type type_k;
    enum ggml_type type_v;
    bool     flash_attn;
    bool     kv_unified;
    bool     swa_full;
    uint32_t n_ctx;
    uint32_t n_ubatch;
    uint32_t n_seq_max;
    int32_t  n_prompt;
    int32_t  n_decode;
    int32_t  n_ops;
    int32_t  n_runs;
    int32_t  n_threads;
    int32_t  divisor;
    const char * text;
    int32_t  rollback;
    uint32_t seed;
    int32_t  shared_layer; // this layer reads the cache of shared_source; -1: none does
    int32_t  shared_source;
};

struct reference {
    struct llama_context     * ctx;
    const struct hwkv_policy * policy;
    int32_t                    ip;
    const struct options     * opt;
    int32_t                    first;     // number of the first token of the current batch
    int32_t                    n_shifted; // tokens taken from the front; their cells are used by what came after
    int32_t                    n_before;  // tokens there were when that, or a division, happened
    int32_t                    divisor;   // of the positions of those tokens; 0: none
};

struct difference {
    double  max_abs;
    double  max_kl;
    int32_t n;
    int32_t n_same_top;
};

uint32_t random_below(uint32_t * state, uint32_t n);

struct llama_context * make_context(struct llama_model * model, const struct options * opt);

void reference_init(struct reference * ref, struct llama_model * model, const struct options * opt, const struct hwkv_policy * policy, int32_t ip);
void reference_free(struct reference * ref);
// Forgets everything, runs the tokens, returns the logits of the last n_out of them, [n_out][n_vocab].
const float * reference_run(struct reference * ref, const llama_token * tokens, int32_t n, int32_t n_out);

// Adds one pair of logit rows to the difference.
void compare_logits(struct difference * d, const float * a, const float * b, int32_t n_vocab);

// One batch of tokens of one sequence; logits for the last n_out. Returns llama_decode's status.
int decode_tokens(struct llama_context * ctx, const llama_token * tokens, int32_t n, llama_pos pos, llama_seq_id seq, int32_t n_out);

llama_token * random_tokens(const struct llama_model * model, int32_t n, uint32_t seed);
struct hwkv_policy * load_policy(const struct options * opt, int32_t * ip); // exits on failure
int fail(const char * what);                                               // prints, returns 1

// The commands: each prints one JSON line and returns an exit code.
int run_compare(struct llama_model * model, const struct options * opt);
int run_ops    (struct llama_model * model, const struct options * opt);
int run_copies (struct llama_model * model, const struct options * opt);
int run_greedy (struct llama_model * model, const struct options * opt);
int run_hash   (struct llama_model * model, const struct options * opt);
int run_shift  (struct llama_model * model, const struct options * opt);
int run_plan   (struct llama_model * model, const struct options * opt);

#endif // HARNESS_H
