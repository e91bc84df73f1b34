// llama-kv-verify: what a policy costs in quality, against the full cache on the same text.

#include "kv-verify.h"
#include "tool.h"

#include "hwkv-version.h"
#include "llama-hwkv-model.h"
#include "llama-hwkv.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define N_SEQ_DEFAULT 4

static bool abort_decode(void * data) {
    (void) data;
    return sc_stop != 0;
}

//
// policy
//

static int check_windows(const struct verify * verify, const struct hwkv_point * point) {
    int32_t largest = 0;
    for (int32_t i = 0; i < hwkv_policy_n_unit(verify->policy); i++) {
        const int32_t window = point->windows[i];
        largest = window != HWKV_FULL && window > largest ? window : largest;
    }
    if (verify->n_ctx <= largest) {
        return fail_text("%s: point '%s': a chunk of %d tokens never leaves a window of %d, expected -c of more than %d", verify->args->policy,
                         point->name, verify->n_ctx, largest, largest);
    }
    return EXIT_OK;
}

static int select_points(struct verify * verify) {
    const struct verify_args * args = verify->args;
    const int32_t n_all = hwkv_policy_n_point(verify->policy);

    int32_t           first;
    struct hwkv_error err;
    if (hwkv_policy_choose_point(&first, verify->policy, args->point, &err) != HWKV_OK) {
        fail_file(args->policy, &err);
        return EXIT_NO_POINT;
    }
    first           = args->all_points ? 0 : first;
    verify->n_point = args->all_points ? n_all : 1;
    verify->points  = calloc((size_t) verify->n_point, sizeof(*verify->points));
    verify->results = calloc((size_t) verify->n_point, sizeof(*verify->results));
    if (!verify->points || !verify->results) {
        return fail_text("out of memory");
    }
    int code = EXIT_OK;
    for (int32_t i = 0; i < verify->n_point && code == EXIT_OK; i++) {
        verify->points[i].point = hwkv_policy_point(verify->policy, first + i);
        code = check_windows(verify, verify->points[i].point);
    }
    return code;
}

static int load_policy(struct verify * verify) {
    const struct verify_args * args = verify->args;
    struct hwkv_error err;
    if (hwkv_policy_load(&verify->policy, args->policy, &err) != HWKV_OK) {
        return fail_file(args->policy, &err);
    }
    verify->type_k = args->type_k >= 0 ? (enum hwkv_type) args->type_k : hwkv_policy_type_k(verify->policy);
    verify->type_v = args->type_v >= 0 ? (enum hwkv_type) args->type_v : hwkv_policy_type_v(verify->policy);
    verify->n_ctx  = args->n_ctx > 0 ? (int32_t) args->n_ctx : hwkv_policy_context(verify->policy);

    if (verify->n_ctx < VERIFY_MIN_CTX) {
        return fail_text("%s: found a policy for a context of %d, expected -c of at least %d", args->policy, verify->n_ctx, VERIFY_MIN_CTX);
    }
    if (verify->n_ctx != hwkv_policy_context(verify->policy)) {
        warn_text("context is %d, the windows were chosen for %d", verify->n_ctx, hwkv_policy_context(verify->policy));
    }
    if (verify->type_k != hwkv_policy_type_k(verify->policy) || verify->type_v != hwkv_policy_type_v(verify->policy)) {
        warn_text("cache types are %s/%s, the windows were chosen with %s/%s", hwkv_type_name(verify->type_k), hwkv_type_name(verify->type_v),
                  hwkv_type_name(hwkv_policy_type_k(verify->policy)), hwkv_type_name(hwkv_policy_type_v(verify->policy)));
    }
    return select_points(verify);
}

//
// model and text
//

static int check_readable(const char * path) {
    FILE * f = fopen(path, "rb");
    // a directory opens, but does not read
    const bool ok = f && (fgetc(f) != EOF || !ferror(f));
    const int  code = ok ? EXIT_OK : fail_text("%s: %s", path, strerror(errno));
    if (f) {
        fclose(f);
    }
    return code;
}

