// Attention outputs under every window of a codebook, from one trace.
//
// A query scans its keys once, newest first, with an online softmax: when the scan reaches the oldest key of a window, what it
// holds, merged with the sinks' part, is that window's output. Keys go in blocks that begin at fixed positions, so that all
// queries share a block; a window that ends inside one splits it for that row alone. Rows, (query, query head) pairs, are
// computed each for itself, so neither threads nor neighbours change a result.

#include "hwkv-impl.h"
#include "hwkv-replay-impl.h"
#include "hwkv-rule.h"

#include <math.h>
#include <pthread.h>
#include <string.h>

#define KEYS HWKV_REPLAY_KEYS
#define ROWS HWKV_REPLAY_ROWS

#define CHUNK_SIZE (512u * 1024)  // bytes of rows that pass over the keys together; they should stay in a core's cache
#define ALIGN      64             // bytes
#define DIM_MAX    65536

struct row {
    int32_t iq;      // query, -1 in padding
    int32_t t;       // its position, -1 in padding
    int32_t ic;      // next window to finish; those before are written
    float   max;     // largest logit so far
    float   max_sink;
    double  sum;     // of e^(logit - max)
    double  sum_sink;
    double  part;    // of the sum, since the last window
};

// What one thread works with. rows, q, acc, acc_sink and part are for one chunk of queries.
struct job {
    const struct hwkv_replay_kernel * kernel;
    const struct hwkv_trace_head    * head;
    const struct hwkv_replay_params * params;
    const float   * q;
    const int32_t * pos;
    int32_t         first;     // queries
    int32_t         last;
    int32_t         n_chunk;   // queries of a chunk
    int32_t         n_row;     // rows of the current chunk, with padding
    int32_t         width;     // dim_v with padding
    float         * out;
    float         * mass;

    struct row * rows;
    float      * queries;      // [n_row][dim_k], scaled
    float      * acc;          // [n_row][width]
    float      * acc_sink;     // [n_row][width]
    double     * part;         // [n_row][n_codebook] log of the sum of e^logit between this window and the one before
    float      * block_k;      // [dim_k][KEYS]
    float      * block_v;      // [KEYS][width]
    float      * logits;       // [ROWS][KEYS]
    float      * weights;      // [ROWS][KEYS]

    pthread_t thread;
    bool      started;
};

//
// one row
//

static struct hwkv_rule rule_of(const struct job * job, int32_t ic) {
    return hwkv_rule_of(job->params->codebook[ic].window, job->params->sinks);
}

// first position of the newest keys of window ic; -1 if the query sees all
static int32_t window_start(const struct job * job, const struct row * row, int32_t ic) {
    const struct hwkv_rule rule = rule_of(job, ic);
    return hwkv_rule_sees_all(rule, row->t) ? -1 : hwkv_rule_oldest(rule, row->t);
}

// The scan holds exactly the newest keys of window ic.
static void finish_window(const struct job * job, struct row * row, int32_t ir, int32_t ic) {
    const struct hwkv_trace_head * head = job->head;
    const int32_t ih     = ir % head->n_q_head;
    const float * acc    = job->acc      + (size_t) ir * (size_t) job->width;
    const float * sink   = job->acc_sink + (size_t) ir * (size_t) job->width;
    const size_t  i_out  = ((size_t) row->iq * (size_t) head->n_q_head + (size_t) ih) * (size_t) job->params->n_codebook + (size_t) ic;
    float       * out    = job->out + i_out * (size_t) head->dim_v;

    double max = (double) fmaxf(row->max, row->max_sink);
    if (head->sink_logit) {
        max = fmax(max, (double) head->sink_logit[ih]);
    }
    const double f_acc  = exp((double) row->max      - max);
    const double f_sink = exp((double) row->max_sink - max);
    const double sum    = f_acc * row->sum + f_sink * row->sum_sink + (head->sink_logit ? exp((double) head->sink_logit[ih] - max) : 0.0);
    const float  w_acc  = (float) (f_acc  / sum);
    const float  w_sink = (float) (f_sink / sum);
    for (int32_t i = 0; i < head->dim_v; i++) {
        out[i] = w_acc * acc[i] + w_sink * sink[i];
    }
    job->part[(size_t) ir * (size_t) job->params->n_codebook + (size_t) ic] = log(row->part) + (double) row->max;
    row->part = 0.0;
    row->ic   = ic + 1;
}

