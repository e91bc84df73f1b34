// Cache types, nominal storage N_C(a) and normalised retention R_C(a): the paper's structured residency model.

#include "hwkv-impl.h"
#include "hwkv-rule.h"

#include <string.h>

static const struct {
    const char * name;
    int          block;
    int          bytes;
} types[HWKV_TYPE_COUNT] = {
    [HWKV_TYPE_F32]    = { "f32",     1,  4 },
    [HWKV_TYPE_F16]    = { "f16",     1,  2 },
    [HWKV_TYPE_BF16]   = { "bf16",    1,  2 },
    [HWKV_TYPE_Q8_0]   = { "q8_0",   32, 34 },
    [HWKV_TYPE_Q4_0]   = { "q4_0",   32, 18 },
    [HWKV_TYPE_Q4_1]   = { "q4_1",   32, 20 },
    [HWKV_TYPE_Q5_0]   = { "q5_0",   32, 22 },
    [HWKV_TYPE_Q5_1]   = { "q5_1",   32, 24 },
    [HWKV_TYPE_IQ4_NL] = { "iq4_nl", 32, 18 },
};

const char * hwkv_type_name(enum hwkv_type type) {
    return (int) type >= 0 && type < HWKV_TYPE_COUNT ? types[type].name : "?";
}

int hwkv_type_from_name(const char * name) {
    for (int i = 0; i < HWKV_TYPE_COUNT; i++) {
        if (strcmp(types[i].name, name) == 0) {
            return i;
        }
    }
    return -1;
}

size_t hwkv_type_row_size(enum hwkv_type type, int64_t n) {
    if ((int) type < 0 || type >= HWKV_TYPE_COUNT || n < 0 || n % types[type].block != 0) {
        return 0;
    }
    return (size_t) (n / types[type].block) * (size_t) types[type].bytes;
}

//
// entries in a cache
//

struct hwkv_entry hwkv_entry_settle(const struct hwkv_entry * entry, const struct hwkv_cache * cache) {
    return (struct hwkv_entry) {
        .window = hwkv_rule_holds_all(hwkv_rule_of(entry->window, 0), cache->n_ctx) ? HWKV_FULL : entry->window,
        .type_k = entry->type_k == HWKV_TYPE_CACHE ? cache->type_k : entry->type_k,
        .type_v = entry->type_v == HWKV_TYPE_CACHE ? cache->type_v : entry->type_v,
    };
}

//
// what they cost
//

int64_t hwkv_retained(int32_t window, int64_t n_ctx) {
    return hwkv_rule_n_held(hwkv_rule_of(window, 0), n_ctx); // sinks or not, it is as many
}

uint64_t hwkv_cost_head(const struct hwkv_layer * layer, const struct hwkv_entry * entry, const struct hwkv_cache * cache) {
    const struct hwkv_entry settled = hwkv_entry_settle(entry, cache);
    const uint64_t row = hwkv_type_row_size(settled.type_k, layer->head_dim_k) + hwkv_type_row_size(settled.type_v, layer->head_dim_v);
    return (uint64_t) hwkv_retained(settled.window, cache->n_ctx) * row;
}

uint64_t hwkv_cost(const struct hwkv_geometry * geo, const struct hwkv_entry * codebook, const int32_t * entries, const struct hwkv_cache * cache) {
    const struct hwkv_entry full = hwkv_entry_of_window(HWKV_FULL);
    uint64_t total = 0;
    for (int32_t jl = 0; jl < geo->n_full; jl++) {
        for (int32_t ih = 0; ih < geo->layers[jl].n_head_kv; ih++) {
            total += hwkv_cost_head(&geo->layers[jl], entries ? &codebook[*entries++] : &full, cache);
        }
    }
    return total;
}

double hwkv_retention(const struct hwkv_geometry * geo, const struct hwkv_entry * codebook, const int32_t * entries, const struct hwkv_cache * cache) {
    const uint64_t full = hwkv_cost(geo, NULL, NULL, cache);
    return full == 0 ? 1.0 : (double) hwkv_cost(geo, codebook, entries, cache) / (double) full;
}

double hwkv_retention_tokens(const struct hwkv_geometry * geo, const struct hwkv_entry * codebook, const int32_t * entries, int64_t n_ctx) {
    double kept = 0.0;
    double all  = 0.0;
    for (int32_t jl = 0; jl < geo->n_full; jl++) {
        for (int32_t ih = 0; ih < geo->layers[jl].n_head_kv; ih++) {
            kept += (double) hwkv_retained(entries ? codebook[*entries++].window : HWKV_FULL, n_ctx);
            all  += (double) n_ctx;
        }
    }
    return all > 0.0 ? kept / all : 1.0;
}

double hwkv_retention_query(const struct hwkv_geometry * geo, const struct hwkv_entry * codebook, const int32_t * entries, int64_t n_ctx) {
    double kept = 0.0;
    double all  = 0.0;
    for (int32_t jl = 0; jl < geo->n_full; jl++) {
        const struct hwkv_layer * layer = &geo->layers[jl];
        const double n_query = (double) layer->n_head / layer->n_head_kv;
        for (int32_t ih = 0; ih < layer->n_head_kv; ih++) {
            kept += n_query * (double) hwkv_retained(entries ? codebook[*entries++].window : HWKV_FULL, n_ctx);
            all  += n_query * (double) n_ctx;
        }
    }
    return all > 0.0 ? kept / all : 1.0;
}
