// Small slots for tests: the shape of a made-up memory, states of it, and files of those.

#ifndef SLOT_FIXTURE_H
#define SLOT_FIXTURE_H

#include "hwkv-hash.h"
#include "hwkv-slot-file.h"

#include <stdlib.h>
#include <string.h>

#define SLOT_N_CTX 48

struct slot_bytes {
    uint8_t data[65536];
    size_t  size;
    size_t  at; // of what is read
};

static inline void slot_put(struct slot_bytes * b, const void * data, size_t size) {
    if (size > 0 && b->size + size <= sizeof(b->data)) {
        memcpy(b->data + b->size, data, size);
        b->size += size;
    }
}

static inline void slot_put_u32(struct slot_bytes * b, uint32_t x) {
    slot_put(b, &x, sizeof(x));
}

static inline void slot_add_part(struct hwkv_state_shape * shape, enum hwkv_state_kind kind, bool in_checkpoint, uint32_t n_stream, uint32_t n_rows) {
    struct hwkv_state_part * part = hwkv_state_add_part(shape);
    part->kind          = kind;
    part->in_checkpoint = in_checkpoint;
    part->n_stream      = n_stream;
    part->n_cells       = kind == HWKV_STATE_LAST ? 2 : SLOT_N_CTX;
    part->ext_size      = kind == HWKV_STATE_RING ? 12 : 0;
    part->rule          = (struct hwkv_rule) { .sinks = 2, .recent = 6 };
    part->head_size     = kind == HWKV_STATE_TOKENS ? 68 : 8;
    memset(part->head, 'a' + (int) kind, part->head_size);
    for (uint32_t i = 0; i < n_rows; i++) {
        struct hwkv_state_rows * rows = hwkv_state_add_rows(part);
        rows->head_size = 12;
        rows->cell_size = 8 + 4 * (uint64_t) i;
        memset(rows->head, 'A' + (int) i, rows->head_size);
    }
}

// the rows of a further store over the cells of another part
static inline void slot_add_store(struct hwkv_state_shape * shape, uint32_t i_cells, uint32_t n_rows) {
    slot_add_part(shape, HWKV_STATE_ROWS, shape->parts[i_cells].in_checkpoint, 0, n_rows);
    shape->parts[shape->n_part - 1].i_cells = i_cells;
}

// parts of the shape below that tests name
enum { SLOT_ALL = 0, SLOT_RING = 4, SLOT_RING_2 = 6, SLOT_NEWEST = 7, SLOT_LAST = 8 };

// two stores of full heads, two rings in two streams, one with two stores, a sliding window and recurrent layers: more than any one
// model has
static inline void slot_make_shape(struct hwkv_state_shape * shape, bool is_draft) {
    slot_add_part(shape, HWKV_STATE_ALL, is_draft, 2, is_draft ? 2 : 0);
    if (!is_draft) {
        slot_add_part (shape, HWKV_STATE_TOKENS, true, 0, 0);
        slot_add_store(shape, SLOT_ALL, 2);
        slot_add_store(shape, SLOT_ALL, 1);
        slot_add_part (shape, HWKV_STATE_RING,   true, 2, 2);
        slot_add_store(shape, SLOT_RING, 2);
        slot_add_part (shape, HWKV_STATE_RING,   true, 2, 1);
        slot_add_part (shape, HWKV_STATE_NEWEST, true, 2, 1);
        slot_add_part (shape, HWKV_STATE_LAST,   true, 0, 2);
    }
}

// does a cache of this kind hold a position when there are n?
static inline bool slot_holds(const struct hwkv_state_part * part, int32_t pos, int32_t n) {
    switch (part->kind) {
        case HWKV_STATE_RING:   return pos < part->rule.sinks || pos > n - part->rule.recent;
        case HWKV_STATE_NEWEST: return pos > n - 5;
        case HWKV_STATE_LAST:   return pos == n - 1;
        default:                return true;
    }
}

static inline uint32_t slot_count(const struct hwkv_state_part * part, int32_t n) {
    uint32_t count = 0;
    for (int32_t pos = 0; pos < n; pos++) {
        count += slot_holds(part, pos, n);
    }
    return count;
}

