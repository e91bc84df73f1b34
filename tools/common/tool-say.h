// How a program ends and what it says on stderr: one line for each thing, or one JSON object.

#ifndef TOOL_SAY_H
#define TOOL_SAY_H

#include "hwkv-error.h"
#include "hwkv.h"

enum tool_exit {
    TOOL_EXIT_OK       = 0,
    TOOL_EXIT_FAIL     = 1,
    TOOL_EXIT_USAGE    = 2,
    TOOL_EXIT_NO_POINT = 3,
    TOOL_EXIT_STOPPED  = 130,
};

// Before anything is said: the program's name. json: lines are objects such as {"error": "..."}.
void tool_begin(const char * name, bool json);

// Lines of a kind: "error", "warning" or "log".
void tool_say(const char * kind, const char * fmt, ...) HWKV_PRINTF(2, 3);

int  tool_usage    (const char * command, const char * fmt, ...) HWKV_PRINTF(2, 3); // with where to find help; TOOL_EXIT_USAGE
int  tool_fail     (const char * fmt, ...) HWKV_PRINTF(1, 2);                       // TOOL_EXIT_FAIL
int  tool_fail_file(const char * file, const struct hwkv_error * err);              // TOOL_EXIT_FAIL
void tool_warn     (const char * fmt, ...) HWKV_PRINTF(1, 2);

int tool_print_version(void);

// Is everything on stdout written? code, or TOOL_EXIT_FAIL after a line about it.
int tool_finish(int code);

#endif // TOOL_SAY_H
