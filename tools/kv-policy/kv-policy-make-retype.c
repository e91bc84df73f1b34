// `llama-kv-policy make retype`: the windows of a policy with other cache types.

#include "kv-policy-make.h"

#include "hwkv-error.h"

#include <stdlib.h>
#include <string.h>

struct hwkv_entry make_with_types(const struct make * make, struct hwkv_entry entry) {
    if (make->args.types.given) {
        entry.type_k = make->args.types.k;
        entry.type_v = make->args.types.v;
    }
    return entry;
}

static bool find_entry(const struct hwkv_entry * codebook, int32_t n, const struct hwkv_entry * entry, int32_t * ic) {
    for (int32_t i = 0; i < n; i++) {
        if (hwkv_entry_equal(&codebook[i], entry)) {
            *ic = i;
            return true;
        }
    }
    return false;
}

// What an entry of the source becomes. Without --types typed ones keep theirs, and -ctk and -ctv are the reference's.
static struct hwkv_entry retyped(const struct make * make, int32_t ic) {
    return make_with_types(make, hwkv_policy_codebook(make->source, NULL)[ic]);
}

// Entries that come to the same are one; the reference is among them.
int make_retype_codebook(struct make * make, struct hwkv_entry * codebook, int32_t * n_codebook, const struct hwkv_cache * cache) {
    int32_t n_source;
    int32_t n  = 0;
    int32_t at = 0;
    hwkv_policy_codebook(make->source, &n_source);
    for (int32_t ic = 0; ic < n_source; ic++) {
        const struct hwkv_entry entry = retyped(make, ic);
        if (!find_entry(codebook, n, &entry, &at)) {
            codebook[n++] = entry;
        }
    }
    *n_codebook = n;
    return make_finish_codebook(make, codebook, n_codebook, cache);
}

// Do all entries take the same types as before, only spelled otherwise? Then what was measured holds.
static bool is_respelling(const struct make * make) {
    const struct hwkv_cache was = make_cache_of(make->source);
    const struct hwkv_cache is  = make_cache_of(make->policy);
    int32_t n_source;
    int32_t n;
    const struct hwkv_entry * source = hwkv_policy_codebook(make->source, &n_source);
    const struct hwkv_entry * result = hwkv_policy_codebook(make->policy, &n);
    if (n != n_source || hwkv_policy_reference(make->source) != hwkv_policy_reference(make->policy)) {
        return false;
    }
    for (int32_t ic = 0; ic < n; ic++) {
        const struct hwkv_entry a = hwkv_entry_settle(&source[ic], &was);
        const struct hwkv_entry b = hwkv_entry_settle(&result[ic], &is);
        if (!hwkv_entry_equal(&a, &b)) {
            return false;
        }
    }
    return true;
}

static void describe(const struct make * make, const struct hwkv_point * point, char * method, size_t size) {
    char source[80]; // a long method is cut, so that there is room for the types
    if (point->tau > 0.0) {
        snprintf(source, sizeof(source), "tau %.6g", point->tau);
    } else {
        hwkv_copy(source, sizeof(source), point->method);
    }
    const struct make_types * t = &make->args.types;
    const bool           typed  = t->given && t->k != HWKV_TYPE_CACHE;
    const enum hwkv_type type_k = typed ? t->k : hwkv_policy_type_k(make->policy);
    const enum hwkv_type type_v = typed ? t->v : hwkv_policy_type_v(make->policy);
    snprintf(method, size, "%s with %s %s/%s", source, typed || !hwkv_policy_has_types(make->policy) ? "types" : "reference", hwkv_type_name(type_k),
             hwkv_type_name(type_v));
}

// What was measured is left out where types are others.
static int add_point(struct make * make, const struct hwkv_point * point, bool measured) {
    int32_t n_codebook;
    const struct hwkv_entry * codebook = hwkv_policy_codebook(make->policy, &n_codebook);
    for (int32_t i = 0; i < make->n_unit; i++) {
        const struct hwkv_entry entry = retyped(make, point->entries[i]);
        find_entry(codebook, n_codebook, &entry, &make->entries[i]);
    }
    char method[HWKV_NAME_MAX];
    describe(make, point, method, sizeof(method));

    struct hwkv_point_params params = { .name = point->name, .method = method, .entries = make->entries };
    if (measured) {
        params.tau        = point->tau;
        params.method     = point->tau > 0.0 ? NULL : point->method;
        params.budget     = point->budget;
        params.lambda     = point->lambda;
        params.scores     = point->scores;
        params.n_scores   = point->n_scores;
        params.validation = point->validation;
    }
    struct hwkv_error err;
    return hwkv_policy_add_point(make->policy, &params, &err) == HWKV_OK ? TOOL_EXIT_OK : tool_fail_file(make->args.out, &err);
}

int make_retype_points(struct make * make) {
    const bool measured = is_respelling(make);
    bool       scored   = false;
    for (int32_t ip = 0; ip < hwkv_policy_n_point(make->source); ip++) {
        const struct hwkv_point * point = hwkv_policy_point(make->source, ip);
        const int code = add_point(make, point, measured);
        if (code != TOOL_EXIT_OK) {
            return code;
        }
        scored = scored || point->n_scores > 0 || point->validation;
    }
    if (scored && !measured) {
        tool_warn("%s: scores and validation are left out, they were measured with other types", make->args.out);
    }
    struct hwkv_error err;
    const char * selected = hwkv_policy_point(make->source, hwkv_policy_selected(make->source))->name;
    return hwkv_policy_select(make->policy, selected, &err) == HWKV_OK ? TOOL_EXIT_OK : tool_fail_file(make->args.out, &err);
}
