// Operating points: adding them with their derived numbers, and what is recorded beside them.

#include "hwkv-impl.h"
#include "hwkv-number.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static int validate_name(const struct hwkv_policy * policy, const char * name, const char * path, struct hwkv_error * err) {
    const size_t n = name ? strlen(name) : 0;
    if (n < 1 || n >= HWKV_NAME_MAX) {
        return hwkv_fail(err, HWKV_ERR_RANGE, path, "found a name of %zu bytes, expected 1 to %d", n, HWKV_NAME_MAX - 1);
    }
    if (!hwkv_is_utf8(name)) {
        return hwkv_fail(err, HWKV_ERR_UTF8, path, "found bytes that are not UTF-8, expected UTF-8 text");
    }
    for (int32_t i = 0; i < policy->n_point; i++) {
        if (strcmp(policy->points[i].name, name) == 0) {
            return hwkv_fail(err, HWKV_ERR_VALUE, path, "found the name \"%s\" again, expected unique names", name);
        }
    }
    return 0;
}

static int validate_entries(const struct hwkv_policy * policy, const int32_t * entries, const char * path, struct hwkv_error * err) {
    for (int32_t jl = 0; jl < policy->geo.n_full; jl++) {
        for (int32_t ih = 0; ih < policy->geo.layers[jl].n_head_kv; ih++) {
            const int32_t ic = entries[hwkv_policy_unit(policy, jl, ih)];
            if (ic < 0 || ic >= policy->n_codebook) {
                char at[128];
                snprintf(at, sizeof(at), "%s.entries[%d][%d]", path, (int) jl, (int) ih);
                return hwkv_fail(err, HWKV_ERR_VALUE, at, "found entry %d, expected one of the codebook's %d", (int) ic, (int) policy->n_codebook);
            }
        }
    }
    return 0;
}

static double lowest_score(const struct hwkv_policy * policy, const int32_t * entries, const double * scores) {
    double low = 1.0;
    for (int32_t u = 0; u < hwkv_policy_n_unit(policy); u++) {
        const double s = scores[(size_t) u * (size_t) policy->n_codebook + (size_t) entries[u]];
        low = s < low ? s : low;
    }
    return low;
}

// Types of the entries' own come after everything else, so that a policy without any keeps its id.
static void hash_types(struct hwkv_sha256 * s, const struct hwkv_policy * policy, const int32_t * entries) {
    if (!hwkv_policy_has_types(policy)) {
        return;
    }
    for (int32_t i = 0; i < policy->n_codebook; i++) {
        hwkv_sha256_string(s, hwkv_type_name(policy->codebook[i].type_k));
        hwkv_sha256_string(s, hwkv_type_name(policy->codebook[i].type_v));
    }
    for (int32_t u = 0; u < hwkv_policy_n_unit(policy); u++) {
        hwkv_sha256_i64(s, entries[u]);
    }
}

// For points that no calibration names: the content itself.
static void content_id(const struct hwkv_policy * policy, const struct hwkv_point_params * p, char hex[65]) {
    struct hwkv_sha256 s;
    hwkv_sha256_init(&s);
    hwkv_sha256_string(&s, policy->geo.architecture);
    hwkv_sha256_string(&s, policy->geo.fingerprint);
    hwkv_sha256_i64(&s, policy->context);
    hwkv_sha256_i64(&s, policy->sinks);
    hwkv_sha256_string(&s, hwkv_type_name(policy->type_k));
    hwkv_sha256_string(&s, hwkv_type_name(policy->type_v));
    for (int32_t i = 0; i < policy->n_codebook; i++) {
        hwkv_sha256_i64(&s, policy->codebook[i].window);
    }
    char tau[32];
    hwkv_snprintf(tau, sizeof(tau), "%.17g", p->tau);
    hwkv_sha256_string(&s, p->method ? p->method : tau);
    for (int32_t u = 0; u < hwkv_policy_n_unit(policy); u++) {
        hwkv_sha256_i64(&s, policy->codebook[p->entries[u]].window);
    }
    hash_types(&s, policy, p->entries);
    if (p->budget > 0) {
        char lambda[32];
        hwkv_snprintf(lambda, sizeof(lambda), "%.17g", p->lambda);
        hwkv_sha256_i64(&s, (int64_t) p->budget);
        hwkv_sha256_string(&s, lambda);
    }
    hwkv_sha256_final(&s, hex);
}

