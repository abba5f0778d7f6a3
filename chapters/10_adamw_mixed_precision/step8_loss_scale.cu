// Chapter 10, step 8: the scale of the loss, and what an overflow does.
//
// Question: in 16 bits a small gradient becomes 0 (below 6e-8 in fp16; bf16 reaches as far as fp32). So the loss is
// multiplied by a large scale, and every gradient with it, until one overflows. Which scale is right, and what becomes of
// such a step?
//
// Grows from: step 7 (norm_last_block).
// One that is found while training: doubled when growth_interval steps went well, halved at an overflow, whose step is
// skipped. An infinity or a NaN in any gradient makes the sum of squares one: the pass that the norm needs has already
// looked. Clipping and dividing by the scale are one factor. The last block's thread writes what the update must know:
//
//      sum  ->  overflow? --yes-->  scale / 2, good_steps = 0                    norm = infinity: update nothing
//                         --no--->  steps + 1, good_steps + 1 (or scale * 2, 0)  norm, control[0 to 2]
//
// It counts the steps too, since the host cannot know which were skipped, and so computes the bias corrections.
// Registers: at most 42. Shared memory: 65 bytes.
// Run: make chapter-10 OP=scaled_norm STEP=loss_scale
#include "../../common/device/pack.cuh"
#include "launchers.h"

#include <cuda_runtime.h>

constexpr int NUM_THREADS = 512;
constexpr int NUM_WARPS = NUM_THREADS / 32;
constexpr int PACKS = 4;            // a thread has in flight
constexpr int BLOCKS_PER_SM = 3;    // 1,536 threads, 96 KB in flight
constexpr int MAX_BLOCKS = 132 * 3; // what an H200 holds at a time; elsewhere the same, for the same bits
constexpr float MIN_SCALE = 0x1p-126f, MAX_SCALE = 0x1p126f; // so that 1 / scale is neither 0 nor infinity

static_assert(MAX_BLOCKS <= NUM_THREADS, "a thread has one partial sum");

// Of the launch at work: launches of this step come one after the other.
static __device__ float partials[MAX_BLOCKS];
static __device__ unsigned blocks_done;

static __device__ float warp_sum(float value)
{
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) value += __shfl_xor_sync(0xffffffff, value, offset);
    return value;
}

// The sum over the block's threads, in thread 0.
static __device__ float block_sum(float value)
{
    __shared__ float warp_sums[NUM_WARPS];
    value = warp_sum(value);
    if (threadIdx.x % 32 == 0) warp_sums[threadIdx.x / 32] = value;
    __syncthreads(); // Every warp's sum is there.
    return threadIdx.x < 32 ? warp_sum(threadIdx.x < NUM_WARPS ? warp_sums[threadIdx.x] : 0.0f) : 0.0f;
}

// The squares that fall to this thread.
template <typename T>
static __device__ float thread_squares(const T *grad, size_t n)
{
    const size_t packs = n / PACK<T>;
    float sum = 0.0f;
    for (size_t first = (size_t)blockIdx.x * (NUM_THREADS * PACKS) + threadIdx.x; first < packs;
         first += (size_t)gridDim.x * (NUM_THREADS * PACKS)) {
        uint4 frag[PACKS];
#pragma unroll
        for (int i = 0; i < PACKS; i++) {
            const size_t p = first + i * NUM_THREADS;
            frag[i] = p < packs ? ((const uint4 *)grad)[p] : make_uint4(0, 0, 0, 0);
        }
#pragma unroll
        for (int i = 0; i < PACKS; i++) {
            float values[PACK<T>];
            unpack(values, frag[i], T());
#pragma unroll
            for (int k = 0; k < PACK<T>; k++) sum += values[k] * values[k];
        }
    }
    if (blockIdx.x == 0 && threadIdx.x < n % PACK<T>) {
        const float value = to_float(grad[packs * PACK<T> + threadIdx.x]);
        sum += value * value;
    }
    return sum;
}

