// What one attention backward is: the tensors that the launchers of this chapter take, and the workspace they need.
#pragma once

#include <cuda_runtime_api.h>

#include "../../common/device/attention.h"

// The gradients of sum(O ∘ dO). Of `forward`, O and LSE are read: what the forward pass wrote. Arrays are in device memory and
// begin at multiples of 16 bytes.
struct attention_backward {
    struct attention forward; // head_dim 64, 128 or 256
    const void *dO;           // (batch, q_len, heads, head_dim)
    void *dQ;                 // the same; 0 in rows that see no key
    void *dK, *dV;            // (batch, k_len, kv_heads, head_dim)
    void *workspace;          // attention_backward_workspace_bytes()
};

#ifdef __cplusplus
extern "C" {
#endif

// How many bytes of device memory a launch with these sizes takes besides its tensors.
size_t attention_backward_workspace_bytes(const struct attention *forward);

// A launcher: starts it in `stream` and returns the launch's error, cudaErrorInvalidValue for sizes that it refuses. Launches
// with the same workspace must not overlap.
typedef cudaError_t attention_backward_launcher(const struct attention_backward *a, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
