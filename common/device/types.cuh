// The types of the 16-bit chapters, float, bf16 and f16, behind one name.
#pragma once
#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

#include <type_traits>

// Two neighbours of a row, rounded to its type; dst is a multiple of their size.
__device__ inline void store_pair(float *dst, float x, float y)
{
    *reinterpret_cast<float2 *>(dst) = make_float2(x, y);
}
__device__ inline void store_pair(__nv_bfloat16 *dst, float x, float y)
{
    *reinterpret_cast<__nv_bfloat162 *>(dst) = __floats2bfloat162_rn(x, y);
}
__device__ inline void store_pair(__half *dst, float x, float y)
{
    *reinterpret_cast<__half2 *>(dst) = __floats2half2_rn(x, y);
}

// The same two in one register, x in the lower half: what stmatrix stores, and what mma and wgmma take.
template <typename TC>
__device__ inline uint32_t pack_pair(float x, float y)
{
    static_assert(sizeof(TC) == 2, "two in 32 bits");
    uint32_t pair;
    store_pair(reinterpret_cast<TC *>(&pair), x, y);
    return pair;
}

// Two of a 16-bit type, in fp32.
__device__ inline float2 to_float2(__half2 pair)
{
    return __half22float2(pair);
}
__device__ inline float2 to_float2(__nv_bfloat162 pair)
{
    return __bfloat1622float2(pair);
}

// What a tensor map calls the type.
template <typename T>
constexpr CUtensorMapDataType tensor_map_type()
{
    if (std::is_same<T, float>::value) return CU_TENSOR_MAP_DATA_TYPE_FLOAT32;
    return std::is_same<T, __half>::value ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16
                                          : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
}
