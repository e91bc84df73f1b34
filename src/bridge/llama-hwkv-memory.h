// What a context takes on every device. C API.

#ifndef LLAMA_HWKV_MEMORY_H
#define LLAMA_HWKV_MEMORY_H

#include "hwkv.h"
#include "llama.h"

#ifdef __cplusplus
extern "C" {
#endif

#define LLAMA_HWKV_DEVICE_NAME 64 // bytes

// Bytes on one device. All that is in the host's memory is one device, the CPU: weights of a mapped file, buffers that
// a GPU reads and repacked weights are there too.
struct llama_hwkv_memory {
    char     name[LLAMA_HWKV_DEVICE_NAME];
    bool     host;
    uint64_t weights;
    uint64_t kv;                    // of the full-attention layers: what policies speak of
    uint64_t groups[HWKV_CODE_MAX]; // kv, by group of the plan; 0 without one
    uint64_t swa;                   // KV of the sliding-window layers
    uint64_t recurrent;
    uint64_t compute;
};

// The devices of a context, the host's memory first; fills at most n_max and returns how many there are. What is allocated, and for a
// model that was loaded with no_alloc what would be if its file were mapped, or read. Rows of outputs and the scratch memory inside of a
// backend are not counted.
LLAMA_API int32_t llama_hwkv_memory_read(const struct llama_context * ctx, bool mapped, struct llama_hwkv_memory * devices, int32_t n_max);

// Metadata only, for contexts that are measured (no_alloc); NULL on failure.
LLAMA_API struct llama_model * llama_hwkv_model_load_meta(const char * path, struct llama_model_params params);

// Would the file be mapped with these devices?
LLAMA_API bool llama_hwkv_model_is_mapped(const struct llama_model * model, enum llama_load_mode load_mode);

// The name a device goes by there.
LLAMA_API void llama_hwkv_device_name(ggml_backend_dev_t dev, char name[LLAMA_HWKV_DEVICE_NAME], bool * host);

// Layers on GPUs as the model was loaded, the output counted as one: what n_gpu_layers came to.
LLAMA_API int32_t llama_hwkv_model_n_gpu_layers(const struct llama_model * model);

#ifdef __cplusplus
}
#endif

#endif // LLAMA_HWKV_MEMORY_H
