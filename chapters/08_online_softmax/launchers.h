// The launchers of this chapter's steps: defined in the .cu files, called by main.c.
#pragma once

#include <cuda_runtime_api.h>

#include "../../common/device/dtype.h"

#ifdef __cplusplus
extern "C" {
#endif

// Arrays are in device memory and, but for loss, target and dloss, of type `dtype`: F32 or BF16.

// y = exp(x - max) / sum of every row; x and y are (rows, cols), 1 to 131072 columns.
typedef cudaError_t softmax_forward(enum dtype dtype, const void *x, void *y, int rows, int cols,
                                    cudaStream_t stream);
softmax_forward three_pass, online, vectorized, registers, short_rows, split, split_shared, cluster;

// The same of scale * x over the columns 0 to i of row i, zeros after them; x and y are (batch, t, t), t at most 16384.
typedef cudaError_t softmax_causal(enum dtype dtype, const void *x, void *y, float scale, int batch, int t,
                                   cudaStream_t stream);
softmax_causal causal, causal_skip, causal_reverse;

// dx = y (dy - sum of y dy) of every row; all are (rows, cols).
typedef cudaError_t softmax_backward(enum dtype dtype, const void *y, const void *dy, void *dx, int rows,
                                     int cols, cudaStream_t stream);
softmax_backward backward, backward_registers, backward_split, backward_shared, backward_cluster;

// The same times scale, over the columns 0 to i of row i, zeros after them; all are (batch, t, t).
typedef cudaError_t softmax_causal_backward(enum dtype dtype, const void *y, const void *dy, void *dx,
                                            float scale, int batch, int t, cudaStream_t stream);
softmax_causal_backward causal_backward;

// loss (rows) = cross entropy of the first v of vp logits of every row; logits (rows, vp) become their gradient, times
// dloss (rows), or 1 / rows where dloss is NULL; zeros in the columns of padding. target (rows) is below v.
typedef cudaError_t softmax_classifier(enum dtype dtype, void *logits, float *loss, const int *target,
                                       const float *dloss, int rows, int v, int vp, cudaStream_t stream);
softmax_classifier classifier, classifier_shared, classifier_split, classifier_cluster;

#ifdef __cplusplus
}
#endif
