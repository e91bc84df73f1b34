// Whether graphs need more memory than was reserved for them.

#include "harness.h"

#include "llama-hwkv.h"

#include <stdio.h>
#include <stdlib.h>

static llama_pos seq_end(struct llama_context * ctx, llama_seq_id seq_id) {
    return llama_memory_seq_pos_max(llama_get_memory(ctx), seq_id) + 1;
}

// a part of a sequence, from where it is
static void go_on(struct llama_context * ctx, const llama_token * tokens, int32_t n, llama_seq_id seq_id) {
    if (n > 0 && decode_tokens(ctx, tokens, n, seq_end(ctx, seq_id), seq_id, 1) != 0) {
        die("cannot decode");
    }
    llama_synchronize(ctx);
}

// the same number of tokens of each of the first n_seq sequences in one batch
static void go_on_together(struct llama_context * ctx, const llama_token * tokens, int32_t n, int32_t n_seq) {
    struct llama_batch batch = llama_batch_init(n * n_seq, 0, 1);
    for (int32_t s = 0; s < n_seq; s++) {
        for (int32_t i = 0; i < n; i++) {
            const int32_t at = batch.n_tokens++;
            batch.token[at]     = tokens[i];
            batch.pos[at]       = seq_end(ctx, s) + i;
            batch.n_seq_id[at]  = 1;
            batch.seq_id[at][0] = s;
            batch.logits[at]    = i == n - 1;
        }
    }
    if (llama_decode(ctx, batch) != 0) {
        die("cannot decode");
    }
    llama_synchronize(ctx);
    llama_batch_free(batch);
}

// Prompts of every length class, decoding, rollbacks and several sequences at once, with prompts of at most n_prompt tokens: the memory of the
// graphs stays as it was.
int run_growth(struct llama_model * model, const struct options * opt) {
    struct llama_context * ctx = make_context(model, opt);
    struct llama_memory_i * mem = llama_get_memory(ctx);
    const int32_t n_ctx   = (int32_t) llama_n_ctx_seq(ctx);
    const int32_t n_ub    = (int32_t) opt->n_ubatch;
    const int32_t n_seq   = (int32_t) opt->n_seq_max;
    llama_token * tokens  = random_tokens(model, n_ctx, opt->seed);
    const size_t  before  = llama_kv_policy_compute_size(ctx);
    // the longest first: Mesa's software device crashes when its own buffers grow after a small batch
    const int32_t lengths[] = { n_ctx - 128, n_ctx / 2 + 3, 2 * n_ub + 100, n_ub + 257, n_ub + 255, n_ub + 1, n_ub, n_ub - 1, n_ub / 2 + 1, 2, 1 };
    size_t  most = before;
    int32_t at   = 0; // the length that needed it

    for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
        const int32_t n = lengths[i] < n_ctx - 32 ? lengths[i] : n_ctx - 32;
        llama_memory_clear(mem, true);
        go_on(ctx, tokens, n, n_seq - 1);
        go_on(ctx, tokens, 1, n_seq - 1);
        go_on(ctx, tokens, 17, n_seq - 1);
        if (n > 64 && llama_memory_seq_rm(mem, n_seq - 1, n - 20, -1)) {
            go_on(ctx, tokens, 30, n_seq - 1); // taken back, and on
        }
        // as many sequences as share a context, each with as much as fits beside the others
        const int32_t n_each = (opt->kv_unified ? n_ctx / n_seq : n_ctx) - 80;
        for (int32_t k = n_seq; k > 0 && n_seq > 1 && n < n_each && n <= opt->n_prompt; k--) {
            llama_memory_clear(mem, true);
            go_on_together(ctx, tokens, n, k);
            go_on_together(ctx, tokens, n_ub / k > 40 ? 40 : n_ub / k, k);
        }
        const size_t size = llama_kv_policy_compute_size(ctx);
        if (size > most) {
            most = size;
            at   = n;
        }
    }
    printf("{\"before\": %zu, \"most\": %zu, \"at\": %d}\n", before, most, at);
    free(tokens);
    llama_free(ctx);
    return 0;
}
