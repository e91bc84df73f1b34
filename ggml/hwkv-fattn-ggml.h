// The hooks in ggml-cpu.

#ifndef HWKV_FATTN_GGML_H
#define HWKV_FATTN_GGML_H

#include <stdbool.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

struct ggml_compute_params;
struct ggml_tensor;

// Computes a flash attention node, called by all threads. false: not done, the same for all threads.
bool hwkv_fattn_forward(const struct ggml_compute_params * params, struct ggml_tensor * dst);

// bytes of work memory that it wants for n_task threads; 0: will not do it
size_t hwkv_fattn_work_size(const struct ggml_tensor * dst, int n_task);

// On unless the environment has GGML_HWKV_FATTN=0; not while something is computed.
void hwkv_fattn_enable(bool on);

#ifdef __cplusplus
}
#endif

#endif // HWKV_FATTN_GGML_H
