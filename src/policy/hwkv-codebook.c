// The codebook of a policy: what its entries may be, their order, and which of them is the reference.

#include "hwkv-impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct ranked {
    uint64_t          bytes; // if all heads have it
    struct hwkv_entry entry;
};

// What a type keeps of a number, as a place in the order of all.
static int precision(enum hwkv_type type) {
    static const int ranks[HWKV_TYPE_COUNT] = {
        [HWKV_TYPE_Q4_0] = 0, [HWKV_TYPE_IQ4_NL] = 1, [HWKV_TYPE_Q4_1] = 2, [HWKV_TYPE_Q5_0] = 3, [HWKV_TYPE_Q5_1] = 4,
        [HWKV_TYPE_Q8_0] = 5, [HWKV_TYPE_BF16]   = 6, [HWKV_TYPE_F16]  = 7, [HWKV_TYPE_F32]  = 8,
    };
    return type == HWKV_TYPE_CACHE ? -1 : ranks[type];
}

// 0 for the same entry and for no others.
static int compare_ranked(const void * a, const void * b) {
    const struct ranked * x = a;
    const struct ranked * y = b;
    if (x->bytes != y->bytes) {
        return x->bytes < y->bytes ? -1 : 1;
    }
    if (x->entry.window != y->entry.window) {
        return x->entry.window < y->entry.window ? -1 : 1;
    }
    const int k = precision(x->entry.type_k) - precision(y->entry.type_k);
    return k ? k : precision(x->entry.type_v) - precision(y->entry.type_v);
}

static void rank_entries(struct ranked * ranked, const struct hwkv_entry * codebook, int32_t n, const struct hwkv_geometry * geo,
                         const struct hwkv_cache * cache) {
    for (int32_t i = 0; i < n; i++) {
        ranked[i] = (struct ranked) { .entry = codebook[i] };
        for (int32_t jl = 0; jl < geo->n_full; jl++) {
            ranked[i].bytes += (uint64_t) geo->layers[jl].n_head_kv * hwkv_cost_head(&geo->layers[jl], &codebook[i], cache);
        }
    }
}

//
// what an entry may be
//

static int check_window(const struct hwkv_entry * entry, const struct hwkv_cache * cache, const char * path, struct hwkv_error * err) {
    if (entry->window == HWKV_FULL || (entry->window >= 1 && entry->window < cache->n_ctx)) {
        return 0;
    }
    return hwkv_fail(err, HWKV_ERR_VALUE, path, "found window %d, expected one above 0 and below the context %lld", (int) entry->window,
                     (long long) cache->n_ctx);
}

// Whole blocks in every head.
static int check_blocks(const struct hwkv_entry * entry, const struct hwkv_geometry * geo, const struct hwkv_cache * cache, const char * path,
                        struct hwkv_error * err) {
    const struct hwkv_entry e = hwkv_entry_settle(entry, cache);
    for (int32_t jl = 0; jl < geo->n_full; jl++) {
        const struct hwkv_layer * l = &geo->layers[jl];
        if (hwkv_type_row_size(e.type_k, l->head_dim_k) == 0 || hwkv_type_row_size(e.type_v, l->head_dim_v) == 0) {
            return hwkv_fail(err, HWKV_ERR_VALUE, path, "found %s and %s, expected types whose blocks divide the head dims %d and %d",
                             hwkv_type_name(e.type_k), hwkv_type_name(e.type_v), (int) l->head_dim_k, (int) l->head_dim_v);
        }
    }
    return 0;
}

