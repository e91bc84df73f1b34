// Commands that run a model from start to end.

#include "harness.h"

#include "llama-hwkv.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// All logits of the prompt and of every decoded token are compared.
int run_compare(struct llama_model * model, const struct options * opt) {
    const int32_t n       = opt->n_prompt + opt->n_decode;
    const int32_t n_vocab = llama_vocab_n_tokens(llama_model_get_vocab(model));
    llama_token * tokens  = random_tokens(model, n, opt->seed);

    struct llama_context * ctx = make_context(model, opt);
    if (!ctx) {
        return fail("cannot create the context");
    }
    int32_t ip = 0;
    struct hwkv_policy * policy = load_policy(opt, &ip);
    struct reference ref;
    reference_init(&ref, model, opt, policy, ip);
    const float * expected = reference_run(&ref, tokens, n, n);

    struct difference d = { 0 };
    if (decode_tokens(ctx, tokens, opt->n_prompt, 0, 0, opt->n_prompt) != 0) {
        return fail("cannot decode the prompt");
    }
    for (int32_t i = 0; i < opt->n_prompt; i++) {
        compare_logits(&d, llama_get_logits_ith(ctx, i), expected + (size_t) i * (size_t) n_vocab, n_vocab);
    }
    for (int32_t i = opt->n_prompt; i < n; i++) {
        if (decode_tokens(ctx, tokens + i, 1, i, 0, 1) != 0) {
            return fail("cannot decode a token");
        }
        compare_logits(&d, llama_get_logits_ith(ctx, 0), expected + (size_t) i * (size_t) n_vocab, n_vocab);
    }
    const struct hwkv_plan * plan = llama_kv_policy_plan(ctx);
    printf("{\"max_abs\": %.9g, \"max_kl\": %.9g, \"n\": %d, \"same_top\": %d, \"groups\": %d}\n", d.max_abs, d.max_kl, d.n, d.n_same_top,
           plan ? hwkv_plan_n_group(plan) : 0);
    reference_free(&ref);
    llama_free(ctx);
    hwkv_policy_free(policy);
    free(tokens);
    return 0;
}

int run_plan(struct llama_model * model, const struct options * opt) {
    struct llama_context * ctx = make_context(model, opt);
    if (!ctx) {
        return fail("cannot create the context");
    }
    const struct hwkv_plan * plan = llama_kv_policy_plan(ctx);
    printf("{\"predicted\": %llu, \"plain\": %llu, \"cache\": %zu}\n", plan ? (unsigned long long) hwkv_plan_size(plan) : 0ull,
           plan ? (unsigned long long) hwkv_plan_size_plain(plan) : 0ull, llama_kv_policy_cache_size(ctx));
    llama_free(ctx);
    return 0;
}

// Everything computed, to the last bit.
int run_hash(struct llama_model * model, const struct options * opt) {
    const int32_t n       = opt->n_prompt + opt->n_decode;
    const int32_t n_vocab = llama_vocab_n_tokens(llama_model_get_vocab(model));
    llama_token * tokens  = random_tokens(model, n, opt->seed);
    struct llama_context * ctx = make_context(model, opt);
    if (!ctx) {
        return fail("cannot create the context");
    }
    struct hwkv_sha256 s;
    hwkv_sha256_init(&s);
    for (int32_t at = 0; at < n;) {
        const int32_t n_now = at == 0 ? opt->n_prompt : 1;
        if (decode_tokens(ctx, tokens + at, n_now, at, 0, n_now) != 0) {
            return fail("cannot decode");
        }
        hwkv_sha256_update(&s, llama_get_logits(ctx), (size_t) n_now * (size_t) n_vocab * sizeof(float));
        at += n_now;
    }
    char hex[65];
    hwkv_sha256_final(&s, hex);
    printf("{\"sha256\": \"%s\", \"cache\": %zu}\n", hex, llama_kv_policy_cache_size(ctx));
    llama_free(ctx);
    free(tokens);
    return 0;
}

