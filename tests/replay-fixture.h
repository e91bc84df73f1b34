// A trace made from a seed, with what a slow double-precision attention says about it.

#ifndef REPLAY_FIXTURE_H
#define REPLAY_FIXTURE_H

#include "hwkv.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct shape {
    int32_t n_pos;
    int32_t n_query;
    int32_t n_q_head;
    int32_t dim_k;
    int32_t dim_v;
    int32_t sinks;
    int32_t codebook[8];   // up to HWKV_FULL
    float   scale;         // 0: 1/sqrt(dim_k)
    float   softcap;
    bool    sink_logit;
    int32_t whole;         // > 0: q and k are whole numbers up to this, so that logits are exact in float
};

struct problem {
    struct hwkv_trace_head    head;
    struct hwkv_replay_params params;
    int32_t   n_query;
    int32_t   n_out;       // query heads of all queries, times windows
    float   * q;
    float   * k;
    float   * v;
    float   * sink_logit;
    int32_t * pos;
    float   * out;
    float   * mass;
    double  * expected_out;
    double  * expected_mass;
    struct hwkv_entry codebook[8];
};

static inline uint64_t random_bits(uint64_t * state) {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

static inline int32_t random_int(uint64_t * state, int32_t lo, int32_t hi) {
    return lo + (int32_t) (random_bits(state) % (uint64_t) (hi - lo + 1));
}

static inline float * random_floats(uint64_t * state, size_t n, float size, int32_t whole) {
    float * x = malloc(n * sizeof(*x));
    for (size_t i = 0; x && i < n; i++) {
        const float unit = (float) (int32_t) (random_bits(state) >> 40) / 8388608.0f - 1.0f;
        x[i] = whole > 0 ? (float) random_int(state, -whole, whole) : size * unit;
    }
    return x;
}

static inline struct problem * problem_new(const struct shape * s, uint64_t seed) {
    struct problem * p = calloc(1, sizeof(*p));
    uint64_t state = seed * UINT64_C(0x9E3779B97F4A7C15) + 1;
    int32_t  n     = 1;
    while (s->codebook[n - 1] != HWKV_FULL) {
        n++;
    }
    for (int32_t i = 0; i < n; i++) {
        p->codebook[i] = hwkv_entry_of_window(s->codebook[i]);
    }
    const size_t n_qh = (size_t) s->n_query * (size_t) s->n_q_head;
    p->n_query    = s->n_query;
    p->n_out      = (int32_t) n_qh * n;
    p->q          = random_floats(&state, n_qh * (size_t) s->dim_k, 2.0f, s->whole);
    p->k          = random_floats(&state, (size_t) s->n_pos * (size_t) s->dim_k, 2.0f, s->whole);
    p->v          = random_floats(&state, (size_t) s->n_pos * (size_t) s->dim_v, 1.0f, 0);
    p->sink_logit = random_floats(&state, (size_t) s->n_q_head, 3.0f, 0);
    p->pos        = malloc((size_t) s->n_query * sizeof(*p->pos));
    p->out        = malloc((size_t) p->n_out * (size_t) s->dim_v * sizeof(*p->out));
    p->mass       = malloc((size_t) p->n_out * sizeof(*p->mass));
    p->expected_out  = malloc((size_t) p->n_out * (size_t) s->dim_v * sizeof(*p->expected_out));
    p->expected_mass = malloc((size_t) p->n_out * sizeof(*p->expected_mass));
    if (!p->q || !p->k || !p->v || !p->sink_logit || !p->pos || !p->out || !p->mass || !p->expected_out || !p->expected_mass) {
        fprintf(stderr, "out of memory\n");
        exit(1);
    }
    // the first and the last position are always among them, in no order
    for (int32_t i = 0; i < s->n_query; i++) {
        p->pos[i] = i == 0 ? s->n_pos - 1 : i == 1 ? 0 : random_int(&state, 0, s->n_pos - 1);
    }
    p->params = (struct hwkv_replay_params) { .codebook = p->codebook, .n_codebook = n, .sinks = s->sinks, .n_thread = 1 };
    p->head   = (struct hwkv_trace_head) {
        .n_pos = s->n_pos, .n_q_head = s->n_q_head, .dim_k = s->dim_k, .dim_v = s->dim_v, .k = p->k, .v = p->v,
        .scale = s->scale != 0.0f ? s->scale : 1.0f / sqrtf((float) s->dim_k), .softcap = s->softcap, .sink_logit = s->sink_logit ? p->sink_logit : NULL,
    };
    return p;
}

static inline void problem_free(struct problem * p) {
    free(p->q);
    free(p->k);
    free(p->v);
    free(p->sink_logit);
    free(p->pos);
    free(p->out);
    free(p->mass);
    free(p->expected_out);
    free(p->expected_mass);
    free(p);
}

static inline bool oracle_sees(const struct problem * p, int32_t t, int32_t ic, int32_t j) {
    const int64_t w = p->codebook[ic].window;
    return j <= t && (t + 1 <= w || j < p->params.sinks || j > t - (w - p->params.sinks));
}

// Outputs of query iq, query head ih under every window, and the mass they omit.
static inline void oracle(const struct problem * p, int32_t iq, int32_t ih, double * out, double * mass) {
    const struct hwkv_trace_head * h = &p->head;
    const double  extra = h->sink_logit ? (double) h->sink_logit[ih] : -HUGE_VAL;
    const float * q     = p->q + ((size_t) iq * (size_t) h->n_q_head + (size_t) ih) * (size_t) h->dim_k;
    double      * z     = malloc((size_t) h->n_pos * sizeof(*z));
    for (int32_t j = 0; j <= p->pos[iq]; j++) {
        z[j] = 0.0;
        for (int32_t i = 0; i < h->dim_k; i++) {
            z[j] += (double) q[i] * (double) p->k[(size_t) j * (size_t) h->dim_k + (size_t) i];
        }
        z[j] *= (double) h->scale;
        z[j] = h->softcap > 0.0f ? (double) h->softcap * tanh(z[j] / (double) h->softcap) : z[j];
    }
    for (int32_t ic = 0; ic < p->params.n_codebook; ic++, out += h->dim_v, mass++) {
        double max[2] = { extra, extra };  // of the full history, and of what the window sees
        for (int32_t j = 0; j <= p->pos[iq]; j++) {
            max[0] = fmax(max[0], z[j]);
            max[1] = oracle_sees(p, p->pos[iq], ic, j) ? fmax(max[1], z[j]) : max[1];
        }
        double sum[2] = { exp(extra - max[0]), exp(extra - max[1]) };
        double omitted = 0.0;
        memset(out, 0, (size_t) h->dim_v * sizeof(*out));
        for (int32_t j = 0; j <= p->pos[iq]; j++) {
            const bool   seen   = oracle_sees(p, p->pos[iq], ic, j);
            const double weight = exp(z[j] - max[1]);
            sum[0]  += exp(z[j] - max[0]);
            omitted += seen ? 0.0 : exp(z[j] - max[0]);
            sum[1]  += seen ? weight : 0.0;
            for (int32_t i = 0; seen && i < h->dim_v; i++) {
                out[i] += weight * (double) p->v[(size_t) j * (size_t) h->dim_v + (size_t) i];
            }
        }
        for (int32_t i = 0; i < h->dim_v; i++) {
            out[i] /= sum[1];
        }
        *mass = omitted / sum[0];
    }
    free(z);
}

static inline void problem_solve(struct problem * p) {
    const size_t n = (size_t) p->params.n_codebook;
    for (int32_t i = 0; i < p->n_query * p->head.n_q_head; i++) {
        oracle(p, i / p->head.n_q_head, i % p->head.n_q_head, p->expected_out + (size_t) i * n * (size_t) p->head.dim_v, p->expected_mass + (size_t) i * n);
    }
}

#endif // REPLAY_FIXTURE_H