static const uint8_t slot_row[64] = { 1, 2, 3 };

static inline void slot_put_rows(struct slot_bytes * b, const struct hwkv_state_part * part, uint32_t count) {
    slot_put(b, part->head, part->head_size);
    for (uint32_t k = 0; k < part->n_rows; k++) {
        slot_put(b, part->rows[k].head, part->rows[k].head_size);
        for (uint32_t i = 0; i < count; i++) {
            slot_put(b, slot_row, (size_t) part->rows[k].cell_size);
        }
    }
}

static inline void slot_put_cells(struct slot_bytes * b, const struct hwkv_state_part * part, int32_t n) {
    const uint32_t count = slot_count(part, n);
    if (part->n_stream > 0) {
        slot_put_u32(b, part->n_stream);
        slot_put_u32(b, 0); // the sequence is in the second stream
    }
    slot_put_u32(b, count);
    if (count == 0 && part->kind != HWKV_STATE_LAST) {
        return;
    }
    for (int32_t pos = n - 1; pos >= 0; pos--) { // in any order
        if (slot_holds(part, pos, n)) {
            slot_put_u32(b, (uint32_t) pos);
            slot_put_u32(b, part->kind != HWKV_STATE_LAST);
            slot_put(b, slot_row, part->ext_size + (part->kind != HWKV_STATE_LAST ? 4 : 0));
        }
    }
    slot_put_rows(b, part, count);
}

// The state after the first n items of a history.
static inline void slot_put_state(struct slot_bytes * b, const struct hwkv_state_shape * shape, const struct hwkv_history * h, size_t n, bool checkpoint) {
    for (uint32_t i = 0; i < shape->n_part; i++) {
        const struct hwkv_state_part * part = &shape->parts[i];
        if (checkpoint && !part->in_checkpoint) {
            continue;
        }
        if (part->kind == HWKV_STATE_ROWS) {
            const uint32_t count_cells = slot_count(&shape->parts[part->i_cells], (int32_t) n);
            if (count_cells > 0) {
                slot_put_rows(b, part, count_cells);
            }
            continue;
        }
        if (part->kind != HWKV_STATE_TOKENS) {
            slot_put_cells(b, part, (int32_t) n);
            continue;
        }
        const uint64_t count = n;
        const uint64_t exact = n < h->n_exact ? n : h->n_exact;
        const uint64_t mark  = hwkv_history_mark(h, n);
        slot_put(b, part->head, part->head_size);
        slot_put(b, &count, sizeof(count));
        slot_put(b, checkpoint ? &mark : &exact, sizeof(mark));
        if (!checkpoint) {
            slot_put(b, h->items, n * sizeof(*h->items));
        }
    }
}

// A slot of n tokens with checkpoints at every eighth, each in blocks of its own.
struct slot_fixture {
    struct hwkv_state_shape     shapes[2];
    struct hwkv_slot_expect     expect;
    struct hwkv_history         history;
    int32_t                     tokens[SLOT_N_CTX];
    uint32_t                    n_tokens;
    struct slot_bytes           states[2];
    struct slot_bytes           parts[SLOT_N_CTX / 8][2];
    struct hwkv_slot_block      blocks[256];
    struct hwkv_slot_checkpoint checkpoints[SLOT_N_CTX / 8];
    uint32_t                    lists[SLOT_N_CTX / 8][2][8];
    struct hwkv_slot            slot;
};

static inline void slot_add_checkpoint(struct slot_fixture * f, uint32_t n_tokens, bool draft) {
    const uint32_t ic = f->slot.n_checkpoint++;
    struct hwkv_slot_checkpoint * c = &f->checkpoints[ic];
    *c = (struct hwkv_slot_checkpoint) { .n_tokens = n_tokens, .pos_min = (int32_t) n_tokens / 2, .pos_max = (int32_t) n_tokens - 1, .turn = ic % 2 };
    for (int k = 0; k < 1 + draft; k++) {
        struct slot_bytes * b = &f->parts[ic][k];
        b->size = 0;
        slot_put_state(b, &f->shapes[k], &f->history, n_tokens, true);
        for (size_t at = 0; at < b->size; at += HWKV_SLOT_BLOCK_MIN) {
            const size_t left = b->size - at;
            f->lists[ic][k][c->n_block[k]++] = f->slot.n_block;
            f->blocks[f->slot.n_block++] = (struct hwkv_slot_block) { b->data + at, (uint32_t) (left < HWKV_SLOT_BLOCK_MIN ? left : HWKV_SLOT_BLOCK_MIN) };
        }
        c->blocks[k] = f->lists[ic][k];
    }
}

