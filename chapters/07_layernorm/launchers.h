// The launchers of this chapter's steps: defined in the .cu files, called by main.c.
#pragma once

#include <cuda_runtime_api.h>

#include "../../common/device/dtype.h"

#ifdef __cplusplus
extern "C" {
#endif

// Arrays are in device memory and begin at a multiple of 16 bytes. They are of type `dtype`, F32 or BF16, but for mean, rstd,
// dweight and dbias, which are fp32. Rows have C elements; mean and rstd are (rows), weight, bias and their gradients (C).

// out = (inp - mean) rstd weight + bias of every row, rstd = 1 / sqrt(variance + 1e-5).
typedef cudaError_t layernorm_forward(enum dtype dtype, const void *inp, const void *weight, const void *bias,
                                      void *out, float *mean, float *rstd, int rows, int C,
                                      cudaStream_t stream);
layernorm_forward layernorm, layernorm_registers;

// residual = inp1 + inp2, and the layernorm of it, after it was rounded.
typedef cudaError_t fused_residual_forward(enum dtype dtype, const void *inp1, const void *inp2,
                                           const void *weight, const void *bias, void *residual, void *out,
                                           float *mean, float *rstd, int rows, int C, cudaStream_t stream);
fused_residual_forward layernorm_residual;

// out = inp rstd weight of every row, rstd = 1 / sqrt(mean of inp^2 + 1e-5).
typedef cudaError_t rmsnorm_forward(enum dtype dtype, const void *inp, const void *weight, void *out,
                                    float *rstd, int rows, int C, cudaStream_t stream);
rmsnorm_forward rmsnorm;

// dinp of layernorm_forward; dweight and dbias are added to what is there. mean and rstd are those of the forward.
typedef cudaError_t layernorm_backward(enum dtype dtype, const void *inp, const void *dout,
                                       const void *weight, const float *mean, const float *rstd, void *dinp,
                                       float *dweight, float *dbias, int rows, int C, cudaStream_t stream);
layernorm_backward gradient_atomics, gradient_registers, gradient_partials, gradient_ahead;

// The same of fused_residual_forward: dresidual += dinp.
typedef layernorm_backward fused_residual_backward;
fused_residual_backward gradient_residual;

// The same of rmsnorm_forward.
typedef cudaError_t rmsnorm_backward(enum dtype dtype, const void *inp, const void *dout, const void *weight,
                                     const float *rstd, void *dinp, float *dweight, int rows, int C,
                                     cudaStream_t stream);
rmsnorm_backward rmsnorm_gradient;

#ifdef __cplusplus
}
#endif
