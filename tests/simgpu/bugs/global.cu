// Global memory between the blocks of a launch, orders and scopes, distributed shared memory, and launches that may begin early.
// `BROKEN ?` is what is left out or done too early. Each kernel gets zeros; `box` is data, `flag` what is polled.
#include "bugs.cuh"

#define T threadIdx.x
#define B blockIdx.x

enum { FLAGS = 1 << 12, OTHERS = 1 << 13 };

#define LOAD(ORDER, X, P)  asm volatile("ld." ORDER ".global.u32 %0, [%1];" : "=r"(X) : "l"(P) : "memory")
#define LOAD_NC(X, P)      asm volatile("ld.global.nc.u32 %0, [%1];" : "=r"(X) : "l"(P) : "memory")
#define STORE(ORDER, P, X) asm volatile("st." ORDER ".global.u32 [%0], %1;" ::"l"(P), "r"(X) : "memory")
#define ADD(ORDER, P, X)   asm volatile("red." ORDER ".global.add.u32 [%0], %1;" ::"l"(P), "r"(X) : "memory")

__device__ static inline void set(u32 *flag, u32 value)
{
    *(volatile u32 *)flag = value;
}
__device__ static inline void await(u32 *flag, u32 value)
{
    while (*(volatile u32 *)flag != value) {
    }
}

// ---- A flag and its data ---------------------------------------------------------------------------------------------

// bug released_by_nothing: must pass __threadfence() and then set the flag
template <bool BROKEN>
__global__ void released_by_nothing(u32 *box)
{
    if (B == 0) {
        box[0] = 7; // released_by_nothing
        if (!BROKEN) __threadfence();
        set(box + FLAGS, 1);
    } else {
        await(box + FLAGS, 1);
        __threadfence();
        box[OTHERS] = box[0]; // released_by_nothing
    }
}

// bug flag_before_data: race on global memory
template <bool BROKEN>
__global__ void flag_before_data(u32 *box)
{
    if (B == 0) {
        if (BROKEN) __threadfence();
        if (BROKEN) set(box + FLAGS, 1);
        box[0] = 7; // flag_before_data
        if (!BROKEN) __threadfence();
        if (!BROKEN) set(box + FLAGS, 1);
    } else {
        await(box + FLAGS, 1);
        __threadfence();
        box[OTHERS] = box[0]; // flag_before_data
    }
}

// bug acquired_by_nothing: this thread has not acquired it
template <bool BROKEN>
__global__ void acquired_by_nothing(u32 *box)
{
    if (B == 0) {
        box[0] = 7; // acquired_by_nothing
        __threadfence();
        set(box + FLAGS, 1);
    } else {
        await(box + FLAGS, 1);
        if (!BROKEN) __threadfence();
        box[OTHERS] = box[0]; // acquired_by_nothing
    }
}

// bug fence_of_the_block: both of .gpu scope
template <bool BROKEN>
__global__ void fence_of_the_block(u32 *box)
{
    if (B == 0) {
        box[0] = 7; // fence_of_the_block
        if (BROKEN)
            __threadfence_block();
        else
            __threadfence();
        atomicExch(box + FLAGS, 1);
    } else {
        while (atomicAdd(box + FLAGS, 0) != 1) {
        }
        __threadfence();
        box[OTHERS] = box[0]; // fence_of_the_block
    }
}

// bug release_of_the_block: the scope of one is .cta, its own block
template <bool BROKEN>
__global__ void release_of_the_block(u32 *box)
{
    if (B == 0) {
        box[0] = 7;
        if (BROKEN)
            STORE("release.cta", box + FLAGS, 1); // release_of_the_block
        else
            STORE("release.gpu", box + FLAGS, 1);
    } else {
        u32 seen;
        do LOAD("acquire.gpu", seen, box + FLAGS); // release_of_the_block
        while (!seen);
        box[OTHERS] = box[0];
    }
}

// bug relaxed_for_release: must pass __threadfence() and then set the flag
template <bool BROKEN>
__global__ void relaxed_for_release(u32 *box)
{
    u32 seen;
    if (B == 0) {
        box[0] = 7; // relaxed_for_release
        if (BROKEN)
            ADD("relaxed.gpu", box + FLAGS, 1);
        else
            ADD("release.gpu", box + FLAGS, 1);
    } else {
        do LOAD("acquire.gpu", seen, box + FLAGS);
        while (!seen);
        box[OTHERS] = box[0]; // relaxed_for_release
    }
}

