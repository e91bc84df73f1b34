// llama-kv-verify: what a policy costs in quality, against the full cache on the same text.

#include "kv-verify.h"

#include "tool-file.h"
#include "tool-json.h"
#include "tool-llama.h"

#include "llama-hwkv-model.h"
#include "llama-hwkv.h"

#include <stdlib.h>
#include <string.h>

#define N_SEQ_DEFAULT 4

static bool abort_decode(void * data) {
    (void) data;
    return tool_stop != 0;
}

//
// policy
//

static int check_windows(const struct kvv_run * verify, const struct hwkv_point * point) {
    const struct hwkv_entry * codebook = hwkv_policy_codebook(verify->policy, NULL);
    int32_t                   largest  = 0;
    for (int32_t i = 0; i < hwkv_policy_n_unit(verify->policy); i++) {
        const int32_t window = codebook[point->entries[i]].window;
        largest = window != HWKV_FULL && window > largest ? window : largest;
    }
    if (verify->n_ctx <= largest) {
        return tool_fail("%s: point '%s': a chunk of %d tokens never leaves a window of %d, expected -c of more than %d", verify->args->policy,
                         point->name, verify->n_ctx, largest, largest);
    }
    return TOOL_EXIT_OK;
}

static int select_points(struct kvv_run * verify) {
    const struct kvv_args * args = verify->args;
    const int32_t n_all = hwkv_policy_n_point(verify->policy);

    int32_t           first;
    struct hwkv_error err;
    if (hwkv_policy_choose_point(&first, verify->policy, args->point, &err) != HWKV_OK) {
        tool_fail_file(args->policy, &err);
        return TOOL_EXIT_NO_POINT;
    }
    first           = args->all_points ? 0 : first;
    verify->n_point = args->all_points ? n_all : 1;
    verify->points  = calloc((size_t) verify->n_point, sizeof(*verify->points));
    verify->results = calloc((size_t) verify->n_point, sizeof(*verify->results));
    if (!verify->points || !verify->results) {
        return tool_fail("out of memory");
    }
    int code = TOOL_EXIT_OK;
    for (int32_t i = 0; i < verify->n_point && code == TOOL_EXIT_OK; i++) {
        verify->points[i].point = hwkv_policy_point(verify->policy, first + i);
        code = check_windows(verify, verify->points[i].point);
    }
    return code;
}

static int load_policy(struct kvv_run * verify) {
    const struct kvv_args * args = verify->args;
    struct hwkv_error err;
    if (hwkv_policy_load(&verify->policy, args->policy, &err) != HWKV_OK) {
        return tool_fail_file(args->policy, &err);
    }
    const bool given_k = args->type_k != HWKV_TYPE_CACHE;
    const bool given_v = args->type_v != HWKV_TYPE_CACHE;
    if ((given_k || given_v) && hwkv_policy_check_types_option(verify->policy, given_k ? "-ctk" : "-ctv", &err) != HWKV_OK) {
        return tool_fail_file(args->policy, &err);
    }
    verify->type_k = args->type_k != HWKV_TYPE_CACHE ? args->type_k : hwkv_policy_type_k(verify->policy);
    verify->type_v = args->type_v != HWKV_TYPE_CACHE ? args->type_v : hwkv_policy_type_v(verify->policy);
    verify->n_ctx  = args->n_ctx > 0 ? args->n_ctx : hwkv_policy_context(verify->policy);

    if (verify->n_ctx < KVV_MIN_CTX) {
        return tool_fail("%s: found a policy for a context of %d, expected -c of at least %d", args->policy, verify->n_ctx, KVV_MIN_CTX);
    }
    if (verify->n_ctx != hwkv_policy_context(verify->policy)) {
        tool_warn("context is %d, the windows were chosen for %d", verify->n_ctx, hwkv_policy_context(verify->policy));
    }
    if (verify->type_k != hwkv_policy_type_k(verify->policy) || verify->type_v != hwkv_policy_type_v(verify->policy)) {
        tool_warn("cache types are %s/%s, the windows were chosen with %s/%s", hwkv_type_name(verify->type_k), hwkv_type_name(verify->type_v),
                  hwkv_type_name(hwkv_policy_type_k(verify->policy)), hwkv_type_name(hwkv_policy_type_v(verify->policy)));
    }
    return select_points(verify);
}

