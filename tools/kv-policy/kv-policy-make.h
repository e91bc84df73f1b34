// Shared by kv-policy-make.c, kv-policy-make-windows.c and kv-policy-make-retype.c.

#ifndef KV_POLICY_MAKE_H
#define KV_POLICY_MAKE_H

#include "kv-policy.h"

enum make_method {
    MAKE_UNIFORM,
    MAKE_STREAMING,
    MAKE_LAYERS,
    MAKE_THRESHOLD,
    MAKE_DUO,
    MAKE_RETYPE,
    MAKE_COUNT,
};

// What --types says: "q8_0", "q8_0/q4_0", or "none" for types that are left to the cache.
struct make_types {
    bool           given;
    enum hwkv_type k; // HWKV_TYPE_CACHE: none
    enum hwkv_type v;
};

struct make_args {
    enum make_method method;
    const char   * model;
    const char   * out;
    const char   * name;
    const char   * windows;
    const char   * scores;
    const char   * policy;
    const char   * point;
    const char   * taus;
    int32_t        context;  // 0: not given
    int32_t        sinks;    // -1: not given
    double         ratio;    // < 0: not given
    struct hwkv_entry window; // window 0: not given
    struct make_types types;
    enum hwkv_type type_k;   // HWKV_TYPE_CACHE: not given
    enum hwkv_type type_v;
    bool           verbose;
};

struct make {
    struct make_args       args;
    struct kvp_model       model;   // zeroed without -m
    struct hwkv_policy   * source;  // that of --scores or --policy, or NULL
    int32_t                source_ip;
    struct hwkv_policy   * policy;  // the result

    const struct hwkv_geometry * geo;
    int32_t                n_unit;
    int32_t              * entries; // [n_unit]
};

// kv-policy-make.c

struct hwkv_cache make_cache_of(const struct hwkv_policy * policy); // what its scores and bytes refer to

// kv-policy-make-windows.c

// The codebook a method needs (window methods, which choose the entries too) or has (score methods). codebook has room for
// HWKV_CODE_MAX. 0, or an exit code with a line on stderr.
int make_codebook(struct make * make, struct hwkv_entry * codebook, int32_t * n_codebook, const struct hwkv_cache * cache);
// Adds the method's points to make->policy; the same.
int make_points(struct make * make);
// Puts the reference among the entries if it is not there, and all in their order; the same.
int make_finish_codebook(const struct make * make, struct hwkv_entry * codebook, int32_t * n, const struct hwkv_cache * cache);

// kv-policy-make-retype.c

// An entry with the types that --types has, where it has any.
struct hwkv_entry make_with_types(const struct make * make, struct hwkv_entry entry);

// The codebook of the source with other types, and its points with entries of that.
int make_retype_codebook(struct make * make, struct hwkv_entry * codebook, int32_t * n_codebook, const struct hwkv_cache * cache);
int make_retype_points  (struct make * make);

#endif // KV_POLICY_MAKE_H