// bug relaxed_for_acquire: this thread has not acquired it
template <bool BROKEN>
__global__ void relaxed_for_acquire(u32 *box)
{
    u32 seen;
    if (B == 0) {
        box[0] = 7; // relaxed_for_acquire
        STORE("release.gpu", box + FLAGS, 1);
    } else {
        do
            if (BROKEN)
                LOAD("relaxed.gpu", seen, box + FLAGS);
            else
                LOAD("acquire.gpu", seen, box + FLAGS);
        while (!seen);
        box[OTHERS] = box[0]; // relaxed_for_acquire
    }
}

// bug plain_poll: both must be atomic or volatile
template <bool BROKEN>
__global__ void plain_poll(u32 *box)
{
    if (B == 0) {
        atomicExch(box + FLAGS, 1); // plain_poll
    } else {
        u32 seen, looks = 0;
        do
            if (BROKEN)
                LOAD("weak", seen, box + FLAGS); // plain_poll
            else
                seen = atomicAdd(box + FLAGS, 0);
        while ((looks += seen) < 2);
    }
}

// bug plain_flag: both must be atomic or volatile
template <bool BROKEN>
__global__ void plain_flag(u32 *box)
{
    if (B == 0) {
        if (BROKEN)
            box[FLAGS] = 1; // plain_flag
        else
            set(box + FLAGS, 1);
    } else {
        while (*(volatile u32 *)(box + FLAGS) != 1) { // plain_flag
        }
    }
}

// Two blocks exchange their boxes: all threads write, one sets the flag.
// bug writers_not_met: race on global memory
template <bool BROKEN>
__global__ void writers_not_met(u32 *box)
{
    box[128 * B + T] = T; // writers_not_met
    if (!BROKEN) __syncthreads();
    if (T == 0) {
        __threadfence();
        set(box + FLAGS + B, 1);
        await(box + FLAGS + 1 - B, 1);
        __threadfence();
    }
    __syncthreads();
    box[OTHERS + 128 * B + T] = box[128 * (1 - B) + 127 - T]; // writers_not_met
}

// bug readers_not_met: race on global memory
template <bool BROKEN>
__global__ void readers_not_met(u32 *box)
{
    box[128 * B + T] = T; // readers_not_met
    __syncthreads();
    if (T == 0) {
        __threadfence();
        set(box + FLAGS + B, 1);
        await(box + FLAGS + 1 - B, 1);
        __threadfence();
    }
    if (!BROKEN) __syncthreads();
    box[OTHERS + 128 * B + T] = box[128 * (1 - B) + 127 - T]; // readers_not_met
}

// Two blocks take turns: one fills a buffer, its warps ahead of the one that raises the flag by a fence; the other adds it up. The first waits
// for the turn before the last.
// bug turn_too_early: race on global memory
template <bool BROKEN>
__global__ void turn_too_early(u32 *out)
{
    u32 *filled = out + 8192, *used = out + 8256, sum = 0;
    if (blockIdx.x == 0) fill_in_turns(out, filled, used, 5, BROKEN); // turn_too_early
    for (u32 step = 0; step < 5 && blockIdx.x == 1; step++)
        if (T == 0) {
            while (atomicAdd(filled, 0) <= step) __nanosleep(100);
            __threadfence();
            for (u32 k = 0; k < 64; k++) sum += out[k];
            out[16384] = sum;
            __threadfence();
            atomicExch(used, step + 1);
        }
}

// One looks at the flag for all, each of whom fences behind a barrier, by when that one may look for the next step's already.
// bug looks_ahead: but this thread has not acquired it
template <bool BROKEN>
__global__ void looks_ahead(u32 *out)
{
    u32 *flag = out + 8192, sum = 0;
    for (u32 step = 0; step < 5; step++)
        if (blockIdx.x == 0) {
            out[step * 64 + T] = step;
            __threadfence();
            __syncthreads();
            if (T == 0) atomicExch(flag, step + 1);
        } else {
            if (T == 0)
                while (atomicAdd(flag, 0) <= step) __nanosleep(100);
            __syncthreads();
            if (!BROKEN) __threadfence();
            sum += out[step * 64 + T]; // looks_ahead
            out[16384 + T] = sum;
        }
}

