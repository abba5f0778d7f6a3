// Chapter 8, step 17: the logits stay in shared memory, so that they are read once.
//
// Question: as in step 4: must the logits be read again once the state is known?
//
// Grows from: step 16 (classifier).
// Not those that are still there. 50257 bf16 are 98 KB: in registers one block would fill an SM; shared memory holds
// two of them, so that one loads while the other computes. cp.async brings them there past the registers; a thread
// reads only what it copied. What does not fit is read twice.
//
//      row of vp = 50304 bf16     [ 50257 logits | 47 padding ]                      98 KB, so 2 an SM
//      row of vp = 128256 bf16    [ 53248 logits ][ 75008 logits read twice ]       104 KB
//
// Registers: at most 64. Shared memory: at most 104 KB + 128 bytes.
// Run: make chapter-8 OP=classifier STEP=classifier_shared
#include "../../common/device/ptx.cuh"
#include "launchers.h"
#include "row.cuh"

#include <cuda_runtime.h>
#include <math.h>
#include <stdint.h>

constexpr int NUM_THREADS = 512; // one block a row
constexpr int NUM_WARPS = NUM_THREADS / 32;
constexpr int PART_PACKS = 6656; // it holds at most: 104 KB
constexpr int BLOCKS_PER_SM = 2;
constexpr float LOG2E = 1.44269504f; // exp(x) = 2^(x * LOG2E)
static_assert(BLOCKS_PER_SM * NUM_THREADS * 64 <= 65536, "64 registers a thread");

// What is known of a part of a row.
struct State {
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

static __device__ State block_merge(State state)
{
    __shared__ State warp_state[NUM_WARPS];
    state = warp_merge(state);
    if (threadIdx.x % 32 == 0) warp_state[threadIdx.x / 32] = state;
    __syncthreads(); // Every warp's state is there.
    const int lane = threadIdx.x % 32;
    return warp_merge(lane < NUM_WARPS ? warp_state[lane] : identity());
}

// The state of a pack's elements; -infinity stands for those that are no element.
template <typename T>
static __device__ State pack_state(uint4 pack)
{
    float values[PACK<T>];
    unpack(values, pack, T());
    State state = {pack_max(pack, T()), 0.0f};
#pragma unroll
    for (int k = 0; k < PACK<T>; k++) state.sum += exp_below(values[k], state.max);
    return state;
}

// The state of the thread's elements in the row's first `count` packs; -infinity stands for those that are no element.
template <typename T>
static __device__ State state_of(const Part &part, int count)
{
    const int last = min(part.last, count);
    State state = identity();
#pragma unroll 4
    for (int p = part.first; p < last; p += 32)
        state.max = fmaxf(state.max, pack_max(part.smem[p - part.begin], T()));
#pragma unroll 4
    for (int p = part.first; p < last; p += 32) {
        float values[PACK<T>];
        unpack(values, part.smem[p - part.begin], T());
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
    unpack(values, pack, T());
#pragma unroll
    for (int k = 0; k < PACK<T>; k++) values[k] = exp_below(values[k], state.max) * scale;
    return make_pack(values, T());
}

template <typename T>
__global__ void __launch_bounds__(NUM_THREADS, BLOCKS_PER_SM)
    classifier_shared_kernel(T *logits,          // (rows, vp), becomes their gradient
                             float *loss,        // (rows)
                             const int *target,  // (rows), each below v
                             const float *dloss, // (rows) or NULL
                             float mean,         // 1 / rows
                             int v, int vp, int part_packs)
{
    extern __shared__ __align__(128) uint4 part_smem[];
    const int i = blockIdx.x;
    T *row = logits + (size_t)i * vp;
    const Row<T> out = make_row(row, vp);
    const Row<T> in = first_cols(out, v);
    const int rest = min(part_packs, out.count); // the first pack that is not in shared memory
    const Part part = make_part(part_smem, 0, rest);

    fetch_part(part, in, -INFINITY);
    // One thread has the target's pack; it writes the loss, and the target's gradient.
    const int target_pack = (out.skip + target[i]) / PACK<T>;
    const bool has_target =
        target_pack < rest ? has_pack(part, target_pack) : (target_pack - rest) % NUM_THREADS == threadIdx.x;
    const float right_logit = has_target ? to_float(row[target[i]]) : 0.0f;
    wait_part(part, in, -INFINITY);
    State state = state_of<T>(part, in.count);
    for (int p = rest + threadIdx.x; p < in.count; p += NUM_THREADS)
        state = merge(state, pack_state<T>(load_pack(in, p, -INFINITY)));
    state = block_merge(state);

    const float factor = dloss ? dloss[i] : mean;
    const float scale = factor / state.sum;
#pragma unroll 4
    for (int p = part.first; p < part.last; p += 32)
        store_pack(out, p,
                   p < in.count ? scaled_softmax<T>(part.smem[p], state, scale) : make_uint4(0, 0, 0, 0));
    for (int p = rest + threadIdx.x; p < out.count; p += NUM_THREADS)
        store_pack(out, p,
                   p < in.count ? scaled_softmax<T>(load_pack(in, p, -INFINITY), state, scale)
                                : make_uint4(0, 0, 0, 0));
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
    int device, block_bytes;
    cudaError_t error = cudaGetDevice(&device);
    if (error == cudaSuccess)
        error = cudaDeviceGetAttribute(&block_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
    if (error != cudaSuccess) return error;
    const int room = (block_bytes - NUM_WARPS * (int)sizeof(State)) / PACK_BYTES;
    const int part_packs = room < PART_PACKS ? room : PART_PACKS;
    const int packs = max_packs<T>(vp);
    const int smem_bytes = (packs < part_packs ? packs : part_packs) * PACK_BYTES;
    error = cudaFuncSetAttribute(classifier_shared_kernel<T>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 smem_bytes);
    if (error != cudaSuccess) return error;
    classifier_shared_kernel<<<rows, NUM_THREADS, smem_bytes, stream>>>(
        (T *)logits, loss, target, dloss, 1.0f / (float)rows, v, vp, part_packs);
    return cudaGetLastError();
}

extern "C" cudaError_t classifier_shared(enum dtype dtype, void *logits, float *loss, const int *target,
                                         const float *dloss, int rows, int v, int vp, cudaStream_t stream)
{
    return dtype == BF16 ? launch<__nv_bfloat16>(logits, loss, target, dloss, rows, v, vp, stream)
                         : launch<float>(logits, loss, target, dloss, rows, v, vp, stream);
}
