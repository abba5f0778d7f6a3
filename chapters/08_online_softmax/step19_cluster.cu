// Chapter 8, step 19: the blocks that share a row are a cluster, and write into each other's shared memory.
//
// Question: a ticket before the first load, a word to poll in global memory: can a row's blocks meet without?
//
// Grows from: step 7 (split_shared).
// On Hopper. A cluster's blocks start together on SMs that are near each other, so there are no tickets; each warp writes its state into the
// shared memory of all blocks by st.async, counted there at an mbarrier (Exchange). Who waits there waits for nothing else; barrier.cluster,
// to say as much, first waits for all that was asked of memory. A block's part is in registers, and no row is read twice any more.
//
//      cluster   block 0 [ part ]   block 1 [ part ]   block 2 [ part ]   block 3 [ part ]
//                  states of all warps, 64 of them, in each block, before each writes its part of y
//
//      packs in a row    who holds it                                          bytes of a row at most
//      up to 256         a warp; a block has 4 rows, no barrier                  4 KB
//      up to 2304        a block of 64 to 384 threads, 6 packs of each          36 KB
//      more              2, 4, 8 or 16 blocks of at most 256 threads, 8 packs  512 KB
//
// An SM has four parts: a block that waits for the others of its row leaves the memory to three. Of whole rows, which wait for nobody, so many
// are under way on an SM as the memory asks for (ask_row_bytes), at least three.
//
// Launched early (chapter 6, step 3).
// New instructions: barrier.cluster, mapa, st.async, mbarrier. They need sm_90.
// Registers: at most 80, or 64 in a cluster. Shared memory: 128 bytes, or 2 KB.
// Run: make chapter-8 OP=forward STEP=cluster
#include "../../common/device/ptx.cuh"
#include "cluster.cuh"
#include "launchers.h"
#include "row.cuh"

#include <cuda_runtime.h>
#include <math.h>
#include <stdint.h>

constexpr int MAX_PACKS = THREAD_PACKS; // a thread keeps where a warp holds a row, and of a part;
constexpr int ROW_PACKS = 6;            // where a block of up to ROW_THREADS holds it,
constexpr int ROW_THREADS = 384;        // ROWS_PER_SM of them at least
constexpr int ROWS_PER_SM = 3;
constexpr int PART_THREADS = 256; // that hold a part, 32 KB of a row,
constexpr int PARTS_PER_SM = 4;
constexpr int MAX_THREADS = 512; // and a longer part
constexpr int MAX_WARPS = MAX_THREADS / 32;
constexpr int WARP_ROWS = 4;         // rows of a block when a warp holds a row
constexpr bool EVICT_FIRST = false;  // nothing is read again
constexpr float LOG2E = 1.44269504f; // exp(x) = 2^(x * LOG2E)
static_assert(PARTS_PER_SM * PART_THREADS * 64 <= 65536, "64 registers a thread");

// What is known of a part of a row.
struct __align__(8) State
{
    float max; // of its elements
    float sum; // of exp(element - max)
};

static __device__ State identity()
{
    return {-INFINITY, 0.0f};
}

// exp(x - max); 0 where there is nothing yet, when both are -infinity and their difference would be NaN.
static __device__ float exp_below(float x, float max)
{
    return ex2_approx_ftz((x - (max == -INFINITY ? 0.0f : max)) * LOG2E);
}

static __device__ State merge(State a, State b)
{
    const float max = fmaxf(a.max, b.max);
    return {max, a.sum * exp_below(a.max, max) + b.sum * exp_below(b.max, max)};
}

static __device__ State warp_merge(State state)
{
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2)
        state = merge(state, {__shfl_xor_sync(0xffffffff, state.max, offset),
                              __shfl_xor_sync(0xffffffff, state.sum, offset)});
    return state;
}

// Merges the states of the blockDim.x threads that hold a row: a warp, or the block.
static __device__ State row_merge(State state)
{
    __shared__ State warp_state[MAX_WARPS];
    state = warp_merge(state);
    if (blockDim.x == 32) return state;
    if (threadIdx.x % 32 == 0) warp_state[threadIdx.x / 32] = state;
    __syncthreads(); // Every warp's state is there.
    const int lane = threadIdx.x % 32;
    return warp_merge(lane < blockDim.x / 32 ? warp_state[lane] : identity());
}

// The state of the elements in frag; -infinity stands for those that are no element.
template <typename T, int PACKS>
static __device__ State state_of(uint4 (&frag)[PACKS])
{
    State state = identity();
    float values[PACK<T>];
#pragma unroll
    for (int i = 0; i < PACKS; i++) state.max = fmaxf(state.max, pack_max(frag[i], T()));
#pragma unroll
    for (int i = 0; i < PACKS; i++) {
        keep_packed(frag[i]);
        unpack(values, frag[i], T());
#pragma unroll
        for (int k = 0; k < PACK<T>; k++) state.sum += exp_below(values[k], state.max);
    }
    return state;
}

// Turns x into y.
template <typename T>
static __device__ uint4 normalize(uint4 pack, State state, float norm)
{
    float values[PACK<T>];
    keep_packed(pack);
    unpack(values, pack, T());
#pragma unroll
    for (int k = 0; k < PACK<T>; k++) values[k] = exp_below(values[k], state.max) * norm;
    return make_pack(values, T());
}

