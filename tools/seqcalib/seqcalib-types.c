#include "seqcalib-types.h"

#include "tool-args.h"

#include "hwkv-error.h"
#include "llama-hwkv-trace.h"
#include "llama-hwkv.h"

#include <stdio.h>
#include <string.h>

#define PAIR_SIZE 32 // bytes of a pair's name

static const char * pair_name(struct sc_pair pair, char buf[PAIR_SIZE]) {
    snprintf(buf, PAIR_SIZE, "%s%s%s", hwkv_type_name(pair.k), pair.k == pair.v ? "" : "/", pair.k == pair.v ? "" : hwkv_type_name(pair.v));
    return buf;
}

//
// reading
//

static int fail_type(const char * field, struct hwkv_error * err) {
    char   names[128] = "";
    size_t n = 0;
    for (int type = 0; type < HWKV_TYPE_COUNT; type++) {
        n += (size_t) snprintf(names + n, sizeof(names) - n, "%s%s", type > 0 ? ", " : "", hwkv_type_name((enum hwkv_type) type));
    }
    return hwkv_fail(err, HWKV_ERR_ARG, NULL, "found '%s', expected types of %s, such as f16,q8_0,q8_0/q4_0, or cache alone", field, names);
}

static int read_pair(struct sc_pair * pair, const char * field, struct hwkv_error * err) {
    char type_k[PAIR_SIZE];
    const char * slash = strchr(field, '/');
    snprintf(type_k, sizeof(type_k), "%.*s", slash ? (int) (slash - field) : (int) strlen(field), field);

    const int k = hwkv_type_from_name(type_k);
    const int v = slash ? hwkv_type_from_name(slash + 1) : k;
    if (k < 0 || v < 0) {
        return fail_type(field, err);
    }
    *pair = (struct sc_pair) { (enum hwkv_type) k, (enum hwkv_type) v };
    return HWKV_OK;
}

int sc_types_read(void * target, const char * list, struct hwkv_error * err) {
    struct sc_types * types = target;
    const char      * at    = list;
    char              field[PAIR_SIZE];

    *types = (struct sc_types) { .cache = strcmp(list, "cache") == 0 };
    while (!types->cache && tool_next_field(&at, field, sizeof(field))) {
        struct sc_pair pair;
        const int status = read_pair(&pair, field, err);
        if (status != HWKV_OK) {
            return status;
        }
        for (int32_t i = 0; i < types->pairs.n; i++) {
            if (types->pairs.pair[i].k == pair.k && types->pairs.pair[i].v == pair.v) {
                return hwkv_fail(err, HWKV_ERR_ARG, NULL, "found %s twice", field);
            }
        }
        if (types->pairs.n == SC_PAIR_MAX) {
            return hwkv_fail(err, HWKV_ERR_ARG, NULL, "found more than %d types", SC_PAIR_MAX);
        }
        types->pairs.pair[types->pairs.n++] = pair;
    }
    return HWKV_OK;
}

//
// what the model and its devices can
//

// Are all heads a whole number of blocks? Else which are not, as in "found q4_0 <where>".
static bool divides(struct sc_pair pair, const struct hwkv_geometry * geo, char * where, size_t size) {
    for (int32_t jl = 0; jl < geo->n_full; jl++) {
        const struct hwkv_layer * l = &geo->layers[jl];
        if (hwkv_type_row_size(pair.k, l->head_dim_k) > 0 && hwkv_type_row_size(pair.v, l->head_dim_v) > 0) {
            continue;
        }
        if (l->head_dim_k == l->head_dim_v) {
            snprintf(where, size, "with head dim %d in layer %d", l->head_dim_k, l->il);
        } else {
            snprintf(where, size, "with head dims %d and %d in layer %d", l->head_dim_k, l->head_dim_v, l->il);
        }
        return false;
    }
    return true;
}

// Can the devices of all layers store and attend to them? Else which cannot, in the same way.
static bool is_served(struct sc_pair pair, const struct sc_types_params * p, char * where, size_t size) {
    const char * device = llama_kv_policy_device_without(p->model, p->geo, pair.k, pair.v, (uint32_t) p->n_ctx, (uint32_t) p->n_ubatch);
    if (device) {
        snprintf(where, size, "on %s", device);
    }
    return device == NULL;
}

static void settle_default(struct sc_types * types, const struct sc_types_params * params, char * note, size_t size) {
    static const enum hwkv_type defaults[] = { HWKV_TYPE_F16, HWKV_TYPE_Q8_0, HWKV_TYPE_Q4_0 };

    char   used[64]  = "";
    char   left[512] = "";
    size_t n_used = 0;
    size_t n_left = 0;
    for (size_t i = 0; i < sizeof(defaults)/sizeof(defaults[0]); i++) {
        const struct sc_pair pair = { defaults[i], defaults[i] };
        char where[128];
        if (divides(pair, params->geo, where, sizeof(where)) && is_served(pair, params, where, sizeof(where))) {
            types->pairs.pair[types->pairs.n++] = pair;
            n_used += (size_t) snprintf(used + n_used, sizeof(used) - n_used, "%s%s", n_used ? "," : "", hwkv_type_name(pair.k));
        } else {
            n_left += (size_t) snprintf(left + n_left, sizeof(left) - n_left, "%s%s %s", n_left ? ", " : "", hwkv_type_name(pair.k), where);
        }
    }
    types->cache = types->pairs.n == 0;
    note[0] = '\0';
    if (n_left > 0) {
        snprintf(note, size, "candidates are in %s; impossible are %s", types->cache ? "the types of the cache" : used, left);
    }
}

int sc_types_settle(struct sc_types * types, const struct sc_types_params * params, char * note, size_t note_size, struct hwkv_error * err) {
    char name[PAIR_SIZE];
    char where[128];

    note[0] = '\0';
    if (!divides(params->cache, params->geo, where, sizeof(where))) {
        return hwkv_fail(err, HWKV_ERR_VALUE, NULL, "-ctk and -ctv: found %s %s, expected types whose blocks divide it", pair_name(params->cache, name), where);
    }
    for (int32_t i = 0; i < types->pairs.n; i++) {
        const struct sc_pair pair = types->pairs.pair[i];
        if (!divides(pair, params->geo, where, sizeof(where))) {
            return hwkv_fail(err, HWKV_ERR_VALUE, NULL, "--types: found %s %s, expected types whose blocks divide it", pair_name(pair, name), where);
        }
        if (!is_served(pair, params, where, sizeof(where))) {
            return hwkv_fail(err, HWKV_ERR_VALUE, NULL, "--types: found %s %s, expected types that it can store and attend to", pair_name(pair, name), where);
        }
    }
    if (!types->cache && types->pairs.n == 0) {
        settle_default(types, params, note, note_size);
    }
    return HWKV_OK;
}

int sc_types_rotation(struct sc_codebook * codebook, const struct sc_types_params * params, struct hwkv_error * err) {
    int status = HWKV_OK;
    for (int32_t is = 0; is < codebook->n_scan && codebook->typed && status == HWKV_OK; is++) {
        struct sc_scan * scan = &codebook->scans[is];
        status = llama_hwkv_rotation(params->model, params->geo, scan->types.k, scan->types.v, &scan->n_rot_k, &scan->n_rot_v, err);
    }
    return status;
}
