// How far the logits under a policy are from those of the full cache, on text that is long enough to leave the windows.

#ifndef TOOL_COMPARE_H
#define TOOL_COMPARE_H

#include "tool-progress.h"
#include "tool-text.h"

#include "hwkv-json.h"

#include <signal.h>

#define TOOL_STOPPED 1 // not an error: *stop was set

// Over the positions that count: 0-based [C - C/4, C - 1) of a piece of C tokens, each predicting the next token.
struct tool_compare_stats {
    double ppl_full;
    double ppl_policy;
    double kl_mean;    // KL(full || policy) in nats per position
    double kl_p99;     // the smallest value that 99% of the positions do not exceed
    double kl_max;
    double same_top;   // share of positions with the same most likely token
};

struct tool_compare_result {
    struct tool_compare_stats   all;
    struct tool_compare_stats * chunks;      // [n_chunk], one per piece
    int32_t                  n_chunk;     // finished pieces
    int64_t                  n_positions;
};

// Contexts belong to the caller, have room for n_ctx positions of one sequence and are cleared before each piece. They run
// the same piece side by side, one batch of the full cache and of every policy at a time, so the full cache runs once and
// no more logits are kept than those of one batch. n_batch of the contexts should be n_ubatch.
struct tool_compare_params {
    struct llama_context         * ctx_full;
    struct llama_context * const * ctx_policy;  // [n_policy]
    const char * const           * names;       // [n_policy], for the line after each piece, or NULL
    int32_t                        n_policy;
    const llama_token            * tokens;      // [n_seq][n_ctx]
    int32_t                        n_seq;
    int32_t                        n_ctx;
    int32_t                        n_thread;    // for comparing the logits; results don't depend on it
    struct tool_progress           * progress;    // or NULL; started by the caller, gets tool_compare_work() units
    const volatile sig_atomic_t  * stop;        // or NULL; nonzero ends the run before the next batch, sooner if the
                                                // abort callback of the contexts looks at it too
};

// Units of progress: tokens times contexts.
double tool_compare_work(const struct tool_compare_params * params);

// out: [n_policy]. 0, TOOL_STOPPED (results of the pieces finished so far, n_chunk may be 0) or a negative HWKV_ERR_*, then out is empty.
int  tool_compare(struct tool_compare_result * out, const struct tool_compare_params * params, struct hwkv_error * err);
void tool_compare_result_free(struct tool_compare_result * result);

// Standard error of kl_mean over the pieces, NAN for fewer than two.
double tool_compare_kl_error(const struct tool_compare_result * result);

// Pieces that contain control tokens after their first token: formatted chats.
int32_t tool_compare_n_chat(const struct llama_vocab * vocab, const llama_token * tokens, int32_t n_seq, int32_t n_ctx);

// The "validation" object of an operating point. NULL when memory is out.
struct hwkv_json * tool_compare_json(const struct tool_compare_result * result, const struct tool_text * text, int32_t n_ctx, int32_t n_chat);

// Its members "perplexity", "kl" and "same_top", of any stats.
bool tool_compare_add_stats(struct hwkv_json * object, const struct tool_compare_stats * stats);

#endif // TOOL_COMPARE_H
