// What the programs that run llama.cpp have in common around their work: an end on request, its log and its types.

#ifndef TOOL_LLAMA_H
#define TOOL_LLAMA_H

#include "hwkv.h"
#include "llama.h"

#include <signal.h>

extern volatile sig_atomic_t tool_stop; // the signal that asked to stop, or 0

// The first Ctrl-C or SIGTERM ends the run in good order, the second one at once.
void tool_catch_signals(void);

// llama.cpp's log: quiet unless verbose, but the reason of a failure is kept.
struct tool_log {
    bool verbose;
    bool json;       // verbose lines as objects
    char error[512]; // the first one: the later ones only say that something failed
};

void         tool_log_callback(enum ggml_log_level level, const char * text, void * log);
const char * tool_log_reason  (const struct tool_log * log); // "unknown reason" if there was no error

int32_t        tool_n_processors(void);
enum ggml_type tool_ggml_type   (enum hwkv_type type);

#endif // TOOL_LLAMA_H
