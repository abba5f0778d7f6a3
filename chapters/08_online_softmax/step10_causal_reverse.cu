// Chapter 8, step 10: the last row first.
//
// Question: the kernel that reads y begins with its first rows; which rows should be written last?
//
// Grows from: step 9 (causal_skip).
// Those: blocks start in the order of their number, so number 0 takes the last row. What is written last, and may still
// be in the L2 for whoever comes next, is the upper left, which is where the next kernel begins. The long rows of a
// matrix now start before its short ones, which fill the end.
//
//      i = 0   x 0 0 0      the last blocks
//          1   x x 0 0
//          2   x x x 0
//          3   x x x x      block 0
//
// Registers: at most 64. Shared memory: 256 bytes.
// Run: make chapter-8 OP=causal STEP=causal_reverse
#include "../../common/device/ptx.cuh"
#include "launchers.h"
#include "row.cuh"

#include <cuda_runtime.h>
#include <math.h>
#include <stdint.h>

constexpr int MAX_PACKS = 8;         // a thread keeps
constexpr int MAX_THREADS = 1024;    // that hold a row
constexpr int WARP_ROWS = 4;         // rows of a block when a warp holds a row
constexpr int MAX_WARP_PACKS = 4;    // of a thread, when a warp holds a row
constexpr float LOG2E = 1.44269504f; // exp(x) = 2^(x * LOG2E)

// What is known of a part of a row.
struct State {
    float max; // of its elements
    float sum; // of exp(scale * (element - max))
};

static __device__ State identity()
{
    return {-INFINITY, 0.0f};
}

// 2^(factor * (x - max)); 0 where there is nothing yet, when both are -infinity and their difference would be NaN.
static __device__ float exp_below(float x, float max, float factor)
{
    return ex2_approx_ftz((x - (max == -INFINITY ? 0.0f : max)) * factor);
}

static __device__ State merge(State a, State b, float factor)
{
    const float max = fmaxf(a.max, b.max);
    return {max, a.sum * exp_below(a.max, max, factor) + b.sum * exp_below(b.max, max, factor)};
}

static __device__ State warp_merge(State state, float factor)
{
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2)
        state = merge(
            state,
            {__shfl_xor_sync(0xffffffff, state.max, offset), __shfl_xor_sync(0xffffffff, state.sum, offset)},
            factor);
    return state;
}

// Merges the states of the blockDim.x threads that hold a row: a warp, or the block.
static __device__ State row_merge(State state, float factor)
{
    __shared__ State warp_state[MAX_THREADS / 32];
    state = warp_merge(state, factor);
    if (blockDim.x == 32) return state;
    if (threadIdx.x % 32 == 0) warp_state[threadIdx.x / 32] = state;
    __syncthreads(); // Every warp's state is there.
    const int lane = threadIdx.x % 32;
    return warp_merge(lane < blockDim.x / 32 ? warp_state[lane] : identity(), factor);
}

// The state of the elements in frag, whose packs are first, first + 32, ... below `end`; -infinity stands for those
// that are no element. What a warp does not have it does not compute: half of all exponentials are of the future.
template <typename T, int PACKS>
static __device__ State state_of(uint4 (&frag)[PACKS], int first, int end, float factor)
{
    State state = identity();
    float values[PACK<T>];
#pragma unroll
    for (int i = 0; i < PACKS; i++) state.max = fmaxf(state.max, pack_max(frag[i], T()));
#pragma unroll
    for (int i = 0; i < PACKS; i++) {
        if (first + 32 * i >= end) break;
        keep_packed(frag[i]);
        unpack(values, frag[i], T());
#pragma unroll
        for (int k = 0; k < PACK<T>; k++) state.sum += exp_below(values[k], state.max, factor);
    }
    return state;
}

// Turns x into y.
template <typename T>
static __device__ uint4 normalize(uint4 pack, State state, float factor, float norm)
{
    float values[PACK<T>];
    keep_packed(pack);
    unpack(values, pack, T());
#pragma unroll
    for (int k = 0; k < PACK<T>; k++) values[k] = exp_below(values[k], state.max, factor) * norm;
    return make_pack(values, T());
}

template <typename T, int PACKS>
__global__ void __launch_bounds__(PACKS < MAX_PACKS ? 32 * WARP_ROWS : MAX_THREADS)
    causal_reverse_kernel(const T *x, // (batch, t, t)
                          T *y,       // (batch, t, t)
                          float scale, int rows, int t)
{
    const int first = first_pack<PACKS>(0, threadIdx.x);
    const int row = rows - 1 - (int)(blockIdx.x * blockDim.y + threadIdx.y);
    if (row < 0) return; // a whole warp, in blocks without barriers
    const Row<const T> whole = make_row(x + (size_t)row * t, t);
    const Row<const T> x_row = first_cols(whole, row % t + 1);
    const float factor = scale * LOG2E;

    uint4 frag[PACKS];
    load_packs(frag, x_row, first, x_row.count, -INFINITY);
    const State state = row_merge(state_of<T>(frag, first, x_row.count, factor), factor);

    const Row<T> y_row = same_row(whole, y, (size_t)row * t);
    const float norm = state.sum > 0.0f ? 1.0f / state.sum : 0.0f;
    const int valid_end = x_row.count;
    store_packs(y_row, first, y_row.count, frag, [=](uint4 pack, int p) {
        return p < valid_end ? normalize<T>(pack, state, factor, norm) : make_uint4(0, 0, 0, 0);
    });
}

template <typename T>
static cudaError_t launch(const void *x, void *y, float scale, int batch, int t, cudaStream_t stream)
{
    // The packs of x and y must lie alike. A scale that is not positive would make the largest score the smallest.
    if (!x || !y || !(scale > 0) || batch <= 0 || t <= 0 || (uintptr_t)x % 16 || (uintptr_t)y % 16)
        return cudaErrorInvalidValue;
    const int packs = max_packs<T>(t);
    if (packs > MAX_PACKS * MAX_THREADS || batch > INT32_MAX / t) return cudaErrorInvalidValue;
    const T *in = (const T *)x;
    T *out = (T *)y;
    const int rows = batch * t;
    const dim3 warp_block(32, WARP_ROWS);
    const int warp_grid = (rows - 1) / WARP_ROWS + 1;
    if (packs <= 32)
        causal_reverse_kernel<T, 1><<<warp_grid, warp_block, 0, stream>>>(in, out, scale, rows, t);
    else if (packs <= 32 * MAX_WARP_PACKS)
        causal_reverse_kernel<T, MAX_WARP_PACKS>
            <<<warp_grid, warp_block, 0, stream>>>(in, out, scale, rows, t);
    else {
        const int warps = (packs - 1) / (32 * MAX_PACKS) + 1;
        causal_reverse_kernel<T, MAX_PACKS><<<rows, warps * 32, 0, stream>>>(in, out, scale, rows, t);
    }
    return cudaGetLastError();
}

extern "C" cudaError_t causal_reverse(enum dtype dtype, const void *x, void *y, float scale, int batch, int t,
                                      cudaStream_t stream)
{
    return dtype == BF16 ? launch<__nv_bfloat16>(x, y, scale, batch, t, stream)
                         : launch<float>(x, y, scale, batch, t, stream);
}