// What block 1 has acquired from block 0, it passes on to block 2.
// bug passed_on_unacquired: race on global memory
template <bool BROKEN>
__global__ void passed_on_unacquired(u32 *box)
{
    if (B == 0) {
        box[0] = 7; // passed_on_unacquired
        __threadfence();
        set(box + FLAGS, 1);
    } else if (B == 1) {
        await(box + FLAGS, 1);
        if (!BROKEN) __threadfence();
        STORE("relaxed.gpu", box + FLAGS + 1, 1);
    } else {
        await(box + FLAGS + 1, 1);
        __threadfence();
        box[OTHERS] = box[0]; // passed_on_unacquired
    }
}

// The reader says that the slot is free before it has read it.
// bug slot_freed_early: race on global memory
template <bool BROKEN>
__global__ void slot_freed_early(u32 *box)
{
    for (u32 k = 1; k < 4; k++) {
        if (B == 0) {
            await(box + FLAGS + 1, k - 1);
            __threadfence();
            box[0] = k; // slot_freed_early
            __threadfence();
            set(box + FLAGS, k);
        } else {
            while (*(volatile u32 *)(box + FLAGS) < k) {
            }
            __threadfence();
            if (BROKEN) set(box + FLAGS + 1, k);
            box[OTHERS + k] = box[0]; // slot_freed_early
            __threadfence();
            if (!BROKEN) set(box + FLAGS + 1, k);
        }
    }
}

// Volatile data: it is no race, but nor does it come before the flag.
// bug volatile_data_unreleased: volatile and relaxed accesses are in no order
template <bool BROKEN>
__global__ void volatile_data_unreleased(u32 *box)
{
    if (B == 0) {
        *(volatile u32 *)box = 7; // volatile_data_unreleased
        if (!BROKEN) __threadfence();
        set(box + FLAGS, 1);
    } else {
        await(box + FLAGS, 1);
        __threadfence();
        box[OTHERS] = *(volatile u32 *)box; // volatile_data_unreleased
    }
}

// bug relaxed_data_unacquired: volatile and relaxed accesses are in no order
template <bool BROKEN>
__global__ void relaxed_data_unacquired(u32 *box)
{
    u32 x;
    if (B == 0) {
        STORE("relaxed.gpu", box + T, T + 1); // relaxed_data_unacquired
        __syncthreads();
        if (T == 0) STORE("release.gpu", box + FLAGS, 1);
    } else {
        if (T == 0)
            if (BROKEN)
                await(box + FLAGS, 1);
            else
                do LOAD("acquire.gpu", x, box + FLAGS);
                while (!x);
        __syncthreads();
        LOAD("relaxed.gpu", x, box + 63 - T); // relaxed_data_unacquired
        box[OTHERS + T] = x;
    }
}

// ---- Lanes of a warp ---------------------------------------------------------------------------------------------------

// bug scratch_between_lanes: lane 31 of warp 0
template <bool BROKEN>
__global__ void scratch_between_lanes(u32 *box)
{
    box[T] = 3 * T; // scratch_between_lanes
    if (!BROKEN) __syncwarp();
    box[OTHERS + T] = box[31 - T]; // scratch_between_lanes
}

// Lane 0 releases what its whole warp has written.
// bug lanes_not_met: says nothing of what this lane did
template <bool BROKEN>
__global__ void lanes_not_met(u32 *box)
{
    if (B == 0) {
        box[T] = T; // lanes_not_met
        if (!BROKEN) __syncwarp();
        if (T == 0) {
            __threadfence();
            set(box + FLAGS, 1);
        }
    } else {
        await(box + FLAGS, 1);
        __threadfence();
        box[OTHERS + T] = box[T]; // lanes_not_met
    }
}

