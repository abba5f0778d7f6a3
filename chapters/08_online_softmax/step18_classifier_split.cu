// Chapter 8, step 18: several blocks share a row of logits that is too long for one.
//
// Question: as in step 7: who holds 128256 logits, two and a half times what a block has room for?
//
// Grows from: step 17 (classifier_shared).
// Several blocks, as in step 7: tickets in the order in which blocks start, and a word of 8 bytes that says what a part
// knows. Now no logit is read twice, however long the row.
//
//      row of vp = 50304 bf16, 1 block     [ 50257 logits | 47 padding ]                  98 KB, so 2 an SM
//      row of vp = 128256 bf16, 3 blocks   [ 42752 logits ][ 42752 logits ][ 42752 logits ]
//
// Registers: at most 64. Shared memory: at most 104 KB + 256 bytes.
// Run: make chapter-8 OP=classifier STEP=classifier_split
#include "../../common/device/ptx.cuh"
#include "launchers.h"
#include "row.cuh"

#include <cuda_runtime.h>
#include <math.h>
#include <stddef.h>
#include <stdint.h>

constexpr int NUM_THREADS = 512;
constexpr int NUM_WARPS = NUM_THREADS / 32;
constexpr int PART_PACKS = 6656; // a block holds at most: 104 KB
constexpr int BLOCKS_PER_SM = 2;
constexpr int MAX_PARTS = 1 << 16;   // of rows, in one launch
constexpr bool EVICT_FIRST = false;  // nothing is read again
constexpr float LOG2E = 1.44269504f; // exp(x) = 2^(x * LOG2E)
static_assert(BLOCKS_PER_SM * NUM_THREADS * 64 <= 65536, "64 registers a thread");

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

// What blocks tell each other. All of it begins at 0; launches share it, so no two may run at the same time.
struct Exchange {
    unsigned tickets;                         // taken
    unsigned long long part_state[MAX_PARTS]; // by ticket; 0: not known yet
};
__device__ Exchange exchange;

struct SharedStorage {
    unsigned ticket;
    State warp_state[NUM_WARPS];
    State row_state;
};

static __device__ unsigned take_ticket(SharedStorage &smem)
{
    if (threadIdx.x == 0) smem.ticket = atomicAdd(&exchange.tickets, 1u);
    __syncthreads(); // The ticket is there.
    return smem.ticket;
}

// A state travels as one word of 8 bytes, so whoever sees any of it sees all of it. No state is the word 0: a maximum
// of 0 has a sum of at least 1.
static __device__ unsigned long long to_word(State state)
{
    return (unsigned long long)__float_as_uint(state.sum) << 32 | __float_as_uint(state.max);
}

static __device__ State from_word(unsigned long long word)
{
    return {__uint_as_float((unsigned)word), __uint_as_float((unsigned)(word >> 32))};
}

