#include "harness.h"

#include "ggml-backend.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

uint32_t random_below(uint32_t * state, uint32_t n) {
    *state = *state * 1664525u + 1013904223u;
    return (uint32_t) (((uint64_t) (*state >> 8) * n) >> 24);
}

int fail(const char * what) {
    fprintf(stderr, "bridge-test: %s\n", what);
    return 1;
}

struct hwkv_policy * load_policy(const struct options * opt, int32_t * ip) {
    struct hwkv_policy * policy = NULL;
    struct hwkv_error    err    = { 0 };
    if (hwkv_policy_load(&policy, opt->policy, &err) != 0) {
        char buf[512];
        fprintf(stderr, "bridge-test: %s: %s\n", opt->policy, hwkv_error_format(&err, buf, sizeof(buf)));
        exit(1);
    }
    *ip = opt->point ? hwkv_policy_find_point(policy, opt->point) : hwkv_policy_selected(policy);
    return policy;
}

llama_token * random_tokens(const struct llama_model * model, int32_t n, uint32_t seed) {
    const int32_t n_vocab = llama_vocab_n_tokens(llama_model_get_vocab(model));
    llama_token * tokens = malloc((size_t) n * sizeof(*tokens));
    for (int32_t i = 0; i < n; i++) {
        tokens[i] = (llama_token) random_below(&seed, (uint32_t) n_vocab);
    }
    return tokens;
}

struct llama_context * make_context(struct llama_model * model, const struct options * opt) {
    struct llama_context_params p = llama_context_default_params();
    p.n_ctx              = opt->n_ctx;
    p.n_batch            = opt->n_ctx;
    p.n_ubatch           = opt->n_ubatch;
    p.n_seq_max          = opt->n_seq_max;
    p.n_outputs_max      = opt->n_ctx;
    p.n_threads          = opt->n_threads;
    p.n_threads_batch    = opt->n_threads;
    p.type_k             = opt->type_k;
    p.type_v             = opt->type_v;
    p.flash_attn_type    = opt->flash_attn ? LLAMA_FLASH_ATTN_TYPE_ENABLED : LLAMA_FLASH_ATTN_TYPE_DISABLED;
    p.kv_unified         = opt->kv_unified;
    p.swa_full           = opt->swa_full;
    p.kv_policy          = opt->policy;
    p.kv_policy_point    = opt->point;
    p.kv_policy_rollback = opt->rollback;
    return llama_init_from_model(model, p);
}

//
// reference
//

static int32_t row_of_layer(const struct hwkv_geometry * geo, int32_t il) {
    for (int32_t row = 0; row < geo->n_full; row++) {
        if (geo->layers[row].il == il) {
            return row;
        }
    }
    return -1;
}

// Which token stands in a cell. A fresh cache holds token j in cell j; what comes after a shift goes into the freed cells.
static int64_t token_of_cell(const struct reference * ref, int64_t j) {
    return ref->n_shifted > 0 && j < ref->n_shifted ? ref->n_before + j : j;
}

static int64_t position_of_token(const struct reference * ref, int64_t token) {
    if (ref->divisor == 0) {
        return token; // what matters is the distance, which a shift does not change
    }
    return token < ref->n_before ? token / ref->divisor : ref->n_before / ref->divisor + token - ref->n_before;
}

// Dividing brings tokens back into a window that had left it: they are gone. Without rollback a ring holds what the first
// token of the last ubatch saw.
static bool is_evicted(const struct reference * ref, int64_t token, int64_t sinks, int64_t recent) {
    const int64_t n_ubatch = ref->opt->n_ubatch;
    return ref->divisor > 0 && token >= sinks && token < (ref->n_before - 1) / n_ubatch * n_ubatch - recent + 1;
}

// scores: [n_kv, n_tokens, n_head]; rows are the tokens of one batch
static void mask_scores(const struct reference * ref, struct ggml_tensor * t, int32_t row) {
    const struct hwkv_geometry * geo   = hwkv_policy_geometry(ref->policy);
    const struct hwkv_point    * point = hwkv_policy_point(ref->policy, ref->ip);
    const struct hwkv_layer    * layer = &geo->layers[row];
    const int64_t sinks = hwkv_policy_sinks(ref->policy);
    const int64_t ratio = t->ne[2] / layer->n_head_kv;
    float * data = (float *) t->data;
    for (int64_t h = 0; h < t->ne[2]; h++) {
        const int32_t w = point->windows[hwkv_policy_unit(ref->policy, row, (int32_t) (h / ratio))];
        if (w == HWKV_FULL) {
            continue;
        }
        for (int64_t i = 0; i < t->ne[1]; i++) {
            float * scores = data + (h * t->ne[1] + i) * t->ne[0];
            const int64_t query = position_of_token(ref, ref->first + i);
            for (int64_t j = 0; j < t->ne[0]; j++) {
                const int64_t token = token_of_cell(ref, j);
                const int64_t key   = position_of_token(ref, token);
                if ((key >= sinks && key <= query - (w - sinks)) || is_evicted(ref, token, sinks, w - sinks)) {
                    scores[j] = -INFINITY;
                }
            }
        }
    }
}

