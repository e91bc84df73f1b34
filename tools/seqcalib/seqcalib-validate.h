// The held-out check: a finished policy on sequences it has not seen.

#ifndef SC_VALIDATE_H
#define SC_VALIDATE_H

#include "seqcalib-calibrate.h"
#include "tool-text.h"

struct sc_holdout {
    struct tool_text text;    // where the sequences come from; tokens are not kept
    llama_token  * tokens;  // [n_seq][n_ctx]
    int32_t        n_seq;
    int32_t        n_chat;  // the last ones, formatted by the model's own template
};

// n pieces of text, from the skip-th on, and one formatted chat made of the piece after them if the model has a template
// and the text is long enough. text is taken over.
int  sc_holdout_init(struct sc_holdout * holdout, const struct llama_model * model, struct tool_text * text, int64_t skip, int32_t n, int32_t n_ctx, struct hwkv_error * err);
void sc_holdout_free(struct sc_holdout * holdout);

// Fills calib->validation of every point that has none yet.
int sc_validate(struct sc_calib * calib, const struct sc_holdout * holdout, struct hwkv_error * err);

#endif // SC_VALIDATE_H
