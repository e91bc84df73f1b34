// Full cache and policies side by side. Per position and context: exponentials in float after subtracting the largest
// logit, sums and everything after them in double. Equal logits give a KL of exactly zero.

#include "tool-compare.h"

#include "tool-json.h"

#include "hwkv-error.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define THREADS_MAX 256

// What is known of every position that counts, in the order of the text.
struct table {
    int64_t   n;        // positions of all pieces
    double  * nll_full; // [n]
    double  * nll;      // [n_policy][n]
    double  * kl;       // [n_policy][n]
    uint8_t * same;     // [n_policy][n]
};

static bool table_init(struct table * table, int32_t n_policy, int64_t n) {
    const size_t m = (size_t) n_policy * (size_t) n;
    table->n        = n;
    table->nll_full = malloc((size_t) n * sizeof(*table->nll_full));
    table->nll      = malloc(m * sizeof(*table->nll));
    table->kl       = malloc(m * sizeof(*table->kl));
    table->same     = malloc(m);
    return table->nll_full && table->nll && table->kl && table->same;
}

static void table_free(struct table * table) {
    free(table->nll_full);
    free(table->nll);
    free(table->kl);
    free(table->same);
}

//
// one batch
//

// Rows of logits of all contexts, and where their results go.
struct job {
    struct table        * table;
    const float         * full;      // [n_row][n_vocab]
    const float * const * policy;    // [n_policy] of the same
    const llama_token   * next;      // [n_row] the tokens that follow
    int64_t               i0;        // position of the first row in the table
    int32_t               n_row;
    int32_t               n_policy;
    int32_t               n_vocab;
    int32_t               n_thread;
};

struct part {
    const struct job * job;
    int32_t            ith;
    float            * weights;  // [n_vocab]
    pthread_t          thread;
    bool               started;
};

static int32_t find_top(const float * x, int32_t n) {
    int32_t top = 0;
    for (int32_t i = 1; i < n; i++) {
        if (x[i] > x[top]) {
            top = i;
        }
    }
    return top;
}

// Log of the sum of exp(x); weights (if not NULL) become exp(x - max) and *sum their sum. Not finite if a logit is NaN or +Inf.
static double log_sum_exp(const float * x, int32_t n, float max, float * weights, double * sum) {
    double total = 0.0;
    for (int32_t i = 0; i < n; i++) {
        const float e = expf(x[i] - max);
        if (weights) {
            weights[i] = e;
        }
        total += (double) e;
    }
    if (sum) {
        *sum = total;
    }
    return (double) max + log(total);
}

static void compare_row(const struct job * job, int32_t row, float * weights) {
    struct table      * table = job->table;
    const int32_t       n     = job->n_vocab;
    const float       * x     = job->full + (size_t) row * (size_t) n;
    const int64_t       i     = job->i0 + row;
    const llama_token   next  = job->next[row];

    double sum = 0.0;
    const int32_t top = find_top(x, n);
    const double  lse = log_sum_exp(x, n, x[top], weights, &sum);
    table->nll_full[i] = lse - (double) x[next];

    for (int32_t ip = 0; ip < job->n_policy; ip++) {
        const float * y     = job->policy[ip] + (size_t) row * (size_t) n;
        const int32_t top_y = find_top(y, n);
        const double  lse_y = log_sum_exp(y, n, y[top_y], NULL, NULL);

        double dot = 0.0;
        for (int32_t k = 0; k < n; k++) {
            // a token that cannot be has a logit of -Inf in both
            dot += weights[k] > 0.0f ? (double) weights[k] * ((double) x[k] - (double) y[k]) : 0.0;
        }
        const double  kl = dot / sum - (lse - lse_y);
        const int64_t j  = (int64_t) ip * table->n + i;
        table->nll [j] = lse_y - (double) y[next];
        table->kl  [j] = kl < 0.0 ? 0.0 : kl; // rounding; NaN stays
        table->same[j] = top == top_y;
    }
}

