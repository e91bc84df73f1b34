// One layer under one prefix: a context whose lower layers are frozen, run sequence by sequence.

#include "seqcalib-distort.h"
#include "seqcalib-sweep.h"

#include "tool-progress.h"

#include "hwkv-error.h"

#include <stdlib.h>
#include <string.h>

struct sc_pass {
    const struct sc_input * in;
    int32_t jl;
    int32_t first; // layers as in struct llama_hwkv_part
    int32_t last;

    struct hwkv_policy       * policy; // the entries below, and what this layer is traced in
    struct llama_context     * ctx;
    struct llama_hwkv_tracer * tracer;
    float                    * chunk;  // what the tracer gives for one chunk
};

static size_t elements(int64_t a, int64_t b, int64_t c) {
    return sizeof(float)*(size_t) a*(size_t) b*(size_t) c;
}

static int policy_new(struct hwkv_policy ** out, const struct sc_input * in, const struct hwkv_entry * entries, int32_t n, struct hwkv_error * err) {
    struct hwkv_policy_params params = hwkv_policy_params_default();
    params.geometry   = in->geo;
    params.context    = in->n_ctx;
    params.sinks      = in->sinks;
    params.codebook   = entries;
    params.n_codebook = n;
    params.type_k     = in->codebook->cache.k;
    params.type_v     = in->codebook->cache.v;
    return hwkv_policy_init(out, &params, err);
}

int sc_policy_new(struct hwkv_policy ** out, const struct sc_input * in, struct hwkv_error * err) {
    return policy_new(out, in, in->codebook->entries, in->codebook->n, err);
}

struct hwkv_plan_params sc_plan_params(const struct sc_input * in) {
    struct hwkv_plan_params params = hwkv_plan_params_default();
    params.n_ctx       = (uint32_t) in->n_ctx;
    params.type_k      = in->codebook->cache.k;
    params.type_v      = in->codebook->cache.v;
    params.v_width_max = in->geo->v_width_max;
    return params;
}

// The codebook with what a layer is traced in: of all types that there may be only F32 loses nothing. It takes more bytes than any other
// entry, so it comes last and the others keep their places.
static int pass_policy_new(struct sc_pass * pass, int32_t * traced, struct hwkv_error * err) {
    const struct sc_codebook * codebook = pass->in->codebook;

    struct hwkv_entry entries[HWKV_CODE_MAX];
    memcpy(entries, codebook->entries, sizeof(entries));
    const struct hwkv_entry * last  = &codebook->entries[codebook->n - 1];
    const struct hwkv_entry   exact = { HWKV_FULL, HWKV_TYPE_F32, HWKV_TYPE_F32 };

    int32_t n = codebook->n;
    if (codebook->typed && (last->type_k != exact.type_k || last->type_v != exact.type_v)) {
        entries[n++] = exact;
    }
    *traced = n - 1;
    return policy_new(&pass->policy, pass->in, entries, n, err);
}

// The entries of a pass: in parts it runs only the layer before it and its own, else all below too. Layers that do not run
// store nothing, so they get the smallest cache there is.
static int make_prefix(struct sc_pass * pass, const int32_t * entries, struct hwkv_error * err) {
    const struct sc_input      * in  = pass->in;
    const struct hwkv_geometry * geo = in->geo;

    int32_t traced;
    int status = pass_policy_new(pass, &traced, err);
    if (status != HWKV_OK) {
        return status;
    }

    const int32_t n_unit = hwkv_policy_n_unit(pass->policy);
    int32_t * prefix = malloc(sizeof(*prefix)*(size_t) n_unit);
    if (!prefix) {
        return hwkv_fail(err, HWKV_ERR_NOMEM, NULL, "out of memory");
    }
    for (int32_t jl = 0, i = 0; jl < geo->n_full; jl++) {
        const bool runs = jl <= pass->jl && (in->naive || jl >= pass->jl - 1);
        for (int32_t ih = 0; ih < geo->layers[jl].n_head_kv; ih++, i++) {
            prefix[i] = !runs ? 0 : jl < pass->jl ? entries[i] : traced;
        }
    }

    const struct hwkv_point_params point = { .name = "prefix", .method = "frozen prefix", .entries = prefix };
    status = hwkv_policy_add_point(pass->policy, &point, err);
    free(prefix);
    return status;
}

