// The retention rule: what a head with a window holds, what a query sees of it, from where it must be kept and where it can
// go on. Placement, masks, resuming, plans, saved states and replay all ask here.
//
// A window w is the first `sinks` positions and the `recent` newest, the current one included: w = sinks + recent. The full
// history is the same rule with every position recent.
//
// Part of the library, not of its public API.

#ifndef HWKV_RULE_H
#define HWKV_RULE_H

#include "hwkv.h"

#ifdef __cplusplus
extern "C" {
#endif

struct hwkv_rule {
    int32_t sinks;
    int32_t recent;
};

static inline struct hwkv_rule hwkv_rule_of(int32_t window, int32_t sinks) {
    struct hwkv_rule rule = { 0, HWKV_FULL };
    if (window != HWKV_FULL) {
        rule.sinks  = sinks;
        rule.recent = window - sinks;
    }
    return rule;
}

static inline bool hwkv_rule_is_full(struct hwkv_rule rule) {
    return rule.recent == HWKV_FULL;
}

static inline int32_t hwkv_rule_window(struct hwkv_rule rule) {
    return hwkv_rule_is_full(rule) ? HWKV_FULL : rule.sinks + rule.recent;
}

// The oldest recent position that a query at pos sees: below it only sinks are seen.
static inline int32_t hwkv_rule_oldest(struct hwkv_rule rule, int32_t pos) {
    return pos < rule.recent ? 0 : pos - rule.recent + 1;
}

// Whether a query at pos sees a key that causality allows it to see.
static inline bool hwkv_rule_sees(struct hwkv_rule rule, int32_t pos, int32_t key) {
    return key < rule.sinks || key > pos || pos - key < rule.recent;
}

// Whether it sees every position up to its own.
static inline bool hwkv_rule_sees_all(struct hwkv_rule rule, int32_t pos) {
    return hwkv_rule_oldest(rule, pos) <= rule.sinks;
}

// How many of the positions below pos are sinks.
static inline int32_t hwkv_rule_n_sinks(struct hwkv_rule rule, int32_t pos) {
    return rule.sinks < pos ? rule.sinks : pos;
}

// How many positions below pos it sees: what must be held to go on there.
static inline int32_t hwkv_rule_n_needed(struct hwkv_rule rule, int32_t pos) {
    const int32_t oldest = hwkv_rule_oldest(rule, pos);
    return pos - oldest + hwkv_rule_n_sinks(rule, oldest);
}

// From which position on everything must be kept, sinks apart: the queries still to come begin at `first`, and the end of the
// sequence, whose newest position is `last`, may be taken back by n_rollback positions.
static inline int32_t hwkv_rule_keep_from(struct hwkv_rule rule, int32_t first, int32_t last, uint32_t n_rollback) {
    const int64_t back  = (int64_t) last + 1 - n_rollback;
    const int64_t query = first < back ? first : back;
    return query > 0 ? hwkv_rule_oldest(rule, (int32_t) query) : 0;
}

static inline bool hwkv_rule_keeps(struct hwkv_rule rule, int32_t keep_from, int32_t pos) {
    return pos < rule.sinks || pos >= keep_from;
}

// Every position above the result can be continued, when the positions from `lo` to the newest and the first n_first are held.
static inline int32_t hwkv_rule_pos_min(struct hwkv_rule rule, int32_t lo, int32_t n_first) {
    if (lo <= n_first) {
        return 0; // nothing is missing
    }
    if (n_first < rule.sinks) {
        return INT32_MAX; // without its sinks a head cannot be continued exactly
    }
    const int64_t whole = (int64_t) lo + rule.recent - 1; // the first position whose window is whole
    return whole - 1 < INT32_MAX ? (int32_t) (whole - 1) : INT32_MAX;
}

// How many of n_pos positions it holds.
static inline int64_t hwkv_rule_n_held(struct hwkv_rule rule, int64_t n_pos) {
    const int64_t window = (int64_t) rule.sinks + rule.recent;
    return hwkv_rule_is_full(rule) || window >= n_pos ? n_pos : window;
}

// Whether that is all of them: then it is the full history in a context of so many.
static inline bool hwkv_rule_holds_all(struct hwkv_rule rule, int64_t n_pos) {
    return hwkv_rule_n_held(rule, n_pos) == n_pos;
}

// Cells that n_seq sequences fill when each may take back n_rollback positions.
static inline uint64_t hwkv_rule_n_cells(struct hwkv_rule rule, uint32_t n_rollback, uint32_t n_seq) {
    return ((uint64_t) rule.sinks + (uint64_t) rule.recent + n_rollback) * n_seq;
}

// Tokens of a batch, in all sequences together, that always find free cells when there are n_slack more than that: the oldest of
// them sees its window without itself, so one cell is its own.
static inline uint64_t hwkv_rule_n_room(uint32_t n_rollback, uint64_t n_slack) {
    return n_slack + n_rollback + 1;
}

#ifdef __cplusplus
}
#endif

#endif // HWKV_RULE_H
