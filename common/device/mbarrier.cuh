// mbarrier, the barrier in shared memory that counts arrivals and bytes, one inline function an instruction, and the
// walk around a ring of them.
//
// A phase of a barrier ends when all expected arrivals have come and all expected bytes have landed; the next begins at
// once. Phases are told apart by their parity: waiting for parity p means waiting until a phase of parity p has ended.
// Of a new barrier phase 0 is under way, and a wait for parity 1 returns at once: "the phase before" counts as ended.
#pragma once
#include <stdint.h>

#include "ptx.cuh"

// mbarrier.init: `count` arrivals end a phase.
__device__ inline void mbarrier_init(uint64_t *bar, uint32_t count)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(smem_addr(bar)), "r"(count) : "memory");
}

// membar/fence, fence.mbarrier_init: the barriers just made are visible to the cluster's threads and to TMA, once they
// have synchronised with this thread.
__device__ inline void fence_mbarrier_init()
{
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

// mbarrier.arrive, release: what this thread did before is visible to whoever sees the phase end.
__device__ inline void mbarrier_arrive(uint64_t *bar)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(smem_addr(bar)) : "memory");
}

// mbarrier.arrive at the barrier of the same place in block `rank` of the cluster (mapa gives its address). It orders what
// wgmma and TMA have read before what they write after; for ordinary writes into the other block it is too weak.
__device__ inline void mbarrier_arrive_cluster(uint64_t *bar, uint32_t rank)
{
    asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(mapa(smem_addr(bar), rank)) : "memory");
}

// mbarrier.arrive.expect_tx: `bytes` more have to land before the phase can end; then one arrival.
__device__ inline void mbarrier_arrive_expect_tx(uint64_t *bar, uint32_t bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(smem_addr(bar)), "r"(bytes)
                 : "memory");
}

// mbarrier.try_wait.parity: has a phase of this parity ended? Sleeps a while before it says no.
__device__ inline bool mbarrier_try_wait_parity(uint64_t *bar, uint32_t parity)
{
    uint32_t ended;
    asm volatile("{\n"
                 ".reg .pred p;\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
                 "selp.u32 %0, 1, 0, p;\n"
                 "}"
                 : "=r"(ended)
                 : "r"(smem_addr(bar)), "r"(parity)
                 : "memory");
    return ended;
}

__device__ inline void mbarrier_wait(uint64_t *bar, uint32_t parity)
{
    while (!mbarrier_try_wait_parity(bar, parity)) {
    }
}

// Where a walk around a ring of NUM_STAGES stages is: the stage, and the parity of the phase of its barriers. The
// parity flips whenever the walk comes round.
template <int NUM_STAGES>
struct PipelineState {
    int stage = 0;
    uint32_t parity = 0;

    __device__ void advance()
    {
        if (++stage == NUM_STAGES) {
            stage = 0;
            parity ^= 1;
        }
    }

    __device__ void advance(int stages)
    {
        stage += stages;
        parity ^= stage / NUM_STAGES % 2;
        stage %= NUM_STAGES;
    }
};
