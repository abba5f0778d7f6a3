// Chapter 18, step 2: the scale of the steps before.
//
// Question: a tensor's amax changes little from one training step to the next. Then why look first?
//
// Grows from: step 1 (two_passes).
// x is divided by a scale that is there already, and its amax is found on the way, for the next time. One kernel, one pass;
// what it needs to know is in device memory, and so is what it leaves:
//
//      scale -> x / scale -> out                                    3 bytes an element
//               |x|       -> amax -> history[position] -> scale     the block that ends last
//
// The history, a ring, keeps an amax for as many calls as it is long: a scale of its largest may be too large, which costs
// small numbers, and seldom too small, which cuts off large ones. (A margin leaves room above, in powers of two.)
// Registers: at most 64. Shared memory: 65 bytes. Launched early (chapter 6, step 3).
// Run: make chapter-18 OP=delayed STEP=delayed
#include "../../common/device/fp8.cuh"
#include "../../common/device/launch.cuh"
#include "launchers.h"

constexpr int NUM_THREADS = 512;
constexpr int NUM_WARPS = NUM_THREADS / 32;
constexpr int PACKS = 4; // a thread has in flight
constexpr int BLOCK_PACKS = NUM_THREADS * PACKS;
constexpr int BLOCKS_PER_SM = 2;
constexpr int MAX_BLOCKS = 132 * BLOCKS_PER_SM; // what an H200 holds at a time: each counts once at the end
constexpr float MAX_SCALE = 0x1p126f;           // so that 1 / scale is not subnormal

// Of the launch at work: launches of this step come one after the other.
static __device__ unsigned amax_bits;
static __device__ unsigned blocks_done;

// The largest over the block's threads of numbers that are not negative, by their bits: NaN is above all. In every thread.
static __device__ unsigned block_max(unsigned value)
{
    __shared__ unsigned warp_max[NUM_WARPS];
    value = __reduce_max_sync(0xffffffff, value);
    __syncthreads(); // The last call's have been read.
    if (threadIdx.x % 32 == 0) warp_max[threadIdx.x / 32] = value;
    __syncthreads(); // Every warp's is there.
    return __reduce_max_sync(0xffffffff, warp_max[threadIdx.x % NUM_WARPS]);
}

// This thread's packs of those that begin at `first`: zeros past the last whole one.
static __device__ void load_packs(uint4 (&frag)[PACKS], const __nv_bfloat16 *x, size_t first, size_t packs)
{
#pragma unroll
    for (int i = 0; i < PACKS; i++) {
        const size_t p = first + i * NUM_THREADS;
        frag[i] = p < packs ? ((const uint4 *)x)[p] : make_uint4(0, 0, 0, 0);
    }
}

// Writes what falls to this thread of out, and returns the largest magnitude of what it read.
template <typename FORMAT>
static __device__ float cast(const __nv_bfloat16 *x, uint8_t *out, size_t n, float inverse)
{
    const size_t packs = n / PACK<__nv_bfloat16>;
    __nv_bfloat162 amax = __float2bfloat162_rn(0.0f);
    const size_t step = (size_t)gridDim.x * BLOCK_PACKS;
    size_t first = (size_t)blockIdx.x * BLOCK_PACKS + threadIdx.x;
    uint4 frag[PACKS];
    load_packs(frag, x, first, packs);
    for (; first < packs; first += step) {
        uint2 bytes[PACKS];
#pragma unroll
        for (int i = 0; i < PACKS; i++) {
            float values[8];
            amax = larger(amax, pack_amax(frag[i]));
            unpack(values, frag[i], __nv_bfloat16());
            bytes[i] = quantise<FORMAT>(values, inverse);
        }
        load_packs(frag, x, first + step, packs); // The next are asked for before these are stored.
#pragma unroll
        for (int i = 0; i < PACKS; i++) {
            const size_t p = first + i * NUM_THREADS;
            if (p < packs) ((uint2 *)out)[p] = bytes[i];
        }
    }
    if (blockIdx.x == 0 && threadIdx.x < n % PACK<__nv_bfloat16>) {
        const size_t last = packs * PACK<__nv_bfloat16> + threadIdx.x;
        const __nv_bfloat16 magnitude = __habs(x[last]);
        amax = larger(amax, __halves2bfloat162(magnitude, magnitude));
        out[last] = FORMAT::pair(to_float(x[last]) * inverse, 0.0f) & 0xff;
    }
    return __bfloat162float(__hmax_nan(amax.x, amax.y));
}

