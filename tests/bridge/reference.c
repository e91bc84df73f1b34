// The plain cache with a mask for each head. Tokens are only ever appended, and cells are never freed, so token i stands
// in cell i: what a shift takes away is given to sequence 1.

#include "harness.h"

#include "ggml.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// Dividing brings tokens back into a window that had left it: they are gone. Without rollback a ring holds what the first
// token of the last ubatch saw.
static bool is_gone(const struct reference * ref, int32_t token, int32_t sinks, int32_t recent) {
    const int32_t n_ubatch = (int32_t) ref->opt->n_ubatch;
    return token >= sinks && token < (ref->n_divided - 1) / n_ubatch * n_ubatch - recent + 1;
}

// One row of the mask: what a head with window w sees from the query's token.
static void fill_row(const struct reference * ref, ggml_fp16_t * row, int64_t n_kv, int32_t query, int32_t w) {
    const ggml_fp16_t hidden = ggml_fp32_to_fp16(-INFINITY);
    const int32_t sinks  = hwkv_policy_sinks(ref->policy);
    const int32_t recent = w == HWKV_FULL ? 0 : w - sinks + ref->opt->window_error;
    for (int64_t i = 0; i < n_kv; i++) {
        const int32_t key = (int32_t) i;
        row[i] = key > query || ref->removed[key] ? hidden : 0;
        if (w == HWKV_FULL || row[i] == hidden) {
            continue;
        }
        if ((ref->pos[key] >= sinks && ref->pos[key] <= ref->pos[query] - recent) || (ref->n_divided && is_gone(ref, key, sinks, recent))) {
            row[i] = hidden;
        }
    }
}

static void fill_mask(struct reference * ref, int32_t jl, int64_t n_kv, int64_t n_tokens, int64_t n_head) {
    const struct hwkv_layer * layer = &hwkv_policy_geometry(ref->policy)->layers[jl];
    const struct hwkv_point * point = hwkv_policy_point(ref->policy, ref->ip);
    const int64_t ratio = n_head / layer->n_head_kv;
    struct ggml_tensor * mask = ref->mask;
    mask->ne[0] = n_kv;
    mask->ne[1] = n_tokens;
    mask->ne[2] = n_head;
    for (int i = 1; i < GGML_MAX_DIMS; i++) {
        mask->nb[i] = mask->nb[i - 1] * (size_t) mask->ne[i - 1];
    }
    mask->data = realloc(mask->data, ggml_nbytes(mask));
    if (!mask->data) {
        die("no memory for the mask of the reference");
    }
    for (int64_t h = 0; h < n_head; h++) {
        ggml_fp16_t * rows = (ggml_fp16_t *) mask->data + h * n_tokens * n_kv;
        const int32_t w = hwkv_policy_codebook(ref->policy, NULL)[point->entries[hwkv_policy_unit(ref->policy, jl, (int32_t) (h / ratio))]].window;
        if (h % ratio > 0) { // the query heads of a KV head see the same
            memcpy(rows, rows - n_tokens * n_kv, (size_t) (n_tokens * n_kv) * sizeof(*rows));
            continue;
        }
        for (int64_t i = 0; i < n_tokens; i++) {
            fill_row(ref, rows + i * n_kv, n_kv, ref->first + (int32_t) i, w);
        }
    }
}

// Which of the policy's layers a tensor of the cache belongs to, by its name, -1 if none. Layers can share a cache, so the name of
// the node that reads it does not tell.
static int32_t layer_of(const struct hwkv_geometry * geo, const struct ggml_tensor * t, const char * format) {
    int il = -1;
    if (!t || sscanf(t->name, format, &il) != 1) {
        return -1;
    }
    for (int32_t jl = 0; jl < geo->n_full; jl++) {
        if (geo->layers[jl].il == il) {
            return jl;
        }
    }
    return -1;
}

// Where heads have types of their own, what a layer has stored is rounded before its attention reads it.
static bool on_stored(struct reference * ref, struct ggml_tensor * t, bool ask) {
    const struct hwkv_geometry * geo = hwkv_policy_geometry(ref->policy);
    const int32_t jl_k = layer_of(geo, t, "cache_k_l%d");
    const int32_t jl_v = layer_of(geo, t, "cache_v_l%d");
    if (!ask) {
        round_heads(ref, jl_k >= 0 ? jl_k : jl_v, t, jl_k >= 0);
    }
    return jl_k >= 0 || jl_v >= 0;
}

// Asked before a node is computed: attention gets its mask then. It is computed at once, so that the next layer can use
// the same memory.
static bool on_node(struct ggml_tensor * t, bool ask, void * user_data) {
    struct reference * ref = user_data;
    if (t->op == GGML_OP_SET_ROWS && hwkv_policy_has_types(ref->policy)) {
        return on_stored(ref, t, ask);
    }
    if (!ask) {
        return true;
    }
    const bool is_flash = t->op == GGML_OP_FLASH_ATTN_EXT;
    if (!is_flash && t->op != GGML_OP_SOFT_MAX) {
        return false;
    }
    const struct ggml_tensor * k = is_flash ? t->src[1] : t->src[0]->src[0];
    const struct ggml_tensor * q = is_flash ? t->src[0] : t;
    const int32_t jl = layer_of(hwkv_policy_geometry(ref->policy), k, "cache_k_l%d");
    if (jl < 0) {
        return false;
    }
    fill_mask(ref, jl, k->ne[1], q->ne[1], q->ne[2]);
    t->src[is_flash ? 3 : 1] = ref->mask;
    ref->n_masked++;
    return true;
}

