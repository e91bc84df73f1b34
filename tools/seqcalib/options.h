// The command line of llama-seqcalib.

#ifndef SC_OPTIONS_H
#define SC_OPTIONS_H

#include "sweep.h"
#include "text.h"

#define SC_FILE_MAX 32
#define SC_TAU_MAX  (SC_POINT_MAX - 1) // the held-out check adds a point with full history

enum sc_exit {
    SC_EXIT_OK       = 0,
    SC_EXIT_FAIL     = 1,
    SC_EXIT_USAGE    = 2,
    SC_EXIT_NO_POINT = 3,
    SC_EXIT_STOPPED  = 130,
};

#define SC_TAU_NAME 32 // bytes of a floor as text

struct sc_options {
    const char * model;
    const char * files[SC_FILE_MAX];
    int32_t      n_file;
    const char * out;

    int32_t  n_ctx;                    // 0: the model's own, at most 131072
    int32_t  windows[HWKV_CODE_MAX];   // finite ones, ascending
    int32_t  n_window;                 // 0: C/16, C/8, C/4
    int32_t  sinks;
    double   tau[SC_TAU_MAX];
    int32_t  n_tau;
    int32_t  n_seq;
    int32_t  n_query;
    uint64_t seed;

    enum hwkv_type type_k;
    enum hwkv_type type_v;
    int32_t        n_ubatch;
    int32_t        n_thread;           // 0: all cores
    int32_t        n_gpu_layers;       // -1: as llama.cpp sees fit

    bool   parse_special;
    bool   naive;
    bool   per_layer;

    double   budget;                   // R_C, 0: none
    uint64_t budget_bytes;             // of the allocated plan, 0: none

    int32_t      n_holdout;
    const char * holdout_files[SC_FILE_MAX];
    int32_t      n_holdout_file;

    bool         force;
    bool         resume;
    const char * work;                 // NULL: beside the output
    const char * html;
    bool         json_progress;
    bool         dry_run;
    const char * statistics;           // a policy to show instead
    bool         verbose;
};

// As it appears in the name of its operating point; returns buf.
const char * sc_tau_name(double tau, char buf[SC_TAU_NAME]);

// A line on stderr after the program's name, or {"kind": line} where progress is JSON. kind: "error", "warning" or "log".
void sc_say(const char * kind, const char * fmt, ...) SC_PRINTF(2, 3);

// SC_EXIT_OK to go on, SC_EXIT_USAGE after a line on stderr, -1 when help or version has been printed.
int sc_options_read(struct sc_options * opt, int argc, char ** argv);

// What depends on the context: the windows' defaults and limits. A line is on stderr if it fails.
int sc_options_settle(struct sc_options * opt, int32_t n_ctx_train);

#endif // SC_OPTIONS_H
