// Points share every pass until their choices part.

#include "seqcalib-sweep.h"

#include "tool-progress.h"

#include "hwkv-error.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// the inputs of a layer for all sequences; branches that have just parted hold them together
struct hidden {
    int32_t n_owner;
    int64_t seq_size; // floats of one sequence
    float   data[];
};

struct branch {
    uint64_t        mask;    // the points that share it
    int32_t       * entries; // [n_unit] chosen below
    struct hidden * hidden;  // NULL: the next pass begins at the tokens
};

struct sweep {
    struct sc_input       * in;
    const struct sc_judge * judge;

    int32_t n_point;
    int32_t n_unit;
    int32_t unit;   // the first unit of the current layer

    struct branch branches[SC_POINT_MAX];
    int32_t       n_branch;
};

static struct hidden * hidden_new(const struct sc_input * in) {
    const int64_t seq_size = (int64_t) in->n_ctx*llama_model_n_embd(in->model);

    struct hidden * res = malloc(sizeof(*res) + sizeof(float)*(size_t) (seq_size*in->n_seq));
    if (res) {
        res->n_owner  = 1;
        res->seq_size = seq_size;
    }
    return res;
}

static void hidden_drop(struct hidden * hidden) {
    if (hidden && --hidden->n_owner == 0) {
        free(hidden);
    }
}

static void branch_clear(struct branch * b) {
    hidden_drop(b->hidden);
    free(b->entries);
    memset(b, 0, sizeof(*b));
}

// All sequences through one pass; next receives the inputs of this layer, and may be what the pass reads.
static int run_sequences(struct sweep * sw, struct sc_pass * pass, int32_t jl, const struct branch * b, struct hidden * next, bool traced, struct hwkv_error * err) {
    int status = HWKV_OK;
    for (int32_t iseq = 0; iseq < sw->in->n_seq && status == HWKV_OK; iseq++) {
        const float * hidden_in  = b->hidden ? b->hidden->data + iseq*b->hidden->seq_size : NULL;
        float       * hidden_out = next ? next->data + iseq*next->seq_size : NULL;

        struct sc_trace trace;
        status = sc_pass_run(pass, iseq, hidden_in, hidden_out, traced ? &trace : NULL, err);
        if (status == HWKV_OK && traced) {
            status = sw->judge->see(sw->judge->user, jl, b->mask, iseq, &trace, err);
            sc_trace_free(&trace);
        }
    }
    return status;
}

static double scale_of(const struct sc_input * in) {
    return in->work_scale > 0.0 ? in->work_scale : 1.0;
}

static int run_branch(struct sweep * sw, int32_t jl, struct branch * b, struct hwkv_error * err) {
    struct sc_input * in = sw->in;

    const bool traced = !sw->judge->knows(sw->judge->user, jl, b->mask);
    if (!traced && in->naive) {
        tool_progress_skip(in->progress, scale_of(in)/sw->n_branch);
        return HWKV_OK; // nothing is carried over
    }

    // the layer's own inputs are kept unless the next pass starts from the tokens anyway
    const bool keep = !in->naive && in->geo->layers[jl].il > 0;

    struct hidden * next = NULL;
    if (keep) {
        // what nobody else reads can be overwritten chunk by chunk
        next = b->hidden && b->hidden->n_owner == 1 ? b->hidden : hidden_new(in);
        if (!next) {
            return hwkv_fail(err, HWKV_ERR_NOMEM, NULL, "out of memory for the layer inputs of %d sequences", in->n_seq);
        }
    }

    struct sc_pass * pass;
    int status = sc_pass_init(&pass, in, jl, b->entries, err);
    if (status == HWKV_OK) {
        in->n_pass++;
        status = run_sequences(sw, pass, jl, b, next, traced, err);
        sc_pass_free(pass);
    }
    if (next != b->hidden) {
        hidden_drop(status == HWKV_OK ? b->hidden : next);
        if (status == HWKV_OK) {
            b->hidden = next;
        }
    }
    return status == HWKV_OK && traced ? sw->judge->decide(sw->judge->user, jl, b->mask, err) : status;
}

// This architecture does not run in parts: forget what was kept. Whatever was overwritten is never read again.
static void become_naive(struct sweep * sw, const struct hwkv_error * err) {
    sw->in->naive = true;
    for (int32_t i = 0; i < sw->n_branch; i++) {
        hidden_drop(sw->branches[i].hidden);
        sw->branches[i].hidden = NULL;
    }
    tool_progress_line(sw->in->progress, "%s: every layer gets a pass over all layers below it", err->msg);
}

