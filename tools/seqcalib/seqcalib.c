// llama-seqcalib: how much history every KV head needs and in which cache type, found layer by layer.

#include "seqcalib-allocate.h"
#include "seqcalib-calibrate.h"
#include "seqcalib-estimate.h"
#include "seqcalib-options.h"
#include "seqcalib-output.h"
#include "seqcalib-report.h"
#include "seqcalib-statistics.h"
#include "seqcalib-validate.h"
#include "seqcalib-work.h"

#include "tool-file.h"
#include "tool-json.h"
#include "tool-llama.h"
#include "tool-progress.h"
#include "tool-text.h"

#include "hwkv-error.h"
#include "hwkv-version.h"
#include "llama-hwkv-model.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#ifdef __GLIBC__
#include <malloc.h>
#endif

// everything a run holds
struct run {
    struct sc_options    opt;
    struct tool_log        log;
    struct llama_model * model;
    struct hwkv_geometry geo;
    struct tool_text       text;
    struct sc_holdout    holdout;
    llama_token        * tokens;
    struct sc_codebook   codebook;
    struct sc_input      in;
    struct sc_calib      calib;
    struct sc_distort    distort;
    struct sc_allocate   alloc;    // with --allocate
    struct tool_progress * progress;
    char               * work_path;
};

static int fail(const struct run * run, const struct hwkv_error * err) {
    char line[512];
    const bool more = err->code == HWKV_ERR_INTERNAL && run->log.error[0];
    return tool_fail("%s%s%s%s", hwkv_error_format(err, line, sizeof(line)), more ? " (" : "", more ? run->log.error : "", more ? ")" : "");
}

// Adds the file to an error that names none.
static int name_file(struct hwkv_error * err, const char * path, int status) {
    if (status != HWKV_OK && err->path[0] == '\0') {
        char msg[sizeof(err->msg)];
        snprintf(msg, sizeof(msg), "%s", err->msg);
        hwkv_fail(err, status, path, "%s", msg);
    }
    return status;
}

static int show_statistics(const char * path) {
    struct hwkv_policy * policy;
    struct hwkv_error err;
    if (hwkv_policy_load(&policy, path, &err) != HWKV_OK) {
        return tool_fail_file(path, &err);
    }
    sc_statistics(stdout, policy, -1);
    hwkv_policy_free(policy);
    return tool_finish(TOOL_EXIT_OK);
}

static int check_input(const char * path) {
    const int unreadable = tool_check_readable(path);
    return unreadable ? tool_fail("%s: cannot be read: %s", path, strerror(unreadable)) : TOOL_EXIT_OK;
}

static int make_work_path(struct run * run) {
    const struct sc_options * opt = &run->opt;
    const char * base = opt->work ? opt->work : strcmp(opt->out, "-") == 0 ? "llama-seqcalib" : opt->out;

    const size_t size = strlen(base) + 8;
    run->work_path = malloc(size);
    if (!run->work_path) {
        return tool_fail("out of memory");
    }
    snprintf(run->work_path, size, "%s%s", base, opt->work ? "" : ".work");
    return TOOL_EXIT_OK;
}

// A policy takes hours: another one is not overwritten by mistake. A run that is resumed was allowed to when it began.
static int check_overwrite(const struct run * run) {
    const struct sc_options * opt = &run->opt;
    struct stat st;

    if (opt->force || strcmp(opt->out, "-") == 0 || stat(opt->out, &st) != 0) {
        return TOOL_EXIT_OK;
    }
    if (opt->resume && stat(run->work_path, &st) == 0 && st.st_size > 0) {
        return TOOL_EXIT_OK;
    }
    return tool_fail("%s: found a file, expected none, or --force to overwrite it", opt->out);
}

