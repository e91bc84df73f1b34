#include "seqcalib-validate.h"
#include "seqcalib-options.h"
#include "seqcalib-work.h"

#include "tool-compare.h"
#include "tool-json.h"
#include "tool-progress.h"

#include "hwkv-error.h"
#include "hwkv-rule.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

// what is measured of one KV head under one point
struct head_stats {
    int64_t n;
    double  cosine;       // of its output under the whole policy and with the full cache everywhere
    double  score;        // of its entry under the frozen prefix, as in the calibration
    double  mass;         // omitted attention
    double  mass_bound;   // times the bound of the values' spread; means nothing where the entry's types are not the reference's
    double  error;        // distance to the full output
    double  error_square;
    double  norm_max;     // B_w
    double  norm_gap_max; // eta_w
};

// Point 0 of the sweep has the reference everywhere. Point i + 1 is point i of the calibration.
struct validator {
    struct sc_calib * calib;
    struct sc_input   in;        // the calibration's, with the held-out sequences

    int32_t         * full;      // [max n_head_kv] entries of point 0
    struct head_stats * stats;   // [n_tau][n_unit]

    float          ** reference; // [n_seq][max n_head_kv] outputs of the layer at hand under the reference everywhere
    int32_t           n_head_max;
};

static bool knows(void * user, int32_t jl, uint64_t mask) {
    (void) user;
    (void) jl;
    (void) mask;
    return false;
}

static int decide(void * user, int32_t jl, uint64_t mask, struct hwkv_error * err) {
    (void) user;
    (void) jl;
    (void) mask;
    (void) err;
    return HWKV_OK;
}

static const int32_t * entries_of(void * user, int32_t jl, int32_t ip) {
    const struct validator * val = user;
    return ip == 0 ? val->full : val->calib->entries + (size_t) (ip - 1)*(size_t) val->calib->n_unit + val->calib->unit_start[jl];
}

static double norm(const float * v, int32_t n) {
    double sum = 0.0;
    for (int32_t i = 0; i < n; i++) {
        sum += (double) v[i]*(double) v[i];
    }
    const double res = sqrt(sum);
    return res <= 1e-12 ? 0.0 : res; // stabilised, as the cosine is
}

// Distances of all values of a head from their mean: two values differ by no more than the sum of theirs. The last one is
// that of zero, the value a learned attention sink stands for.
static int distances(const struct sc_input * in, const struct sc_trace * trace, int32_t ih, double ** out, struct hwkv_error * err) {
    const int32_t dim   = trace->shape.head_dim_v;
    const int32_t n_pos = in->n_ctx;

    float * v;
    const int status = sc_reference_v(&v, in, trace, ih, err);
    if (status != HWKV_OK) {
        return status;
    }
    double * mean = calloc((size_t) dim, sizeof(*mean));
    *out = malloc(sizeof(**out)*((size_t) n_pos + 1));
    if (!mean || !*out) {
        free(v);
        free(mean);
        free(*out);
        *out = NULL;
        return hwkv_fail(err, HWKV_ERR_NOMEM, NULL, "out of memory");
    }
    for (int32_t i = 0; i < n_pos; i++) {
        for (int32_t j = 0; j < dim; j++) {
            mean[j] += (double) v[(int64_t) i*dim + j]/n_pos;
        }
    }
    for (int32_t i = 0; i < n_pos; i++) {
        double sum = 0.0;
        for (int32_t j = 0; j < dim; j++) {
            const double d = (double) v[(int64_t) i*dim + j] - mean[j];
            sum += d*d;
        }
        (*out)[i] = sqrt(sum);
    }
    double sum = 0.0;
    for (int32_t j = 0; j < dim; j++) {
        sum += mean[j]*mean[j];
    }
    (*out)[n_pos] = sqrt(sum);
    free(v);
    free(mean);
    return HWKV_OK;
}

