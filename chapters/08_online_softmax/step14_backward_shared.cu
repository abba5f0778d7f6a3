// Chapter 8, step 14: dy's part in shared memory, so that an SM holds two.
//
// Question: as in step 7: who keeps the memory busy while a block waits for the others' sums?
//
// Grows from: step 13 (backward_split).
// Another block of the same SM. Neither registers nor shared memory have room for both arrays of two blocks; each has
// room for one: y's part stays in registers, dy's goes to shared memory, and 64 registers a thread are enough.
//
//      SM   block 0: [ 64 KB of y in registers ][ 64 KB of dy in shared memory ]  waits
//           block 1: [ 64 KB of y in registers ][ 64 KB of dy in shared memory ]  loads or writes
//
// Registers: at most 128, and 64 of those that share a row. Shared memory: 128 bytes, or 64 KB + 128 bytes.
// Run: make chapter-8 OP=backward STEP=backward_shared
#include "../../common/device/ptx.cuh"
#include "launchers.h"
#include "row.cuh"

#include <cuda_runtime.h>
#include <stddef.h>
#include <stdint.h>

constexpr int MAX_THREADS = 512; // that hold a row, or a part of one
constexpr int FEW_PACKS = 4;     // of y, and of dy, a thread keeps while 256 threads hold a row,
constexpr int MANY_PACKS = 8;    // and of longer ones
constexpr int PART_PACKS =
    MANY_PACKS * MAX_THREADS;      // of y, and of dy, a block holds of a longer row: 2 x 64 KB
constexpr int BLOCKS_PER_SM = 2;   // that hold parts
constexpr int MAX_PARTS = 1 << 16; // of rows, in one launch
static_assert(BLOCKS_PER_SM * MAX_THREADS * 64 <= 65536, "64 registers a thread");

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
__global__ void __launch_bounds__(MAX_THREADS) backward_shared_kernel(const T *y,  // (rows, cols)
                                                                      const T *dy, // (rows, cols)
                                                                      T *dx,       // (rows, cols)
                                                                      int cols)
{
    const Row<T> dx_row = make_row(dx + (size_t)blockIdx.x * cols, cols);
    const Row<const T> y_row = same_row(dx_row, y, (size_t)blockIdx.x * cols);
    const Row<const T> dy_row = same_row(dx_row, dy, (size_t)blockIdx.x * cols);
    const int first = first_pack<PACKS>(0, threadIdx.x);

    uint4 y_frag[PACKS], dy_frag[PACKS];
    load_packs(y_frag, y_row, first, dx_row.count, 0.0f);
    load_packs(dy_frag, dy_row, first, dx_row.count, 0.0f);
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
    store_packs(dx_row, first, dx_row.count, y_frag, [](uint4 pack, int) { return pack; });
}

// What blocks tell each other. All of it begins at 0; launches share it, so no two may run at the same time.
struct Exchange {
    unsigned tickets; // taken
    unsigned long long
        part_dot[MAX_PARTS]; // by ticket: 1 in the upper half, the sum in the lower; 0: not known yet
};
__device__ Exchange exchange;

