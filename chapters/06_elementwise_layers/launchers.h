// The launchers of this chapter's steps: defined in the .cu files, called by main.c.
#pragma once

#include <stddef.h>

#include <cuda_runtime_api.h>

#include "../../common/device/dtype.h"

#ifdef __cplusplus
extern "C" {
#endif

// Arrays are in device memory and begin at a multiple of 16 bytes. They are of type `dtype`, F32 or BF16, but for inp of the
// encoder (whole numbers) and dwte and dwpe (fp32). The names are llm.c's.

// out = inp1 + inp2, n elements each.
typedef cudaError_t residual_forward(enum dtype dtype, const void *inp1, const void *inp2, void *out,
                                     size_t n, cudaStream_t stream);
residual_forward residual, residual_packs, residual_stream;

// dinp1 += dout, dinp2 += dout, n elements each.
typedef cudaError_t residual_backward(enum dtype dtype, const void *dout, void *dinp1, void *dinp2, size_t n,
                                      cudaStream_t stream);
residual_backward residual_gradient;

// out = 0.5 inp (1 + tanh(sqrt(2 / pi) (inp + 0.044715 inp^3))), n elements each.
typedef cudaError_t gelu_forward(enum dtype dtype, const void *inp, void *out, size_t n, cudaStream_t stream);
gelu_forward gelu, gelu_exp2;

// dinp = dout * the derivative of that at inp, n elements each.
typedef cudaError_t gelu_backward(enum dtype dtype, const void *inp, const void *dout, void *dinp, size_t n,
                                  cudaStream_t stream);
gelu_backward gelu_gradient;

// out[b][t] = wte[inp[b][t]] + wpe[t]: out is (B, T, C), inp (B, T) with numbers from 0 to below V, wte (V, C), wpe (T, C).
typedef cudaError_t encoder_forward(enum dtype dtype, const int *inp, const void *wte, const void *wpe,
                                    void *out, int B, int T, int C, cudaStream_t stream);
encoder_forward encoder, encoder_rows;

// dwte[inp[b][t]] += dout[b][t], dwpe[t] += dout[b][t]; dwte (V, C) and dwpe (T, C) are fp32.
typedef cudaError_t encoder_backward(enum dtype dtype, const int *inp, const void *dout, float *dwte,
                                     float *dwpe, int B, int T, int C, int V, cudaStream_t stream);
encoder_backward encoder_atomics, encoder_positions, encoder_buckets, encoder_sorted, encoder_chunks,
    encoder_ahead;

#ifdef __cplusplus
}
#endif
