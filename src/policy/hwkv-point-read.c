// JSON tree -> operating points of a policy.

#include "hwkv-impl.h"

#include <math.h>
#include <string.h>

// A matrix layer x KV head. Checked before memory is taken for it: a small file cannot promise a large matrix.
static int check_shape(const struct hwkv_geometry * geo, const struct hwkv_at * at, struct hwkv_error * err) {
    int status = hwkv_expect_size(at, geo->n_full, "full-attention layer", err);
    if (status) {
        return status;
    }
    int32_t jl = 0;
    for (const struct hwkv_json * line = hwkv_json_child(at->node); line && status == 0; line = hwkv_json_next(line), jl++) {
        const struct hwkv_at at_layer = hwkv_at_element(at, line, jl);
        status = hwkv_expect_size(&at_layer, geo->layers[jl].n_head_kv, "KV head", err);
    }
    return status;
}

// A file names entries by their windows. This is the only place that looks one up.
static int read_entry(int32_t * entry, const struct hwkv_policy * p, const struct hwkv_at * at, struct hwkv_error * err) {
    int32_t window = 0;
    const int status = hwkv_read_window(&window, at, err);
    if (status) {
        return status;
    }
    for (int32_t ic = 0; ic < p->n_codebook; ic++) {
        if (p->codebook[ic].window == window) {
            *entry = ic;
            return 0;
        }
    }
    return hwkv_fail_at(err, HWKV_ERR_VALUE, at, "found window %d, expected one of the codebook", (int) window);
}

static int read_windows(int32_t * entries, const struct hwkv_policy * p, const struct hwkv_at * at, struct hwkv_error * err) {
    int32_t jl = 0;
    for (const struct hwkv_json * line = hwkv_json_child(at->node); line; line = hwkv_json_next(line), jl++) {
        const struct hwkv_at at_layer = hwkv_at_element(at, line, jl);
        int32_t ih = 0;
        for (const struct hwkv_json * it = hwkv_json_child(line); it; it = hwkv_json_next(it), ih++) {
            const struct hwkv_at at_head = hwkv_at_element(&at_layer, it, ih);
            const int status = read_entry(entries++, p, &at_head, err);
            if (status) {
                return status;
            }
        }
    }
    return 0;
}

static int read_head_scores(double * scores, const struct hwkv_at * at, struct hwkv_error * err) {
    int32_t ic = 0;
    for (const struct hwkv_json * it = hwkv_json_child(at->node); it; it = hwkv_json_next(it), ic++) {
        const struct hwkv_at at_score = hwkv_at_element(at, it, ic);
        const int status = hwkv_read_number(&scores[ic], &at_score, err);
        if (status) {
            return status;
        }
    }
    return 0;
}

static int read_scores(double * scores, int32_t n_codebook, const struct hwkv_at * at, struct hwkv_error * err) {
    int32_t jl = 0;
    for (const struct hwkv_json * line = hwkv_json_child(at->node); line; line = hwkv_json_next(line), jl++) {
        const struct hwkv_at at_layer = hwkv_at_element(at, line, jl);
        int32_t ih = 0;
        for (const struct hwkv_json * head = hwkv_json_child(line); head; head = hwkv_json_next(head), ih++) {
            const struct hwkv_at at_head = hwkv_at_element(&at_layer, head, ih);
            int status = hwkv_expect_size(&at_head, n_codebook, "codebook entry", err);
            if (status == 0) {
                status = read_head_scores(scores, &at_head, err);
            }
            if (status) {
                return status;
            }
            scores += n_codebook;
        }
    }
    return 0;
}

static int check_near(const struct hwkv_at * at, double expected, const char * source, struct hwkv_error * err) {
    double found = 0.0;
    const int status = hwkv_read_number(&found, at, err);
    if (status == 0 && !(fabs(found - expected) <= 1e-6)) {
        return hwkv_fail_at(err, HWKV_ERR_VALUE, at, "found %.9g, expected %.9g from the %s", found, expected, source);
    }
    return status;
}

// The numbers derived from windows and scores must agree with them: a file edited by hand is caught here.
static int check_derived(const struct hwkv_point * point, const struct hwkv_at * at, struct hwkv_error * err) {
    const struct hwkv_at at_retention = hwkv_at_member(at, "retention");
    const struct hwkv_at at_bytes     = hwkv_at_member(at, "bytes");
    const struct hwkv_at at_low       = hwkv_at_member(at, "min_score");
    int status = check_near(&at_retention, point->retention, "windows", err);
    int64_t bytes = 0;
    if (status == 0) {
        status = hwkv_read_int64(&bytes, at, "bytes", 0, (int64_t) 1 << 53, err);
    }
    if (status == 0 && (uint64_t) bytes != point->bytes) {
        status = hwkv_fail_at(err, HWKV_ERR_VALUE, &at_bytes, "found %lld, expected %llu from the windows", (long long) bytes,
                              (unsigned long long) point->bytes);
    }
    if (status) {
        return status;
    }
    if (!at_low.node != !point->scores) {
        return hwkv_fail_at(err, point->scores ? HWKV_ERR_MISSING_KEY : HWKV_ERR_VALUE, at, "found %s, expected both or neither",
                            point->scores ? "scores without min_score" : "min_score without scores");
    }
    return at_low.node ? check_near(&at_low, point->min_score, "scores", err) : 0;
}