// What would fail after the model has been loaded, or after hours, fails here.
static int check_files(struct run * run) {
    const struct sc_options * opt = &run->opt;
    struct hwkv_error err;

    int code = check_input(opt->model);
    for (int32_t i = 0; i < opt->files.n && code == TOOL_EXIT_OK; i++) {
        code = check_input(opt->files.items[i]);
    }
    for (int32_t i = 0; i < opt->holdout_files.n && code == TOOL_EXIT_OK; i++) {
        code = check_input(opt->holdout_files.items[i]);
    }
    if (code != TOOL_EXIT_OK || opt->dry_run) {
        return code;
    }

    int status = strcmp(opt->out, "-") == 0 ? HWKV_OK : name_file(&err, opt->out, tool_check_writable(opt->out, false, &err));
    if (status == HWKV_OK && opt->html) {
        status = name_file(&err, opt->html, tool_check_writable(opt->html, true, &err));
    }
    if (status != HWKV_OK) {
        return fail(run, &err);
    }
    code = make_work_path(run);
    return code == TOOL_EXIT_OK ? check_overwrite(run) : code;
}

// The candidates: what cannot be is the caller's mistake.
static int make_codebook(struct run * run) {
    struct sc_options * opt = &run->opt;
    struct hwkv_error   err;
    char                note[512];

    const struct sc_pair         cache  = { opt->type_k, opt->type_v };
    const struct sc_types_params params = { .model = run->model, .geo = &run->geo, .n_ctx = opt->n_ctx, .n_ubatch = opt->n_ubatch, .cache = cache };
    int status = sc_types_settle(&opt->types, &params, note, sizeof(note), &err);
    if (status == HWKV_OK && note[0]) {
        tool_progress_line(run->progress, "%s", note);
    }
    const struct sc_codebook_params candidates = {
        .geo = &run->geo, .n_ctx = opt->n_ctx, .windows = opt->windows.w, .n_window = opt->windows.n, .pairs = &opt->types.pairs,
        .cache = cache,
    };
    if (status == HWKV_OK) {
        status = sc_codebook_init(&run->codebook, &candidates, &err);
    }
    if (status != HWKV_OK) {
        tool_say("error", "%s", err.msg);
        return TOOL_EXIT_USAGE;
    }
    status = sc_types_rotation(&run->codebook, &params, &err);
    return status == HWKV_OK ? TOOL_EXIT_OK : fail(run, &err);
}

static int load_model(struct run * run) {
    struct sc_options * opt = &run->opt;
    struct hwkv_error err;

    struct llama_model_params params = llama_model_default_params();
    params.n_gpu_layers = opt->n_gpu_layers;
    run->model = llama_model_load_from_file(opt->model, params);
    if (!run->model) {
        return tool_fail("%s: not a model that llama.cpp can load: %s", opt->model, run->log.error);
    }
    if (llama_hwkv_model_geometry(run->model, &run->geo, &err) != HWKV_OK) {
        return fail(run, &err);
    }
    if (run->geo.n_full == 0) {
        return tool_fail("%s: found no full-attention layer, there is nothing to calibrate", opt->model);
    }
    const int32_t n_ctx_train = llama_model_n_ctx_train(run->model);
    const int code = sc_options_settle(opt, n_ctx_train);
    if (code == TOOL_EXIT_OK && opt->n_ctx > n_ctx_train) {
        tool_warn("the context is %d, the model was trained for %d", opt->n_ctx, n_ctx_train);
    }
    return code == TOOL_EXIT_OK ? make_codebook(run) : code;
}

