// The launchers of this chapter's steps: defined in the .cu files, called by main.c.
#pragma once

#include <stdint.h>

#include <cuda_runtime_api.h>

#include "../../common/device/dtype.h"

#ifdef __cplusplus
extern "C" {
#endif

// Arrays are in device memory, begin at a multiple of 16 bytes, and are of type `dtype`, F32 or BF16, but for dweight and
// dbias, which are fp32. The names are llm.c's: B sequences of T positions, H heads of D numbers. cuBLAS's workspace and
// bias_partials's own memory are allocated by the first launch that needs them, which therefore cannot be one that a CUDA
// graph records.

// out (S, B, H, T, D) = inp (B, T, S, H, D): S is 3 of queries, keys and values side by side, else 1. head_unpermute: and
// back, out (B, T, S, H, D) = inp (S, B, H, T, D). B is below 65536, and so is S * H times D / 256, rounded up.
typedef cudaError_t head_permute(enum dtype dtype, const void *inp, void *out, int B, int T, int S, int H,
                                 int D, cudaStream_t stream);
head_permute permute, permute_packs;
typedef cudaError_t head_unpermute(enum dtype dtype, const void *inp, void *out, int B, int T, int S, int H,
                                   int D, cudaStream_t stream);
head_unpermute unpermute_packs;

// Causal attention: att (B, H, T, T) = softmax(Q K^T / sqrt(D)), with zeros above the diagonal, out (B, T, H, D) = att V,
// of qkv (B, T, 3, H, D). B * H * T is below 2^31, T at most 16384. scratch: 4 * B * T * H * D elements; NULL where it is
// not used.
typedef cudaError_t attention_forward(enum dtype dtype, const void *qkv, void *att, void *out, void *scratch,
                                      int B, int T, int H, int D, cudaStream_t stream);
attention_forward attention_permuted, attention_in_place, attention_reverse;

// Its backward, of the att that the forward left: dqkv (B, T, 3, H, D), and datt (B, H, T, T), the gradient of Q K^T.
// scratch: 7 * B * T * H * D elements; NULL where it is not used.
typedef cudaError_t attention_backward(enum dtype dtype, const void *qkv, const void *att, const void *dout,
                                       void *datt, void *dqkv, void *scratch, int B, int T, int H, int D,
                                       cudaStream_t stream);
attention_backward gradient_permuted, gradient_in_place;

// dbias (OC) += the sum of the rows of dout (rows, OC).
typedef cudaError_t bias_backward(enum dtype dtype, const void *dout, float *dbias, int rows, int OC,
                                  cudaStream_t stream);
bias_backward bias_atomics, bias_partials;

// The same of each of several matrices that lie one behind the other: dbias (matrices, OC) += the sums of the rows of dout (matrices,
// rows, OC). There are less than 65536 of them.
cudaError_t bias_partials_of_each(enum dtype dtype, const void *dout, float *dbias, int matrices, int rows,
                                  int OC, cudaStream_t stream);

// Of out = inp weight^T + bias: dinp (rows, C) = dout (rows, OC) weight (OC, C), dweight (OC, C) += dout^T inp, dbias
// (OC) += the sum of the rows of dout.
typedef cudaError_t matmul_backward(enum dtype dtype, const void *inp, const void *weight, const void *dout,
                                    void *dinp, float *dweight, float *dbias, int rows, int C, int OC,
                                    cudaStream_t stream);
matmul_backward matmul_gradient;

// pre (rows, OC) = inp (rows, C) weight (OC, C)^T + bias (OC), out (rows, OC) = GELU(pre), in the tanh form of chapter 6.
typedef cudaError_t matmul_gelu_forward(enum dtype dtype, const void *inp, const void *weight,
                                        const void *bias, void *pre, void *out, int rows, int C, int OC,
                                        cudaStream_t stream);
matmul_gelu_forward matmul_gelu, matmul_gelu_epilogue;

// Back through the layer behind that GELU, and through it: dpre (rows, OC) = dout (rows, C) weight (C, OC), times the derivative of GELU
// at pre (rows, OC).
typedef cudaError_t matmul_gelu_backward(enum dtype dtype, const void *dout, const void *weight,
                                         const void *pre, void *dpre, int rows, int C, int OC,
                                         cudaStream_t stream);
matmul_gelu_backward matmul_gelu_gradient, matmul_gelu_gradient_epilogue;

#ifdef __cplusplus
}
#endif
