// Shared by kv-policy-make.c and kv-policy-make-windows.c.

#ifndef KV_POLICY_MAKE_H
#define KV_POLICY_MAKE_H

#include "kv-policy.h"

enum make_method {
    MAKE_UNIFORM,
    MAKE_STREAMING,
    MAKE_LAYERS,
    MAKE_THRESHOLD,
    MAKE_DUO,
    MAKE_COUNT,
};

struct make_args {
    enum make_method method;
    const char   * model;
    const char   * out;
    const char   * name;
    const char   * windows;
    const char   * scores;
    const char   * point;
    const char   * taus;
    int32_t        context;  // 0: not given
    int32_t        sinks;    // -1: not given
    int32_t        window;   // 0: not given
    double         ratio;    // < 0: not given
    enum hwkv_type type_k;   // HWKV_TYPE_CACHE: not given
    enum hwkv_type type_v;
    bool           verbose;
};

struct make {
    struct make_args       args;
    struct kvp_model       model;   // zeroed without -m
    struct hwkv_policy   * source;  // the scores' policy or NULL
    int32_t                source_ip;
    struct hwkv_policy   * policy;  // the result

    const struct hwkv_geometry * geo;
    int32_t                n_unit;
    int32_t              * entries; // [n_unit]
};

// kv-policy-make-windows.c

// The codebook a method needs (window methods, which choose the entries too) or has (score methods). codebook has room for
// HWKV_CODE_MAX. 0, or an exit code with a line on stderr.
int make_codebook(struct make * make, struct hwkv_entry * codebook, int32_t * n_codebook);
// Adds the method's points to make->policy; the same.
int make_points(struct make * make);

#endif // KV_POLICY_MAKE_H
