#include "seqcalib-project.h"

#include "hwkv-error.h"
#include "llama-hwkv-project.h"

#include <stdlib.h>
#include <string.h>

static int no_memory(struct hwkv_error * err) {
    return hwkv_fail(err, HWKV_ERR_NOMEM, NULL, "out of memory for the projection of a layer");
}

static float * new_floats(int64_t n) {
    return malloc(sizeof(float)*(size_t) n);
}

static int begin(struct sc_projection * p, const struct llama_hwkv_tracer * tracer, const struct sc_rows * rows, struct hwkv_error * err) {
    const struct llama_hwkv_trace_shape s = llama_hwkv_tracer_shape(tracer);
    struct llama_hwkv_project_shape shape;
    p->known = llama_hwkv_tracer_get_project(tracer, &shape);
    if (!p->known) {
        return HWKV_OK;
    }
    const int64_t width = (int64_t) s.n_head*s.head_dim_v;
    p->has_norm = shape.has_norm;
    p->weight   = new_floats(s.n_embd*width);
    p->factors  = new_floats(s.n_embd);
    p->gate     = shape.has_gate ? new_floats(rows->n*width) : NULL;
    p->stream   = new_floats((int64_t) rows->n*s.n_embd);
    if (!p->weight || !p->factors || !p->stream || (shape.has_gate && !p->gate)) {
        return no_memory(err);
    }
    llama_hwkv_tracer_get_weight(tracer, p->weight);
    llama_hwkv_tracer_get_factors(tracer, p->factors);
    return HWKV_OK;
}

static void pick(const struct sc_rows * rows, const float * chunk, int64_t width, float * to) {
    for (int32_t iq = rows->first; iq < rows->end; iq++) {
        memcpy(to + iq*width, chunk + (rows->pos[iq] - rows->chunk_pos)*width, sizeof(float)*(size_t) width);
    }
}

int sc_projection_add(struct sc_projection * p, const struct llama_hwkv_tracer * tracer, const struct sc_rows * rows, struct hwkv_error * err) {
    const int status = p->weight ? HWKV_OK : begin(p, tracer, rows, err);
    if (status != HWKV_OK || !p->known || rows->first == rows->end) {
        return status;
    }
    const struct llama_hwkv_trace_shape s = llama_hwkv_tracer_shape(tracer);
    const int64_t width = (int64_t) s.n_head*s.head_dim_v;
    float * chunk = new_floats(s.n_tokens*(width > s.n_embd ? width : s.n_embd));
    if (!chunk) {
        return no_memory(err);
    }
    llama_hwkv_tracer_get_stream(tracer, chunk);
    pick(rows, chunk, s.n_embd, p->stream);
    if (p->gate) {
        llama_hwkv_tracer_get_gate(tracer, chunk);
        pick(rows, chunk, width, p->gate);
    }
    free(chunk);
    return HWKV_OK;
}

void sc_projection_free(struct sc_projection * p) {
    free(p->weight);
    free(p->factors);
    free(p->gate);
    free(p->stream);
    memset(p, 0, sizeof(*p));
}