static void * compare_part(void * arg) {
    const struct part * part = arg;
    for (int32_t row = part->ith; row < part->job->n_row; row += part->job->n_thread) {
        compare_row(part->job, row, part->weights);
    }
    return NULL;
}

// A row is done by one thread alone, so the result does not depend on their number.
static void compare(const struct job * job, struct part * parts) {
    for (int32_t i = 0; i < job->n_thread; i++) {
        parts[i].job     = job;
        parts[i].ith     = i;
        parts[i].started = i > 0 && pthread_create(&parts[i].thread, NULL, compare_part, &parts[i]) == 0;
    }
    for (int32_t i = 0; i < job->n_thread; i++) {
        if (parts[i].started) {
            pthread_join(parts[i].thread, NULL);
        } else {
            compare_part(&parts[i]);
        }
    }
}

//
// pieces
//

struct run {
    const struct tool_compare_params * params;
    struct table                    table;
    struct llama_batch              batch;
    struct part                   * parts;     // [n_thread]
    const float                  ** logits;    // [n_policy]
    int32_t                         n_thread;
    int32_t                         n_batch;
    int32_t                         n_vocab;
    int32_t                         first;     // first position that counts
    int32_t                         n_count;   // positions of a piece that count
};

static struct llama_context * context_at(const struct run * run, int32_t ic) {
    return ic == 0 ? run->params->ctx_full : run->params->ctx_policy[ic - 1];
}

static const char * context_name(const struct run * run, int32_t ic, char buf[32]) {
    if (ic == 0) {
        return "full cache";
    }
    if (run->params->names) {
        return run->params->names[ic - 1];
    }
    snprintf(buf, 32, "policy %d", ic - 1);
    return buf;
}

static bool is_stopped(const struct run * run) {
    return run->params->stop && *run->params->stop;
}

static int decode(struct run * run, int32_t is, int32_t pos, struct hwkv_error * err) {
    for (int32_t ic = 0; ic <= run->params->n_policy; ic++) {
        if (is_stopped(run)) {
            return TOOL_STOPPED;
        }
        const int res = llama_decode(context_at(run, ic), run->batch);
        if (res != 0) {
            char name[32];
            return is_stopped(run) ? TOOL_STOPPED
                 : hwkv_fail(err, HWKV_ERR_INTERNAL, NULL, "llama_decode returned %d at position %d of chunk %d (%.100s), expected 0", res, pos,
                           is + 1, context_name(run, ic, name));
        }
        tool_progress_add(run->params->progress, run->batch.n_tokens);
    }
    return 0;
}

// NaN and Inf spread into the numbers of their row.
static int check_rows(const struct run * run, const struct job * job, int32_t is, int32_t pos, struct hwkv_error * err) {
    for (int32_t row = 0; row < job->n_row; row++) {
        const int64_t i = job->i0 + row;
        for (int32_t ic = 0; ic <= job->n_policy; ic++) {
            const int64_t j  = (int64_t) (ic - 1) * job->table->n + i;
            const bool    ok = ic == 0 ? isfinite(job->table->nll_full[i]) : isfinite(job->table->nll[j]) && isfinite(job->table->kl[j]);
            if (!ok) {
                char name[32];
                return hwkv_fail(err, HWKV_ERR_NOT_FINITE, NULL,
                                    "found logits that are not finite at position %d of chunk %d (%.100s), expected numbers", pos + row, is + 1,
                                    context_name(run, ic, name));
            }
        }
    }
    return 0;
}