// n_exact: so many tokens stand where they were computed
static inline void slot_make(struct slot_fixture * f, uint32_t n_tokens, uint32_t n_exact, bool draft) {
    memset(&f->slot, 0, sizeof(f->slot));
    hwkv_history_free(&f->history);
    f->n_tokens = n_tokens;
    for (uint32_t i = 0; i < n_tokens; i++) {
        f->tokens[i] = (int32_t) (7 * i % 31);
        hwkv_history_add(&f->history, (int32_t) i, (uint32_t) f->tokens[i]);
    }
    f->history.n_exact = n_exact;
    f->expect = (struct hwkv_slot_expect) { .id = { { "model", "cache", "policy" }, 2 }, .shape = { &f->shapes[0], draft ? &f->shapes[1] : NULL },
                                            .n_ctx = SLOT_N_CTX };
    for (int k = 0; k < 1 + draft; k++) {
        f->states[k].size = 0;
        slot_put_state(&f->states[k], &f->shapes[k], &f->history, n_tokens, false);
        f->slot.state[k]      = f->states[k].data;
        f->slot.state_size[k] = f->states[k].size;
    }
    f->slot.tokens      = (uint8_t *) f->tokens;
    f->slot.tokens_size = sizeof(int32_t) * n_tokens;
    f->slot.blocks      = f->blocks;
    f->slot.checkpoints = f->checkpoints;
    for (uint32_t n = 8; n <= n_tokens && n < SLOT_N_CTX; n += 8) {
        slot_add_checkpoint(f, n, draft);
    }
}

static inline void slot_fixture_init(struct slot_fixture * f) {
    memset(f, 0, sizeof(*f));
    slot_make_shape(&f->shapes[0], false);
    slot_make_shape(&f->shapes[1], true);
}

static inline void slot_fixture_free(struct slot_fixture * f) {
    hwkv_state_free(&f->shapes[0]);
    hwkv_state_free(&f->shapes[1]);
    hwkv_history_free(&f->history);
}

//
// files in memory
//

static inline bool slot_write_bytes(const void * data, size_t size, void * arg) {
    struct slot_bytes * b = arg;
    const size_t before = b->size;
    slot_put(b, data, size);
    return b->size == before + size;
}

static inline bool slot_read_bytes(void * dst, size_t size, void * arg) {
    struct slot_bytes * b = arg;
    if (size > b->size - b->at) {
        return false;
    }
    memcpy(dst, b->data + b->at, size);
    b->at += size;
    return true;
}

// blocks are copied, so that a read past one is seen
struct slot_taken {
    uint8_t * blocks[512];
    uint32_t  n;
    uint32_t  n_max; // room for so many
};

static inline const uint8_t * slot_take(const uint8_t * data, uint32_t size, void * arg) {
    struct slot_taken * t = arg;
    if (t->n >= t->n_max || t->n >= sizeof(t->blocks) / sizeof(t->blocks[0])) {
        return NULL;
    }
    uint8_t * copy = malloc(size);
    if (copy) {
        memcpy(copy, data, size);
        t->blocks[t->n++] = copy;
    }
    return copy;
}

static inline void slot_taken_free(struct slot_taken * t) {
    for (uint32_t i = 0; i < t->n; i++) {
        free(t->blocks[i]);
    }
    t->n = 0;
}

// what whoever alters a file would do: its size and its hash are right again
static inline void slot_seal(struct slot_bytes * b) {
    const uint64_t size = b->size;
    if (size < 32) {
        return;
    }
    memcpy(b->data + 16, &size, sizeof(size));
    const uint64_t hash = hwkv_hash(b->data, b->size - 8, 0); // smaller than a piece
    memcpy(b->data + b->size - 8, &hash, sizeof(hash));
}

#endif // SLOT_FIXTURE_H