// Takes keys [lo, hi) of a block into max, sum and part. Returns what becomes of the accumulator so far.
static float weigh(const struct job * job, struct row * row, const float * logits, int32_t lo, int32_t hi, float * weights) {
    memcpy(weights, logits, KEYS * sizeof(*weights));
    for (int32_t i = 0; i < lo; i++) {
        weights[i] = -INFINITY;
    }
    for (int32_t i = hi; i < KEYS; i++) {
        weights[i] = -INFINITY;
    }
    const float  before = row->max;
    const double sum    = (double) job->kernel->weigh(weights, &row->max);
    const float  keep   = before == row->max ? 1.0f : (float) exp((double) before - (double) row->max);
    row->sum  = row->sum  * (double) keep + sum;
    row->part = row->part * (double) keep + sum;
    return keep;
}

// Keys [0, n) of the block at `start`: windows that end in it are finished here, the rest stays in weights for the tile's product.
static float row_block(const struct job * job, int32_t ir, int32_t start, int32_t n, const float * logits, float * weights) {
    struct row * row = &job->rows[ir];
    int32_t hi = row->t - start + 1 < n ? row->t - start + 1 : n;
    while (hi > 0 && row->ic < job->params->n_codebook && window_start(job, row, row->ic) >= start) {
        const int32_t lo   = window_start(job, row, row->ic) - start;
        const float   keep = weigh(job, row, logits, lo, hi, weights);
        job->kernel->mul_row(job->acc + (size_t) ir * (size_t) job->width, weights, job->block_v, KEYS, job->width, &keep);
        finish_window(job, row, ir, row->ic);
        hi = lo;
    }
    if (hi > 0) {
        return weigh(job, row, logits, 0, hi, weights);
    }
    memset(weights, 0, KEYS * sizeof(*weights));
    return 1.0f;
}

//
// a chunk of queries
//

static void load_block(const struct job * job, int32_t start, int32_t n) {
    const size_t  dim_k = (size_t) job->head->dim_k;
    const size_t  dim_v = (size_t) job->head->dim_v;
    const float * k     = job->head->k + (size_t) start * dim_k;
    const float * v     = job->head->v + (size_t) start * dim_v;
    for (size_t i = 0; i < dim_k; i++) {
        for (size_t j = 0; j < KEYS; j++) {
            job->block_k[i * KEYS + j] = j < (size_t) n ? k[j * dim_k + i] : 0.0f;
        }
    }
    for (size_t j = 0; j < KEYS; j++) {
        float * to = job->block_v + j * (size_t) job->width;
        if (j < (size_t) n) {
            memcpy(to, v + j * dim_v, dim_v * sizeof(*to));
        } else {
            memset(to, 0, dim_v * sizeof(*to));
        }
    }
}

static void scan_block(const struct job * job, int32_t start, int32_t n) {
    load_block(job, start, n);
    for (int32_t ir = 0; ir < job->n_row; ir += ROWS) {
        bool any = false;
        for (int32_t r = 0; r < ROWS; r++) {
            any = any || job->rows[ir + r].t >= start;
        }
        if (!any) {
            continue;
        }
        float keep[ROWS];
        job->kernel->mul_tile(job->logits, job->queries + (size_t) ir * (size_t) job->head->dim_k, job->block_k, job->head->dim_k, KEYS, NULL);
        job->kernel->finish(job->logits, job->head->softcap);
        for (int32_t r = 0; r < ROWS; r++) {
            keep[r] = row_block(job, ir + r, start, n, job->logits + r * KEYS, job->weights + r * KEYS);
        }
        job->kernel->mul_tile(job->acc + (size_t) ir * (size_t) job->width, job->weights, job->block_v, KEYS, job->width, keep);
    }
}

static void start_rows(struct job * job, int32_t first, int32_t n) {
    const struct hwkv_trace_head * head = job->head;
    const int32_t n_used = n * head->n_q_head;
    const float * q = job->q + (size_t) first * (size_t) head->n_q_head * (size_t) head->dim_k;
    job->n_row = (n_used + ROWS - 1) / ROWS * ROWS;
    for (int32_t ir = 0; ir < job->n_row; ir++) {
        const int32_t iq = ir < n_used ? first + ir / head->n_q_head : -1;
        // no window ends among the sinks
        job->rows[ir] = (struct row) { .iq = iq, .t = iq < 0 ? -1 : job->pos[iq], .ic = job->params->n_codebook, .max = -INFINITY };
    }
    for (size_t i = 0; i < (size_t) job->n_row * (size_t) head->dim_k; i++) {
        job->queries[i] = i < (size_t) n_used * (size_t) head->dim_k ? q[i] * head->scale : 0.0f;
    }
    memset(job->acc, 0, (size_t) job->n_row * (size_t) job->width * sizeof(*job->acc));
}

