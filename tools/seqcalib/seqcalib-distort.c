#include "seqcalib-distort.h"

#include "hwkv-error.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

// inputs of the output projection that a KV head stands for: those of its query heads
static int32_t n_in(const struct sc_trace * trace) {
    return trace->shape.n_head/trace->shape.n_head_kv*trace->shape.head_dim_v;
}

static int no_memory(struct hwkv_error * err) {
    return hwkv_fail(err, HWKV_ERR_NOMEM, NULL, "out of memory for the losses of a layer");
}

int sc_distort_init(struct sc_distort * d, const struct sc_input * in, struct hwkv_error * err) {
    int32_t n_head_max = 0;
    for (int32_t jl = 0; jl < in->geo->n_full; jl++) {
        n_head_max = in->geo->layers[jl].n_head_kv > n_head_max ? in->geo->layers[jl].n_head_kv : n_head_max;
    }
    *d = (struct sc_distort) { .in = in };
    d->n    = (size_t) n_head_max*(size_t) in->codebook->n;
    d->sums = calloc(d->n, sizeof(*d->sums));
    return d->sums ? HWKV_OK : no_memory(err);
}

static void free_sequence(struct sc_distort * d) {
    free(d->squares);
    free(d->sum);
    free(d->gram);
    free(d->row);
    free(d->image);
    d->squares = NULL;
    d->sum = d->gram = d->row = d->image = NULL;
}

void sc_distort_free(struct sc_distort * d) {
    free_sequence(d);
    free(d->sums);
    memset(d, 0, sizeof(*d));
}

int sc_distort_begin(struct sc_distort * d, int32_t iseq, const struct sc_trace * trace, struct hwkv_error * err) {
    const struct llama_hwkv_trace_shape * s = &trace->shape;
    const size_t n = (size_t) n_in(trace);

    if (!trace->projection.known) {
        return hwkv_fail(err, HWKV_ERR_VALUE, NULL, "how the attention joins the residual stream is not known for this architecture, only points by --tau can be made");
    }
    if (iseq == 0) {
        memset(d->sums, 0, sizeof(*d->sums)*d->n);
        d->n_sum = 0;
    }
    free_sequence(d);
    d->trace   = trace;
    d->squares = calloc((size_t) s->n_head_kv*(size_t) trace->n_query*(size_t) d->in->codebook->n, sizeof(*d->squares));
    d->sum     = calloc((size_t) trace->n_query*(size_t) s->n_embd, sizeof(*d->sum));
    d->gram    = malloc(sizeof(float)*n*n);
    d->row     = malloc(sizeof(float)*n);
    d->image   = malloc(sizeof(float)*n);
    return d->squares && d->sum && d->gram && d->row && d->image ? HWKV_OK : no_memory(err);
}

size_t sc_distort_size(const struct sc_input * in, const struct hwkv_layer * layer, int32_t n_query) {
    const size_t n_embd = (size_t) llama_model_n_embd(in->model);
    const size_t width  = (size_t) layer->n_head*(size_t) layer->head_dim_v;
    const size_t n      = width/(size_t) layer->n_head_kv;
    const size_t n_row  = (size_t) n_query;

    // weight and what the tracer gives for a chunk; gate, stream and sum of every query; gram
    const size_t floats = n_embd*(width + 1) + (size_t) in->n_ubatch*(width > n_embd ? width : n_embd) + n_row*(width + 2*n_embd) + n*n;
    return sizeof(float)*floats + sizeof(double)*(size_t) layer->n_head_kv*n_row*(size_t) in->codebook->n;
}

// to += by*from
static void add(float * restrict to, const float * restrict from, float by, int32_t n) {
    for (int32_t i = 0; i < n; i++) {
        to[i] += by*from[i];
    }
}

// |factors*weight*x|^2 is x*gram*x: far fewer steps than there are rows in the weight.
static void make_gram(struct sc_distort * d, int32_t ih) {
    const struct llama_hwkv_trace_shape * s = &d->trace->shape;
    const struct sc_projection * p = &d->trace->projection;
    const int32_t n     = n_in(d->trace);
    const int64_t width = (int64_t) s->n_head*s->head_dim_v;

    memset(d->gram, 0, sizeof(float)*(size_t) n*(size_t) n);
    for (int32_t i = 0; i < s->n_embd; i++) {
        const float * w = p->weight + i*width + (int64_t) ih*n;
        for (int32_t j = 0; j < n; j++) {
            add(d->gram + (int64_t) j*n, w, w[j]*p->factors[i]*p->factors[i], n);
        }
    }
}

static double length_square(const float * v, int32_t n) {
    double res = 0.0;
    for (int32_t i = 0; i < n; i++) {
        res += (double) v[i]*(double) v[i];
    }
    return res;
}

