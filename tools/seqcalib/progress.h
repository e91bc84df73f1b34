// What a long run shows on stderr while it lasts: a bar for people, lines for log files, JSON for programs.

#ifndef SC_PROGRESS_H
#define SC_PROGRESS_H

#include <stdio.h>

#if defined(__GNUC__)
#define SC_PROGRESS_PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))
#else
#define SC_PROGRESS_PRINTF(fmt, args)
#endif

enum sc_progress_mode {
    SC_PROGRESS_AUTO, // a terminal: one line that is rewritten at most 10 times a second; else a line after 3 s, then every 10 s at most
    SC_PROGRESS_NONE, // nothing at all
    SC_PROGRESS_JSON, // {"stage", "layer", "done", "total", "elapsed_s", "eta_s"} at most twice a second and at the end, {"message"} for lines
};

struct sc_progress;

// NULL when memory is out; every function takes NULL and then does nothing.
struct sc_progress * sc_progress_init(FILE * out, enum sc_progress_mode mode);
void sc_progress_free(struct sc_progress * p);

// Work is counted in units of the caller's choice; the time left follows from the units done since the start.
void sc_progress_start(struct sc_progress * p, double total);
void sc_progress_skip (struct sc_progress * p, double units);  // done in an earlier run: not part of the speed
void sc_progress_add  (struct sc_progress * p, double units);
void sc_progress_end  (struct sc_progress * p);                // the bar disappears

// What is going on, e.g. "layer 12/30 trace"; the number after "layer " is also the "layer" of the JSON lines, null without.
void sc_progress_stage(struct sc_progress * p, const char * text);

// A line that stays, above the bar; also between end and start.
void sc_progress_line(struct sc_progress * p, const char * fmt, ...) SC_PROGRESS_PRINTF(2, 3);

#endif // SC_PROGRESS_H
