// 16 bytes at a time: 4 floats or 8 bf16, which one instruction loads or stores, at an address that is a multiple of 16.
#pragma once
#include <cuda_bf16.h>
#include <stdint.h>

#include "ptx.cuh"
#include "types.cuh"

constexpr int PACK_BYTES = 16;
template <typename T>
constexpr int PACK = PACK_BYTES / (int)sizeof(T); // elements

__device__ inline float to_float(float value)
{
    return value;
}
__device__ inline float to_float(__nv_bfloat16 value)
{
    return __bfloat162float(value);
}
__device__ inline void from_float(float *dst, float value)
{
    *dst = value;
}
__device__ inline void from_float(__nv_bfloat16 *dst, float value)
{
    *dst = __float2bfloat16_rn(value);
}

__device__ inline void unpack(float (&values)[4], uint4 pack, float)
{
    values[0] = __uint_as_float(pack.x);
    values[1] = __uint_as_float(pack.y);
    values[2] = __uint_as_float(pack.z);
    values[3] = __uint_as_float(pack.w);
}

// A bf16 is the upper half of a float.
__device__ inline void unpack(float (&values)[8], uint4 pack, __nv_bfloat16)
{
    const uint32_t words[4] = {pack.x, pack.y, pack.z, pack.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        values[2 * i] = __uint_as_float(words[i] << 16);
        values[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);
    }
}

__device__ inline uint4 make_pack(const float (&values)[4], float)
{
    return make_uint4(__float_as_uint(values[0]), __float_as_uint(values[1]), __float_as_uint(values[2]),
                      __float_as_uint(values[3]));
}

__device__ inline uint4 make_pack(const float (&values)[8], __nv_bfloat16)
{
    return make_uint4(
        pack_pair<__nv_bfloat16>(values[0], values[1]), pack_pair<__nv_bfloat16>(values[2], values[3]),
        pack_pair<__nv_bfloat16>(values[4], values[5]), pack_pair<__nv_bfloat16>(values[6], values[7]));
}

// Half a pack: 8 bytes, 2 floats or 4 bf16.
template <typename T>
constexpr int HALF_PACK = PACK<T> / 2;

__device__ inline void unpack(float (&values)[2], uint2 half, float)
{
    values[0] = __uint_as_float(half.x);
    values[1] = __uint_as_float(half.y);
}

__device__ inline void unpack(float (&values)[4], uint2 half, __nv_bfloat16)
{
    values[0] = __uint_as_float(half.x << 16);
    values[1] = __uint_as_float(half.x & 0xffff0000u);
    values[2] = __uint_as_float(half.y << 16);
    values[3] = __uint_as_float(half.y & 0xffff0000u);
}

__device__ inline uint2 make_pack(const float (&values)[2], float)
{
    return make_uint2(__float_as_uint(values[0]), __float_as_uint(values[1]));
}

__device__ inline uint2 make_pack(const float (&values)[4], __nv_bfloat16)
{
    return make_uint2(pack_pair<__nv_bfloat16>(values[0], values[1]),
                      pack_pair<__nv_bfloat16>(values[2], values[3]));
}

// Makes the compiler forget what it has computed from the pack, and begin nothing with it before what was asked to be
// forgotten before. It would otherwise unpack the packs of a thread all at once, and keep the elements for their next
// use: twice the registers of the packs. Unpacking again costs half an instruction an element.
__device__ inline void keep_packed(uint4 &pack)
{
    asm volatile("" : "+r"(pack.x), "+r"(pack.y), "+r"(pack.z), "+r"(pack.w));
}

// What a lane takes of a row at a time: a pack, or, where rows begin at any address, one element.
template <typename T, int N>
using Piece = std::conditional_t<N == 1, T, uint4>;

template <typename T>
__device__ inline void unpack(float (&values)[1], T piece, T)
{
    values[0] = to_float(piece);
}

template <typename T>
__device__ inline T make_pack(const float (&values)[1], T)
{
    T piece;
    from_float(&piece, values[0]);
    return piece;
}

