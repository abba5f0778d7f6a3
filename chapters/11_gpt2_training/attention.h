// Attention by chapters 12, 15 and 17, which want Q, K and V apart and leave LSE instead of probabilities.
#pragma once

#include "model.h"

// atty (batch, length, heads, head_dim) and LSE (batch, heads, length) of qkv (3, batch, length, heads, head_dim), by chapter 12 or
// 15; dqkv, by chapter 17, in a workspace of flash_workspace_bytes(). Return the launch's error.
cudaError_t flash_forward(const struct model_config *config, const void *qkv, float *LSE, void *atty,
                          cudaStream_t stream);
cudaError_t flash_backward(const struct model_config *config, const void *qkv, const void *atty,
                           const float *LSE, const void *dout, void *workspace, void *dqkv,
                           cudaStream_t stream);
size_t flash_workspace_bytes(const struct model_config *config);
