// Held-out sequences: pieces of text, and one as a chat is served.

#include "seqcalib-validate.h"

#include "hwkv-error.h"

#include <stdlib.h>
#include <string.h>

#define TURN_BYTES 600 // of a message; turns of people and models are short

static char * detokenize(const struct llama_vocab * vocab, const llama_token * tokens, int32_t n) {
    const int32_t size = -llama_detokenize(vocab, tokens, n, NULL, 0, true, false);
    char * text = size >= 0 ? malloc((size_t) size + 1) : NULL;
    if (text) {
        const int32_t got = llama_detokenize(vocab, tokens, n, text, size, true, false);
        text[got > 0 ? got : 0] = '\0';
    }
    return text;
}

// Cuts text into messages at ends of words, in place. Returns how many.
static int32_t cut_messages(char * text, struct llama_chat_message * messages, int32_t n_max) {
    int32_t n = 0;
    while (*text && n < n_max) {
        messages[n] = (struct llama_chat_message) { .role = n%2 == 0 ? "user" : "assistant", .content = text };
        n++;
        size_t size = strlen(text);
        if (size <= TURN_BYTES) {
            break;
        }
        for (size = TURN_BYTES; text[size] != '\0' && text[size] != ' ' && text[size] != '\n'; size++) {
        }
        text += size;
        if (*text) {
            *text++ = '\0';
        }
    }
    return n;
}

// A chat of at least n_ctx tokens, formatted by the model's template. 0: the template is none that llama.cpp can apply,
// or the text is too short.
static int32_t make_chat(const struct llama_model * model, char * text, llama_token * dst, int32_t n_ctx) {
    const struct llama_vocab * vocab = llama_model_get_vocab(model);
    const char * tmpl = llama_model_chat_template(model, NULL);
    const int32_t n_max = (int32_t) (strlen(text)/TURN_BYTES + 1);

    int32_t done = 0;
    struct llama_chat_message * messages = malloc(sizeof(*messages)*(size_t) n_max);
    const int32_t n = messages ? cut_messages(text, messages, n_max) : 0;

    const int32_t size = n > 0 ? llama_chat_apply_template(tmpl, messages, (size_t) n, false, NULL, 0) : 0;
    char * chat = size > 0 ? malloc((size_t) size + 1) : NULL;
    if (chat) {
        llama_chat_apply_template(tmpl, messages, (size_t) n, false, chat, size + 1);

        const int32_t n_tokens = -llama_tokenize(vocab, chat, size, NULL, 0, true, true);
        llama_token * tokens = n_tokens >= n_ctx ? malloc(sizeof(*tokens)*(size_t) n_tokens) : NULL;
        if (tokens && llama_tokenize(vocab, chat, size, tokens, n_tokens, true, true) >= n_ctx) {
            memcpy(dst, tokens, sizeof(*dst)*(size_t) n_ctx);
            done = 1;
        }
        free(tokens);
    }
    free(chat);
    free(messages);
    return done;
}

int sc_holdout_init(struct sc_holdout * holdout, const struct llama_model * model, struct tool_text * text, int64_t skip, int32_t n, int32_t n_ctx, struct hwkv_error * err) {
    memset(holdout, 0, sizeof(*holdout));
    holdout->text = *text;
    memset(text, 0, sizeof(*text));

    const int64_t n_found = tool_text_n_seq(&holdout->text, n_ctx);
    if (n_found < skip + n) {
        const int status = hwkv_fail(err, HWKV_ERR_VALUE, NULL, "%s: found %lld pieces of %d tokens for the held-out check, expected %lld", holdout->text.source,
                                   (long long) (n_found > skip ? n_found - skip : 0), n_ctx, (long long) n);
        sc_holdout_free(holdout);
        return status;
    }

    holdout->n_seq  = n;
    holdout->tokens = malloc(sizeof(llama_token)*(size_t) (n + 1)*(size_t) n_ctx);
    if (!holdout->tokens) {
        sc_holdout_free(holdout);
        return hwkv_fail(err, HWKV_ERR_NOMEM, NULL, "out of memory");
    }
    for (int32_t i = 0; i < n; i++) {
        tool_text_piece(&holdout->text, skip + i, n_ctx, holdout->tokens + (int64_t) i*n_ctx);
    }

    // a template adds tokens, so the same number of text tokens makes a longer chat
    if (llama_model_chat_template(model, NULL) && n_found > skip + n) {
        llama_token * last = holdout->tokens + (int64_t) n*n_ctx;
        tool_text_piece(&holdout->text, skip + n, n_ctx, last);
        char * words = detokenize(llama_model_get_vocab(model), last, n_ctx);
        if (words) {
            holdout->n_chat = make_chat(model, words, last, n_ctx);
            holdout->n_seq += holdout->n_chat;
        }
        free(words);
    }
    return HWKV_OK;
}

void sc_holdout_free(struct sc_holdout * holdout) {
    tool_text_free(&holdout->text);
    free(holdout->tokens);
    memset(holdout, 0, sizeof(*holdout));
}
