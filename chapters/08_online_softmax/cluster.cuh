// Rows that the blocks of a cluster share: how many blocks, what they tell each other, and their launch.
#pragma once
#include "../../common/device/launch.cuh"
#include "../../common/device/mbarrier.cuh"
#include "row.cuh"

#include <cuda_runtime.h>

constexpr int MAX_SPLIT = 16; // blocks of a row; more than 8 are not portable: an H200 has them

// Bytes of whole rows that are under way on an SM at most: more make it slower on an H100, and fewer on an H200.
constexpr int SLOW_MEMORY_BYTES = 64 << 10, FAST_MEMORY_BYTES = 192 << 10;

static inline cudaError_t ask_row_bytes(int *bytes)
{
    double gigabytes; // a second, of the memory
    const cudaError_t error = ask_bandwidth(&gigabytes);
    *bytes = gigabytes < SLOW_MEMORY ? SLOW_MEMORY_BYTES : FAST_MEMORY_BYTES;
    return error;
}

// What the warps of a cluster tell each other, once: a T of each, in the shared memory of every block. st.async counts at an mbarrier what
// has come there. barrier.cluster would do as well, but to arrive so that others see what a thread wrote it waits for all
// that the thread has asked of memory. WARPS: of a block, at most.
template <typename T, int WARPS>
struct Exchange {
    T told[MAX_SPLIT * WARPS]; // (block, warp)
    uint64_t full;             // all of them are here

    // Before everything else, by all threads: says that this block has started, and what it will be told.
    __device__ void begin()
    {
        if (threadIdx.x == 0) {
            mbarrier_init(&full, 1);
            fence_mbarrier_init();
            mbarrier_arrive_expect_tx(&full, count() * sizeof(T));
        }
        cluster_arrive_relaxed();
    }

    __device__ int count() const { return cluster_nctarank() * (blockDim.x / 32); }

    // Tells all blocks what this warp has, and waits for what all warps have.
    __device__ void tell(T mine)
    {
        const int lane = threadIdx.x % 32;
        const T *place = &told[cluster_ctarank() * (blockDim.x / 32) + threadIdx.x / 32];
        cluster_wait(); // Every block has started, and so has its shared memory.
        if (lane < cluster_nctarank())
            st_async(mapa(smem_addr(place), lane), mine, mapa(smem_addr(&full), lane));
        mbarrier_wait(&full, 0); // Nobody writes into this block any more: it may leave.
    }
};

// Launches `rows` clusters of `threads` a block: the fewest of 1, 2, 4, 8 or 16 blocks whose parts of a row of `packs` are at
// most part_packs; at 16 they may be larger, where a block has them in dynamic shared memory, `arrays` of them, and not (0) in
// registers. Returns the launch's error.
template <typename... Parameters, typename... Arguments>
static cudaError_t launch_clusters(void (*kernel)(Parameters...), int rows, int packs, int part_packs,
                                   int arrays, int threads, cudaStream_t stream, Arguments... arguments)
{
    int split = 1;
    while (split < MAX_SPLIT && packs > split * part_packs) split *= 2;
    if (arrays == 0 && packs > split * part_packs) return cudaErrorInvalidValue;
    const int smem_bytes = arrays * packs_each(packs, split) * PACK_BYTES;
    cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, smem_bytes);
    if (error == cudaSuccess)
        error = cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
    if (error != cudaSuccess) return error;

    return launch_early_clusters(kernel, rows * split, split, threads, smem_bytes, stream, arguments...);
}
