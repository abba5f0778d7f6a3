// Chapter 8, step 15: the backward of causal rows.
//
// Question: what is left to do, now that steps 8 to 12 are there?
//
//      dx[j] = scale * y[j] * (dy[j] - d)        d = sum of y[k] * dy[k], k <= i
//
// Grows from: step 12 (backward_registers).
// To put them together: row i of a (t, t) matrix has i + 1 columns, of y and dy; its gradient above the diagonal is
// written as zeros, and the last row comes first, as in step 10. The sum of a pack that is not there is 0 times 0, so
// nothing is skipped.
//
// Registers: at most 128. Shared memory: 64 bytes.
// Run: make chapter-8 OP=causal_backward STEP=causal_backward
#include "../../common/device/ptx.cuh"
#include "launchers.h"
#include "row.cuh"

#include <cuda_runtime.h>
#include <stdint.h>

constexpr int MAX_THREADS = 512; // that hold a row
constexpr int FEW_PACKS = 4;     // of y, and of dy, a thread keeps while 256 threads hold a row,
constexpr int MANY_PACKS = 8;    // and of longer ones,
constexpr int MOST_PACKS = 9;    // and of the longest: 16383 floats that begin inside a pack are 4097 packs
constexpr bool EVICT_FIRST = false; // nothing is read again

static __device__ float warp_sum(float value)
{
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) value += __shfl_xor_sync(0xffffffff, value, offset);
    return value;
}

// Adds the sums of the blockDim.x threads that hold a row: a warp, or the block.
static __device__ float block_sum(float dot)
{
    __shared__ float warp_dot[MAX_THREADS / 32];
    dot = warp_sum(dot);
    if (blockDim.x == 32) return dot;
    if (threadIdx.x % 32 == 0) warp_dot[threadIdx.x / 32] = dot;
    __syncthreads(); // Every warp's sum is there.
    const int lane = threadIdx.x % 32;
    return warp_sum(lane < blockDim.x / 32 ? warp_dot[lane] : 0.0f);
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
static __device__ uint4 gradient(uint4 y_pack, uint4 dy_pack, float dot, float scale)
{
    float y[PACK<T>], dy[PACK<T>];
    unpack(y, y_pack, T());
    unpack(dy, dy_pack, T());
#pragma unroll
    for (int k = 0; k < PACK<T>; k++) y[k] *= scale * (dy[k] - dot);
    return make_pack(y, T());
}

template <typename T, int PACKS>
__global__ void __launch_bounds__(MAX_THREADS) causal_backward_kernel(const T *y,  // (rows, cols)
                                                                      const T *dy, // (rows, cols)
                                                                      T *dx,       // (rows, cols)
                                                                      float scale, int t)
{
    const int row = gridDim.x - 1 - blockIdx.x;
    const Row<T> dx_row = make_row(dx + (size_t)row * t, t);
    const Row<const T> y_row = first_cols(same_row(dx_row, y, (size_t)row * t), row % t + 1);
    const Row<const T> dy_row = same_row(y_row, dy, (size_t)row * t);
    const int first = first_pack<PACKS>(0, threadIdx.x);

    uint4 y_frag[PACKS], dy_frag[PACKS];
    load_packs<PACKS, EVICT_FIRST>(y_frag, y_row, first, y_row.count, 0.0f);
    load_packs<PACKS, EVICT_FIRST>(dy_frag, dy_row, first, y_row.count, 0.0f);
    float dot = 0.0f;
#pragma unroll
    for (int i = 0; i < PACKS; i++) {
        keep_packed(y_frag[i]);
        keep_packed(dy_frag[i]);
        dot += pack_dot<T>(y_frag[i], dy_frag[i]);
    }
    dot = block_sum(dot);

#pragma unroll
    for (int i = 0; i < PACKS; i++) {
        keep_packed(y_frag[i]);
        keep_packed(dy_frag[i]);
        y_frag[i] = gradient<T>(y_frag[i], dy_frag[i], dot, scale);
    }
    store_packs<PACKS, EVICT_FIRST>(dx_row, first, dx_row.count, y_frag,
                                    [](uint4 pack, int) { return pack; });
}

template <typename T>
static cudaError_t launch(const void *y, const void *dy, void *dx, float scale, int batch, int t,
                          cudaStream_t stream)
{
    // The packs of y, dy and dx must lie alike.
    if (!y || !dy || !dx || batch <= 0 || t <= 0 || batch > INT32_MAX / t || (uintptr_t)y % 16 ||
        (uintptr_t)dy % 16 || (uintptr_t)dx % 16)
        return cudaErrorInvalidValue;
    const T *y_in = (const T *)y;
    const T *dy_in = (const T *)dy;
    T *out = (T *)dx;
    const int rows = batch * t;
    const int packs = max_packs<T>(t);
    const auto threads = [=](int each) { return ((packs - 1) / (32 * each) + 1) * 32; };
    if (packs <= FEW_PACKS * 256)
        causal_backward_kernel<T, FEW_PACKS>
            <<<rows, threads(FEW_PACKS), 0, stream>>>(y_in, dy_in, out, scale, t);
    else if (packs <= MANY_PACKS * MAX_THREADS)
        causal_backward_kernel<T, MANY_PACKS>
            <<<rows, threads(MANY_PACKS), 0, stream>>>(y_in, dy_in, out, scale, t);
    else if (packs <= MOST_PACKS * MAX_THREADS)
        causal_backward_kernel<T, MOST_PACKS>
            <<<rows, threads(MOST_PACKS), 0, stream>>>(y_in, dy_in, out, scale, t);
    else
        return cudaErrorInvalidValue;
    return cudaGetLastError();
}

extern "C" cudaError_t causal_backward(enum dtype dtype, const void *y, const void *dy, void *dx, float scale,
                                       int batch, int t, cudaStream_t stream)
{
    return dtype == BF16 ? launch<__nv_bfloat16>(y, dy, dx, scale, batch, t, stream)
                         : launch<float>(y, dy, dx, scale, batch, t, stream);
}
