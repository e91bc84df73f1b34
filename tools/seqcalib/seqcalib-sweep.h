// One sweep through the layers: lower layers frozen, one trace of each full-attention layer, for all points at once.

#ifndef SC_SWEEP_H
#define SC_SWEEP_H

#include "seqcalib-codebook.h"
#include "seqcalib-project.h"

#include "llama-hwkv-trace.h"
#include "llama-hwkv.h"

#include <signal.h>

#define SC_POINT_MAX 64 // points share passes as bits of a mask

struct tool_progress;

// what a sweep runs on
struct sc_input {
    struct llama_model         * model;
    const struct hwkv_geometry * geo;

    int32_t n_ctx;
    int32_t n_seq;
    int32_t n_query;
    int32_t n_ubatch;
    int32_t n_thread;
    int32_t sinks;

    uint64_t seed;

    const struct sc_codebook * codebook;

    enum ggml_type type_k;
    enum ggml_type type_v;

    const llama_token * tokens; // [n_seq][n_ctx]

    bool per_layer;             // the heads of a layer take one entry
    bool losses;                // traces have the projection too
    bool naive;                 // run all layers below from the tokens for every layer, keep nothing

    struct tool_progress          * progress; // or NULL; a full-attention layer is one unit of work
    double                        work_scale; // units of a layer, 0: 1
    double                        work_unit; // of one chunk of tokens; the sweep sets it
    int64_t                       n_pass;    // layers that have been run, once for all sequences
    const volatile sig_atomic_t * stop;     // set: come to an end, or NULL
};

// what one layer's attention saw in one sequence
struct sc_trace {
    struct llama_hwkv_trace_shape shape;

    int32_t   n_query;
    int32_t * pos;     // [n_query], ascending
    float   * q;       // [n_query][n_head][head_dim_k]
    float   * k;       // [n_head_kv][n_ctx][head_dim_k]
    float   * v;       // [n_head_kv][n_ctx][head_dim_v]
    bool      exact_k; // k is as computed, and rounded for each type that is replayed; else it is what the cache holds
    bool      exact_v;
    float   * sink_logits; // [n_head] learned attention sinks, or NULL

    struct sc_projection projection; // with losses

    int32_t   n_check; // the last queries, of which the attention's own output is here too
    float   * out;     // [n_check][n_head][head_dim_v]
};

// Decides on the windows. Every call may fail with an error in *err.
struct sc_judge {
    void       * user;
    const char * verb; // what it does with a layer, for the progress line

    // does the judge know this layer's windows already? Then it is run, but not traced.
    bool (*knows)(void * user, int32_t jl, uint64_t mask);
    // the trace of one sequence under the prefix of the points in mask
    int  (*see)(void * user, int32_t jl, uint64_t mask, int32_t iseq, const struct sc_trace * trace, struct hwkv_error * err);
    // all sequences have been seen
    int  (*decide)(void * user, int32_t jl, uint64_t mask, struct hwkv_error * err);
    // the entries of a layer that has been decided: [n_head_kv]
    const int32_t * (*entries)(void * user, int32_t jl, int32_t ip);
};

// SC_ERR_STOPPED when *stop was set.
int sc_sweep(struct sc_input * in, int32_t n_point, int32_t n_row_known, const struct sc_judge * judge, struct hwkv_error * err);

#define SC_ERR_STOPPED (-100)

//
// pass.c: one layer under one prefix
//

// A policy for what the sweep runs on, with its codebook and without points.
int sc_policy_new(struct hwkv_policy ** out, const struct sc_input * in, struct hwkv_error * err);

// What a server with one sequence of this context allocates on a CPU.
struct hwkv_plan_params sc_plan_params(const struct sc_input * in);

// The context that everything here runs in: one sequence, flash attention; policy NULL is the full cache.
struct llama_context * sc_context_new(const struct sc_input * in, const struct hwkv_policy * policy, int32_t ip);

// Bytes of its caches and compute buffers.
size_t sc_context_size(const struct llama_context * ctx);

struct sc_pass;

// entries: [n_unit]; only those below jl matter
int  sc_pass_init(struct sc_pass ** out, const struct sc_input * in, int32_t jl, const int32_t * entries, struct hwkv_error * err);
void sc_pass_free(struct sc_pass * pass);

// Bytes that a traced run takes at its peak, without the inputs of the layers.
size_t sc_pass_size(const struct sc_pass * pass);

// hidden_in and hidden_out: input of the layer before and of this one, [n_ctx][n_embd], may be the same; NULL in naive
// mode and where the layer has none. trace may be NULL; free it with sc_trace_free.
int  sc_pass_run (struct sc_pass * pass, int32_t iseq, const float * hidden_in, float * hidden_out, struct sc_trace * trace, struct hwkv_error * err);
void sc_trace_free(struct sc_trace * trace);

//
// score.c
//

// What a KV head puts out under every entry of the codebook, the reference among them. A row is one query of one query head: row
// iq*ratio + j is query iq of the j-th that shares the KV head.
struct sc_outputs {
    const struct sc_codebook * codebook;
    int32_t n_row;
    int32_t dim;   // head_dim_v
    float * rows;  // scan by scan: [n_row][windows of the scan][dim]
    float * mass;  // scan by scan: [n_row][windows of the scan], the attention that a window omits of the full history in its types; or NULL
};

const float * sc_output_row (const struct sc_outputs * outputs, int64_t row, int32_t ic); // [dim]
float         sc_output_mass(const struct sc_outputs * outputs, int64_t row, int32_t ic);

int  sc_replay_head (struct sc_outputs * outputs, const struct sc_input * in, const struct sc_trace * trace, int32_t ih, bool with_mass, struct hwkv_error * err);
void sc_outputs_free(struct sc_outputs * outputs);

// Adds the cosines to the reference's output, in index order: sums [codebook->n].
void sc_score_head(const struct sc_outputs * outputs, double * sums);

// The mean cosine of a head's full outputs, traced and replayed as the trace's cache had it; a calibration ends when it is low.
int sc_check_head(double * same, const struct sc_input * in, const struct sc_trace * trace, int32_t ih, struct hwkv_error * err);

// V of a head as the reference's cache holds it: [n_ctx][head_dim_v]; free with free().
int sc_reference_v(float ** v, const struct sc_input * in, const struct sc_trace * trace, int32_t ih, struct hwkv_error * err);

// Bytes that the replay of a head of a layer takes beside its trace.
size_t sc_replay_size(const struct sc_input * in, const struct hwkv_layer * layer, int32_t n_query);

#define SC_CHECK_MIN   0.99
#define SC_CHECK_QUERY 16

#endif // SC_SWEEP_H