//
// model and text
//

static int check_readable(const char * path) {
    const int unreadable = tool_check_readable(path);
    return unreadable ? tool_fail("%s: %s", path, strerror(unreadable)) : TOOL_EXIT_OK;
}

static bool on_load(float share, void * data) {
    struct kvv_run * verify = data;
    tool_progress_add(verify->progress, (double) share - verify->loaded);
    verify->loaded = (double) share;
    return tool_stop == 0;
}

static int load_model(struct kvv_run * verify, struct tool_log * log) {
    const char * path = verify->args->model;
    if (check_readable(path) != TOOL_EXIT_OK) {
        return TOOL_EXIT_FAIL;
    }
    struct llama_model_params params = llama_model_default_params();
    params.progress_callback           = on_load;
    params.progress_callback_user_data = verify;
    if (verify->args->n_gpu_layers >= 0) {
        params.n_gpu_layers = verify->args->n_gpu_layers;
    }
    tool_progress_start(verify->progress, 1.0);
    tool_progress_stage(verify->progress, "loading the model");
    verify->model = llama_model_load_from_file(path, params);
    tool_progress_end(verify->progress);
    if (!verify->model && tool_stop == 0) {
        return tool_fail("%s: not a model that llama.cpp can load: %s", path, tool_log_reason(log));
    }
    return verify->model ? TOOL_EXIT_OK : tool_fail("stopped while loading the model");
}

static int check_model(struct kvv_run * verify) {
    const char         * path = verify->args->model;
    struct hwkv_geometry geo;
    struct hwkv_error    err;
    if (llama_hwkv_model_geometry(verify->model, &geo, &err) != HWKV_OK) {
        return tool_fail_file(path, &err);
    }
    const struct hwkv_cache cache = { .n_ctx = verify->n_ctx, .type_k = verify->type_k, .type_v = verify->type_v };

    const char * warning = NULL;
    const int    res     = hwkv_policy_check_model(verify->policy, &geo, false, &warning, &err);
    for (int32_t i = 0; i < verify->n_point && res == HWKV_OK; i++) {
        struct kvv_point * vp = &verify->points[i];
        vp->retention = hwkv_retention(&geo, hwkv_policy_codebook(verify->policy, NULL), vp->point->entries, &cache);
    }
    hwkv_geometry_free(&geo);
    if (res != HWKV_OK) {
        return tool_fail_file(verify->args->policy, &err);
    }
    if (warning) {
        tool_warn("%s: %s", verify->args->policy, warning);
    }
    if (verify->n_ctx > llama_model_n_ctx_train(verify->model)) {
        tool_warn("context is %d, the model was trained for %d", verify->n_ctx, llama_model_n_ctx_train(verify->model));
    }
    return TOOL_EXIT_OK;
}

static int load_text(struct kvv_run * verify) {
    const struct kvv_args * args   = verify->args;
    const int64_t              wanted = args->n_seq > 0 ? args->n_seq : N_SEQ_DEFAULT;

    const struct tool_text_params params = {
        .vocab         = llama_model_get_vocab(verify->model),
        .paths         = args->files.items,
        .n_path        = args->files.n,
        .parse_special = args->parse_special,
        .n_tokens_max  = wanted * verify->n_ctx,
    };
    struct hwkv_error err;
    if (tool_text_load(&verify->text, &params, &err) != HWKV_OK) {
        char text[512];
        return tool_fail("%s", hwkv_error_format(&err, text, sizeof(text)));
    }
    const int64_t found = tool_text_n_seq(&verify->text, verify->n_ctx);
    const int64_t least = args->n_seq > 0 ? args->n_seq : 1;
    if (found < least) {
        return tool_fail("%s: the text is too short: found %lld tokens, which give %lld whole chunks of %d, expected %lld chunks (%lld tokens)",
                         verify->text.source, (long long) verify->text.n_tokens, (long long) found, verify->n_ctx, (long long) least,
                         (long long) (least * (verify->n_ctx - verify->text.n_bos)));
    }
    verify->n_seq  = (int32_t) (found < wanted ? found : wanted);
    verify->tokens = malloc((size_t) verify->n_seq * (size_t) verify->n_ctx * sizeof(*verify->tokens));
    if (!verify->tokens) {
        return tool_fail("out of memory");
    }
    for (int32_t i = 0; i < verify->n_seq; i++) {
        tool_text_piece(&verify->text, i, verify->n_ctx, verify->tokens + (size_t) i * (size_t) verify->n_ctx);
    }
    return TOOL_EXIT_OK;
}