static bool on_load(float share, void * data) {
    struct verify * verify = data;
    sc_progress_add(verify->progress, (double) share - verify->loaded);
    verify->loaded = (double) share;
    return sc_stop == 0;
}

static int load_model(struct verify * verify, struct sc_log * log) {
    const char * path = verify->args->model;
    if (check_readable(path) != EXIT_OK) {
        return EXIT_FAIL;
    }
    struct llama_model_params params = llama_model_default_params();
    params.progress_callback           = on_load;
    params.progress_callback_user_data = verify;
    if (verify->args->n_gpu_layers >= 0) {
        params.n_gpu_layers = (int32_t) verify->args->n_gpu_layers;
    }
    sc_progress_start(verify->progress, 1.0);
    sc_progress_stage(verify->progress, "loading the model");
    verify->model = llama_model_load_from_file(path, params);
    sc_progress_end(verify->progress);
    if (!verify->model && sc_stop == 0) {
        return fail_text("%s: not a model that llama.cpp can load: %s", path, log->error[0] ? log->error : "unknown reason");
    }
    return verify->model ? EXIT_OK : fail_text("stopped while loading the model");
}

static int check_model(struct verify * verify) {
    const char         * path = verify->args->model;
    struct hwkv_geometry geo;
    struct hwkv_error    err;
    if (llama_hwkv_model_geometry(verify->model, &geo, &err) != HWKV_OK) {
        return fail_file(path, &err);
    }
    const char * warning = NULL;
    const int    res     = hwkv_policy_check_model(verify->policy, &geo, false, &warning, &err);
    for (int32_t i = 0; i < verify->n_point && res == HWKV_OK; i++) {
        struct verify_point * vp = &verify->points[i];
        vp->retention = hwkv_retention(&geo, vp->point->windows, verify->n_ctx, verify->type_k, verify->type_v);
    }
    hwkv_geometry_free(&geo);
    if (res != HWKV_OK) {
        return fail_file(verify->args->policy, &err);
    }
    if (warning) {
        warn_text("%s: %s", verify->args->policy, warning);
    }
    if (verify->n_ctx > llama_model_n_ctx_train(verify->model)) {
        warn_text("context is %d, the model was trained for %d", verify->n_ctx, llama_model_n_ctx_train(verify->model));
    }
    return EXIT_OK;
}

static int load_text(struct verify * verify) {
    const struct verify_args * args   = verify->args;
    const int64_t              wanted = args->n_seq > 0 ? args->n_seq : N_SEQ_DEFAULT;

    const struct sc_text_params params = {
        .vocab         = llama_model_get_vocab(verify->model),
        .paths         = args->files,
        .n_path        = args->n_file,
        .parse_special = args->parse_special,
        .n_tokens_max  = wanted * verify->n_ctx,
    };
    struct hwkv_error err;
    if (sc_text_load(&verify->text, &params, &err) != HWKV_OK) {
        char text[512];
        return fail_text("%s", hwkv_error_format(&err, text, sizeof(text)));
    }
    const int64_t found = sc_text_n_seq(&verify->text, verify->n_ctx);
    const int64_t least = args->n_seq > 0 ? args->n_seq : 1;
    if (found < least) {
        return fail_text("%s: the text is too short: found %lld tokens, which give %lld whole chunks of %d, expected %lld chunks (%lld tokens)",
                         verify->text.source, (long long) verify->text.n_tokens, (long long) found, verify->n_ctx, (long long) least,
                         (long long) (least * (verify->n_ctx - verify->text.n_bos)));
    }
    verify->n_seq  = (int32_t) (found < wanted ? found : wanted);
    verify->tokens = malloc((size_t) verify->n_seq * (size_t) verify->n_ctx * sizeof(*verify->tokens));
    if (!verify->tokens) {
        return fail_text("out of memory");
    }
    for (int32_t i = 0; i < verify->n_seq; i++) {
        sc_text_piece(&verify->text, i, verify->n_ctx, verify->tokens + (size_t) i * (size_t) verify->n_ctx);
    }
    return EXIT_OK;
}

