#include "seqcalib-calibrate.h"
#include "seqcalib-work.h"

#include "tool-print.h"
#include "tool-progress.h"

#include "hwkv-error.h"

#include <stdlib.h>
#include <string.h>

int sc_calib_init(struct sc_calib * calib, struct sc_input * in, const double * tau, int32_t n_tau, struct hwkv_error * err) {
    const struct hwkv_geometry * geo = in->geo;

    memset(calib, 0, sizeof(*calib));
    calib->in    = in;
    calib->tau   = tau;
    calib->n_tau = n_tau;
    calib->agreement = 2.0;

    int32_t n_head_max = 0;
    calib->unit_start = calloc((size_t) geo->n_full, sizeof(*calib->unit_start));
    for (int32_t jl = 0; calib->unit_start && jl < geo->n_full; jl++) {
        calib->unit_start[jl] = calib->n_unit;
        calib->n_unit += geo->layers[jl].n_head_kv;
        n_head_max = geo->layers[jl].n_head_kv > n_head_max ? geo->layers[jl].n_head_kv : n_head_max;
    }

    const size_t n = (size_t) n_tau*(size_t) calib->n_unit;
    calib->entries    = calloc(n, sizeof(*calib->entries));
    calib->scores     = calloc(n*(size_t) in->codebook->n, sizeof(*calib->scores));
    calib->known      = calloc((size_t) n_tau*(size_t) geo->n_full, sizeof(*calib->known));
    calib->validation = calloc((size_t) n_tau, sizeof(*calib->validation));
    calib->names      = calloc((size_t) n_tau, sizeof(*calib->names));
    calib->sums       = calloc((size_t) n_head_max*(size_t) in->codebook->n, sizeof(*calib->sums));

    if (!calib->unit_start || !calib->entries || !calib->scores || !calib->known || !calib->validation || !calib->names || !calib->sums) {
        sc_calib_free(calib);
        return hwkv_fail(err, HWKV_ERR_NOMEM, NULL, "out of memory");
    }
    for (int32_t ip = 0; tau && ip < n_tau; ip++) {
        snprintf(calib->names[ip], SC_POINT_NAME, "tau-%.12g", tau[ip]);
    }
    return HWKV_OK;
}

void sc_calib_free(struct sc_calib * calib) {
    for (int32_t i = 0; calib->validation && i < calib->n_tau; i++) {
        free(calib->validation[i]);
    }
    free(calib->unit_start);
    free(calib->entries);
    free(calib->scores);
    free(calib->known);
    free(calib->validation);
    free(calib->names);
    free(calib->sums);
    memset(calib, 0, sizeof(*calib));
}

static int32_t first_of(uint64_t mask) {
    int32_t ip = 0;
    while (!(mask >> ip & 1)) {
        ip++;
    }
    return ip;
}

bool sc_calib_knows(const struct sc_calib * calib, int32_t jl, uint64_t mask) {
    return calib->known[(size_t) first_of(mask)*(size_t) calib->in->geo->n_full + (size_t) jl];
}

const int32_t * sc_calib_entries(const struct sc_calib * calib, int32_t jl, int32_t ip) {
    return calib->entries + (size_t) ip*(size_t) calib->n_unit + calib->unit_start[jl];
}

// One KV head of a sequence.
static int see_head(struct sc_calib * calib, int32_t jl, int32_t ih, const struct sc_trace * trace, struct hwkv_error * err) {
    const struct sc_input * in = calib->in;

    double same;
    int status = sc_check_head(&same, in, trace, ih, err);
    if (status != HWKV_OK) {
        return status;
    }
    if (!(same >= SC_CHECK_MIN)) {
        return hwkv_fail(err, HWKV_ERR_INTERNAL, NULL, "layer %d, KV head %d: replayed and traced attention agree to %.4f, expected at least %.2f",
                         in->geo->layers[jl].il, ih, same, SC_CHECK_MIN);
    }
    calib->agreement = same < calib->agreement ? same : calib->agreement;

    struct sc_outputs outputs;
    status = sc_replay_head(&outputs, in, trace, ih, false, err);
    if (status != HWKV_OK) {
        return status;
    }
    sc_score_head(&outputs, calib->sums + (size_t) ih*(size_t) in->codebook->n);
    if (calib->distort) {
        sc_distort_head(calib->distort, ih, &outputs);
    }
    sc_outputs_free(&outputs);
    return HWKV_OK;
}

