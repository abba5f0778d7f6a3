// What the library's structure is to the chapters, and what both of its files need.
#pragma once

#include "../common/device/attention_variant.h"
#include "cookbook_attention.h"

static inline struct attention_variant variant_of(const struct cookbook_attention *a)
{
    return (struct attention_variant){
        .dtype = a->type == COOKBOOK_BF16 ? BF16 : F16,
        .batch = a->batch,
        .heads = a->heads,
        .kv_heads = a->kv_heads,
        .head_dim = a->head_dim,
        .v_head_dim = a->head_dim,
        .q_len = a->q_len,
        .k_len = a->k_len,
        .Q = a->Q,
        .K = a->K,
        .V = a->V,
        .O = a->O,
        .LSE = a->LSE,
        .left = a->left,
        .right = a->right,
        .softcap = a->softcap,
        .cu_q = a->cu_q,
        .cu_k = a->cu_k,
        .q_total = a->q_total,
        .k_total = a->k_total,
        .workspace = a->workspace,
    };
}

// The current device's compute capability, 90 for 9.0.
static inline cudaError_t compute_capability(int *capability)
{
    int device, major = 0, minor = 0;
    cudaError_t error = cudaGetDevice(&device);
    if (error == cudaSuccess)
        error = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
    if (error == cudaSuccess)
        error = cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device);
    *capability = major * 10 + minor;
    return error;
}

// What an error is to the library's caller.
static inline const char *named(cudaError_t error)
{
    return error == cudaSuccess ? NULL : cudaGetErrorName(error);
}

// Bytes of workspace of each pass; 0 for what it refuses.
size_t forward_workspace_bytes(const struct cookbook_attention *a);
size_t backward_workspace_bytes(const struct cookbook_attention *a);
