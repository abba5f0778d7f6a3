// What is right on some devices, or as long as nothing lies before it: bugs.bats runs these under the conditions that show it.
#include <assert.h>

#include "../hopper/hopper.cuh"
#include "bugs.cuh"

#define T threadIdx.x

// A box needs 128 bytes' alignment, and dynamic memory is declared with 4.
__constant__ CUtensorMap map;
constexpr int BOX_BYTES = 32 * 4 * 4;

template <bool BROKEN>
__global__ void aligned_by_luck(u32 *out)
{
    extern __shared__ u32 memory[];
    u32 *full = memory + 2048, *tile = BROKEN ? memory : memory + (128 - smem_addr(memory) % 128) % 128 / 4;
    if (T == 0) {
        bar_init(smem_addr(full), 1);
        INIT_FENCE;
        bar_expect(smem_addr(full), BOX_BYTES);
        tensor_in(tile, &map, 0, 0, smem_addr(full)); // aligned_by_luck
    }
    __syncthreads();
    bar_wait(smem_addr(full), 0);
    out[T] = tile[T];
}

// Bytes read as vectors: a static array is as aligned as its type.
template <bool BROKEN>
__global__ void vectors_by_luck(u32 *out)
{
    __shared__ u8 bytes[64 * 16];
    __shared__ uint4 vectors[64];
    u8 *tile = BROKEN ? bytes : (u8 *)vectors;
    for (u32 k = 0; k < 16; k++) tile[16 * T + k] = (u8)k;
    const uint4 sum = ((uint4 *)tile)[T]; // vectors_by_luck
    out[T] = sum.x + sum.y + sum.z + sum.w;
}

// Volatile data and a volatile flag: a GPU most often shows them in the order in which they were written.
template <bool BROKEN>
__global__ void seen_in_order_by_luck(u32 *out)
{
    volatile u32 *data = out, *flag = out + 1024;
    if (blockIdx.x == 0) {
        data[T] = T + 1;
        if (!BROKEN) __threadfence();
        __syncthreads();
        if (T == 0) *flag = 1;
    } else {
        if (T == 0)
            while (*flag != 1) {
            }
        __syncthreads();
        __threadfence();
        assert(data[T] == T + 1); // seen_in_order_by_luck
    }
}

// Two blocks, each of which says that it is there and then looks for the other: one at least must see it.
template <bool BROKEN>
__global__ void neither_sees_the_other(u32 *out)
{
    volatile u32 *here = out;
    u32 *seen = out + 1024, *done = out + 2048;
    here[2 * T + blockIdx.x] = 1;
    if (!BROKEN) __threadfence();
    atomicAdd(seen + T, here[2 * T + 1 - blockIdx.x]);
    __threadfence();
    if (atomicAdd(done + T, 1) == 1) assert(atomicAdd(seen + T, 0) >= 1); // neither_sees_the_other
}

// Who looks twice at one word sees no older value the second time; at two words he may.
template <bool BROKEN>
__global__ void counts_back(u32 *out)
{
    volatile u32 *first = out, *second = out + 1024;
    for (u32 k = 1; k < 50 && blockIdx.x == 0; k++) {
        first[T] = k;
        second[T] = k;
    }
    for (u32 k = 0; k < 50 && blockIdx.x > 0;) {
        const u32 before = BROKEN ? second[T] : first[T], after = first[T];
        assert(after >= before); // counts_back
        k = after == 49 ? 50 : k;
    }
}

// A barrier of the whole grid, made by hand: all blocks must fit the device at once.
template <bool BROKEN>
__global__ void barrier_of_the_grid(u32 *out)
{
    if (T == 0) {
        __threadfence();
        atomicAdd(out, 1);
        while (*(volatile u32 *)out < gridDim.x) // barrier_of_the_grid
            ;
        __threadfence();
    }
    __syncthreads();
}

// A wait that is tried once, and its answer not looked at: most often it blocks until the copy has landed.
template <bool BROKEN>
__global__ void tried_once(u32 *out)
{
    __shared__ __align__(16) u32 tile[32];
    __shared__ __align__(8) u64 full;
    const u32 bar = smem_addr(&full);
    if (T == 0) {
        bar_init(bar, 1);
        INIT_FENCE;
    }
    __syncthreads();
    if (T == 0) {
        bar_expect(bar, sizeof tile);
        copy_in(tile, out, sizeof tile, bar);
    }
    if (BROKEN)
        asm volatile("{.reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%0], 0;}" ::"r"(bar)
                     : "memory");
    else
        bar_wait(bar, 0);
    out[32 + T] = tile[31 - T]; // tried_once
}

static const bug bugs[] = {
    BUG_DYNAMIC(aligned_by_luck, 1, 64),
    BUG(vectors_by_luck, 1, 64),
    BUG(seen_in_order_by_luck, 2, 64),
    BUG(neither_sees_the_other, 2, 32),
    BUG(counts_back, 4, 64),
    BUG(barrier_of_the_grid, 64, 64),
    BUG(tried_once, 1, 32),
};

static void make_map(u32 *memory)
{
    const u64 dims[] = {64, 64}, strides[] = {256};
    const u32 box[] = {32, 4}, steps[] = {1, 1};
    CUtensorMap made;
    encode_map(&made, CU_TENSOR_MAP_DATA_TYPE_UINT32, 2, memory, dims, strides, box, steps,
               CU_TENSOR_MAP_SWIZZLE_NONE);
    CUDA_CHECK(cudaMemcpyToSymbol(map, &made, sizeof made));
}

int main(int argc, char **argv)
{
    return bugs_main(bugs, argc, argv, make_map);
}