static int run_batch(struct run * run, int32_t is, int32_t pos, int32_t n, struct hwkv_error * err) {
    const struct tool_compare_params * params = run->params;
    const llama_token             * piece  = params->tokens + (size_t) is * (size_t) params->n_ctx;

    int32_t n_row = 0;
    run->batch.n_tokens = n;
    for (int32_t i = 0; i < n; i++) {
        run->batch.token   [i]    = piece[pos + i];
        run->batch.pos     [i]    = pos + i;
        run->batch.n_seq_id[i]    = 1;
        run->batch.seq_id  [i][0] = 0;
        run->batch.logits  [i]    = pos + i >= run->first;
        n_row += run->batch.logits[i];
    }
    int res = decode(run, is, pos, err);
    if (res != 0 || n_row == 0) {
        return res;
    }

    const int32_t pos_row = pos + n - n_row;
    for (int32_t ip = 0; ip < params->n_policy; ip++) {
        run->logits[ip] = llama_get_logits(params->ctx_policy[ip]);
    }
    const struct job job = {
        .table    = &run->table,
        .full     = llama_get_logits(params->ctx_full),
        .policy   = run->logits,
        .next     = piece + pos_row + 1,
        .i0       = (int64_t) is * run->n_count + (pos_row - run->first),
        .n_row    = n_row,
        .n_policy = params->n_policy,
        .n_vocab  = run->n_vocab,
        .n_thread = run->n_thread,
    };
    compare(&job, run->parts);
    return check_rows(run, &job, is, pos_row, err);
}

static int run_piece(struct run * run, int32_t is, struct hwkv_error * err) {
    const struct tool_compare_params * params = run->params;

    for (int32_t ic = 0; ic <= params->n_policy; ic++) {
        llama_memory_clear(llama_get_memory(context_at(run, ic)), true);
    }
    // the last token has no next one
    const int32_t n = params->n_ctx - 1;
    for (int32_t pos = 0; pos < n; pos += run->n_batch) {
        char stage[96];
        snprintf(stage, sizeof(stage), "chunk %d/%d, token %d of %d", is + 1, params->n_seq, pos, params->n_ctx);
        tool_progress_stage(params->progress, stage);
        const int res = run_batch(run, is, pos, n - pos < run->n_batch ? n - pos : run->n_batch, err);
        if (res != 0) {
            return res;
        }
    }
    return 0;
}

//
// results
//

static int compare_doubles(const void * a, const void * b) {
    const double x = *(const double *) a;
    const double y = *(const double *) b;
    return (x > y) - (x < y);
}

// Positions [i0, i0 + n) of the table under policy ip. sorted: room for n values.
static struct tool_compare_stats summarise(const struct table * table, int32_t ip, int64_t i0, int64_t n, double * sorted) {
    const int64_t j0 = (int64_t) ip * table->n + i0;
    double  nll_full = 0.0, nll = 0.0, kl = 0.0;
    int64_t same = 0;

    for (int64_t i = 0; i < n; i++) {
        nll_full += table->nll_full[i0 + i];
        nll      += table->nll [j0 + i];
        kl       += table->kl  [j0 + i];
        same     += table->same[j0 + i];
    }
    memcpy(sorted, table->kl + j0, (size_t) n * sizeof(*sorted));
    qsort(sorted, (size_t) n, sizeof(*sorted), compare_doubles);

    return (struct tool_compare_stats) {
        .ppl_full   = exp(nll_full / (double) n),
        .ppl_policy = exp(nll / (double) n),
        .kl_mean    = kl / (double) n,
        .kl_p99     = sorted[(99 * n + 99) / 100 - 1],
        .kl_max     = sorted[n - 1],
        .same_top   = (double) same / (double) n,
    };
}

static void show_piece(const struct run * run, const struct tool_compare_result * results, int32_t is) {
    for (int32_t ip = 0; ip < run->params->n_policy; ip++) {
        const struct tool_compare_stats * s = &results[ip].chunks[is];
        char name[32];
        tool_progress_line(run->params->progress, "chunk %d/%d, %s: perplexity %.4f -> %.4f, KL %.6f, same top %.2f%%", is + 1, run->params->n_seq,
                         context_name(run, ip + 1, name), s->ppl_full, s->ppl_policy, s->kl_mean, 100.0 * s->same_top);
    }
}

