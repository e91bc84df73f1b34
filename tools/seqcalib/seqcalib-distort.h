// What is lost when a head gets another entry than the reference: the squared length by which it moves the residual stream, as a share of the
// stream's after the attention; mean over the queries. KL is near to proportional to it (docs/allocation.md).

#ifndef SC_DISTORT_H
#define SC_DISTORT_H

#include "seqcalib-sweep.h"

// Of one layer at a time; its sequences are seen one by one, and of each all heads.
struct sc_distort {
    const struct sc_input * in;

    size_t    n;       // values of the largest layer
    double  * sums;    // [n_head_kv][codebook] over sequences and queries
    int64_t   n_sum;   // queries in each sum

    // of the sequence at hand
    const struct sc_trace * trace;
    double  * squares; // [n_head_kv][n_query][codebook] squared length of what a head adds to the stream too much or too little
    float   * sum;     // [n_query][n_embd] output projection of what all heads put out under the reference, before a norm
    float   * gram;    // [n_in][n_in] products of the weights of a KV head's n_in inputs
    float   * row;     // [n_in]
    float   * image;   // [n_in]
};

int  sc_distort_init(struct sc_distort * d, const struct sc_input * in, struct hwkv_error * err);
void sc_distort_free(struct sc_distort * d);

// HWKV_ERR_VALUE: how the layer's attention joins the stream is not known.
int  sc_distort_begin(struct sc_distort * d, int32_t iseq, const struct sc_trace * trace, struct hwkv_error * err); // 0: of another layer
void sc_distort_head (struct sc_distort * d, int32_t ih, const struct sc_outputs * outputs);
void sc_distort_end  (struct sc_distort * d); // all heads have been seen
void sc_distort_means(const struct sc_distort * d, double * losses, int32_t n); // of the layer: [n_head_kv][codebook], n in all

// Bytes that a layer takes, with its projection.
size_t sc_distort_size(const struct sc_input * in, const struct hwkv_layer * layer, int32_t n_query);

#endif // SC_DISTORT_H