static int load_text(struct run * run) {
    struct sc_options * opt = &run->opt;
    struct hwkv_error err;

    // the held-out pieces and the chat come after the others
    const bool    rest  = opt->n_holdout > 0 && opt->holdout_files.n == 0;
    const int64_t n_all = opt->n_seq + (rest ? opt->n_holdout + 1 : 0);

    struct tool_text_params params = {
        .vocab         = llama_model_get_vocab(run->model),
        .paths         = opt->files.items,
        .n_path        = opt->files.n,
        .parse_special = opt->parse_special,
        .n_tokens_max  = n_all*opt->n_ctx,
    };
    if (tool_text_load(&run->text, &params, &err) != HWKV_OK) {
        return fail(run, &err);
    }
    const int64_t n_found = tool_text_n_seq(&run->text, opt->n_ctx);
    if (n_found < opt->n_seq) {
        return tool_fail("%s: found %lld tokens, enough for %lld sequences of %d, expected %d", run->text.source, (long long) run->text.n_tokens, (long long) n_found,
               opt->n_ctx, opt->n_seq);
    }

    run->tokens = malloc(sizeof(llama_token)*(size_t) opt->n_seq*(size_t) opt->n_ctx);
    if (!run->tokens) {
        return tool_fail("out of memory");
    }
    for (int32_t i = 0; i < opt->n_seq; i++) {
        tool_text_piece(&run->text, i, opt->n_ctx, run->tokens + (int64_t) i*opt->n_ctx);
    }
    if (opt->n_holdout == 0) {
        return TOOL_EXIT_OK;
    }

    struct tool_text text;
    params.paths        = rest ? opt->files.items : opt->holdout_files.items;
    params.n_path       = rest ? opt->files.n : opt->holdout_files.n;
    params.n_tokens_max = rest ? n_all*opt->n_ctx : (int64_t) (opt->n_holdout + 1)*opt->n_ctx;
    int status = tool_text_load(&text, &params, &err);
    if (status == HWKV_OK) {
        status = sc_holdout_init(&run->holdout, run->model, &text, rest ? opt->n_seq : 0, opt->n_holdout, opt->n_ctx, &err);
    }
    return status == HWKV_OK ? TOOL_EXIT_OK : fail(run, &err);
}

static void make_input(struct run * run) {
    const struct sc_options * opt = &run->opt;

    run->in = (struct sc_input) {
        .model      = run->model,
        .geo        = &run->geo,
        .n_ctx      = opt->n_ctx,
        .n_seq      = opt->n_seq,
        .n_query    = opt->n_query,
        .n_ubatch   = opt->n_ubatch,
        .n_thread   = opt->n_thread,
        .sinks      = opt->sinks,
        .seed       = (uint64_t) opt->seed,
        .codebook   = &run->codebook,
        .type_k     = tool_ggml_type(opt->type_k),
        .type_v     = tool_ggml_type(opt->type_v),
        .tokens     = run->tokens,
        .per_layer  = opt->per_layer,
        .losses     = opt->allocate.n > 0,
        .naive      = opt->naive,
        .progress   = run->progress,
        .stop       = &tool_stop,
    };
}

static int restore_layer(void * user, int32_t jl, uint64_t mask, const double * scores, int32_t n_score, struct hwkv_error * err) {
    struct run * run = user;
    return run->opt.allocate.n > 0 ? sc_allocate_restore(&run->alloc, jl, mask, scores, n_score, err) :
        sc_calib_restore(&run->calib, jl, mask, scores, n_score, err);
}

static int restore_validation(void * user, int32_t ip, const char * json, struct hwkv_error * err) {
    struct run * run = user;
    if (ip < 0 || ip >= run->calib.n_tau || run->calib.validation[ip]) {
        return hwkv_fail(err, HWKV_ERR_MISMATCH, NULL, "work file: found a point of another run");
    }
    run->calib.validation[ip] = strdup(json);
    return run->calib.validation[ip] ? HWKV_OK : hwkv_fail(err, HWKV_ERR_NOMEM, NULL, "out of memory");
}

