#include "seqcalib-estimate.h"

#include "hwkv-error.h"

#include <stdlib.h>

// Seconds a pass takes on the first n_ctx tokens, without its trace.
static int time_pass(const struct sc_input * in, int32_t jl, int32_t n_ctx, double * seconds, struct hwkv_error * err) {
    struct sc_input part = *in;
    part.n_ctx    = n_ctx;
    part.n_seq    = 1;
    part.progress = NULL;

    int32_t n_unit = 0;
    for (int32_t i = 0; i < in->geo->n_full; i++) {
        n_unit += in->geo->layers[i].n_head_kv;
    }
    // windows below the shorter context make no difference to the time, so none are set
    const struct hwkv_entry full = hwkv_entry_of_window(HWKV_FULL);
    part.codebook   = &full;
    part.n_codebook = 1;
    part.sinks      = 0;

    int32_t * entries = calloc((size_t) n_unit, sizeof(*entries));
    float   * hidden  = calloc((size_t) n_ctx*(size_t) llama_model_n_embd(in->model), sizeof(*hidden));
    int status = entries && hidden ? HWKV_OK : hwkv_fail(err, HWKV_ERR_NOMEM, NULL, "out of memory");

    struct sc_pass * pass = NULL;
    if (status == HWKV_OK) {
        status = sc_pass_init(&pass, &part, jl, entries, err);
    }
    if (status == HWKV_OK) {
        const int64_t start = ggml_time_us();
        status = sc_pass_run(pass, 0, in->naive ? NULL : hidden, in->naive ? NULL : hidden, NULL, err);
        *seconds = (double) (ggml_time_us() - start)*1e-6;
    }
    sc_pass_free(pass);
    free(entries);
    free(hidden);
    return status;
}

static void print_time(FILE * out, const char * what, double seconds) {
    if (seconds < 120.0) {
        fprintf(out, "%s%.0f s", what, seconds);
    } else if (seconds < 7200.0) {
        fprintf(out, "%s%.0f min", what, seconds/60.0);
    } else {
        fprintf(out, "%s%.1f h", what, seconds/3600.0);
    }
}

static void print_memory(const struct sc_input * in, int32_t n_tau, int32_t n_holdout, FILE * out) {
    const double mib    = 1.0/1048576.0;
    const double n_seq  = in->n_seq > n_holdout ? in->n_seq : n_holdout;
    const double hidden = in->naive ? 0.0 : 4.0*in->n_ctx*llama_model_n_embd(in->model)*n_seq;

    double cache = 0.0;
    double trace = 0.0;
    for (int32_t jl = 0; jl < in->geo->n_full; jl++) {
        const struct hwkv_layer * layer = &in->geo->layers[jl];
        const double rows = (double) in->n_ctx*layer->n_head_kv;
        cache += (double) ggml_row_size(in->type_k, layer->head_dim_k)*rows + (double) ggml_row_size(in->type_v, layer->head_dim_v)*rows;

        const double floats = rows*(layer->head_dim_k + layer->head_dim_v);
        trace = 4.0*floats > trace ? 4.0*floats : trace;
    }
    fprintf(out, "memory: model %.0f MiB, cache %.0f MiB, one layer's trace %.0f MiB, layer inputs %.0f", (double) llama_model_size(in->model)*mib, cache*mib,
            trace*mib, hidden*mib);
    if (n_tau > 1 && hidden > 0.0) {
        fprintf(out, " to %.0f", hidden*mib*n_tau);
    }
    fprintf(out, " MiB");
    if (n_holdout > 0) {
        fprintf(out, ", held-out check: up to %.0f MiB of caches", cache*mib*(n_tau + 1));
    }
    fprintf(out, ", and llama.cpp's compute buffers\n");
}

// Seconds of one pass over a layer in the middle; probe->naive is set if this architecture does not run in parts.
static int time_layer(struct sc_input * probe, double * seconds, struct hwkv_error * err) {
    const int32_t jl     = probe->geo->n_full/2;
    const double  n_chunk = (double) probe->n_ctx/probe->n_ubatch;
    const bool    whole   = n_chunk < 8.0;
    const int32_t n_short = whole ? probe->n_ctx : 2*probe->n_ubatch;

    double t2 = 0.0;
    double t4 = 0.0;
    int status = time_pass(probe, jl, n_short, &t2, err);
    if (status == HWKV_ERR_MISMATCH && !probe->naive) {
        probe->naive = true;
        status = time_pass(probe, jl, n_short, &t2, err);
    }
    *seconds = t2;
    if (status != HWKV_OK || whole) {
        return status;
    }

    // a chunk takes a + b*(chunks before it): two short runs tell both
    status = time_pass(probe, jl, 4*probe->n_ubatch, &t4, err);
    const double b = t4 > 2.0*t2 ? (t4 - 2.0*t2)/4.0 : 0.0;
    *seconds = n_chunk*(t2 - b)/2.0 + b*n_chunk*(n_chunk - 1.0)/2.0;
    return status;
}

int sc_estimate(const struct sc_input * in, int32_t n_tau, int32_t n_holdout, FILE * out, struct hwkv_error * err) {
    const int32_t n_full = in->geo->n_full;

    struct sc_input probe = *in;
    double per_pass;
    const int status = time_layer(&probe, &per_pass, err);
    if (status != HWKV_OK) {
        return status;
    }

    const double one = per_pass*n_full;
    fprintf(out, "%d full-attention layers of %d, %d sequences of %d tokens, %d floors%s\n", n_full, in->geo->n_layer, in->n_seq, in->n_ctx, n_tau,
            probe.naive ? ", every layer from the tokens" : "");
    print_time(out, "time: about ", one*in->n_seq);
    if (n_tau > 1) {
        print_time(out, " if all floors choose alike, to ", one*in->n_seq*n_tau);
        fputs(" if they part at once", out);
    }
    if (n_holdout > 0) {
        print_time(out, "; held-out check: up to ", one*n_holdout*(2.0*n_tau + 2.0));
    }
    fputs("\n", out);
    print_memory(&probe, n_tau, n_holdout, out);
    return HWKV_OK;
}