// What was scanned so far are the sinks; the scan proper begins.
static void set_sinks_aside(struct job * job) {
    const size_t size = (size_t) job->n_row * (size_t) job->width * sizeof(*job->acc);
    memcpy(job->acc_sink, job->acc, size);
    memset(job->acc, 0, size);
    for (int32_t ir = 0; ir < job->n_row; ir++) {
        struct row * row = &job->rows[ir];
        *row = (struct row) { .iq = row->iq, .t = row->t, .max = -INFINITY, .max_sink = row->max, .sum_sink = row->sum };
    }
}

// Shares of the full history that the windows leave out, summed from the parts: a small share stays exact.
static void write_mass(const struct job * job, const struct row * row, int32_t ir) {
    const int32_t  n    = job->params->n_codebook;
    const int32_t  ih   = ir % job->head->n_q_head;
    const double * part = job->part + (size_t) ir * (size_t) n;
    float        * mass = job->mass + ((size_t) row->iq * (size_t) job->head->n_q_head + (size_t) ih) * (size_t) n;
    const double sinks  = log(row->sum_sink) + (double) row->max_sink;
    const double extra  = job->head->sink_logit ? (double) job->head->sink_logit[ih] : -HUGE_VAL;
    double max = fmax(sinks, extra);
    for (int32_t i = 0; i < n; i++) {
        max = fmax(max, part[i]);
    }
    double sum = exp(sinks - max) + exp(extra - max);
    for (int32_t i = 0; i < n; i++) {
        sum += exp(part[i] - max);
    }
    double left_out = 0.0;
    for (int32_t i = n - 1; i >= 0; i--) {
        mass[i] = (float) fmin(left_out / sum, 1.0);
        left_out += exp(part[i] - max);
    }
}

static void scan_chunk(struct job * job, int32_t first, int32_t n) {
    int32_t n_pos = 0;
    start_rows(job, first, n);
    for (int32_t ir = 0; ir < job->n_row; ir++) {
        n_pos = job->rows[ir].t >= n_pos ? job->rows[ir].t + 1 : n_pos;
    }
    const int32_t n_sink = hwkv_rule_n_sinks(rule_of(job, 0), n_pos); // as every finite window has them
    for (int32_t start = 0; start < n_sink; start += KEYS) {
        scan_block(job, start, n_sink - start < KEYS ? n_sink - start : KEYS);
    }
    set_sinks_aside(job);
    const int32_t last = n_pos > n_sink ? (n_pos - n_sink - 1) / KEYS : -1;
    for (int32_t ib = last; ib >= 0; ib--) {
        const int32_t start = n_sink + ib * KEYS;
        scan_block(job, start, n_pos - start < KEYS ? n_pos - start : KEYS);
    }
    for (int32_t ir = 0; ir < n * job->head->n_q_head; ir++) {
        struct row * row = &job->rows[ir];
        while (row->ic < job->params->n_codebook) {
            finish_window(job, row, ir, row->ic);
        }
        if (job->mass) {
            write_mass(job, row, ir);
        }
    }
}

//
// jobs
//

static void * run_job(void * arg) {
    struct job * job = arg;
    for (int32_t i = job->first; i < job->last; i += job->n_chunk) {
        scan_chunk(job, i, job->last - i < job->n_chunk ? job->last - i : job->n_chunk);
    }
    return NULL;
}

// the next `size` bytes after *used; NULL when only their number is asked for
static void * take(char * base, size_t * used, size_t size) {
    void * ptr = base ? base + *used : NULL;
    *used += (size + ALIGN - 1) / ALIGN * ALIGN;
    return ptr;
}

// Lays out the arrays of a job from base, which may be NULL. Returns their size.
static size_t place_job(struct job * job, char * base) {
    const size_t n_row = ((size_t) job->n_chunk * (size_t) job->head->n_q_head + ROWS - 1) / ROWS * ROWS;
    const size_t dim_k = (size_t) job->head->dim_k;
    const size_t width = (size_t) job->width;
    size_t used = 0;
    job->rows     = take(base, &used, n_row * sizeof(*job->rows));
    job->queries  = take(base, &used, n_row * dim_k * sizeof(float));
    job->acc      = take(base, &used, n_row * width * sizeof(float));
    job->acc_sink = take(base, &used, n_row * width * sizeof(float));
    job->part     = take(base, &used, n_row * (size_t) job->params->n_codebook * sizeof(double));
    job->block_k  = take(base, &used, dim_k * KEYS * sizeof(float));
    job->block_v  = take(base, &used, width * KEYS * sizeof(float));
    job->logits   = take(base, &used, ROWS * KEYS * sizeof(float));
    job->weights  = take(base, &used, ROWS * KEYS * sizeof(float));
    return used;
}

