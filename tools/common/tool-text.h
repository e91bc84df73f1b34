// Text files to pieces of tokens.

#ifndef TOOL_TEXT_H
#define TOOL_TEXT_H

#include "hwkv.h"
#include "llama.h"

#define TOOL_TEXT_FILE_MAX (1024u * 1024 * 1024) // bytes of one file

// The tokens of several files. Each file is tokenised alone and without special tokens being added. A piece is contiguous
// and lies inside one file: what is left at the end of a file is dropped. Pieces are disjoint and dealt in turns, the first
// piece of every file, then the second of every file, so that a few pieces are drawn from all files.
struct tool_text {
    llama_token * tokens;       // of all files, one after the other, without BOS
    int64_t       n_tokens;
    int64_t     * file_end;     // [n_file] where the tokens of a file end
    int32_t       n_file;
    int32_t       n_bos;        // 1 if the model begins a sequence with BOS, else 0
    llama_token   bos;
    char          sha256[65];   // of the bytes of all files in order, also those that were not tokenised
    char          source[256];  // base names, joined by ","
};

struct tool_text_params {
    const struct llama_vocab * vocab;
    const char * const       * paths;
    int32_t                    n_path;
    bool                       parse_special; // control tokens may stand in the text, as in a formatted chat
    int64_t                    n_tokens_max;  // per file: no more are made, so that a large file costs no time; 0 = all
};

// HWKV_ERR_IO: unreadable. HWKV_ERR_VALUE: empty or binary. HWKV_ERR_UTF8. err->path names the file. *out is empty on failure.
int     tool_text_load (struct tool_text * out, const struct tool_text_params * params, struct hwkv_error * err);
void    tool_text_free (struct tool_text * text);
int64_t tool_text_n_seq(const struct tool_text * text, int32_t n_ctx);                                // whole pieces of n_ctx positions
void    tool_text_piece(const struct tool_text * text, int64_t i, int32_t n_ctx, llama_token * dst);  // [n_ctx], BOS first if there is one

#endif // TOOL_TEXT_H
