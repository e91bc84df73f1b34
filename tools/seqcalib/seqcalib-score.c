// From a trace to scores: replay of every candidate window, compared with the replayed full history.

#include "seqcalib-sweep.h"

#include "hwkv-error.h"

#include <stdlib.h>
#include <string.h>

int sc_replay_head(const struct sc_input * in, const struct sc_trace * trace, int32_t ih, float ** out, float ** mass, struct hwkv_error * err) {
    const struct llama_hwkv_trace_shape * s = &trace->shape;
    const int32_t ratio = s->n_head/s->n_head_kv;
    const size_t  width = (size_t) ratio*(size_t) s->head_dim_k;
    const size_t  n_out = (size_t) trace->n_query*(size_t) ratio*(size_t) in->n_codebook;

    float * q = malloc(sizeof(float)*(size_t) trace->n_query*width);
    *out = malloc(sizeof(float)*n_out*(size_t) s->head_dim_v);
    if (mass) {
        *mass = malloc(sizeof(float)*n_out);
    }

    int status = HWKV_OK;
    if (!q || !*out || (mass && !*mass)) {
        status = hwkv_fail(err, HWKV_ERR_NOMEM, NULL, "out of memory for the replay");
    } else {
        for (int32_t iq = 0; iq < trace->n_query; iq++) {
            memcpy(q + (size_t) iq*width, trace->q + ((size_t) iq*(size_t) s->n_head_kv + (size_t) ih)*width, sizeof(float)*width);
        }
        const struct hwkv_trace_head head = {
            .n_pos      = in->n_ctx,
            .n_q_head   = ratio,
            .dim_k      = s->head_dim_k,
            .dim_v      = s->head_dim_v,
            .k          = trace->k + (size_t) ih*(size_t) in->n_ctx*(size_t) s->head_dim_k,
            .v          = trace->v + (size_t) ih*(size_t) in->n_ctx*(size_t) s->head_dim_v,
            .scale      = s->scale,
            .softcap    = s->softcap,
            .sink_logit = trace->sink_logits ? trace->sink_logits + (size_t) ih*(size_t) ratio : NULL,
        };
        const struct hwkv_replay_params params = {
            .codebook   = in->codebook,
            .n_codebook = in->n_codebook,
            .sinks      = in->sinks,
            .n_thread   = in->n_thread,
        };
        status = hwkv_replay(&head, &params, q, trace->pos, trace->n_query, *out, mass ? *mass : NULL, err);
    }

    free(q);
    if (status != HWKV_OK) {
        free(*out);
        *out = NULL;
        if (mass) {
            free(*mass);
            *mass = NULL;
        }
    }
    return status;
}

void sc_score_head(const struct sc_input * in, const struct sc_trace * trace, const float * out, double * sums) {
    const struct llama_hwkv_trace_shape * s = &trace->shape;
    const int64_t n_row = (int64_t) trace->n_query*(s->n_head/s->n_head_kv);

    for (int64_t i = 0; i < n_row; i++) {
        const float * row  = out + i*in->n_codebook*s->head_dim_v;
        const float * full = row + (int64_t) (in->n_codebook - 1)*s->head_dim_v;
        for (int32_t ic = 0; ic < in->n_codebook - 1; ic++) {
            sums[ic] += hwkv_cosine(row + (int64_t) ic*s->head_dim_v, full, s->head_dim_v);
        }
        sums[in->n_codebook - 1] += 1.0;
    }
}

double sc_check_head(const struct sc_input * in, const struct sc_trace * trace, int32_t ih, const float * out) {
    const struct llama_hwkv_trace_shape * s = &trace->shape;
    const int32_t ratio = s->n_head/s->n_head_kv;
    const int32_t iq0   = trace->n_query - trace->n_check;

    double sum = 0.0;
    for (int32_t i = 0; i < trace->n_check; i++) {
        for (int32_t j = 0; j < ratio; j++) {
            const float * full   = out + (((int64_t) (iq0 + i)*ratio + j)*in->n_codebook + in->n_codebook - 1)*s->head_dim_v;
            const float * traced = trace->out + ((int64_t) i*s->n_head + (int64_t) ih*ratio + j)*s->head_dim_v;
            sum += hwkv_cosine(full, traced, s->head_dim_v);
        }
    }
    return sum/((double) trace->n_check*ratio);
}