// Merges the states of a block's threads and then of all blocks of the row, whose tickets are row_ticket to
// row_ticket + split - 1; every thread gets the row's.
static __device__ State row_merge(State state, SharedStorage &smem, unsigned ticket, unsigned row_ticket,
                                  int split)
{
    const int lane = threadIdx.x % 32;
    const int warp = threadIdx.x / 32;
    state = warp_merge(state);
    if (lane == 0) smem.warp_state[warp] = state;
    __syncthreads(); // Every warp's state is there.
    if (split == 1) return warp_merge(lane < NUM_WARPS ? smem.warp_state[lane] : identity());
    if (warp == 0) {
        state = warp_merge(lane < NUM_WARPS ? smem.warp_state[lane] : identity());
        if (lane == 0) st_relaxed_gpu(&exchange.part_state[ticket], to_word(state));
        unsigned long long word = lane < split ? 0 : to_word(identity());
        while (__any_sync(0xffffffff, word == 0)) {
            if (word == 0) word = ld_relaxed_gpu(&exchange.part_state[row_ticket + lane]);
            if (word == 0) __nanosleep(20);
        }
        state = warp_merge(from_word(word));
        if (lane == 0) smem.row_state = state;
    }
    __syncthreads(); // row_state is there.
    return smem.row_state;
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
    classifier_split_kernel(T *logits,          // (rows, vp), becomes their gradient
                            float *loss,        // (rows)
                            const int *target,  // (rows), each below v
                            const float *dloss, // (rows) or NULL
                            float mean,         // 1 / rows of all launches
                            int v, int vp, int split)
{
    extern __shared__ __align__(128) uint4 part_smem[];
    __shared__ SharedStorage smem;
    const unsigned ticket = split > 1 ? take_ticket(smem) : blockIdx.x;
    const int i = ticket / split;
    const int part_of_row = ticket % split;
    T *row = logits + (size_t)i * vp;
    const Row<T> out = make_row(row, vp);
    const Row<T> in = first_cols(out, v);
    const int share = packs_each(out.count, split);
    const int begin = part_of_row * share;
    const Part part = make_part(part_smem, begin, min(begin + share, out.count));

    fetch_part<EVICT_FIRST>(part, in, -INFINITY);
    // One thread has the target's pack; it writes the loss, and the target's gradient.
    const bool has_target = has_pack(part, (out.skip + target[i]) / PACK<T>);
    const float right_logit = has_target ? to_float(row[target[i]]) : 0.0f;
    wait_part(part, in, -INFINITY);
    const State state = row_merge(state_of<T>(part, in.count), smem, ticket, ticket - part_of_row, split);

    const float factor = dloss ? dloss[i] : mean;
    const float scale = factor / state.sum;
#pragma unroll 4
    for (int p = part.first; p < part.last; p += 32)
        store_pack<EVICT_FIRST>(out, p,
                                p < in.count ? scaled_softmax<T>(part.smem[p - begin], state, scale)
                                             : make_uint4(0, 0, 0, 0));
    if (has_target) {
        loss[i] = logf(state.sum) + (state.max - right_logit);
        from_float(&row[target[i]], exp_below(right_logit, state.max) * scale - factor);
    }
}

// As many blocks a row as it takes to hold it, and as many rows a launch as there are words for their parts.
template <typename T>
static cudaError_t launch(void *logits, float *loss, const int *target, const float *dloss, int rows, int v,
                          int vp, cudaStream_t stream)
{
    if (!logits || !loss || !target || rows <= 0 || rows > INT32_MAX / 2 || v <= 0 || vp < v ||
        (uintptr_t)logits % 16)
        return cudaErrorInvalidValue;
    int device, sms, block_bytes;
    void *words;
    cudaError_t error = cudaGetDevice(&device);
    if (error == cudaSuccess) error = cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device);
    if (error == cudaSuccess)
        error = cudaDeviceGetAttribute(&block_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
    if (error == cudaSuccess) error = cudaGetSymbolAddress(&words, exchange);
    if (error != cudaSuccess) return error;
    const int room = (block_bytes - (int)sizeof(SharedStorage)) / PACK_BYTES / 8 * 8; // as packs_each rounds
    const int part_packs = room < PART_PACKS ? room : PART_PACKS;
    const int packs = max_packs<T>(vp);
    const int split = (packs - 1) / part_packs + 1;
    const int smem_bytes = packs_each(packs, split) * PACK_BYTES;
    // A row's blocks must all run at the same time, and a warp reads what they tell.
    if (split > sms || split > 32) return cudaErrorInvalidValue;
    error = cudaFuncSetAttribute(classifier_split_kernel<T>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 smem_bytes);
    for (int row = 0; row < rows && error == cudaSuccess; row += MAX_PARTS / split) {
        const int count = rows - row < MAX_PARTS / split ? rows - row : MAX_PARTS / split;
        const size_t bytes =
            offsetof(Exchange, part_state) + (size_t)count * split * sizeof(unsigned long long);
        if (split > 1) error = cudaMemsetAsync(words, 0, bytes, stream);
        if (error != cudaSuccess) break;
        classifier_split_kernel<<<count * split, NUM_THREADS, smem_bytes, stream>>>(
            (T *)logits + (size_t)row * vp, loss + row, target + row, dloss ? dloss + row : NULL,
            1.0f / (float)rows, v, vp, split);
        error = cudaGetLastError();
    }
    return error;
}

extern "C" cudaError_t classifier_split(enum dtype dtype, void *logits, float *loss, const int *target,
                                        const float *dloss, int rows, int v, int vp, cudaStream_t stream)
{
    return dtype == BF16 ? launch<__nv_bfloat16>(logits, loss, target, dloss, rows, v, vp, stream)
                         : launch<float>(logits, loss, target, dloss, rows, v, vp, stream);
}