static struct llama_context_params context_params(const struct sc_input * in) {
    struct llama_context_params params = llama_context_default_params();
    params.n_ctx           = (uint32_t) in->n_ctx;
    params.n_batch         = (uint32_t) in->n_ubatch;
    params.n_ubatch        = (uint32_t) in->n_ubatch;
    params.n_seq_max       = 1;
    params.kv_unified      = true;
    params.n_threads       = in->n_thread;
    params.n_threads_batch = in->n_thread;
    params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_ENABLED;
    params.type_k          = in->type_k;
    params.type_v          = in->type_v;
    params.no_perf         = true;
    return params;
}

struct llama_context * sc_context_new(const struct sc_input * in, const struct hwkv_policy * policy, int32_t ip) {
    const struct llama_context_params params = context_params(in);
    return policy ? llama_kv_policy_init_from_model(in->model, params, policy, ip) : llama_init_from_model(in->model, params);
}

int sc_pass_init(struct sc_pass ** out, const struct sc_input * in, int32_t jl, const int32_t * entries, struct hwkv_error * err) {
    *out = NULL;

    struct sc_pass * pass = calloc(1, sizeof(*pass));
    if (!pass) {
        return hwkv_fail(err, HWKV_ERR_NOMEM, NULL, "out of memory");
    }
    pass->in    = in;
    pass->jl    = jl;
    pass->first = in->naive || jl == 0 ? 0 : in->geo->layers[jl - 1].il;
    pass->last  = in->geo->layers[jl].il;

    int status = make_prefix(pass, entries, err);
    if (status == HWKV_OK) {
        pass->ctx = llama_hwkv_tracer_context(in->model, context_params(in), pass->policy, 0, pass->first, pass->last);
        if (!pass->ctx) {
            status = hwkv_fail(err, HWKV_ERR_INTERNAL, NULL, "layer %d: llama.cpp could not make a context of %d tokens", pass->last, in->n_ctx);
        }
    }
    if (status == HWKV_OK) {
        pass->tracer = llama_hwkv_tracer_init(pass->ctx);
        *out = pass;
    } else {
        sc_pass_free(pass);
    }
    return status;
}

void sc_pass_free(struct sc_pass * pass) {
    if (pass) {
        if (pass->tracer) {
            llama_hwkv_tracer_free(pass->tracer);
        }
        if (pass->ctx) {
            llama_free(pass->ctx);
        }
        hwkv_policy_free(pass->policy);
        free(pass->chunk);
        free(pass);
    }
}

size_t sc_context_size(const struct llama_context * ctx) {
    return llama_kv_policy_cache_size(ctx) + llama_kv_policy_compute_size(ctx);
}

size_t sc_pass_size(const struct sc_pass * pass) {
    const struct sc_input   * in    = pass->in;
    const struct hwkv_layer * layer = &in->geo->layers[pass->jl];
    const int32_t dim_k   = layer->head_dim_k;
    const int32_t dim_v   = layer->head_dim_v;
    const int32_t n_query = in->n_query < in->n_ctx/4 ? in->n_query : in->n_ctx/4;
    const enum ggml_type type_k = in->codebook->typed ? GGML_TYPE_F32 : in->type_k;
    const enum ggml_type type_v = in->codebook->typed ? GGML_TYPE_F32 : in->type_v;

    const size_t trace = elements(n_query, layer->n_head, dim_k) + elements(layer->n_head_kv, in->n_ctx, dim_k + dim_v) +
                         elements(in->n_ubatch, layer->n_head, dim_k > dim_v ? dim_k : dim_v);

    // the rows on their way out of the cache come before the replay of a head
    const size_t rows_k = ggml_row_size(type_k, dim_k)*(size_t) layer->n_head_kv*(size_t) in->n_ctx;
    const size_t rows_v = ggml_row_size(type_v, dim_v)*(size_t) layer->n_head_kv*(size_t) in->n_ctx;
    const size_t rows   = rows_k > rows_v ? rows_k : rows_v;
    const size_t replay = sc_replay_size(in, layer, n_query);

    const size_t losses = in->losses ? sc_distort_size(in, layer, n_query) : 0;

    return sc_context_size(pass->ctx) + trace + losses + (rows > replay ? rows : replay);
}