// Whole rows: a block's, or, as many as blockDim.y, its warps'.
template <typename T, int PACKS, int THREADS>
__global__ void __launch_bounds__(THREADS, PACKS == ROW_PACKS ? ROWS_PER_SM : 1)
    cluster_kernel(const T *x, // (rows, cols)
                   T *y,       // (rows, cols)
                   int rows, int cols)
{
    wait_for_kernels_before();
    const int lane = threadIdx.x; // of blockDim.x that hold the row
    const int row = blockIdx.x * blockDim.y + threadIdx.y;
    if (row >= rows) return; // a whole warp, in blocks without barriers
    const Row<const T> x_row = make_row(x + (size_t)row * cols, cols);
    const Row<T> y_row = same_row(x_row, y, (size_t)row * cols);
    const int first = first_pack<PACKS>(0, lane);

    uint4 frag[PACKS];
    load_packs<PACKS, EVICT_FIRST>(frag, x_row, first, x_row.count, -INFINITY);
    const State state = row_merge(state_of<T>(frag));

    const float norm = state.sum > 0.0f ? 1.0f / state.sum : 0.0f;
    store_packs<PACKS, EVICT_FIRST>(y_row, first, y_row.count, frag,
                                    [=](uint4 pack, int) { return normalize<T>(pack, state, norm); });
}

// Merges the states of all threads of a cluster; every thread gets the row's.
static __device__ State cluster_merge(State state, Exchange<float2, MAX_SPLIT, MAX_WARPS> &states)
{
    state = warp_merge(state);
    states.tell(make_float2(state.max, state.sum));
    state = identity();
    for (int i = threadIdx.x % 32; i < states.count(); i += 32)
        state = merge(state, {states.told[i].x, states.told[i].y});
    return warp_merge(state);
}

template <typename T, int THREADS>
__global__ void __launch_bounds__(THREADS, PARTS_PER_SM *PART_THREADS / THREADS)
    cluster_parts_kernel(const T *x, // (rows, cols)
                         T *y,       // (rows, cols)
                         int cols,
                         int share) // packs of a part
{
    __shared__ Exchange<float2, MAX_SPLIT, MAX_WARPS> states;
    states.begin();
    wait_for_kernels_before();
    const int row = clusterid_x();
    const Row<const T> x_row = make_row(x + (size_t)row * cols, cols);
    const Row<T> y_row = same_row(x_row, y, (size_t)row * cols);
    const int begin = cluster_ctarank() * share;
    const int end = min(begin + share, x_row.count);
    const int first = first_pack<MAX_PACKS>(begin, threadIdx.x);

    uint4 frag[MAX_PACKS];
    load_packs<MAX_PACKS, EVICT_FIRST>(frag, x_row, first, end, -INFINITY);
    const State state = cluster_merge(state_of<T>(frag), states);

    const float norm = state.sum > 0.0f ? 1.0f / state.sum : 0.0f;
    store_packs<MAX_PACKS, EVICT_FIRST>(y_row, first, end, frag,
                                        [=](uint4 pack, int) { return normalize<T>(pack, state, norm); });
}

template <typename T>
static cudaError_t launch(const void *x, void *y, int rows, int cols, cudaStream_t stream)
{
    // The packs of x and y must lie alike.
    if (!x || !y || rows <= 0 || cols <= 0 || (uintptr_t)x % 16 || (uintptr_t)y % 16)
        return cudaErrorInvalidValue;
    constexpr int WARP_THREADS = 32 * WARP_ROWS;
    const T *in = (const T *)x;
    T *out = (T *)y;
    const int packs = max_packs<T>(cols);
    if (packs <= 32 * MAX_PACKS) {
        const auto kernel = packs <= 32    ? cluster_kernel<T, 1, WARP_THREADS>
                            : packs <= 64  ? cluster_kernel<T, 2, WARP_THREADS>
                            : packs <= 128 ? cluster_kernel<T, 4, WARP_THREADS>
                                           : cluster_kernel<T, MAX_PACKS, WARP_THREADS>;
        return launch_early(kernel, (rows - 1) / WARP_ROWS + 1, dim3(32, WARP_ROWS), 0, stream, in, out, rows,
                            cols);
    }
    if (packs <= ROW_PACKS * ROW_THREADS) {
        const int warps = (packs - 1) / (32 * ROW_PACKS) + 1;
        int bytes;
        const cudaError_t error = ask_row_bytes(&bytes);
        if (error != cudaSuccess) return error;
        const int blocks = max(bytes / (packs * PACK_BYTES), ROWS_PER_SM);
        return launch_early_at_most(blocks, cluster_kernel<T, ROW_PACKS, ROW_THREADS>, rows, warps * 32,
                                    stream, in, out, rows, cols);
    }
    if (packs <= MAX_SPLIT * PART_THREADS * MAX_PACKS)
        return launch_clusters(cluster_parts_kernel<T, PART_THREADS>, rows, packs, 0, PART_THREADS, stream,
                               in, out, cols);
    // 131071 floats, say: a row that begins inside a pack has one more
    return launch_clusters(cluster_parts_kernel<T, MAX_THREADS>, rows, packs, 0, MAX_THREADS, stream, in, out,
                           cols);
}

extern "C" cudaError_t cluster(enum dtype dtype, const void *x, void *y, int rows, int cols,
                               cudaStream_t stream)
{
    return dtype == BF16 ? launch<__nv_bfloat16>(x, y, rows, cols, stream)
                         : launch<float>(x, y, rows, cols, stream);
}