// bug lanes_released_by_one: says nothing of what this lane did
template <bool BROKEN>
__global__ void lanes_released_by_one(u32 *box)
{
    u32 seen;
    if (B == 0) {
        for (u32 k = 1; k < 4; k++) {
            ((u16 *)box)[64 * k + T] = (u16)k; // lanes_released_by_one
            if (!BROKEN) __syncwarp();
            if (T == 0) STORE("release.gpu", box + FLAGS + k, 1);
        }
    } else {
        for (u32 k = 1; k < 4; k++) {
            do LOAD("acquire.gpu", seen, box + FLAGS + k);
            while (!seen);
            box[OTHERS + 32 * k + T] = ((u16 *)box)[64 * k + 31 - T]; // lanes_released_by_one
        }
    }
}

// Lane 0 says that the slot is free, while others may still read it.
// bug lanes_still_read: says nothing of what this lane did
template <bool BROKEN>
__global__ void lanes_still_read(u32 *box)
{
    if (B == 0) {
        box[T] = 1;
        __syncwarp();
        if (T == 0) STORE("release.gpu", box + FLAGS, 1);
        await(box + FLAGS + 1, 1);
        __threadfence();
        box[T] = 2; // lanes_still_read
    } else {
        await(box + FLAGS, 1);
        __threadfence();
        box[OTHERS + T] = box[T]; // lanes_still_read
        if (!BROKEN) __syncwarp();
        if (T == 0) STORE("release.gpu", box + FLAGS + 1, 1);
    }
}

// The last block to come: a ticket for each warp.
// bug ticket_of_a_warp: says nothing of what this lane did
template <bool BROKEN>
__global__ void ticket_of_a_warp(u32 *box)
{
    u32 ticket = 0;
    box[32 * B + T] = B; // ticket_of_a_warp
    if (!BROKEN) __syncwarp();
    if (T == 0) {
        __threadfence();
        ticket = atomicAdd(box + FLAGS, 1);
        __threadfence();
    }
    ticket = __shfl_sync(~0u, ticket, 0);
    __syncwarp();
    if (ticket == gridDim.x - 1)
        for (u32 k = 0; k < gridDim.x; k++) box[OTHERS + 32 * k + T] = box[32 * k + T]; // ticket_of_a_warp
}

// Each lane has a flag of its own, which says nothing of its neighbour's data.
// bug flag_of_another_lane: says nothing of what this lane did
template <bool BROKEN>
__global__ void flag_of_another_lane(u32 *box)
{
    if (B == 0) {
        box[T] = T; // flag_of_another_lane
        for (u32 k = 0; k < 8; k++)
            if (T == k) STORE("release.gpu", box + FLAGS + T, 1);
    } else if (T == 2) {
        await(box + FLAGS + T, 1);
        __threadfence();
        box[OTHERS + T] = box[BROKEN ? T + 8 : T]; // flag_of_another_lane
    }
}

// Lane 0 looks, and the others read what it may.
// bug acquired_by_lane_0: another lane of this warp has acquired it
template <bool BROKEN>
__global__ void acquired_by_lane_0(u32 *box)
{
    if (B == 0) {
        box[T] = T; // acquired_by_lane_0
        __syncwarp();
        if (T == 0) STORE("release.gpu", box + FLAGS, 1);
    } else {
        if (T == 0) {
            u32 seen;
            do LOAD("acquire.gpu", seen, box + FLAGS);
            while (!seen);
        }
        if (!BROKEN) __syncwarp();
        box[OTHERS + T] = box[T]; // acquired_by_lane_0
    }
}

// bug fenced_by_lane_0: another lane of this warp has acquired it
template <bool BROKEN>
__global__ void fenced_by_lane_0(u32 *box)
{
    if (B == 0) {
        box[T] = T; // fenced_by_lane_0
        __syncthreads();
        if (T == 0) {
            __threadfence();
            set(box + FLAGS, 1);
        }
    } else {
        if (T % 32 == 0) await(box + FLAGS, 1);
        if (T % 32 == 0) __threadfence();
        __shfl_sync(~0u, T, 0); // orders nothing
        if (!BROKEN) __syncwarp();
        box[T] += 1; // fenced_by_lane_0
    }
}