void sc_trace_free(struct sc_trace * trace) {
    free(trace->pos);
    free(trace->q);
    free(trace->k);
    free(trace->v);
    free(trace->sink_logits);
    free(trace->out);
    sc_projection_free(&trace->projection);
    memset(trace, 0, sizeof(*trace));
}

// once the first chunk has told the shape
static int trace_alloc(const struct sc_pass * pass, struct sc_trace * trace, struct hwkv_error * err) {
    const struct sc_input * in = pass->in;
    const struct llama_hwkv_trace_shape * s = &trace->shape;

    trace->q   = malloc(elements(trace->n_query, s->n_head, s->head_dim_k));
    trace->k   = malloc(elements(s->n_head_kv, in->n_ctx, s->head_dim_k));
    trace->v   = malloc(elements(s->n_head_kv, in->n_ctx, s->head_dim_v));
    trace->out = malloc(elements(trace->n_check, s->n_head, s->head_dim_v));
    if (s->has_sink_logits) {
        trace->sink_logits = malloc(elements(1, 1, s->n_head));
    }
    if (!trace->q || !trace->k || !trace->v || !trace->out || (s->has_sink_logits && !trace->sink_logits)) {
        return hwkv_fail(err, HWKV_ERR_NOMEM, NULL, "out of memory for the trace of layer %d", pass->last);
    }
    return HWKV_OK;
}

static int chunk_alloc(struct sc_pass * pass, const struct llama_hwkv_trace_shape * s, struct hwkv_error * err) {
    const int32_t dim = s->head_dim_k > s->head_dim_v ? s->head_dim_k : s->head_dim_v;
    if (!pass->chunk) {
        pass->chunk = malloc(elements(pass->in->n_ubatch, s->n_head, dim));
    }
    return pass->chunk ? HWKV_OK : hwkv_fail(err, HWKV_ERR_NOMEM, NULL, "out of memory");
}

// Copies the rows of the sampled queries [iq0, ...) in [pos, pos + n) out of a chunk; returns the first beyond.
static int32_t pick_rows(const struct sc_trace * trace, int32_t iq0, int32_t pos, int32_t n, const float * chunk, int64_t width, float * dst) {
    int32_t iq = iq0;
    for (; iq < trace->n_query && trace->pos[iq] < pos + n; iq++) {
        memcpy(dst + (iq - iq0)*width, chunk + (trace->pos[iq] - pos)*width, sizeof(float)*(size_t) width);
    }
    return iq;
}

static int sample_queries(const struct sc_input * in, int32_t iseq, struct sc_trace * trace, struct hwkv_error * err) {
    const int32_t quarter = in->n_ctx/4;

    trace->pos = malloc(sizeof(*trace->pos)*(size_t) (in->n_query < quarter ? in->n_query : quarter));
    if (!trace->pos) {
        return hwkv_fail(err, HWKV_ERR_NOMEM, NULL, "out of memory");
    }
    trace->n_query = hwkv_sample(trace->pos, in->n_query, in->n_ctx - quarter, quarter, in->seed, (uint64_t) iseq);

    // whole chunks from the end, until there are enough queries for the check
    int32_t pos = (in->n_ctx - 1)/in->n_ubatch*in->n_ubatch;
    do {
        trace->n_check = 0;
        for (int32_t i = 0; i < trace->n_query; i++) {
            trace->n_check += trace->pos[i] >= pos;
        }
        pos -= in->n_ubatch;
    } while (trace->n_check < SC_CHECK_QUERY && trace->n_check < trace->n_query && pos > -in->n_ubatch);
    return HWKV_OK;
}