// Whether this block is the last that comes here; then its threads see what the others' thread 0 wrote before.
static __device__ bool is_last_block()
{
    __shared__ bool last;
    if (threadIdx.x == 0) {
        __threadfence(); // What was written is seen before the count is.
        last = atomicAdd(&blocks_done, 1) == gridDim.x - 1;
        __threadfence(); // What is read from here on is no older than the count.
    }
    __syncthreads(); // last is there, and the warps' sums have been read.
    return last;
}

// base^exponent. In double: 1 - beta^t cancels.
static __device__ double power(double base, int exponent)
{
    double result = 1.0;
    for (; exponent > 0; exponent /= 2, base *= base)
        if (exponent % 2 == 1) result *= base;
    return result;
}

// What becomes of the state when the squares of the scaled gradient sum up to this.
static __device__ void update_the_state(const update_state &state, float squares, float max_norm, float beta1,
                                        float beta2, int growth_interval)
{
    const float scale = *state.scale;
    const bool overflow = !isfinite(squares);
    *state.norm = overflow ? INFINITY : sqrtf(squares) / scale;
    if (overflow) {
        if (growth_interval > 0) *state.scale = fmaxf(scale * 0.5f, MIN_SCALE);
        *state.good_steps = 0;
        state.control[0] = state.control[1] = state.control[2] = 0.0f;
        return;
    }
    const int t = ++*state.steps;
    if (++*state.good_steps >= growth_interval && growth_interval > 0) {
        *state.scale = fminf(scale * 2.0f, MAX_SCALE);
        *state.good_steps = 0;
    }
    state.control[0] = fminf(max_norm / (*state.norm + 1e-6f), 1.0f) / scale;
    state.control[1] = 1.0 / (1.0 - power(beta1, t));
    state.control[2] = 1.0 / (1.0 - power(beta2, t));
}

template <typename T>
__global__ void __launch_bounds__(NUM_THREADS, BLOCKS_PER_SM)
    loss_scale_kernel(const T *grad, // (n)
                      size_t n, float max_norm, float beta1, float beta2, int growth_interval,
                      update_state state)
{
    float sum = block_sum(thread_squares(grad, n));
    if (threadIdx.x == 0) partials[blockIdx.x] = sum;
    if (!is_last_block()) return;
    sum = block_sum(threadIdx.x < gridDim.x ? __ldcg(&partials[threadIdx.x]) : 0.0f);
    if (threadIdx.x != 0) return;
    update_the_state(state, sum, max_norm, beta1, beta2, growth_interval);
    blocks_done = 0; // for the next launch
}

template <typename T>
static cudaError_t launch(const void *grad, size_t n, float max_norm, float beta1, float beta2,
                          int growth_interval, struct update_state state, cudaStream_t stream)
{
    if (!grad || n == 0 || !(max_norm > 0) || growth_interval < 0) return cudaErrorInvalidValue;
    if (!state.scale || !state.good_steps || !state.steps || !state.norm || !state.control)
        return cudaErrorInvalidValue;
    if (!(beta1 >= 0 && beta1 < 1 && beta2 >= 0 && beta2 < 1)) return cudaErrorInvalidValue;
    if ((uintptr_t)grad % PACK_BYTES != 0) return cudaErrorInvalidValue;
    const size_t grid = min((n - 1) / (NUM_THREADS * PACKS * PACK<T>)+1, (size_t)MAX_BLOCKS);
    loss_scale_kernel<<<grid, NUM_THREADS, 0, stream>>>((const T *)grad, n, max_norm, beta1, beta2,
                                                        growth_interval, state);
    return cudaGetLastError();
}

extern "C" cudaError_t loss_scale(enum dtype dtype, const void *grad, size_t n, float max_norm, float beta1,
                                  float beta2, int growth_interval, struct update_state state,
                                  cudaStream_t stream)
{
    return dtype == BF16
               ? launch<__nv_bfloat16>(grad, n, max_norm, beta1, beta2, growth_interval, state, stream)
               : launch<float>(grad, n, max_norm, beta1, beta2, growth_interval, state, stream);
}
