// Chapter 8, step 7: the parts of a row in shared memory, so that an SM holds more of them.
//
// Question: while blocks wait for each other's states they load nothing; who keeps the memory busy?
//
// Grows from: step 6 (split).
// The SM's other blocks, so it should hold as many parts as it can. In registers, with 64 a thread, those are 2 x 64
// KB; shared memory has room for 3 x 64 KB when a block needs no more than 40 registers a thread. cp.async brings a
// part there past the registers; a thread reads only what it copied, so that no barrier is needed. Rows that one block
// holds stay in registers, as they are.
//
//      SM   [ part 64 KB, waits ][ part 64 KB, is loaded ][ part 64 KB, is written ]
//
// New instructions: cp.async. Registers: at most 64, or 40. Shared memory: 256 bytes, or 64 KB + 256 bytes of a part.
// Run: make chapter-8 OP=forward STEP=split_shared
#include "../../common/device/ptx.cuh"
#include "launchers.h"
#include "row.cuh"

#include <cuda_runtime.h>
#include <math.h>
#include <stddef.h>
#include <stdint.h>

constexpr int MAX_PACKS = 8;         // a thread keeps
constexpr int MAX_THREADS = 1024;    // that hold a row
constexpr int WARP_ROWS = 4;         // rows of a block when a warp holds a row
constexpr int PART_THREADS = 512;    // that hold a part of a row
constexpr int PART_PACKS = 4096;     // 64 KB
constexpr int BLOCKS_PER_SM = 3;     // that hold parts
constexpr int MAX_PARTS = 1 << 16;   // of rows, in one launch: 4 GB of them
constexpr float LOG2E = 1.44269504f; // exp(x) = 2^(x * LOG2E)
static_assert(BLOCKS_PER_SM * PART_THREADS * 40 <= 65536, "40 registers a thread");

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
    __shared__ State warp_state[MAX_THREADS / 32];
    state = warp_merge(state);
    if (blockDim.x == 32) return state;
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

template <typename T, int PACKS>
__global__ void __launch_bounds__(PACKS < MAX_PACKS ? 32 * WARP_ROWS : MAX_THREADS)
    split_shared_kernel(const T *x, // (rows, cols)
                        T *y,       // (rows, cols)
                        int rows, int cols)
{
    const int lane = threadIdx.x; // of blockDim.x that hold the row
    const int lanes = blockDim.x;
    const int row = blockIdx.x * blockDim.y + threadIdx.y;
    if (row >= rows) return; // a whole warp, in blocks without barriers
    const Row<const T> x_row = make_row(x + (size_t)row * cols, cols);
    const Row<T> y_row = same_row(x_row, y, (size_t)row * cols);
    const int first = first_pack<PACKS>(0, lane);
    const int rest = PACKS * lanes; // the first pack that is not in registers

    uint4 frag[PACKS];
    load_packs(frag, x_row, first, min(rest, x_row.count), -INFINITY);
    State state = state_of<T>(frag);
    for (int p = rest + lane; p < x_row.count; p += lanes) {
        uint4 pack[1] = {load_pack(x_row, p, -INFINITY)};
        state = merge(state, state_of<T>(pack));
    }
    state = row_merge(state);

    const float norm = state.sum > 0.0f ? 1.0f / state.sum : 0.0f;
    store_packs(y_row, first, min(rest, y_row.count), frag,
                [=](uint4 pack, int) { return normalize<T>(pack, state, norm); });
    for (int p = rest + lane; p < x_row.count; p += lanes)
        store_pack(y_row, p, normalize<T>(load_pack(x_row, p, -INFINITY), state, norm));
}

// What blocks tell each other. All of it begins at 0; launches share it, so no two may run at the same time.
struct Exchange {
    unsigned tickets;                         // taken
    unsigned long long part_state[MAX_PARTS]; // by ticket; 0: not known yet
};
__device__ Exchange exchange;