static int validate_rule(const struct hwkv_point_params * p, const char * path, struct hwkv_error * err) {
    if ((p->method != NULL) == (p->tau != 0.0)) {
        return hwkv_fail(err, HWKV_ERR_VALUE, path, "found %s of tau and method, expected exactly one", p->method ? "both" : "none");
    }
    if (p->method && (!p->method[0] || strlen(p->method) >= HWKV_NAME_MAX)) {
        return hwkv_fail(err, HWKV_ERR_RANGE, path, "found a method of %zu bytes, expected 1 to %d", strlen(p->method), HWKV_NAME_MAX - 1);
    }
    if (p->method && !hwkv_is_utf8(p->method)) {
        return hwkv_fail(err, HWKV_ERR_UTF8, path, "found a method that is not UTF-8, expected UTF-8 text");
    }
    if (!p->method && !(p->tau > 0.0 && p->tau <= 1.0)) {
        char at[128];
        snprintf(at, sizeof(at), "%s.tau", path);
        return hwkv_fail(err, HWKV_ERR_RANGE, at, "found %g, expected above 0 and at most 1", p->tau);
    }
    return 0;
}

static int validate_budget(const struct hwkv_point_params * p, const char * path, struct hwkv_error * err) {
    if (p->budget == 0) {
        return p->lambda == 0.0 || isnan(p->lambda) ? 0 : hwkv_fail(err, HWKV_ERR_VALUE, path, "found lambda without budget, expected both or neither");
    }
    if (!p->method) {
        return hwkv_fail(err, HWKV_ERR_VALUE, path, "found a budget beside tau, expected it beside a method");
    }
    if (p->budget > (uint64_t) 1 << 53) {
        return hwkv_fail(err, HWKV_ERR_RANGE, path, "found a budget of %llu bytes, expected at most 2^53", (unsigned long long) p->budget);
    }
    if (!(p->lambda >= 0.0) || !isfinite(p->lambda)) {
        return hwkv_fail(err, HWKV_ERR_RANGE, path, "found lambda %g, expected a finite number of at least 0", p->lambda);
    }
    return 0;
}

static int validate_point(const struct hwkv_policy * policy, const struct hwkv_point_params * p, const char * path, struct hwkv_error * err) {
    char at[128];
    snprintf(at, sizeof(at), "%s.name", path);
    int status = validate_name(policy, p->name, at, err);
    if (status) {
        return status;
    }
    status = validate_rule(p, path, err);
    if (status == 0) {
        status = validate_budget(p, path, err);
    }
    if (status) {
        return status;
    }
    if (p->artifact_id && !hwkv_is_hex64(p->artifact_id)) {
        snprintf(at, sizeof(at), "%s.artifact_id", path);
        char found[88];
        return hwkv_fail(err, HWKV_ERR_VALUE, at, "found %s, expected 64 lower-case hex digits", hwkv_quote(found, p->artifact_id, 80));
    }
    status = validate_entries(policy, p->entries, path, err);
    snprintf(at, sizeof(at), "%s.scores", path);
    return status ? status : hwkv_scores_validate(policy, p->scores, p->n_scores, at, err);
}

static int node_depth(const struct hwkv_json * node) {
    int depth = 0;
    for (const struct hwkv_json * it = hwkv_json_child(node); it; it = hwkv_json_next(it)) {
        const int d = node_depth(it);
        depth = d > depth ? d : depth;
    }
    const enum hwkv_json_type type = hwkv_json_type(node);
    return depth + (type == HWKV_JSON_ARRAY || type == HWKV_JSON_OBJECT);
}

