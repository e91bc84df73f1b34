// Random operations on several sequences. Every sequence has its tokens and shifts on record; whatever happened to the
// cache, a decode must give the logits of a reference that got just those. A sequence that may not be continued is
// started anew. Positions are not divided here: one position is several tokens then, which the question whether a sequence
// can be continued does not know (the command shift has it).

#include "harness.h"

#include "llama-hwkv.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SHIFT_MAX = 64 };

struct shift {
    int32_t   at; // tokens there were
    llama_pos p0;
    llama_pos p1;
};

struct sequence {
    llama_token * tokens;  // also those that a shift has removed
    llama_pos   * pos;     // of each now, -1: removed
    int32_t       n;
    struct shift  shifts[SHIFT_MAX];
    int32_t       n_shift;
    int32_t       n_ref;   // tokens that the reference has, 0: it must start anew
    uint32_t      cells;   // sequences with the same number may share cells
};

struct world {
    struct bench           bench;
    const struct options * opt;
    struct sequence        seq[SEQ_MAX];
    int32_t  n_resumed;  // sequences that could be continued after something was taken away
    int32_t  n_refused;  // and that could not
    int32_t  n_shifted;
    uint32_t n_cells;
    uint32_t state;
    llama_token * live; // [n_ctx]
};

static uint32_t pick(struct world * w, uint32_t n) {
    return random_below(&w->state, n);
}

static llama_memory_t memory(struct world * w) {
    return llama_get_memory(w->bench.ctx);
}

static void forget(struct world * w, int32_t s) {
    llama_memory_seq_rm(memory(w), s, -1, -1);
    w->seq[s].n       = 0;
    w->seq[s].n_shift = 0;
    w->seq[s].n_ref   = 0;
    w->seq[s].cells   = ++w->n_cells;
}

static llama_pos next_pos(const struct sequence * q) {
    return q->n > 0 ? q->pos[q->n - 1] + 1 : 0;
}

// After anything that takes positions away: go on only where the policy says so.
static void settle(struct world * w, int32_t s) {
    struct sequence * q = &w->seq[s];
    if (q->n == 0) {
        return;
    }
    q->n_ref = 0;
    if (llama_kv_policy_can_resume(w->bench.ctx, s, next_pos(q))) {
        w->n_resumed++;
    } else {
        w->n_refused++;
        forget(w, s);
    }
}

// The logits of the last token, from a reference that is given what it does not have yet.
static const float * expect(struct world * w, int32_t s) {
    struct sequence  * q   = &w->seq[s];
    struct reference * ref = &w->bench.ref[s];
    if (q->n_ref == 0) {
        reference_clear(ref);
        for (int32_t i = 0; i < q->n_shift; i++) {
            const struct shift * shift = &q->shifts[i];
            if (shift->at > q->n_ref) {
                reference_append(ref, q->tokens + q->n_ref, shift->at - q->n_ref, 1);
                q->n_ref = shift->at;
            }
            reference_shift(ref, shift->p0, shift->p1);
        }
    }
    const float * logits = reference_append(ref, q->tokens + q->n_ref, q->n - q->n_ref, 1);
    q->n_ref = q->n;
    return logits;
}

static void op_append(struct world * w, int32_t s) {
    struct sequence * q = &w->seq[s];
    const int32_t room = (int32_t) w->opt->n_ctx / (int32_t) w->opt->n_seq_max - q->n;
    const int32_t n    = pick(w, 4) == 0 ? 1 + (int32_t) pick(w, 120) : 1 + (int32_t) pick(w, 6);
    if (n > room) {
        forget(w, s);
        return;
    }
    const llama_pos next = next_pos(q);
    for (int32_t i = 0; i < n; i++) {
        q->tokens[q->n + i] = (llama_token) pick(w, (uint32_t) w->bench.n_vocab);
        q->pos   [q->n + i] = next + i;
    }
    if (decode_tokens(w->bench.ctx, q->tokens + q->n, n, next, s, 1) != 0) {
        fprintf(stderr, "ops: cannot decode %d tokens at %d of sequence %d\n", n, next, s);
        exit(1);
    }
    q->n += n;
    compare_logits(&w->bench.diff, llama_get_logits_ith(w->bench.ctx, -1), expect(w, s), w->bench.n_vocab);
}

