// The policy object: making an empty one, asking it, freeing it.

#include "hwkv-impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

//
// the empty policy
//

struct hwkv_policy_params hwkv_policy_params_default(void) {
    struct hwkv_policy_params params = { 0 };
    params.sinks  = 4;
    params.type_k = HWKV_TYPE_F16;
    params.type_v = HWKV_TYPE_F16;
    return params;
}

// Whether an entry before it has the same window and types. Windows ascend up to here.
static bool is_repeated(const struct hwkv_entry * codebook, int32_t i) {
    for (int32_t k = i - 1; k >= 0 && codebook[k].window == codebook[i].window; k--) {
        if (codebook[k].type_k == codebook[i].type_k && codebook[k].type_v == codebook[i].type_v) {
            return true;
        }
    }
    return false;
}

static int validate_entry(const struct hwkv_policy_params * p, int32_t i, struct hwkv_error * err) {
    const int32_t window = p->codebook[i].window;
    char path[64];
    snprintf(path, sizeof(path), "$.codebook[%d]", (int) i);
    if (window == HWKV_FULL) {
        if (i + 1 < p->n_codebook && p->codebook[i + 1].window != HWKV_FULL) {
            return hwkv_fail(err, HWKV_ERR_VALUE, path, "found \"full\", expected it as the last entry only");
        }
        return !is_repeated(p->codebook, i) ? 0 : hwkv_fail(err, HWKV_ERR_VALUE, path, "found \"full\" again, expected it once");
    }
    const int32_t below = i > 0 ? p->codebook[i - 1].window : 0;
    if (window < 1 || window < below || is_repeated(p->codebook, i) || window >= p->context) {
        return hwkv_fail(err, HWKV_ERR_VALUE, path, "found window %d, expected one above %d and below the context %d", (int) window, (int) below,
                         (int) p->context);
    }
    return 0;
}

static int validate_codebook(const struct hwkv_policy_params * p, struct hwkv_error * err) {
    if (p->context < 1 || p->context == HWKV_FULL) {
        return hwkv_fail(err, HWKV_ERR_RANGE, "$.context", "found %d, expected a positive number of tokens", (int) p->context);
    }
    if (!p->codebook || p->n_codebook < 1 || p->n_codebook > HWKV_CODE_MAX) {
        return hwkv_fail(err, HWKV_ERR_RANGE, "$.codebook", "found %d entries, expected 1 to %d", (int) p->n_codebook, HWKV_CODE_MAX);
    }
    for (int32_t i = 0; i < p->n_codebook; i++) {
        if (i + 1 == p->n_codebook && p->codebook[i].window != HWKV_FULL) {
            return hwkv_fail(err, HWKV_ERR_VALUE, "$.codebook", "found no \"full\", expected it as the last entry");
        }
        const int status = validate_entry(p, i, err);
        if (status) {
            return status;
        }
    }
    if (p->sinks < 0 || p->sinks > HWKV_SINKS_MAX) {
        return hwkv_fail(err, HWKV_ERR_RANGE, "$.sinks", "found %d, expected 0 to %d", (int) p->sinks, HWKV_SINKS_MAX);
    }
    if (p->sinks >= p->codebook[0].window) {
        return hwkv_fail(err, HWKV_ERR_VALUE, "$.sinks", "found %d, expected less than the smallest window %d", (int) p->sinks,
                         (int) p->codebook[0].window);
    }
    return 0;
}

