// Random operations on several sequences. Every sequence has its tokens on record; whatever happened to the cache, a
// decode must give the logits of a cold run of those tokens. A sequence that may not be continued is started anew.

#include "harness.h"

#include "llama-hwkv.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SEQ_MAX = 8 };

struct sequence {
    llama_token * tokens;
    int32_t       n;
};

struct world {
    struct llama_context * ctx;
    struct reference       ref;
    const struct options * opt;
    struct sequence        seq[SEQ_MAX];
    struct difference      diff;
    int32_t  n_vocab;
    int32_t  n_resumed;  // truncations that could be continued
    int32_t  n_refused;  // and that could not
    uint32_t state;
};

static uint32_t pick(struct world * w, uint32_t n) {
    return random_below(&w->state, n);
}

static llama_memory_t memory(struct world * w) {
    return llama_get_memory(w->ctx);
}

static void forget(struct world * w, int32_t s) {
    llama_memory_seq_rm(memory(w), s, -1, -1);
    w->seq[s].n = 0;
}

// After anything that takes positions away: go on only where the policy says so.
static void settle(struct world * w, int32_t s) {
    if (w->seq[s].n == 0) {
        return;
    }
    if (llama_kv_policy_can_resume(w->ctx, s, w->seq[s].n)) {
        w->n_resumed++;
    } else {
        w->n_refused++;
        forget(w, s);
    }
}

static void op_append(struct world * w, int32_t s) {
    struct sequence * q = &w->seq[s];
    const int32_t room = (int32_t) w->opt->n_ctx / (int32_t) w->opt->n_seq_max - q->n;
    int32_t n = pick(w, 4) == 0 ? 1 + (int32_t) pick(w, 120) : 1 + (int32_t) pick(w, 6);
    if (n > room) {
        forget(w, s);
        return;
    }
    for (int32_t i = 0; i < n; i++) {
        q->tokens[q->n + i] = (llama_token) pick(w, (uint32_t) w->n_vocab);
    }
    if (decode_tokens(w->ctx, q->tokens + q->n, n, q->n, s, 1) != 0) {
        fprintf(stderr, "ops: cannot decode %d tokens at %d of sequence %d\n", n, q->n, s);
        exit(1);
    }
    q->n += n;
    compare_logits(&w->diff, llama_get_logits_ith(w->ctx, -1), reference_run(&w->ref, q->tokens, q->n, 1), w->n_vocab);
}

static void op_truncate(struct world * w, int32_t s) {
    struct sequence * q = &w->seq[s];
    if (q->n == 0) {
        return;
    }
    const int32_t n = pick(w, 2) ? q->n - 1 - (int32_t) pick(w, (uint32_t) (q->n < 30 ? q->n : 30)) : (int32_t) pick(w, (uint32_t) q->n);
    // recurrent state cannot always go back: then nothing was changed
    if (n <= 0 || !llama_memory_seq_rm(memory(w), s, n, -1)) {
        forget(w, s);
        return;
    }
    q->n = n;
    settle(w, s);
}

static void op_copy(struct world * w, int32_t s, int32_t t) {
    if (s == t || w->seq[s].n == 0) {
        return;
    }
    forget(w, t);
    llama_memory_seq_cp(memory(w), s, t, -1, -1);
    memcpy(w->seq[t].tokens, w->seq[s].tokens, (size_t) w->seq[s].n * sizeof(llama_token));
    w->seq[t].n = w->seq[s].n;
    // between streams the rows are copied by the next decode: a state saved before would miss them
    op_append(w, t);
}

static void op_keep(struct world * w, int32_t s) {
    llama_memory_seq_keep(memory(w), s);
    // upstream empties the stream of the sequence, and of recurrent state everything: what is left of the others goes too
    for (int32_t t = 0; t < (int32_t) w->opt->n_seq_max; t++) {
        if (t != s) {
            forget(w, t);
        }
    }
}