static int run_all(struct run * run, struct tool_compare_result * out, double * sorted, struct hwkv_error * err) {
    int     res  = 0;
    int32_t done = 0;
    for (; done < run->params->n_seq; done++) {
        res = run_piece(run, done, err);
        if (res != 0) {
            break;
        }
        for (int32_t ip = 0; ip < run->params->n_policy; ip++) {
            out[ip].chunks[done] = summarise(&run->table, ip, (int64_t) done * run->n_count, run->n_count, sorted);
        }
        show_piece(run, out, done);
    }
    const int64_t n = (int64_t) done * run->n_count;
    for (int32_t ip = 0; ip < run->params->n_policy && res >= 0; ip++) {
        out[ip].n_chunk     = done;
        out[ip].n_positions = n;
        if (done > 0) {
            out[ip].all = summarise(&run->table, ip, 0, n, sorted);
        }
    }
    return res;
}

//
// the whole
//

static int check_params(const struct run * run, struct hwkv_error * err) {
    const struct tool_compare_params * params = run->params;
    if (params->n_policy < 1 || params->n_seq < 1 || params->n_ctx < 8) {
        return hwkv_fail(err, HWKV_ERR_ARG, NULL, "found %d policies, %d pieces of %d tokens, expected at least 1, 1 and 8", params->n_policy,
                       params->n_seq, params->n_ctx);
    }
    for (int32_t ic = 0; ic <= params->n_policy; ic++) {
        if (llama_n_ctx(context_at(run, ic)) < (uint32_t) params->n_ctx) {
            return hwkv_fail(err, HWKV_ERR_ARG, NULL, "found a context of %u positions, expected at least %d", llama_n_ctx(context_at(run, ic)),
                           params->n_ctx);
        }
    }
    return 0;
}

static bool run_init(struct run * run) {
    const struct tool_compare_params * params = run->params;

    run->n_vocab = llama_vocab_n_tokens(llama_model_get_vocab(llama_get_model(params->ctx_full)));
    run->first   = params->n_ctx - params->n_ctx / 4;
    run->n_count = params->n_ctx - 1 - run->first;
    run->n_batch = params->n_ctx;
    for (int32_t ic = 0; ic <= params->n_policy; ic++) {
        const int32_t n = (int32_t) llama_n_ubatch(context_at(run, ic));
        run->n_batch = n < run->n_batch ? n : run->n_batch;
    }
    run->n_thread = params->n_thread < 1 ? 1 : params->n_thread > THREADS_MAX ? THREADS_MAX : params->n_thread;
    run->batch    = llama_batch_init(run->n_batch, 0, 1);
    run->parts    = calloc((size_t) run->n_thread, sizeof(*run->parts));
    run->logits   = calloc((size_t) params->n_policy, sizeof(*run->logits));
    bool ok = table_init(&run->table, params->n_policy, (int64_t) params->n_seq * run->n_count) && run->parts && run->logits;
    for (int32_t i = 0; i < run->n_thread && ok; i++) {
        run->parts[i].weights = malloc((size_t) run->n_vocab * sizeof(float));
        ok = run->parts[i].weights != NULL;
    }
    return ok;
}

static void run_free(struct run * run) {
    for (int32_t i = 0; i < run->n_thread && run->parts; i++) {
        free(run->parts[i].weights);
    }
    free(run->parts);
    free(run->logits);
    table_free(&run->table);
    llama_batch_free(run->batch);
}

double tool_compare_work(const struct tool_compare_params * params) {
    return (double) params->n_seq * (params->n_ctx - 1) * (params->n_policy + 1);
}