// How far the row moves the stream.
static double square(struct sc_distort * d) {
    const int32_t n = n_in(d->trace);
    memset(d->image, 0, sizeof(float)*(size_t) n);
    for (int32_t i = 0; i < n; i++) {
        add(d->image, d->gram + (int64_t) i*n, d->row[i], n);
    }
    double res = 0.0;
    for (int32_t i = 0; i < n; i++) {
        res += (double) d->image[i]*(double) d->row[i];
    }
    return res > 0.0 ? res : 0.0;
}

// What a KV head's query heads put out for a query, less what they put out under another entry unless that is negative; gated.
static void read_row(struct sc_distort * d, int32_t ih, const struct sc_outputs * outputs, int32_t iq, int32_t ic, int32_t less) {
    const struct llama_hwkv_trace_shape * s = &d->trace->shape;
    const int32_t n     = n_in(d->trace);
    const int32_t ratio = s->n_head/s->n_head_kv;
    const float * gate  = d->trace->projection.gate ? d->trace->projection.gate + ((int64_t) iq*s->n_head_kv + ih)*n : NULL;

    for (int32_t j = 0; j < ratio; j++) {
        const float * row   = sc_output_row(outputs, (int64_t) iq*ratio + j, ic);
        const float * minus = less >= 0 ? sc_output_row(outputs, (int64_t) iq*ratio + j, less) : NULL;
        for (int32_t i = 0; i < s->head_dim_v; i++) {
            d->row[j*s->head_dim_v + i] = minus ? row[i] - minus[i] : row[i];
        }
    }
    for (int32_t i = 0; gate && i < n; i++) {
        d->row[i] *= gate[i];
    }
}

// The row under the reference: its share of what all heads put out.
static void add_row(struct sc_distort * d, int32_t ih, int32_t iq) {
    const struct llama_hwkv_trace_shape * s = &d->trace->shape;
    const struct sc_projection * p = &d->trace->projection;
    const int32_t n     = n_in(d->trace);
    const int64_t width = (int64_t) s->n_head*s->head_dim_v;

    for (int32_t i = 0; i < s->n_embd; i++) {
        const float * w = p->weight + i*width + (int64_t) ih*n;
        float sum = 0.0f;
        for (int32_t j = 0; j < n; j++) {
            sum += w[j]*d->row[j];
        }
        d->sum[(int64_t) iq*s->n_embd + i] += sum;
    }
}

void sc_distort_head(struct sc_distort * d, int32_t ih, const struct sc_outputs * outputs) {
    const int32_t n_query   = d->trace->n_query;
    const int32_t reference = outputs->codebook->reference;
    const int32_t n_code    = outputs->codebook->n;

    make_gram(d, ih);
    for (int32_t iq = 0; iq < n_query; iq++) {
        for (int32_t ic = 0; ic < n_code; ic++) {
            if (ic != reference) {
                read_row(d, ih, outputs, iq, ic, reference);
                d->squares[((int64_t) ih*n_query + iq)*n_code + ic] = square(d);
            }
        }
        read_row(d, ih, outputs, iq, reference, -1);
        add_row(d, ih, iq);
    }
}

// What the squares of a query are held against. A norm shortens all that is added alike.
static double stream_of(const struct sc_distort * d, int32_t iq) {
    const struct sc_projection * p = &d->trace->projection;
    const int32_t n = d->trace->shape.n_embd;
    const float * sum    = d->sum + (int64_t) iq*n;
    const double  square = p->has_norm ? length_square(sum, n)/n : 1.0;
    const double  norm   = sqrt(square);

    double res = 0.0;
    for (int32_t i = 0; i < n; i++) {
        const double v = (double) p->stream[(int64_t) iq*n + i] + (double) p->factors[i]*(double) sum[i]/norm;
        res += v*v;
    }
    return res*square;
}

void sc_distort_end(struct sc_distort * d) {
    const int32_t n_query = d->trace->n_query;
    const int32_t n_code  = d->in->codebook->n;
    for (int32_t iq = 0; iq < n_query; iq++) {
        const double stream = stream_of(d, iq);
        for (int32_t i = 0; i < d->trace->shape.n_head_kv*n_code && stream > 0.0; i++) {
            d->sums[i] += d->squares[((int64_t) (i/n_code)*n_query + iq)*n_code + i%n_code]/stream;
        }
    }
    d->n_sum += n_query;
    free_sequence(d);
}

void sc_distort_means(const struct sc_distort * d, double * losses, int32_t n) {
    for (int32_t i = 0; i < n; i++) {
        losses[i] = d->sums[i]/(double) d->n_sum;
    }
}
