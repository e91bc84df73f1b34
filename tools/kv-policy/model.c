// A model's geometry from its GGUF: llama.cpp's own loader decides which layers are full attention.

#include "kv-policy.h"

#include "llama-hwkv-model.h"

#include "llama.h"

#include <errno.h>
#include <string.h>

struct log_state {
    bool verbose;
    char first[512]; // the first error: the later ones only say that loading failed
};

static void log_callback(enum ggml_log_level level, const char * text, void * user_data) {
    struct log_state * state = user_data;

    if (state->verbose) {
        fputs(text, stderr);
    }
    if (level == GGML_LOG_LEVEL_ERROR && state->first[0] == '\0') {
        snprintf(state->first, sizeof(state->first), "%s", text);
        state->first[strcspn(state->first, "\n")] = '\0';
    }
}

static bool can_open(const char * path) {
    FILE * f = fopen(path, "rb");
    // a directory opens, but does not read
    if (!f || (fgetc(f) == EOF && ferror(f))) {
        fail_text("%s: %s", path, strerror(errno));
        if (f) {
            fclose(f);
        }
        return false;
    }
    fclose(f);
    return true;
}

bool model_load(struct model_info * info, const char * path, bool verbose) {
    memset(info, 0, sizeof(*info));
    if (!can_open(path)) {
        return false;
    }

    struct log_state state = { .verbose = verbose };
    llama_log_set(log_callback, &state);
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
        fail_text("%s: not a model that llama.cpp can load: %s", path, state.first[0] ? state.first : "unknown reason");
    } else if (llama_hwkv_model_geometry(model, &info->geo, &err) != HWKV_OK) {
        fail_file(path, &err);
    } else {
        info->n_ctx_train = llama_model_n_ctx_train(model);
        ok = true;
    }

    llama_model_free(model);
    llama_backend_free();
    llama_log_set(NULL, NULL);
    return ok;
}

void model_free(struct model_info * info) {
    hwkv_geometry_free(&info->geo);
}