int tool_compare(struct tool_compare_result * out, const struct tool_compare_params * params, struct hwkv_error * err) {
    struct run run = { .params = params };

    memset(out, 0, (size_t) (params->n_policy > 0 ? params->n_policy : 0) * sizeof(*out));
    int res = check_params(&run, err);
    if (res != 0) {
        return res;
    }
    bool     ok     = run_init(&run);
    double * sorted = malloc((size_t) params->n_seq * (size_t) run.n_count * sizeof(*sorted));
    for (int32_t ip = 0; ip < params->n_policy; ip++) {
        out[ip].chunks = calloc((size_t) params->n_seq, sizeof(*out[ip].chunks));
        ok = ok && out[ip].chunks;
    }
    res = ok && sorted ? run_all(&run, out, sorted, err) : hwkv_fail(err, HWKV_ERR_NOMEM, NULL, "out of memory");
    for (int32_t ip = 0; ip < params->n_policy && res < 0; ip++) {
        tool_compare_result_free(&out[ip]);
    }
    free(sorted);
    run_free(&run);
    return res;
}

void tool_compare_result_free(struct tool_compare_result * result) {
    free(result->chunks);
    *result = (struct tool_compare_result) { 0 };
}

double tool_compare_kl_error(const struct tool_compare_result * result) {
    const int32_t n = result->n_chunk;
    if (n < 2) {
        return NAN;
    }
    double mean = 0.0, var = 0.0;
    for (int32_t i = 0; i < n; i++) {
        mean += result->chunks[i].kl_mean / n;
    }
    for (int32_t i = 0; i < n; i++) {
        const double d = result->chunks[i].kl_mean - mean;
        var += d * d / (n - 1);
    }
    return sqrt(var / n);
}

int32_t tool_compare_n_chat(const struct llama_vocab * vocab, const llama_token * tokens, int32_t n_seq, int32_t n_ctx) {
    int32_t n_chat = 0;
    for (int32_t is = 0; is < n_seq; is++) {
        const llama_token * piece = tokens + (size_t) is * (size_t) n_ctx;
        int32_t i = 1;
        while (i < n_ctx && !llama_vocab_is_control(vocab, piece[i])) {
            i++;
        }
        n_chat += i < n_ctx;
    }
    return n_chat;
}

static bool add_measure(struct hwkv_json * object, const char * key, double value) {
    return hwkv_json_add(object, key, tool_json_measure(value));
}

bool tool_compare_add_stats(struct hwkv_json * object, const struct tool_compare_stats * stats) {
    struct hwkv_json * perplexity = hwkv_json_new_object();
    struct hwkv_json * kl         = hwkv_json_new_object();

    bool ok = add_measure(perplexity, "full",   stats->ppl_full) &&
              add_measure(perplexity, "policy", stats->ppl_policy) &&
              add_measure(perplexity, "change", stats->ppl_policy / stats->ppl_full - 1.0) &&
              add_measure(kl, "mean", stats->kl_mean) &&
              add_measure(kl, "p99",  stats->kl_p99) &&
              add_measure(kl, "max",  stats->kl_max);
    ok = hwkv_json_add(object, "perplexity", perplexity) && ok;
    ok = hwkv_json_add(object, "kl", kl) && ok;
    return add_measure(object, "same_top", stats->same_top) && ok;
}

struct hwkv_json * tool_compare_json(const struct tool_compare_result * result, const struct tool_text * text, int32_t n_ctx, int32_t n_chat) {
    struct hwkv_json * object = hwkv_json_new_object();

    const bool ok = hwkv_json_add(object, "source",      tool_json_text(text->source)) &&
                    hwkv_json_add(object, "text_sha256", hwkv_json_new_string(text->sha256)) &&
                    hwkv_json_add(object, "context",     hwkv_json_new_int(n_ctx)) &&
                    hwkv_json_add(object, "n_seq",       hwkv_json_new_int(result->n_chunk)) &&
                    hwkv_json_add(object, "n_chat",      hwkv_json_new_int(n_chat)) &&
                    hwkv_json_add(object, "n_positions", hwkv_json_new_int(result->n_positions)) &&
                    tool_compare_add_stats(object, &result->all);
    if (!ok) {
        hwkv_json_free(object);
        return NULL;
    }
    return object;
}