struct SharedStorage {
    unsigned ticket;
    State warp_state[PART_THREADS / 32];
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

// Merges the states of a block's threads, and then of all blocks of the row, whose tickets are row_ticket to
// row_ticket + split - 1; every thread gets the row's.
static __device__ State parts_merge(State state, SharedStorage &smem, unsigned ticket, unsigned row_ticket,
                                    int split)
{
    const int lane = threadIdx.x % 32;
    const int warp = threadIdx.x / 32;
    state = warp_merge(state);
    if (lane == 0) smem.warp_state[warp] = state;
    __syncthreads(); // Every warp's state is there.
    if (warp == 0) {
        state = warp_merge(lane < blockDim.x / 32 ? smem.warp_state[lane] : identity());
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

// The state of the thread's elements; -infinity stands for those that are no element.
template <typename T>
static __device__ State state_of(const Part &part)
{
    State state = identity();
#pragma unroll 4
    for (int p = part.first; p < part.last; p += 32)
        state.max = fmaxf(state.max, pack_max(part.smem[p - part.begin], T()));
#pragma unroll 4
    for (int p = part.first; p < part.last; p += 32) {
        float values[PACK<T>];
        unpack(values, part.smem[p - part.begin], T());
#pragma unroll
        for (int k = 0; k < PACK<T>; k++) state.sum += exp_below(values[k], state.max);
    }
    return state;
}

template <typename T>
__global__ void __launch_bounds__(PART_THREADS, BLOCKS_PER_SM)
    split_shared_parts_kernel(const T *x, // (rows, cols)
                              T *y,       // (rows, cols)
                              int cols, int split)
{
    extern __shared__ __align__(128) uint4 part_smem[];
    __shared__ SharedStorage smem;
    const unsigned ticket = take_ticket(smem);
    const int row = ticket / split;
    const int part_of_row = ticket % split;
    const Row<const T> x_row = make_row(x + (size_t)row * cols, cols);
    const Row<T> y_row = same_row(x_row, y, (size_t)row * cols);
    const int share = packs_each(x_row.count, split);
    const int begin = part_of_row * share;
    const Part part = make_part(part_smem, begin, min(begin + share, x_row.count));

    fetch_part(part, x_row, -INFINITY);
    wait_part(part, x_row, -INFINITY);
    const State state = parts_merge(state_of<T>(part), smem, ticket, ticket - part_of_row, split);

    const float norm = state.sum > 0.0f ? 1.0f / state.sum : 0.0f;
#pragma unroll 4
    for (int p = part.first; p < part.last; p += 32)
        store_pack(y_row, p, normalize<T>(part.smem[p - begin], state, norm));
}

// As many rows a launch as there are words for their parts.
template <typename T>
static cudaError_t launch_split(const T *x, T *y, int rows, int cols, cudaStream_t stream)
{
    const int packs = max_packs<T>(cols);
    const int split = (packs - 1) / PART_PACKS + 1;
    const int smem_bytes = packs_each(packs, split) * PACK_BYTES;
    int device, sms;
    void *words;
    cudaError_t error = cudaGetDevice(&device);
    if (error == cudaSuccess) error = cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device);
    if (error == cudaSuccess) error = cudaGetSymbolAddress(&words, exchange);
    if (error == cudaSuccess)
        error = cudaFuncSetAttribute(split_shared_parts_kernel<T>,
                                     cudaFuncAttributeMaxDynamicSharedMemorySize, smem_bytes);
    if (error != cudaSuccess) return error;
    // A row's blocks must all run at the same time, and a warp reads what they tell.
    if (split > sms || split > 32) return cudaErrorNotSupported;
    for (int row = 0; row < rows && error == cudaSuccess; row += MAX_PARTS / split) {
        const int count = rows - row < MAX_PARTS / split ? rows - row : MAX_PARTS / split;
        const size_t bytes =
            offsetof(Exchange, part_state) + (size_t)count * split * sizeof(unsigned long long);
        error = cudaMemsetAsync(words, 0, bytes, stream);
        if (error != cudaSuccess) break;
        const size_t offset = (size_t)row * cols;
        split_shared_parts_kernel<T>
            <<<count * split, PART_THREADS, smem_bytes, stream>>>(x + offset, y + offset, cols, split);
        error = cudaGetLastError();
    }
    return error;
}

template <typename T>
static cudaError_t launch(const void *x, void *y, int rows, int cols, cudaStream_t stream)
{
    // The packs of x and y must lie alike.
    if (!x || !y || rows <= 0 || cols <= 0 || (uintptr_t)x % 16 || (uintptr_t)y % 16)
        return cudaErrorInvalidValue;
    const T *in = (const T *)x;
    T *out = (T *)y;
    const int packs = max_packs<T>(cols);
    const dim3 warp_block(32, WARP_ROWS);
    const int warp_grid = (rows - 1) / WARP_ROWS + 1;
    if (packs <= 32)
        split_shared_kernel<T, 1><<<warp_grid, warp_block, 0, stream>>>(in, out, rows, cols);
    else if (packs <= 64)
        split_shared_kernel<T, 2><<<warp_grid, warp_block, 0, stream>>>(in, out, rows, cols);
    else if (packs <= 128)
        split_shared_kernel<T, 4><<<warp_grid, warp_block, 0, stream>>>(in, out, rows, cols);
    else if (packs <= 256)
        split_shared_kernel<T, 8><<<warp_grid, warp_block, 0, stream>>>(in, out, rows, cols);
    else {
        if (packs > MAX_PACKS * MAX_THREADS) {
            const cudaError_t error = launch_split(in, out, rows, cols, stream);
            if (error != cudaErrorNotSupported) return error; // else a block has a whole row, as in step 5
        }
        const int warps = (packs - 1) / (32 * MAX_PACKS) + 1;
        const int threads = warps < MAX_THREADS / 32 ? warps * 32 : MAX_THREADS;
        split_shared_kernel<T, MAX_PACKS><<<rows, threads, 0, stream>>>(in, out, rows, cols);
    }
    return cudaGetLastError();
}

extern "C" cudaError_t split_shared(enum dtype dtype, const void *x, void *y, int rows, int cols,
                                    cudaStream_t stream)
{
    return dtype == BF16 ? launch<__nv_bfloat16>(x, y, rows, cols, stream)
                         : launch<float>(x, y, rows, cols, stream);
}