// The record without the positions from p on.
static void cut(struct sequence * q, llama_pos p) {
    while (q->n > 0 && (q->pos[q->n - 1] < 0 || q->pos[q->n - 1] >= p)) {
        q->n--;
    }
    for (int32_t i = 0; i < q->n_shift; i++) {
        q->shifts[i].at = q->shifts[i].at < q->n ? q->shifts[i].at : q->n;
    }
}

static void op_truncate(struct world * w, int32_t s) {
    struct sequence * q = &w->seq[s];
    if (q->n == 0) {
        return;
    }
    const int32_t n = next_pos(q);
    const int32_t p = pick(w, 2) ? n - 1 - (int32_t) pick(w, (uint32_t) (n < 30 ? n : 30)) : (int32_t) pick(w, (uint32_t) n);
    // recurrent state cannot always go back: then nothing was changed
    if (p <= 0 || !llama_memory_seq_rm(memory(w), s, p, -1)) {
        forget(w, s);
        return;
    }
    cut(q, p);
    settle(w, s);
}

static void copy_record(struct world * w, int32_t s, int32_t t) {
    const struct sequence * from = &w->seq[s];
    struct sequence       * to   = &w->seq[t];
    memcpy(to->tokens, from->tokens, (size_t) from->n * sizeof(*to->tokens));
    memcpy(to->pos,    from->pos,    (size_t) from->n * sizeof(*to->pos));
    memcpy(to->shifts, from->shifts, sizeof(to->shifts));
    to->n       = from->n;
    to->n_shift = from->n_shift;
    to->n_ref   = 0;
}

static void op_copy(struct world * w, int32_t s, int32_t t) {
    if (s == t || w->seq[s].n == 0) {
        return;
    }
    forget(w, t);
    llama_memory_seq_cp(memory(w), s, t, -1, -1);
    copy_record(w, s, t);
    w->seq[t].cells = w->seq[s].cells;
    // between streams the rows are copied by the next decode: a state saved before would miss them
    op_append(w, t);
}

// A shift moves cells, so also those of another sequence that has them.
static bool has_own_cells(const struct world * w, int32_t s) {
    for (int32_t t = 0; t < (int32_t) w->opt->n_seq_max; t++) {
        if (t != s && w->seq[t].n > 0 && w->seq[t].cells == w->seq[s].cells) {
            return !w->opt->kv_unified;
        }
    }
    return true;
}

// What the server does when the context is full: some positions go, later ones move up. The last one stays.
static void op_shift(struct world * w, int32_t s) {
    struct sequence * q = &w->seq[s];
    const llama_pos n = next_pos(q);
    if (n < 16 || q->n_shift == SHIFT_MAX || !llama_memory_can_shift(memory(w)) || !has_own_cells(w, s)) {
        return;
    }
    const llama_pos p0 = pick(w, 2) ? (llama_pos) pick(w, 8) : (llama_pos) pick(w, (uint32_t) n - 1);
    const llama_pos p1 = p0 + 1 + (llama_pos) pick(w, (uint32_t) (n - p0 - 1));
    llama_memory_seq_rm (memory(w), s, p0, p1);
    llama_memory_seq_add(memory(w), s, p1, -1, p0 - p1);
    q->shifts[q->n_shift++] = (struct shift) { q->n, p0, p1 };
    for (int32_t i = 0; i < q->n; i++) {
        q->pos[i] = q->pos[i] >= p1 ? q->pos[i] - (p1 - p0) : q->pos[i] >= p0 ? -1 : q->pos[i];
    }
    w->n_shifted++;
    settle(w, s);
    // K is rotated by the next decode: a state saved before would have it unrotated
    if (q->n > 0) {
        op_append(w, s);
    }
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
    const size_t size = llama_state_seq_get_size(w->bench.ctx, s);
    uint8_t * data = malloc(size);
    const size_t n = llama_state_seq_get_data(w->bench.ctx, data, size, s);
    if (n != size || llama_state_seq_set_data(w->bench.ctx, data, size, t) == 0) {
        fprintf(stderr, "ops: cannot move sequence %d to %d\n", s, t);
        exit(1);
    }
    free(data);
    if (s != t) {
        copy_record(w, s, t);
    }
    w->seq[t].cells = ++w->n_cells;
    settle(w, t);
}