// Each lane looks for itself, at a flag of its own, alone or not.
// bug each_lane_looks: another lane of this warp has acquired it
template <bool BROKEN>
__global__ void each_lane_looks(u32 *box)
{
    if (B < 32) {
        box[32 * B + T] = B; // each_lane_looks
        __syncwarp();
        if (T == 0) STORE("release.gpu", box + FLAGS + B, 1);
    } else {
        u32 seen = BROKEN && T % 2;
        while (!seen) LOAD("acquire.gpu", seen, box + FLAGS + T);
        box[OTHERS + T] = box[BROKEN ? 32 * (T & ~1) : 32 * T]; // each_lane_looks
        __syncwarp();
        for (u32 k = 0; k < 32; k++) box[OTHERS + T] += box[32 * k + T];
    }
}

// Some lanes meet the one that has looked.
// bug met_by_some: another lane of this warp has acquired it
template <bool BROKEN>
__global__ void met_by_some(u32 *box)
{
    if (B == 0) {
        box[T] = T; // met_by_some
        __syncwarp();
        if (T == 0) STORE("release.gpu", box + FLAGS, 1);
    } else if (T < 8) {
        if (T == 0) {
            await(box + FLAGS, 1);
            __threadfence();
        }
        if (T < 4) __syncwarp(0xf);
        if (BROKEN || T < 4) box[OTHERS + T] = box[T]; // met_by_some
    }
}

// bug sum_by_volatile: volatile does not order lanes
template <bool BROKEN>
__global__ void sum_by_volatile(u32 *box)
{
    volatile u32 *s = box;
    s[T] = T; // sum_by_volatile
    if (!BROKEN) __syncwarp();
    if (T < 16) s[T] += s[T + 16]; // sum_by_volatile
    if (!BROKEN) __syncwarp();
    if (T < 8) s[T] += s[T + 8];
}

// ---- Many blocks ---------------------------------------------------------------------------------------------------------

// The last block to come adds up what the others left.
// bug last_block_sums: must pass __threadfence() and then set the flag
template <bool BROKEN>
__global__ void last_block_sums(u32 *box)
{
    __shared__ u32 ticket;
    if (T == 0) {
        box[B] = B; // last_block_sums
        if (!BROKEN) __threadfence();
        ticket = atomicAdd(box + FLAGS, 1);
        __threadfence();
    }
    __syncthreads();
    if (ticket == gridDim.x - 1 && T < gridDim.x) box[OTHERS + T] = box[T]; // last_block_sums
}

// The same of what all threads left: each fences, on either side, and one takes the ticket.
// bug last_block_not_met: must pass __threadfence() and then set the flag | this thread has not acquired it
template <bool BROKEN>
__global__ void last_block_not_met(u32 *box)
{
    __shared__ u32 ticket;
    box[64 * B + T] = B; // last_block_not_met
    __threadfence();
    if (!BROKEN) __syncthreads();
    if (T == 0) ticket = atomicAdd(box + FLAGS, 1);
    __syncthreads();
    __threadfence();
    if (ticket == gridDim.x - 1)
        for (u32 k = 0; k < gridDim.x; k++) box[OTHERS + 64 * k + T] = box[64 * k + T]; // last_block_not_met
}

// Two blocks read what the first one writes; then one of them, which waits for nobody, overwrites it.
// bug read_by_two: this write is not ordered after the read | this read is not ordered after the write
template <bool BROKEN>
__global__ void read_by_two(u32 *box)
{
    if (B == 0) {
        box[T] = T;
        __threadfence();
        __syncthreads();
        if (T == 0) atomicExch(box + FLAGS, 1);
        return;
    }
    if (T == 0) await(box + FLAGS, 1);
    __threadfence();
    __syncthreads();
    box[OTHERS + 64 * B + T] = box[T]; // read_by_two
    __threadfence();
    __syncthreads();
    if (B == 2 && T == 0) atomicAdd(box + FLAGS + 1, 1);
    if (B == 2) return;
    if (!BROKEN) {
        if (T == 0) await(box + FLAGS + 1, 1);
        __threadfence();
        __syncthreads();
    }
    box[T] = 0; // read_by_two
}

