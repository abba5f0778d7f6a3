// Chapter 8, step 12: y and dy stay in registers, so that they are read once.
//
// Question: as in step 4: must both be read again when d is known?
//
// Grows from: step 11 (backward).
// No: a thread keeps 8 packs of each in 64 registers, a block of 512 threads 64 KB of each. Rows of at most 16 KB are
// kept by up to 256 threads with 4 packs of each, which need half the registers, so that an SM has twice the warps.
// What does not fit is read twice.
//
//      packs in a row    who holds it                                       bytes of a row at most
//      up to 1024        a block of 32 to 256 threads, 4 packs of each       16 KB
//      up to 4096        a block of 160 to 512 threads, 8 packs of each      64 KB
//      more              the block; the rest is read twice
//
// Registers: at most 128. Shared memory: 64 bytes.
// Run: make chapter-8 OP=backward STEP=backward_registers
#include "../../common/device/ptx.cuh"
#include "launchers.h"
#include "row.cuh"

#include <cuda_runtime.h>
#include <stdint.h>

constexpr int MAX_THREADS = 512; // that hold a row
constexpr int FEW_PACKS = 4;     // of y, and of dy, a thread keeps while 256 threads hold a row,
constexpr int MANY_PACKS = 8;    // and of longer ones

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
static __device__ uint4 gradient(uint4 y_pack, uint4 dy_pack, float dot)
{
    float y[PACK<T>], dy[PACK<T>];
    unpack(y, y_pack, T());
    unpack(dy, dy_pack, T());
#pragma unroll
    for (int k = 0; k < PACK<T>; k++) y[k] *= dy[k] - dot;
    return make_pack(y, T());
}

template <typename T, int PACKS>
__global__ void __launch_bounds__(MAX_THREADS) backward_registers_kernel(const T *y,  // (rows, cols)
                                                                         const T *dy, // (rows, cols)
                                                                         T *dx,       // (rows, cols)
                                                                         int cols)
{
    const Row<T> dx_row = make_row(dx + (size_t)blockIdx.x * cols, cols);
    const Row<const T> y_row = same_row(dx_row, y, (size_t)blockIdx.x * cols);
    const Row<const T> dy_row = same_row(dx_row, dy, (size_t)blockIdx.x * cols);
    const int first = first_pack<PACKS>(0, threadIdx.x);
    const int rest = PACKS * blockDim.x; // the first pack that is not in registers
    const int end = min(rest, dx_row.count);

    uint4 y_frag[PACKS], dy_frag[PACKS];
    load_packs(y_frag, y_row, first, end, 0.0f);
    load_packs(dy_frag, dy_row, first, end, 0.0f);
    float dot = 0.0f;
#pragma unroll
    for (int i = 0; i < PACKS; i++) {
        keep_packed(y_frag[i]);
        keep_packed(dy_frag[i]);
        dot += pack_dot<T>(y_frag[i], dy_frag[i]);
    }
    for (int p = rest + threadIdx.x; p < dx_row.count; p += blockDim.x)
        dot += pack_dot<T>(load_pack(y_row, p, 0.0f), load_pack(dy_row, p, 0.0f));
    dot = block_sum(dot);

#pragma unroll
    for (int i = 0; i < PACKS; i++) {
        keep_packed(y_frag[i]);
        keep_packed(dy_frag[i]);
        y_frag[i] = gradient<T>(y_frag[i], dy_frag[i], dot);
    }
    store_packs(dx_row, first, end, y_frag, [](uint4 pack, int) { return pack; });
    for (int p = rest + threadIdx.x; p < dx_row.count; p += blockDim.x)
        store_pack(dx_row, p, gradient<T>(load_pack(y_row, p, 0.0f), load_pack(dy_row, p, 0.0f), dot));
}

template <typename T>
static cudaError_t launch(const void *y, const void *dy, void *dx, int rows, int cols, cudaStream_t stream)
{
    // The packs of y, dy and dx must lie alike.
    if (!y || !dy || !dx || rows <= 0 || cols <= 0 || (uintptr_t)y % 16 || (uintptr_t)dy % 16 ||
        (uintptr_t)dx % 16)
        return cudaErrorInvalidValue;
    const T *y_in = (const T *)y;
    const T *dy_in = (const T *)dy;
    T *out = (T *)dx;
    const int packs = max_packs<T>(cols);
    if (packs <= FEW_PACKS * 256) {
        const int warps = (packs - 1) / (32 * FEW_PACKS) + 1;
        backward_registers_kernel<T, FEW_PACKS><<<rows, warps * 32, 0, stream>>>(y_in, dy_in, out, cols);
    } else {
        const int warps = (packs - 1) / (32 * MANY_PACKS) + 1;
        const int threads = warps < MAX_THREADS / 32 ? warps * 32 : MAX_THREADS;
        backward_registers_kernel<T, MANY_PACKS><<<rows, threads, 0, stream>>>(y_in, dy_in, out, cols);
    }
    return cudaGetLastError();
}

extern "C" cudaError_t backward_registers(enum dtype dtype, const void *y, const void *dy, void *dx, int rows,
                                          int cols, cudaStream_t stream)
{
    return dtype == BF16 ? launch<__nv_bfloat16>(y, dy, dx, rows, cols, stream)
                         : launch<float>(y, dy, dx, rows, cols, stream);
}
