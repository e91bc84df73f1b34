// What a loaded llama.cpp model looks like to HeadWiseKV. C API; the only file behind it sees llama.cpp's internals.

#ifndef LLAMA_HWKV_MODEL_H
#define LLAMA_HWKV_MODEL_H

#include "hwkv.h"
#include "llama.h"

#ifdef __cplusplus
extern "C" {
#endif

// Fills *geo with the layers whose KV cache grows with the context: full attention, in the trunk (no NextN/MTP layers),
// with K and V of their own. Sliding-window, recurrent and cache-sharing layers are left out. n_layer counts the trunk.
// A model loaded with no_alloc is enough; the fingerprints do not depend on devices, offloading, mmap or MTP loading.
// HWKV_ERR_MISMATCH: windows can't serve this architecture; the message names it and the reason. On failure *geo is empty.
// The caller frees it with hwkv_geometry_free.
LLAMA_API int llama_hwkv_model_geometry(const struct llama_model * model, struct hwkv_geometry * geo, struct hwkv_error * err);

#ifdef __cplusplus
}
#endif

#endif // LLAMA_HWKV_MODEL_H