void reference_init(struct reference * ref, struct llama_model * model, const struct options * opt, const struct hwkv_policy * policy, int32_t ip) {
    *ref = (struct reference) { .policy = policy, .ip = ip, .opt = opt };
    const struct ggml_init_params meta = { .mem_size = ggml_tensor_overhead(), .no_alloc = true };
    ref->meta    = ggml_init(meta);
    ref->mask    = ggml_new_tensor_3d(ref->meta, GGML_TYPE_F16, 1, 1, 1);
    ref->pos     = calloc(opt->n_ctx, sizeof(*ref->pos));
    ref->removed = calloc(opt->n_ctx, sizeof(*ref->removed));

    // the plain computation, but for quantized V, which llama.cpp has only with flash attention: there batches of another
    // size may take another kernel, which rounds otherwise
    // (types of the heads' own need it too: without it V is transposed, and its rows cannot be rounded)
    const bool types      = hwkv_policy_has_types(policy);
    const bool flash_attn = opt->flash_attn && (types || ggml_is_quantized(opt->type_v));
    ref->n_batch = flash_attn ? (int32_t) opt->n_ubatch : 512;

    struct llama_context_params p = llama_context_default_params();
    p.n_ctx             = opt->n_ctx;
    p.n_batch           = (uint32_t) ref->n_batch;
    p.n_ubatch          = (uint32_t) ref->n_batch;
    p.n_outputs_max     = (uint32_t) ref->n_batch;
    p.n_seq_max         = 2;
    p.n_threads         = opt->n_threads;
    p.n_threads_batch   = opt->n_threads;
    p.type_k            = types ? GGML_TYPE_F32 : opt->type_k;
    p.type_v            = types ? GGML_TYPE_F32 : opt->type_v;
    p.flash_attn_type   = flash_attn ? LLAMA_FLASH_ATTN_TYPE_ENABLED : LLAMA_FLASH_ATTN_TYPE_DISABLED;
    p.kv_unified        = true;
    p.swa_full          = true;
    p.cb_eval           = on_node;
    p.cb_eval_user_data = ref;
    ref->ctx = llama_init_from_model(model, p);
    if (!ref->ctx) {
        die("cannot create the reference context");
    }
}

void reference_free(struct reference * ref) {
    llama_free(ref->ctx);
    free(ref->mask->data);
    ggml_free(ref->meta);
    free(ref->pos);
    free(ref->removed);
    free(ref->logits);
}

void reference_clear(struct reference * ref) {
    llama_memory_clear(llama_get_memory(ref->ctx), true);
    memset(ref->removed, 0, ref->opt->n_ctx * sizeof(*ref->removed));
    ref->n         = 0;
    ref->n_divided = 0;
}

const float * reference_append(struct reference * ref, const llama_token * tokens, int32_t n, int32_t n_out) {
    const int32_t n_vocab = llama_vocab_n_tokens(llama_model_get_vocab(llama_get_model(ref->ctx)));
    const size_t  row     = (size_t) n_vocab * sizeof(float);
    ref->logits = realloc(ref->logits, (size_t) n_out * row);
    if (ref->n + n > (int32_t) ref->opt->n_ctx || !ref->logits) {
        die("too many tokens for the reference");
    }
    const llama_pos next = ref->n > 0 ? ref->pos[ref->n - 1] + 1 : 0;
    for (int32_t i = 0; i < n; i++) {
        ref->pos[ref->n + i] = next + i;
    }
    for (int32_t at = 0; at < n; at += ref->n_batch) {
        const int32_t n_now  = n - at < ref->n_batch ? n - at : ref->n_batch;
        const int32_t before = n - at - n_now; // outputs that later batches give
        const int32_t n_want = n_out > before ? (n_out - before < n_now ? n_out - before : n_now) : 0;
        ref->first    = ref->n;
        ref->n_now    = n_now;
        ref->n_masked = 0;
        if (decode_tokens(ref->ctx, tokens + at, n_now, next + at, 0, n_want) != 0) {
            die("the reference failed to decode");
        }
        if (ref->n_masked < hwkv_policy_geometry(ref->policy)->n_full) {
            die("the reference has layers without a mask");
        }
        if (n_want > 0) {
            memcpy(ref->logits + (size_t) (n_out - before - n_want) * (size_t) n_vocab, llama_get_logits(ref->ctx), (size_t) n_want * row);
        }
        ref->n += n_now;
    }
    return ref->logits;
}

void reference_shift(struct reference * ref, llama_pos p0, llama_pos p1) {
    llama_memory_t mem = llama_get_memory(ref->ctx);
    llama_memory_seq_cp (mem, 0, 1, p0, p1);
    llama_memory_seq_rm (mem, 0, p0, p1);
    llama_memory_seq_add(mem, 0, p1, -1, p0 - p1);
    for (int32_t i = 0; i < ref->n; i++) {
        if (!ref->removed[i] && ref->pos[i] >= p1) {
            ref->pos[i] -= p1 - p0;
        } else if (!ref->removed[i] && ref->pos[i] >= p0) {
            ref->removed[i] = true;
        }
    }
}

void reference_divide(struct reference * ref, int divisor) {
    llama_memory_seq_div(llama_get_memory(ref->ctx), 0, 0, -1, divisor);
    for (int32_t i = 0; i < ref->n; i++) {
        ref->pos[i] /= divisor;
    }
    ref->n_divided = ref->n;
}
