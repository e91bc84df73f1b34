// Shared by the files of llama-kv-policy.

#ifndef KV_POLICY_H
#define KV_POLICY_H

#include "hwkv.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#define TOOL_NAME "llama-kv-policy"

enum exit_code {
    EXIT_OK       = 0,
    EXIT_FAIL     = 1,
    EXIT_USAGE    = 2,
    EXIT_NO_POINT = 3,
};

#if defined(__GNUC__)
#define TOOL_PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))
#else
#define TOOL_PRINTF(fmt, args)
#endif

// args.c

enum opt_kind {
    OPT_FLAG,    // bool, set
    OPT_CLEAR,   // bool, cleared
    OPT_STRING,  // const char *
    OPT_INT,     // int64_t in [min, max]
    OPT_RATIO,   // double in (0, 1], or [0, 1] with min = 0
    OPT_ON_OFF,  // bool from on/off
    OPT_TYPE,    // int, enum hwkv_type
};

struct opt {
    const char  * name;
    const char  * alias; // or NULL
    enum opt_kind kind;
    void        * value;
    int64_t       min;
    int64_t       max;
};

struct opt_set {
    const char       * command;
    const struct opt * opts;
    int                n_opts;
    const char      ** words;     // filled with what is not an option
    int                max_words;
    int                n_words;
};

// Reads argv[0..argc). False: a line about the first mistake is on stderr, the exit code is EXIT_USAGE.
bool args_read(struct opt_set * set, int argc, char ** argv);

// Whole decimal numbers, nothing around them.
bool parse_int  (const char * text, int64_t * out);
bool parse_ratio(const char * text, double * out); // a finite number

// report.c

// One line on stderr.
int  fail_usage(const char * command, const char * fmt, ...) TOOL_PRINTF(2, 3); // returns EXIT_USAGE
int  fail_file (const char * file, const struct hwkv_error * err);              // returns EXIT_FAIL
int  fail_text (const char * fmt, ...) TOOL_PRINTF(1, 2);                        // returns EXIT_FAIL
void warn_text (const char * fmt, ...) TOOL_PRINTF(1, 2);

// Text from a file, with control characters replaced: a policy can't steer the terminal.
void print_text(FILE * out, const char * text);
void print_json(FILE * out, const char * text); // quoted and escaped

double       mib(uint64_t bytes);
const char * window_name(int32_t window, char buf[16]); // "full" or the number

// Is everything on stdout written? Says so if not.
int finish_stdout(int code);

// The operating point asked for by name or number, the selected one if NULL. -1: none; a line is on stderr.
int32_t find_point(const char * file, const struct hwkv_policy * policy, const char * name);

// model.c

struct model_info {
    struct hwkv_geometry geo;
    int32_t              n_ctx_train;
};

// Loads the metadata only, no weights. False: a line about it is on stderr.
bool model_load(struct model_info * info, const char * path, bool verbose);
void model_free(struct model_info * info);

// map.c

struct map_params {
    bool color;
    bool all;    // every layer, however many
    int  width;  // columns of the terminal
};

// The head map of a point: layers as rows, KV heads as columns.
void map_print(const struct hwkv_policy * policy, int32_t ip, const struct map_params * params);

// groups.c

struct hwkv_plan_params plan_params_of(const struct hwkv_policy * policy); // the policy's own context and cache types
void groups_print(const struct hwkv_plan * plan, const struct hwkv_plan_params * params);

// the commands; argv starts after the command's name

int cmd_show (int argc, char ** argv);
int cmd_check(int argc, char ** argv);
int cmd_make (int argc, char ** argv);
int cmd_diff (int argc, char ** argv);

// help.c

const char * help_text(const char * command); // NULL: no such command; "" is the tool itself

#endif // KV_POLICY_H
