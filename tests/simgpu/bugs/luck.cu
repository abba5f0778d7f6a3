// What is right on some devices, or as long as nothing lies before it: bugs.bats runs these under the conditions that show it.
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

static const bug bugs[] = {
    BUG_DYNAMIC(aligned_by_luck, 1, 64),
    BUG(vectors_by_luck, 1, 64),
    BUG(barrier_of_the_grid, 64, 64),
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
