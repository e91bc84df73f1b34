// A model's geometry from its GGUF: llama.cpp's own loader decides which layers are full attention.

#include "kv-policy.h"

#include "tool-file.h"
#include "tool-llama.h"

#include "llama-hwkv-model.h"

#include <string.h>

bool kvp_model_load(struct kvp_model * out, const char * path, int32_t n_gpu_layers, bool verbose) {
    memset(out, 0, sizeof(*out));
    const int unreadable = tool_check_readable(path);
    if (unreadable) {
        tool_fail("%s: %s", path, strerror(unreadable));
        return false;
    }

    out->log.verbose = verbose;
    llama_log_set(tool_log_callback, &out->log);
    llama_backend_init();

    ggml_backend_dev_t none[] = { NULL }; // nothing is offloaded, so no GPU has to wake up

    struct llama_model_params params = llama_model_default_params();
    params.devices      = n_gpu_layers == KVP_NO_DEVICE ? none : NULL;
    params.n_gpu_layers = n_gpu_layers == KVP_NO_DEVICE ? 0 : n_gpu_layers;

    struct hwkv_error err;

    out->llama = llama_hwkv_model_load_meta(path, params);
    if (!out->llama) {
        tool_fail("%s: not a model that llama.cpp can load: %s", path, tool_log_reason(&out->log));
    } else if (llama_hwkv_model_geometry(out->llama, &out->geo, &err) != HWKV_OK) {
        tool_fail_file(path, &err);
    } else {
        out->n_ctx_train = llama_model_n_ctx_train(out->llama);
        return true;
    }
    kvp_model_free(out);
    return false;
}

void kvp_model_free(struct kvp_model * model) {
    if (model->llama) {
        llama_model_free(model->llama);
        llama_backend_free();
    }
    llama_log_set(NULL, NULL);
    hwkv_geometry_free(&model->geo);
    memset(model, 0, sizeof(*model));
}
