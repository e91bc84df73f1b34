// Commands that run a model from start to end.

#include "harness.h"

#include "llama-hwkv.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void decode(struct llama_context * ctx, const llama_token * tokens, int32_t n, llama_pos pos, int32_t n_out) {
    if (decode_tokens(ctx, tokens, n, pos, 0, n_out) != 0) {
        die("cannot decode");
    }
}

// The prompt, then token by token. All logits are compared.
int run_compare(struct llama_model * model, const struct options * opt) {
    struct bench b;
    bench_init(&b, model, opt);
    const int32_t n        = opt->n_prompt + opt->n_decode;
    llama_token * tokens   = random_tokens(model, n, opt->seed);
    const float * expected = reference_append(&b.ref[0], tokens, n, n);
    for (int32_t at = 0; at < n;) {
        const int32_t n_now = at == 0 ? opt->n_prompt : 1;
        decode(b.ctx, tokens + at, n_now, at, n_now);
        for (int32_t i = 0; i < n_now; i++) {
            compare_logits(&b.diff, llama_get_logits_ith(b.ctx, i), expected + (size_t) (at + i) * (size_t) b.n_vocab, b.n_vocab);
        }
        at += n_now;
    }
    const struct hwkv_plan * plan = llama_kv_policy_plan(b.ctx);
    const int32_t n_group = plan ? hwkv_plan_n_group(plan) : 0;
    int32_t n_full = 0;
    for (int32_t ig = 0; ig < n_group; ig++) {
        n_full += hwkv_plan_group(plan, ig)->entry.window == HWKV_FULL;
    }
    print_difference(&b.diff);
    printf(", \"groups\": %d, \"full_groups\": %d}\n", n_group, n_full);
    bench_free(&b);
    free(tokens);
    return 0;
}

int run_plan(struct llama_model * model, const struct options * opt) {
    struct llama_context   * ctx  = make_context(model, opt);
    const struct hwkv_plan * plan = llama_kv_policy_plan(ctx);
    printf("{\"predicted\": %llu, \"plain\": %llu, \"cache\": %zu, \"memory\": ", plan ? (unsigned long long) hwkv_plan_size(plan) : 0ull,
           plan ? (unsigned long long) hwkv_plan_size_plain(plan) : 0ull, llama_kv_policy_cache_size(ctx));
    print_memory(ctx);
    printf(", \"can_shift\": %s}\n", llama_memory_can_shift(llama_get_memory(ctx)) ? "true" : "false");
    llama_free(ctx);
    return 0;
}

