// Four neighbours of an array, which a lane loads or stores at once: 16 bytes of float, 8 of bf16. So a lane has the same
// four elements in arrays of both types, and neighbouring lanes neighbouring bytes in each.
#pragma once
#include "../../common/device/pack.cuh"

template <typename T>
using Four = std::conditional_t<sizeof(T) == sizeof(float), uint4, uint2>;

template <typename T>
__device__ inline Four<T> load_four(const T *src)
{
    return ld_global_cache_hint(reinterpret_cast<const Four<T> *>(src), createpolicy_evict_last());
}

template <typename T>
__device__ inline void store_four(T *dst, Four<T> four)
{
    *reinterpret_cast<Four<T> *>(dst) = four;
}