// A sequence to memory and back into the same or another slot; the flags decide between all and only what cannot be rolled back.
static void op_state_seq(struct world * w, int32_t s, int32_t t) {
    if (w->seq[s].n == 0) {
        return;
    }
    const size_t size = llama_state_seq_get_size(w->ctx, s);
    uint8_t * data = malloc(size);
    const size_t n = llama_state_seq_get_data(w->ctx, data, size, s);
    if (n != size || llama_state_seq_set_data(w->ctx, data, size, t) == 0) {
        fprintf(stderr, "ops: cannot move sequence %d to %d\n", s, t);
        exit(1);
    }
    free(data);
    if (s != t) {
        memcpy(w->seq[t].tokens, w->seq[s].tokens, (size_t) w->seq[s].n * sizeof(llama_token));
        w->seq[t].n = w->seq[s].n;
    }
    settle(w, t);
}

static void op_state_all(struct world * w) {
    const size_t size = llama_state_get_size(w->ctx);
    uint8_t * data = malloc(size);
    const size_t n = llama_state_get_data(w->ctx, data, size);
    llama_memory_clear(memory(w), true);
    if (llama_state_set_data(w->ctx, data, n) == 0) {
        fprintf(stderr, "ops: cannot restore the whole state\n");
        exit(1);
    }
    free(data);
}

// What the server does: a checkpoint, some tokens more, then back to it.
static void op_checkpoint(struct world * w, int32_t s) {
    struct sequence * q = &w->seq[s];
    if (q->n == 0) {
        return;
    }
    const llama_state_seq_flags flags = LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY;
    const size_t size = llama_state_seq_get_size_ext(w->ctx, s, flags);
    uint8_t * data = malloc(size);
    llama_state_seq_get_data_ext(w->ctx, data, size, s, flags);
    const int32_t n = q->n;
    for (int i = 0; i < 3 && q->n >= n; i++) {
        op_append(w, s);
    }
    if (q->n >= n) {
        llama_state_seq_set_data_ext(w->ctx, data, size, s, flags);
        if (!llama_memory_seq_rm(memory(w), s, n, -1)) {
            forget(w, s);
        } else {
            q->n = n;
            settle(w, s);
        }
    }
    free(data);
}

static void step(struct world * w) {
    const int32_t n_seq = (int32_t) w->opt->n_seq_max;
    const int32_t s = (int32_t) pick(w, (uint32_t) n_seq);
    const int32_t t = (int32_t) pick(w, (uint32_t) n_seq);
    switch (pick(w, 16)) {
        case 0:
        case 1:  op_truncate(w, s); break;
        case 2:  op_copy(w, s, t); break;
        case 3:  op_state_seq(w, s, t); break;
        case 4:  op_checkpoint(w, s); break;
        case 5:  if (pick(w, 4) == 0) { op_state_all(w); } break;
        case 6:  if (pick(w, 8) == 0) { op_keep(w, s); } break;
        default: op_append(w, s); break;
    }
}

static void run_once(const struct options * opt, struct world * w) {
    llama_memory_clear(memory(w), true);
    for (int32_t s = 0; s < SEQ_MAX; s++) {
        w->seq[s].n = 0;
    }
    for (int32_t i = 0; i < opt->n_ops; i++) {
        step(w);
    }
}

int run_ops(struct llama_model * model, const struct options * opt) {
    struct world w = { .opt = opt };
    w.n_vocab = llama_vocab_n_tokens(llama_model_get_vocab(model));
    w.ctx     = make_context(model, opt);
    if (!w.ctx || opt->n_seq_max > SEQ_MAX) {
        return fail("cannot create the context");
    }
    int32_t ip = 0;
    struct hwkv_policy * policy = load_policy(opt, &ip);
    reference_init(&w.ref, model, opt, policy, ip);
    for (int32_t s = 0; s < SEQ_MAX; s++) {
        w.seq[s].tokens = calloc(opt->n_ctx, sizeof(llama_token));
    }
    for (int32_t i = 0; i < opt->n_runs; i++) {
        w.state = opt->seed + (uint32_t) i;
        run_once(opt, &w);
    }
    printf("{\"max_abs\": %.9g, \"max_kl\": %.9g, \"n\": %d, \"same_top\": %d, \"resumed\": %d, \"refused\": %d}\n", w.diff.max_abs,
           w.diff.max_kl, w.diff.n, w.diff.n_same_top, w.n_resumed, w.n_refused);
    for (int32_t s = 0; s < SEQ_MAX; s++) {
        free(w.seq[s].tokens);
    }
    reference_free(&w.ref);
    hwkv_policy_free(policy);
    llama_free(w.ctx);
    return 0;
}