// A flag at which two blocks look is lowered by one of them.
// bug lowered_while_polled: this write is not ordered after the read | this read is not ordered after the write
template <bool BROKEN>
__global__ void lowered_while_polled(u32 *box)
{
    volatile u32 *flag = box;
    if (B == 0) *flag = 1;
    if (B > 0) {
        while (!*flag) __nanosleep(100); // lowered_while_polled
        __threadfence();
    }
    if (B == 2) atomicAdd(box + FLAGS, 1);
    if (B == 1) {
        if (!BROKEN) await(box + FLAGS, 1);
        __threadfence();
        box[0] = 0; // lowered_while_polled
    }
}

// bug grid_barrier_unfenced: race on global memory
template <bool BROKEN>
__global__ void grid_barrier_unfenced(u32 *box)
{
    box[64 * B + T] = B; // grid_barrier_unfenced
    __syncthreads();
    if (T == 0) {
        if (!BROKEN) __threadfence();
        atomicAdd(box + FLAGS, 1);
        await(box + FLAGS, gridDim.x);
        __threadfence();
    }
    __syncthreads();
    box[OTHERS + 64 * B + T] = box[64 * (gridDim.x - 1 - B) + T]; // grid_barrier_unfenced
}

// bug counted_without_atomics: race on global memory
template <bool BROKEN>
__global__ void counted_without_atomics(u32 *box)
{
    if (BROKEN)
        box[T] += B; // counted_without_atomics
    else
        atomicAdd(box + T, B);
}

// bug counted_for_the_block: the scope of one is .cta, its own block
template <bool BROKEN>
__global__ void counted_for_the_block(u32 *box)
{
    if (BROKEN)
        ADD("relaxed.cta", box + T, 1); // counted_for_the_block
    else
        ADD("relaxed.gpu", box + T, 1);
}

// The same, when another warp of its block has looked: that look and the count are in order enough, the counts are not.
// bug counted_behind_a_look: the scope of one is .cta, its own block
template <bool BROKEN>
__global__ void counted_behind_a_look(u32 *box)
{
    if (B == 0 && T == 0) ADD("relaxed.gpu", box, 1); // counted_behind_a_look
    if (B == 1 && T == 32) {
        while (*(volatile u32 *)box == 0) {
        }
    }
    if (B == 1 && T == 0) {
        for (u32 k = 0; k < 40; k++) __nanosleep(1000); // By now it has.
        if (BROKEN)
            ADD("relaxed.cta", box, 1); // counted_behind_a_look
        else
            ADD("relaxed.gpu", box, 1);
    }
}

// A block reads the row of the next one, which that writes.
// bug neighbours_in_place: race on global memory
template <bool BROKEN>
__global__ void neighbours_in_place(u32 *box)
{
    u32 *to = BROKEN ? box : box + OTHERS;
    for (u32 k = 0; k < 2; k++)
        to[64 * B + T] = box[64 * ((B + 1) % gridDim.x) + T] + k; // neighbours_in_place
}

// Each block's halo is its neighbour's, of which some have read it before anybody has written.
// bug halo_in_place: race on global memory
template <bool BROKEN>
__global__ void halo_in_place(u32 *box)
{
    const u32 k = 64 * B + T, sum = box[k] + box[k + 64]; // halo_in_place
    (BROKEN ? box : box + OTHERS)[k] = sum;               // halo_in_place
}

// The first block reads what the last one writes, and nobody writes in between.
// bug read_before_any_write: this write is not ordered after the read | this read is not ordered after the write
template <bool BROKEN>
__global__ void read_before_any_write(u32 *box)
{
    __shared__ u32 kept[64];
    if (BROKEN || B == 1) kept[T] = box[63 - T]; // read_before_any_write
    __syncthreads();
    if (B == 1) box[T] = kept[63 - T]; // read_before_any_write
}

// Blocks of 65 elements, 64 apart.
// bug elements_of_two: this write is not ordered after the write
template <bool BROKEN>
__global__ void elements_of_two(u32 *box)
{
    for (u32 k = T; k < (BROKEN ? 65 : 64); k += 32) box[64 * B + k] = B + 1; // elements_of_two
}

// bug bytes_of_two: this write is not ordered after the write
template <bool BROKEN>
__global__ void bytes_of_two(u32 *box)
{
    for (u32 k = T; k < (BROKEN ? 8 : 7); k += 32) ((u8 *)box)[7 * B + k] = (u8)(B + 1); // bytes_of_two
}

