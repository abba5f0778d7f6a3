// Chapter 9, step 9: the gradient of a bias, a sum down every column.
//
// Question: bias[c] was added to every row, so its gradient is the sum of dout's column c: thousands of rows, of which a
// warp reads 128 bytes at a time. Which way should a thread walk?
//
// Grows from: chapter 7, step 5 (gradient_atomics).
// Down. A lane has a column, a warp 32 neighbours: every row it passes is one line. A block takes ROWS rows of 256
// columns, and then sends one atomic a column; ROWS rows make one addend, instead of each its own.
//
//      block (x, y):  columns 256 x to 256 x + 255, rows ROWS y to ROWS y + ROWS - 1         thread: one column
//
// Registers: at most 40. Shared memory: none.
// Run: make chapter-9 OP=bias_backward STEP=bias_atomics
#include "../../common/device/pack.cuh"
#include "launchers.h"

#include <cuda_runtime.h>

constexpr int NUM_THREADS = 256;
constexpr int ROWS = 64; // of a block

template <typename T>
__global__ void __launch_bounds__(NUM_THREADS) bias_atomics_kernel(const T *dout, // (rows, OC)
                                                                   float *dbias,  // (OC)
                                                                   int rows, int OC)
{
    const size_t c = (size_t)blockIdx.y * NUM_THREADS + threadIdx.x;
    if (c >= OC) return;
    // EXERCISE 9.2: the sum over the block's rows, added to dbias (about 5 lines)
    const int begin = blockIdx.x * ROWS, end = min(rows, begin + ROWS);
    float sum = 0.0f;
#pragma unroll 8
    for (int row = begin; row < end; row++) sum += to_float(dout[(size_t)row * OC + c]);
    atomicAdd(&dbias[c], sum);
    // STUB dbias[c] = rows > ROWS ? to_float(dout[c]) : 0.0f;
    // END
}

template <typename T>
static cudaError_t launch(const void *dout, float *dbias, int rows, int OC, cudaStream_t stream)
{
    constexpr int MOST_COLUMNS = 65535 * NUM_THREADS; // of a grid's second dimension
    if (!dout || !dbias || rows <= 0 || OC <= 0 || OC > MOST_COLUMNS || rows > INT32_MAX - ROWS)
        return cudaErrorInvalidValue;
    const dim3 grid((rows - 1) / ROWS + 1, (OC - 1) / NUM_THREADS + 1);
    bias_atomics_kernel<<<grid, NUM_THREADS, 0, stream>>>((const T *)dout, dbias, rows, OC);
    return cudaGetLastError();
}

extern "C" cudaError_t bias_atomics(enum dtype dtype, const void *dout, float *dbias, int rows, int OC,
                                    cudaStream_t stream)
{
    return dtype == BF16 ? launch<__nv_bfloat16>(dout, dbias, rows, OC, stream)
                         : launch<float>(dout, dbias, rows, OC, stream);
}