// Types in all entries or in none.
static int check_kind(const struct hwkv_entry * entry, const struct hwkv_entry * first, const char * path, struct hwkv_error * err) {
    char name[HWKV_ENTRY_SIZE];
    if ((entry->type_k == HWKV_TYPE_CACHE) != (entry->type_v == HWKV_TYPE_CACHE)) {
        return hwkv_fail(err, HWKV_ERR_VALUE, path, "found %s, expected types for both K and V, or none", hwkv_entry_format(entry, name));
    }
    if (hwkv_entry_has_types(entry) != hwkv_entry_has_types(first)) {
        char other[HWKV_ENTRY_SIZE];
        return hwkv_fail(err, HWKV_ERR_VALUE, path, "found %s after %s, expected types in all entries or in none", hwkv_entry_format(entry, name),
                         hwkv_entry_format(first, other));
    }
    return 0;
}

// Whatever the heads have, JSON numbers hold integers up to 2^53.
static int check_bytes(const struct hwkv_entry * codebook, int32_t n, const struct hwkv_geometry * geo, const struct hwkv_cache * cache,
                       struct hwkv_error * err) {
    const struct hwkv_entry plain = hwkv_entry_of_window(HWKV_FULL);
    double bytes = 0.0;
    for (int32_t jl = 0; jl < geo->n_full; jl++) {
        uint64_t most = hwkv_cost_head(&geo->layers[jl], &plain, cache);
        for (int32_t i = 0; i < n; i++) {
            const uint64_t cost = hwkv_cost_head(&geo->layers[jl], &codebook[i], cache);
            most = cost > most ? cost : most;
        }
        bytes += (double) most * geo->layers[jl].n_head_kv;
    }
    if (bytes > (double) ((int64_t) 1 << 53)) {
        return hwkv_fail(err, HWKV_ERR_RANGE, "$.context", "found a full cache of %.3g bytes, expected at most 2^53", bytes);
    }
    return 0;
}

static int check_entries(const struct hwkv_entry * codebook, int32_t n, const struct hwkv_geometry * geo, const struct hwkv_cache * cache,
                         struct hwkv_error * err) {
    const struct hwkv_entry plain = hwkv_entry_of_window(HWKV_FULL);
    if (cache->n_ctx < 1 || cache->n_ctx >= HWKV_FULL) {
        return hwkv_fail(err, HWKV_ERR_RANGE, "$.context", "found %lld, expected a positive number of tokens", (long long) cache->n_ctx);
    }
    if (!codebook || n < 1 || n > HWKV_CODE_MAX) {
        return hwkv_fail(err, HWKV_ERR_RANGE, "$.codebook", "found %d entries, expected 1 to %d", (int) n, HWKV_CODE_MAX);
    }
    int status = check_blocks(&plain, geo, cache, "$.cache_types", err);
    for (int32_t i = 0; i < n && status == 0; i++) {
        char path[64];
        snprintf(path, sizeof(path), "$.codebook[%d]", (int) i);
        status = check_window(&codebook[i], cache, path, err);
        if (status == 0) {
            status = check_kind(&codebook[i], &codebook[0], path, err);
        }
        if (status == 0) {
            status = check_blocks(&codebook[i], geo, cache, path, err);
        }
    }
    return status ? status : check_bytes(codebook, n, geo, cache, err);
}

//
// order
//

int hwkv_codebook_sort(struct hwkv_entry * codebook, int32_t n, const struct hwkv_geometry * geo, const struct hwkv_cache * cache,
                       struct hwkv_error * err) {
    if (!codebook || !geo || !cache) {
        return hwkv_fail(err, HWKV_ERR_ARG, NULL, "found NULL, expected a codebook, a geometry and a cache");
    }
    int status = hwkv_geometry_validate(geo, err);
    if (status == 0) {
        status = check_entries(codebook, n, geo, cache, err);
    }
    if (status) {
        return status;
    }
    struct ranked ranked[HWKV_CODE_MAX];
    rank_entries(ranked, codebook, n, geo, cache);
    qsort(ranked, (size_t) n, sizeof(ranked[0]), compare_ranked);
    for (int32_t i = 1; i < n; i++) {
        if (compare_ranked(&ranked[i - 1], &ranked[i]) == 0) {
            char name[HWKV_ENTRY_SIZE];
            return hwkv_fail(err, HWKV_ERR_VALUE, "$.codebook", "found %s again, expected it once", hwkv_entry_format(&ranked[i].entry, name));
        }
    }
    for (int32_t i = 0; i < n; i++) {
        codebook[i] = ranked[i].entry;
    }
    return 0;
}

