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
        status = hwkv_codebook_validate(params, err);
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
    const struct hwkv_cache cache = hwkv_policy_cache(p);
    p->reference = hwkv_codebook_reference(p->codebook, p->n_codebook, &cache);
    *out = p;
    return 0;
}

static void point_free(struct hwkv_point * point) {
    hwkv_free(point->entries);
    hwkv_scores_free(point->scores, point->n_scores);
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

int32_t hwkv_policy_reference(const struct hwkv_policy * policy) {
    return policy->reference;
}

bool hwkv_policy_has_types(const struct hwkv_policy * policy) {
    return hwkv_entry_has_types(&policy->codebook[0]);
}

int hwkv_policy_check_types_option(const struct hwkv_policy * policy, const char * option, struct hwkv_error * err) {
    if (!hwkv_policy_has_types(policy)) {
        return 0;
    }
    char name[HWKV_ENTRY_SIZE];
    return hwkv_fail(err, HWKV_ERR_ARG, "$.codebook", "found %s beside entries with types of their own such as %s, expected no types for the whole cache "
                     "(llama-kv-policy make retype gives a policy other types)", option, hwkv_entry_format(&policy->codebook[0], name));
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