// The points of a branch go on together where they chose the same.
static int part_branch(struct sweep * sw, int32_t jl, const struct branch * b, struct branch * out, int32_t * n_out, struct hwkv_error * err) {
    const size_t size = sizeof(int32_t)*(size_t) sw->in->geo->layers[jl].n_head_kv;
    const int32_t first = *n_out;

    for (int32_t ip = 0; ip < sw->n_point; ip++) {
        if (!(b->mask >> ip & 1)) {
            continue;
        }
        const int32_t * chosen = sw->judge->entries(sw->judge->user, jl, ip);

        int32_t i = first;
        while (i < *n_out && memcmp(out[i].entries + sw->unit, chosen, size) != 0) {
            i++;
        }
        if (i == *n_out) {
            out[i].entries = malloc(sizeof(int32_t)*(size_t) sw->n_unit);
            if (!out[i].entries) {
                return hwkv_fail(err, HWKV_ERR_NOMEM, NULL, "out of memory");
            }
            memcpy(out[i].entries, b->entries, sizeof(int32_t)*(size_t) sw->n_unit);
            memcpy(out[i].entries + sw->unit, chosen, size);
            out[i].hidden = b->hidden;
            if (b->hidden) {
                b->hidden->n_owner++;
            }
            (*n_out)++;
        }
        out[i].mask |= UINT64_C(1) << ip;
    }
    return HWKV_OK;
}

static int run_layer(struct sweep * sw, int32_t jl, struct hwkv_error * err) {
    struct branch parted[SC_POINT_MAX] = { { 0 } };
    int32_t n_parted = 0;

    int status = HWKV_OK;
    for (int32_t i = 0; i < sw->n_branch && status == HWKV_OK; i++) {
        status = run_branch(sw, jl, &sw->branches[i], err);
        if (status == HWKV_ERR_MISMATCH && !sw->in->naive) {
            become_naive(sw, err);
            status = run_branch(sw, jl, &sw->branches[i], err);
        }
        if (status == HWKV_OK) {
            status = part_branch(sw, jl, &sw->branches[i], parted, &n_parted, err);
        }
        branch_clear(&sw->branches[i]);
    }

    for (int32_t i = 0; i < sw->n_branch; i++) {
        branch_clear(&sw->branches[i]);
    }
    // a branch that turned naive late leaves nothing behind either
    for (int32_t i = 0; i < n_parted && sw->in->naive; i++) {
        hidden_drop(parted[i].hidden);
        parted[i].hidden = NULL;
    }
    memcpy(sw->branches, parted, sizeof(parted));
    sw->n_branch = n_parted;
    sw->unit += sw->in->geo->layers[jl].n_head_kv;
    return status;
}

int sc_sweep(struct sc_input * in, int32_t n_point, int32_t n_row_known, const struct sc_judge * judge, struct hwkv_error * err) {
    const struct hwkv_geometry * geo = in->geo;

    if (n_row_known >= geo->n_full) {
        return HWKV_OK;
    }

    struct sweep sw = { .in = in, .judge = judge, .n_point = n_point, .n_branch = 1 };
    for (int32_t jl = 0; jl < geo->n_full; jl++) {
        sw.n_unit += geo->layers[jl].n_head_kv;
    }
    sw.branches[0].mask    = n_point == 64 ? UINT64_MAX : (UINT64_C(1) << n_point) - 1;
    sw.branches[0].entries = malloc(sizeof(int32_t)*(size_t) sw.n_unit);
    if (!sw.branches[0].entries) {
        return hwkv_fail(err, HWKV_ERR_NOMEM, NULL, "out of memory");
    }
    for (int32_t i = 0; i < sw.n_unit; i++) {
        sw.branches[0].entries[i] = in->codebook->reference;
    }

    int status = HWKV_OK;
    for (int32_t jl = 0; jl < geo->n_full && status == HWKV_OK; jl++) {
        char stage[64];
        snprintf(stage, sizeof(stage), "layer %d (%d of %d): %s", geo->layers[jl].il, jl + 1, geo->n_full, judge->verb);
        tool_progress_stage(in->progress, stage);
        in->work_unit = scale_of(in)/((double) sw.n_branch*in->n_seq*((in->n_ctx + in->n_ubatch - 1)/in->n_ubatch));
        status = run_layer(&sw, jl, err);
    }
    for (int32_t i = 0; i < sw.n_branch; i++) {
        branch_clear(&sw.branches[i]);
    }
    return status;
}
