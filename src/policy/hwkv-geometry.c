// The head geometry of a model.

#include "hwkv-impl.h"

#include <stdio.h>
#include <string.h>

int hwkv_geometry_init(struct hwkv_geometry * geo, int32_t n_full, struct hwkv_error * err) {
    memset(geo, 0, sizeof(*geo));
    if (n_full < 1 || n_full > HWKV_LAYER_MAX) {
        return hwkv_fail(err, HWKV_ERR_RANGE, NULL, "found %d full-attention layers, expected 1 to %d", (int) n_full, HWKV_LAYER_MAX);
    }
    geo->layers = hwkv_alloc((size_t) n_full, sizeof(*geo->layers));
    if (!geo->layers) {
        return hwkv_fail(err, HWKV_ERR_NOMEM, NULL, "out of memory");
    }
    geo->n_full = n_full;
    return 0;
}

int hwkv_geometry_copy(struct hwkv_geometry * dst, const struct hwkv_geometry * src, struct hwkv_error * err) {
    struct hwkv_layer * layers = hwkv_alloc((size_t) src->n_full, sizeof(*layers));
    if (!layers) {
        memset(dst, 0, sizeof(*dst));
        return hwkv_fail(err, HWKV_ERR_NOMEM, NULL, "out of memory");
    }
    memcpy(layers, src->layers, (size_t) src->n_full * sizeof(*layers));
    *dst = *src;
    dst->layers = layers;
    return 0;
}

void hwkv_geometry_free(struct hwkv_geometry * geo) {
    if (geo) {
        hwkv_free(geo->layers);
        geo->layers = NULL;
        geo->n_full = 0;
    }
}

static int validate_layer(const struct hwkv_geometry * geo, int32_t jl, struct hwkv_error * err) {
    const struct hwkv_layer * l = &geo->layers[jl];
    const int32_t below = jl > 0 ? geo->layers[jl - 1].il : -1;
    char path[64];
    snprintf(path, sizeof(path), "$.model.layers[%d]", (int) jl);
    if (l->il <= below || l->il >= geo->n_layer) {
        return hwkv_fail(err, HWKV_ERR_VALUE, path, "found layer %d, expected one above %d and below n_layer = %d", (int) l->il, (int) below,
                         (int) geo->n_layer);
    }
    if (l->n_head_kv < 1 || l->n_head_kv > HWKV_HEAD_MAX || l->n_head < 1 || l->n_head > 64 * HWKV_HEAD_MAX) {
        return hwkv_fail(err, HWKV_ERR_RANGE, path, "found n_head %d and n_head_kv %d, expected 1 to %d KV heads", (int) l->n_head,
                         (int) l->n_head_kv, HWKV_HEAD_MAX);
    }
    if (l->n_head % l->n_head_kv != 0) {
        return hwkv_fail(err, HWKV_ERR_VALUE, path, "found n_head %d, expected a multiple of n_head_kv = %d", (int) l->n_head,
                         (int) l->n_head_kv);
    }
    if (l->head_dim_k < 1 || l->head_dim_k > 65536 || l->head_dim_v < 1 || l->head_dim_v > 65536) {
        return hwkv_fail(err, HWKV_ERR_RANGE, path, "found head dims %d and %d, expected 1 to 65536", (int) l->head_dim_k,
                         (int) l->head_dim_v);
    }
    return 0;
}

int hwkv_geometry_validate(const struct hwkv_geometry * geo, struct hwkv_error * err) {
    if (!geo || !geo->layers || geo->n_full < 1 || geo->n_full > HWKV_LAYER_MAX) {
        return hwkv_fail(err, HWKV_ERR_ARG, "$.model", "found no full-attention layer, expected at least one");
    }
    if (geo->n_layer < geo->n_full || geo->n_layer > 16 * HWKV_LAYER_MAX) {
        return hwkv_fail(err, HWKV_ERR_VALUE, "$.model.n_layer", "found %d, expected at least the %d full-attention layers", (int) geo->n_layer,
                         (int) geo->n_full);
    }
    if (geo->fingerprint[0] && !hwkv_is_hex64(geo->fingerprint)) {
        return hwkv_fail(err, HWKV_ERR_VALUE, "$.model.fingerprint", "found other text, expected \"\" or 64 lower-case hex digits");
    }
    if (geo->type_fingerprint[0] && !hwkv_is_hex64(geo->type_fingerprint)) {
        return hwkv_fail(err, HWKV_ERR_VALUE, "$.model.type_fingerprint", "found other text, expected \"\" or 64 lower-case hex digits");
    }
    if (!hwkv_is_utf8(geo->architecture) || !hwkv_is_utf8(geo->name)) {
        return hwkv_fail(err, HWKV_ERR_UTF8, "$.model", "found a name that is not UTF-8, expected UTF-8 text");
    }
    for (int32_t jl = 0; jl < geo->n_full; jl++) {
        const int status = validate_layer(geo, jl, err);
        if (status) {
            return status;
        }
    }
    return 0;
}