// Everything computed, to the last bit.
int run_hash(struct llama_model * model, const struct options * opt) {
    const int32_t n       = opt->n_prompt + opt->n_decode;
    const int32_t n_vocab = llama_vocab_n_tokens(llama_model_get_vocab(model));
    llama_token * tokens  = random_tokens(model, n, opt->seed);
    struct llama_context * ctx = make_context(model, opt);
    struct hwkv_sha256 s;
    hwkv_sha256_init(&s);
    for (int32_t at = 0; at < n;) {
        const int32_t n_now = at == 0 ? opt->n_prompt : 1;
        decode(ctx, tokens + at, n_now, at, n_now);
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

// One token of each sequence.
static void decode_step(struct llama_context * ctx, llama_token ** tokens, int32_t n_seq, int32_t i) {
    struct llama_batch batch = llama_batch_init(n_seq, 0, 1);
    batch.n_tokens = n_seq;
    for (int32_t s = 0; s < n_seq; s++) {
        batch.token[s]     = tokens[s][i];
        batch.pos[s]       = i;
        batch.n_seq_id[s]  = 1;
        batch.seq_id[s][0] = s;
        batch.logits[s]    = 1;
    }
    if (llama_decode(ctx, batch) != 0) {
        die("cannot decode the copies");
    }
    llama_batch_free(batch);
}

// One prompt, copied to the other sequences, then all of them decode n_decode tokens of their own in common batches.
int run_copies(struct llama_model * model, const struct options * opt) {
    struct bench b;
    bench_init(&b, model, opt);
    const int32_t n_seq = (int32_t) opt->n_seq_max;
    const int32_t n     = opt->n_prompt + opt->n_decode;
    llama_token * tokens[SEQ_MAX] = { NULL };
    const float * expected[SEQ_MAX] = { NULL };
    for (int32_t s = 0; s < n_seq; s++) {
        tokens[s] = random_tokens(model, n, opt->seed + (uint32_t) s);
        memcpy(tokens[s], tokens[0], (size_t) opt->n_prompt * sizeof(llama_token));
        expected[s] = reference_append(&b.ref[s], tokens[s], n, opt->n_decode);
    }
    decode(b.ctx, tokens[0], opt->n_prompt, 0, 1);
    for (int32_t s = 1; s < n_seq; s++) {
        llama_memory_seq_cp(llama_get_memory(b.ctx), 0, s, -1, -1);
    }
    for (int32_t i = opt->n_prompt; i < n; i++) {
        decode_step(b.ctx, tokens, n_seq, i);
        for (int32_t s = 0; s < n_seq; s++) {
            const float * row = expected[s] + (size_t) (i - opt->n_prompt) * (size_t) b.n_vocab;
            compare_logits(&b.diff, llama_get_logits_ith(b.ctx, s), row, b.n_vocab);
        }
    }
    print_difference(&b.diff);
    printf("}\n");
    for (int32_t s = 0; s < n_seq; s++) {
        free(tokens[s]);
    }
    bench_free(&b);
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

// Greedy tokens after the first n_prompt tokens of a text; then the reference, given all of them, must choose the same.
int run_greedy(struct llama_model * model, const struct options * opt) {
    struct bench b;
    bench_init(&b, model, opt);
    const int32_t n      = opt->n_prompt + opt->n_decode;
    llama_token * tokens = calloc((size_t) n, sizeof(*tokens));
    if (!opt->text || read_tokens(model, opt->text, tokens, opt->n_prompt) != opt->n_prompt) {
        die("the text is missing or too short");
    }
    decode(b.ctx, tokens, opt->n_prompt, 0, 1);
    const size_t row = (size_t) b.n_vocab;
    float * logits = malloc((size_t) opt->n_decode * row * sizeof(float));
    for (int32_t i = 0; i < opt->n_decode; i++) {
        memcpy(logits + (size_t) i * row, llama_get_logits_ith(b.ctx, -1), row * sizeof(float));
        tokens[opt->n_prompt + i] = best_token(logits + (size_t) i * row, b.n_vocab);
        if (i + 1 < opt->n_decode) {
            decode(b.ctx, tokens + opt->n_prompt + i, 1, opt->n_prompt + i, 1);
        }
    }
    const float * expected = reference_append(&b.ref[0], tokens, n - 1, opt->n_decode);
    int32_t n_same = 0;
    for (int32_t i = 0; i < opt->n_decode; i++) {
        compare_logits(&b.diff, logits + (size_t) i * row, expected + (size_t) i * row, b.n_vocab);
        n_same += best_token(expected + (size_t) i * row, b.n_vocab) == tokens[opt->n_prompt + i];
    }
    print_difference(&b.diff);
    printf(", \"same\": %d}\n", n_same);
    bench_free(&b);
    free(logits);
    free(tokens);
    return 0;
}

// Drops the first half of the prompt and moves the rest up, or divides all positions, on both sides: K is rotated by both
// alike. Without sinks, since the first positions are new ones then.
int run_shift(struct llama_model * model, const struct options * opt) {
    struct bench b;
    bench_init(&b, model, opt);
    if (hwkv_policy_sinks(b.policy) != 0) {
        die("a shift needs a policy without sinks");
    }
    if (!llama_memory_can_shift(llama_get_memory(b.ctx))) {
        die("the memory cannot be shifted");
    }
    const int32_t n      = opt->n_prompt + opt->n_decode;
    const int32_t d      = opt->n_prompt / 2;
    llama_token * tokens = random_tokens(model, n, opt->seed);
    llama_memory_t mem   = llama_get_memory(b.ctx);
    decode(b.ctx, tokens, opt->n_prompt, 0, 1);
    reference_append(&b.ref[0], tokens, opt->n_prompt, 1);
    if (opt->divisor > 0) {
        llama_memory_seq_div(mem, 0, 0, -1, opt->divisor);
        reference_divide(&b.ref[0], opt->divisor);
    } else {
        llama_memory_seq_rm (mem, 0, 0, d);
        llama_memory_seq_add(mem, 0, d, -1, -d);
        reference_shift(&b.ref[0], 0, d);
    }
    for (int32_t i = opt->n_prompt; i < n; i++) {
        decode(b.ctx, tokens + i, 1, llama_memory_seq_pos_max(mem, 0) + 1, 1);
        compare_logits(&b.diff, llama_get_logits_ith(b.ctx, 0), reference_append(&b.ref[0], tokens + i, 1, 1), b.n_vocab);
    }
    print_difference(&b.diff);
    printf("}\n");
    bench_free(&b);
    free(tokens);
    return 0;
}
