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
