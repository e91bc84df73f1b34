// Text files to pieces of tokens, and the few helpers for text that the tools of this folder share.

#ifndef SC_TEXT_H
#define SC_TEXT_H

#include "hwkv.h"
#include "llama.h"

#include <stdio.h>

#define SC_TEXT_FILE_MAX (1024u * 1024 * 1024) // bytes of one file

#if defined(__GNUC__)
#define SC_PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))
#else
#define SC_PRINTF(fmt, args)
#endif

// The tokens of several files. Each file is tokenised alone and without special tokens being added. A piece is contiguous
// and lies inside one file: what is left at the end of a file is dropped. Pieces are disjoint and dealt in turns, the first
// piece of every file, then the second of every file, so that a few pieces are drawn from all files.
struct sc_text {
    llama_token * tokens;       // of all files, one after the other, without BOS
    int64_t       n_tokens;
    int64_t     * file_end;     // [n_file] where the tokens of a file end
    int32_t       n_file;
    int32_t       n_bos;        // 1 if the model begins a sequence with BOS, else 0
    llama_token   bos;
    char          sha256[65];   // of the bytes of all files in order, also those that were not tokenised
    char          source[256];  // base names, joined by ","
};

struct sc_text_params {
    const struct llama_vocab * vocab;
    const char * const       * paths;
    int32_t                    n_path;
    bool                       parse_special; // control tokens may stand in the text, as in a formatted chat
    int64_t                    n_tokens_max;  // per file: no more are made, so that a large file costs no time; 0 = all
};

// HWKV_ERR_IO: unreadable. HWKV_ERR_VALUE: empty or binary. HWKV_ERR_UTF8. err->path names the file. *out is empty on failure.
int     sc_text_load (struct sc_text * out, const struct sc_text_params * params, struct hwkv_error * err);
void    sc_text_free (struct sc_text * text);
int64_t sc_text_n_seq(const struct sc_text * text, int32_t n_ctx);                                // whole pieces of n_ctx positions
void    sc_text_piece(const struct sc_text * text, int64_t i, int32_t n_ctx, llama_token * dst);  // [n_ctx], BOS first if there is one

// Fills err (if not NULL) and returns code. where (a file, or NULL) is cut at the front if it is long.
int sc_text_fail(struct hwkv_error * err, int code, const char * where, const char * fmt, ...) SC_PRINTF(4, 5);

// Bytes of the UTF-8 character at text[0..n), 0 if there is none.
size_t sc_utf8_length(const char * text, size_t n);

// Quoted and escaped; bytes that are no UTF-8 become '?'.
void sc_json_string(FILE * out, const char * text);

// The part of a path after the last slash.
const char * sc_base_name(const char * path);

#endif // SC_TEXT_H
