// Blocks of a cluster: who has started, who has left, and what has arrived. Two blocks of 64 threads.
#include "../hopper/hopper.cuh"
#include "bugs.cuh"

#define T     threadIdx.x
#define RANK  (blockIdx.x % 2)
#define OTHER (RANK ^ 1)
#define CLUSTER_SYNC    \
    do {                \
        CLUSTER_ARRIVE; \
        CLUSTER_WAIT;   \
    } while (0)

__shared__ __align__(128) u32 tile[128];
__shared__ __align__(8) u64 full, empty;

#define REMOTE_STORE(ADDR, VALUE) \
    asm volatile("st.shared::cluster.u32 [%0], %1;" ::"r"(ADDR), "r"(VALUE) : "memory")

// bug peer_not_started: before any barrier.cluster: it may not have started
template <bool BROKEN>
__global__ void __cluster_dims__(2) peer_not_started(u32 *out)
{
    tile[T] = T;
    __syncthreads();
    if (!BROKEN) CLUSTER_SYNC;
    out[64 * blockIdx.x + T] = remote_load(mapa(&tile[T], OTHER)); // peer_not_started
    CLUSTER_SYNC;
}

// A block that leaves takes its memory with it.
// bug leaves_while_read: and no barrier.cluster | has exited: its shared memory is gone
template <bool BROKEN>
__global__ void __cluster_dims__(2) leaves_while_read(u32 *out)
{
    tile[T] = T;
    CLUSTER_SYNC;
    out[64 * blockIdx.x + T] = remote_load(mapa(&tile[T], OTHER));
    if (!BROKEN) CLUSTER_SYNC;
}

// A sum over the cluster: the partial sums are read before they are written.
// bug partial_sums_read_early: such as barrier.cluster
template <bool BROKEN>
__global__ void __cluster_dims__(2) partial_sums_read_early(u32 *out)
{
    CLUSTER_SYNC;
    tile[T] = out[T] + T; // partial_sums_read_early
    if (BROKEN)
        __syncthreads();
    else
        CLUSTER_SYNC;
    out[64 * blockIdx.x + T] = tile[T] + remote_load(mapa(&tile[T], OTHER)); // partial_sums_read_early
    CLUSTER_SYNC;
}

// What one block writes into the other's memory.
// bug remote_store_unordered: such as barrier.cluster
template <bool BROKEN>
__global__ void __cluster_dims__(2) remote_store_unordered(u32 *out)
{
    CLUSTER_SYNC;
    REMOTE_STORE(mapa(&tile[T], OTHER), T); // remote_store_unordered
    if (BROKEN)
        __syncthreads();
    else
        CLUSTER_SYNC;
    out[64 * blockIdx.x + T] = tile[63 - T]; // remote_store_unordered
    CLUSTER_SYNC;
}

// bug own_address_is_local: .shared::cta reaches only the block's own
template <bool BROKEN>
__global__ void __cluster_dims__(2) own_address_is_local(u32 *out)
{
    tile[T] = T;
    CLUSTER_SYNC;
    const u32 addr = mapa(&tile[T], OTHER);
    u32 value;
    if (BROKEN)
        asm volatile("ld.shared.u32 %0, [%1];" : "=r"(value) : "r"(addr) : "memory"); // own_address_is_local
    else
        value = remote_load(addr);
    out[64 * blockIdx.x + T] = value;
    CLUSTER_SYNC;
}

// bug rank_beyond_the_cluster: block 2 of a cluster of 2
template <bool BROKEN>
__global__ void __cluster_dims__(2) rank_beyond_the_cluster(u32 *out)
{
    CLUSTER_SYNC;
    REMOTE_STORE(mapa(&tile[T], BROKEN ? RANK + 1 : OTHER), T); // rank_beyond_the_cluster
    CLUSTER_SYNC;
}

// Only some threads arrive: the cluster's barrier is for all.
// bug one_thread_arrives: waits at barrier.cluster, where | waits for lanes
template <bool BROKEN>
__global__ void __cluster_dims__(2) one_thread_arrives(u32 *out)
{
    tile[T] = T;
    if (BROKEN) {
        if (T == out[0]) CLUSTER_SYNC;
        __syncthreads();
    } else {
        CLUSTER_SYNC;
    }
    out[64 * blockIdx.x + T] = tile[63 - T];
}

// bug arrives_again: a second barrier.cluster.arrive
template <bool BROKEN>
__global__ void __cluster_dims__(2) arrives_again(u32 *out)
{
    CLUSTER_ARRIVE;
    out[64 * blockIdx.x + T] = T;
    if (!BROKEN) CLUSTER_WAIT;
    CLUSTER_ARRIVE; // arrives_again
    CLUSTER_WAIT;
}