// What a decoded chunk has for the trace. iq: the next query.
static int trace_chunk(struct sc_pass * pass, struct sc_trace * trace, int32_t pos, int32_t n, bool attend, int32_t * iq, struct hwkv_error * err) {
    trace->shape = llama_hwkv_tracer_shape(pass->tracer);
    if (!trace->q) {
        const int status = trace_alloc(pass, trace, err);
        if (status != HWKV_OK) {
            return status;
        }
    }
    const int status = chunk_alloc(pass, &trace->shape, err);
    if (status != HWKV_OK) {
        return status;
    }

    const struct llama_hwkv_trace_shape * s = &trace->shape;
    const int32_t iq0      = *iq;
    const int64_t width_k  = (int64_t) s->n_head*s->head_dim_k;
    const int64_t width_v  = (int64_t) s->n_head*s->head_dim_v;
    const int32_t iq_check = trace->n_query - trace->n_check;

    llama_hwkv_tracer_get_q(pass->tracer, pass->chunk);
    *iq = pick_rows(trace, iq0, pos, n, pass->chunk, width_k, trace->q + iq0*width_k);

    const struct sc_rows rows = { .pos = trace->pos, .n = trace->n_query, .first = iq0, .end = *iq, .chunk_pos = pos };
    const int projected = pass->in->losses ? sc_projection_add(&trace->projection, pass->tracer, &rows, err) : HWKV_OK;
    if (projected != HWKV_OK) {
        return projected;
    }

    if (attend) {
        llama_hwkv_tracer_get_out(pass->tracer, pass->chunk);
        pick_rows(trace, iq0, pos, n, pass->chunk, width_v, trace->out + (iq0 - iq_check)*width_v);
    }
    if (pos + n == pass->in->n_ctx) {
        llama_hwkv_tracer_get_k(pass->tracer, pass->in->n_ctx, trace->k);
        llama_hwkv_tracer_get_v(pass->tracer, pass->in->n_ctx, trace->v);
        if (s->has_sink_logits) {
            llama_hwkv_tracer_get_sink_logits(pass->tracer, trace->sink_logits);
        }
    }
    return HWKV_OK;
}

int sc_pass_run(struct sc_pass * pass, int32_t iseq, const float * hidden_in, float * hidden_out, struct sc_trace * trace, struct hwkv_error * err) {
    const struct sc_input * in = pass->in;
    const llama_token * tokens = in->tokens + (int64_t) iseq*in->n_ctx;
    const int64_t n_embd = llama_model_n_embd(in->model);

    llama_memory_clear(llama_get_memory(pass->ctx), true);

    int status = HWKV_OK;
    int32_t iq = 0;
    if (trace) {
        memset(trace, 0, sizeof(*trace));
        trace->exact_k = in->codebook->typed || in->type_k == GGML_TYPE_F32;
        trace->exact_v = in->codebook->typed || in->type_v == GGML_TYPE_F32;
        status = sample_queries(in, iseq, trace, err);
    }

    for (int32_t pos = 0; pos < in->n_ctx && status == HWKV_OK; pos += in->n_ubatch) {
        if (in->stop && *in->stop) {
            status = hwkv_fail(err, SC_ERR_STOPPED, NULL, "stopped");
            break;
        }
        const int32_t n = in->n_ctx - pos < in->n_ubatch ? in->n_ctx - pos : in->n_ubatch;

        // queries of this chunk are wanted, and the attention itself only where it is checked
        const bool    last   = pos + n == in->n_ctx;
        const bool    wanted = trace && (last || (iq < trace->n_query && trace->pos[iq] < pos + n));
        const bool    attend = wanted && iq >= trace->n_query - trace->n_check && iq < trace->n_query;

        const struct llama_hwkv_part part = {
            .first  = pass->first,
            .last   = pass->last,
            .attend = attend,
            .project = wanted && in->losses,
            .hidden = pass->first > 0 ? hidden_in + pos*n_embd : NULL,
        };
        status = llama_hwkv_tracer_decode(pass->tracer, tokens + pos, n, pos, &part, err);
        if (status == HWKV_OK && hidden_out && pass->last > 0 && !llama_hwkv_tracer_get_hidden(pass->tracer, hidden_out + pos*n_embd)) {
            status = hwkv_fail(err, HWKV_ERR_MISMATCH, NULL, "the input of layer %d is not one tensor", pass->last);
        }
        if (status == HWKV_OK && wanted) {
            status = trace_chunk(pass, trace, pos, n, attend, &iq, err);
        }
        tool_progress_add(in->progress, in->work_unit);
    }

    if (status != HWKV_OK && trace) {
        sc_trace_free(trace);
    }
    return status;
}