static int read_rule(struct hwkv_point_params * params, char method[HWKV_NAME_MAX], const struct hwkv_at * at, struct hwkv_error * err) {
    const struct hwkv_at at_tau = hwkv_at_member(at, "tau");
    if (!at_tau.node == !hwkv_json_get(at->node, "method")) {
        return hwkv_fail_at(err, at_tau.node ? HWKV_ERR_VALUE : HWKV_ERR_MISSING_KEY, at,
                            "found %s of the keys \"tau\" and \"method\", expected exactly one", at_tau.node ? "both" : "none");
    }
    if (!at_tau.node) {
        params->method = method;
        return hwkv_read_text(method, HWKV_NAME_MAX, at, "method", err);
    }
    const int status = hwkv_read_number(&params->tau, &at_tau, err);
    if (status == 0 && !(params->tau > 0.0 && params->tau <= 1.0)) {
        return hwkv_fail_at(err, HWKV_ERR_RANGE, &at_tau, "found %g, expected above 0 and at most 1", params->tau);
    }
    return status;
}

// What a file says is checked already: it is kept as it was printed, not read again.
static int read_validation(char ** out, const struct hwkv_at * at, struct hwkv_error * err) {
    if (!at->node) {
        return 0;
    }
    const int status = hwkv_expect_type(at, HWKV_JSON_OBJECT, err);
    return status ? status : hwkv_json_print_compact(out, at->node, err);
}

static int read_arrays(struct hwkv_policy * p, struct hwkv_point_params * params, const struct hwkv_at * at, struct hwkv_error * err) {
    const struct hwkv_at at_windows    = hwkv_at_member(at, "windows");
    const struct hwkv_at at_scores     = hwkv_at_member(at, "scores");
    const struct hwkv_at at_validation = hwkv_at_member(at, "validation");
    int status = check_shape(&p->geo, &at_windows, err);
    if (status == 0 && at_scores.node) {
        status = check_shape(&p->geo, &at_scores, err);
    }
    if (status) {
        return status;
    }
    const size_t n_unit  = (size_t) hwkv_policy_n_unit(p);
    int32_t    * entries = hwkv_alloc(n_unit, sizeof(*entries));
    double     * scores  = at_scores.node ? hwkv_alloc(n_unit * (size_t) p->n_codebook, sizeof(*scores)) : NULL;
    if (!entries || (at_scores.node && !scores)) {
        status = hwkv_fail_at(err, HWKV_ERR_NOMEM, at, "out of memory");
    }
    if (status == 0) {
        status = read_windows(entries, p, &at_windows, err);
    }
    if (status == 0 && at_scores.node) {
        status = read_scores(scores, p->n_codebook, &at_scores, err);
    }
    char * validation = NULL;
    if (status == 0) {
        status = read_validation(&validation, &at_validation, err);
    }
    if (status == 0) {
        params->entries = entries;
        params->scores  = scores;
        status = hwkv_policy_put_point(p, params, validation, err);
    }
    hwkv_free(entries);
    hwkv_free(scores);
    return status;
}

static int read_point(struct hwkv_policy * p, const struct hwkv_at * at, struct hwkv_error * err) {
    static const struct hwkv_key keys[] = {
        { "name", true },      { "tau", false },   { "method", false },     { "windows", true },    { "scores", false },
        { "retention", true }, { "bytes", true },  { "min_score", false },  { "artifact_id", true }, { "validation", false },
    };
    char name[HWKV_NAME_MAX];
    char method[HWKV_NAME_MAX];
    char artifact_id[65];
    struct hwkv_point_params params = { .name = name, .artifact_id = artifact_id };
    int status = hwkv_expect_keys(at, keys, sizeof(keys) / sizeof(keys[0]), err);
    if (status == 0) {
        status = hwkv_read_text(name, sizeof(name), at, "name", err);
    }
    if (status == 0) {
        status = read_rule(&params, method, at, err);
    }
    if (status == 0) {
        status = hwkv_read_hash(artifact_id, at, "artifact_id", false, err);
    }
    if (status == 0) {
        status = read_arrays(p, &params, at, err);
    }
    return status ? status : check_derived(&p->points[p->n_point - 1], at, err);
}

int hwkv_policy_read_points(struct hwkv_policy * policy, const struct hwkv_at * at, struct hwkv_error * err) {
    int status = hwkv_expect_type(at, HWKV_JSON_ARRAY, err);
    if (status) {
        return status;
    }
    if (!hwkv_json_child(at->node)) {
        return hwkv_fail_at(err, HWKV_ERR_VALUE, at, "found none, expected at least one");
    }
    for (const struct hwkv_json * it = hwkv_json_child(at->node); it && status == 0; it = hwkv_json_next(it)) {
        const struct hwkv_at at_point = hwkv_at_element(at, it, policy->n_point);
        status = read_point(policy, &at_point, err);
    }
    return status;
}
