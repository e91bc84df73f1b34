// The candidates of a calibration: every window with every pair of cache types, and which of them one replay gives together.

#ifndef SC_CODEBOOK_H
#define SC_CODEBOOK_H

#include "hwkv.h"

#define SC_PAIR_MAX 32

// of K and V
struct sc_pair {
    enum hwkv_type k;
    enum hwkv_type v;
};

struct sc_pairs {
    struct sc_pair pair[SC_PAIR_MAX];
    int32_t        n;
};

// The entries of one pair of types: a scan of the keys gives them all.
struct sc_scan {
    struct sc_pair types;
    int32_t        n_rot_k; // a cache of these types rotates every so many elements of a row before it rounds them; 0: none
    int32_t        n_rot_v;
    int32_t        first;   // of its windows in the codebook's
    int32_t        n;
};

struct sc_codebook {
    struct hwkv_entry entries[HWKV_CODE_MAX]; // as in the file
    int32_t           n;
    int32_t           reference;              // what scores and shares refer to
    bool              typed;                  // entries have types; else they are left to the cache
    struct sc_pair    cache;                  // its types

    struct sc_scan    scans[HWKV_CODE_MAX];
    int32_t           n_scan;
    struct hwkv_entry windows[HWKV_CODE_MAX]; // scan by scan, ascending, each ending with full
    int32_t           scan[HWKV_CODE_MAX];    // of an entry
    int32_t           slot[HWKV_CODE_MAX];    // of an entry among the windows of its scan
};

struct sc_codebook_params {
    const struct hwkv_geometry * geo;
    int32_t                      n_ctx;
    const int32_t              * windows; // [n_window] finite ones, ascending
    int32_t                      n_window;
    const struct sc_pairs      * pairs;   // of all candidates; none: types are left to the cache
    struct sc_pair               cache;   // types of the reference
};

// HWKV_ERR_RANGE: more entries than a policy holds; other errors are those of hwkv_codebook_sort. Nothing is rotated.
int sc_codebook_init(struct sc_codebook * codebook, const struct sc_codebook_params * params, struct hwkv_error * err);

// One entry: the reference.
void sc_codebook_full(struct sc_codebook * codebook, const struct sc_codebook * of);

#endif // SC_CODEBOOK_H
