// Chapter 8, step 20: the blocks that share a row of y and dy are a cluster.
//
// Question: as in step 19: can the blocks of a row of two arrays meet without global memory?
//
// Grows from: step 14 (backward_shared).
// As step 19 grows from step 7: each warp writes its part of d into the shared memory of all blocks, where an mbarrier
// counts them. Both arrays' parts are in shared memory, 32 KB of each, so that an SM has three blocks of 256
// threads: while one waits, another loads, and the third may write. And no row is read twice any more: nothing is asked to
// leave the L2 first.
//
//      SM   block 0: [ 32 KB of y ][ 32 KB of dy ]  waits
//           block 1: [ 32 KB of y ][ 32 KB of dy ]  loads
//           block 2: [ 32 KB of y ][ 32 KB of dy ]  writes
//
//      packs in a row    who holds it                                       bytes of a row at most
//      up to 1024        a block of 32 to 256 threads, 4 packs of each       16 KB
//      up to 4096        a block of 160 to 512 threads, 8 packs of each      64 KB
//      more              a cluster of 4, 8 or 16 blocks                     512 KB
//
// Launched early (chapter 6, step 3).
// New instructions: as in step 19; they need sm_90. Registers: at most 128, or 80. Shared memory: 128 bytes, or 64 KB + 640 bytes.
// Run: make chapter-8 OP=backward STEP=backward_cluster
#include "../../common/device/ptx.cuh"
#include "cluster.cuh"
#include "launchers.h"
#include "row.cuh"

#include <cuda_runtime.h>
#include <stdint.h>

constexpr int MAX_THREADS = 512;  // that hold a row
constexpr int FEW_PACKS = 4;      // of y, and of dy, a thread keeps while 256 threads hold a row,
constexpr int MANY_PACKS = 8;     // and of longer ones
constexpr int PART_THREADS = 256; // that hold a part of a row: of y, and of dy, at most 32 KB
constexpr int PART_WARPS = PART_THREADS / 32;
constexpr int BLOCKS_PER_SM = 3;    // that hold parts
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
__global__ void __launch_bounds__(MAX_THREADS) backward_cluster_kernel(const T *y,  // (rows, cols)
                                                                       const T *dy, // (rows, cols)
                                                                       T *dx,       // (rows, cols)
                                                                       int cols)
{
    wait_for_kernels_before();
    const Row<T> dx_row = make_row(dx + (size_t)blockIdx.x * cols, cols);
    const Row<const T> y_row = same_row(dx_row, y, (size_t)blockIdx.x * cols);
    const Row<const T> dy_row = same_row(dx_row, dy, (size_t)blockIdx.x * cols);
    const int first = first_pack<PACKS>(0, threadIdx.x);

    uint4 y_frag[PACKS], dy_frag[PACKS];
    load_packs<PACKS, EVICT_FIRST>(y_frag, y_row, first, dx_row.count, 0.0f);
    load_packs<PACKS, EVICT_FIRST>(dy_frag, dy_row, first, dx_row.count, 0.0f);
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
        y_frag[i] = gradient<T>(y_frag[i], dy_frag[i], dot);
    }
    store_packs<PACKS, EVICT_FIRST>(dx_row, first, dx_row.count, y_frag,
                                    [](uint4 pack, int) { return pack; });
}

// Adds the sums of all threads of a cluster; every thread gets the row's, the same in all.
static __device__ float cluster_sum(float dot, Exchange<float, MAX_SPLIT, PART_WARPS> &dots)
{
    dots.tell(warp_sum(dot));
    dot = 0.0f;
    for (int i = threadIdx.x % 32; i < dots.count(); i += 32) dot += dots.told[i];
    return warp_sum(dot);
}

template <typename T>
__global__ void __launch_bounds__(PART_THREADS, BLOCKS_PER_SM)
    backward_cluster_parts_kernel(const T *y,  // (rows, cols)
                                  const T *dy, // (rows, cols)
                                  T *dx,       // (rows, cols)
                                  int cols,
                                  int share) // packs of a part
{
    extern __shared__ __align__(128) uint4 part_smem[]; // (2, share)
    __shared__ Exchange<float, MAX_SPLIT, PART_WARPS> dots;
    dots.begin();
    wait_for_kernels_before();
    const int row = clusterid_x();
    const Row<T> dx_row = make_row(dx + (size_t)row * cols, cols);
    const Row<const T> y_row = same_row(dx_row, y, (size_t)row * cols);
    const Row<const T> dy_row = same_row(dx_row, dy, (size_t)row * cols);
    const int begin = cluster_ctarank() * share;
    const int end = min(begin + share, dx_row.count);
    const Part y_part = make_part(part_smem, begin, end);
    const Part dy_part = make_part(part_smem + share, begin, end);

    fetch_part<EVICT_FIRST>(y_part, y_row, 0.0f);
    fetch_part<EVICT_FIRST>(dy_part, dy_row, 0.0f);
    wait_part(y_part, y_row, 0.0f);
    wait_part(dy_part, dy_row, 0.0f);
    float dot = 0.0f;
#pragma unroll 4
    for (int p = y_part.first; p < y_part.last; p += 32)
        dot += pack_dot<T>(y_part.smem[p - begin], dy_part.smem[p - begin]);
    dot = cluster_sum(dot, dots);
#pragma unroll 4
    for (int p = y_part.first; p < y_part.last; p += 32)
        store_pack<EVICT_FIRST>(dx_row, p, gradient<T>(y_part.smem[p - begin], dy_part.smem[p - begin], dot));
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
    if (packs <= MANY_PACKS * MAX_THREADS) {
        const bool few = packs <= FEW_PACKS * 256;
        const auto kernel =
            few ? backward_cluster_kernel<T, FEW_PACKS> : backward_cluster_kernel<T, MANY_PACKS>;
        const int warps = (packs - 1) / (32 * (few ? FEW_PACKS : MANY_PACKS)) + 1;
        int bytes;
        const cudaError_t error = ask_row_bytes(&bytes);
        if (error != cudaSuccess) return error;
        const int blocks = max(bytes / (2 * packs * PACK_BYTES), 2);
        return launch_early_at_most(blocks, kernel, rows, warps * 32, stream, y_in, dy_in, out, cols);
    }
    return launch_clusters(backward_cluster_parts_kernel<T>, rows, packs, 2, PART_THREADS, stream, y_in,
                           dy_in, out, cols);
}

extern "C" cudaError_t backward_cluster(enum dtype dtype, const void *y, const void *dy, void *dx, int rows,
                                        int cols, cudaStream_t stream)
{
    return dtype == BF16 ? launch<__nv_bfloat16>(y, dy, dx, rows, cols, stream)
                         : launch<float>(y, dy, dx, rows, cols, stream);
}
