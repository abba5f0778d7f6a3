// Numbers of 8 bits, and scales for them: what the chapters of 8 bits share.
#pragma once
#include <cuda_runtime.h>
#include <float.h>

#include "dtype.h"
#include "pack.cuh"

constexpr int GROUP = 128;                               // neighbours that share a scale
constexpr int GROUP_LANES = GROUP / PACK<__nv_bfloat16>; // lanes that hold them, a pack each
constexpr float SMALLEST_AMAX = 0x1p-100f;               // so that neither scale nor 1 / scale leaves fp32

// The formats. Data movement and conversion instructions, cvt.rn.satfinite: two floats to the nearest 8 bits, the second
// operand in the lower ones; past MAX, and infinities too, MAX; a NaN stays one.
struct E4m3 { // 1 bit of sign, 4 of exponent, 3 of fraction; no infinity
    static constexpr float MAX = 448.0f;

    static __device__ uint16_t pair(float low, float high)
    {
        uint16_t bits;
        asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(bits) : "f"(high), "f"(low));
        return bits;
    }
};
struct E5m2 { // 1, 5, 2: fp16 without its lower half
    static constexpr float MAX = 57344.0f;

    static __device__ uint16_t pair(float low, float high)
    {
        uint16_t bits;
        asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(bits) : "f"(high), "f"(low));
        return bits;
    }
};

// Calls launch(FORMAT()) for the format of this run.
template <typename LAUNCH>
cudaError_t with_format(enum dtype format, LAUNCH launch)
{
    return format == E5M2 ? launch(E5m2()) : launch(E4m3());
}

template <typename FORMAT>
__device__ inline uint32_t quantise_four(float a, float b, float c, float d)
{
    return FORMAT::pair(a, b) | (uint32_t)FORMAT::pair(c, d) << 16;
}

// Eight floats, each times `inverse`, as the 8 bytes that they become.
template <typename FORMAT>
__device__ inline uint2 quantise(const float (&values)[8], float inverse)
{
    float y[8];
#pragma unroll
    for (int i = 0; i < 8; i++) y[i] = values[i] * inverse;
    return make_uint2(quantise_four<FORMAT>(y[0], y[1], y[2], y[3]),
                      quantise_four<FORMAT>(y[4], y[5], y[6], y[7]));
}

// The scale of numbers whose largest magnitude is amax. The comparison is false for a NaN, which fmaxf would drop.
template <typename FORMAT>
__device__ inline float scale_of(float amax, bool pow2)
{
    const float scale = __fdiv_rn(amax < SMALLEST_AMAX ? SMALLEST_AMAX : amax, FORMAT::MAX);
    if (!pow2 || !(scale <= FLT_MAX)) return scale;
    // Any bit of the fraction carries into the exponent, which is then all that is left.
    return __uint_as_float((__float_as_uint(scale) + 0x7fffff) & 0x7f800000);
}

// bf16 in pairs: the larger of each place; max.NaN: a NaN is larger than all.
__device__ inline __nv_bfloat162 larger(__nv_bfloat162 a, __nv_bfloat162 b)
{
    return __hmax2_nan(a, b);
}
__device__ inline __nv_bfloat162 magnitudes(uint32_t pair)
{
    return __habs2(*reinterpret_cast<const __nv_bfloat162 *>(&pair));
}

// The largest magnitude of a pack in its even places and in its odd ones.
__device__ inline __nv_bfloat162 pack_amax(uint4 pack)
{
    return larger(larger(magnitudes(pack.x), magnitudes(pack.y)),
                  larger(magnitudes(pack.z), magnitudes(pack.w)));
}

__device__ inline __nv_bfloat162 shuffle_xor(__nv_bfloat162 pair, int lanes)
{
    return __shfl_xor_sync(0xffffffff, pair, lanes);
}

// The largest magnitude over LANES neighbouring lanes, in each of them; pairs on the way, so that one instruction compares two.
template <int LANES>
__device__ inline float lanes_amax(__nv_bfloat162 amax)
{
#pragma unroll
    for (int offset = LANES / 2; offset > 0; offset /= 2) amax = larger(amax, shuffle_xor(amax, offset));
    return __bfloat162float(__hmax_nan(amax.x, amax.y));
}

// Floating point instructions, max.NaN.f32: the larger, or NaN if one is.
__device__ inline float larger(float a, float b)
{
    float c;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(c) : "f"(a), "f"(b));
    return c;
}
__device__ inline float shuffle_xor(float value, int lanes)
{
    return __shfl_xor_sync(0xffffffff, value, lanes);
}

// One of two. A pair is chosen by its bits: else the compiler does it for each half by itself.
__device__ inline float select(bool first, float a, float b)
{
    return first ? a : b;
}
__device__ inline __nv_bfloat162 select(bool first, __nv_bfloat162 a, __nv_bfloat162 b)
{
    const uint32_t bits =
        first ? *reinterpret_cast<const uint32_t *>(&a) : *reinterpret_cast<const uint32_t *>(&b);
    return *reinterpret_cast<const __nv_bfloat162 *>(&bits);
}

// The largest over a group's lanes of what each of them has for each of ROWS rows; lane i gets that of row i % ROWS. In a round a lane
// gives away what it has for half of its rows, and gets what the other has for the half that it keeps: ROWS - 1 shuffles and
// log2(16 / ROWS), not 4 ROWS.
template <int ROWS, typename T>
__device__ inline T rows_amax(T (&amax)[ROWS])
{
#pragma unroll
    for (int n = ROWS / 2; n > 0; n /= 2) {
        const bool upper = threadIdx.x & n;
#pragma unroll
        for (int i = 0; i < n; i++) {
            const T keep = select(upper, amax[i + n], amax[i]), give = select(upper, amax[i], amax[i + n]);
            amax[i] = larger(keep, shuffle_xor(give, n));
        }
    }
#pragma unroll
    for (int n = ROWS; n < GROUP_LANES; n *= 2) amax[0] = larger(amax[0], shuffle_xor(amax[0], n));
    return amax[0];
}

// Where a transposed square of GROUP lines of GROUP bytes has the eight bytes `eight` of a line. 16 lanes write the same eight of lines
// that are eight apart: their four bits choose among 16 places, which are all banks; three of them the chunk of 16 bytes, the highest
// the half of it.
__device__ inline int swizzled(int line, int eight)
{
    return line * GROUP + (eight * 8 ^ line / 8 % 8 * 16 ^ line / 64 * 8);
}