int sc_calib_see(struct sc_calib * calib, int32_t jl, int32_t iseq, const struct sc_trace * trace, struct hwkv_error * err) {
    const struct sc_input   * in    = calib->in;
    const struct hwkv_layer * layer = &in->geo->layers[jl];

    if (trace->shape.n_head != layer->n_head || trace->shape.n_head_kv != layer->n_head_kv) {
        return hwkv_fail(err, HWKV_ERR_INTERNAL, NULL, "layer %d: traced %d query and %d KV heads, expected %d and %d", layer->il, trace->shape.n_head,
                       trace->shape.n_head_kv, layer->n_head, layer->n_head_kv);
    }
    if (iseq == 0) {
        memset(calib->sums, 0, sizeof(*calib->sums)*(size_t) layer->n_head_kv*(size_t) in->codebook->n);
        calib->n_sum = 0;
    }

    int status = calib->distort ? sc_distort_begin(calib->distort, iseq, trace, err) : HWKV_OK;
    for (int32_t ih = 0; ih < layer->n_head_kv && status == HWKV_OK; ih++) {
        status = see_head(calib, jl, ih, trace, err);
    }
    if (status != HWKV_OK) {
        return status;
    }
    if (calib->distort) {
        sc_distort_end(calib->distort);
    }
    calib->n_sum += (int64_t) trace->n_query*(layer->n_head/layer->n_head_kv);
    return HWKV_OK;
}

void sc_calib_means(const struct sc_calib * calib, int32_t jl, double * cosines) {
    const int32_t n = calib->in->codebook->n;
    for (int32_t i = 0; i < calib->in->geo->layers[jl].n_head_kv*n; i++) {
        cosines[i] = i%n == calib->in->codebook->reference ? 1.0 : calib->sums[i]/(double) calib->n_sum;
    }
}

static int see(void * user, int32_t jl, uint64_t mask, int32_t iseq, const struct sc_trace * trace, struct hwkv_error * err) {
    (void) mask;
    return sc_calib_see(user, jl, iseq, trace, err);
}

static bool knows(void * user, int32_t jl, uint64_t mask) {
    return sc_calib_knows(user, jl, mask);
}

static const int32_t * entries_of(void * user, int32_t jl, int32_t ip) {
    return sc_calib_entries(user, jl, ip);
}

// "256 256 full", scores and what is kept of the layers so far
static void print_layer(const struct sc_calib * calib, int32_t jl, int32_t ip) {
    const struct sc_input      * in  = calib->in;
    const struct hwkv_geometry * geo = in->geo;
    const struct hwkv_layer    * layer = &geo->layers[jl];

    const struct hwkv_cache cache = { .n_ctx = in->n_ctx, .type_k = in->codebook->cache.k, .type_v = in->codebook->cache.v };

    uint64_t kept = 0;
    uint64_t all  = 0;
    for (int32_t r = 0; r <= jl; r++) {
        const int32_t * entries = calib->entries + (size_t) ip*(size_t) calib->n_unit + calib->unit_start[r];
        for (int32_t ih = 0; ih < geo->layers[r].n_head_kv; ih++) {
            kept += hwkv_cost_head(&geo->layers[r], &in->codebook->entries[entries[ih]], &cache);
            all  += hwkv_cost_head(&geo->layers[r], &in->codebook->entries[in->codebook->reference], &cache);
        }
    }

    char   list[200] = "";
    size_t n  = 0;
    double lo = 1.0;
    double hi = 0.0;
    for (int32_t ih = 0; ih < layer->n_head_kv; ih++) {
        const size_t  unit = (size_t) ip*(size_t) calib->n_unit + (size_t) calib->unit_start[jl] + (size_t) ih;
        const int32_t ic   = calib->entries[unit];

        char name[HWKV_ENTRY_SIZE];
        if (n + 8 + HWKV_ENTRY_SIZE > sizeof(list)) {
            snprintf(list + n, sizeof(list) - n, " ...");
        } else {
            n += (size_t) snprintf(list + n, sizeof(list) - n, " %s", hwkv_entry_format(&in->codebook->entries[ic], name));
        }

        const double score = calib->scores[unit*(size_t) in->codebook->n + (size_t) ic];
        lo = score < lo ? score : lo;
        hi = score > hi ? score : hi;
    }
    tool_progress_line(in->progress, "%s, layer %d:%s, scores %.4f to %.4f, %.1f%% kept so far", calib->names[ip], layer->il, list, lo, hi, 100.0*(double) kept/(double) all);
}

static void choose_heads(const struct sc_input * in, int32_t n_head_kv, const double * scores, double tau, int32_t * entries) {
    for (int32_t ih = 0; ih < n_head_kv; ih++) {
        entries[ih] = hwkv_select_threshold(scores + (size_t) ih*(size_t) in->codebook->n, in->codebook->n, tau);
    }
}

