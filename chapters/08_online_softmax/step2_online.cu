// Chapter 8, step 2: maximum and sum in one pass.
//
// Question: the sum needs the maximum of the whole row; must the row be read once more for it?
//
// Grows from: step 1 (three_pass).
// No: a sum relative to a smaller maximum is turned into one relative to the larger by a factor. The state of any part
// of a row is a pair, and two states merge into that of both parts:
//
//      (m1, s1) + (m2, s2) = (m, s1 * exp(m1 - m) + s2 * exp(m2 - m))        m = max(m1, m2)
//
// This is associative and commutative, and (-infinity, 0) is its identity, so that threads, warps and blocks
// may take any parts of the row and merge in any order. The row is now read twice: for the state and for y.
//
//      thread t: columns t, t + 256, ...   ->  lanes merge by shuffles  ->  warps merge in shared memory
//
// Registers: at most 32. Shared memory: 64 bytes.
// Run: make chapter-8 OP=forward STEP=online
#include "../../common/device/ptx.cuh"
#include "launchers.h"
#include "row.cuh"

#include <cuda_runtime.h>
#include <math.h>

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
    // EXERCISE 8.2: the state of the elements of both (2 lines)
    const float max = fmaxf(a.max, b.max);
    return {max, a.sum * exp_below(a.max, max) + b.sum * exp_below(b.max, max)};
    // STUB return {a.max, a.sum + b.sum};
    // END
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

template <typename T>
__global__ void __launch_bounds__(NUM_THREADS) online_kernel(const T *x, // (rows, cols)
                                                             T *y,       // (rows, cols)
                                                             int cols)
{
    const T *x_row = x + (size_t)blockIdx.x * cols;
    T *y_row = y + (size_t)blockIdx.x * cols;

    // EXERCISE 8.3: the state of the elements that this thread reads, then of the row (about 4 lines)
    State state = identity();
    for (int col = threadIdx.x; col < cols; col += NUM_THREADS)
        state = merge(state, {to_float(x_row[col]), 1.0f});
    state = block_merge(state);
    // STUB State state = block_merge(identity());
    // END

    const float norm = state.sum > 0.0f ? 1.0f / state.sum : 0.0f;
    for (int col = threadIdx.x; col < cols; col += NUM_THREADS)
        from_float(&y_row[col], exp_below(to_float(x_row[col]), state.max) * norm);
}

template <typename T>
static cudaError_t launch(const void *x, void *y, int rows, int cols, cudaStream_t stream)
{
    if (!x || !y || rows <= 0 || cols <= 0) return cudaErrorInvalidValue;
    online_kernel<<<rows, NUM_THREADS, 0, stream>>>((const T *)x, (T *)y, cols);
    return cudaGetLastError();
}

extern "C" cudaError_t online(enum dtype dtype, const void *x, void *y, int rows, int cols,
                              cudaStream_t stream)
{
    return dtype == BF16 ? launch<__nv_bfloat16>(x, y, rows, cols, stream)
                         : launch<float>(x, y, rows, cols, stream);
}