// No kept and omitted value of a query at pos are further apart than this.
static double spread(const struct sc_input * in, const double * distance, bool has_sink_logits, int32_t pos, int32_t window) {
    const struct hwkv_rule rule = hwkv_rule_of(window, in->sinks);
    if (hwkv_rule_sees_all(rule, pos)) {
        return 0.0;
    }
    double kept    = has_sink_logits ? distance[in->n_ctx] : 0.0;
    double omitted = 0.0;
    for (int32_t i = 0; i <= pos; i++) {
        double * max = hwkv_rule_sees(rule, pos, i) ? &kept : &omitted;
        *max = distance[i] > *max ? distance[i] : *max;
    }
    return kept + omitted;
}

// reference: the head's outputs under the reference in all layers; distance: as distances() has them.
static void measure(const struct validator * val, const struct sc_trace * trace, const struct sc_outputs * out, const float * reference,
                    const double * distance, int32_t ic, struct head_stats * st) {
    const struct sc_input * in = &val->in;
    const int32_t dim   = out->dim;
    const int32_t ratio = trace->shape.n_head/trace->shape.n_head_kv;

    for (int32_t iq = 0; iq < trace->n_query; iq++) {
        const double delta = spread(in, distance, trace->shape.has_sink_logits, trace->pos[iq], in->codebook->entries[ic].window);
        for (int32_t j = 0; j < ratio; j++) {
            const int64_t row  = (int64_t) iq*ratio + j;
            const float * cut  = sc_output_row(out, row, ic);
            const float * full = sc_output_row(out, row, in->codebook->reference);

            double square = 0.0;
            for (int32_t i = 0; i < dim; i++) {
                const double d = (double) cut[i] - (double) full[i];
                square += d*d;
            }
            const double norm_cut  = norm(cut, dim);
            const double norm_full = norm(full, dim);
            const double m = (double) sc_output_mass(out, row, ic);

            st->n            += 1;
            st->cosine       += hwkv_cosine(cut, reference + row*dim, dim);
            st->score        += hwkv_cosine(cut, full, dim);
            st->mass         += m;
            st->mass_bound   += m*delta;
            st->error        += sqrt(square);
            st->error_square += square;
            st->norm_max      = fmax(st->norm_max, fmax(norm_cut, norm_full));
            st->norm_gap_max  = fmax(st->norm_gap_max, fabs(norm_cut - norm_full));
        }
    }
}

// The full outputs under the full prefix, which the others of this layer and sequence are held against.
static int keep_reference(struct validator * val, int32_t iseq, int32_t ih, const struct sc_outputs * out, struct hwkv_error * err) {
    const int32_t dim   = out->dim;
    const int64_t n_row = out->n_row;
    float ** ref = &val->reference[(int64_t) iseq*val->n_head_max + ih];

    free(*ref);
    *ref = malloc(sizeof(float)*(size_t) (n_row*dim));
    if (!*ref) {
        return hwkv_fail(err, HWKV_ERR_NOMEM, NULL, "out of memory");
    }
    for (int64_t i = 0; i < n_row; i++) {
        memcpy(*ref + i*dim, sc_output_row(out, i, val->in.codebook->reference), sizeof(float)*(size_t) dim);
    }
    return HWKV_OK;
}

static int see_head(struct validator * val, int32_t jl, uint64_t mask, int32_t iseq, int32_t ih, const struct sc_trace * trace, struct hwkv_error * err) {
    const struct sc_calib * calib = val->calib;

    struct sc_outputs out;
    double * distance = NULL;
    int status = sc_replay_head(&out, &val->in, trace, ih, true, err);
    if (status != HWKV_OK) {
        return status;
    }
    if (mask & 1) {
        status = keep_reference(val, iseq, ih, &out, err);
    }
    if (status == HWKV_OK && mask >> 1) {
        status = distances(&val->in, trace, ih, &distance, err);
    }
    for (int32_t ip = 0; ip < calib->n_tau && status == HWKV_OK; ip++) {
        if (mask >> (ip + 1) & 1) {
            const size_t unit = (size_t) ip*(size_t) calib->n_unit + (size_t) (calib->unit_start[jl] + ih);
            measure(val, trace, &out, val->reference[(int64_t) iseq*val->n_head_max + ih], distance, calib->entries[unit], &val->stats[unit]);
        }
    }
    sc_outputs_free(&out);
    free(distance);
    return status;
}

