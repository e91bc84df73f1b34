// The command line of llama-seqcalib.

#ifndef SC_OPTIONS_H
#define SC_OPTIONS_H

#include "seqcalib-sweep.h"
#include "seqcalib-types.h"

#include "tool-args.h"
#include "tool-say.h"

#define SC_FILE_MAX 32
#define SC_TAU_MAX  (SC_POINT_MAX - 1) // the held-out check adds a point with full history

#define SC_TAU_NAME 32 // bytes of a floor as text

struct sc_windows {
    int32_t w[HWKV_CODE_MAX - 1]; // finite ones, ascending
    int32_t n;                    // 0: C/16, C/8, C/4
};

struct sc_taus {
    double  tau[SC_TAU_MAX];
    int32_t n;
};

struct sc_budget {
    double   share;  // R_C, 0: none
    uint64_t bytes;  // of the allocated plan, 0: none
};

struct sc_budgets {
    struct sc_budget budget[SC_TAU_MAX];
    char             text[SC_TAU_MAX][SC_TAU_NAME]; // as given
    int32_t          n;
};

struct sc_options {
    const char        * model;
    const char        * files_room[SC_FILE_MAX];
    struct tool_strings files;
    const char        * out;

    int32_t           n_ctx;          // 0: the model's own, at most 131072
    struct sc_windows windows;
    struct sc_types   types;
    int32_t           sinks;
    struct sc_taus    taus;
    struct sc_budget  budget;
    struct sc_budgets allocate;       // n 0: points by tau
    int32_t           n_seq;
    int32_t           n_query;
    int64_t           seed;

    enum hwkv_type type_k;
    enum hwkv_type type_v;
    int32_t        n_ubatch;
    int32_t        n_thread;          // 0: all cores
    int32_t        n_gpu_layers;      // -1: as llama.cpp sees fit

    bool parse_special;
    bool naive;
    bool per_layer;

    int32_t             n_holdout;
    const char        * holdout_room[SC_FILE_MAX];
    struct tool_strings holdout_files;

    bool         force;
    bool         resume;
    const char * work;                // NULL: beside the output
    const char * html;
    bool         json_progress;
    bool         dry_run;
    const char * statistics;          // a policy to show instead
    bool         verbose;
};

// As it appears in the name of its operating point; returns buf.
const char * sc_tau_name(double tau, char buf[SC_TAU_NAME]);

// -1 to go on, else the exit code: help or version are on stdout, or a line about a mistake on stderr. opt must not move: lists
// point into it.
int sc_options_read(struct sc_options * opt, int argc, char ** argv);

// What depends on the context: the windows' defaults and limits. An exit code; a line is on stderr if it fails.
int sc_options_settle(struct sc_options * opt, int32_t n_ctx_train);

#endif // SC_OPTIONS_H
