// PyTorch's scaled_dot_product_attention, the baseline of the attention chapters. libtorch_cuda.so is opened when it is
// first called, through its C interface (torch/csrc/inductor/aoti_torch), so nothing of it is needed to build or to
// check a chapter. It is looked for in the folder $TORCH_LIB, or where the dynamic loader looks.
#pragma once

#include "../device/attention.h"

// The FLASH backend, FlashAttention-2. It allocates what it returns: O and LSE are not written but kept until the next
// call. Returns cudaErrorNotSupported for a causal mask of unequal lengths (PyTorch aligns it elsewhere) and for fewer
// key/value heads than query heads, cudaErrorSharedObjectInitFailed when PyTorch is not here (and says so once, in one
// line), cudaErrorUnknown when it fails (it prints why).
cudaError_t sdpa_flash(const struct attention *attention, cudaStream_t stream);

// The same with the CUDNN backend.
cudaError_t sdpa_cudnn(const struct attention *attention, cudaStream_t stream);

// Copies what the last call returned to its O and LSE.
cudaError_t sdpa_fetch(const struct attention *attention, cudaStream_t stream);

// The backward pass of the CUDNN backend, of Q, K, V, O and LSE and the gradient dO, laid out as O; it keeps dQ, dK and dV. Errors as
// above.
cudaError_t sdpa_cudnn_backward(const struct attention *attention, const void *dO, cudaStream_t stream);

// Copies what the last call returned to dQ, laid out as Q, and dK and dV, as K.
cudaError_t sdpa_backward_fetch(const struct attention *attention, void *dQ, void *dK, void *dV,
                                cudaStream_t stream);