static int see(void * user, int32_t jl, uint64_t mask, int32_t iseq, const struct sc_trace * trace, struct hwkv_error * err) {
    struct validator * val = user;
    int status = HWKV_OK;
    for (int32_t ih = 0; ih < val->in.geo->layers[jl].n_head_kv && status == HWKV_OK; ih++) {
        status = see_head(val, jl, mask, iseq, ih, trace, err);
    }
    return status;
}

static int validator_init(struct validator * val, struct sc_calib * calib, const struct sc_holdout * holdout, struct hwkv_error * err) {
    memset(val, 0, sizeof(*val));
    val->calib      = calib;
    val->in         = *calib->in;
    val->in.tokens  = holdout->tokens;
    val->in.n_seq   = holdout->n_seq;
    // other positions than the calibration's, even where a text should be the same
    val->in.seed    = calib->in->seed ^ UINT64_C(0x686f6c646f757421);

    for (int32_t jl = 0; jl < val->in.geo->n_full; jl++) {
        val->n_head_max = val->in.geo->layers[jl].n_head_kv > val->n_head_max ? val->in.geo->layers[jl].n_head_kv : val->n_head_max;
    }
    val->full      = calloc((size_t) val->n_head_max, sizeof(*val->full));
    val->stats     = calloc((size_t) calib->n_tau*(size_t) calib->n_unit, sizeof(*val->stats));
    val->reference = calloc((size_t) val->n_head_max*(size_t) val->in.n_seq, sizeof(*val->reference));
    if (!val->full || !val->stats || !val->reference) {
        return hwkv_fail(err, HWKV_ERR_NOMEM, NULL, "out of memory");
    }
    for (int32_t i = 0; i < val->n_head_max; i++) {
        val->full[i] = val->in.codebook->reference;
    }
    return HWKV_OK;
}

static void validator_free(struct validator * val) {
    for (int64_t i = 0; val->reference && i < (int64_t) val->n_head_max*val->in.n_seq; i++) {
        free(val->reference[i]);
    }
    free(val->full);
    free(val->stats);
    free(val->reference);
}

//
// the logits
//

// Beside the full cache, which runs again for every floor: contexts of all floors at once may not fit.
static int compare_logits(const struct sc_calib * calib, const struct sc_holdout * holdout, struct llama_context * ctx_full, const struct hwkv_policy * policy,
                          int32_t ip, struct tool_compare_result * result, struct hwkv_error * err) {
    const struct sc_input * in   = calib->in;
    const char            * name = hwkv_policy_point(policy, ip)->name;
    struct llama_context  * ctx  = sc_context_new(in, policy, ip);

    if (!ctx) {
        return hwkv_fail(err, HWKV_ERR_INTERNAL, NULL, "llama.cpp could not make a context of %d tokens for the held-out check", in->n_ctx);
    }
    const struct tool_compare_params params = {
        .ctx_full   = ctx_full,
        .ctx_policy = &ctx,
        .names      = &name,
        .n_policy   = 1,
        .tokens     = holdout->tokens,
        .n_seq      = holdout->n_seq,
        .n_ctx      = in->n_ctx,
        .n_thread   = in->n_thread,
        .progress   = in->progress,
        .stop       = in->stop,
    };
    tool_progress_start(in->progress, tool_compare_work(&params));
    tool_progress_stage(in->progress, "compare logits on held-out text");
    int status = tool_compare(result, &params, err);
    tool_progress_end(in->progress);
    if (status == TOOL_STOPPED) {
        tool_compare_result_free(result);
        status = hwkv_fail(err, SC_ERR_STOPPED, NULL, "stopped");
    }
    llama_free(ctx);
    return status;
}

//
// the record
//