// The mbarriers of the other block, told by a relaxed arrival.
// bug init_not_released: before its mbarrier.init is visible here: no fence.mbarrier_init since
template <bool BROKEN>
__global__ void __cluster_dims__(2) init_not_released(u32 *out)
{
    if (T == 0) bar_init(smem_addr(&full), 1);
    if (!BROKEN && T == 0) INIT_FENCE;
    CLUSTER_ARRIVE_RELAXED;
    CLUSTER_WAIT;
    if (T == 0) {
        bar_arrive(mapa(&full, OTHER)); // init_not_released
        bar_wait(smem_addr(&full), 0);
    }
    CLUSTER_SYNC;
}

// The same mbarriers, initialised by who has arrived already: the wait of the others waits for nothing of it.
// bug init_after_arrival: before its mbarrier.init is visible here: no barrier.cluster since | no mbarrier has been initialised
template <bool BROKEN>
__global__ void __cluster_dims__(2) init_after_arrival(u32 *out)
{
    if (BROKEN) CLUSTER_ARRIVE_RELAXED;
    if (T == 0) {
        bar_init(smem_addr(&full), 1);
        INIT_FENCE;
    }
    if (!BROKEN) CLUSTER_ARRIVE_RELAXED;
    CLUSTER_WAIT;
    if (T == 0) {
        bar_arrive(mapa(&full, OTHER)); // init_after_arrival
        bar_wait(smem_addr(&full), 0);
    }
    CLUSTER_SYNC;
}

// The last arrival of a producer's peer, when nobody is left to wait for it.
// bug arrival_in_flight: may still be in flight when that block leaves
template <bool BROKEN>
__global__ void __cluster_dims__(2) arrival_in_flight(u32 *out)
{
    if (T == 0) {
        bar_init(smem_addr(&empty), 1);
        INIT_FENCE;
    }
    CLUSTER_SYNC;
    if (T == 0) bar_arrive(mapa(&empty, OTHER)); // arrival_in_flight
    if (!BROKEN && T == 0) bar_wait(smem_addr(&empty), 0);
    if (BROKEN) {
        CLUSTER_ARRIVE_RELAXED;
        CLUSTER_WAIT;
    }
}

// Both blocks' consumers read what the first one's producer sends to both; it waits only for its own.
// bug multicast_over_the_other: this copy writes shared offset
template <bool BROKEN>
__global__ void __cluster_dims__(2) multicast_over_the_other(u32 *out)
{
    if (T == 0) {
        bar_init(smem_addr(&full), 1);
        bar_init(smem_addr(&empty), BROKEN ? 1 : 2);
        INIT_FENCE;
    }
    CLUSTER_SYNC;
    for (u32 k = 0; k < 3; k++) {
        if (T == 0) {
            if (k && RANK == 0) bar_wait(smem_addr(&empty), (k - 1) & 1);
            bar_expect(smem_addr(&full), 256);
            if (RANK == 0) copy_in_multicast(tile, out, 256, smem_addr(&full), 3); // multicast_over_the_other
            bar_wait(smem_addr(&full), k & 1);
        }
        if (T >= 32) {
            bar_wait(smem_addr(&full), k & 1);
            out[1024 + 64 * blockIdx.x + T] += tile[T];
            __syncwarp();
            if (T == 32 && (!BROKEN || RANK == 0)) bar_arrive(mapa(&empty, 0));
        }
    }
    CLUSTER_SYNC;
}

// Both blocks count in the first one's memory, each with the scope of its own block.
// bug counted_by_blocks: the scope of one is .cta, its own block: it must be .cluster where blocks meet
template <bool BROKEN>
__global__ void __cluster_dims__(2) counted_by_blocks(u32 *out)
{
    if (T == 0) tile[0] = 0;
    CLUSTER_SYNC;
    u32 *count = peer(tile, 0);
    if (BROKEN)
        atomicAdd_block(count, 1); // counted_by_blocks
    else
        atomicAdd(count, 1);
    CLUSTER_SYNC;
    out[64 * blockIdx.x + T] = *count;
    CLUSTER_SYNC;
}

static const bug bugs[] = {
    BUG(counted_by_blocks, 2, 64),       BUG(peer_not_started, 2, 64),
    BUG(leaves_while_read, 2, 64),       BUG(partial_sums_read_early, 2, 64),
    BUG(remote_store_unordered, 2, 64),  BUG(own_address_is_local, 2, 64),
    BUG(rank_beyond_the_cluster, 2, 64), BUG(one_thread_arrives, 2, 64),
    BUG(arrives_again, 2, 64),           BUG(init_not_released, 2, 64),
    BUG(arrival_in_flight, 2, 64),       BUG(multicast_over_the_other, 2, 64),
    BUG(init_after_arrival, 2, 64),
};

int main(int argc, char **argv)
{
    return bugs_main(bugs, argc, argv);
}
