#include "seqcalib-estimate.h"

#include "hwkv-error.h"

#include <math.h>
#include <stdlib.h>
#include <unistd.h>

// -1 to 1, without any order
static void fill(float * x, size_t n) {
    uint32_t state = 1;
    for (size_t i = 0; i < n; i++) {
        state = state*1664525u + 1013904223u;
        x[i]  = (float) (int32_t) state/2147483648.0f;
    }
}

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
    struct sc_codebook full;
    sc_codebook_full(&full, in->codebook);
    part.codebook = &full;
    part.sinks    = 0;

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

// Seconds that the replay of a head under all entries takes, from one of noise and a part of the context.
static int time_replay(const struct sc_input * in, const struct hwkv_layer * layer, double * seconds, struct hwkv_error * err) {
    struct sc_input part = *in;
    part.n_ctx = in->n_ctx < 4096 ? in->n_ctx : 4096;

    struct sc_trace trace = { .n_query = in->n_query < part.n_ctx/4 ? in->n_query : part.n_ctx/4, .exact_k = in->codebook->typed, .exact_v = in->codebook->typed };
    trace.shape.n_head_kv  = 1;
    trace.shape.n_head     = layer->n_head/layer->n_head_kv;
    trace.shape.head_dim_k = layer->head_dim_k;
    trace.shape.head_dim_v = layer->head_dim_v;
    trace.shape.scale      = 1.0f;

    const size_t n_q = (size_t) trace.n_query*(size_t) trace.shape.n_head*(size_t) layer->head_dim_k;
    const size_t n_k = (size_t) part.n_ctx*(size_t) layer->head_dim_k;
    const size_t n_v = (size_t) part.n_ctx*(size_t) layer->head_dim_v;
    trace.pos = malloc(sizeof(*trace.pos)*(size_t) trace.n_query);
    trace.q   = malloc(sizeof(float)*n_q);
    trace.k   = malloc(sizeof(float)*n_k);
    trace.v   = malloc(sizeof(float)*n_v);

    int status = trace.pos && trace.q && trace.k && trace.v ? HWKV_OK : hwkv_fail(err, HWKV_ERR_NOMEM, NULL, "out of memory");
    if (status == HWKV_OK) {
        for (int32_t i = 0; i < trace.n_query; i++) {
            trace.pos[i] = part.n_ctx - trace.n_query + i;
        }
        fill(trace.q, n_q);
        fill(trace.k, n_k);
        fill(trace.v, n_v);

        struct sc_outputs outputs;
        const int64_t start = ggml_time_us();
        status = sc_replay_head(&outputs, &part, &trace, 0, false, err);
        if (status == HWKV_OK) {
            *seconds = (double) (ggml_time_us() - start)*1e-6*in->n_ctx/part.n_ctx;
            sc_outputs_free(&outputs);
        }
    }
    sc_trace_free(&trace);
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

// Bytes that this process holds now: the program, the model and the text. The model alone where the system does not tell.
static double size_now(const struct sc_input * in) {
    double n_page = 0.0;
    FILE * file = fopen("/proc/self/statm", "r");
    if (file) {
        if (fscanf(file, "%*s %lf", &n_page) != 1) {
            n_page = 0.0;
        }
        fclose(file);
    }
    return n_page > 0.0 ? n_page*(double) sysconf(_SC_PAGESIZE) : (double) llama_model_size(in->model);
}

// What depends on the choices of the floors: if all take the smallest window and stay together, and if all keep everything and part.
struct range {
    double least;
    double most;
};

// Bytes of the largest pass above layers that all took one entry of the codebook.
static int size_pass(const struct sc_input * in, int32_t entry, double * size, struct hwkv_error * err) {
    int32_t n_unit = 0;
    for (int32_t jl = 0; jl < in->geo->n_full; jl++) {
        n_unit += in->geo->layers[jl].n_head_kv;
    }
    int32_t * entries = malloc(sizeof(*entries)*(size_t) n_unit);
    if (!entries) {
        return hwkv_fail(err, HWKV_ERR_NOMEM, NULL, "out of memory");
    }
    for (int32_t i = 0; i < n_unit; i++) {
        entries[i] = entry;
    }

    *size = 0.0;
    int status = HWKV_OK;
    for (int32_t jl = 0; jl < in->geo->n_full && status == HWKV_OK; jl++) {
        struct sc_pass * pass;
        status = sc_pass_init(&pass, in, jl, entries, err);
        if (status == HWKV_OK) {
            *size = fmax(*size, (double) sc_pass_size(pass));
            sc_pass_free(pass);
        }
    }
    free(entries);
    return status;
}

// Bytes of a context whose heads all took one entry, with its logits.
static int size_context(const struct sc_input * in, int32_t entry, double * size, struct hwkv_error * err) {
    struct hwkv_policy * policy;
    int status = sc_policy_new(&policy, in, err);
    if (status != HWKV_OK) {
        return status;
    }
    int32_t * entries = malloc(sizeof(*entries)*(size_t) hwkv_policy_n_unit(policy));
    for (int32_t i = 0; entries && i < hwkv_policy_n_unit(policy); i++) {
        entries[i] = entry;
    }
    const struct hwkv_point_params point = { .name = "all", .method = "one entry", .entries = entries };
    status = entries ? hwkv_policy_add_point(policy, &point, err) : hwkv_fail(err, HWKV_ERR_NOMEM, NULL, "out of memory");
    free(entries);

    struct llama_context * ctx = status == HWKV_OK ? sc_context_new(in, policy, 0) : NULL;
    if (ctx) {
        *size = (double) sc_context_size(ctx) + 4.0*in->n_ubatch*llama_vocab_n_tokens(llama_model_get_vocab(in->model));
        llama_free(ctx);
    } else if (status == HWKV_OK) {
        status = hwkv_fail(err, HWKV_ERR_INTERNAL, NULL, "llama.cpp could not plan a context of %d tokens", in->n_ctx);
    }
    hwkv_policy_free(policy);
    return status;
}

static int size_all(const struct sc_input * in, bool has_holdout, struct range * pass, struct range * logits, struct hwkv_error * err) {
    const int32_t full = in->codebook->reference;

    int status = size_pass(in, 0, &pass->least, err);
    if (status == HWKV_OK) {
        status = size_pass(in, full, &pass->most, err);
    }
    if (status == HWKV_OK && has_holdout) {
        status = size_context(in, 0, &logits->least, err);
    }
    if (status == HWKV_OK && has_holdout) {
        status = size_context(in, full, &logits->most, err);
    }
    // beside the full cache
    logits->least += logits->most;
    logits->most  += logits->most;
    return status;
}

static void print_range(FILE * out, const char * what, double least, double most) {
    const double mib = 1.0/1048576.0;
    fprintf(out, "%s%.0f", what, least*mib);
    if (most*mib - least*mib >= 1.0) {
        fprintf(out, " to %.0f", most*mib);
    }
}

// Contexts of a model without tensors tell their sizes and take no memory.
static int print_memory(const struct sc_input * in, const struct sc_estimate_params * params, double now, FILE * out, struct hwkv_error * err) {
    struct llama_model_params mparams = llama_model_default_params();
    mparams.n_gpu_layers = params->n_gpu_layers;
    mparams.no_alloc     = true;
    mparams.load_mode    = LLAMA_LOAD_MODE_NONE;

    struct sc_input meta = *in;
    meta.model = llama_model_load_from_file(params->path_model, mparams);
    if (!meta.model) {
        return hwkv_fail(err, HWKV_ERR_INTERNAL, params->path_model, "llama.cpp could not load the model's description");
    }
    struct range pass   = { 0.0, 0.0 };
    struct range logits = { 0.0, 0.0 };
    const int status = size_all(&meta, params->n_holdout > 0, &pass, &logits, err);
    llama_model_free(meta.model);
    if (status != HWKV_OK) {
        return status;
    }

    // a floor has inputs of its own once it has parted from the others; in the check the full cache is one more
    const double inputs = in->naive ? 0.0 : 4.0*in->n_ctx*llama_model_n_embd(in->model);
    const struct range sweep = { inputs*in->n_seq, inputs*in->n_seq*params->n_tau };
    const struct range check = { inputs*params->n_holdout, inputs*params->n_holdout*(params->n_tau + 1) };

    print_range(out, "memory: peak ", now + fmax(pass.least + fmax(sweep.least, check.least), logits.least),
                now + fmax(pass.most + fmax(sweep.most, check.most), logits.most));
    print_range(out, " MiB, by what is chosen: program, model and text ", now, now);
    print_range(out, ", a pass ", pass.least, pass.most);
    print_range(out, ", layer inputs ", sweep.least, sweep.most);
    if (params->n_holdout > 0) {
        print_range(out, "; held-out check: layer inputs ", check.least, check.most);
        print_range(out, ", then two contexts ", logits.least, logits.most);
    }
    fputs("\n", out);
    return HWKV_OK;
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

int sc_estimate(const struct sc_input * in, const struct sc_estimate_params * params, FILE * out, struct hwkv_error * err) {
    const int32_t n_full    = in->geo->n_full;
    const int32_t n_tau     = params->n_tau;
    const int32_t n_holdout = params->n_holdout;
    const double  now       = size_now(in);

    const struct hwkv_layer * layer = &in->geo->layers[n_full/2];

    struct sc_input probe = *in;
    double per_pass;
    double per_head;
    int status = time_layer(&probe, &per_pass, err);
    if (status == HWKV_OK) {
        status = time_replay(&probe, layer, &per_head, err);
    }
    if (status != HWKV_OK) {
        return status;
    }

    const double one = (per_pass + per_head*layer->n_head_kv)*n_full;
    const char * goals = params->allocate ? "budgets" : "floors";
    fprintf(out, "%d full-attention layers of %d, %d sequences of %d tokens, %d %s%s\n", n_full, in->geo->n_layer, in->n_seq, in->n_ctx, n_tau, goals,
            probe.naive ? ", every layer from the tokens" : "");
    // budgets have a sweep that they share before their own
    const int32_t shared = params->allocate ? 1 : 0;
    print_time(out, "time: about ", one*in->n_seq*(shared + 1));
    if (n_tau > 1) {
        fprintf(out, " if all %s choose alike", goals);
        print_time(out, ", to ", one*in->n_seq*(shared + n_tau));
        fputs(" if they part at once", out);
    }
    if (n_holdout > 0) {
        print_time(out, "; held-out check: up to ", one*n_holdout*(3.0*n_tau + 1.0));
    }
    fputs("\n", out);
    return print_memory(&probe, params, now, out, err);
}