// Whether this block is the last that comes here; then it sees what the others' thread 0 did before.
static __device__ bool is_last_block()
{
    __shared__ bool last;
    if (threadIdx.x == 0) {
        __threadfence(); // What was done is seen before the count is.
        last = atomicAdd(&blocks_done, 1) == gridDim.x - 1;
        __threadfence(); // What is read from here on is no older than the count.
    }
    __syncthreads(); // last is there.
    return last;
}

template <typename FORMAT>
__global__ void __launch_bounds__(NUM_THREADS, BLOCKS_PER_SM)
    delayed_kernel(const __nv_bfloat16 *x, // (n)
                   uint8_t *out,           // (n)
                   float *used,            // (1)
                   size_t n, delayed_state state, int margin, bool most_recent)
{
    wait_for_kernels_before();
    const float scale = *state.scale;
    const unsigned amax = block_max(__float_as_uint(cast<FORMAT>(x, out, n, __frcp_rn(scale))));
    if (threadIdx.x == 0) atomicMax(&amax_bits, amax);
    if (!is_last_block()) return;

    // Every block has read the scale and counted: nobody looks at the state but this one.
    const unsigned now = threadIdx.x == 0 ? __ldcg(&amax_bits) : 0;
    unsigned largest = now;
    if (!most_recent) {
        for (int i = threadIdx.x; i < state.length; i += NUM_THREADS)
            if (i != *state.position) largest = max(largest, __float_as_uint(state.history[i]));
        largest = block_max(largest); // And all have read the state.
    }
    if (threadIdx.x != 0) return;
    const int position = *state.position;
    state.history[position] = __uint_as_float(now);
    *state.position = position + 1 == state.length ? 0 : position + 1;
    *used = scale;
    if (largest > 0 && __uint_as_float(largest) <= FLT_MAX)
        *state.scale = fminf(ldexpf(scale_of<FORMAT>(__uint_as_float(largest), false), margin), MAX_SCALE);
    amax_bits = blocks_done = 0; // for the next launch
}

template <typename FORMAT>
static cudaError_t launch(FORMAT, const void *x, void *out, float *used, size_t n, delayed_state state,
                          int margin, bool most_recent, cudaStream_t stream)
{
    if (!x || !out || !used || n == 0 || margin < 0 || margin > 16) return cudaErrorInvalidValue;
    if (!state.scale || !state.history || !state.position || state.length < 1) return cudaErrorInvalidValue;
    if (((uintptr_t)x | (uintptr_t)out) % PACK_BYTES != 0) return cudaErrorInvalidValue;
    const size_t grid = min((n - 1) / (BLOCK_PACKS * PACK<__nv_bfloat16>)+1, (size_t)MAX_BLOCKS);
    return launch_early(delayed_kernel<FORMAT>, grid, NUM_THREADS, 0, stream, (const __nv_bfloat16 *)x,
                        (uint8_t *)out, used, n, state, margin, most_recent);
}

extern "C" cudaError_t delayed(enum dtype format, const void *x, void *out, float *used, size_t n,
                               struct delayed_state state, int margin, bool most_recent, cudaStream_t stream)
{
    return with_format(
        format, [&](auto f) { return launch(f, x, out, used, n, state, margin, most_recent, stream); });
}
