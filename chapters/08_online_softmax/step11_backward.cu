// Chapter 8, step 11: the backward of every row, in two passes over it.
//
// Question: what does the gradient need of the row besides the row?
//
//      dx[j] = y[j] * (dy[j] - d)        d = sum of y[k] * dy[k]
//
// Grows from: step 3 (vectorized).
// One number a row, a plain sum: no maximum, no rescaling, and x itself is not needed. But every dx needs d, so that y
// and dy are read twice: for d, for dx.
//
//      y, dy   read ▒▒▒▒▒▒▒▒  d     read ▒▒▒▒▒▒▒▒  dx        thread t: packs t, t + 256, ...
//
// Registers: at most 40. Shared memory: 32 bytes.
// Run: make chapter-8 OP=backward STEP=backward
#include "../../common/device/ptx.cuh"
#include "launchers.h"
#include "row.cuh"

#include <cuda_runtime.h>
#include <stdint.h>

constexpr int NUM_THREADS = 256; // one block a row
constexpr int NUM_WARPS = NUM_THREADS / 32;

static __device__ float warp_sum(float value)
{
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) value += __shfl_xor_sync(0xffffffff, value, offset);
    return value;
}

static __device__ float block_sum(float dot)
{
    __shared__ float warp_dot[NUM_WARPS];
    dot = warp_sum(dot);
    if (threadIdx.x % 32 == 0) warp_dot[threadIdx.x / 32] = dot;
    __syncthreads(); // Every warp's sum is there.
    const int lane = threadIdx.x % 32;
    return warp_sum(lane < NUM_WARPS ? warp_dot[lane] : 0.0f);
}

// The sum of y dy over a pack.
template <typename T>
static __device__ float pack_dot(uint4 y_pack, uint4 dy_pack)
{
    float y[PACK<T>], dy[PACK<T>], dot = 0.0f;
    unpack(y, y_pack, T());
    unpack(dy, dy_pack, T());
#pragma unroll
    for (int k = 0; k < PACK<T>; k++) dot += y[k] * dy[k];
    return dot;
}

// y becomes dx.
template <typename T>
static __device__ uint4 gradient(uint4 y_pack, uint4 dy_pack, float dot)
{
    float y[PACK<T>], dy[PACK<T>];
    unpack(y, y_pack, T());
    unpack(dy, dy_pack, T());
#pragma unroll
    for (int k = 0; k < PACK<T>; k++) y[k] *= dy[k] - dot;
    return make_pack(y, T());
}

template <typename T>
__global__ void __launch_bounds__(NUM_THREADS) backward_kernel(const T *y,  // (rows, cols)
                                                               const T *dy, // (rows, cols)
                                                               T *dx,       // (rows, cols)
                                                               int cols)
{
    const Row<T> dx_row = make_row(dx + (size_t)blockIdx.x * cols, cols);
    const Row<const T> y_row = same_row(dx_row, y, (size_t)blockIdx.x * cols);
    const Row<const T> dy_row = same_row(dx_row, dy, (size_t)blockIdx.x * cols);

    float dot = 0.0f;
    for (int p = threadIdx.x; p < dx_row.count; p += NUM_THREADS)
        dot += pack_dot<T>(load_pack(y_row, p, 0.0f), load_pack(dy_row, p, 0.0f));
    dot = block_sum(dot);

    for (int p = threadIdx.x; p < dx_row.count; p += NUM_THREADS)
        store_pack(dx_row, p, gradient<T>(load_pack(y_row, p, 0.0f), load_pack(dy_row, p, 0.0f), dot));
}

template <typename T>
static cudaError_t launch(const void *y, const void *dy, void *dx, int rows, int cols, cudaStream_t stream)
{
    // The packs of y, dy and dx must lie alike.
    if (!y || !dy || !dx || rows <= 0 || cols <= 0 || (uintptr_t)y % 16 || (uintptr_t)dy % 16 ||
        (uintptr_t)dx % 16)
        return cudaErrorInvalidValue;
    backward_kernel<<<rows, NUM_THREADS, 0, stream>>>((const T *)y, (const T *)dy, (T *)dx, cols);
    return cudaGetLastError();
}

extern "C" cudaError_t backward(enum dtype dtype, const void *y, const void *dy, void *dx, int rows, int cols,
                                cudaStream_t stream)
{
    return dtype == BF16 ? launch<__nv_bfloat16>(y, dy, dx, rows, cols, stream)
                         : launch<float>(y, dy, dx, rows, cols, stream);
}
