#include "harness.h"

#include "llama-hwkv.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

uint32_t random_below(uint32_t * state, uint32_t n) {
    *state = *state * 1664525u + 1013904223u;
    return (uint32_t) (((uint64_t) (*state >> 8) * n) >> 24);
}

void die(const char * what) {
    fprintf(stderr, "bridge-test: %s\n", what);
    exit(1);
}

static struct hwkv_policy * load_policy(const struct options * opt, int32_t * ip) {
    struct hwkv_policy * policy = NULL;
    struct hwkv_error    err    = { 0 };
    if (hwkv_policy_load(&policy, opt->policy, &err) != 0) {
        char buf[512];
        die(hwkv_error_format(&err, buf, sizeof(buf)));
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
    p.n_outputs_max      = opt->n_outputs ? opt->n_outputs : opt->n_ctx;
    p.n_threads          = opt->n_threads;
    p.n_threads_batch    = opt->n_threads;
    p.type_k             = opt->type_k;
    p.type_v             = opt->type_v;
    p.flash_attn_type    = opt->flash_attn_auto ? LLAMA_FLASH_ATTN_TYPE_AUTO : opt->flash_attn ? LLAMA_FLASH_ATTN_TYPE_ENABLED : LLAMA_FLASH_ATTN_TYPE_DISABLED;
    p.kv_unified         = opt->kv_unified;
    p.swa_full           = opt->swa_full;
    p.offload_kqv        = !opt->cache_on_host;
    p.kv_policy          = opt->plain ? NULL : opt->policy;
    p.kv_policy_point    = opt->plain ? NULL : opt->point;
    p.kv_policy_rollback = opt->rollback;
    p.kv_policy_allow_cpu = opt->allow_cpu;
    struct llama_context * ctx = llama_init_from_model(model, p);
    if (!ctx) {
        die("cannot create the context");
    }
    return ctx;
}

void bench_init(struct bench * bench, struct llama_model * model, const struct options * opt) {
    if (opt->n_seq_max > SEQ_MAX) {
        die("too many sequences");
    }
    *bench = (struct bench) { .opt = opt };
    bench->n_vocab = llama_vocab_n_tokens(llama_model_get_vocab(model));
    int32_t ip = 0;
    bench->policy = load_policy(opt, &ip);
    bench->ctx = make_context(model, opt);
    for (uint32_t s = 0; s < opt->n_seq_max; s++) {
        reference_init(&bench->ref[s], opt->host, opt, bench->policy, ip);
    }
}

void bench_free(struct bench * bench) {
    for (uint32_t s = 0; s < bench->opt->n_seq_max; s++) {
        reference_free(&bench->ref[s]);
    }
    llama_free(bench->ctx);
    hwkv_policy_free(bench->policy);
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
    const double tie = 2 * max < 1e-3 ? 2 * max : 1e-3;
    d->n_same_top += (double) b[top_a] >= (double) b[top_b] - tie;
}

void print_difference(const struct difference * d) {
    printf("{\"max_abs\": %.9g, \"max_kl\": %.9g, \"n\": %d, \"same_top\": %d", d->max_abs, d->max_kl, d->n, d->n_same_top);
}
