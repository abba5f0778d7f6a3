// Chapter 8, step 3: 16 bytes at a time, and one rescaling for all of them.
//
// Question: step 2 executes two exponentials and rescales for every element; what if it takes several at a time?
//
// Grows from: step 2 (online).
// A thread reads packs of 16 bytes, 4 floats or 8 bf16, with one instruction each. The maximum of a pack is found
// first, which needs no exponential; then its elements are summed up relative to it, and the pack's state is merged:
// one rescaling a pack.
//
//      thread t: packs t, t + 256, ...
//
//      |n n n r r r r r|r r r r r r r r|r r n n n n n n|      a row of bf16 that begins 3 elements into a pack
//       one by one      one load        one by one            n: a neighbour's
//
// New: packs of 16 bytes, wherever a row begins (row.cuh).
// Registers: at most 32. Shared memory: 64 bytes.
// Run: make chapter-8 OP=forward STEP=vectorized
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

// Turns x into y.
template <typename T>
static __device__ uint4 normalize(uint4 pack, State state, float norm)
{
    float values[PACK<T>];
    unpack(values, pack, T());
#pragma unroll
    for (int k = 0; k < PACK<T>; k++) values[k] = exp_below(values[k], state.max) * norm;
    return make_pack(values, T());
}

template <typename T>
__global__ void __launch_bounds__(NUM_THREADS) vectorized_kernel(const T *x, // (rows, cols)
                                                                 T *y,       // (rows, cols)
                                                                 int cols)
{
    const Row<const T> x_row = make_row(x + (size_t)blockIdx.x * cols, cols);
    const Row<T> y_row = same_row(x_row, y, (size_t)blockIdx.x * cols);

    State state = identity();
    for (int p = threadIdx.x; p < x_row.count; p += NUM_THREADS)
        state = merge(state, pack_state<T>(load_pack(x_row, p, -INFINITY)));
    state = block_merge(state);

    const float norm = state.sum > 0.0f ? 1.0f / state.sum : 0.0f;
    for (int p = threadIdx.x; p < x_row.count; p += NUM_THREADS)
        store_pack(y_row, p, normalize<T>(load_pack(x_row, p, -INFINITY), state, norm));
}

template <typename T>
static cudaError_t launch(const void *x, void *y, int rows, int cols, cudaStream_t stream)
{
    // The packs of x and y must lie alike.
    if (!x || !y || rows <= 0 || cols <= 0 || (uintptr_t)x % 16 || (uintptr_t)y % 16)
        return cudaErrorInvalidValue;
    vectorized_kernel<<<rows, NUM_THREADS, 0, stream>>>((const T *)x, (T *)y, cols);
    return cudaGetLastError();
}

extern "C" cudaError_t vectorized(enum dtype dtype, const void *x, void *y, int rows, int cols,
                                  cudaStream_t stream)
{
    return dtype == BF16 ? launch<__nv_bfloat16>(x, y, rows, cols, stream)
                         : launch<float>(x, y, rows, cols, stream);
}
