// What the attention kernels of the Hopper chapters share: the causal mask, and the choice of a kernel by type and head dimension.
#pragma once
#include <type_traits>

#include "attention.h"
#include "types.cuh"

// The number of keys that query `row` sees, at most 0 when none; rows past the end see what the last one does.
__device__ inline int keys_seen(const attention &a, int row)
{
    return a.causal ? min(a.k_len, min(row, a.q_len - 1) + 1 + a.k_len - a.q_len) : a.k_len;
}

// Calls launch(T(), integral_constant D) for a type and a head dimension.
template <typename LAUNCH>
cudaError_t with_types(enum dtype dtype, int head_dim, LAUNCH launch)
{
    const auto with_type = [&](auto t) {
        switch (head_dim) {
        case 64: return launch(t, std::integral_constant<int, 64>());
        case 128: return launch(t, std::integral_constant<int, 128>());
        case 256: return launch(t, std::integral_constant<int, 256>());
        default: return cudaErrorInvalidValue;
        }
    };
    return dtype == F16 ? with_type(__half()) : with_type(__nv_bfloat16());
}

// The same for those of `a`, once its sizes are what a launcher takes.
template <typename LAUNCH>
cudaError_t with_attention_types(const attention &a, LAUNCH launch)
{
    return attention_sizes_valid(&a) ? with_types(a.dtype, a.head_dim, launch) : cudaErrorInvalidValue;
}
