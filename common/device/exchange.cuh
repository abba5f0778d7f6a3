// What the warps of a cluster tell each other: a value of each, for all.
#pragma once
#include "mbarrier.cuh"

// A T of 4, 8 or 16 bytes of each warp in the shared memory of every block, once. st.async counts at an mbarrier what has come there.
// barrier.cluster would do as well, but to arrive so that others see what a thread wrote it waits for all that the thread
// has asked of memory. BLOCKS of a cluster and WARPS of a block, at most. Lane r of a warp tells block r: all have the same.
template <typename T, int BLOCKS, int WARPS>
struct Exchange {
    T told[BLOCKS * WARPS]; // (block, warp)
    uint64_t full;          // all of them are here

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
