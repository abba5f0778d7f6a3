// Four neighbours of an array, which a lane loads or stores at once: 16 bytes of float, 8 of bf16. So a lane has the same
// four elements in arrays of both types, and neighbouring lanes neighbouring bytes in each.
#pragma once
#include "../../common/device/pack.cuh"

template <typename T>
using Four = std::conditional_t<sizeof(T) == sizeof(float), uint4, uint2>;

template <typename T>
__device__ inline Four<T> load_four(const T *src)
{
    return *reinterpret_cast<const Four<T> *>(src);
}

template <typename T>
__device__ inline void store_four(T *dst, Four<T> four)
{
    *reinterpret_cast<Four<T> *>(dst) = four;
}

// A bf16 is the upper half of a float.
__device__ inline void unpack(float (&values)[4], uint2 four, __nv_bfloat16)
{
    values[0] = __uint_as_float(four.x << 16);
    values[1] = __uint_as_float(four.x & 0xffff0000u);
    values[2] = __uint_as_float(four.y << 16);
    values[3] = __uint_as_float(four.y & 0xffff0000u);
}

__device__ inline uint2 make_pack(const float (&values)[4], __nv_bfloat16)
{
    return make_uint2(pack_pair<__nv_bfloat16>(values[0], values[1]),
                      pack_pair<__nv_bfloat16>(values[2], values[3]));
}