static struct hwkv_json * layers_json(const struct validator * val, const struct head_stats * stats) {
    struct hwkv_json * layers = hwkv_json_new_array();
    bool ok = layers != NULL;
    for (int32_t jl = 0; jl < val->in.geo->n_full; jl++) {
        struct hwkv_json * heads = hwkv_json_new_array();
        for (int32_t ih = 0; ih < val->in.geo->layers[jl].n_head_kv; ih++) {
            const struct head_stats * st = &stats[val->calib->unit_start[jl] + ih];
            ok = hwkv_json_append(heads, tool_json_measure(st->cosine/(double) st->n)) && ok;
        }
        ok = hwkv_json_append(layers, heads) && ok;
    }
    if (!ok) {
        hwkv_json_free(layers);
        return NULL;
    }
    return layers;
}

static bool add_heads(struct hwkv_json * record, const struct validator * val, int32_t ip) {
    const int32_t             n_unit = val->calib->n_unit;
    const struct head_stats * stats  = val->stats + (size_t) ip*(size_t) n_unit;

    double sum = 0.0;
    double min = 1.0;
    double score_min = 1.0;
    for (int32_t i = 0; i < n_unit; i++) {
        sum += stats[i].cosine/(double) stats[i].n;
        min = fmin(min, stats[i].cosine/(double) stats[i].n);
        score_min = fmin(score_min, stats[i].score/(double) stats[i].n);
    }

    struct hwkv_json * cosine = hwkv_json_new_object();
    const bool ok = hwkv_json_add(record, "min_score", tool_json_measure(score_min)) &&
                    hwkv_json_add(cosine, "mean",      tool_json_measure(sum/n_unit)) &&
                    hwkv_json_add(cosine, "min",       tool_json_measure(min)) &&
                    hwkv_json_add(cosine, "layers",    layers_json(val, stats));
    return hwkv_json_add(record, "head_cosine", cosine) && ok;
}

// Does the bound by the omitted mass hold for an entry? It knows nothing of values that were rounded otherwise than the reference's.
static bool is_bounded(const struct sc_codebook * codebook, int32_t ic) {
    return codebook->scan[ic] == codebook->scan[codebook->reference];
}

// means over the heads of a layer; the bounds hold for every head, so they hold for the means
static struct hwkv_json * bound_json(const struct validator * val, int32_t ip, int32_t jl) {
    const struct sc_calib   * calib = val->calib;
    const struct hwkv_layer * layer = &val->in.geo->layers[jl];
    double mass = 0.0, mass_bound = 0.0, error = 0.0, error_square = 0.0, trace_bound = 0.0;
    bool   bounded = true;

    for (int32_t ih = 0; ih < layer->n_head_kv; ih++) {
        const struct head_stats * st = &val->stats[(size_t) ip*(size_t) calib->n_unit + (size_t) (calib->unit_start[jl] + ih)];
        const double n = (double) st->n*layer->n_head_kv;
        bounded      &= is_bounded(val->in.codebook, calib->entries[(size_t) ip*(size_t) calib->n_unit + (size_t) (calib->unit_start[jl] + ih)]);
        mass         += st->mass/n;
        mass_bound   += st->mass_bound/n;
        error        += st->error/n;
        error_square += st->error_square/n;
        trace_bound  += (st->norm_gap_max*st->norm_gap_max + 2.0*st->norm_max*st->norm_max*(1.0 - st->score/(double) st->n))/layer->n_head_kv;
    }

    struct hwkv_json * bound = hwkv_json_new_object();
    const bool ok = hwkv_json_add(bound, "layer",        hwkv_json_new_int(layer->il)) &&
                    hwkv_json_add(bound, "omitted_mass", tool_json_measure(mass)) &&
                    (!bounded || hwkv_json_add(bound, "mass_bound", tool_json_measure(mass_bound))) &&
                    hwkv_json_add(bound, "output_error", tool_json_measure(error)) &&
                    hwkv_json_add(bound, "trace_error",  tool_json_measure(error_square)) &&
                    hwkv_json_add(bound, "trace_bound",  tool_json_measure(fmax(trace_bound, 0.0)));
    if (!ok) {
        hwkv_json_free(bound);
        return NULL;
    }
    return bound;
}

