// Greedy output of several prompts, with a hash of the raw logits of every step. Built against our llama.cpp and
// against the pristine package: without a policy both must print the same bytes. Uses llama.h only.
//
// usage: gate0 MODEL [N-MODES [N-PROMPTS [TEXT-BEFORE-EVERY-PROMPT]]]

#include "llama.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define N_STEP  64
#define N_BATCH 64    // below the longest prompt, so that several batches are seen
#define N_TOKEN 1024

static const char * const PROMPTS[] = {
    "The capital of France is",
    "def fibonacci(n):\n    \"\"\"Return the n-th Fibonacci number.\"\"\"\n",
    "<|im_start|>user\nName three rivers and the seas they end in.<|im_end|>\n<|im_start|>assistant\n",
    "\xc3\x84rger, na\xc3\xafve caf\xc3\xa9s and \xe6\x9d\xb1\xe4\xba\xac: ",
    "1 one, 2 two, 3 three, 4 four, 5 five, 6 six, 7 seven, 8 eight, 9 nine, 10 ten, 11 eleven, 12 twelve, 13 thirteen, "
    "14 fourteen, 15 fifteen, 16 sixteen, 17 seventeen, 18 eighteen, 19 nineteen, 20 twenty, 21 twenty-one, 22 twenty-two, "
    "23 twenty-three, 24 twenty-four, 25 twenty-five, 26 twenty-six, 27 twenty-seven, 28",
};

struct mode {
    const char               * name;
    enum llama_flash_attn_type flash_attn;
    enum ggml_type             type_kv;
};

static const struct mode MODES[] = {
    { "fa-on f16",   LLAMA_FLASH_ATTN_TYPE_ENABLED,  GGML_TYPE_F16  },
    { "fa-off f16",  LLAMA_FLASH_ATTN_TYPE_DISABLED, GGML_TYPE_F16  },
    { "fa-on q8_0",  LLAMA_FLASH_ATTN_TYPE_ENABLED,  GGML_TYPE_Q8_0 },
};

#define N_OF(array) (sizeof(array) / sizeof((array)[0]))

static void log_errors(enum ggml_log_level level, const char * text, void * user_data) {
    (void) user_data;
    if (level == GGML_LOG_LEVEL_ERROR) {
        fputs(text, stderr);
    }
}

// FNV-1a over the bytes: a difference in the last bit of one logit shows
static uint64_t hash_bytes(const void * data, size_t size) {
    const unsigned char * p = data;
    uint64_t h = 14695981039346656037u;
    for (size_t i = 0; i < size; i++) {
        h = (h ^ p[i]) * 1099511628211u;
    }
    return h;
}

static llama_token argmax(const float * logits, int32_t n) {
    llama_token best = 0;
    for (int32_t i = 1; i < n; i++) {
        if (logits[i] > logits[best]) {
            best = i;
        }
    }
    return best;
}

static bool decode(struct llama_context * ctx, llama_token * tokens, int32_t n) {
    for (int32_t i = 0; i < n; i += N_BATCH) {
        const int32_t n_now = n - i < N_BATCH ? n - i : N_BATCH;
        if (llama_decode(ctx, llama_batch_get_one(tokens + i, n_now)) != 0) {
            fprintf(stderr, "gate0: llama_decode failed\n");
            return false;
        }
    }
    return true;
}

static bool run_prompt(struct llama_context * ctx, const struct llama_vocab * vocab, const char * before, const char * prompt) {
    char text[4096];
    snprintf(text, sizeof(text), "%s%s", before, prompt);

    llama_token tokens[N_TOKEN];
    const int32_t n_vocab = llama_vocab_n_tokens(vocab);
    const int32_t n_token = llama_tokenize(vocab, text, (int32_t) strlen(text), tokens, N_TOKEN, true, true);
    if (n_token <= 0) {
        fprintf(stderr, "gate0: llama_tokenize returned %d, expected 1 to %d tokens\n", (int) n_token, N_TOKEN);
        return false;
    }
    llama_memory_clear(llama_get_memory(ctx), true);
    if (!decode(ctx, tokens, n_token)) {
        return false;
    }
    for (int i = 0; i < N_STEP; i++) {
        const float * logits = llama_get_logits_ith(ctx, -1);
        if (logits == NULL) {
            fprintf(stderr, "gate0: no logits\n");
            return false;
        }
        llama_token next = argmax(logits, n_vocab);
        printf("%d %016" PRIx64 "\n", (int) next, hash_bytes(logits, sizeof(float) * (size_t) n_vocab));
        if (!decode(ctx, &next, 1)) {
            return false;
        }
    }
    return true;
}

static bool run_mode(struct llama_model * model, const struct mode * mode, size_t n_prompt, const char * before) {
    struct llama_context_params params = llama_context_default_params();
    params.n_ctx           = 1024;
    params.n_batch         = N_BATCH;
    params.n_ubatch        = N_BATCH / 2;
    params.n_threads       = 1;
    params.n_threads_batch = 1;
    params.flash_attn_type = mode->flash_attn;
    params.type_k          = mode->type_kv;
    params.type_v          = mode->type_kv;

    struct llama_context * ctx = llama_init_from_model(model, params);
    if (ctx == NULL) {
        fprintf(stderr, "gate0: no context for mode %s\n", mode->name);
        return false;
    }
    bool ok = true;
    for (size_t i = 0; ok && i < n_prompt; i++) {
        printf("mode %s prompt %zu\n", mode->name, i);
        ok = run_prompt(ctx, llama_model_get_vocab(model), before, PROMPTS[i]);
    }
    llama_free(ctx);
    return ok;
}

int main(int argc, char ** argv) {
    const size_t n_mode   = argc > 2 ? (size_t) atoi(argv[2]) : N_OF(MODES);
    const size_t n_prompt = argc > 3 ? (size_t) atoi(argv[3]) : N_OF(PROMPTS);
    if (argc < 2 || argc > 5 || n_mode < 1 || n_mode > N_OF(MODES) || n_prompt < 1 || n_prompt > N_OF(PROMPTS)) {
        fprintf(stderr, "usage: gate0 MODEL [N-MODES [N-PROMPTS [TEXT-BEFORE-EVERY-PROMPT]]]\n");
        return 2;
    }
    llama_log_set(log_errors, NULL);
    llama_backend_init();

    struct llama_model_params params = llama_model_default_params();
    params.n_gpu_layers = 0;
    struct llama_model * model = llama_model_load_from_file(argv[1], params);
    if (model == NULL) {
        fprintf(stderr, "gate0: cannot load %s\n", argv[1]);
        return 1;
    }
    bool ok = true;
    for (size_t i = 0; ok && i < n_mode; i++) {
        ok = run_mode(model, &MODES[i], n_prompt, argc > 4 ? argv[4] : "");
    }
    llama_model_free(model);
    llama_backend_free();
    if (ok) {
        printf("end\n");
    }
    return ok ? 0 : 1;
}
