// What the launchers of this chapter take and serve.
#pragma once

#include <cuda_runtime_api.h>

#include "../../common/device/attention_variant.h"

// The pairs (head_dim, v_head_dim) that there are kernels for.
#define ATTENTION_HEAD_DIMS(PAIR) PAIR(64, 64) PAIR(128, 128) PAIR(256, 256) PAIR(192, 128) PAIR(64, 256)

#ifdef __cplusplus
extern "C" {
#endif

// NULL when the sizes and options can be served, else the one that cannot and what it would have to be.
const char *attention_refused(const struct attention_variant *v);

// How many bytes of device memory at most a launch with these sizes takes besides its tensors.
size_t attention_workspace_bytes(const struct attention_variant *v);

// A launcher: starts it in `stream` and returns the launch's error, cudaErrorInvalidValue for what attention_refused names.
// Launches of one launcher with the same workspace, or at the same time in two streams, must not overlap.
typedef cudaError_t attention_variant_launcher(const struct attention_variant *v, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