// JSON text kept as it is: it must be one object, and fit where it stands in the file, `at` levels down.
static int copy_object(char ** out, const char * json, int at, const char * path, struct hwkv_error * err) {
    *out = NULL;
    if (!json) {
        return 0;
    }
    struct hwkv_json * node = NULL;
    int status = hwkv_json_parse(&node, json, strlen(json), err);
    if (status == 0 && hwkv_json_type(node) != HWKV_JSON_OBJECT) {
        status = hwkv_fail(err, HWKV_ERR_TYPE, path, "found %s, expected an object", hwkv_json_type_name(hwkv_json_type(node)));
    }
    if (status == 0 && at + node_depth(node) > HWKV_DEPTH_MAX) {
        status = hwkv_fail(err, HWKV_ERR_TOO_DEEP, path, "found %d levels, expected at most %d here", node_depth(node), HWKV_DEPTH_MAX - at);
    }
    if (status == 0) {
        status = hwkv_json_print_compact(out, node, err);
    }
    hwkv_json_free(node);
    return status;
}

static int reserve_point(struct hwkv_policy * policy, struct hwkv_error * err) {
    if (policy->n_point < policy->cap_point) {
        return 0;
    }
    const int32_t cap = policy->cap_point > 0 ? 2 * policy->cap_point : 4;
    struct hwkv_point * points = hwkv_alloc((size_t) cap, sizeof(*points));
    if (!points) {
        return hwkv_fail(err, HWKV_ERR_NOMEM, NULL, "out of memory");
    }
    if (policy->n_point > 0) {
        memcpy(points, policy->points, (size_t) policy->n_point * sizeof(*points));
    }
    hwkv_free(policy->points);
    policy->points    = points;
    policy->cap_point = cap;
    return 0;
}

// What a point has of its own, before it is part of the policy.
static int fill_point(struct hwkv_point * point, const struct hwkv_policy * policy, const struct hwkv_point_params * params, struct hwkv_error * err) {
    const struct hwkv_cache cache = hwkv_policy_cache(policy);
    const size_t n_unit = (size_t) hwkv_policy_n_unit(policy);
    int status = hwkv_scores_copy(&point->scores, params->scores, params->n_scores, n_unit * (size_t) policy->n_codebook, err);
    if (status) {
        return status;
    }
    point->n_scores = params->n_scores;
    point->entries  = hwkv_alloc(n_unit, sizeof(*point->entries));
    if (!point->entries) {
        hwkv_scores_free(point->scores, point->n_scores);
        return hwkv_fail(err, HWKV_ERR_NOMEM, NULL, "out of memory");
    }
    memcpy(point->entries, params->entries, n_unit * sizeof(*point->entries));
    hwkv_copy(point->name, sizeof(point->name), params->name);
    hwkv_copy(point->method, sizeof(point->method), params->method ? params->method : "");
    point->tau       = params->tau;
    point->budget    = params->budget;
    point->lambda    = params->budget > 0 ? params->lambda : (double) NAN;
    point->bytes     = hwkv_cost(&policy->geo, policy->codebook, params->entries, &cache);
    point->retention = hwkv_retention(&policy->geo, policy->codebook, params->entries, &cache);
    point->retention_tokens = hwkv_retention_tokens(&policy->geo, policy->codebook, params->entries, policy->context);
    point->retention_query  = hwkv_retention_query (&policy->geo, policy->codebook, params->entries, policy->context);
    const double * cosines = hwkv_point_scores(point, policy, HWKV_KIND_COSINE);
    point->min_score = cosines ? lowest_score(policy, params->entries, cosines) : (double) NAN;
    if (params->artifact_id) {
        hwkv_copy(point->artifact_id, sizeof(point->artifact_id), params->artifact_id);
    } else {
        content_id(policy, params, point->artifact_id);
    }
    return 0;
}

int hwkv_policy_put_point(struct hwkv_policy * policy, const struct hwkv_point_params * params, char * validation, struct hwkv_error * err) {
    struct hwkv_point point = { .validation = validation };
    char path[64];
    snprintf(path, sizeof(path), "$.operating_points[%d]", (int) policy->n_point);
    if (policy->n_point == HWKV_POINT_MAX) {
        hwkv_free(validation);
        return hwkv_fail(err, HWKV_ERR_RANGE, path, "found more than %d operating points", HWKV_POINT_MAX);
    }
    int status = validate_point(policy, params, path, err);
    if (status == 0) {
        status = reserve_point(policy, err);
    }
    if (status == 0) {
        status = fill_point(&point, policy, params, err);
    }
    if (status) {
        hwkv_free(validation);
        return status;
    }
    policy->points[policy->n_point++] = point;
    return 0;
}

