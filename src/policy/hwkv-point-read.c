// JSON tree -> operating points of a policy.

#include "hwkv-impl.h"

#include <math.h>
#include <string.h>

// A matrix layer x KV head. Checked before memory is taken for it: a small file cannot promise a large matrix.
int hwkv_expect_matrix(const struct hwkv_geometry * geo, const struct hwkv_at * at, struct hwkv_error * err) {
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

// A file spells entries out. This is the only place that looks one up.
static int read_entry(int32_t * ic, const struct hwkv_policy * p, const struct hwkv_at * at, int version, struct hwkv_error * err) {
    struct hwkv_entry entry;
    const int status = hwkv_read_entry(&entry, at, version, err);
    if (status) {
        return status;
    }
    for (*ic = 0; *ic < p->n_codebook; (*ic)++) {
        if (hwkv_entry_equal(&p->codebook[*ic], &entry)) {
            return 0;
        }
    }
    char name[HWKV_ENTRY_SIZE];
    return hwkv_fail_at(err, HWKV_ERR_VALUE, at, "found %s, expected one of the codebook", hwkv_entry_format(&entry, name));
}

static int read_entries(int32_t * entries, const struct hwkv_policy * p, const struct hwkv_at * at, int version, struct hwkv_error * err) {
    int32_t jl = 0;
    for (const struct hwkv_json * line = hwkv_json_child(at->node); line; line = hwkv_json_next(line), jl++) {
        const struct hwkv_at at_layer = hwkv_at_element(at, line, jl);
        int32_t ih = 0;
        for (const struct hwkv_json * it = hwkv_json_child(line); it; it = hwkv_json_next(it), ih++) {
            const struct hwkv_at at_head = hwkv_at_element(&at_layer, it, ih);
            const int status = read_entry(entries++, p, &at_head, version, err);
            if (status) {
                return status;
            }
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

// The numbers derived from entries and scores must agree with them: a file edited by hand is caught here.
static int check_shares(const struct hwkv_point * point, const struct hwkv_at * at, int version, struct hwkv_error * err) {
    const struct { const char * key; double value; } shares[] = {
        { "retention", point->retention }, { "retention_tokens", point->retention_tokens }, { "retention_query", point->retention_query },
    };
    for (size_t i = 0; i < (version == 1 ? 1 : sizeof(shares) / sizeof(shares[0])); i++) {
        const struct hwkv_at at_share = hwkv_at_member(at, shares[i].key);
        const int status = check_near(&at_share, shares[i].value, "entries", err);
        if (status) {
            return status;
        }
    }
    const struct hwkv_at at_bytes = hwkv_at_member(at, "bytes");
    int64_t bytes = 0;
    const int status = hwkv_read_int64(&bytes, at, "bytes", 0, (int64_t) 1 << 53, err);
    if (status == 0 && (uint64_t) bytes != point->bytes) {
        return hwkv_fail_at(err, HWKV_ERR_VALUE, &at_bytes, "found %lld, expected %llu from the entries", (long long) bytes,
                            (unsigned long long) point->bytes);
    }
    return status;
}

static int check_min_score(const struct hwkv_point * point, const struct hwkv_at * at, struct hwkv_error * err) {
    const struct hwkv_at at_low = hwkv_at_member(at, "min_score");
    const bool scored = !isnan(point->min_score);
    if (!at_low.node == scored) {
        return hwkv_fail_at(err, scored ? HWKV_ERR_MISSING_KEY : HWKV_ERR_VALUE, at, "found %s, expected both or neither",
                            scored ? "cosine scores without min_score" : "min_score without cosine scores");
    }
    return scored ? check_near(&at_low, point->min_score, "scores", err) : 0;
}

static int read_budget(struct hwkv_point_params * params, const struct hwkv_at * at, struct hwkv_error * err) {
    const struct hwkv_at at_budget = hwkv_at_member(at, "budget");
    const struct hwkv_at at_lambda = hwkv_at_member(at, "lambda");
    if (!at_budget.node && !at_lambda.node) {
        return 0;
    }
    if (!at_budget.node || !at_lambda.node) {
        return hwkv_fail_at(err, HWKV_ERR_MISSING_KEY, at, "found %s, expected both or neither",
                            at_budget.node ? "budget without lambda" : "lambda without budget");
    }
    if (!params->method) {
        return hwkv_fail_at(err, HWKV_ERR_VALUE, at, "found a budget beside tau, expected it beside a method");
    }
    int64_t budget = 0;
    int status = hwkv_read_int64(&budget, at, "budget", 1, (int64_t) 1 << 53, err);
    if (status == 0) {
        params->budget = (uint64_t) budget;
        status = hwkv_read_number(&params->lambda, &at_lambda, err);
    }
    if (status == 0 && !(params->lambda >= 0.0)) {
        return hwkv_fail_at(err, HWKV_ERR_RANGE, &at_lambda, "found %g, expected at least 0", params->lambda);
    }
    return status;
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

static int read_arrays(struct hwkv_policy * p, struct hwkv_point_params * params, const struct hwkv_at * at, int version, struct hwkv_error * err) {
    const struct hwkv_at at_entries    = hwkv_at_member(at, version == 1 ? "windows" : "entries");
    const struct hwkv_at at_scores     = hwkv_at_member(at, "scores");
    const struct hwkv_at at_validation = hwkv_at_member(at, "validation");
    struct hwkv_scores tables[HWKV_KIND_MAX] = { { .values = NULL } };
    int status = hwkv_expect_matrix(&p->geo, &at_entries, err);
    if (status) {
        return status;
    }
    int32_t * entries = hwkv_alloc((size_t) hwkv_policy_n_unit(p), sizeof(*entries));
    if (!entries) {
        return hwkv_fail_at(err, HWKV_ERR_NOMEM, at, "out of memory");
    }
    status = read_entries(entries, p, &at_entries, version, err);
    if (status == 0 && at_scores.node) {
        status = hwkv_scores_read(tables, &params->n_scores, p, &at_scores, version, err);
    }
    char * validation = NULL;
    if (status == 0) {
        status = read_validation(&validation, &at_validation, err);
    }
    if (status == 0) {
        params->entries = entries;
        params->scores  = tables;
        status = hwkv_policy_put_point(p, params, validation, err);
    }
    hwkv_free(entries);
    for (int32_t i = 0; i < HWKV_KIND_MAX; i++) {
        hwkv_free(tables[i].values);
    }
    return status;
}

static int expect_point(const struct hwkv_at * at, int version, struct hwkv_error * err) {
    static const struct hwkv_key keys_1[] = {
        { "name", true },      { "tau", false },   { "method", false },     { "windows", true },    { "scores", false },
        { "retention", true }, { "bytes", true },  { "min_score", false },  { "artifact_id", true }, { "validation", false },
    };
    static const struct hwkv_key keys_2[] = {
        { "name", true },   { "tau", false },    { "method", false },    { "budget", false },          { "lambda", false },
        { "entries", true }, { "scores", false }, { "retention", true },  { "retention_tokens", true }, { "retention_query", true },
        { "bytes", true },  { "min_score", false }, { "artifact_id", true }, { "validation", false },
    };
    return version == 1 ? hwkv_expect_keys(at, keys_1, sizeof(keys_1) / sizeof(keys_1[0]), err)
                        : hwkv_expect_keys(at, keys_2, sizeof(keys_2) / sizeof(keys_2[0]), err);
}

static int read_point(struct hwkv_policy * p, const struct hwkv_at * at, int version, struct hwkv_error * err) {
    char name[HWKV_NAME_MAX];
    char method[HWKV_NAME_MAX];
    char artifact_id[65];
    struct hwkv_point_params params = { .name = name, .artifact_id = artifact_id };
    int status = expect_point(at, version, err);
    if (status == 0) {
        status = hwkv_read_text(name, sizeof(name), at, "name", err);
    }
    if (status == 0) {
        status = read_rule(&params, method, at, err);
    }
    if (status == 0) {
        status = read_budget(&params, at, err);
    }
    if (status == 0) {
        status = hwkv_read_hash(artifact_id, at, "artifact_id", false, err);
    }
    if (status == 0) {
        status = read_arrays(p, &params, at, version, err);
    }
    if (status) {
        return status;
    }
    const struct hwkv_point * point = &p->points[p->n_point - 1];
    status = check_shares(point, at, version, err);
    return status ? status : check_min_score(point, at, err);
}

int hwkv_policy_read_points(struct hwkv_policy * policy, const struct hwkv_at * at, int version, struct hwkv_error * err) {
    int status = hwkv_expect_type(at, HWKV_JSON_ARRAY, err);
    if (status) {
        return status;
    }
    if (!hwkv_json_child(at->node)) {
        return hwkv_fail_at(err, HWKV_ERR_VALUE, at, "found none, expected at least one");
    }
    for (const struct hwkv_json * it = hwkv_json_child(at->node); it && status == 0; it = hwkv_json_next(it)) {
        const struct hwkv_at at_point = hwkv_at_element(at, it, policy->n_point);
        status = read_point(policy, &at_point, version, err);
    }
    return status;
}
