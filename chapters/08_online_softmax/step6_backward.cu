// Chapter 8, step 6: backward, of a whole row and of a causal one.
//
// Question: what does the gradient need of the row besides the row?
//
//      dx[j] = scale * y[j] * (dy[j] - d)        d = sum of y[k] * dy[k]
//
// One number a row, a plain sum: no maximum, no rescaling. Grows from step 4: y and dy stay in registers, 4 packs
// of each a thread, and the blocks of a long row add their parts of d instead of merging states. A causal row i of
// a (t, t) matrix has i + 1 columns; its gradient above the diagonal is written as zeros, and the last row comes
// first, as in step 5. x itself is not needed.
//
// Shared memory: 36 bytes. Registers: at most 64.
#include "../../common/ptx.cuh"
#include "../../common/row.cuh"

#include <cuda_runtime.h>
#include <math.h>
#include <stdint.h>

constexpr int PACKS = 4;         // of y, and of dy, a thread keeps
constexpr int NUM_THREADS = 256; // a block at most
constexpr int NUM_WARPS = NUM_THREADS / 32;
constexpr int BLOCK_PACKS = PACKS * NUM_THREADS; // of y, and of dy, a block holds: 2 x 16 KB
constexpr int BLOCKS_PER_SM = 4;
constexpr int MAX_SPLIT = 64; // blocks of a row
constexpr int MAX_BLOCKS = 2048;
static_assert(BLOCKS_PER_SM * NUM_THREADS * 64 <= 65536, "64 registers a thread");

static __device__ float warp_sum(float value)
{
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) value += __shfl_xor_sync(0xffffffff, value, offset);
    return value;
}

// What the blocks that share a row tell each other. A row's sums are in the array that its round's parity
// chooses: a block writes there again only after everyone has arrived at the round in between, so after everyone
// has read. Launches share these arrays, so no two may run at the same time.
__device__ float part_dot[2][MAX_BLOCKS];
__device__ unsigned
    arrived[MAX_BLOCKS]; // of each group of blocks: how often one of them arrived; begins at 0

struct SharedStorage {
    float warp_dot[NUM_WARPS];
    float row_dot;
};

// Adds the sums of a block's threads and then of the `split` blocks of its group; every thread gets the row's.
static __device__ float group_sum(float dot, SharedStorage &smem, int split, int round)
{
    const int lane = threadIdx.x % 32;
    const int warp = threadIdx.x / 32;
    const int group = blockIdx.x / split;
    dot = warp_sum(dot);
    if (lane == 0) smem.warp_dot[warp] = dot;
    __syncthreads(); // Every warp's sum is there, and everyone has read row_dot of the round before.
    if (warp == 0) {
        dot = warp_sum(lane < blockDim.x / 32 ? smem.warp_dot[lane] : 0.0f);
        if (split > 1) {
            float *parts = part_dot[round % 2];
            if (lane == 0) {
                parts[blockIdx.x] = dot;
                red_release_gpu_add(&arrived[group], 1);
                while (ld_acquire_gpu(&arrived[group]) < (unsigned)(round + 1) * split) continue;
            }
            __syncwarp(); // What lane 0 acquired is now every lane's to read.
            dot = 0.0f;
            for (int i = lane; i < split; i += 32) dot += __ldcg(&parts[group * split + i]); // past the L1
            dot = warp_sum(dot);
        }
        if (lane == 0) smem.row_dot = dot;
    }
    __syncthreads(); // row_dot is there, and warp_dot has been read.
    return smem.row_dot;
}

// y becomes dx.
template <typename T>
static __device__ uint4 gradient(uint4 y_pack, uint4 dy_pack, float dot, float scale)
{
    float y[PACK<T>], dy[PACK<T>];
    keep_packed(y_pack);
    keep_packed(dy_pack);
    unpack(y, y_pack, T());
    unpack(dy, dy_pack, T());
#pragma unroll
    for (int k = 0; k < PACK<T>; k++) y[k] *= scale * (dy[k] - dot);
    return make_pack(y, T());
}

