// Chapter 8, step 7: GPT-2's classifier: loss and gradient of the logits, in place, read once.
//
// Question: cross entropy needs the softmax of 50257 logits a token only to subtract one and throw it away; can it
// do without writing it, and without reading the logits again?
//
//      loss = log(s) + m - x[target]        dx[j] = (exp(x[j] - m) / s - (j == target ? 1 : 0)) * dloss
//
// Grows from step 4: the same groups of blocks hold a row in registers, merge its state, and write the gradient
// where the logits were. The vocabulary v is padded to vp columns, for the sake of the matrix multiplication that
// made the logits: the padding is not read, whatever is there, and its gradient is zero.
//
//      row of vp = 50304 bf16, 7 blocks   [ 7232 | 7232 | 7232 | 7232 | 7232 | 7232 | 6865 logits, 47 padding ]
//
// dloss is the gradient of each token's loss; without it, 1 / rows, that of the mean. A row needs a logit that is
// not -infinity. Registers: at most 72. Shared memory: 40 bytes.
#include "../../common/ptx.cuh"
#include "../../common/row.cuh"

#include <cuda_runtime.h>
#include <math.h>
#include <stdint.h>

constexpr int PACKS = 8;         // a thread keeps
constexpr int NUM_THREADS = 128; // a block at most
constexpr int NUM_WARPS = NUM_THREADS / 32;
constexpr int BLOCK_PACKS = PACKS * NUM_THREADS; // a block holds: 16 KB
constexpr int BLOCKS_PER_SM = 7;
constexpr int MAX_SPLIT = 64; // blocks of a row
constexpr int MAX_BLOCKS = 2048;
constexpr float LOG2E = 1.44269504f; // exp(x) = 2^(x * LOG2E)
static_assert(BLOCKS_PER_SM * NUM_THREADS * 72 <= 65536, "72 registers a thread");

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
        if (split > 1) {
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
        }
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

// The gradient of logits that are not the target: softmax * dloss, with scale = dloss / sum.
template <typename T>
static __device__ uint4 scaled_softmax(uint4 pack, State state, float scale)
{
    float values[PACK<T>];
    keep_packed(pack);
    unpack(values, pack, T());
#pragma unroll
    for (int k = 0; k < PACK<T>; k++) values[k] = exp_below(values[k], state.max) * scale;
    return make_pack(values, T());
}

// Whether this thread keeps the pack with column `col`.
template <int PACKS, typename T>
static __device__ bool has_pack(const Row<T> &row, int first, int end, int col)
{
    return pack_index<PACKS>(first, end, (row.skip + col) / PACK<T>) < PACKS;
}

template <typename T>
__global__ void __launch_bounds__(NUM_THREADS, BLOCKS_PER_SM)
    classifier_kernel(T *logits,          // (rows, vp), becomes their gradient
                      float *loss,        // (rows)
                      const int *target,  // (rows), each below v
                      const float *dloss, // (rows) or NULL
                      int rows, int v, int vp, int split)
{
    __shared__ SharedStorage smem;
    const int groups = gridDim.x / split;
    const int part = blockIdx.x % split;
    for (int round = 0;; round++) {
        const int i = blockIdx.x / split + round * groups;
        if (i >= rows) break;
        T *row = logits + (size_t)i * vp;
        const Row<T> out = make_row(row, vp);
        const Row<T> in = first_cols(out, v);
        const int share = packs_each(out.count, split);
        const int begin = part * share;
        const int end = min(begin + share, out.count);
        const int first = first_pack<PACKS>(begin, threadIdx.x);

        uint4 frag[PACKS];
        load_packs(frag, in, first, min(end, in.count), -INFINITY);
        // One thread of the group holds the target's pack; it writes the loss, and the target's gradient.
        const float right_logit =
            has_pack<PACKS>(out, first, end, target[i]) ? to_float(row[target[i]]) : 0.0f;
        const State state = group_merge(state_of<T>(frag), smem, split, round);

        const float factor = dloss ? dloss[i] : 1.0f / (float)rows;
        const float scale = factor / state.sum;
        store_packs(out, first, end, frag, [=](uint4 pack) { return scaled_softmax<T>(pack, state, scale); });
        if (has_pack<PACKS>(out, first, end, target[i])) {
            loss[i] = logf(state.sum) + (state.max - right_logit);
            from_float(&row[target[i]], exp_below(right_logit, state.max) * scale - factor);
        }
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

template <typename T>
static cudaError_t launch(void *logits, float *loss, const int *target, const float *dloss, int rows, int v,
                          int vp, cudaStream_t stream)
{
    if (!logits || !loss || !target || rows <= 0 || rows > INT32_MAX / 2 || v <= 0 || vp < v ||
        (uintptr_t)logits % 16)
        return cudaErrorInvalidValue;
    const int packs = max_packs<T>(vp);
    int split = (packs - 1) / BLOCK_PACKS + 1;
    if (split > MAX_SPLIT) return cudaErrorInvalidValue;
    const int share = packs_each(packs, split);
    const int warps = (share - 1) / (32 * PACKS) + 1;
    void *arguments[] = {&logits, &loss, &target, &dloss, &rows, &v, &vp, &split};
    return launch_groups(classifier_kernel<T>, arguments, rows, split, warps * 32, stream);
}

extern "C" cudaError_t classifier_f32(void *logits, float *loss, const int *target, const float *dloss,
                                      int rows, int v, int vp, cudaStream_t stream)
{
    return launch<float>(logits, loss, target, dloss, rows, v, vp, stream);
}

extern "C" cudaError_t classifier_bf16(void *logits, float *loss, const int *target, const float *dloss,
                                       int rows, int v, int vp, cudaStream_t stream)
{
    return launch<__nv_bfloat16>(logits, loss, target, dloss, rows, v, vp, stream);
}
