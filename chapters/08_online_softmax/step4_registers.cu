// Chapter 8, step 4: the row stays in registers, so that it is read once.
//
// Question: the state is known after one pass; must the row be read again for y?
//
// Grows from: step 3 (vectorized).
// Not when it is still there: a thread keeps 8 packs of 16 bytes in 32 registers, a warp 4 KB, a block of 1024 threads
// 128 KB. All its loads are asked for before the first is used, which also keeps enough bytes in flight: 4.3 TB/s times
// a latency of about 0.7 us are 3 MB, 23 KB for each of 132 SMs.
//
//      packs in a row    who holds it                            bytes of a row at most
//      up to 8192        a block of 32 to 1024 threads           128 KB
//      more              the block; the rest is read twice, the second time from the L2 if it stays there
//
// With the whole row at hand the maximum of a thread's packs is known before its sum begins: one rescaling a
// thread instead of one a pack. y is written with st.cs, since nobody reads it soon.
//
// Registers: at most 64. Shared memory: 256 bytes.
// Run: make chapter-8 OP=forward STEP=registers
#include "../../common/device/ptx.cuh"
#include "launchers.h"
#include "row.cuh"

#include <cuda_runtime.h>
#include <math.h>
#include <stdint.h>

constexpr int MAX_PACKS = 8;         // a thread keeps
constexpr int MAX_THREADS = 1024;    // that hold a row
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

// Merges the states of the block's blockDim.x threads.
static __device__ State block_merge(State state)
{
    __shared__ State warp_state[MAX_THREADS / 32];
    state = warp_merge(state);
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

template <typename T>
__global__ void __launch_bounds__(MAX_THREADS) registers_kernel(const T *x, // (rows, cols)
                                                                T *y,       // (rows, cols)
                                                                int cols)
{
    const int lane = threadIdx.x; // of blockDim.x that hold the row
    const int lanes = blockDim.x;
    const Row<const T> x_row = make_row(x + (size_t)blockIdx.x * cols, cols);
    const Row<T> y_row = same_row(x_row, y, (size_t)blockIdx.x * cols);
    const int first = first_pack<MAX_PACKS>(0, lane);
    const int rest = MAX_PACKS * lanes; // the first pack that is not in registers

    uint4 frag[MAX_PACKS];
    load_packs(frag, x_row, first, min(rest, x_row.count), -INFINITY);
    State state = state_of<T>(frag);
    for (int p = rest + lane; p < x_row.count; p += lanes) {
        uint4 pack[1] = {load_pack(x_row, p, -INFINITY)};
        state = merge(state, state_of<T>(pack));
    }
    state = block_merge(state);

    const float norm = state.sum > 0.0f ? 1.0f / state.sum : 0.0f;
    store_packs(y_row, first, min(rest, y_row.count), frag,
                [=](uint4 pack, int) { return normalize<T>(pack, state, norm); });
    for (int p = rest + lane; p < x_row.count; p += lanes)
        store_pack(y_row, p, normalize<T>(load_pack(x_row, p, -INFINITY), state, norm));
}

template <typename T>
static cudaError_t launch(const void *x, void *y, int rows, int cols, cudaStream_t stream)
{
    // The packs of x and y must lie alike.
    if (!x || !y || rows <= 0 || cols <= 0 || (uintptr_t)x % 16 || (uintptr_t)y % 16)
        return cudaErrorInvalidValue;
    const int warps = (max_packs<T>(cols) - 1) / (32 * MAX_PACKS) + 1;
    const int threads = warps < MAX_THREADS / 32 ? warps * 32 : MAX_THREADS;
    registers_kernel<<<rows, threads, 0, stream>>>((const T *)x, (T *)y, cols);
    return cudaGetLastError();
}

extern "C" cudaError_t registers(enum dtype dtype, const void *x, void *y, int rows, int cols,
                                 cudaStream_t stream)
{
    return dtype == BF16 ? launch<__nv_bfloat16>(x, y, rows, cols, stream)
                         : launch<float>(x, y, rows, cols, stream);
}
