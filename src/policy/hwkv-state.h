// What the saved state of one sequence looks like, so that one from a file can be held against it before anything is done with it.
//
// llama.cpp writes a state as parts, one for each cache: the positions of its cells, then for every tensor some fixed bytes and
// so many bytes a cell. Caches that share cells write the positions once. With a KV policy the tokens that it was computed from stand among them (hwkv-history.h).
//
// Part of the library, not of its public API.

#ifndef HWKV_STATE_H
#define HWKV_STATE_H

#include "hwkv-history.h"
#include "hwkv-rule.h"

#ifdef __cplusplus
extern "C" {
#endif

enum hwkv_state_kind {
    HWKV_STATE_TOKENS, // fixed bytes and the tokens; no cells
    HWKV_STATE_ALL,    // every position
    HWKV_STATE_RING,   // what the rule keeps, perhaps more
    HWKV_STATE_ROWS,   // rows only: further tensors over the cells of an earlier part
    HWKV_STATE_NEWEST, // a sliding window: some positions up to the last
    HWKV_STATE_LAST,   // recurrent: one cell, at the last position
};

// fixed bytes, then some for every cell
struct hwkv_state_rows {
    uint8_t  head[16];
    uint32_t head_size;
    uint64_t cell_size;
};

struct hwkv_state_part {
    enum hwkv_state_kind kind;
    bool     in_checkpoint; // and not only in whole states
    uint32_t n_stream;      // 0: the number is not written
    uint32_t n_cells;       // of a stream
    uint32_t ext_size;      // bytes of a cell besides position and sequence
    uint32_t i_cells;       // of HWKV_STATE_ROWS: the part that has the cells
    struct hwkv_rule rule;  // of HWKV_STATE_RING

    uint8_t  head[80];      // of the tokens, or before the first tensor
    uint32_t head_size;

    struct hwkv_state_rows * rows; // [n_rows]
    uint32_t n_rows;
};

struct hwkv_state_shape {
    struct hwkv_state_part * parts; // [n_part], as they are written
    uint32_t n_part;
};

// Room for one more, zeroed; NULL when memory is out.
struct hwkv_state_part * hwkv_state_add_part(struct hwkv_state_shape * shape);
struct hwkv_state_rows * hwkv_state_add_rows(struct hwkv_state_part * part);
void                     hwkv_state_free    (struct hwkv_state_shape * shape);

// The most bytes that a state, or what a checkpoint holds of it, can have with so many tokens.
uint64_t hwkv_state_size_max(const struct hwkv_state_shape * shape, bool checkpoint, uint64_t n_tokens);

// dst NULL: skip so many bytes. false if there are not so many.
typedef bool (*hwkv_state_read_fn)(void * dst, uint64_t size, void * arg);

struct hwkv_state_want {
    bool            checkpoint;
    const int32_t * tokens;   // [n_tokens], below 0: a part of an image
    uint32_t        n_tokens;
    int32_t         n_pos;    // positions of all tokens: as many, unless there are images
    bool            is_draft; // a draft may be behind the tokens or ahead of them, but has no hole
};

// Reads a state to its end and holds it against everything that is known: 0, or an error that says what does not fit.
// history is filled by a whole state and must be the whole one's for a checkpoint; not used for a draft.
int hwkv_state_check(const struct hwkv_state_shape * shape, const struct hwkv_state_want * want, struct hwkv_history * history,
                     hwkv_state_read_fn read, void * arg, struct hwkv_error * err);

#ifdef __cplusplus
}
#endif

#endif // HWKV_STATE_H
