// The file of a saved slot under a KV policy: its tokens, the state of all its heads and its checkpoints.
//
// All numbers in the machine's byte order.
//
//   "HWKVSLOT"  u32 version  u32 version of llama.cpp's states  u64 size of the file
//   text: id of the model, description of the cache, id of windows and types  each: u32 size, bytes
//   bytes: tokens, state, state of the draft                                each: u64 size, bytes
//   u32 number of checkpoints  u32 number of blocks
//   blocks                                                                  each: u32 size, bytes
//   checkpoints                                                             each: i64 tokens, i32 first and last position, u32 turn,
//                                                                                 blocks of the state, of the draft's state
//                                                                                 (u32 count, u32 indices), bytes of the speculator
//   u64 hash of all bytes before it
//
// A file may come from anybody, with a hash that is right. It is read in pieces, and no size in it is believed before it is held
// against what this server could have written; then every part is held against every other (hwkv_slot_check).
//
// Part of the library, not of its public API.

#ifndef HWKV_SLOT_FILE_H
#define HWKV_SLOT_FILE_H

#include "hwkv-state.h"

#ifdef __cplusplus
extern "C" {
#endif

#define HWKV_SLOT_BLOCK_MIN 1024u          // the last block of a state may be smaller
#define HWKV_SLOT_BLOCK_MAX (16u * 1024u)

// in the order in which they are compared: what differs in the coarsest way is told
enum { HWKV_SLOT_MODEL, HWKV_SLOT_CACHE, HWKV_SLOT_POLICY, HWKV_SLOT_N_ID };

struct hwkv_slot_block {
    const uint8_t * data; // not the slot's; NULL: it was not taken
    uint32_t        size;
};

struct hwkv_slot_checkpoint {
    int64_t    n_tokens;
    int32_t    pos_min;
    int32_t    pos_max;
    uint32_t   turn;
    uint32_t   n_block[2]; // of the state, of the draft's
    uint32_t * blocks[2];  // indices
    uint8_t  * spec;
    uint64_t   spec_size;
};

struct hwkv_slot {
    uint8_t * tokens;
    uint64_t  tokens_size;
    uint8_t * state[2];      // the draft's: may be empty
    uint64_t  state_size[2];
    uint64_t  state_at[2];   // where its bytes begin in the file, of a slot that was read

    struct hwkv_slot_block      * blocks;
    uint32_t                      n_block;
    struct hwkv_slot_checkpoint * checkpoints;
    uint32_t                      n_checkpoint;
};

// what a file and a server must have in common
struct hwkv_slot_id {
    const char * text[HWKV_SLOT_N_ID];
    uint32_t     state_version; // of llama.cpp
};

// Writes it in one pass; returns the bytes, 0 if `write` said no. write NULL: only counts.
typedef bool (*hwkv_slot_write_fn)(const void * data, size_t size, void * arg);
uint64_t hwkv_slot_write(const struct hwkv_slot * slot, const struct hwkv_slot_id * id, hwkv_slot_write_fn write, void * arg);

struct hwkv_slot_source {
    bool   (*read)(void * dst, size_t size, void * arg);
    void   * arg;
    uint64_t size; // of the file

    // Where the bytes of a block go: a copy that lives as long as the slot, or NULL if there is no room for it.
    const uint8_t * (*take)(const uint8_t * data, uint32_t size, void * arg);
    void * take_arg;
};

struct hwkv_slot_expect {
    struct hwkv_slot_id id;
    const struct hwkv_state_shape * shape[2]; // the draft's: NULL without one
    uint32_t n_ctx;                           // tokens that a slot can hold
    bool     images;                          // tokens may have some
};

// Zeroed is an empty slot. Errors leave one that can be freed.
int  hwkv_slot_read(struct hwkv_slot * slot, const struct hwkv_slot_source * source, const struct hwkv_slot_expect * expect, struct hwkv_error * err);
void hwkv_slot_free(struct hwkv_slot * slot);

// Frees the bytes of the states; their sizes and places stay.
void hwkv_slot_drop_states(struct hwkv_slot * slot);

// Does everything in it fit together, and with these tokens? Checkpoints with a block that was not taken are not looked at.
int hwkv_slot_check(const struct hwkv_slot * slot, const struct hwkv_slot_expect * expect, const int32_t * tokens, uint32_t n_tokens, int32_t n_pos,
                    struct hwkv_error * err);

// true if all its blocks were taken
bool hwkv_slot_has(const struct hwkv_slot * slot, const struct hwkv_slot_checkpoint * checkpoint);

#ifdef __cplusplus
}
#endif

#endif // HWKV_SLOT_FILE_H
