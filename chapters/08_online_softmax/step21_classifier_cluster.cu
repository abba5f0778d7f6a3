// Chapter 8, step 21: the blocks that share a row of logits are a cluster.
//
// Question: as in step 19.
//
// Grows from: step 18 (classifier_split).
// As step 19 grows from step 7: no tickets, states in the shared memory of all blocks, and parts in registers.
//
//      row of vp = 50304 bf16, 2 blocks    [ 25152 ][ 25105 | 47 padding ]                      50 KB each
//      row of vp = 128256 bf16, 4 blocks   [ 32064 ][ 32064 ][ 32064 ][ 32064 ]                 63 KB each
//
// A row that one block holds is no cluster's: of 1024 columns 266 clusters of one block began in a microsecond in f32, and no more
// than 284 in bf16, of half the bytes. As in step 5 a short row is a warp's, and two of them a block's.
//
//      packs in a row    who holds it                                      bytes of a row at most
//      up to 256         a warp; a block has 2 rows, no barrier              4 KB
//      up to 4096        a block of 64 to 512 threads                       64 KB
//      more              a cluster of 2 to 16 blocks of at most 512 threads  1 MB
//
// Launched early (chapter 6, step 3).
// New instructions: as in step 19; they need sm_90. Registers: at most 64. Shared memory: 2 KB.
// Run: make chapter-8 OP=classifier STEP=classifier_cluster
#include "../../common/device/ptx.cuh"
#include "cluster.cuh"
#include "launchers.h"
#include "row.cuh"

#include <cuda_runtime.h>
#include <math.h>
#include <stdint.h>

constexpr int MAX_THREADS = 512;
constexpr int MAX_WARPS = MAX_THREADS / 32;
constexpr int MAX_PACKS = THREAD_PACKS;             // a thread keeps
constexpr int PART_PACKS = MAX_THREADS * MAX_PACKS; // a block holds at most: 64 KB
constexpr int BLOCKS_PER_SM = 2;
constexpr int WARP_ROWS = 2;         // rows of a block when a warp holds a row
constexpr bool EVICT_FIRST = false;  // nothing is read again
constexpr float LOG2E = 1.44269504f; // exp(x) = 2^(x * LOG2E)
static_assert(BLOCKS_PER_SM * MAX_THREADS * 64 <= 65536, "64 registers a thread");

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

// CLUSTER: a row's threads are a cluster's, not a warp's or a block's.
template <typename T, int PACKS, bool CLUSTER>
__global__ void __launch_bounds__(PACKS < MAX_PACKS ? 32 * WARP_ROWS : MAX_THREADS,
                                  PACKS < MAX_PACKS ? 1 : BLOCKS_PER_SM)
    classifier_cluster_kernel(T *logits,          // (rows, vp), becomes their gradient
                              float *loss,        // (rows)
                              const int *target,  // (rows), each below v
                              const float *dloss, // (rows) or NULL
                              float mean,         // 1 / rows
                              int rows, int v, int vp,
                              int share) // packs of a block's part
{
    __shared__ Exchange<float2, MAX_SPLIT, MAX_WARPS> states;
    if (CLUSTER) states.begin();
    wait_for_kernels_before();
    const int i = CLUSTER ? clusterid_x() : blockIdx.x * blockDim.y + threadIdx.y;
    if (i >= rows) return; // a whole warp, in blocks without barriers
    T *row = logits + (size_t)i * vp;
    const Row<T> out = make_row(row, vp);
    const Row<T> in = first_cols(out, v);
    const int begin = CLUSTER ? cluster_ctarank() * share : 0;
    const int end = min(begin + share, out.count);
    const int first = first_pack<PACKS>(begin, threadIdx.x);

    uint4 frag[PACKS]; // with -infinity for the padding
    load_packs<PACKS, EVICT_FIRST>(frag, in, first, min(end, in.count), -INFINITY);
    // One thread has the target's pack; it writes the loss, and the target's gradient.
    const bool has_target = pack_index<PACKS>(first, end, (out.skip + target[i]) / PACK<T>) < PACKS;
    const float right_logit = has_target ? to_float(row[target[i]]) : 0.0f;
    const State state = CLUSTER ? cluster_merge(state_of<T>(frag), states) : row_merge(state_of<T>(frag));

    const float factor = dloss ? dloss[i] : mean;
    const float scale = factor / state.sum;
    store_packs<PACKS, EVICT_FIRST>(out, first, end, frag,
                                    [=](uint4 pack, int) { return scaled_softmax<T>(pack, state, scale); });
    if (has_target) {
        loss[i] = logf(state.sum) + (state.max - right_logit);
        from_float(&row[target[i]], exp_below(right_logit, state.max) * scale - factor);
    }
}

template <typename T>
static cudaError_t launch(void *logits, float *loss, const int *target, const float *dloss, int rows, int v,
                          int vp, cudaStream_t stream)
{
    if (!logits || !loss || !target || rows <= 0 || v <= 0 || vp < v || (uintptr_t)logits % 16)
        return cudaErrorInvalidValue;
    T *inout = (T *)logits;
    const float mean = 1.0f / (float)rows;
    const int packs = max_packs<T>(vp);
    if (packs > PART_PACKS)
        return launch_clusters(classifier_cluster_kernel<T, MAX_PACKS, true>, rows, packs, 0, MAX_THREADS,
                               stream, inout, loss, target, dloss, mean, rows, v, vp);
    const auto kernel = packs <= 32    ? classifier_cluster_kernel<T, 1, false>
                        : packs <= 64  ? classifier_cluster_kernel<T, 2, false>
                        : packs <= 128 ? classifier_cluster_kernel<T, 4, false>
                                       : classifier_cluster_kernel<T, MAX_PACKS, false>;
    const int warps = (packs - 1) / (32 * MAX_PACKS) + 1;
    const dim3 block = warps == 1 ? dim3(32, WARP_ROWS) : dim3(32 * warps);
    return launch_early(kernel, (rows - 1) / block.y + 1, block, 0, stream, inout, loss, target, dloss, mean,
                        rows, v, vp, packs);
}

extern "C" cudaError_t classifier_cluster(enum dtype dtype, void *logits, float *loss, const int *target,
                                          const float *dloss, int rows, int v, int vp, cudaStream_t stream)
{
    return dtype == BF16 ? launch<__nv_bfloat16>(logits, loss, target, dloss, rows, v, vp, stream)
                         : launch<float>(logits, loss, target, dloss, rows, v, vp, stream);
}