// Queries are split evenly. All memory is taken here, by the calling thread; what no thread can be had for, it does itself.
static int run_jobs(const struct job * model, int32_t n_query, int32_t n_thread, struct hwkv_error * err) {
    struct job    first = *model;
    const size_t  size  = place_job(&first, NULL);
    struct job  * jobs  = hwkv_alloc((size_t) n_thread, sizeof(*jobs));
    char        * pool  = size <= (SIZE_MAX - ALIGN) / (size_t) n_thread ? hwkv_alloc((size_t) n_thread * size + ALIGN, 1) : NULL;
    if (!jobs || !pool) {
        hwkv_free(jobs);
        hwkv_free(pool);
        return hwkv_fail(err, HWKV_ERR_NOMEM, NULL, "out of memory");
    }
    char * base = pool + (ALIGN - (uintptr_t) pool % ALIGN) % ALIGN;
    for (int32_t i = 0; i < n_thread; i++) {
        jobs[i] = *model;
        jobs[i].first = (int32_t) ((int64_t) n_query * i / n_thread);
        jobs[i].last  = (int32_t) ((int64_t) n_query * (i + 1) / n_thread);
        place_job(&jobs[i], base + (size_t) i * size);
    }
    for (int32_t i = 1; i < n_thread; i++) {
        jobs[i].started = pthread_create(&jobs[i].thread, NULL, run_job, &jobs[i]) == 0;
    }
    for (int32_t i = 0; i < n_thread; i++) {
        if (!jobs[i].started) {
            run_job(&jobs[i]);
        }
    }
    for (int32_t i = 1; i < n_thread; i++) {
        if (jobs[i].started) {
            pthread_join(jobs[i].thread, NULL);
        }
    }
    hwkv_free(jobs);
    hwkv_free(pool);
    return 0;
}

//
// arguments
//

static int check_head(const struct hwkv_trace_head * head, struct hwkv_error * err) {
    if (head->dim_k < 1 || head->dim_v < 1 || head->dim_k > DIM_MAX || head->dim_v > DIM_MAX) {
        return hwkv_fail(err, HWKV_ERR_ARG, NULL, "found head dims %d and %d, expected 1 to %d", (int) head->dim_k, (int) head->dim_v, DIM_MAX);
    }
    if (head->n_q_head < 1 || head->n_q_head > HWKV_HEAD_MAX) {
        return hwkv_fail(err, HWKV_ERR_ARG, NULL, "found %d query heads, expected 1 to %d", (int) head->n_q_head, HWKV_HEAD_MAX);
    }
    if (!head->k || !head->v || head->n_pos < 1) {
        return hwkv_fail(err, HWKV_ERR_ARG, NULL, "found a trace of %d positions%s, expected keys and values of at least one",
                         (int) head->n_pos, head->k && head->v ? "" : " without keys or values");
    }
    if (!isfinite(head->scale) || !isfinite(head->softcap) || head->softcap < 0.0f) {
        return hwkv_fail(err, HWKV_ERR_ARG, NULL, "found scale %g and softcap %g, expected finite numbers, the softcap not under 0",
                         (double) head->scale, (double) head->softcap);
    }
    for (int32_t i = 0; head->sink_logit && i < head->n_q_head; i++) {
        if (!isfinite(head->sink_logit[i])) {
            return hwkv_fail(err, HWKV_ERR_NOT_FINITE, NULL, "found sink logit %g of query head %d, expected a finite number",
                             (double) head->sink_logit[i], (int) i);
        }
    }
    return 0;
}

static int check_params(const struct hwkv_replay_params * params, struct hwkv_error * err) {
    const int32_t n = params->n_codebook;
    if (!params->codebook || n < 1 || n > HWKV_CODE_MAX) {
        return hwkv_fail(err, HWKV_ERR_ARG, NULL, "found %d windows, expected 1 to %d", (int) n, HWKV_CODE_MAX);
    }
    const struct hwkv_entry * codebook = params->codebook;
    if (codebook[n - 1].window != HWKV_FULL) {
        return hwkv_fail(err, HWKV_ERR_ARG, NULL, "found %d as the last window, expected full", (int) codebook[n - 1].window);
    }
    for (int32_t i = 1; i < n; i++) {
        // equal windows are entries that differ in type
        if (codebook[i].window < codebook[i - 1].window) {
            return hwkv_fail(err, HWKV_ERR_ARG, NULL, "found window %d after %d, expected ascending ones", (int) codebook[i].window,
                             (int) codebook[i - 1].window);
        }
    }
    if (params->sinks < 0 || params->sinks > HWKV_SINKS_MAX || params->sinks >= codebook[0].window) {
        return hwkv_fail(err, HWKV_ERR_ARG, NULL, "found %d sinks with the smallest window %d, expected 0 to %d and fewer than the window",
                         (int) params->sinks, (int) codebook[0].window, HWKV_SINKS_MAX);
    }
    if (params->n_thread < 1) {
        return hwkv_fail(err, HWKV_ERR_ARG, NULL, "found %d threads, expected at least 1", (int) params->n_thread);
    }
    return 0;
}

