// PyTorch's scaled_dot_product_attention, the baseline of the attention chapters. libtorch_cuda.so is opened when it is
// first called, through its C interface (torch/csrc/inductor/aoti_torch), so nothing of it is needed to build or to
// check a chapter. It is looked for in the folder $TORCH_LIB, or where the dynamic loader looks.
#pragma once

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stdint.h>

#include "npy.h"

// O = softmax(scale * Q Kᵀ) V for each head, scale = 1 / sqrt(head_dim), all in device memory and C order.
struct sdpa {
    const void *Q, *K, *V; // (batch, q_len, heads, head_dim), (batch, k_len, ...) twice; dtype BF16 or F16
    void *O;               // (batch, q_len, heads, head_dim)
    float *LSE;            // (batch, heads, q_len)
    int64_t batch, q_len, k_len, heads, head_dim;
    bool causal; // only with q_len = k_len: PyTorch aligns other masks elsewhere
    enum dtype dtype;
};

// The FLASH backend, FlashAttention-2. It allocates what it returns: O and LSE are not written but kept until the next
// call. Returns cudaErrorNotSupported for a causal mask of unequal lengths, cudaErrorSharedObjectInitFailed when PyTorch
// is not here (and says so once, in one line), cudaErrorUnknown when it fails (it prints why).
cudaError_t sdpa_flash(const struct sdpa *attention, cudaStream_t stream);

// Copies what the last call returned to its O and LSE.
cudaError_t sdpa_fetch(const struct sdpa *attention, cudaStream_t stream);