template <typename T>
__global__ void __launch_bounds__(MAX_THREADS, BLOCKS_PER_SM)
    backward_shared_parts_kernel(const T *y,  // (rows, cols)
                                 const T *dy, // (rows, cols)
                                 T *dx,       // (rows, cols)
                                 int cols, unsigned split)
{
    extern __shared__ __align__(128) uint4 dy_smem[]; // (share)
    __shared__ unsigned block_ticket;
    __shared__ float row_dot;
    if (threadIdx.x == 0) block_ticket = atomicAdd(&exchange.tickets, 1u);
    __syncthreads(); // The ticket is there.
    const unsigned ticket = block_ticket;
    const int row = ticket / split;
    const int part_of_row = ticket % split;
    const Row<T> dx_row = make_row(dx + (size_t)row * cols, cols);
    const Row<const T> y_row = same_row(dx_row, y, (size_t)row * cols);
    const Row<const T> dy_row = same_row(dx_row, dy, (size_t)row * cols);
    const int share = packs_each(dx_row.count, split);
    const int begin = part_of_row * share;
    const int end = min(begin + share, dx_row.count);
    const int first = first_pack<MANY_PACKS>(begin, threadIdx.x);
    const Part dy_part = {dy_smem, begin, first, min(first + 32 * MANY_PACKS, end)};

    uint4 y_frag[MANY_PACKS];
    fetch_part(dy_part, dy_row, 0.0f);
    load_packs(y_frag, y_row, first, end, 0.0f);
    wait_part(dy_part, dy_row, 0.0f);
    float dot = 0.0f;
#pragma unroll
    for (int i = 0; i < MANY_PACKS; i++) {
        keep_packed(y_frag[i]);
        if (first + 32 * i < end) dot += pack_dot<T>(y_frag[i], dy_smem[first + 32 * i - begin]);
    }
    dot = block_sum(dot);

    if (threadIdx.x < 32) {
        unsigned long long *parts = &exchange.part_dot[ticket - part_of_row];
        if (threadIdx.x == 0) st_relaxed_gpu(&parts[part_of_row], 1ull << 32 | __float_as_uint(dot));
        unsigned long long word = threadIdx.x < split ? 0 : 1ull << 32;
        while (__any_sync(0xffffffff, word == 0)) {
            if (word == 0) word = ld_relaxed_gpu(&parts[threadIdx.x]);
            if (word == 0) __nanosleep(20);
        }
        dot = warp_sum(__uint_as_float((unsigned)word));
        if (threadIdx.x == 0) row_dot = dot;
    }
    __syncthreads(); // row_dot is there.
    dot = row_dot;
    store_packs(dx_row, first, end, y_frag,
                [=](uint4 pack, int p) { return gradient<T>(pack, dy_smem[p - begin], dot); });
}

// As many rows a launch as there are words for their parts.
template <typename T>
static cudaError_t launch_split(const T *y, const T *dy, T *dx, int rows, int cols, cudaStream_t stream)
{
    const int packs = max_packs<T>(cols);
    const int split = (packs - 1) / PART_PACKS + 1;
    const int smem_bytes = packs_each(packs, split) * PACK_BYTES;
    int device, sms;
    void *words;
    cudaError_t error = cudaGetDevice(&device);
    if (error == cudaSuccess) error = cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device);
    if (error == cudaSuccess) error = cudaGetSymbolAddress(&words, exchange);
    if (error == cudaSuccess)
        error = cudaFuncSetAttribute(backward_shared_parts_kernel<T>,
                                     cudaFuncAttributeMaxDynamicSharedMemorySize, smem_bytes);
    if (error != cudaSuccess) return error;
    // A row's blocks must all run at the same time, and a warp reads what they tell.
    if (split > sms || split > 32) return cudaErrorInvalidValue;
    for (int row = 0; row < rows && error == cudaSuccess; row += MAX_PARTS / split) {
        const int count = rows - row < MAX_PARTS / split ? rows - row : MAX_PARTS / split;
        const size_t bytes =
            offsetof(Exchange, part_dot) + (size_t)count * split * sizeof(unsigned long long);
        error = cudaMemsetAsync(words, 0, bytes, stream);
        if (error != cudaSuccess) break;
        const size_t offset = (size_t)row * cols;
        backward_shared_parts_kernel<<<count * split, MAX_THREADS, smem_bytes, stream>>>(
            y + offset, dy + offset, dx + offset, cols, split);
        error = cudaGetLastError();
    }
    return error;
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
        backward_shared_kernel<T, FEW_PACKS><<<rows, warps * 32, 0, stream>>>(y_in, dy_in, out, cols);
    } else if (packs <= MANY_PACKS * MAX_THREADS) {
        const int warps = (packs - 1) / (32 * MANY_PACKS) + 1;
        backward_shared_kernel<T, MANY_PACKS><<<rows, warps * 32, 0, stream>>>(y_in, dy_in, out, cols);
    } else
        return launch_split(y_in, dy_in, out, rows, cols, stream);
    return cudaGetLastError();
}

extern "C" cudaError_t backward_shared(enum dtype dtype, const void *y, const void *dy, void *dx, int rows,
                                       int cols, cudaStream_t stream)
{
    return dtype == BF16 ? launch<__nv_bfloat16>(y, dy, dx, rows, cols, stream)
                         : launch<float>(y, dy, dx, rows, cols, stream);
}