// One prompt, copied to the other sequences, then all of them decode n_decode tokens of their own in common batches.
int run_copies(struct llama_model * model, const struct options * opt) {
    const int32_t n_seq   = (int32_t) opt->n_seq_max;
    const int32_t n       = opt->n_prompt + opt->n_decode;
    const int32_t n_vocab = llama_vocab_n_tokens(llama_model_get_vocab(model));
    struct llama_context * ctx = make_context(model, opt);
    if (!ctx) {
        return fail("cannot create the context");
    }
    int32_t ip = 0;
    struct hwkv_policy * policy = load_policy(opt, &ip);
    struct reference ref;
    reference_init(&ref, model, opt, policy, ip);

    llama_token ** tokens = calloc((size_t) n_seq, sizeof(*tokens));
    for (int32_t s = 0; s < n_seq; s++) {
        tokens[s] = random_tokens(model, n, opt->seed + (uint32_t) s);
        memcpy(tokens[s], tokens[0], (size_t) opt->n_prompt * sizeof(llama_token));
    }
    if (decode_tokens(ctx, tokens[0], opt->n_prompt, 0, 0, 1) != 0) {
        return fail("cannot decode the prompt");
    }
    for (int32_t s = 1; s < n_seq; s++) {
        llama_memory_seq_cp(llama_get_memory(ctx), 0, s, -1, -1);
    }
    struct difference  d     = { 0 };
    struct llama_batch batch = llama_batch_init(n_seq, 0, 1);
    for (int32_t i = opt->n_prompt; i < n; i++) {
        batch.n_tokens = n_seq;
        for (int32_t s = 0; s < n_seq; s++) {
            batch.token[s]     = tokens[s][i];
            batch.pos[s]       = i;
            batch.n_seq_id[s]  = 1;
            batch.seq_id[s][0] = s;
            batch.logits[s]    = 1;
        }
        if (llama_decode(ctx, batch) != 0) {
            return fail("cannot decode the copies");
        }
        if (i % 16 == 0 || i == n - 1) {
            for (int32_t s = 0; s < n_seq; s++) {
                compare_logits(&d, llama_get_logits_ith(ctx, s), reference_run(&ref, tokens[s], i + 1, 1), n_vocab);
            }
        }
    }
    printf("{\"max_abs\": %.9g, \"max_kl\": %.9g, \"n\": %d, \"same_top\": %d}\n", d.max_abs, d.max_kl, d.n, d.n_same_top);
    llama_batch_free(batch);
    for (int32_t s = 0; s < n_seq; s++) {
        free(tokens[s]);
    }
    free(tokens);
    reference_free(&ref);
    hwkv_policy_free(policy);
    llama_free(ctx);
    return 0;
}

static int32_t read_tokens(const struct llama_model * model, const char * path, llama_token * tokens, int32_t n_max) {
    FILE * file = fopen(path, "rb");
    if (!file) {
        return -1;
    }
    const size_t size = (size_t) n_max * 8;
    char * text = malloc(size);
    const size_t n_read = fread(text, 1, size, file);
    fclose(file);
    llama_token * all = malloc(size * sizeof(*all));
    const int32_t n = llama_tokenize(llama_model_get_vocab(model), text, (int32_t) n_read, all, (int32_t) size, true, false);
    const int32_t n_take = n < n_max ? n : n_max;
    if (n_take > 0) {
        memcpy(tokens, all, (size_t) n_take * sizeof(*tokens));
    }
    free(all);
    free(text);
    return n_take;
}

static llama_token best_token(const float * logits, int32_t n_vocab) {
    llama_token best = 0;
    for (int32_t i = 1; i < n_vocab; i++) {
        best = logits[i] > logits[best] ? i : best;
    }
    return best;
}

