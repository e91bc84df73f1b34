// From a trace to scores: every candidate is replayed and compared with the replayed reference. What a head puts out under its entries is
// at hand here, for other measures than the cosine too.

#include "seqcalib-round.h"
#include "seqcalib-sweep.h"

#include "tool-llama.h"

#include "hwkv-error.h"

#include <stdlib.h>
#include <string.h>

//
// one KV head of a trace
//

struct head {
    const struct sc_input * in;
    const struct sc_trace * trace;
    int32_t ih;
    int32_t first; // query that is replayed
    float * q;     // its queries from there on: [n_query - first][ratio][dim_k]
    float * k;     // room for rounded rows, taken when it is needed
    float * v;
};

static int head_init(struct head * head, const struct sc_input * in, const struct sc_trace * trace, int32_t ih, int32_t first, struct hwkv_error * err) {
    const struct llama_hwkv_trace_shape * s = &trace->shape;
    const size_t width = (size_t) (s->n_head/s->n_head_kv)*(size_t) s->head_dim_k;

    *head = (struct head) { .in = in, .trace = trace, .ih = ih, .first = first };
    head->q = malloc(sizeof(float)*(size_t) (trace->n_query - first)*width);
    if (!head->q) {
        return hwkv_fail(err, HWKV_ERR_NOMEM, NULL, "out of memory for the replay");
    }
    for (int32_t iq = first; iq < trace->n_query; iq++) {
        memcpy(head->q + (size_t) (iq - first)*width, trace->q + ((size_t) iq*(size_t) s->n_head_kv + (size_t) ih)*width, sizeof(float)*width);
    }
    return HWKV_OK;
}

static void head_free(struct head * head) {
    free(head->q);
    free(head->k);
    free(head->v);
}

static int round_rows(const float ** rows, float ** room, int64_t n_row, int32_t dim, const struct sc_rounding * rounding, struct hwkv_error * err) {
    if (!*room) {
        *room = malloc(sizeof(float)*(size_t) n_row*(size_t) dim);
    }
    if (!*room) {
        return hwkv_fail(err, HWKV_ERR_NOMEM, NULL, "out of memory for rounded keys and values");
    }
    const int status = sc_round_rows(*room, *rows, n_row, dim, rounding, err);
    *rows = *room;
    return status;
}

// [n_ctx][dim] as the cache of a scan's types holds them
static int held_k(const float ** k, struct head * head, const struct sc_scan * scan, struct hwkv_error * err) {
    const int32_t dim = head->trace->shape.head_dim_k;
    const struct sc_rounding rounding = { tool_ggml_type(scan->types.k), scan->n_rot_k };

    *k = head->trace->k + (int64_t) head->ih*head->in->n_ctx*dim;
    return head->trace->exact_k ? round_rows(k, &head->k, head->in->n_ctx, dim, &rounding, err) : HWKV_OK;
}

static int held_v(const float ** v, struct head * head, const struct sc_scan * scan, struct hwkv_error * err) {
    const int32_t dim = head->trace->shape.head_dim_v;
    const struct sc_rounding rounding = { tool_ggml_type(scan->types.v), scan->n_rot_v };

    *v = head->trace->v + (int64_t) head->ih*head->in->n_ctx*dim;
    return head->trace->exact_v ? round_rows(v, &head->v, head->in->n_ctx, dim, &rounding, err) : HWKV_OK;
}

// windows: [scan->n]
static int replay(struct head * head, const struct sc_scan * scan, const struct hwkv_entry * windows, float * out, float * mass, struct hwkv_error * err) {
    const struct sc_trace * trace = head->trace;
    const struct llama_hwkv_trace_shape * s = &trace->shape;
    const int32_t ratio = s->n_head/s->n_head_kv;

    struct hwkv_trace_head traced = {
        .n_pos      = head->in->n_ctx,
        .n_q_head   = ratio,
        .dim_k      = s->head_dim_k,
        .dim_v      = s->head_dim_v,
        .scale      = s->scale,
        .softcap    = s->softcap,
        .sink_logit = trace->sink_logits ? trace->sink_logits + (size_t) head->ih*(size_t) ratio : NULL,
    };
    int status = held_k(&traced.k, head, scan, err);
    if (status == HWKV_OK) {
        status = held_v(&traced.v, head, scan, err);
    }
    const struct hwkv_replay_params params = { .codebook = windows, .n_codebook = scan->n, .sinks = head->in->sinks, .n_thread = head->in->n_thread };
    return status == HWKV_OK ? hwkv_replay(&traced, &params, head->q, trace->pos + head->first, trace->n_query - head->first, out, mass, err) : status;
}

//
// outputs
//

const float * sc_output_row(const struct sc_outputs * outputs, int64_t row, int32_t ic) {
    const struct sc_scan * scan = &outputs->codebook->scans[outputs->codebook->scan[ic]];
    return outputs->rows + ((int64_t) outputs->n_row*scan->first + row*scan->n + outputs->codebook->slot[ic])*outputs->dim;
}

float sc_output_mass(const struct sc_outputs * outputs, int64_t row, int32_t ic) {
    const struct sc_scan * scan = &outputs->codebook->scans[outputs->codebook->scan[ic]];
    return outputs->mass[(int64_t) outputs->n_row*scan->first + row*scan->n + outputs->codebook->slot[ic]];
}

