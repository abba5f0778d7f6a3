// The launchers of chapter 8's steps, one a .cu file. Arrays are in device memory, float for F32 and __nv_bfloat16 for
// BF16. Rows of x, y, dy and dx are (rows, cols); a batch is (batch, t, t); logits are (rows, vp), of which v columns count.
#pragma once

#include <cuda_runtime_api.h>

#include "../../common/harness/npy.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef cudaError_t forward_launcher(enum dtype dtype, const void *x, void *y, int rows, int cols,
                                     cudaStream_t stream);
forward_launcher three_pass, online, vectorized, registers, short_rows, split, split_shared;

typedef cudaError_t causal_launcher(enum dtype dtype, const void *x, void *y, float scale, int batch, int t,
                                    cudaStream_t stream);
causal_launcher causal, causal_skip, causal_reverse;

typedef cudaError_t backward_launcher(enum dtype dtype, const void *y, const void *dy, void *dx, int rows,
                                      int cols, cudaStream_t stream);
backward_launcher backward, backward_registers, backward_split, backward_shared;

typedef cudaError_t causal_backward_launcher(enum dtype dtype, const void *y, const void *dy, void *dx,
                                             float scale, int batch, int t, cudaStream_t stream);
causal_backward_launcher causal_backward;

typedef cudaError_t classifier_launcher(enum dtype dtype, void *logits, float *loss, const int *target,
                                        const float *dloss, int rows, int v, int vp, cudaStream_t stream);
classifier_launcher classifier, classifier_shared, classifier_split;

#ifdef __cplusplus
}
#endif