template <typename T, bool CAUSAL>
__global__ void __launch_bounds__(NUM_THREADS, BLOCKS_PER_SM)
    softmax_backward_kernel(const T *y,  // (rows, cols)
                            const T *dy, // (rows, cols)
                            T *dx,       // (rows, cols)
                            float scale, int rows, int cols, int split)
{
    __shared__ SharedStorage smem;
    const int groups = gridDim.x / split;
    const int part = blockIdx.x % split;
    for (int round = 0;; round++) {
        const unsigned i = blockIdx.x / split + (unsigned)round * groups;
        if (i >= (unsigned)rows) break;
        const int row = CAUSAL ? rows - 1 - (int)i : (int)i;
        const int valid = CAUSAL ? row % cols + 1 : cols;
        const Row<T> dx_row = make_row(dx + (size_t)row * cols, cols);
        const Row<const T> y_row = first_cols(same_row(dx_row, y, (size_t)row * cols), valid);
        const Row<const T> dy_row = same_row(y_row, dy, (size_t)row * cols);
        const int share = packs_each(dx_row.count, split);
        const int begin = part * share;
        const int end = min(begin + share, dx_row.count);
        const int first = first_pack<PACKS>(begin, threadIdx.x);
        const int valid_end = min(end, y_row.count);

        uint4 y_frag[PACKS], dy_frag[PACKS];
        load_packs(y_frag, y_row, first, valid_end, 0.0f);
        load_packs(dy_frag, dy_row, first, valid_end, 0.0f);
        float dot = 0.0f;
#pragma unroll
        for (int j = 0; j < PACKS; j++) {
            float y_values[PACK<T>], dy_values[PACK<T>];
            keep_packed(y_frag[j]);
            keep_packed(dy_frag[j]);
            unpack(y_values, y_frag[j], T());
            unpack(dy_values, dy_frag[j], T());
#pragma unroll
            for (int k = 0; k < PACK<T>; k++) dot += y_values[k] * dy_values[k];
        }
        dot = group_sum(dot, smem, split, round);

#pragma unroll
        for (int j = 0; j < PACKS; j++) y_frag[j] = gradient<T>(y_frag[j], dy_frag[j], dot, scale);
        store_packs(dx_row, first, end, y_frag, [](uint4 pack) { return pack; });
    }
}

// Launches `kernel` with `split` blocks a row. More than one wait for each other, so all of the grid must be on the
// GPU at the same time: a cooperative launch, whose groups of blocks go from row to row.
template <typename Kernel>
static cudaError_t launch_groups(Kernel *kernel, void **arguments, int rows, int split, int threads,
                                 cudaStream_t stream)
{
    if (split == 1) return cudaLaunchKernel((const void *)kernel, rows, threads, arguments, 0, stream);

    int device, sms, blocks_per_sm;
    void *counters;
    cudaError_t error = cudaGetDevice(&device);
    if (error == cudaSuccess) error = cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device);
    if (error == cudaSuccess)
        error = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks_per_sm, kernel, threads, 0);
    if (error == cudaSuccess) error = cudaGetSymbolAddress(&counters, arrived);
    if (error == cudaSuccess) error = cudaMemsetAsync(counters, 0, sizeof arrived, stream);
    if (error != cudaSuccess) return error;
    const int resident = sms * blocks_per_sm < MAX_BLOCKS ? sms * blocks_per_sm : MAX_BLOCKS;
    if (resident < split) return cudaErrorCooperativeLaunchTooLarge;
    const int groups = rows < resident / split ? rows : resident / split;
    return cudaLaunchCooperativeKernel((const void *)kernel, groups * split, threads, arguments, 0, stream);
}

template <typename T, bool CAUSAL>
static cudaError_t launch(const void *y, const void *dy, void *dx, float scale, int rows, int cols,
                          cudaStream_t stream)
{
    // The packs of y, dy and dx must lie alike.
    if (!y || !dy || !dx || rows <= 0 || cols <= 0 || (uintptr_t)y % 16 || (uintptr_t)dy % 16 ||
        (uintptr_t)dx % 16)
        return cudaErrorInvalidValue;
    const int packs = max_packs<T>(cols);
    int split = (packs - 1) / BLOCK_PACKS + 1;
    if (split > MAX_SPLIT) return cudaErrorInvalidValue;
    const int share = packs_each(packs, split);
    const int warps = (share - 1) / (32 * PACKS) + 1;
    void *arguments[] = {&y, &dy, &dx, &scale, &rows, &cols, &split};
    return launch_groups(softmax_backward_kernel<T, CAUSAL>, arguments, rows, split, warps * 32, stream);
}

extern "C" cudaError_t softmax_backward_f32(const void *y, const void *dy, void *dx, int rows, int cols,
                                            cudaStream_t stream)
{
    return launch<float, false>(y, dy, dx, 1.0f, rows, cols, stream);
}

extern "C" cudaError_t softmax_backward_bf16(const void *y, const void *dy, void *dx, int rows, int cols,
                                             cudaStream_t stream)
{
    return launch<__nv_bfloat16, false>(y, dy, dx, 1.0f, rows, cols, stream);
}

extern "C" cudaError_t softmax_causal_backward_f32(const void *y, const void *dy, void *dx, float scale,
                                                   int batch, int t, cudaStream_t stream)
{
    if (batch <= 0 || t <= 0 || batch > INT32_MAX / t) return cudaErrorInvalidValue;
    return launch<float, true>(y, dy, dx, scale, batch * t, t, stream);
}

extern "C" cudaError_t softmax_causal_backward_bf16(const void *y, const void *dy, void *dx, float scale,
                                                    int batch, int t, cudaStream_t stream)
{
    if (batch <= 0 || t <= 0 || batch > INT32_MAX / t) return cudaErrorInvalidValue;
    return launch<__nv_bfloat16, true>(y, dy, dx, scale, batch * t, t, stream);
}