int sc_replay_head(struct sc_outputs * outputs, const struct sc_input * in, const struct sc_trace * trace, int32_t ih, bool with_mass, struct hwkv_error * err) {
    const struct sc_codebook * codebook = in->codebook;
    const int32_t n_row = trace->n_query*(trace->shape.n_head/trace->shape.n_head_kv);
    const size_t  n     = (size_t) n_row*(size_t) codebook->n;

    *outputs = (struct sc_outputs) { .codebook = codebook, .n_row = n_row, .dim = trace->shape.head_dim_v };
    outputs->rows = malloc(sizeof(float)*n*(size_t) outputs->dim);
    outputs->mass = with_mass ? malloc(sizeof(float)*n) : NULL;

    struct head head;
    int status = head_init(&head, in, trace, ih, 0, err);
    if (status == HWKV_OK && (!outputs->rows || (with_mass && !outputs->mass))) {
        status = hwkv_fail(err, HWKV_ERR_NOMEM, NULL, "out of memory for the replay");
    }
    for (int32_t is = 0; is < codebook->n_scan && status == HWKV_OK; is++) {
        const struct sc_scan * scan = &codebook->scans[is];
        const size_t first = (size_t) n_row*(size_t) scan->first;
        status = replay(&head, scan, codebook->windows + scan->first, outputs->rows + first*(size_t) outputs->dim, with_mass ? outputs->mass + first : NULL, err);
    }
    head_free(&head);
    if (status != HWKV_OK) {
        sc_outputs_free(outputs);
    }
    return status;
}

void sc_outputs_free(struct sc_outputs * outputs) {
    free(outputs->rows);
    free(outputs->mass);
    memset(outputs, 0, sizeof(*outputs));
}

size_t sc_replay_size(const struct sc_input * in, const struct hwkv_layer * layer, int32_t n_query) {
    const size_t n_row   = (size_t) n_query*(size_t) (layer->n_head/layer->n_head_kv);
    const size_t rows    = n_row*(size_t) (layer->head_dim_k + in->codebook->n*layer->head_dim_v);
    const size_t rounded = in->codebook->typed ? (size_t) in->n_ctx*(size_t) (layer->head_dim_k + layer->head_dim_v) : 0;
    return sizeof(float)*(rows + rounded);
}

int sc_reference_v(float ** v, const struct sc_input * in, const struct sc_trace * trace, int32_t ih, struct hwkv_error * err) {
    const struct sc_codebook * codebook = in->codebook;
    const size_t size = sizeof(float)*(size_t) in->n_ctx*(size_t) trace->shape.head_dim_v;

    *v = NULL;
    struct head head = { .in = in, .trace = trace, .ih = ih };
    const float * rows;
    int status = held_v(&rows, &head, &codebook->scans[codebook->scan[codebook->reference]], err);
    if (status == HWKV_OK) {
        *v = malloc(size);
        status = *v ? HWKV_OK : hwkv_fail(err, HWKV_ERR_NOMEM, NULL, "out of memory");
    }
    if (status == HWKV_OK) {
        memcpy(*v, rows, size);
    }
    head_free(&head);
    return status;
}

//
// measures
//

void sc_score_head(const struct sc_outputs * outputs, double * sums) {
    const struct sc_codebook * codebook = outputs->codebook;

    for (int64_t i = 0; i < outputs->n_row; i++) {
        const float * full = sc_output_row(outputs, i, codebook->reference);
        for (int32_t ic = 0; ic < codebook->n; ic++) {
            sums[ic] += ic == codebook->reference ? 1.0 : hwkv_cosine(sc_output_row(outputs, i, ic), full, outputs->dim);
        }
    }
}

int sc_check_head(double * same, const struct sc_input * in, const struct sc_trace * trace, int32_t ih, struct hwkv_error * err) {
    // as the attention read it
    const struct sc_scan    scan = { .types = { HWKV_TYPE_F32, HWKV_TYPE_F32 }, .n = 1 };
    const struct hwkv_entry full = hwkv_entry_of_window(HWKV_FULL);

    const int32_t dim   = trace->shape.head_dim_v;
    const int32_t ratio = trace->shape.n_head/trace->shape.n_head_kv;

    struct head head;
    int status = head_init(&head, in, trace, ih, trace->n_query - trace->n_check, err);
    float * out = status == HWKV_OK ? malloc(sizeof(float)*(size_t) trace->n_check*(size_t) ratio*(size_t) dim) : NULL;
    if (status == HWKV_OK && !out) {
        status = hwkv_fail(err, HWKV_ERR_NOMEM, NULL, "out of memory for the replay");
    }
    if (status == HWKV_OK) {
        status = replay(&head, &scan, &full, out, NULL, err);
    }
    if (status == HWKV_OK) {
        double sum = 0.0;
        for (int32_t i = 0; i < trace->n_check; i++) {
            for (int32_t j = 0; j < ratio; j++) {
                const float * traced = trace->out + ((int64_t) i*trace->shape.n_head + (int64_t) ih*ratio + j)*dim;
                sum += hwkv_cosine(out + ((int64_t) i*ratio + j)*dim, traced, dim);
            }
        }
        *same = sum/((double) trace->n_check*ratio);
    }
    free(out);
    head_free(&head);
    return status;
}