//
// contexts
//

static enum ggml_type ggml_type_of(enum hwkv_type type) {
    for (int i = 0; i < GGML_TYPE_COUNT; i++) {
        const char * name = ggml_type_name((enum ggml_type) i);
        if (name && strcmp(name, hwkv_type_name(type)) == 0) {
            return (enum ggml_type) i;
        }
    }
    return GGML_TYPE_F16;
}

static struct llama_context * make_context(const struct verify * verify, const struct hwkv_point * point, struct sc_log * log) {
    struct llama_context_params params = llama_context_default_params();
    params.n_ctx           = (uint32_t) verify->n_ctx;
    params.n_batch         = (uint32_t) verify->args->n_ubatch;
    params.n_ubatch        = (uint32_t) verify->args->n_ubatch;
    params.n_threads       = (int32_t) verify->args->n_threads;
    params.n_threads_batch = (int32_t) verify->args->n_threads;
    params.type_k          = ggml_type_of(verify->type_k);
    params.type_v          = ggml_type_of(verify->type_v);
    params.swa_full        = false;
    params.abort_callback  = abort_decode;
    params.kv_policy       = point ? verify->args->policy : NULL;
    params.kv_policy_point = point ? point->name : NULL;

    log->error[0] = '\0';
    struct llama_context * ctx = llama_init_from_model(verify->model, params);
    if (!ctx) {
        fail_text("cannot create a context of %d tokens (%s): %s", verify->n_ctx, point ? point->name : "full cache",
                  log->error[0] ? log->error : "unknown reason");
    }
    return ctx;
}

static int make_contexts(struct verify * verify, struct sc_log * log) {
    verify->ctx_full = make_context(verify, NULL, log);
    if (!verify->ctx_full) {
        return EXIT_FAIL;
    }
    verify->bytes_full = llama_kv_policy_cache_size(verify->ctx_full);

    for (int32_t i = 0; i < verify->n_point; i++) {
        struct verify_point * vp = &verify->points[i];
        vp->ctx = make_context(verify, vp->point, log);
        if (!vp->ctx) {
            return EXIT_FAIL;
        }
        vp->bytes = llama_kv_policy_cache_size(vp->ctx);
    }
    return EXIT_OK;
}

//
// results
//

// The file is written beside its place and renamed: it is either the old one or the whole new one. It is opened before
// the long run, so that a name that cannot be written is known at once.
static int open_json(struct verify * verify) {
    const char * path = verify->args->json;
    if (!path || strcmp(path, "-") == 0) {
        return EXIT_OK;
    }
    const size_t size = strlen(path) + sizeof(".part");
    verify->part = malloc(size);
    if (!verify->part) {
        return fail_text("out of memory");
    }
    snprintf(verify->part, size, "%s.part", path);
    verify->json = fopen(verify->part, "w");
    return verify->json ? EXIT_OK : fail_text("%s: cannot be written: %s", path, strerror(errno));
}

static int save_json(struct verify * verify) {
    FILE * out = verify->json;
    verify->json = NULL;

    verify_print_json(out, verify);
    bool ok = !ferror(out);
    ok = fclose(out) == 0 && ok;
    ok = ok && rename(verify->part, verify->args->json) == 0;
    if (!ok) {
        fail_text("%s: cannot be written: %s", verify->args->json, strerror(errno));
        remove(verify->part);
    }
    return ok ? EXIT_OK : EXIT_FAIL;
}

static int report(struct verify * verify) {
    const int code = verify->json ? save_json(verify) : EXIT_OK;
    if (verify->args->json && strcmp(verify->args->json, "-") == 0) {
        verify_print_json(stdout, verify);
    } else {
        verify_print_table(stdout, verify);
    }
    errno = 0;
    if (fflush(stdout) != 0 || ferror(stdout)) {
        return fail_text("stdout: %s", errno ? strerror(errno) : "not everything could be written");
    }
    return code;
}