//
// contexts
//

static struct llama_context * make_context(const struct kvv_run * verify, const struct hwkv_point * point, struct tool_log * log) {
    struct llama_context_params params = llama_context_default_params();
    params.n_ctx           = (uint32_t) verify->n_ctx;
    params.n_batch         = (uint32_t) verify->args->n_ubatch;
    params.n_ubatch        = (uint32_t) verify->args->n_ubatch;
    params.n_threads       = verify->args->n_threads;
    params.n_threads_batch = verify->args->n_threads;
    params.type_k          = tool_ggml_type(verify->type_k);
    params.type_v          = tool_ggml_type(verify->type_v);
    params.swa_full        = false;
    params.abort_callback  = abort_decode;
    params.kv_policy       = point ? verify->args->policy : NULL;
    params.kv_policy_point = point ? point->name : NULL;

    log->error[0] = '\0';
    struct llama_context * ctx = llama_init_from_model(verify->model, params);
    if (!ctx) {
        tool_fail("cannot create a context of %d tokens (%s): %s", verify->n_ctx, point ? point->name : "full cache",
                  tool_log_reason(log));
    }
    return ctx;
}

static int make_contexts(struct kvv_run * verify, struct tool_log * log) {
    verify->ctx_full = make_context(verify, NULL, log);
    if (!verify->ctx_full) {
        return TOOL_EXIT_FAIL;
    }
    verify->bytes_full = llama_kv_policy_cache_size(verify->ctx_full);

    for (int32_t i = 0; i < verify->n_point; i++) {
        struct kvv_point * vp = &verify->points[i];
        vp->ctx = make_context(verify, vp->point, log);
        if (!vp->ctx) {
            return TOOL_EXIT_FAIL;
        }
        vp->bytes = llama_kv_policy_cache_size(vp->ctx);
    }
    return TOOL_EXIT_OK;
}

//
// results
//

// A name that cannot be written is known before the long run.
static int check_json(const struct kvv_run * verify) {
    struct hwkv_error err;
    const char      * path = verify->args->json;
    if (!path || strcmp(path, "-") == 0 || tool_check_writable(path, true, &err) == HWKV_OK) {
        return TOOL_EXIT_OK;
    }
    return tool_fail_file(path, &err);
}

static int save_json(const struct kvv_run * verify, struct hwkv_json * result) {
    struct hwkv_error err;
    char            * text = NULL;

    int res = hwkv_json_print(&text, result, &err);
    if (res == HWKV_OK) {
        res = hwkv_file_write(verify->args->json, text, &err);
    }
    hwkv_string_free(text);
    hwkv_json_free(result);
    return res == HWKV_OK ? TOOL_EXIT_OK : tool_fail_file(verify->args->json, &err);
}

static int report(const struct kvv_run * verify) {
    const bool to_stdout = verify->args->json && strcmp(verify->args->json, "-") == 0;
    int        code      = TOOL_EXIT_OK;

    if (verify->args->json) {
        struct hwkv_json * result = kvv_json(verify);
        if (!result) {
            code = tool_fail("out of memory");
        } else if (to_stdout) {
            tool_json_print(stdout, result);
        } else {
            code = save_json(verify, result);
        }
    }
    if (!to_stdout) {
        kvv_print_table(stdout, verify);
    }
    return tool_finish(code);
}

