// Chapter 8, step 6: backward, of a whole row and of a causal one.
//
// Question: what does the gradient need of the row besides the row?
//
//      dx[j] = scale * y[j] * (dy[j] - d)        d = sum of y[k] * dy[k]
//
// One number a row, a plain sum: no maximum, no rescaling. x itself is not needed. Grows from steps 3 and 4: a block
// that can holds y and dy of a row in registers, 4 or 8 packs of each a thread; of longer rows several blocks hold a
// part, y in registers and dy in shared memory since neither has room for both of two blocks, and add their parts of
// d instead of merging states.
//
// A causal row i of a (t, t) matrix has i + 1 columns; its gradient above the diagonal is written as zeros, and the
// last row comes first, as in step 5.
//
// Registers: at most 128, and 64 of those that share a row. Shared memory: 64 bytes, or 64 KB + 80 bytes.
#include "../../common/device/ptx.cuh"
#include "row.cuh"
#include "launchers.h"

#include <cuda_runtime.h>
#include <math.h>
#include <stddef.h>
#include <stdint.h>

constexpr int NUM_THREADS = 512; // of a block at most
constexpr int FEW_PACKS = 4;     // of y, and of dy, a thread keeps in registers while 256 threads hold a row,
constexpr int MANY_PACKS = 8;    // and of longer ones
constexpr int PART_PACKS =
    MANY_PACKS * NUM_THREADS;      // of y, and of dy, a block holds of a longer row: 2 x 64 KB
constexpr int BLOCKS_PER_SM = 2;   // that hold parts
constexpr int MAX_PARTS = 1 << 16; // of rows, in one launch
static_assert(BLOCKS_PER_SM * NUM_THREADS * 64 <= 65536, "64 registers a thread");

static __device__ float warp_sum(float value)
{
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) value += __shfl_xor_sync(0xffffffff, value, offset);
    return value;
}

// Adds the sums of a block's threads; every thread gets the block's.
static __device__ float block_sum(float dot)
{
    __shared__ float warp_dot[NUM_THREADS / 32];
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

// A block a row, in registers.
template <typename T, int PACKS, bool CAUSAL>
__global__ void __launch_bounds__(NUM_THREADS) backward_kernel(const T *y,  // (rows, cols)
                                                               const T *dy, // (rows, cols)
                                                               T *dx,       // (rows, cols)
                                                               float scale, int cols)
{
    const int row = CAUSAL ? gridDim.x - 1 - blockIdx.x : blockIdx.x;
    const int valid = CAUSAL ? row % cols + 1 : cols;
    const Row<T> dx_row = make_row(dx + (size_t)row * cols, cols);
    const Row<const T> y_row = first_cols(same_row(dx_row, y, (size_t)row * cols), valid);
    const Row<const T> dy_row = same_row(y_row, dy, (size_t)row * cols);
    const int first = first_pack<PACKS>(0, threadIdx.x);

    uint4 y_frag[PACKS], dy_frag[PACKS];
    load_packs(y_frag, y_row, first, y_row.count, 0.0f);
    load_packs(dy_frag, dy_row, first, y_row.count, 0.0f);
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
    store_packs(dx_row, first, dx_row.count, y_frag, [](uint4 pack, int) { return pack; });
}

// What blocks tell each other. All of it begins at 0; launches share it, so no two may run at the same time.
struct Exchange {
    unsigned tickets; // taken
    unsigned long long
        part_dot[MAX_PARTS]; // by ticket, in the lower half; the upper half is 1 when it is there
};
__device__ Exchange exchange;

// `split` blocks a row, y in registers and dy in shared memory.
template <typename T>
__global__ void __launch_bounds__(NUM_THREADS, BLOCKS_PER_SM)
    backward_split_kernel(const T *y,  // (rows, cols)
                          const T *dy, // (rows, cols)
                          T *dx,       // (rows, cols)
                          int cols, unsigned split)
{
    extern __shared__ uint4 dy_smem[]; // (share)
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
                [=](uint4 pack, int p) { return gradient<T>(pack, dy_smem[p - begin], dot, 1.0f); });
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
        error = cudaFuncSetAttribute(backward_split_kernel<T>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                     smem_bytes);
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
        backward_split_kernel<<<count * split, NUM_THREADS, smem_bytes, stream>>>(y + offset, dy + offset,
                                                                                  dx + offset, cols, split);
        error = cudaGetLastError();
    }
    return error;
}

template <typename T, bool CAUSAL>
static cudaError_t launch(const T *y, const T *dy, T *dx, float scale, int rows, int cols,
                          cudaStream_t stream)
{
    // The packs of y, dy and dx must lie alike.
    if (!y || !dy || !dx || rows <= 0 || cols <= 0 || (uintptr_t)y % 16 || (uintptr_t)dy % 16 ||
        (uintptr_t)dx % 16)
        return cudaErrorInvalidValue;
    const int packs = max_packs<T>(cols);
    const auto threads = [=](int each) { return ((packs - 1) / (32 * each) + 1) * 32; };
    if (packs <= FEW_PACKS * 256)
        backward_kernel<T, FEW_PACKS, CAUSAL>
            <<<rows, threads(FEW_PACKS), 0, stream>>>(y, dy, dx, scale, cols);
    else if (packs <= MANY_PACKS * NUM_THREADS)
        backward_kernel<T, MANY_PACKS, CAUSAL>
            <<<rows, threads(MANY_PACKS), 0, stream>>>(y, dy, dx, scale, cols);
    else
        return CAUSAL ? cudaErrorInvalidValue : launch_split(y, dy, dx, rows, cols, stream);
    return cudaGetLastError();
}

template <bool CAUSAL>
static cudaError_t launch_typed(enum dtype dtype, const void *y, const void *dy, void *dx, float scale,
                                int rows, int cols, cudaStream_t stream)
{
    return dtype == F32 ? launch<float, CAUSAL>((const float *)y, (const float *)dy, (float *)dx, scale, rows,
                                                cols, stream)
                        : launch<__nv_bfloat16, CAUSAL>((const __nv_bfloat16 *)y, (const __nv_bfloat16 *)dy,
                                                        (__nv_bfloat16 *)dx, scale, rows, cols, stream);
}

extern "C" cudaError_t backward(enum dtype dtype, const void *y, const void *dy, void *dx, int rows, int cols,
                                cudaStream_t stream)
{
    return launch_typed<false>(dtype, y, dy, dx, 1.0f, rows, cols, stream);
}

extern "C" cudaError_t causal_backward(enum dtype dtype, const void *y, const void *dy, void *dx, float scale,
                                       int batch, int t, cudaStream_t stream)
{
    if (batch <= 0 || t <= 0 || batch > INT32_MAX / t) return cudaErrorInvalidValue;
    return launch_typed<true>(dtype, y, dy, dx, scale, batch * t, t, stream);
}
