// The command line: one table of options for reading it and for --help.

#ifndef TOOL_ARGS_H
#define TOOL_ARGS_H

#include "hwkv.h"

#include <stddef.h>
#include <stdio.h>

enum tool_kind {
    TOOL_FLAG,    // bool, set
    TOOL_CLEAR,   // bool, cleared
    TOOL_STRING,  // const char *
    TOOL_STRINGS, // struct tool_strings: may be given several times, max is how often
    TOOL_INT,     // int32_t in [min, max]
    TOOL_INT64,   // int64_t in [min, max]
    TOOL_RATIO,   // double in [0, 1]
    TOOL_ON_OFF,  // bool from on/off
    TOOL_TYPE,    // enum hwkv_type
    TOOL_OTHER,   // what the option's own function makes of it
};

struct tool_strings {
    const char ** items; // room for as many as the option may be given
    int32_t       n;
};

// For TOOL_OTHER: 0, or hwkv_fail with what was found and expected; the option's name is added in front.
typedef int (*tool_read_fn)(void * target, const char * text, struct hwkv_error * err);

struct tool_option {
    const char   * name;   // as messages show it; NULL: help is a heading
    const char   * alias;  // or NULL
    enum tool_kind kind;
    size_t         offset; // of the target in the struct that is filled
    int64_t        min;
    int64_t        max;
    const char   * value;  // what --help calls its value, NULL for a flag
    const char   * help;   // lines; NULL: --help tells of it elsewhere
    tool_read_fn   read;   // of TOOL_OTHER
};

struct tool_args {
    const char               * usage;    // --help before the options
    const char               * after;    // --help after them, or NULL
    const struct tool_option * options;
    int                        n_option;
    int                        column;   // of --help where the texts of the options begin
    void                     * target;   // the struct that is filled
    const char              ** words;    // [max_word] filled with what is not an option
    int                        max_word;
    int                        n_word;
};

// Reads argv[0..argc); "--" ends the options. HWKV_ERR_ARG, or HWKV_ERR_UNKNOWN_KEY for what is not in the table: err has the
// first mistake.
int  tool_args_read(struct tool_args * args, int argc, char ** argv, struct hwkv_error * err);
void tool_args_help(const struct tool_args * args, FILE * out);

// Is the word there, before any "--"? alias may be NULL.
bool tool_args_has(int argc, char ** argv, const char * name, const char * alias);

// Decimal numbers with nothing around them.
bool tool_parse_int   (const char * text, int64_t * out);
bool tool_parse_number(const char * text, double * out); // finite

// The next field of a list that is separated by commas. False at the end; what does not fit is cut: no valid field is that long.
bool tool_next_field(const char ** list, char * field, size_t size);

#endif // TOOL_ARGS_H
