// JSON tree -> tables of scores: a matrix for each kind, or one for each context of a kind.

#include "hwkv-impl.h"

#include <stdio.h>
#include <string.h>

struct reader {
    const struct hwkv_policy * policy;
    struct hwkv_scores       * tables; // [HWKV_KIND_MAX]
    int32_t                    n;
};

static int read_head(double * values, const struct reader * r, const char * kind, const struct hwkv_at * at, struct hwkv_error * err) {
    int status = hwkv_expect_size(at, r->policy->n_codebook, "codebook entry", err);
    int32_t ic = 0;
    for (const struct hwkv_json * it = status ? NULL : hwkv_json_child(at->node); it && status == 0; it = hwkv_json_next(it), ic++) {
        const struct hwkv_at at_score = hwkv_at_element(at, it, ic);
        status = hwkv_read_number(&values[ic], &at_score, err);
        // checked again when the point is added, but only here the path is known
        const char * expected = status ? NULL : hwkv_score_expected(kind, ic == r->policy->reference, values[ic]);
        if (expected) {
            return hwkv_fail_at(err, HWKV_ERR_VALUE, &at_score, "found score %g, expected %s", values[ic], expected);
        }
    }
    return status;
}

static int read_matrix(struct reader * r, const char * kind, int32_t context, const struct hwkv_at * at, struct hwkv_error * err) {
    int status = hwkv_expect_matrix(&r->policy->geo, at, err);
    if (status) {
        return status;
    }
    if (r->n == HWKV_KIND_MAX) {
        return hwkv_fail_at(err, HWKV_ERR_RANGE, at, "found over %d tables of scores, expected at most that many", HWKV_KIND_MAX);
    }
    struct hwkv_scores * table = &r->tables[r->n++];
    *table = (struct hwkv_scores) { .context = context };
    hwkv_copy(table->kind, sizeof(table->kind), kind);
    table->values = hwkv_alloc((size_t) hwkv_policy_n_unit(r->policy) * (size_t) r->policy->n_codebook, sizeof(*table->values));
    if (!table->values) {
        return hwkv_fail_at(err, HWKV_ERR_NOMEM, at, "out of memory");
    }
    double * values = table->values;
    int32_t jl = 0;
    for (const struct hwkv_json * line = hwkv_json_child(at->node); line; line = hwkv_json_next(line), jl++) {
        const struct hwkv_at at_layer = hwkv_at_element(at, line, jl);
        int32_t ih = 0;
        for (const struct hwkv_json * head = hwkv_json_child(line); head; head = hwkv_json_next(head), ih++) {
            const struct hwkv_at at_head = hwkv_at_element(&at_layer, head, ih);
            status = read_head(values, r, kind, &at_head, err);
            if (status) {
                return status;
            }
            values += r->policy->n_codebook;
        }
    }
    return 0;
}

static int fail_none(const struct hwkv_at * at, struct hwkv_error * err) {
    return hwkv_fail_at(err, HWKV_ERR_VALUE, at, "found none, expected at least one or no key \"scores\"");
}

// {"512": matrix, "4096": matrix}
static int read_contexts(struct reader * r, const char * kind, const struct hwkv_at * at, struct hwkv_error * err) {
    if (!hwkv_json_child(at->node)) {
        return fail_none(at, err);
    }
    for (const struct hwkv_json * it = hwkv_json_child(at->node); it; it = hwkv_json_next(it)) {
        const char         * key       = hwkv_json_key(it);
        const struct hwkv_at at_matrix = { .up = at, .node = it, .key = key };
        int32_t context = 0;
        int     status  = hwkv_parse_count(&context, key, strlen(key));
        if (status) {
            char found[48];
            return hwkv_fail_at(err, status, at, "found the context %s, expected a positive 32-bit integer in digits", hwkv_quote(found, key, 40));
        }
        status = read_matrix(r, kind, context, &at_matrix, err);
        if (status) {
            return status;
        }
    }
    return 0;
}

static int read_kind(struct reader * r, const struct hwkv_json * node, const struct hwkv_at * at, struct hwkv_error * err) {
    const char         * kind    = hwkv_json_key(node);
    const struct hwkv_at at_kind = { .up = at, .node = node, .key = kind };
    if (!hwkv_kind_is_valid(kind)) {
        char found[68];
        return hwkv_fail_at(err, HWKV_ERR_VALUE, at, "found the kind %s, expected " HWKV_KIND_EXPECTED, hwkv_quote(found, kind, 60));
    }
    switch (hwkv_json_type(node)) {
        case HWKV_JSON_ARRAY:
            return read_matrix(r, kind, r->policy->context, &at_kind, err);
        case HWKV_JSON_OBJECT:
            return read_contexts(r, kind, &at_kind, err);
        default:
            return hwkv_fail_at(err, HWKV_ERR_TYPE, &at_kind, "found %s, expected an array, or an object of contexts",
                                hwkv_json_type_name(hwkv_json_type(node)));
    }
}

int hwkv_scores_read(struct hwkv_scores tables[HWKV_KIND_MAX], int32_t * n, const struct hwkv_policy * policy, const struct hwkv_at * at, int version,
                     struct hwkv_error * err) {
    struct reader r = { .policy = policy, .tables = tables };
    int status = 0;
    if (version == 1) {
        status = read_matrix(&r, HWKV_KIND_COSINE, policy->context, at, err);
    } else {
        status = hwkv_expect_type(at, HWKV_JSON_OBJECT, err);
        if (status == 0 && !hwkv_json_child(at->node)) {
            status = fail_none(at, err);
        }
        for (const struct hwkv_json * it = status ? NULL : hwkv_json_child(at->node); it && status == 0; it = hwkv_json_next(it)) {
            status = read_kind(&r, it, at, err);
        }
    }
    *n = r.n;
    return status;
}