template <typename T>
__device__ inline void keep_packed(T &)
{
}

template <int N, typename T>
__device__ inline Piece<T, N> load_piece(const T *src)
{
    return *reinterpret_cast<const Piece<T, N> *>(src);
}

template <typename T, typename PIECE>
__device__ inline void store_piece(T *dst, PIECE piece)
{
    *reinterpret_cast<PIECE *>(dst) = piece;
}

// Loads what is read again soon, a pack or a number: last to be evicted from the caches. (Of single elements the hint would serve one at a
// time: these are loaded as ever.)
__device__ inline int load_kept(const int *src)
{
    return (int)ld_global_evict_last(reinterpret_cast<const uint32_t *>(src));
}

template <int N, typename T>
__device__ inline Piece<T, N> load_piece_kept(const T *src)
{
    if constexpr (N == 1)
        return *src;
    else
        return ld_global_evict_last(reinterpret_cast<const uint4 *>(src));
}

// Loads a piece of an array that a kernel goes through once, writing about as much: the last to be evicted from the L2. Measured, not
// explained: an H200 is up to 5 % faster so (notes/07_layernorm.md, section 6). (Of single elements the hint would serve one at a time.)
template <int N, typename T>
__device__ inline Piece<T, N> load_piece_streamed(const T *src, uint64_t policy = createpolicy_evict_last())
{
    if constexpr (N == 1)
        return *src;
    else
        return ld_global_cache_hint(reinterpret_cast<const uint4 *>(src), policy);
}

// Loads a piece that is read once, stores one that is not read soon: first to be evicted from the caches (ld.cs, st.cs).
template <int N, typename T>
__device__ inline Piece<T, N> load_piece_once(const T *src)
{
    return __ldcs(reinterpret_cast<const Piece<T, N> *>(src));
}

template <typename T, typename PIECE>
__device__ inline void store_piece_once(T *dst, PIECE piece)
{
    __stcs(reinterpret_cast<PIECE *>(dst), piece);
}

// N elements from src on, as floats: whole packs, each by load_pack(its address, a multiple of 16 bytes), or, where N is less than a pack,
// one by one.
template <int N, typename T, typename LOAD>
__device__ inline void load_values_by(float (&values)[N], const T *src, const LOAD &load_pack)
{
    if constexpr (N % PACK<T> == 0) {
#pragma unroll
        for (int i = 0; i < N; i += PACK<T>)
            unpack(*reinterpret_cast<float(*)[PACK<T>]>(&values[i]), load_pack(src + i), T());
    } else {
#pragma unroll
        for (int i = 0; i < N; i++) values[i] = to_float(src[i]);
    }
}

template <int N, typename T>
__device__ inline void load_values(float (&values)[N], const T *src)
{
    load_values_by(values, src, [](const T *pack) { return load_piece<PACK<T>>(pack); });
}

// The same of what is read once: first to be evicted from the caches (ld.cs).
template <int N, typename T>
__device__ inline void load_values_once(float (&values)[N], const T *src)
{
    load_values_by(values, src, [](const T *pack) { return load_piece_once<PACK<T>>(pack); });
}

// The same, the last to be evicted from the L2, as load_piece_streamed.
template <int N, typename T>
__device__ inline void load_values_streamed(float (&values)[N], const T *src)
{
    load_values_by(values, src, [](const T *pack) { return load_piece_streamed<PACK<T>>(pack); });
}

// Writes N elements, rounded to their type, not to stay in the caches (st.cs) where they are whole packs.
template <int N, typename T>
__device__ inline void store_values(T *dst, const float (&values)[N])
{
    if constexpr (N % PACK<T> == 0) {
#pragma unroll
        for (int i = 0; i < N; i += PACK<T>)
            __stcs(reinterpret_cast<uint4 *>(dst + i),
                   make_pack(*reinterpret_cast<const float(*)[PACK<T>]>(&values[i]), T()));
    } else {
#pragma unroll
        for (int i = 0; i < N; i++) from_float(&dst[i], values[i]);
    }
}
