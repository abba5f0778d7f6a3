// What the steps of this chapter share: D's type and its direct stores, and what every launcher refuses.
#pragma once
#include <cuda_bf16.h>
#include <stdint.h>

#include <type_traits>

#include "../../common/device/dtype.h"
#include "../../common/device/types.cuh"

constexpr int GROUP = 128; // k that share a scale

// Calls launch(TD()) for the type of D.
template <typename LAUNCH>
cudaError_t with_D_type(enum dtype D_dtype, LAUNCH launch)
{
    return D_dtype == F32 ? launch(float()) : launch(__nv_bfloat16());
}

// Whether TMA can load these matrices, and the arguments are there.
static inline bool can_multiply(const void *A, const void *B, const float *scale_A, const float *scale_B,
                                const void *D, int M, int N, int K)
{
    return A && B && scale_A && scale_B && D && M > 0 && N > 0 && K > 0 && K % 16 == 0 &&
           ((uintptr_t)A | (uintptr_t)B) % 16 == 0;
}

// Writes a warpgroup's 64 rows of accumulators, or with tid < 32 a warp's 16, to D (M, N) from (row0, col0) on. This thread's columns come
// in pairs.
template <int COUNT, typename TD>
__device__ inline void store_tile(TD *D, const float (&acc)[COUNT], int row0, int col0, int M, int N, int tid)
{
    const int row = row0 + tid / 32 * 16 + tid % 32 / 4;
#pragma unroll
    for (int r = 0; r < COUNT; r += 4) { // acc[r], acc[r + 1]: row; acc[r + 2], acc[r + 3]: row + 8
        const int col = col0 + r / 4 * 8 + tid % 4 * 2;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            if (row + half * 8 >= M || col >= N) continue;
            TD *dst = D + (size_t)(row + half * 8) * N + col;
            const float x = acc[r + half * 2], y = acc[r + half * 2 + 1];
            if (N % 2 == 0) {
                store_pair(dst, x, y);
            } else {
                dst[0] = (TD)x;
                if (col + 1 < N) dst[1] = (TD)y;
            }
        }
    }
}

// The scales of this thread's two rows in a tile, times that of the first columns' square, and times that of the next one.
struct Scales {
    float first[2], second[2];
};

// sum += scale * acc, the first FIRST columns by the first scales. acc[r] is of this thread's first row if r / 2 is even.
template <int FIRST, int COUNT>
__device__ inline void promote(float (&sum)[COUNT], const float (&acc)[COUNT], const Scales &scales)
{
#pragma unroll
    for (int r = 0; r < COUNT; r++)
        sum[r] += (r / 4 * 8 < FIRST ? scales.first : scales.second)[r / 2 % 2] * acc[r];
}

template <int COLUMNS>
using Columns = std::integral_constant<int, COLUMNS>;

// Calls loop(first), with a constant for how many of a tile's columns have its first scale of B, a multiple of what BLOCK_N and 128 are
// multiples of: a loop over k is compiled for each that there may be, and has no test in it. Inlined whatever its size: ptxas lets no
// wgmma run across a call.
template <int BLOCK_N, typename LOOP>
__device__ __forceinline__ void with_first(int first, LOOP loop)
{
    if (BLOCK_N == GROUP || first >= BLOCK_N)
        loop(Columns<BLOCK_N>());
    else if (BLOCK_N % 32 != 0 && first == 16)
        loop(Columns<16>());
    else if (BLOCK_N % 64 != 0 && first == 32)
        loop(Columns<32>());
    else if (BLOCK_N % 32 != 0 && first == 48)
        loop(Columns<48>());
    else if (first == 64)
        loop(Columns<64>());
    else if (BLOCK_N % 32 != 0 && first == 80)
        loop(Columns<80>());
    else if (BLOCK_N % 64 != 0 && first == 96)
        loop(Columns<96>());
    else
        loop(Columns<GROUP>());
}

// A tile's scales of B, one for each 128 of k, `count` of them: a lane has one of 32 steps. So a load serves 32 steps.
struct LaneScales {
    const float *scale;
    int count;
    float own; // this lane's, of the 32 steps under way

    __device__ LaneScales(const float *scale, int count) : scale(scale), count(count), own(load(0)) {}

    // This lane's of 32 steps, from `first` on.
    __device__ float load(int first) const
    {
        const int k = first + threadIdx.x % 32;
        return k < count ? scale[k] : 0.0f;
    }

    // Of step k, for all lanes: one of those under way.
    __device__ float get(int k) const { return __shfl_sync(0xffffffff, own, k % 32); }

    // The same. The steps come one by one: after the 32nd the next 32 are loaded, while its products are under way.
    __device__ float operator[](int k)
    {
        const float all = get(k);
        if (k % 32 == 31)
            own = load(k + 1); // Not at the head of the next step: its products would wait for it.
        return all;
    }
};

// The same descriptor: what comes from one lane of the warp is known to be all lanes' own, and is kept where wgmma takes it from,
// in uniform registers. Else the compiler moves it there anew for each of them.
__device__ inline uint64_t uniform(uint64_t descriptor)
{
    return descriptor >> 32 << 32 | __shfl_sync(0xffffffff, (uint32_t)descriptor, 0);
}