static int open_work(struct run * run, struct hwkv_error * err) {
    const struct sc_options * opt = &run->opt;

    // all that the lines depend on: the program, the inputs, every floor or budget, how it is computed and what is checked
    char hex[65];
    struct hwkv_sha256 s;
    hwkv_sha256_init(&s);
    hwkv_sha256_string(&s, hwkv_version_line());
    hwkv_sha256_string(&s, opt->allocate.n > 0 ? SC_LOSS_KIND : "cosine");
    for (int32_t i = 0; i < run->calib.n_tau; i++) {
        sc_artifact_id(&run->in, opt->allocate.n > 0 ? (double) run->alloc.budgets[i] : opt->taus.tau[i], hex);
        hwkv_sha256_string(&s, hex);
    }
    hwkv_sha256_i64(&s, opt->n_ubatch);
    hwkv_sha256_string(&s, run->holdout.text.source);
    hwkv_sha256_string(&s, run->holdout.text.sha256);
    for (int64_t i = 0; i < (int64_t) run->holdout.n_seq*opt->n_ctx; i++) {
        hwkv_sha256_i64(&s, run->holdout.tokens[i]);
    }
    hwkv_sha256_final(&s, hex);

    const struct sc_work_reader reader = { .user = run, .layer = restore_layer, .validation = restore_validation };
    return name_file(err, run->work_path, sc_work_open(&run->calib.work, run->work_path, hex, opt->resume ? &reader : NULL, err));
}

// nothing if an earlier run has traced all layers
static void print_agreement(const struct run * run) {
    const double agreement = run->calib.agreement;
    if (agreement > 1.5) {
        return;
    }
    if (run->opt.json_progress) {
        struct hwkv_json * object = hwkv_json_new_object();
        hwkv_json_add(object, "agreement", tool_json_measure(agreement));
        tool_json_print_line(stderr, object);
    } else {
        // rounded down: what is said holds
        tool_progress_line(run->progress, "replay and traced attention agree to %.6f or better", floor(agreement*1e6)*1e-6);
    }
}

// In sweeps over all layers; of this run, where an earlier one has done a part.
static void print_cost(const struct run * run) {
    if (run->opt.allocate.n > 0) {
        tool_progress_line(run->progress, "%d budget%s took %.2f sweeps", run->opt.allocate.n, run->opt.allocate.n == 1 ? "" : "s", (double) run->in.n_pass/run->geo.n_full);
    }
}

static int write_outputs(struct run * run, struct hwkv_error * err) {
    const struct sc_options * opt = &run->opt;

    struct hwkv_policy * policy;
    bool selected;
    const struct sc_result result = { .calib = &run->calib, .alloc = opt->allocate.n > 0 ? &run->alloc : NULL, .text = &run->text };
    int status = sc_make_policy(&policy, &selected, &result, opt, err);
    if (status != HWKV_OK) {
        return fail(run, err);
    }

    if (strcmp(opt->out, "-") == 0) {
        char * text;
        status = hwkv_policy_print(&text, policy, err);
        if (status == HWKV_OK) {
            if (fputs(text, stdout) == EOF || fflush(stdout) != 0) {
                status = hwkv_fail(err, HWKV_ERR_IO, NULL, "stdout: %s", strerror(errno));
            }
            hwkv_string_free(text);
        }
    } else {
        status = name_file(err, opt->out, hwkv_policy_save(policy, opt->out, err));
    }
    if (status == HWKV_OK && opt->html) {
        status = name_file(err, opt->html, sc_report_html(opt->html, policy, err));
    }

    int code = TOOL_EXIT_OK;
    if (status != HWKV_OK) {
        code = fail(run, err);
    } else {
        sc_print_points(run->progress, policy);
        print_cost(run);
        print_agreement(run);
        if (!selected) {
            tool_fail("no operating point: none of %d fits the budget; the file holds them all", run->calib.n_tau);
            code = TOOL_EXIT_NO_POINT;
        }
    }
    hwkv_policy_free(policy);
    return code;
}

// What is to be chosen, before anything is measured.
static int prepare(struct run * run, struct hwkv_error * err) {
    const struct sc_options * opt = &run->opt;
    if (opt->allocate.n == 0) {
        return sc_calib_init(&run->calib, &run->in, opt->taus.tau, opt->taus.n, err);
    }
    int status = sc_calib_init(&run->calib, &run->in, NULL, opt->allocate.n, err);
    if (status == HWKV_OK) {
        status = sc_distort_init(&run->distort, &run->in, err);
        run->calib.distort = &run->distort;
    }
    return status == HWKV_OK ? sc_allocate_init(&run->alloc, &run->calib, &opt->allocate, err) : status;
}

