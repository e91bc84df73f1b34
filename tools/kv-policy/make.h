// Shared by make.c and make-windows.c.

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
    const char * model;
    const char * out;
    const char * name;
    const char * windows;
    const char * scores;
    const char * point;
    const char * taus;
    int64_t      context;  // 0: not given
    int64_t      sinks;    // -1: not given
    int64_t      window;   // 0: not given
    double       ratio;    // < 0: not given
    int          type_k;   // -1: not given
    int          type_v;
    bool         verbose;
};

struct make {
    struct make_args       args;
    struct model_info      model;   // zeroed without -m
    struct hwkv_policy   * source;  // the scores' policy or NULL
    int32_t                source_ip;
    struct hwkv_policy   * policy;  // the result

    const struct hwkv_geometry * geo;
    int32_t                n_unit;
    int32_t              * windows; // [n_unit]
};

// make-windows.c

// The codebook a method needs (window methods) or has (score methods). 0, or an exit code with a line on stderr.
int make_codebook(struct make * make, int32_t * codebook, int32_t * n_codebook);
// Adds the method's points to make->policy; the same.
int make_points(struct make * make);

#endif // KV_POLICY_MAKE_H