// Holds for any head with this entry: cells of whole blocks, and bytes that a JSON number can tell.
static int validate_types(const struct hwkv_policy_params * p, const struct hwkv_entry * entry, const char * path, struct hwkv_error * err) {
    const struct hwkv_cache cache = { p->context, p->type_k, p->type_v };
    const struct hwkv_entry e     = hwkv_entry_settle(entry, &cache);
    double bytes = 0.0;
    for (int32_t jl = 0; jl < p->geometry->n_full; jl++) {
        const struct hwkv_layer * l = &p->geometry->layers[jl];
        if (hwkv_type_row_size(e.type_k, l->head_dim_k) == 0 || hwkv_type_row_size(e.type_v, l->head_dim_v) == 0) {
            return hwkv_fail(err, HWKV_ERR_VALUE, path, "found %s and %s, expected types whose blocks divide the head dims %d and %d",
                             hwkv_type_name(e.type_k), hwkv_type_name(e.type_v), (int) l->head_dim_k, (int) l->head_dim_v);
        }
        bytes += (double) hwkv_cost_head(l, &e, &cache) * l->n_head_kv;
    }
    // JSON numbers hold integers up to here
    if (bytes > (double) ((int64_t) 1 << 53)) {
        return hwkv_fail(err, HWKV_ERR_RANGE, "$.context", "found a full cache of %.3g bytes, expected at most 2^53", bytes);
    }
    return 0;
}

static int validate_all_types(const struct hwkv_policy_params * p, struct hwkv_error * err) {
    const struct hwkv_entry plain = hwkv_entry_of_window(HWKV_FULL);
    int status = validate_types(p, &plain, "$.cache_types", err);
    for (int32_t i = 0; i < p->n_codebook && status == 0; i++) {
        char path[64];
        snprintf(path, sizeof(path), "$.codebook[%d]", (int) i);
        status = validate_types(p, &p->codebook[i], path, err);
    }
    return status;
}

int hwkv_policy_init(struct hwkv_policy ** out, const struct hwkv_policy_params * params, struct hwkv_error * err) {
    if (!out) {
        return hwkv_fail(err, HWKV_ERR_ARG, NULL, "found NULL, expected a place for the policy");
    }
    *out = NULL;
    if (!params || !params->geometry) {
        return hwkv_fail(err, HWKV_ERR_ARG, NULL, "found NULL, expected policy parameters with a geometry");
    }
    int status = hwkv_geometry_validate(params->geometry, err);
    if (status == 0) {
        status = validate_codebook(params, err);
    }
    if (status == 0) {
        status = validate_all_types(params, err);
    }
    if (status) {
        return status;
    }

    struct hwkv_policy * p = hwkv_alloc(1, sizeof(*p));
    if (!p) {
        return hwkv_fail(err, HWKV_ERR_NOMEM, NULL, "out of memory");
    }
    status = hwkv_geometry_copy(&p->geo, params->geometry, err);
    if (status == 0) {
        p->unit_start = hwkv_alloc((size_t) p->geo.n_full + 1, sizeof(*p->unit_start));
        status = p->unit_start ? 0 : hwkv_fail(err, HWKV_ERR_NOMEM, NULL, "out of memory");
    }
    if (status) {
        hwkv_policy_free(p);
        return status;
    }
    for (int32_t jl = 0; jl < p->geo.n_full; jl++) {
        p->unit_start[jl + 1] = p->unit_start[jl] + p->geo.layers[jl].n_head_kv;
    }
    p->context    = params->context;
    p->sinks      = params->sinks;
    p->n_codebook = params->n_codebook;
    p->type_k     = params->type_k;
    p->type_v     = params->type_v;
    memcpy(p->codebook, params->codebook, (size_t) params->n_codebook * sizeof(*p->codebook));
    *out = p;
    return 0;
}

static void point_free(struct hwkv_point * point) {
    hwkv_free(point->entries);
    hwkv_free(point->scores);
    hwkv_free(point->validation);
}

void hwkv_policy_free(struct hwkv_policy * policy) {
    if (!policy) {
        return;
    }
    for (int32_t i = 0; i < policy->n_point; i++) {
        point_free(&policy->points[i]);
    }
    hwkv_free(policy->points);
    hwkv_free(policy->unit_start);
    hwkv_free(policy->extensions);
    hwkv_geometry_free(&policy->geo);
    hwkv_free(policy);
}

//
// reading it
//

const struct hwkv_geometry * hwkv_policy_geometry(const struct hwkv_policy * policy) {
    return &policy->geo;
}