static int compare(struct kvv_run * verify) {
    struct llama_context ** contexts = malloc((size_t) verify->n_point * sizeof(*contexts));
    const char           ** names    = malloc((size_t) verify->n_point * sizeof(*names));
    int code = contexts && names ? TOOL_EXIT_OK : tool_fail("out of memory");

    for (int32_t i = 0; i < verify->n_point && code == TOOL_EXIT_OK; i++) {
        contexts[i] = verify->points[i].ctx;
        names   [i] = verify->points[i].point->name;
    }
    const struct tool_compare_params params = {
        .ctx_full   = verify->ctx_full,
        .ctx_policy = contexts,
        .names      = names,
        .n_policy   = verify->n_point,
        .tokens     = verify->tokens,
        .n_seq      = verify->n_seq,
        .n_ctx      = verify->n_ctx,
        .n_thread   = verify->args->n_threads,
        .progress   = verify->progress,
        .stop       = &tool_stop,
    };
    if (code == TOOL_EXIT_OK) {
        struct hwkv_error err;
        tool_progress_start(verify->progress, tool_compare_work(&params));
        const int res = tool_compare(verify->results, &params, &err);
        tool_progress_end(verify->progress);
        verify->complete = res == 0;
        code = res < 0 ? tool_fail("%s", err.msg) : TOOL_EXIT_OK;
    }
    free(contexts);
    free(names);
    return code;
}

static int verify_run(struct kvv_run * verify, struct tool_log * log) {
    int code = load_policy(verify);
    code = code == TOOL_EXIT_OK ? check_json(verify) : code;
    for (int32_t i = 0; i < verify->args->files.n && code == TOOL_EXIT_OK; i++) {
        code = check_readable(verify->args->files.items[i]); // before the model is loaded
    }
    code = code == TOOL_EXIT_OK ? load_model(verify, log)    : code;
    code = code == TOOL_EXIT_OK ? check_model(verify)        : code;
    code = code == TOOL_EXIT_OK ? load_text(verify)          : code;
    code = code == TOOL_EXIT_OK ? make_contexts(verify, log) : code;
    code = code == TOOL_EXIT_OK ? compare(verify)            : code;
    if (code == TOOL_EXIT_OK && verify->results[0].n_chunk == 0) {
        code = tool_fail("stopped before the first chunk was finished");
    } else if (code == TOOL_EXIT_OK) {
        code = report(verify);
    }
    return tool_stop != 0 && !verify->complete ? 128 + (int) tool_stop : code;
}

static void verify_free(struct kvv_run * verify) {
    for (int32_t i = 0; i < verify->n_point; i++) {
        if (verify->results) {
            tool_compare_result_free(&verify->results[i]);
        }
        if (verify->points && verify->points[i].ctx) {
            llama_free(verify->points[i].ctx);
        }
    }
    if (verify->ctx_full) {
        llama_free(verify->ctx_full);
    }
    tool_progress_free(verify->progress);
    free(verify->points);
    free(verify->results);
    free(verify->tokens);
    tool_text_free(&verify->text);
    llama_model_free(verify->model);
    hwkv_policy_free(verify->policy);
}

int main(int argc, char ** argv) {
    tool_begin("llama-kv-verify", tool_args_has(argc, argv, "--json-progress", NULL));

    struct kvv_args args;
    int code = kvv_read_args(&args, argc - 1, argv + 1);
    if (code >= 0) {
        free(args.files.items);
        return code;
    }
    tool_catch_signals();

    struct tool_log log = { .verbose = args.verbose, .json = args.json_progress };
    llama_log_set(tool_log_callback, &log);
    llama_backend_init();

    struct kvv_run verify = { .args = &args };
    verify.progress = tool_progress_init(stderr, args.json_progress ? TOOL_PROGRESS_JSON : TOOL_PROGRESS_AUTO);
    code = verify_run(&verify, &log);

    verify_free(&verify);
    llama_backend_free();
    llama_log_set(NULL, NULL);
    free(args.files.items);
    return code;
}