static void choose_layer(const struct sc_input * in, int32_t n_head_kv, const double * scores, double tau, int32_t * entries) {
    double mean[HWKV_CODE_MAX];
    for (int32_t ic = 0; ic < in->codebook->n; ic++) {
        mean[ic] = 0.0;
        for (int32_t ih = 0; ih < n_head_kv; ih++) {
            mean[ic] += scores[(size_t) ih*(size_t) in->codebook->n + (size_t) ic];
        }
        mean[ic] /= n_head_kv;
    }
    const int32_t entry = hwkv_select_threshold(mean, in->codebook->n, tau);
    for (int32_t ih = 0; ih < n_head_kv; ih++) {
        entries[ih] = entry;
    }
}

// the scores of a layer for all points of a mask, and what each chooses
static void settle(struct sc_calib * calib, int32_t jl, uint64_t mask, const double * scores) {
    const struct sc_input * in = calib->in;
    const int32_t n_head_kv = in->geo->layers[jl].n_head_kv;

    for (int32_t ip = 0; ip < calib->n_tau; ip++) {
        if (!(mask >> ip & 1)) {
            continue;
        }
        const size_t unit = (size_t) ip*(size_t) calib->n_unit + (size_t) calib->unit_start[jl];
        memcpy(calib->scores + unit*(size_t) in->codebook->n, scores, sizeof(*scores)*(size_t) n_head_kv*(size_t) in->codebook->n);
        (in->per_layer ? choose_layer : choose_heads)(in, n_head_kv, scores, calib->tau[ip], calib->entries + unit);
        calib->known[(size_t) ip*(size_t) in->geo->n_full + (size_t) jl] = true;
    }
}

static int decide(void * user, int32_t jl, uint64_t mask, struct hwkv_error * err) {
    struct sc_calib * calib = user;
    const struct sc_input * in = calib->in;
    const int32_t n_score = in->geo->layers[jl].n_head_kv*in->codebook->n;

    sc_calib_means(calib, jl, calib->sums);
    const int status = sc_work_layer(calib->work, jl, mask, calib->sums, n_score, err);
    if (status != HWKV_OK) {
        return status;
    }
    settle(calib, jl, mask, calib->sums);
    sc_calib_print_layer(calib, jl, mask);
    return HWKV_OK;
}

void sc_calib_print_layer(const struct sc_calib * calib, int32_t jl, uint64_t mask) {
    const size_t size = sizeof(int32_t)*(size_t) calib->in->geo->layers[jl].n_head_kv;
    for (int32_t ip = 0; ip < calib->n_tau; ip++) {
        bool new_choice = mask >> ip & 1;
        for (int32_t other = 0; other < ip; other++) {
            if (mask >> other & 1) {
                new_choice &= memcmp(sc_calib_entries(calib, jl, other), sc_calib_entries(calib, jl, ip), size) != 0;
            }
        }
        if (new_choice) {
            print_layer(calib, jl, ip);
        }
    }
}

int sc_calib_restore(struct sc_calib * calib, int32_t jl, uint64_t mask, const double * scores, int32_t n_score, struct hwkv_error * err) {
    const struct hwkv_geometry * geo = calib->in->geo;

    const bool fits = jl >= 0 && jl < geo->n_full && n_score == geo->layers[jl].n_head_kv*calib->in->codebook->n && mask != 0 &&
        (calib->n_tau == SC_POINT_MAX || mask >> calib->n_tau == 0);
    if (!fits) {
        return hwkv_fail(err, HWKV_ERR_MISMATCH, NULL, "work file: found a layer of another model");
    }
    settle(calib, jl, mask, scores);
    return HWKV_OK;
}

int32_t sc_calib_n_known(const struct sc_calib * calib) {
    const int32_t n_full = calib->in->geo->n_full;

    for (int32_t jl = 0; jl < n_full; jl++) {
        for (int32_t ip = 0; ip < calib->n_tau; ip++) {
            if (!calib->known[(size_t) ip*(size_t) n_full + (size_t) jl]) {
                return jl;
            }
        }
    }
    return n_full;
}

int sc_calib_run(struct sc_calib * calib, struct hwkv_error * err) {
    const struct sc_judge judge = { .user = calib, .verb = "calibrate", .knows = knows, .see = see, .decide = decide, .entries = entries_of };
    return sc_sweep(calib->in, calib->n_tau, sc_calib_n_known(calib), &judge, err);
}
