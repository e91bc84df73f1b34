// What the memory of one sequence was computed from: its tokens, in order, each with its position.
//
// Keys and values of a token depend on every token before it. So rows may serve a prompt only as far as the prompt begins
// with the very tokens that they were computed from; what was moved since (a context shift, say) serves none.
//
// Part of the library, not of its public API.

#ifndef HWKV_HISTORY_H
#define HWKV_HISTORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// of an item that is no token, such as a part of an image: then the other bits are a hash of it
#define HWKV_HISTORY_OPAQUE 0x80000000u

struct hwkv_history_item {
    int32_t  pos;
    uint32_t what;  // token, or HWKV_HISTORY_OPAQUE and a hash
    uint64_t mark;  // hash of all items up to this one, and of what was done to them
};

struct hwkv_history {
    struct hwkv_history_item * items; // [n_max], positions never descend
    size_t n;
    size_t n_max;
    size_t n_exact; // the first items that stand where they were computed, with all before them
};

// zeroed is an empty history
void hwkv_history_free(struct hwkv_history * h);

// These fail only when memory is out (false), and leave the history as it was.
bool hwkv_history_reserve(struct hwkv_history * h, size_t n);
bool hwkv_history_add    (struct hwkv_history * h, int32_t pos, uint32_t what);
bool hwkv_history_copy   (struct hwkv_history * dst, const struct hwkv_history * src, int32_t p0, int32_t p1); // seq_cp

// What llama.cpp does to the positions [p0, p1) of a sequence.
void hwkv_history_remove(struct hwkv_history * h, int32_t p0, int32_t p1);
void hwkv_history_shift (struct hwkv_history * h, int32_t p0, int32_t p1, int32_t shift);
void hwkv_history_divide(struct hwkv_history * h, int32_t p0, int32_t p1, int32_t d);

// How many of the first n tokens the memory was computed from and still holds in place.
size_t hwkv_history_n_same(const struct hwkv_history * h, const int32_t * tokens, size_t n);

// Tells the first n items from any others; 0 if there are not so many.
uint64_t hwkv_history_mark(const struct hwkv_history * h, size_t n);

// True if the marks of the exact items are those that their tokens give and positions don't descend: one that was read from a
// file may be anything.
bool hwkv_history_is_valid(const struct hwkv_history * h);

#ifdef __cplusplus
}
#endif

#endif // HWKV_HISTORY_H