static bool add_bounds(struct hwkv_json * record, const struct validator * val, int32_t ip) {
    struct hwkv_json * bounds = hwkv_json_new_array();
    bool ok = true;
    for (int32_t jl = 0; jl < val->in.geo->n_full; jl++) {
        ok = hwkv_json_append(bounds, bound_json(val, ip, jl)) && ok;
    }
    return hwkv_json_add(record, "bounds", bounds) && ok;
}

static int write_record(struct validator * val, const struct sc_holdout * holdout, const struct tool_compare_result * result, int32_t ip, struct hwkv_error * err) {
    struct hwkv_json * record = tool_compare_json(result, &holdout->text, val->in.n_ctx, holdout->n_chat);
    char             * text   = NULL;

    if (record && add_heads(record, val, ip) && add_bounds(record, val, ip) && hwkv_json_print_compact(&text, record, NULL) == HWKV_OK) {
        val->calib->validation[ip] = strdup(text);
    }
    hwkv_string_free(text);
    hwkv_json_free(record);
    if (!val->calib->validation[ip]) {
        return hwkv_fail(err, HWKV_ERR_NOMEM, NULL, "out of memory");
    }
    return sc_work_validation(val->calib->work, ip, val->calib->validation[ip], err);
}

static int make_policy(const struct sc_calib * calib, struct hwkv_policy ** out, struct hwkv_error * err) {
    int status = sc_policy_new(out, calib->in, err);
    for (int32_t ip = 0; ip < calib->n_tau && status == HWKV_OK; ip++) {
        const struct hwkv_point_params point = { .name = calib->names[ip], .method = "to be checked", .entries = calib->entries + (size_t) ip*(size_t) calib->n_unit };
        status = hwkv_policy_add_point(*out, &point, err);
    }
    return status;
}

// Floors that an interrupted run has checked are left out.
static int check_logits(struct validator * val, const struct sc_holdout * holdout, const struct hwkv_policy * policy, struct hwkv_error * err) {
    const struct sc_calib * calib = val->calib;

    struct llama_context * ctx_full = sc_context_new(calib->in, NULL, 0);
    if (!ctx_full) {
        return hwkv_fail(err, HWKV_ERR_INTERNAL, NULL, "llama.cpp could not make a context of %d tokens for the held-out check", calib->in->n_ctx);
    }
    int status = HWKV_OK;
    for (int32_t ip = 0; ip < calib->n_tau && status == HWKV_OK; ip++) {
        if (calib->validation[ip]) {
            continue;
        }
        struct tool_compare_result result = { 0 };
        status = compare_logits(calib, holdout, ctx_full, policy, ip, &result, err);
        if (status == HWKV_OK) {
            status = write_record(val, holdout, &result, ip, err);
        }
        tool_compare_result_free(&result);
    }
    llama_free(ctx_full);
    return status;
}

int sc_validate(struct sc_calib * calib, const struct sc_holdout * holdout, struct hwkv_error * err) {
    bool all = true;
    for (int32_t ip = 0; ip < calib->n_tau; ip++) {
        all &= calib->validation[ip] != NULL;
    }
    if (all) {
        return HWKV_OK;
    }

    struct validator val;
    struct hwkv_policy * policy = NULL;

    int status = validator_init(&val, calib, holdout, err);
    if (status == HWKV_OK) {
        status = make_policy(calib, &policy, err);
    }
    if (status == HWKV_OK) {
        const struct sc_judge judge = { .user = &val, .verb = "check", .knows = knows, .see = see, .decide = decide, .entries = entries_of };
        tool_progress_start(val.in.progress, val.in.geo->n_full);
        status = sc_sweep(&val.in, calib->n_tau + 1, 0, &judge, err);
        tool_progress_end(val.in.progress);
    }
    if (status == HWKV_OK) {
        status = check_logits(&val, holdout, policy, err);
    }
    hwkv_policy_free(policy);
    validator_free(&val);
    return status;
}