const struct hwkv_calibration * hwkv_policy_calibration(const struct hwkv_policy * policy) {
    return policy->has_calib ? &policy->calib : NULL;
}

const struct hwkv_entry * hwkv_policy_codebook(const struct hwkv_policy * policy, int32_t * n) {
    if (n) {
        *n = policy->n_codebook;
    }
    return policy->codebook;
}

int32_t hwkv_policy_context(const struct hwkv_policy * policy) {
    return policy->context;
}

int32_t hwkv_policy_sinks(const struct hwkv_policy * policy) {
    return policy->sinks;
}

enum hwkv_type hwkv_policy_type_k(const struct hwkv_policy * policy) {
    return policy->type_k;
}

enum hwkv_type hwkv_policy_type_v(const struct hwkv_policy * policy) {
    return policy->type_v;
}

struct hwkv_cache hwkv_policy_cache(const struct hwkv_policy * policy) {
    return (struct hwkv_cache) { policy->context, policy->type_k, policy->type_v };
}

int32_t hwkv_policy_n_unit(const struct hwkv_policy * policy) {
    return policy->unit_start[policy->geo.n_full];
}

int32_t hwkv_policy_unit(const struct hwkv_policy * policy, int32_t jl, int32_t ih) {
    return policy->unit_start[jl] + ih;
}

int32_t hwkv_policy_n_point(const struct hwkv_policy * policy) {
    return policy->n_point;
}

int32_t hwkv_policy_selected(const struct hwkv_policy * policy) {
    return policy->selected;
}

const struct hwkv_point * hwkv_policy_point(const struct hwkv_policy * policy, int32_t ip) {
    return ip >= 0 && ip < policy->n_point ? &policy->points[ip] : NULL;
}

const char * hwkv_policy_extensions(const struct hwkv_policy * policy) {
    return policy->extensions;
}

const char * hwkv_policy_hash(const struct hwkv_policy * policy) {
    return policy->hash;
}

int32_t hwkv_policy_find_point(const struct hwkv_policy * policy, const char * name_or_number) {
    for (int32_t i = 0; i < policy->n_point; i++) {
        if (strcmp(policy->points[i].name, name_or_number) == 0) {
            return i;
        }
    }
    char * end = NULL;
    if (name_or_number[0] < '0' || name_or_number[0] > '9') {
        return -1;
    }
    const long number = strtol(name_or_number, &end, 10);
    return *end == '\0' && number < policy->n_point ? (int32_t) number : -1;
}

// The names of the points, as many as fit.
static void list_points(const struct hwkv_policy * policy, char * buf, size_t buf_size) {
    static const char more[] = ", ...";
    size_t used = 0;
    buf[0] = '\0';
    for (int32_t i = 0; i < policy->n_point; i++) {
        char name[HWKV_NAME_MAX + 8];
        hwkv_quote(name, policy->points[i].name, 40);
        const size_t need = strlen(name) + (i > 0 ? 2 : 0) + (i + 1 < policy->n_point ? sizeof(more) - 1 : 0);
        if (used + need >= buf_size) {
            snprintf(buf + used, buf_size - used, "%s", more);
            return;
        }
        used += (size_t) snprintf(buf + used, buf_size - used, "%s%s", i > 0 ? ", " : "", name);
    }
}

int hwkv_policy_choose_point(int32_t * ip, const struct hwkv_policy * policy, const char * name_or_number, struct hwkv_error * err) {
    *ip = name_or_number ? hwkv_policy_find_point(policy, name_or_number) : policy->selected;
    if (*ip >= 0) {
        return 0;
    }
    char found[72];
    char names[188]; // with what is around it no more than a message holds
    list_points(policy, names, sizeof(names) - strlen(hwkv_quote(found, name_or_number, 60)));
    return hwkv_fail(err, HWKV_ERR_ARG, NULL, "found no operating point %s, expected one of %s or a number below %d", found, names, (int) policy->n_point);
}
