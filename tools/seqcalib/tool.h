// What the programs of this folder have in common around their work: an end on request, and llama.cpp's log.

#ifndef SC_TOOL_H
#define SC_TOOL_H

#include "llama.h"

#include <signal.h>

extern volatile sig_atomic_t sc_stop; // the signal that asked to stop, or 0

// The first Ctrl-C or SIGTERM ends the run in good order, the second one at once.
void sc_catch_signals(void);

// llama.cpp's log: quiet unless verbose, but the reason of a failure is kept.
struct sc_log {
    bool verbose;
    void (*say)(const char * kind, const char * fmt, ...); // takes verbose lines; NULL: they go to stderr as they are
    char error[512]; // the first one: the later ones only say that something failed
};

void sc_log_callback(enum ggml_log_level level, const char * text, void * log);

#endif // SC_TOOL_H
