// Cache types of single heads: a policy made of another by hand, and what the reference does about them.

#include "harness.h"

#include "ggml.h"

#include <stdlib.h>
#include <string.h>

static int32_t parse_types(const char * list, enum hwkv_type * types, int32_t n_max) {
    int32_t n = 0;
    char * copy = strdup(list);
    for (char * name = strtok(copy, ","); name; name = strtok(NULL, ",")) {
        const int type = hwkv_type_from_name(name);
        if (type < 0 || n == n_max) {
            die("unknown or too many types of heads");
        }
        types[n++] = (enum hwkv_type) type;
    }
    free(copy);
    return n;
}

static int32_t index_of(const struct hwkv_entry * codebook, int32_t window, enum hwkv_type type) {
    int32_t ic = 0;
    while (codebook[ic].window != window || codebook[ic].type_k != type) {
        ic++;
    }
    return ic;
}

// Every entry once with each type, for K and V alike, the first type being the reference's; the heads take the types in turn.
struct hwkv_policy * typed_policy(const struct hwkv_policy * policy, int32_t ip, const char * list) {
    enum hwkv_type types[4];
    const int32_t n_type = parse_types(list, types, 4);

    int32_t n_code = 0;
    const struct hwkv_entry * codebook = hwkv_policy_codebook(policy, &n_code);
    struct hwkv_entry entries[HWKV_CODE_MAX];
    for (int32_t i = 0; i < n_code * n_type; i++) {
        entries[i] = (struct hwkv_entry) { codebook[i / n_type].window, types[i % n_type], types[i % n_type] };
    }

    struct hwkv_policy_params params = hwkv_policy_params_default();
    params.geometry   = hwkv_policy_geometry(policy);
    params.context    = hwkv_policy_context(policy);
    params.sinks      = hwkv_policy_sinks(policy);
    params.codebook   = entries;
    params.n_codebook = n_code * n_type;
    params.type_k     = types[0];
    params.type_v     = types[0];

    const struct hwkv_cache cache = { params.context, types[0], types[0] };
    struct hwkv_policy * res = NULL;
    struct hwkv_error    err = { 0 };
    int status = hwkv_codebook_sort(entries, n_code * n_type, params.geometry, &cache, &err);

    const int32_t n_unit = hwkv_policy_n_unit(policy);
    const struct hwkv_point * point = hwkv_policy_point(policy, ip);
    int32_t * chosen = calloc((size_t) n_unit, sizeof(*chosen));
    for (int32_t u = 0; u < n_unit && status == 0; u++) {
        chosen[u] = index_of(entries, codebook[point->entries[u]].window, types[u % n_type]);
    }
    const struct hwkv_point_params pp = { .name = "by hand", .method = "by hand", .entries = chosen };
    if (status != 0 || hwkv_policy_init(&res, &params, &err) != 0 || hwkv_policy_add_point(res, &pp, &err) != 0) {
        char buf[512];
        die(hwkv_error_format(&err, buf, sizeof(buf)));
    }
    free(chosen);
    return res;
}

void round_heads(const struct reference * ref, int32_t jl, struct ggml_tensor * cache, bool is_k) {
    const struct hwkv_layer * layer    = &hwkv_policy_geometry(ref->policy)->layers[jl];
    const struct hwkv_entry * codebook = hwkv_policy_codebook(ref->policy, NULL);
    const struct hwkv_point * point    = hwkv_policy_point(ref->policy, ref->ip);
    const int64_t dim    = is_k ? layer->head_dim_k : layer->head_dim_v;
    float       * packed = malloc((size_t) dim * sizeof(*packed));
    for (int32_t ih = 0; ih < layer->n_head_kv; ih++) {
        const int32_t ih_type = (ih + ref->opt->type_error) % layer->n_head_kv;
        const struct hwkv_entry * entry = &codebook[point->entries[hwkv_policy_unit(ref->policy, jl, ih_type)]];
        const enum ggml_type type = type_from_name(hwkv_type_name(is_k ? entry->type_k : entry->type_v));
        if (type == GGML_TYPE_F32) {
            continue;
        }
        // all rows there are: a shift has changed those before, and rounding twice changes nothing
        for (int32_t i = 0; i < ref->first + ref->n_now; i++) {
            float * row = (float *) (void *) ((char *) cache->data + (size_t) i * cache->nb[1]) + ih * dim;
            ggml_get_type_traits(type)->from_float_ref(row, packed, dim);
            ggml_get_type_traits(type)->to_float(packed, row, dim);
        }
    }
    free(packed);
}