static void op_state_all(struct world * w) {
    const size_t size = llama_state_get_size(w->bench.ctx);
    uint8_t * data = malloc(size);
    const size_t n = llama_state_get_data(w->bench.ctx, data, size);
    llama_memory_clear(memory(w), true);
    if (llama_state_set_data(w->bench.ctx, data, n) == 0) {
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
    const size_t size = llama_state_seq_get_size_ext(w->bench.ctx, s, flags);
    uint8_t * data = malloc(size);
    llama_state_seq_get_data_ext(w->bench.ctx, data, size, s, flags);
    const int32_t   n = q->n;
    const llama_pos p = next_pos(q);
    for (int i = 0; i < 3 && q->n >= n; i++) {
        op_append(w, s);
    }
    if (q->n >= n) {
        llama_state_seq_set_data_ext(w->bench.ctx, data, size, s, flags);
        if (!llama_memory_seq_rm(memory(w), s, p, -1)) {
            forget(w, s);
        } else {
            cut(q, p);
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
        case 2:  if (w->opt->copies) { op_copy(w, s, t); } break;
        case 3:  op_state_seq(w, s, t); break;
        case 4:  op_checkpoint(w, s); break;
        case 5:  if (pick(w, 4) == 0) { op_state_all(w); } break;
        case 6:  if (pick(w, 8) == 0) { op_keep(w, s); } break;
        case 7:  op_shift(w, s); break;
        default: op_append(w, s); break;
    }
}

// The memory knows the tokens of every sequence, as far as nothing was moved.
static void check_history(struct world * w, int32_t s) {
    const struct sequence * q = &w->seq[s];
    int32_t   n      = 0;
    llama_pos n_same = INT32_MAX;
    for (int32_t i = 0; i < q->n; i++) {
        if (q->pos[i] >= 0) {
            w->live[n++] = q->tokens[i];
        }
    }
    for (int32_t i = 0; i < q->n_shift; i++) {
        n_same = q->shifts[i].p0 < n_same ? q->shifts[i].p0 : n_same;
    }
    n_same = n_same < n ? n_same : n;
    const int32_t found = llama_kv_policy_n_same(w->bench.ctx, s, w->live, n);
    if (found != n_same) {
        fprintf(stderr, "ops: sequence %d stands for %d of %d tokens, expected %d\n", s, found, n, n_same);
        exit(1);
    }
    if (n_same > 0) {
        w->live[n_same / 2]++;
        if (llama_kv_policy_n_same(w->bench.ctx, s, w->live, n) != n_same / 2) {
            fprintf(stderr, "ops: sequence %d stands for a token that it never had\n", s);
            exit(1);
        }
    }
}

static void run_once(struct world * w) {
    llama_memory_clear(memory(w), true);
    for (int32_t s = 0; s < (int32_t) w->opt->n_seq_max; s++) {
        forget(w, s);
    }
    for (int32_t i = 0; i < w->opt->n_ops; i++) {
        step(w);
        for (int32_t s = 0; s < (int32_t) w->opt->n_seq_max && !w->opt->plain; s++) {
            check_history(w, s);
        }
    }
}

int run_ops(struct llama_model * model, const struct options * opt) {
    struct world w = { .opt = opt };
    bench_init(&w.bench, model, opt);
    w.live = calloc(opt->n_ctx, sizeof(*w.live));
    for (int32_t s = 0; s < SEQ_MAX; s++) {
        w.seq[s].tokens = calloc(opt->n_ctx, sizeof(*w.seq[s].tokens));
        w.seq[s].pos    = calloc(opt->n_ctx, sizeof(*w.seq[s].pos));
    }
    for (int32_t i = 0; i < opt->n_runs; i++) {
        w.state = opt->seed + (uint32_t) i;
        run_once(&w);
    }
    print_difference(&w.bench.diff);
    printf(", \"resumed\": %d, \"refused\": %d, \"shifted\": %d}\n", w.n_resumed, w.n_refused, w.n_shifted);
    for (int32_t s = 0; s < SEQ_MAX; s++) {
        free(w.seq[s].tokens);
        free(w.seq[s].pos);
    }
    free(w.live);
    bench_free(&w.bench);
    return 0;
}