static bool all_finite(const float * x, size_t n) {
    uint32_t bad = 0;
    for (size_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, &x[i], sizeof(bits));
        bad |= (uint32_t) ((bits & 0x7F800000u) == 0x7F800000u);
    }
    return !bad;
}

// An infinity would reach windows that do not hold it, as 0*inf.
static int check_values(const struct hwkv_trace_head * head, const float * q, const int32_t * pos, int32_t n_query, struct hwkv_error * err) {
    int32_t n_pos = 0;
    for (int32_t i = 0; i < n_query; i++) {
        if (pos[i] < 0 || pos[i] >= head->n_pos) {
            return hwkv_fail(err, HWKV_ERR_ARG, NULL, "found query %d at position %d, expected 0 to %d", (int) i, (int) pos[i], (int) head->n_pos - 1);
        }
        n_pos = pos[i] >= n_pos ? pos[i] + 1 : n_pos;
        if (!all_finite(q + (size_t) i * (size_t) head->n_q_head * (size_t) head->dim_k, (size_t) head->n_q_head * (size_t) head->dim_k)) {
            return hwkv_fail(err, HWKV_ERR_NOT_FINITE, NULL, "found NaN or infinity in query %d, expected finite numbers", (int) i);
        }
    }
    for (int32_t i = 0; i < n_pos; i++) {
        const bool k_ok = all_finite(head->k + (size_t) i * (size_t) head->dim_k, (size_t) head->dim_k);
        if (!k_ok || !all_finite(head->v + (size_t) i * (size_t) head->dim_v, (size_t) head->dim_v)) {
            return hwkv_fail(err, HWKV_ERR_NOT_FINITE, NULL, "found NaN or infinity in the %s of position %d, expected finite numbers",
                             k_ok ? "value" : "key", (int) i);
        }
    }
    return 0;
}

int hwkv_replay_with(const struct hwkv_replay_kernel * kernel, const struct hwkv_trace_head * head, const struct hwkv_replay_params * params,
                     const float * q, const int32_t * pos, int32_t n_query, float * out, float * mass, struct hwkv_error * err) {
    if (!kernel || !head || !params || n_query < 0 || (n_query > 0 && (!q || !pos || !out))) {
        return hwkv_fail(err, HWKV_ERR_ARG, NULL, "a replay needs a trace, windows, queries and room for the outputs");
    }
    int status = check_head(head, err);
    status = status ? status : check_params(params, err);
    status = status ? status : check_values(head, q, pos, n_query, err);
    if (status || n_query == 0) {
        return status;
    }
    const int32_t n_thread = params->n_thread < n_query ? params->n_thread : n_query;
    const int32_t n_share  = n_query / n_thread + (n_query % n_thread > 0);
    const int32_t width    = (head->dim_v + HWKV_REPLAY_PAD - 1) / HWKV_REPLAY_PAD * HWKV_REPLAY_PAD;
    const size_t  q_size   = (size_t) head->n_q_head * ((size_t) head->dim_k + 2 * (size_t) width) * sizeof(float);
    const int32_t n_fit    = q_size < CHUNK_SIZE ? (int32_t) (CHUNK_SIZE / q_size) : 1;
    const struct job model = {
        .kernel = kernel, .head = head, .params = params, .q = q, .pos = pos, .out = out, .mass = mass,
        .n_chunk = n_fit < n_share ? n_fit : n_share, .width = width,
    };
    return run_jobs(&model, n_query, n_thread, err);
}

int hwkv_replay(const struct hwkv_trace_head * head, const struct hwkv_replay_params * params, const float * q, const int32_t * pos,
                int32_t n_query, float * out, float * mass, struct hwkv_error * err) {
    return hwkv_replay_with(hwkv_replay_kernel(0), head, params, q, pos, n_query, out, mass, err);
}
