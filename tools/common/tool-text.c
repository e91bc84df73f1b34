#include "tool-text.h"

#include "tool-print.h"

#include "hwkv-error.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// Appends as many whole characters of a file's name as fit; it may be any bytes.
static void append_name(char * dst, size_t dst_size, const char * text) {
    const size_t n = strlen(dst);
    hwkv_copy(dst + n, dst_size - n, text);
    tool_make_utf8(dst + n);
    for (char * p = dst + n; *p; p++) {
        *p = (unsigned char) *p < 0x20 ? '?' : *p;
    }
}

//
// files
//

static int read_file(char ** out, size_t * out_size, const char * path, struct hwkv_error * err) {
    FILE * f = fopen(path, "rb");
    if (!f) {
        return hwkv_fail(err, HWKV_ERR_IO, path, "cannot be opened: %s", strerror(errno));
    }
    char * data = NULL;
    size_t size = 0;
    size_t cap  = 1 << 16;
    int    res  = HWKV_OK;

    while (res == HWKV_OK) {
        char * more = realloc(data, cap);
        if (!more) {
            res = hwkv_fail(err, HWKV_ERR_NOMEM, path, "out of memory after %zu bytes", size);
            break;
        }
        data = more;
        errno = 0;
        size += fread(data + size, 1, cap - size, f);
        if (ferror(f)) {
            res = hwkv_fail(err, HWKV_ERR_IO, path, "cannot be read: %s", strerror(errno));
        } else if (size > TOOL_TEXT_FILE_MAX) {
            res = hwkv_fail(err, HWKV_ERR_TOO_LARGE, path, "found more than %u bytes, expected at most that", TOOL_TEXT_FILE_MAX);
        } else if (size < cap) {
            break;
        }
        cap *= 2;
    }
    fclose(f);
    if (res != HWKV_OK) {
        free(data);
        return res;
    }
    *out      = data;
    *out_size = size;
    return HWKV_OK;
}

static int check_text(const char * path, const char * data, size_t size, struct hwkv_error * err) {
    if (size == 0) {
        return hwkv_fail(err, HWKV_ERR_VALUE, path, "the file is empty, expected text");
    }
    const char * nul = memchr(data, '\0', size);
    if (nul) {
        return hwkv_fail(err, HWKV_ERR_VALUE, path, "found a binary file (a zero at byte %zu), expected text", (size_t) (nul - data));
    }
    for (size_t i = 0; i < size;) {
        const size_t len = hwkv_utf8_length(data + i, size - i);
        if (len == 0) {
            return hwkv_fail(err, HWKV_ERR_UTF8, path, "found 0x%02X at byte %zu, which is no UTF-8, expected text in UTF-8",
                           (unsigned) (unsigned char) data[i], i);
        }
        i += len;
    }
    return HWKV_OK;
}

//
// tokens
//

// Where to end a text of about `want` bytes: after a line if there is one in its second half, else between two characters.
static size_t cut_at_line(const char * data, size_t want) {
    for (size_t i = want; i > want / 2; i--) {
        if (data[i - 1] == '\n') {
            return i;
        }
    }
    while (want > 0 && ((unsigned char) data[want] & 0xC0) == 0x80) {
        want--;
    }
    return want;
}

static int64_t tokenize(llama_token ** out, const struct tool_text_params * params, const char * data, size_t size) {
    int32_t       cap    = (int32_t) (size / 2) + 16;
    llama_token * tokens = malloc((size_t) cap * sizeof(*tokens));
    int32_t       n      = tokens ? llama_tokenize(params->vocab, data, (int32_t) size, tokens, cap, false, params->parse_special) : 0;
    if (n < 0 && n != INT32_MIN) {
        free(tokens);
        cap    = -n;
        tokens = malloc((size_t) cap * sizeof(*tokens));
        n      = tokens ? llama_tokenize(params->vocab, data, (int32_t) size, tokens, cap, false, params->parse_special) : 0;
    }
    if (!tokens || n < 0) {
        free(tokens);
        return -1;
    }
    *out = tokens;
    return n;
}

// The file's tokens, or more than the first n_tokens_max: a beginning of the text that is long enough is tokenised, no more.
// The last tokens before a cut can differ from those of the whole text, so one more is made than is used.
static int64_t tokenize_some(llama_token ** out, const struct tool_text_params * params, const char * data, size_t size) {
    const size_t max  = params->n_tokens_max > 0 && (size_t) params->n_tokens_max < size ? (size_t) params->n_tokens_max : size;
    size_t       want = max >= size / 8 ? size : 8 * max + 4096;

    for (;; want *= 2) {
        const size_t  cut = want >= size ? size : cut_at_line(data, want);
        const int64_t n   = tokenize(out, params, data, cut);
        if (n < 0 || cut == size || n > (int64_t) max + 1) {
            return n;
        }
        free(*out);
        *out = NULL;
    }
}

