// A model's geometry from its GGUF: llama.cpp's own loader decides which layers are full attention.

#include "kv-policy.h"

#include "tool-file.h"
#include "tool-llama.h"

#include "llama-hwkv-model.h"

#include <string.h>

bool kvp_model_load(struct kvp_model * out, const char * path, bool verbose) {
    memset(out, 0, sizeof(*out));
    const int unreadable = tool_check_readable(path);
    if (unreadable) {
        tool_fail("%s: %s", path, strerror(unreadable));
        return false;
    }

    struct tool_log log = { .verbose = verbose };
    llama_log_set(tool_log_callback, &log);
    llama_backend_init();

    // no device: nothing is offloaded, so no GPU has to wake up
    ggml_backend_dev_t devices[] = { NULL };

    struct llama_model_params params = llama_model_default_params();
    params.devices      = devices;
    params.n_gpu_layers = 0;
    params.load_mode    = LLAMA_LOAD_MODE_NONE;
    params.no_alloc     = true;

    struct hwkv_error err;
    bool ok = false;

    struct llama_model * model = llama_model_load_from_file(path, params);
    if (!model) {
        tool_fail("%s: not a model that llama.cpp can load: %s", path, tool_log_reason(&log));
    } else if (llama_hwkv_model_geometry(model, &out->geo, &err) != HWKV_OK) {
        tool_fail_file(path, &err);
    } else {
        out->n_ctx_train = llama_model_n_ctx_train(model);
        ok = true;
    }

    llama_model_free(model);
    llama_backend_free();
    llama_log_set(NULL, NULL);
    return ok;
}

void kvp_model_free(struct kvp_model * model) {
    hwkv_geometry_free(&model->geo);
}
