// The hook in ggml-cpu's matrix product.

#ifndef HWKV_MULMAT_H
#define HWKV_MULMAT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct ggml_tensor;

// Rows [row0, row1) of the weights dst->src[0] by columns [col0, col1) of y, which has col_size bytes each, in the type that the
// weights' dot product takes. False: nothing was done. Else dst has the bits of that dot product, which unpacks a weight again
// for every column.
bool hwkv_mul_mat(struct ggml_tensor * dst, const void * y, size_t col_size, int64_t row0, int64_t row1, int64_t col0, int64_t col1);

// In place of GGML_HWKV_MULMAT in the environment, 0 or 1; 1 is the default.
void hwkv_mul_mat_enable(bool on);

#ifdef __cplusplus
}
#endif

#endif // HWKV_MULMAT_H
