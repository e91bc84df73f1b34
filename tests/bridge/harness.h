// Shared by the bridge tests: contexts with a policy against a slow reference.
//
// The reference is llama.cpp's plain cache of the same types without flash attention (with it for quantized V, which needs
// it), whose mask an evaluation callback replaces by one for each head. Where entries have types of their own it is a cache of
// floats, and the callback rounds what is stored. It knows nothing of window groups and only ever
// appends to an empty cache: what a context with a policy computes, whatever was done to its sequences, must equal that.

#ifndef HARNESS_H
#define HARNESS_H

#include "devices.h"
#include "hwkv.h"
#include "llama.h"

struct options {
    const char * model;
    const char * policy;
    const char * point;
    enum ggml_type type_k;
    enum ggml_type type_v;
    bool     flash_attn;
    bool     flash_attn_auto; // left to llama.cpp; the reference has it
    bool     kv_unified;
    bool     swa_full;
    bool     copies;       // among the random operations
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
    int32_t  window_error; // added to the finite windows of the reference: then the comparison must fail
    bool     plain;        // the context has no policy; the reference still has it
    int32_t  n_gpu_layers; // -1: all
    bool     cache_on_host;
    bool     allow_cpu;    // to attend where the device cannot
    struct device_options device;
    bool     no_alloc;     // sizes only: neither weights nor cache nor graphs get memory
    uint32_t n_outputs;    // tokens of a batch that get logits, 0: all
    struct llama_model * host; // the model without devices: the reference writes masks into the memory of the host
    int32_t  type_error;   // the reference gives each head the type of the so many-th after it: then the comparison must fail
};

struct reference {
    struct llama_context     * ctx;
    const struct hwkv_policy * policy;
    int32_t                    ip;
    const struct options     * opt;
    struct ggml_context      * meta;
    struct ggml_tensor       * mask;      // F16 [n_kv, n_tokens, n_head] of the layer being computed
    llama_pos                * pos;       // of every token, which stands in the cell of its number
    bool                     * removed;
    int32_t                    n_batch;
    int32_t                    n;         // tokens so far
    int32_t                    first;     // number of the first one of the current batch
    int32_t                    n_now;     // tokens of it
    int32_t                    n_masked;  // attention nodes of it that got a mask
    int32_t                    n_divided; // tokens there were when the positions were divided
    float                    * logits;    // of the last run
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
// Rounds the rows of the jl-th full-attention layer's cache of floats, each head's as its type does.
void round_heads(const struct reference * ref, int32_t jl, struct ggml_tensor * cache, bool is_k);
void reference_clear(struct reference * ref);
// Runs more tokens and returns the logits of the last n_out of them, [n_out][n_vocab].
const float * reference_append(struct reference * ref, const llama_token * tokens, int32_t n, int32_t n_out);
// Takes the positions [p0, p1) away and moves the later ones up.
void reference_shift(struct reference * ref, llama_pos p0, llama_pos p1);
void reference_divide(struct reference * ref, int divisor);

enum { SEQ_MAX = 8 };

// A context and a reference for each of its sequences.
struct bench {
    const struct options * opt;
    struct llama_context * ctx;
    struct hwkv_policy   * policy;
    struct reference       ref[SEQ_MAX];
    struct difference      diff;
    int32_t                n_vocab;
};

void bench_init(struct bench * bench, struct llama_model * model, const struct options * opt);
void bench_free(struct bench * bench);

// Adds one pair of logit rows to the difference.
void compare_logits(struct difference * d, const float * a, const float * b, int32_t n_vocab);

// One batch of tokens of one sequence; logits for the last n_out. Returns llama_decode's status.
int decode_tokens(struct llama_context * ctx, const llama_token * tokens, int32_t n, llama_pos pos, llama_seq_id seq, int32_t n_out);

// Prints a JSON array: for every kind of memory its name, whether it is the host's, and the bytes of weights, context and graphs.
void print_memory(const struct llama_context * ctx);

llama_token * random_tokens(const struct llama_model * model, int32_t n, uint32_t seed);
enum ggml_type type_from_name(const char * name); // exits with 2 if ggml has none
void die(const char * what);                      // prints and exits with 1
void print_difference(const struct difference * d); // the start of the JSON line

// The commands: each prints one JSON line and returns an exit code.
int run_compare(struct llama_model * model, const struct options * opt);
int run_ops    (struct llama_model * model, const struct options * opt);
int run_copies (struct llama_model * model, const struct options * opt);
int run_greedy (struct llama_model * model, const struct options * opt);
int run_hash   (struct llama_model * model, const struct options * opt);
int run_shift  (struct llama_model * model, const struct options * opt);
int run_plan   (struct llama_model * model, const struct options * opt);
int run_image  (struct llama_model * model, const struct options * opt);
int run_growth (struct llama_model * model, const struct options * opt);

#endif // HARNESS_H
