// What becomes of the attention's output of a traced layer: gate, output projection and the residual stream it is added to.

#ifndef SC_PROJECT_H
#define SC_PROJECT_H

#include "hwkv.h"
#include "llama-hwkv-trace.h"

struct sc_projection {
    bool    known;    // else there is nothing below
    bool    has_norm; // what all heads add up to is brought to a root mean square of 1 before it is added
    float * weight;   // [n_embd][n_head][head_dim_v]
    float * factors;  // [n_embd] of what the weight gives, after the norm
    float * gate;     // [n_query][n_head][head_dim_v], or NULL
    float * stream;   // [n_query][n_embd]
};

// The queries [first, end) of n at positions pos are in a chunk that begins at chunk_pos.
struct sc_rows {
    const int32_t * pos;
    int32_t         n;
    int32_t         first;
    int32_t         end;
    int32_t         chunk_pos;
};

// What the tracer's last decode has for these queries; the first call makes room for all.
int  sc_projection_add (struct sc_projection * p, const struct llama_hwkv_tracer * tracer, const struct sc_rows * rows, struct hwkv_error * err);
void sc_projection_free(struct sc_projection * p);

#endif // SC_PROJECT_H