int hwkv_policy_add_point(struct hwkv_policy * policy, const struct hwkv_point_params * params, struct hwkv_error * err) {
    if (!policy || !params || !params->entries) {
        return hwkv_fail(err, HWKV_ERR_ARG, NULL, "found NULL, expected a policy and a point with entries");
    }
    char path[64];
    snprintf(path, sizeof(path), "$.operating_points[%d].validation", (int) policy->n_point);
    char * validation = NULL;
    const int status = copy_object(&validation, params->validation, 3, path, err);
    return status ? status : hwkv_policy_put_point(policy, params, validation, err);
}

int hwkv_policy_select(struct hwkv_policy * policy, const char * name, struct hwkv_error * err) {
    if (!policy || !name) {
        return hwkv_fail(err, HWKV_ERR_ARG, NULL, "found NULL, expected a policy and a name");
    }
    for (int32_t i = 0; i < policy->n_point; i++) {
        if (strcmp(policy->points[i].name, name) == 0) {
            policy->selected = i;
            return 0;
        }
    }
    char found[108];
    return hwkv_fail(err, HWKV_ERR_VALUE, "$.selected", "found %s, expected the name of an operating point", hwkv_quote(found, name, 100));
}

int hwkv_policy_set_calibration(struct hwkv_policy * policy, const struct hwkv_calibration * calib, struct hwkv_error * err) {
    if (!policy || !calib) {
        return hwkv_fail(err, HWKV_ERR_ARG, NULL, "found NULL, expected a policy and a calibration");
    }
    if (!hwkv_is_hex64(calib->text_sha256)) {
        char found[72];
        return hwkv_fail(err, HWKV_ERR_VALUE, "$.calibration.text_sha256", "found %s, expected 64 lower-case hex digits",
                         hwkv_quote(found, calib->text_sha256, 64));
    }
    if (!hwkv_is_utf8(calib->text) || !hwkv_is_utf8(calib->query_rule) || !hwkv_is_utf8(calib->tool)) {
        return hwkv_fail(err, HWKV_ERR_UTF8, "$.calibration", "found text that is not UTF-8, expected UTF-8");
    }
    // what is written must be readable again: integers that a double holds exactly
    if (calib->seed < 0 || calib->seed > (int64_t) 1 << 53 || calib->n_seq < 1 || calib->n_query < 1) {
        return hwkv_fail(err, HWKV_ERR_RANGE, "$.calibration", "found seed %lld, n_seq %d and n_query %d, expected 0 to 2^53 and at least 1",
                         (long long) calib->seed, (int) calib->n_seq, (int) calib->n_query);
    }
    policy->calib     = *calib;
    policy->has_calib = true;
    return 0;
}

int hwkv_policy_set_validation(struct hwkv_policy * policy, int32_t ip, const char * json, struct hwkv_error * err) {
    if (!policy || ip < 0 || ip >= policy->n_point) {
        return hwkv_fail(err, HWKV_ERR_ARG, NULL, "found no operating point %d", (int) ip);
    }
    char * copy = NULL;
    const int status = copy_object(&copy, json, 3, "$.validation", err);
    if (status == 0) {
        hwkv_free(policy->points[ip].validation);
        policy->points[ip].validation = copy;
    }
    return status;
}

int hwkv_policy_set_extensions(struct hwkv_policy * policy, const char * json, struct hwkv_error * err) {
    if (!policy) {
        return hwkv_fail(err, HWKV_ERR_ARG, NULL, "found NULL, expected a policy");
    }
    char * copy = NULL;
    const int status = copy_object(&copy, json, 1, "$.extensions", err);
    if (status == 0) {
        hwkv_free(policy->extensions);
        policy->extensions = copy;
    }
    return status;
}