static int sweep(struct run * run, struct hwkv_error * err) {
    const int32_t n_budget = run->opt.allocate.n;

    // a sweep of several budgets is one for each
    tool_progress_start(run->progress, run->geo.n_full*(1 + n_budget));
    const int status = n_budget > 0 ? sc_allocate_run(&run->alloc, err) : sc_calib_run(&run->calib, err);
    tool_progress_end(run->progress);
    return status;
}

static int calibrate(struct run * run) {
    struct hwkv_error err;

    int status = prepare(run, &err);
    if (status == HWKV_ERR_BUDGET) {
        tool_fail("no operating point: %s", err.msg);
        return TOOL_EXIT_NO_POINT;
    }
    if (status == HWKV_OK) {
        status = open_work(run, &err);
    }
    if (status == HWKV_OK) {
        status = sweep(run, &err);
    }
    if (status == HWKV_OK && run->holdout.n_seq > 0) {
        status = sc_validate(&run->calib, &run->holdout, &err);
    }

    int code;
    if (status == SC_ERR_STOPPED) {
        tool_fail("stopped; what is done is in %s, the same command with --resume goes on", run->work_path);
        code = TOOL_EXIT_STOPPED;
    } else if (status != HWKV_OK) {
        code = fail(run, &err);
    } else {
        code = write_outputs(run, &err);
    }
    sc_work_close(run->calib.work, code == TOOL_EXIT_OK || code == TOOL_EXIT_NO_POINT);
    run->calib.work = NULL;
    return code;
}

static int run_tool(struct run * run) {
    int code = check_files(run);
    if (code == TOOL_EXIT_OK) {
        code = load_model(run);
    }
    if (code == TOOL_EXIT_OK) {
        code = load_text(run);
    }
    if (code != TOOL_EXIT_OK) {
        return code;
    }
    make_input(run);

    if (run->opt.dry_run) {
        struct hwkv_error err;
        const struct sc_estimate_params params = {
            .path_model   = run->opt.model,
            .n_gpu_layers = run->opt.n_gpu_layers,
            .n_tau        = run->opt.allocate.n > 0 ? run->opt.allocate.n : run->opt.taus.n,
            .allocate     = run->opt.allocate.n > 0,
            .n_holdout    = run->holdout.n_seq,
        };
        const int status = sc_estimate(&run->in, &params, stdout, &err);
        return status == HWKV_OK ? TOOL_EXIT_OK : status == SC_ERR_STOPPED ? TOOL_EXIT_STOPPED : fail(run, &err);
    }
    return calibrate(run);
}

int main(int argc, char ** argv) {
    static struct run run;

#ifdef __GLIBC__
    mallopt(M_MMAP_THRESHOLD, 1 << 20); // what a pass frees goes back at once: glibc would keep buffers of up to 32 MiB
#endif

    tool_begin("llama-seqcalib", tool_args_has(argc, argv, "--json-progress", NULL));
    int code = sc_options_read(&run.opt, argc - 1, argv + 1);
    if (code >= 0) {
        return code;
    }
    if (run.opt.statistics) {
        return show_statistics(run.opt.statistics);
    }

    tool_catch_signals();
    run.log.verbose = run.opt.verbose;
    run.log.json    = run.opt.json_progress;
    llama_log_set(tool_log_callback, &run.log);
    llama_backend_init();
    run.progress = tool_progress_init(stderr, run.opt.json_progress ? TOOL_PROGRESS_JSON : TOOL_PROGRESS_AUTO);

    code = run_tool(&run);

    tool_progress_free(run.progress);
    sc_allocate_free(&run.alloc);
    sc_distort_free(&run.distort);
    sc_calib_free(&run.calib);
    sc_holdout_free(&run.holdout);
    tool_text_free(&run.text);
    hwkv_geometry_free(&run.geo);
    free(run.tokens);
    free(run.work_path);
    if (run.model) {
        llama_model_free(run.model);
    }
    llama_backend_free();
    return code;
}