// Greedy tokens after the first n_prompt tokens of a text; then one cold run of all of it must choose the same.
int run_greedy(struct llama_model * model, const struct options * opt) {
    const int32_t n       = opt->n_prompt + opt->n_decode;
    const int32_t n_vocab = llama_vocab_n_tokens(llama_model_get_vocab(model));
    llama_token * tokens  = calloc((size_t) n + 1, sizeof(*tokens));
    if (!opt->text || read_tokens(model, opt->text, tokens, opt->n_prompt) != opt->n_prompt) {
        return fail("the text is missing or too short");
    }
    struct llama_context * ctx = make_context(model, opt);
    if (!ctx || decode_tokens(ctx, tokens, opt->n_prompt, 0, 0, 1) != 0) {
        return fail("cannot process the prompt");
    }
    for (int32_t i = opt->n_prompt; i < n; i++) {
        tokens[i] = best_token(llama_get_logits_ith(ctx, -1), n_vocab);
        if (decode_tokens(ctx, tokens + i, 1, i, 0, 1) != 0) {
            return fail("cannot decode a token");
        }
    }
    llama_free(ctx);

    int32_t ip = 0;
    struct hwkv_policy * policy = load_policy(opt, &ip);
    struct reference ref;
    reference_init(&ref, model, opt, policy, ip);
    const float * logits = reference_run(&ref, tokens, n - 1, opt->n_decode);
    int32_t n_same = 0;
    for (int32_t i = 0; i < opt->n_decode; i++) {
        n_same += best_token(logits + (size_t) i * (size_t) n_vocab, n_vocab) == tokens[opt->n_prompt + i];
    }
    printf("{\"n\": %d, \"same\": %d}\n", opt->n_decode, n_same);
    reference_free(&ref);
    hwkv_policy_free(policy);
    free(tokens);
    return 0;
}

// Drops the first d tokens and moves the others up, or divides all positions; policies without sinks, whose windows go by distance, must not notice.
// The reference does the same to the plain cache: K is rotated by both alike.
int run_shift(struct llama_model * model, const struct options * opt) {
    const int32_t d       = opt->n_prompt / 2;
    const int32_t n       = opt->n_prompt + opt->n_decode;
    const int32_t n_vocab = llama_vocab_n_tokens(llama_model_get_vocab(model));
    llama_token * tokens  = random_tokens(model, n, opt->seed);
    int32_t ip = 0;
    struct hwkv_policy * policy = load_policy(opt, &ip);
    if (hwkv_policy_sinks(policy) != 0 || opt->n_decode > d) {
        return fail("a shift needs a policy without sinks, and fewer new tokens than were dropped");
    }
    struct llama_context * ctx = make_context(model, opt);
    if (!ctx) {
        return fail("cannot create the context");
    }
    struct reference ref;
    reference_init(&ref, model, opt, policy, ip);
    reference_run(&ref, tokens, opt->n_prompt, 1);
    if (decode_tokens(ctx, tokens, opt->n_prompt, 0, 0, 1) != 0) {
        return fail("cannot decode the prompt");
    }
    struct llama_context * both[2] = { ctx, ref.ctx };
    for (int i = 0; i < 2; i++) {
        if (opt->divisor > 0) {
            llama_memory_seq_div(llama_get_memory(both[i]), 0, 0, -1, opt->divisor);
        } else {
            llama_memory_seq_rm(llama_get_memory(both[i]), 0, 0, d);
            llama_memory_seq_add(llama_get_memory(both[i]), 0, d, -1, -d);
        }
    }
    ref.n_shifted = opt->divisor > 0 ? 0 : d;
    ref.divisor   = opt->divisor;
    ref.n_before  = opt->n_prompt;
    const llama_pos offset = opt->divisor > 0 ? opt->n_prompt - opt->n_prompt / opt->divisor : d;
    struct difference diff = { 0 };
    for (int32_t i = opt->n_prompt; i < n; i++) {
        ref.first = i;
        if (decode_tokens(ctx, tokens + i, 1, i - offset, 0, 1) != 0 || decode_tokens(ref.ctx, tokens + i, 1, i - offset, 0, 1) != 0) {
            return fail("cannot decode after the shift");
        }
        compare_logits(&diff, llama_get_logits_ith(ctx, 0), llama_get_logits_ith(ref.ctx, 0), n_vocab);
    }
    printf("{\"max_abs\": %.9g, \"max_kl\": %.9g, \"n\": %d, \"same_top\": %d}\n", diff.max_abs, diff.max_kl, diff.n, diff.n_same_top);
    reference_free(&ref);
    llama_free(ctx);
    hwkv_policy_free(policy);
    free(tokens);
    return 0;
}
