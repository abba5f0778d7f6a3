// Chapter 8, step 16: GPT-2's classifier: loss and gradient of the logits, in place.
//
// Question: cross entropy needs the softmax of 50257 logits a token only to subtract one and throw it away; can it
// do without writing it?
//
//      loss = log(s) + m - x[target]        dx[j] = (exp(x[j] - m) / s - (j == target ? 1 : 0)) * dloss
//
// Grows from: step 3 (vectorized).
// The state of a row says all that loss and gradient need of it: the second pass writes the gradient where the logits
// were. The vocabulary v is padded to vp columns, for the sake of the matrix multiplication that made the logits: the
// padding is not used, whatever is there, and its gradient is zero.
//
//      row of vp = 50304 bf16     [ 50257 logits | 47 padding ]
//
// dloss is the gradient of each token's loss; without it, 1 / rows, that of the mean. A row needs a logit that is
// not -infinity.
//
// Registers: at most 40. Shared memory: 64 bytes.
// Run: make chapter-8 OP=classifier STEP=classifier
#include "../../common/device/ptx.cuh"
#include "launchers.h"
#include "row.cuh"

#include <cuda_runtime.h>
#include <math.h>
#include <stdint.h>

constexpr int NUM_THREADS = 256; // one block a row
constexpr int NUM_WARPS = NUM_THREADS / 32;
constexpr float LOG2E = 1.44269504f; // exp(x) = 2^(x * LOG2E)

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
__global__ void __launch_bounds__(NUM_THREADS)
    classifier_kernel(T *logits,          // (rows, vp), becomes their gradient
                      float *loss,        // (rows)
                      const int *target,  // (rows), each below v
                      const float *dloss, // (rows) or NULL
                      float mean,         // 1 / rows
                      int v, int vp)
{
    const int i = blockIdx.x;
    T *row = logits + (size_t)i * vp;
    const Row<T> out = make_row(row, vp);
    const Row<T> in = first_cols(out, v);

    // One thread has the target's pack; it writes the loss, and the target's gradient.
    const bool has_target = (out.skip + target[i]) / PACK<T> % NUM_THREADS == threadIdx.x;
    const float right_logit = has_target ? to_float(row[target[i]]) : 0.0f;
    State state = identity();
    for (int p = threadIdx.x; p < in.count; p += NUM_THREADS)
        state = merge(state, pack_state<T>(load_pack(in, p, -INFINITY)));
    state = block_merge(state);

    const float factor = dloss ? dloss[i] : mean;
    const float scale = factor / state.sum;
    for (int p = threadIdx.x; p < out.count; p += NUM_THREADS)
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
    classifier_kernel<<<rows, NUM_THREADS, 0, stream>>>((T *)logits, loss, target, dloss, 1.0f / (float)rows,
                                                        v, vp);
    return cudaGetLastError();
}

extern "C" cudaError_t classifier(enum dtype dtype, void *logits, float *loss, const int *target,
                                  const float *dloss, int rows, int v, int vp, cudaStream_t stream)
{
    return dtype == BF16 ? launch<__nv_bfloat16>(logits, loss, target, dloss, rows, v, vp, stream)
                         : launch<float>(logits, loss, target, dloss, rows, v, vp, stream);
}
