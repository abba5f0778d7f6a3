// What the steps of this chapter share: D's type and its direct stores, and what every launcher refuses.
#pragma once
#include <cuda_bf16.h>
#include <stdint.h>

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

// Writes a warpgroup's 64 rows of accumulators to D from (row0, col0) on. This thread's columns come in pairs.
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

// The same where `first` columns, a multiple of 32, are in the first square.
template <int BLOCK_N>
__device__ inline void promote_tile(float (&sum)[BLOCK_N / 2], const float (&acc)[BLOCK_N / 2],
                                    const Scales &scales, int first)
{
    if (BLOCK_N == GROUP || first >= BLOCK_N)
        promote<BLOCK_N>(sum, acc, scales);
    else if (first == 32)
        promote<32>(sum, acc, scales);
    else if (first == 64)
        promote<64>(sum, acc, scales);
    else if (first == 96)
        promote<96>(sum, acc, scales);
    else
        promote<128>(sum, acc, scales);
}
