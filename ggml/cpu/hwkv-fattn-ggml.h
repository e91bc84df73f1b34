// Flash attention nodes of ggml-cpu.

#ifndef HWKV_FATTN_GGML_H
#define HWKV_FATTN_GGML_H

#include <stdbool.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

struct ggml_compute_params;
struct ggml_tensor;

#define HWKV_FATTN_NODES 8 // most nodes of a call

// Computes the first of n flash attention nodes that don't depend on each other, called by all threads. Returns how many, the
// same for all threads; 0: none, because it can't do n_min of them.
int hwkv_fattn_forward(const struct ggml_compute_params * params, struct ggml_tensor * const * dst, int n, int n_min);

bool hwkv_fattn_forward_one(const struct ggml_compute_params * params, struct ggml_tensor * dst);

// bytes of work memory that it wants for n_task threads; 0: will not do it
size_t hwkv_fattn_work_size(const struct ggml_tensor * dst, int n_task);

// On unless the environment has GGML_HWKV_FATTN=0; not while something is computed.
void hwkv_fattn_enable(bool on);

#ifdef __cplusplus
}
#endif

#endif // HWKV_FATTN_GGML_H
