// How far the logits under a policy are from those of the full cache, on text that is long enough to leave the windows.

#ifndef SC_VERIFY_H
#define SC_VERIFY_H

#include "progress.h"
#include "text.h"

#include <signal.h>

#define SC_STOPPED 1 // not an error: *stop was set

// Over the positions that count: 0-based [C - C/4, C - 1) of a piece of C tokens, each predicting the next token.
struct sc_verify_stats {
    double ppl_full;
    double ppl_policy;
    double kl_mean;    // KL(full || policy) in nats per position
    double kl_p99;     // the smallest value that 99% of the positions do not exceed
    double kl_max;
    double same_top;   // share of positions with the same most likely token
};

struct sc_verify_result {
    struct sc_verify_stats   all;
    struct sc_verify_stats * chunks;      // [n_chunk], one per piece
    int32_t                  n_chunk;     // finished pieces
    int64_t                  n_positions;
};

// Contexts belong to the caller, have room for n_ctx positions of one sequence and are cleared before each piece. They run
// the same piece side by side, one batch of the full cache and of every policy at a time, so the full cache runs once and
// no more logits are kept than those of one batch. n_batch of the contexts should be n_ubatch.
struct sc_verify_params {
    struct llama_context         * ctx_full;
    struct llama_context * const * ctx_policy;  // [n_policy]
    const char * const           * names;       // [n_policy], for the line after each piece, or NULL
    int32_t                        n_policy;
    const llama_token            * tokens;      // [n_seq][n_ctx]
    int32_t                        n_seq;
    int32_t                        n_ctx;
    int32_t                        n_thread;    // for comparing the logits; results don't depend on it
    struct sc_progress           * progress;    // or NULL; started by the caller, gets sc_verify_work() units
    const volatile sig_atomic_t  * stop;        // or NULL; nonzero ends the run before the next batch, sooner if the
                                                // abort callback of the contexts looks at it too
};

// Units of progress: tokens times contexts.
double sc_verify_work(const struct sc_verify_params * params);

// out: [n_policy]. 0, SC_STOPPED (results of the pieces finished so far, n_chunk may be 0) or a negative HWKV_ERR_*, then out is empty.
int  sc_verify(struct sc_verify_result * out, const struct sc_verify_params * params, struct hwkv_error * err);
void sc_verify_result_free(struct sc_verify_result * result);

// Standard error of kl_mean over the pieces, NAN for fewer than two.
double sc_verify_kl_error(const struct sc_verify_result * result);

// Pieces that contain control tokens after their first token: formatted chats.
int32_t sc_verify_n_chat(const struct llama_vocab * vocab, const llama_token * tokens, int32_t n_seq, int32_t n_ctx);

// The "validation" object of an operating point, on one line. Free with free(); NULL when memory is out.
char * sc_verify_json(const struct sc_verify_result * result, const struct sc_text * text, int32_t n_ctx, int32_t n_chat);

// The members "perplexity", "kl" and "same_top" of such an object.
void sc_verify_stats_json(FILE * out, const struct sc_verify_stats * stats);

#endif // SC_VERIFY_H