// bug lock_unfenced: race on global memory
template <bool BROKEN>
__global__ void lock_unfenced(u32 *box)
{
    while (atomicCAS(box + FLAGS, 0, 1)) {
    }
    if (!BROKEN) __threadfence();
    box[0] += B; // lock_unfenced
    if (!BROKEN) __threadfence();
    atomicExch(box + FLAGS, 0);
}

// The twin is the CUDA Programming Guide's way to an atomic operation: it looks first, and atomicCAS finds out whether that was wrong.
// bug largest: race on global memory
template <bool BROKEN>
__global__ void largest(u32 *box)
{
    const u32 mine = 100 + 32 * B + T;
    u32 old = box[0], assumed;
    if (BROKEN && old < mine) box[0] = mine; // largest
    do {
        assumed = old;
        if (!BROKEN) old = atomicCAS(box, assumed, max(assumed, mine));
    } while (assumed != old);
}

// bug constant_that_changes: ld.global.nc reads what this launch has written
template <bool BROKEN>
__global__ void constant_that_changes(u32 *box)
{
    if (B == 0) {
        box[0] = 7; // constant_that_changes
        __threadfence();
        set(box + FLAGS, 1);
    } else {
        await(box + FLAGS, 1);
        __threadfence();
        u32 x;
        if (BROKEN)
            LOAD_NC(x, box); // constant_that_changes
        else
            x = box[0];
        box[OTHERS] = x;
    }
}

// ---- One block, one cluster ------------------------------------------------------------------------------------------------

// bug warps_exchange: such as __syncthreads()
template <bool BROKEN>
__global__ void warps_exchange(u32 *box)
{
    box[T] = T; // warps_exchange
    if (!BROKEN) __syncthreads();
    box[OTHERS + T] = box[T ^ 32]; // warps_exchange
}

// bug blocks_of_a_cluster: such as barrier.cluster
template <bool BROKEN>
__global__ void __cluster_dims__(2, 1, 1) blocks_of_a_cluster(u32 *box)
{
    box[32 * B + T] = T; // blocks_of_a_cluster
    if (!BROKEN) cluster_sync();
    box[OTHERS + 32 * B + T] = box[32 * (B ^ 1) + T]; // blocks_of_a_cluster
}

// bug peer_read_early: such as barrier.cluster
template <bool BROKEN>
__global__ void __cluster_dims__(2, 1, 1) peer_read_early(u32 *out)
{
    __shared__ u32 box[32];
    cluster_sync();
    box[T] = B; // peer_read_early
    if (!BROKEN) cluster_sync();
    out[32 * B + T] = *peer(&box[T], B ^ 1); // peer_read_early
    cluster_sync();
}

// bug peer_written_early: such as barrier.cluster
template <bool BROKEN>
__global__ void __cluster_dims__(2, 1, 1) peer_written_early(u32 *out)
{
    __shared__ u32 box[32];
    box[T] = B;
    cluster_sync();
    out[32 * B + T] = box[T]; // peer_written_early
    if (!BROKEN) cluster_sync();
    *peer(&box[T], B ^ 1) = T; // peer_written_early
    cluster_sync();
}

// ---- A launch that may begin before the one before it has ended -----------------------------------------------------------------

__global__ void fill(u32 *box)
{
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
    box[64 * B + T] = B + T;
}

// bug reads_ahead: is read before griddepcontrol.wait
template <bool BROKEN>
__global__ void reads_ahead(u32 *box)
{
    if (!BROKEN) asm volatile("griddepcontrol.wait;" ::: "memory");
    const u32 x = box[64 * B + T]; // reads_ahead
    if (BROKEN) asm volatile("griddepcontrol.wait;" ::: "memory");
    box[OTHERS + 64 * B + T] = x;
}

// bug writes_ahead: is written before griddepcontrol.wait
template <bool BROKEN>
__global__ void writes_ahead(u32 *box)
{
    if (!BROKEN) asm volatile("griddepcontrol.wait;" ::: "memory");
    box[64 * B + T] = T; // writes_ahead
}