static bool on_node(struct ggml_tensor * t, bool ask, void * user_data) {
    struct reference * ref = user_data;
    int il = -1;
    char tail = 0;
    if (sscanf(t->name, "kq-%d%c", &il, &tail) != 1 && sscanf(t->name, "kq_scaled_2-%d%c", &il, &tail) != 1) {
        return false;
    }
    const int32_t row = row_of_layer(hwkv_policy_geometry(ref->policy), il == ref->opt->shared_layer ? ref->opt->shared_source : il);
    if (row < 0) {
        return false;
    }
    if (!ask) {
        mask_scores(ref, t, row);
    }
    return true;
}

void reference_init(struct reference * ref, struct llama_model * model, const struct options * opt, const struct hwkv_policy * policy, int32_t ip) {
    *ref = (struct reference) { .policy = policy, .ip = ip, .opt = opt };
    struct llama_context_params p = llama_context_default_params();
    p.n_ctx             = opt->n_ctx;
    p.n_batch           = opt->n_ctx;
    p.n_ubatch          = opt->n_ctx; // one ubatch, so that rows are positions
    p.n_outputs_max     = opt->n_ctx;
    p.n_threads         = opt->n_threads;
    p.n_threads_batch   = opt->n_threads;
    p.type_k            = GGML_TYPE_F32;
    p.type_v            = GGML_TYPE_F32;
    p.flash_attn_type   = LLAMA_FLASH_ATTN_TYPE_DISABLED;
    p.kv_unified        = true;
    p.swa_full          = true;
    p.cb_eval           = on_node;
    p.cb_eval_user_data = ref;
    ref->ctx = llama_init_from_model(model, p);
    if (!ref->ctx) {
        fprintf(stderr, "cannot create the reference context\n");
        exit(1);
    }
}

void reference_free(struct reference * ref) {
    llama_free(ref->ctx);
}

const float * reference_run(struct reference * ref, const llama_token * tokens, int32_t n, int32_t n_out) {
    llama_memory_clear(llama_get_memory(ref->ctx), true);
    ref->first     = 0;
    ref->n_shifted = 0;
    ref->divisor   = 0;
    if (decode_tokens(ref->ctx, tokens, n, 0, 0, n_out) != 0) {
        fprintf(stderr, "the reference failed to decode %d tokens\n", n);
        exit(1);
    }
    return llama_get_logits(ref->ctx);
}

//
// running and comparing
//

int decode_tokens(struct llama_context * ctx, const llama_token * tokens, int32_t n, llama_pos pos, llama_seq_id seq, int32_t n_out) {
    struct llama_batch batch = llama_batch_init(n, 0, 1);
    batch.n_tokens = n;
    for (int32_t i = 0; i < n; i++) {
        batch.token[i]     = tokens[i];
        batch.pos[i]       = pos + i;
        batch.n_seq_id[i]  = 1;
        batch.seq_id[i][0] = seq;
        batch.logits[i]    = i >= n - n_out;
    }
    const int status = llama_decode(ctx, batch);
    llama_batch_free(batch);
    return status;
}

static double log_sum_exp(const float * x, int32_t n) {
    float max = x[0];
    for (int32_t i = 1; i < n; i++) {
        max = x[i] > max ? x[i] : max;
    }
    double sum = 0.0;
    for (int32_t i = 0; i < n; i++) {
        sum += exp((double) x[i] - (double) max);
    }
    return (double) max + log(sum);
}

void compare_logits(struct difference * d, const float * a, const float * b, int32_t n_vocab) {
    const double la = log_sum_exp(a, n_vocab);
    const double lb = log_sum_exp(b, n_vocab);
    double  kl    = 0.0;
    double  max   = 0.0;
    int32_t top_a = 0;
    int32_t top_b = 0;
    for (int32_t i = 0; i < n_vocab; i++) {
        const double xa = a[i];
        const double xb = b[i];
        const double diff = fabs(xa - xb);
        // a NaN must not pass for no difference
        max = diff <= max ? max : isnan(diff) ? HUGE_VAL : diff;
        kl += exp(xb - lb) * ((xb - lb) - (xa - la));
        top_a = a[i] > a[top_a] ? i : top_a;
        top_b = b[i] > b[top_b] ? i : top_b;
    }
    d->max_abs = max > d->max_abs ? max : d->max_abs;
    d->max_kl = kl <= d->max_kl ? d->max_kl : isnan(kl) ? HUGE_VAL : kl;
    d->n++;
    // two tokens as good as tied in the reference may change places
    const double tie = 2 * max < 0.05 ? 2 * max : 0.05;
    d->n_same_top += (double) b[top_a] >= (double) b[top_b] - tie;
}