static int compare(struct verify * verify) {
    struct llama_context ** contexts = malloc((size_t) verify->n_point * sizeof(*contexts));
    const char           ** names    = malloc((size_t) verify->n_point * sizeof(*names));
    int code = contexts && names ? EXIT_OK : fail_text("out of memory");

    for (int32_t i = 0; i < verify->n_point && code == EXIT_OK; i++) {
        contexts[i] = verify->points[i].ctx;
        names   [i] = verify->points[i].point->name;
    }
    const struct sc_verify_params params = {
        .ctx_full   = verify->ctx_full,
        .ctx_policy = contexts,
        .names      = names,
        .n_policy   = verify->n_point,
        .tokens     = verify->tokens,
        .n_seq      = verify->n_seq,
        .n_ctx      = verify->n_ctx,
        .n_thread   = (int32_t) verify->args->n_threads,
        .progress   = verify->progress,
        .stop       = &sc_stop,
    };
    if (code == EXIT_OK) {
        struct hwkv_error err;
        sc_progress_start(verify->progress, sc_verify_work(&params));
        const int res = sc_verify(verify->results, &params, &err);
        sc_progress_end(verify->progress);
        verify->complete = res == 0;
        code = res < 0 ? fail_text("%s", err.msg) : EXIT_OK;
    }
    free(contexts);
    free(names);
    return code;
}

static int verify_run(struct verify * verify, struct sc_log * log) {
    int code = load_policy(verify);
    code = code == EXIT_OK ? open_json(verify) : code;
    for (int32_t i = 0; i < verify->args->n_file && code == EXIT_OK; i++) {
        code = check_readable(verify->args->files[i]); // before the model is loaded
    }
    code = code == EXIT_OK ? load_model(verify, log)    : code;
    code = code == EXIT_OK ? check_model(verify)        : code;
    code = code == EXIT_OK ? load_text(verify)          : code;
    code = code == EXIT_OK ? make_contexts(verify, log) : code;
    code = code == EXIT_OK ? compare(verify)            : code;
    if (code == EXIT_OK && verify->results[0].n_chunk == 0) {
        code = fail_text("stopped before the first chunk was finished");
    } else if (code == EXIT_OK) {
        code = report(verify);
    }
    return sc_stop != 0 && !verify->complete ? 128 + (int) sc_stop : code;
}

static void verify_free(struct verify * verify) {
    for (int32_t i = 0; i < verify->n_point; i++) {
        if (verify->results) {
            sc_verify_result_free(&verify->results[i]);
        }
        if (verify->points && verify->points[i].ctx) {
            llama_free(verify->points[i].ctx);
        }
    }
    if (verify->ctx_full) {
        llama_free(verify->ctx_full);
    }
    if (verify->json) {
        fclose(verify->json);
        remove(verify->part);
    }
    free(verify->part);
    sc_progress_free(verify->progress);
    free(verify->points);
    free(verify->results);
    free(verify->tokens);
    sc_text_free(&verify->text);
    llama_model_free(verify->model);
    hwkv_policy_free(verify->policy);
}

int main(int argc, char ** argv) {
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "-h") == 0 || strcmp(argv[i], "--help") == 0) {
            fputs(VERIFY_HELP, stdout);
            return EXIT_OK;
        }
        if (strcmp(argv[i], "--version") == 0) {
            printf("%s: %s\n", TOOL_NAME, hwkv_version_line());
            return EXIT_OK;
        }
    }
    struct verify_args args;
    if (!verify_read_args(&args, argc - 1, argv + 1)) {
        free(args.files);
        return EXIT_USAGE;
    }
    sc_catch_signals();

    struct sc_log log = { .verbose = args.verbose };
    llama_log_set(sc_log_callback, &log);
    llama_backend_init();

    struct verify verify = { .args = &args };
    verify.progress = sc_progress_init(stderr, args.json_progress ? SC_PROGRESS_JSON : SC_PROGRESS_AUTO);
    const int code = verify_run(&verify, &log);

    verify_free(&verify);
    llama_backend_free();
    llama_log_set(NULL, NULL);
    free(args.files);
    return code;
}