static int check_order(const struct hwkv_policy_params * p, const struct hwkv_cache * cache, struct hwkv_error * err) {
    struct ranked ranked[HWKV_CODE_MAX];
    rank_entries(ranked, p->codebook, p->n_codebook, p->geometry, cache);
    for (int32_t i = 1; i < p->n_codebook; i++) {
        const int order = compare_ranked(&ranked[i - 1], &ranked[i]);
        char path[64];
        char one[HWKV_ENTRY_SIZE];
        char two[HWKV_ENTRY_SIZE];
        snprintf(path, sizeof(path), "$.codebook[%d]", (int) i);
        hwkv_entry_format(&ranked[i - 1].entry, one);
        hwkv_entry_format(&ranked[i].entry, two);
        if (order == 0) {
            return hwkv_fail(err, HWKV_ERR_VALUE, path, "found %s again, expected it once", two);
        }
        if (order > 0) {
            return hwkv_fail(err, HWKV_ERR_VALUE, path, "found %s of %llu bytes after %s of %llu, expected ascending bytes, then windows, then precision",
                             two, (unsigned long long) ranked[i].bytes, one, (unsigned long long) ranked[i - 1].bytes);
        }
    }
    return 0;
}

//
// the whole
//

int32_t hwkv_codebook_reference(const struct hwkv_entry * codebook, int32_t n, const struct hwkv_cache * cache) {
    const struct hwkv_entry plain = hwkv_entry_of_window(HWKV_FULL);
    const struct hwkv_entry typed = { HWKV_FULL, cache->type_k, cache->type_v };
    for (int32_t i = 0; i < n; i++) {
        if (hwkv_entry_equal(&codebook[i], &plain) || hwkv_entry_equal(&codebook[i], &typed)) {
            return i;
        }
    }
    return -1;
}

static int check_sinks(const struct hwkv_policy_params * p, struct hwkv_error * err) {
    if (p->sinks < 0 || p->sinks > HWKV_SINKS_MAX) {
        return hwkv_fail(err, HWKV_ERR_RANGE, "$.sinks", "found %d, expected 0 to %d", (int) p->sinks, HWKV_SINKS_MAX);
    }
    int32_t smallest = HWKV_FULL;
    for (int32_t i = 0; i < p->n_codebook; i++) {
        smallest = p->codebook[i].window < smallest ? p->codebook[i].window : smallest;
    }
    if (p->sinks >= smallest) {
        return hwkv_fail(err, HWKV_ERR_VALUE, "$.sinks", "found %d, expected less than the smallest window %d", (int) p->sinks, (int) smallest);
    }
    return 0;
}

int hwkv_codebook_validate(const struct hwkv_policy_params * p, struct hwkv_error * err) {
    const struct hwkv_cache cache = { p->context, p->type_k, p->type_v };
    int status = check_entries(p->codebook, p->n_codebook, p->geometry, &cache, err);
    if (status == 0) {
        status = check_order(p, &cache, err);
    }
    if (status == 0 && hwkv_codebook_reference(p->codebook, p->n_codebook, &cache) < 0) {
        const bool types = hwkv_entry_has_types(&p->codebook[0]);
        struct hwkv_entry missing = { HWKV_FULL, types ? p->type_k : HWKV_TYPE_CACHE, types ? p->type_v : HWKV_TYPE_CACHE };
        char name[HWKV_ENTRY_SIZE];
        return hwkv_fail(err, HWKV_ERR_VALUE, "$.codebook", "found no \"%s\", expected the reference%s among the entries",
                         hwkv_entry_format(&missing, name), types ? ", full with the types of cache_types," : "");
    }
    return status ? status : check_sinks(p, err);
}
