// Cache types of single heads: what the reference does about them.

#include "harness.h"

#include "ggml.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

// The width that decides whether llama.cpp rotates heads: that of the first layer, which has a sliding window where there are two widths.
static int64_t first_head_dim(const struct llama_model * model, const char * arch, int64_t dim, bool is_k) {
    char key[96];
    char value[32];
    snprintf(key, sizeof(key), "%s.attention.%s_length_swa", arch, is_k ? "key" : "value");
    return llama_model_meta_val_str(model, key, value, sizeof(value)) > 0 ? atoi(value) : dim;
}

// As llama.cpp rotates heads that it keeps in blocks: by a Hadamard matrix that is its own inverse, 64 wide for V, as wide as divides the head for K.
static int64_t rotation_of(const struct reference * ref, enum ggml_type type, int64_t dim, bool is_k) {
    const char * off  = getenv("LLAMA_ATTN_ROT_DISABLE");
    const char * arch = hwkv_policy_geometry(ref->policy)->architecture;
    if (!ggml_is_quantized(type) || first_head_dim(llama_get_model(ref->ctx), arch, dim, is_k) % 64 != 0 || (off && atoi(off))) {
        return 0;
    }
    int64_t n = 64;
    while (is_k && dim % (2 * n) == 0) {
        n *= 2;
    }
    return n;
}

static void rotate(float * row, int64_t dim, int64_t n) {
    for (float * x = row; n > 0 && x < row + dim; x += n) {
        for (int64_t s = 1; s < n; s *= 2) {
            for (int64_t i = 0; i < n; i++) {
                if ((i & s) == 0) {
                    const float a = x[i];
                    const float b = x[i + s];
                    x[i]     = a + b;
                    x[i + s] = a - b;
                }
            }
        }
        for (int64_t i = 0; i < n; i++) {
            x[i] /= sqrtf((float) n);
        }
    }
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
        const int64_t n_rot = rotation_of(ref, type, dim, is_k);
        // all rows there are: a shift has changed those before, and rounding twice changes nothing
        for (int32_t i = 0; i < ref->first + ref->n_now; i++) {
            float * row = (float *) (void *) ((char *) cache->data + (size_t) i * cache->nb[1]) + ih * dim;
            rotate(row, dim, n_rot);
            ggml_get_type_traits(type)->from_float_ref(row, packed, dim);
            ggml_get_type_traits(type)->to_float(packed, row, dim);
            rotate(row, dim, n_rot);
        }
    }
    free(packed);
}
