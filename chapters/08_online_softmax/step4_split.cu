// Chapter 8, step 4: several blocks share a row that is too long for one.
//
// Question: a row of 128k columns is 256 or 512 KB, more than an SM's registers; who holds it?
//
// Grows from step 3. Several blocks, on as many SMs: merging does not care where the parts were. Each keeps its
// part in registers, writes its state to global memory, adds one to its group's counter, waits until all have,
// and merges the `split` states. So every element still crosses the memory bus once in and once out.
//
//      x row 0   [ block 0 | block 1 | ... | block split-1 ]   group 0, then row `groups`, ...
//      x row 1   [ block split | ...                       ]   group 1
//
// Blocks that wait for each other must all be running: the launch is cooperative, as large as the GPU holds at
// once (6 blocks of 128 threads an SM, so that some load while others wait), and the groups walk the rows.
// Rows that 256 threads can hold are step 3's.
//
// New instructions: red.release, ld.acquire. Registers: at most 80. Shared memory: 40 bytes.
#include "../../common/ptx.cuh"
#include "../../common/row.cuh"

#include <cuda_runtime.h>
#include <math.h>
#include <stdint.h>

constexpr int PACKS = 8;         // a thread keeps
constexpr int NUM_THREADS = 128; // a block at most
constexpr int NUM_WARPS = NUM_THREADS / 32;
constexpr int STEP3_PACKS = 2048;                // of a row that step 3 holds in 256 threads
constexpr int BLOCK_PACKS = PACKS * NUM_THREADS; // a block holds: 16 KB
constexpr int BLOCKS_PER_SM = 6;
constexpr int MAX_SPLIT = 64; // blocks of a row
constexpr int MAX_BLOCKS = 2048;
constexpr float LOG2E = 1.44269504f; // exp(x) = 2^(x * LOG2E)
static_assert(BLOCKS_PER_SM * NUM_THREADS * 80 <= 65536, "80 registers a thread");

extern "C" cudaError_t softmax_registers_f32(const void *, void *, int, int, cudaStream_t);
extern "C" cudaError_t softmax_registers_bf16(const void *, void *, int, int, cudaStream_t);

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

// What the blocks that share a row tell each other. A row's states are in the array that its round's parity
// chooses: a block writes there again only after everyone has arrived at the round in between, so after everyone
// has read. Launches share these arrays, so no two may run at the same time.
__device__ State part_state[2][MAX_BLOCKS];
__device__ unsigned
    arrived[MAX_BLOCKS]; // of each group of blocks: how often one of them arrived; begins at 0

struct SharedStorage {
    State warp_state[NUM_WARPS];
    State row_state;
};

// Merges the states of a block's threads and then of the `split` blocks of its group; every thread gets the row's.
static __device__ State group_merge(State state, SharedStorage &smem, int split, int round)
{
    const int lane = threadIdx.x % 32;
    const int warp = threadIdx.x / 32;
    const int group = blockIdx.x / split;
    state = warp_merge(state);
    if (lane == 0) smem.warp_state[warp] = state;
    __syncthreads(); // Every warp's state is there, and everyone has read row_state of the round before.
    if (warp == 0) {
        state = warp_merge(lane < blockDim.x / 32 ? smem.warp_state[lane] : identity());
        State *parts = part_state[round % 2];
        if (lane == 0) {
            parts[blockIdx.x] = state;
            red_release_gpu_add(&arrived[group], 1);
            while (ld_acquire_gpu(&arrived[group]) < (unsigned)(round + 1) * split) continue;
        }
        __syncwarp(); // What lane 0 acquired is now every lane's to read.
        state = identity();
        for (int i = lane; i < split; i += 32) {
            const float2 part = __ldcg((const float2 *)&parts[group * split + i]); // past the L1
            state = merge(state, {part.x, part.y});
        }
        state = warp_merge(state);
        if (lane == 0) smem.row_state = state;
    }
    __syncthreads(); // row_state is there, and warp_state has been read.
    return smem.row_state;
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

template <typename T>
__global__ void __launch_bounds__(NUM_THREADS, BLOCKS_PER_SM)
    softmax_split_kernel(const T *x, // (rows, cols)
                         T *y,       // (rows, cols)
                         int rows, int cols, int split)
{
    __shared__ SharedStorage smem;
    const int groups = gridDim.x / split;
    const int part = blockIdx.x % split;
    for (int round = 0;; round++) {
        const int row = blockIdx.x / split + round * groups;
        if (row >= rows) break;
        const Row<const T> x_row = make_row(x + (size_t)row * cols, cols);
        const Row<T> y_row = same_row(x_row, y, (size_t)row * cols);
        const int share = packs_each(x_row.count, split);
        const int begin = part * share;
        const int end = min(begin + share, x_row.count);
        const int first = first_pack<PACKS>(begin, threadIdx.x);

        uint4 frag[PACKS];
        load_packs(frag, x_row, first, end, -INFINITY);
        const State state = group_merge(state_of<T>(frag), smem, split, round);

        const float norm = state.sum > 0.0f ? 1.0f / state.sum : 0.0f;
        store_packs(y_row, first, end, frag, [=](uint4 pack) { return normalize<T>(pack, state, norm); });
    }
}

// Launches `kernel` with `split` blocks a row. They wait for each other, so all of the grid must be on the GPU at the
// same time: a cooperative launch, whose groups of blocks go from row to row.
template <typename Kernel>
static cudaError_t launch_groups(Kernel *kernel, void **arguments, int rows, int split, int threads,
                                 cudaStream_t stream)
{
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

template <typename T>
static cudaError_t launch(const void *x, void *y, int rows, int cols, cudaStream_t stream)
{
    // The packs of x and y must lie alike.
    if (!x || !y || rows <= 0 || rows > INT32_MAX / 2 || cols <= 0 || (uintptr_t)x % 16 || (uintptr_t)y % 16)
        return cudaErrorInvalidValue;
    int split = (max_packs<T>(cols) - 1) / BLOCK_PACKS + 1;
    if (split > MAX_SPLIT) return cudaErrorInvalidValue;
    const int share = packs_each(max_packs<T>(cols), split);
    const int warps = (share - 1) / (32 * PACKS) + 1;
    void *arguments[] = {&x, &y, &rows, &cols, &split};
    return launch_groups(softmax_split_kernel<T>, arguments, rows, split, warps * 32, stream);
}

extern "C" cudaError_t softmax_split_f32(const void *x, void *y, int rows, int cols, cudaStream_t stream)
{
    if (cols > 0 && max_packs<float>(cols) <= STEP3_PACKS)
        return softmax_registers_f32(x, y, rows, cols, stream);
    return launch<float>(x, y, rows, cols, stream);
}

extern "C" cudaError_t softmax_split_bf16(const void *x, void *y, int rows, int cols, cudaStream_t stream)
{
    if (cols > 0 && max_packs<__nv_bfloat16>(cols) <= STEP3_PACKS)
        return softmax_registers_bf16(x, y, rows, cols, stream);
    return launch<__nv_bfloat16>(x, y, rows, cols, stream);
}