static int add_file(struct tool_text * text, const struct tool_text_params * params, const char * path, struct hwkv_sha256 * sha,
                    struct hwkv_error * err) {
    char * data = NULL;
    size_t size = 0;
    int res = read_file(&data, &size, path, err);
    if (res != HWKV_OK) {
        return res;
    }
    llama_token * tokens = NULL;
    res = check_text(path, data, size, err);
    if (res != HWKV_OK) {
        goto cleanup;
    }
    hwkv_sha256_update(sha, data, size);

    const int64_t n = tokenize_some(&tokens, params, data, size);
    // a formatted chat may bring the BOS that every piece gets anyway
    const int64_t skip = n > 0 && text->n_bos == 1 && tokens[0] == text->bos ? 1 : 0;
    const int64_t use  = params->n_tokens_max > 0 && n - skip > params->n_tokens_max ? params->n_tokens_max : n - skip;
    llama_token * all  = n < 0 ? NULL : realloc(text->tokens, (size_t) (text->n_tokens + use + 1) * sizeof(*all));
    if (!all) {
        res = hwkv_fail(err, HWKV_ERR_NOMEM, path, "out of memory for the tokens of %zu bytes", size);
        goto cleanup;
    }
    memcpy(all + text->n_tokens, tokens + skip, (size_t) use * sizeof(*all));
    text->tokens    = all;
    text->n_tokens += use;
    text->file_end[text->n_file++] = text->n_tokens;

cleanup:
    free(tokens);
    free(data);
    return res;
}

int tool_text_load(struct tool_text * out, const struct tool_text_params * params, struct hwkv_error * err) {
    *out = (struct tool_text) { .bos = llama_vocab_bos(params->vocab) };
    out->n_bos = llama_vocab_get_add_bos(params->vocab) && out->bos != LLAMA_TOKEN_NULL ? 1 : 0;

    if (params->n_path < 1) {
        return hwkv_fail(err, HWKV_ERR_ARG, NULL, "found no text file, expected at least one");
    }
    out->file_end = calloc((size_t) params->n_path, sizeof(*out->file_end));
    int res = out->file_end ? HWKV_OK : hwkv_fail(err, HWKV_ERR_NOMEM, NULL, "out of memory");

    struct hwkv_sha256 sha;
    hwkv_sha256_init(&sha);
    for (int32_t i = 0; i < params->n_path && res == HWKV_OK; i++) {
        res = add_file(out, params, params->paths[i], &sha, err);
        append_name(out->source, sizeof(out->source), i > 0 ? "," : "");
        append_name(out->source, sizeof(out->source), tool_base_name(params->paths[i]));
    }
    hwkv_sha256_final(&sha, out->sha256);
    if (res != HWKV_OK) {
        tool_text_free(out);
    }
    return res;
}

void tool_text_free(struct tool_text * text) {
    free(text->tokens);
    free(text->file_end);
    *text = (struct tool_text) { 0 };
}

//
// pieces
//

static int64_t file_start(const struct tool_text * text, int32_t i) {
    return i > 0 ? text->file_end[i - 1] : 0;
}

static int64_t file_n_seq(const struct tool_text * text, int32_t i, int32_t n_ctx) {
    return n_ctx > text->n_bos ? (text->file_end[i] - file_start(text, i)) / (n_ctx - text->n_bos) : 0;
}

int64_t tool_text_n_seq(const struct tool_text * text, int32_t n_ctx) {
    int64_t n = 0;
    for (int32_t i = 0; i < text->n_file; i++) {
        n += file_n_seq(text, i, n_ctx);
    }
    return n;
}

void tool_text_piece(const struct tool_text * text, int64_t i, int32_t n_ctx, llama_token * dst) {
    assert(i >= 0 && i < tool_text_n_seq(text, n_ctx));

    const int32_t n = n_ctx - text->n_bos;
    for (int64_t turn = 0;; turn++) {
        for (int32_t j = 0; j < text->n_file; j++) {
            if (turn < file_n_seq(text, j, n_ctx) && i-- == 0) {
                dst[0] = text->bos; // the piece overwrites it if there is no BOS
                memcpy(dst + text->n_bos, text->tokens + file_start(text, j) + turn * n, (size_t) n * sizeof(*dst));
                return;
            }
        }
    }
}
