// Tokens that see each other, as those of an image do in some models.

#include "harness.h"

#include <stdio.h>
#include <stdlib.h>

// Text, an image's worth of tokens in one batch without causality, text again. Logits of every step.
static float * run_image_batch(struct llama_context * ctx, const llama_token * tokens, const struct options * opt, int32_t n_vocab) {
    const int32_t n_text  = opt->n_prompt;
    const int32_t n_image = (int32_t) opt->n_ubatch;
    const int32_t steps[] = { n_text, n_image, 1, 5 };
    float * logits = malloc((size_t) (n_text + n_image + 6) * (size_t) n_vocab * sizeof(*logits));
    int32_t n = 0;
    for (int i = 0; i < 4; i++) {
        llama_set_causal_attn(ctx, i != 1);
        if (decode_tokens(ctx, tokens + n, steps[i], n, 0, steps[i]) != 0) {
            die("cannot decode");
        }
        for (int32_t k = 0; k < steps[i] * n_vocab; k++) {
            logits[(size_t) n * (size_t) n_vocab + (size_t) k] = llama_get_logits(ctx)[k];
        }
        n += steps[i];
    }
    return logits;
}

// The plain cache against a policy whose windows hold everything: where tokens see later ones is the model's affair.
int run_image(struct llama_model * model, const struct options * opt) {
    const int32_t n_vocab = llama_vocab_n_tokens(llama_model_get_vocab(model));
    const int32_t n       = opt->n_prompt + (int32_t) opt->n_ubatch + 6;
    llama_token * tokens  = random_tokens(model, n, opt->seed);
    float       * logits[2];
    for (int i = 0; i < 2; i++) {
        struct options with = *opt;
        with.plain = i == 0;
        struct llama_context * ctx = make_context(model, &with);
        logits[i] = run_image_batch(ctx, tokens, opt, n_vocab);
        llama_free(ctx);
    }
    struct difference diff = { 0 };
    for (int32_t i = 0; i < n; i++) {
        compare_logits(&diff, logits[1] + (size_t) i * (size_t) n_vocab, logits[0] + (size_t) i * (size_t) n_vocab, n_vocab);
    }
    print_difference(&diff);
    printf("}\n");
    free(logits[0]);
    free(logits[1]);
    free(tokens);
    return 0;
}
