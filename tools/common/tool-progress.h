// What a long run shows on stderr while it lasts: a bar for people, lines for log files, JSON for programs.

#ifndef TOOL_PROGRESS_H
#define TOOL_PROGRESS_H

#include "hwkv-error.h"

#include <stdio.h>

enum tool_progress_mode {
    TOOL_PROGRESS_AUTO, // a terminal: one line that is rewritten at most 10 times a second; else a line after 3 s, then every 10 s at most
    TOOL_PROGRESS_NONE, // nothing at all
    TOOL_PROGRESS_JSON, // {"stage", "layer", "done", "total", "elapsed_s", "eta_s"} at most twice a second and at the end, {"message"} for lines
};

struct tool_progress;

// NULL when memory is out; every function takes NULL and then does nothing.
struct tool_progress * tool_progress_init(FILE * out, enum tool_progress_mode mode);
void tool_progress_free(struct tool_progress * p);

// Work is counted in units of the caller's choice; the time left follows from the units done since the start.
void tool_progress_start(struct tool_progress * p, double total);
void tool_progress_skip (struct tool_progress * p, double units);  // done in an earlier run: not part of the speed
void tool_progress_add  (struct tool_progress * p, double units);
void tool_progress_end  (struct tool_progress * p);                // the bar disappears

// What is going on, e.g. "layer 12/30 trace"; the number after "layer " is also the "layer" of the JSON lines, null without.
void tool_progress_stage(struct tool_progress * p, const char * text);

// A line that stays, above the bar; also between end and start.
void tool_progress_line(struct tool_progress * p, const char * fmt, ...) HWKV_PRINTF(2, 3);

#endif // TOOL_PROGRESS_H