// bug waits_in_one_warp: is read before griddepcontrol.wait
template <bool BROKEN>
__global__ void waits_in_one_warp(u32 *box)
{
    if (T < 32) asm volatile("griddepcontrol.wait;" ::: "memory");
    if (!BROKEN) __syncthreads();
    box[OTHERS + 64 * B + T] = box[64 * B + T]; // waits_in_one_warp
}

template <bool BROKEN>
__global__ void between(u32 *box)
{
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
    if (!BROKEN && T < 32)
        asm volatile("griddepcontrol.wait;" ::: "memory"); // no block is over before `fill` is
    box[2 * OTHERS + 64 * B + T] = T;
}

// bug reads_behind_two: is read, but the launch two before this one writes it
__global__ void reads_behind_two(u32 *box)
{
    asm volatile("griddepcontrol.wait;" ::: "memory");
    box[OTHERS + 64 * B + T] = box[64 * B + T] + box[2 * OTHERS + 64 * B + T]; // reads_behind_two
}

// bug writes_behind_two: is written, but the launch two before this one writes it
__global__ void writes_behind_two(u32 *box)
{
    asm volatile("griddepcontrol.wait;" ::: "memory");
    box[64 * B + T] = box[2 * OTHERS + 64 * B + T]; // writes_behind_two
}

static const bug bugs[] = {
    BUG(scratch_between_lanes, 1, 32),
    BUG(released_by_nothing, 2, 1),
    BUG(flag_before_data, 2, 1),
    BUG(acquired_by_nothing, 2, 1),
    BUG(fence_of_the_block, 2, 1),
    BUG(release_of_the_block, 2, 1),
    BUG(relaxed_for_release, 2, 1),
    BUG(relaxed_for_acquire, 2, 1),
    BUG(plain_poll, 2, 1),
    BUG(plain_flag, 2, 1),
    BUG(writers_not_met, 2, 128),
    BUG(readers_not_met, 2, 128),
    BUG(turn_too_early, 2, 64),
    BUG(looks_ahead, 2, 64),
    BUG(passed_on_unacquired, 3, 1),
    BUG(slot_freed_early, 2, 1),
    BUG(volatile_data_unreleased, 2, 1),
    BUG(relaxed_data_unacquired, 2, 64),
    BUG(lanes_not_met, 2, 32),
    BUG(lanes_released_by_one, 2, 32),
    BUG(lanes_still_read, 2, 32),
    BUG(ticket_of_a_warp, 4, 32),
    BUG(flag_of_another_lane, 2, 32),
    BUG(acquired_by_lane_0, 2, 32),
    BUG(fenced_by_lane_0, 2, 64),
    BUG(each_lane_looks, 33, 32),
    BUG(met_by_some, 2, 32),
    BUG(sum_by_volatile, 1, 32),
    BUG(last_block_sums, 8, 64),
    BUG(last_block_not_met, 8, 64),
    BUG(read_by_two, 3, 64),
    BUG(lowered_while_polled, 3, 1),
    BUG(grid_barrier_unfenced, 8, 64),
    BUG(counted_without_atomics, 4, 64),
    BUG(counted_for_the_block, 4, 64),
    BUG(counted_behind_a_look, 2, 64),
    BUG(neighbours_in_place, 4, 64),
    BUG(halo_in_place, 4, 64),
    BUG(read_before_any_write, 2, 64),
    BUG(elements_of_two, 4, 32),
    BUG(bytes_of_two, 4, 32),
    BUG(lock_unfenced, 4, 1),
    BUG(largest, 8, 32),
    BUG(constant_that_changes, 2, 1),
    BUG(warps_exchange, 1, 64),
    BUG(blocks_of_a_cluster, 2, 32),
    BUG(peer_read_early, 2, 32),
    BUG(peer_written_early, 2, 32),
    BUG_AFTER(fill, reads_ahead, 2, 64),
    BUG_AFTER(fill, writes_ahead, 2, 64),
    BUG_AFTER(fill, waits_in_one_warp, 2, 64),
    BUG_AFTER_TWO(fill, between, reads_behind_two, 2, 64),
    BUG_AFTER_TWO(fill, between, writes_behind_two, 2, 64),
};

int main(int argc, char **argv)
{
    return bugs_main(bugs, argc, argv);
}
