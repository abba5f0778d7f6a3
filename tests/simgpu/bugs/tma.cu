// Bulk and tensor copies, mbarriers, and what must stand between them and ordinary accesses.
#include "../hopper/hopper.cuh"
#include "bugs.cuh"

#define T        threadIdx.x
#define FULL(K)  smem_addr(&full[K])
#define EMPTY(K) smem_addr(&empty[K])

constexpr int STAGES = 2, STEPS = 6, STAGE_WORDS = 128, STAGE_BYTES = 4 * STAGE_WORDS;

// The words that each kernel gets, as a tensor of 64 x 64 words; a box has 32 x 4. The other map begins as many rows before it.
__constant__ CUtensorMap map, early_map;
constexpr int BOX_BYTES = 32 * 4 * 4;

__shared__ __align__(1024) u32 stages[STAGES][STAGE_WORDS];
__shared__ __align__(8) u64 full[STAGES], empty[STAGES];

__device__ static void init(u32 arrivals, u32 releases)
{
    if (T == 0)
        for (int k = 0; k < STAGES; k++) {
            bar_init(FULL(k), arrivals);
            bar_init(EMPTY(k), releases);
        }
    if (T == 0) INIT_FENCE;
    __syncthreads();
}

// ---- Bytes and arrivals ------------------------------------------------------------------------------------------------

// bug bytes_as_elements: 128 bytes expected, but the copies in flight bring 512
template <bool BROKEN>
__global__ void bytes_as_elements(u32 *out)
{
    init(1, 1);
    if (T == 0) {
        bar_expect(FULL(0), BROKEN ? STAGE_WORDS : STAGE_BYTES);
        copy_in(stages[0], out, STAGE_BYTES, FULL(0));
    }
    bar_wait(FULL(0), 0); // bytes_as_elements
    out[T] = stages[0][T];
}

// Two boxes, the bytes of one.
// bug bytes_of_one_operand: 512 bytes expected, but the copies in flight bring 1024 | is read before the copy that brings it
template <bool BROKEN>
__global__ void bytes_of_one_operand(u32 *out)
{
    init(1, 1);
    if (T == 0) {
        bar_expect(FULL(0), BROKEN ? BOX_BYTES : 2 * BOX_BYTES);
        tensor_in(stages[0], &map, 0, 0, FULL(0));
        tensor_in(stages[1], &map, 32, 0, FULL(0));
    }
    bar_wait(FULL(0), 0);
    out[T] = stages[0][T] + stages[1][T];
}

// A box of four rows, and an array for three: the last lands in what lies behind it.
// bug box_larger_than_its_array: out of bounds: write of 512 bytes at byte 0 of the shared variable rows, which has 384 bytes
template <bool BROKEN>
__global__ void box_larger_than_its_array(u32 *out)
{
    __shared__ __align__(128) u32 rows[BROKEN ? 3 : 4][32];
    __shared__ u32 sums[32];
    init(1, 1);
    sums[T] = 0;
    if (T == 0) {
        bar_expect(FULL(0), BOX_BYTES);
        tensor_in(rows, &map, 0, 0, FULL(0)); // box_larger_than_its_array
    }
    bar_wait(FULL(0), 0);
    for (int k = 0; k < 3; k++) sums[T] += rows[k][T];
    out[T] = sums[T];
}

// A stage that is one too many has another's mbarrier.
// bug mbarrier_of_the_next_array: out of bounds: write of 8 bytes at byte 16 of the shared variable full, which has 16 bytes
template <bool BROKEN>
__global__ void mbarrier_of_the_next_array(u32 *out)
{
    const int stage = (int)out[0] + (BROKEN ? STAGES : STAGES - 1);
    init(1, 1);
    if (T == 0) {
        bar_expect(FULL(stage), STAGE_BYTES); // mbarrier_of_the_next_array
        copy_in(stages[0], out, STAGE_BYTES, FULL(stage));
        bar_wait(EMPTY(0), 1); // its stage is free: the phase before the first
    }
    __syncthreads();
    bar_wait(FULL(stage), 0);
    out[T] = stages[0][T];
}

// The tail is 24 bytes: the hardware copies whole pieces of 16.
// bug bytes_of_a_tail: the copies in flight bring 16 (one of 24 bytes is cut to 16: its size must be a multiple of 16)
template <bool BROKEN>
__global__ void bytes_of_a_tail(u32 *out)
{
    const u32 bytes = BROKEN ? 24 : 32;
    init(1, 1);
    if (T == 0) {
        bar_expect(FULL(0), bytes);
        copy_in(stages[0], out, bytes, FULL(0));
    }
    bar_wait(FULL(0), 0); // bytes_of_a_tail
    if (T < 6) out[T] = stages[0][T];
}

// bug too_many_expected: 1 of 2 arrivals missing
template <bool BROKEN>
__global__ void too_many_expected(u32 *out)
{
    init(BROKEN ? 2 : 1, 1);
    if (T == 0) {
        bar_expect(FULL(0), STAGE_BYTES);
        copy_in(stages[0], out, STAGE_BYTES, FULL(0));
    }
    bar_wait(FULL(0), 0); // too_many_expected
    out[T] = stages[0][T];
}

// All threads release the stage, where one arrival is expected.
// bug too_many_arrive: over-arrival: 1 arrivals at the mbarrier
template <bool BROKEN>
__global__ void too_many_arrive(u32 *out)
{
    init(1, 1);
    if (T == 0) {
        bar_expect(FULL(0), STAGE_BYTES);
        copy_in(stages[0], out, STAGE_BYTES, FULL(0));
    }
    bar_wait(FULL(0), 0);
    out[T] = stages[0][T];
    if (T == 32) {
        bar_expect(EMPTY(0), 16);         // holds the phase open
        if (BROKEN) bar_arrive(EMPTY(0)); // too_many_arrive
        copy_in(stages[1], out + 1024, 16, EMPTY(0));
        bar_wait(EMPTY(0), 0);
    }
}

// The copy completes at one stage's mbarrier, and the other's is waited for.
// bug mbarrier_of_another_stage: 512 bytes outstanding
template <bool BROKEN>
__global__ void mbarrier_of_another_stage(u32 *out)
{
    init(1, 1);
    if (T == 0) {
        bar_expect(FULL(1), STAGE_BYTES);
        copy_in(stages[1], out, STAGE_BYTES, FULL(BROKEN ? 0 : 1));
    }
    bar_wait(FULL(1), 0); // mbarrier_of_another_stage
    out[T] = stages[1][T];
}

// ---- Parity ----------------------------------------------------------------------------------------------------------------

// A pipeline: warp 0 fetches, warp 1 consumes. What each does wrong is a template argument.
enum fault {
    RIGHT,
    PARITY_STAYS,
    PARITY_STARTS_WRONG,
    EMPTY_NOT_AWAITED,
    RELEASED_EARLY,
    RELEASED_BY_A_LANE
};

template <fault WRONG>
__device__ static void fetch(u32 *out)
{
    if (T) return;
    for (int k = 0; k < STEPS; k++) {
        const int stage = k % STAGES;
        if (WRONG != EMPTY_NOT_AWAITED) bar_wait(EMPTY(stage), (k / STAGES & 1) ^ 1);
        bar_expect(FULL(stage), STAGE_BYTES);
        copy_in(stages[stage], out + k * STAGE_WORDS, STAGE_BYTES, FULL(stage)); // (fetch)
    }
}
template <fault WRONG>
__device__ static u32 consume()
{
    u32 sum = 0;
    for (int k = 0; k < STEPS; k++) {
        const int stage = k % STAGES;
        const u32 parity = WRONG == PARITY_STAYS ? 0 : (k / STAGES & 1) ^ (WRONG == PARITY_STARTS_WRONG);
        bar_wait(FULL(stage), parity);
        if (WRONG == RELEASED_EARLY && T == 32) bar_arrive(EMPTY(stage));
        sum += stages[stage][T]; // (consume)
        if (WRONG != RELEASED_BY_A_LANE) __syncwarp();
        if (WRONG != RELEASED_EARLY && T == 32) bar_arrive(EMPTY(stage));
    }
    return sum;
}
#define PIPELINE(NAME, WRONG)                                      \
    template <bool BROKEN>                                         \
    __global__ void NAME(u32 *out)                                 \
    {                                                              \
        init(1, 1);                                                \
        if (T < 32)                                                \
            fetch<BROKEN ? WRONG : RIGHT>(out);                    \
        else                                                       \
            out[4096 + T] = consume < BROKEN ? WRONG : RIGHT > (); \
    }

// bug parity_not_flipped: is read before the copy that brings it | may still read | passed with nobody waiting
PIPELINE(parity_not_flipped, PARITY_STAYS)
// bug parity_of_the_producer: is read before the copy that brings it | may still read | passed with nobody waiting
PIPELINE(parity_of_the_producer, PARITY_STARTS_WRONG)
// bug stage_overrun: this copy writes shared offset
PIPELINE(stage_overrun, EMPTY_NOT_AWAITED)
// bug stage_released_early: is read before the copy that brings it | may still read: nothing that this thread has waited for says that it is done
PIPELINE(stage_released_early, RELEASED_EARLY)
// bug stage_released_by_a_lane: may still read: nothing that this thread has waited for says that it is done (another lane of that warp has arrived
PIPELINE(stage_released_by_a_lane, RELEASED_BY_A_LANE)

// Lane 0 arrives for its warp, whose other lanes may not have written yet.
// bug announced_by_a_lane: (another lane of that warp has arrived since, which says nothing of this one: __syncwarp() before the arrival)
template <bool BROKEN>
__global__ void announced_by_a_lane(u32 *out)
{
    init(1, 1);
    if (T >= 32) {
        stages[0][T] = T; // announced_by_a_lane
        if (!BROKEN) __syncwarp();
        if (T == 32) bar_arrive(FULL(0));
    } else {
        bar_wait(FULL(0), 0);
        out[T] = stages[0][T + 32]; // announced_by_a_lane
    }
}

// The same where each has fenced what it wrote for the copy that reads it.
// bug announced_to_a_copy: a barrier is missing: warp 1 wrote shared offset
template <bool BROKEN>
__global__ void announced_to_a_copy(u32 *out)
{
    init(1, 1);
    if (T >= 32) {
        stages[0][T - 32] = T; // announced_to_a_copy
        PROXY_FENCE;
        if (!BROKEN) __syncwarp();
        if (T == 32) bar_arrive(FULL(0));
    } else if (T == 0) {
        bar_wait(FULL(0), 0);
        copy_out(out, stages[0], 128); // announced_to_a_copy
        WAIT_ALL;
    }
}

// Who waits looks only at every second phase, and takes them for one after the other.
// bug phases_unwatched: phases have passed with nobody waiting
template <bool BROKEN>
__global__ void phases_unwatched(u32 *out)
{
    init(1, 1);
    for (u32 k = 0; k < 4; k++) {
        if (T == 0) bar_arrive(FULL(0));
        __syncthreads();
        if (T == 32 && (!BROKEN || k % 2 == 1)) bar_wait(FULL(0), BROKEN ? k / 2 : k % 2); // phases_unwatched
        __syncthreads();
    }
}

// ---- What must be initialised, and visible ---------------------------------------------------------------------------------

// bug init_not_visible: is used before its mbarrier.init is visible here: no barrier since
template <bool BROKEN>
__global__ void init_not_visible(u32 *out)
{
    if (T == 0) {
        bar_init(FULL(0), 1);
        INIT_FENCE;
        if (BROKEN) bar_arrive(FULL(0));
    }
    if (!BROKEN) __syncthreads();
    if (!BROKEN && T == 0) bar_arrive(FULL(0));
    if (BROKEN) __nanosleep(1000);
    if (T >= 32) bar_wait(FULL(0), 0); // (init)
}

// bug init_not_fenced: before its mbarrier.init is visible to the async proxy
template <bool BROKEN>
__global__ void init_not_fenced(u32 *out)
{
    if (T == 0) {
        bar_init(FULL(0), 1);
        if (!BROKEN) INIT_FENCE;
        bar_expect(FULL(0), STAGE_BYTES);
        copy_in(stages[0], out, STAGE_BYTES, FULL(0)); // init_not_fenced
    }
    __syncthreads();
    bar_wait(FULL(0), 0);
    out[T] = stages[0][T];
}

// The second mbarrier of an array of which one was initialised.
// bug never_initialised: no mbarrier has been initialised at shared offset
template <bool BROKEN>
__global__ void never_initialised(u32 *out)
{
    if (T == 0) {
        for (int k = 0; k < (BROKEN ? 1 : 2); k++) bar_init(FULL(k), 1);
        INIT_FENCE;
        bar_arrive(FULL(1)); // never_initialised
    }
}

// A tile that is a little too large, and the mbarrier behind it.
// bug mbarrier_overwritten: was overwritten by an ordinary store
template <bool BROKEN>
__global__ void mbarrier_overwritten(u32 *out)
{
    __shared__ __align__(16) struct {
        u32 tile[32];
        u64 bar;
    } s;
    if (T == 0) {
        bar_init(smem_addr(&s.bar), 1);
        INIT_FENCE;
    }
    __syncthreads();
    u32 *tile = s.tile;
    asm volatile("" : "+l"(tile));
    if (T < (BROKEN ? 33 : 32)) tile[T] = T;
    __syncthreads();
    if (T == 0) bar_arrive(smem_addr(&s.bar)); // mbarrier_overwritten
}

// ---- Tensor maps ---------------------------------------------------------------------------------------------------------------

// What a parameter becomes that is not declared `const __grid_constant__`: a copy on the thread's stack.
// bug map_in_local_memory: the tensor map lies in local memory
template <bool BROKEN>
__global__ void map_in_local_memory(u32 *out)
{
    CUtensorMap copy = map;
    const CUtensorMap *used = BROKEN ? &copy : &map;
    asm volatile("" : "+l"(used)::"memory");
    init(1, 1);
    if (T == 0) {
        bar_expect(FULL(0), BOX_BYTES);
        tensor_in(stages[0], used, 0, 0, FULL(0)); // map_in_local_memory
    }
    bar_wait(FULL(0), 0);
    out[T] = stages[0][T];
}

// bug map_in_shared_memory: the tensor map lies in shared memory
template <bool BROKEN>
__global__ void map_in_shared_memory(u32 *out)
{
    __shared__ __align__(128) u32 copy[32];
    if (T < 32) copy[T] = ((const u32 *)&map)[T];
    const CUtensorMap *used = BROKEN ? (const CUtensorMap *)copy : &map;
    init(1, 1);
    if (T == 0) {
        bar_expect(FULL(0), BOX_BYTES);
        tensor_in(stages[0], used, 0, 0, FULL(0)); // map_in_shared_memory
    }
    bar_wait(FULL(0), 0);
    out[T] = stages[0][T];
}

// Row 64 of the map is row 0 of the tensor.
// bug map_before_memory: the tensor map begins where no memory is
template <bool BROKEN>
__global__ void map_before_memory(u32 *out)
{
    init(1, 1);
    if (T == 0) {
        bar_expect(FULL(0), BOX_BYTES);
        const CUtensorMap *used = BROKEN ? &early_map : &map;
        tensor_in(stages[0], used, 0, BROKEN ? 64 : 0, FULL(0)); // map_before_memory
    }
    bar_wait(FULL(0), 0);
    out[T] = stages[0][T];
}

// bug tile_misaligned: must be a multiple of 128
template <bool BROKEN>
__global__ void tile_misaligned(u32 *out)
{
    init(1, 1);
    if (T == 0) {
        bar_expect(FULL(0), BOX_BYTES);
        tensor_in(stages[0] + (BROKEN ? 16 : 32), &map, 0, 0, FULL(0)); // tile_misaligned
    }
    bar_wait(FULL(0), 0);
    out[T] = stages[0][32 + T % 64];
}

// bug box_between_pieces: the box must begin on a multiple of 16 bytes
template <bool BROKEN>
__global__ void box_between_pieces(u32 *out)
{
    init(1, 1);
    if (T == 0) {
        bar_expect(FULL(0), BOX_BYTES);
        tensor_in(stages[0], &map, BROKEN ? 2 : 4, 0, FULL(0)); // box_between_pieces
    }
    bar_wait(FULL(0), 0);
    out[T] = stages[0][T];
}

// bug copy_past_the_end: crosses the end of allocation
template <bool BROKEN>
__global__ void copy_past_the_end(u32 *out)
{
    init(1, 1);
    if (T == 0) {
        bar_expect(FULL(0), STAGE_BYTES);
        copy_in(stages[0], out + WORDS - (BROKEN ? 64 : 128), STAGE_BYTES, FULL(0)); // copy_past_the_end
    }
    bar_wait(FULL(0), 0);
    out[T] = stages[0][T];
}

// ---- Proxies ---------------------------------------------------------------------------------------------------------------------

// bug store_not_fenced: fence.proxy.async is missing
template <bool BROKEN>
__global__ void store_not_fenced(u32 *out)
{
    stages[0][T] = T; // store_not_fenced
    if (!BROKEN) PROXY_FENCE;
    __syncthreads();
    if (T) return;
    copy_out(out, stages[0], 4 * 64); // store_not_fenced
    WAIT_ALL;
}

// One lane fences, for itself.
// bug fenced_by_one_lane: (other lanes have executed the fence
template <bool BROKEN>
__global__ void fenced_by_one_lane(u32 *out)
{
    stages[0][T] = T; // fenced_by_one_lane
    if (!BROKEN || T == 0) PROXY_FENCE;
    __syncwarp();
    if (T) return;
    copy_out(out, stages[0], 128); // fenced_by_one_lane
    WAIT_ALL;
}

// The epilogue's stores, and the next tile's copy into the same memory.
// bug overwritten_by_a_copy: this instruction overwrites it through the async proxy
template <bool BROKEN>
__global__ void overwritten_by_a_copy(u32 *out)
{
    init(1, 1);
    stages[0][T] = T; // overwritten_by_a_copy
    if (!BROKEN) PROXY_FENCE;
    __syncthreads();
    if (T == 0) {
        bar_expect(FULL(0), STAGE_BYTES);
        copy_in(stages[0], out, STAGE_BYTES, FULL(0)); // overwritten_by_a_copy
    }
    bar_wait(FULL(0), 0);
    out[T] = stages[0][T];
}

// bug store_buffer_overwritten: shared memory that a bulk store still reads was written
template <bool BROKEN>
__global__ void store_buffer_overwritten(u32 *out)
{
    for (u32 k = 0; k < 2; k++) {
        if (k && T < 32) {
            if (!BROKEN && T == 0) WAIT_READ;
            __syncwarp();
        }
        stages[0][T] = T + k; // store_buffer_overwritten
        PROXY_FENCE;
        __syncwarp();
        if (T == 0) copy_out(out + 64 * k, stages[0], 128);
    }
    if (T == 0) WAIT_ALL; // store_buffer_overwritten
}

// A half of the warp meets, and one of its lanes fences and stores: what the other half wrote is not known to be there.
// bug stored_by_half: fence.proxy.async is missing: warp 0 wrote shared offset
template <bool BROKEN>
__global__ void stored_by_half(u32 *out)
{
    stages[0][T] = T; // stored_by_half
    if (T < 16) __syncwarp(0xffff);
    if (T == 0) {
        PROXY_FENCE;
        copy_out(out, stages[0], BROKEN ? 128 : 64); // stored_by_half
        WAIT_ALL;
    }
}

// One lane waits until the buffer has been read; the others write it without having met it.
// bug store_buffer_rewritten_by_lanes: __syncwarp() between them is missing
template <bool BROKEN>
__global__ void store_buffer_rewritten_by_lanes(u32 *out)
{
    for (u32 k = 0; k < 2; k++) {
        if (k && T == 0) WAIT_READ; // store_buffer_rewritten_by_lanes
        if (!BROKEN) __syncwarp();
        stages[0][T] = T + k; // store_buffer_rewritten_by_lanes
        PROXY_FENCE;
        __syncwarp();
        if (T == 0) copy_out(out + 64 * k, stages[0], 128);
    }
    if (T == 0) WAIT_ALL;
}

// ... by warps: the barrier comes before the wait.
// bug store_buffer_rewritten_by_warps: this write is not ordered after the read by
template <bool BROKEN>
__global__ void store_buffer_rewritten_by_warps(u32 *out)
{
    stages[0][T] = T;
    stages[1][T] = 0;
    PROXY_FENCE;
    __syncthreads();
    if (T == 0) copy_out(out, stages[0], 4 * 64);
    if (T == 0) WAIT_READ; // store_buffer_rewritten_by_warps
    if (!BROKEN) __syncthreads();
    if (BROKEN && T >= 32)
        while (*(volatile u32 *)&stages[1][0] != 1) __nanosleep(100); // a flag orders nothing
    if (BROKEN && T == 0) *(volatile u32 *)&stages[1][0] = 1;
    stages[0][T] = T + 1; // store_buffer_rewritten_by_warps
}

// bug leaves_with_an_open_store: without cp.async.bulk.wait_group.read
template <bool BROKEN>
__global__ void leaves_with_an_open_store(u32 *out)
{
    stages[0][T] = T;
    PROXY_FENCE;
    __syncthreads();
    if (T == 0) {
        copy_out(out, stages[0], 4 * 64); // leaves_with_an_open_store
        if (!BROKEN) WAIT_READ;
    }
}

// Another block is told of what a bulk store writes when only its source is free again.
// bug store_announced_early: the thread that issued it must wait for it, by cp.async.bulk.wait_group without .read
template <bool BROKEN>
__global__ void store_announced_early(u32 *out)
{
    u32 *flag = out + 8192;
    if (blockIdx.x == 0) {
        stages[0][T] = T;
        PROXY_FENCE;
        __syncthreads();
        if (T) return;
        copy_out(out, stages[0], 256); // store_announced_early
        if (BROKEN)
            WAIT_READ;
        else
            WAIT_ALL;
        __threadfence();
        atomicExch(flag, 1);
    } else {
        if (T == 0)
            while (!atomicAdd(flag, 0)) __nanosleep(100);
        __threadfence();
        __syncthreads();
        out[1024 + T] = out[T]; // store_announced_early
    }
}

// Adds to what another block's bulk store writes, whether that has been stored or not.
// bug added_before_it_is_stored: but this thread has not acquired it | or a flag must order them | must wait for it, by cp.async.bulk.wait_group without .read
template <bool BROKEN>
__global__ void added_before_it_is_stored(u32 *out)
{
    u32 *flag = out + 8192;
    stages[0][T] = T;
    PROXY_FENCE;
    __syncthreads();
    if (T) return;
    if (blockIdx.x == 0) {
        copy_out(out, stages[0], 256); // added_before_it_is_stored
        WAIT_ALL;
        __threadfence();
        atomicExch(flag, 1);
    } else {
        if (!BROKEN)
            while (!atomicAdd(flag, 0)) __nanosleep(100);
        __threadfence();
        add_out(out, stages[0], 256); // added_before_it_is_stored
        WAIT_ALL;
    }
}

// A partial sum is stored, and then the whole one over it: bulk copies have no order among themselves until they are waited for.
// bug stored_twice: bulk copies have no order among themselves
template <bool BROKEN>
__global__ void stored_twice(u32 *out)
{
    stages[0][T] = T;
    stages[1][T] = 2 * T;
    PROXY_FENCE;
    __syncthreads();
    if (T) return;
    copy_out(out, stages[0], 256);              // stored_twice
    if (!BROKEN) copy_out(out, stages[0], 256); // the same
    if (BROKEN)
        WAIT_READ;
    else
        WAIT_ALL;
    copy_out(out, stages[1], 256); // stored_twice
    WAIT_ALL;
}

// What is added may be lost if it comes before what it is to be added to.
// bug stored_then_added: bulk copies have no order among themselves
template <bool BROKEN>
__global__ void stored_then_added(u32 *out)
{
    stages[0][T] = T;
    PROXY_FENCE;
    __syncthreads();
    if (T) return;
    copy_out(out, stages[0], 256); // stored_then_added
    if (!BROKEN) WAIT_ALL;
    add_out(out, stages[0], 256);              // stored_then_added
    if (!BROKEN) add_out(out, stages[0], 128); // Sums have no order, and need none.
    WAIT_ALL;
}

// A bulk store over what another block has written, with nothing between them.
// bug stored_over_what_others_wrote: nothing has released it | must wait for it, by cp.async.bulk.wait_group without .read
template <bool BROKEN>
__global__ void stored_over_what_others_wrote(u32 *out)
{
    u32 *flag = out + 8192;
    stages[0][T] = T;
    PROXY_FENCE;
    __syncthreads();
    if (blockIdx.x == 0) {
        out[T] = 1; // stored_over_what_others_wrote
        if (!BROKEN) __threadfence();
        __syncthreads();
        if (!BROKEN && T == 0) atomicExch(flag, 1);
    } else if (T == 0) {
        if (!BROKEN)
            while (!atomicAdd(flag, 0)) __nanosleep(100);
        __threadfence();
        GLOBAL_PROXY_FENCE;
        copy_out(out, stages[0], 256); // stored_over_what_others_wrote
        WAIT_ALL;
    }
}

// A block writes, and says so by a flag.
__device__ static void write_and_tell(u32 *out, u32 *flag)
{
    out[T] = T;
    __threadfence();
    __syncthreads();
    if (T == 0) atomicExch(flag, 1);
}

// Loads what another block has written, when the flag says so, but has not acquired it.
// bug loaded_without_acquiring: but this thread has not acquired it
template <bool BROKEN>
__global__ void loaded_without_acquiring(u32 *out)
{
    u32 *flag = out + 8192;
    init(1, 1);
    if (blockIdx.x == 0) {
        write_and_tell(out, flag);
    } else if (T == 0) {
        while (!atomicAdd(flag, 0)) __nanosleep(100);
        if (!BROKEN) __threadfence();
        GLOBAL_PROXY_FENCE;
        bar_expect(FULL(0), STAGE_BYTES);
        copy_in(stages[0], out, STAGE_BYTES, FULL(0)); // loaded_without_acquiring
        bar_wait(FULL(0), 0);
    }
}

// The same of a box, that another block's bulk store has brought there.
// bug box_loaded_without_acquiring: but this thread has not acquired it
template <bool BROKEN>
__global__ void box_loaded_without_acquiring(u32 *out)
{
    u32 *flag = out + 8192;
    init(1, 1);
    stages[0][T] = T;
    PROXY_FENCE;
    __syncthreads();
    if (T) return;
    if (blockIdx.x == 0) {
        copy_out(out, stages[0], 256);
        WAIT_ALL;
        __threadfence();
        atomicExch(flag, 1);
    } else {
        while (!atomicAdd(flag, 0)) __nanosleep(100);
        if (!BROKEN) __threadfence();
        bar_expect(FULL(0), STAGE_BYTES);
        tensor_in(stages[0], &map, 0, 0, FULL(0)); // box_loaded_without_acquiring
        bar_wait(FULL(0), 0);
    }
}

// Loads what another block's threads have stored, behind a fence for shared memory alone.
// bug fenced_for_shared_memory: fence.proxy.async is missing: warp
template <bool BROKEN>
__global__ void fenced_for_shared_memory(u32 *out)
{
    u32 *flag = out + 8192;
    init(1, 1);
    if (blockIdx.x == 0) {
        write_and_tell(out, flag);
    } else if (T == 0) {
        while (!atomicAdd(flag, 0)) __nanosleep(100);
        __threadfence();
        PROXY_FENCE;
        if (!BROKEN) GLOBAL_PROXY_FENCE;
        bar_expect(FULL(0), STAGE_BYTES);
        tensor_in(stages[0], &map, 0, 0, FULL(0)); // fenced_for_shared_memory
        bar_wait(FULL(0), 0);
    }
}

// Loads what this block's other threads have stored behind a barrier, and no fence of theirs or its own.
// bug loaded_behind_a_barrier: fence.proxy.async is missing: warp
template <bool BROKEN>
__global__ void loaded_behind_a_barrier(u32 *out)
{
    init(1, 1);
    out[T] = T;
    if (!BROKEN) GLOBAL_PROXY_FENCE;
    __syncthreads();
    if (T == 0) {
        bar_expect(FULL(0), STAGE_BYTES);
        copy_in(stages[0], out, STAGE_BYTES, FULL(0)); // loaded_behind_a_barrier
        bar_wait(FULL(0), 0);
    }
}

// Two blocks take turns: one fills a buffer, the other loads it, but does not release that with the flag that says so.
// bug loaded_without_releasing: this write is not ordered after the read
template <bool BROKEN>
__global__ void loaded_without_releasing(u32 *out)
{
    u32 *filled = out + 8192, *loaded = out + 8256;
    init(1, 1);
    if (blockIdx.x == 0) fill_in_turns(out, filled, loaded, 5, false); // loaded_without_releasing
    for (u32 step = 0; step < 5 && blockIdx.x == 1; step++)
        if (T == 0) {
            while (atomicAdd(filled, 0) <= step) __nanosleep(100);
            __threadfence();
            GLOBAL_PROXY_FENCE;
            bar_expect(FULL(0), 256);
            copy_in(stages[0], out, 256, FULL(0)); // loaded_without_releasing
            bar_wait(FULL(0), step % 2);
            if (!BROKEN) __threadfence();
            atomicExch(loaded, step + 1);
        }
}

// The same of a box that has always been there, and which the other overwrites.
// bug box_loaded_without_releasing: this write is not ordered after the read
template <bool BROKEN>
__global__ void box_loaded_without_releasing(u32 *out)
{
    u32 *flag = out + 8192;
    init(1, 1);
    if (blockIdx.x == 0 && T == 0) {
        bar_expect(FULL(0), STAGE_BYTES);
        tensor_in(stages[0], &map, 0, 0, FULL(0)); // box_loaded_without_releasing
        bar_wait(FULL(0), 0);
        if (!BROKEN) __threadfence();
        atomicExch(flag, 1);
    } else if (blockIdx.x == 1 && T < 32) {
        while (!atomicAdd(flag, 0)) __nanosleep(100);
        __threadfence();
        out[T] = T; // box_loaded_without_releasing
    }
}

// bug copy_never_awaited: the block leaves, and nobody has waited for the mbarrier
template <bool BROKEN>
__global__ void copy_never_awaited(u32 *out)
{
    init(1, 1);
    if (T == 0) {
        bar_expect(FULL(0), STAGE_BYTES);
        copy_in(stages[0], out, STAGE_BYTES, FULL(0)); // copy_never_awaited
        if (!BROKEN) bar_wait(FULL(0), 0);
    }
}

// Others are told by a flag, not by the mbarrier.
// bug told_by_a_flag: neither waited for its mbarrier nor been told by a warp that has
template <bool BROKEN>
__global__ void told_by_a_flag(u32 *out)
{
    __shared__ volatile u32 flag;
    if (T == 0) flag = 0;
    init(1, 1);
    if (T == 0) {
        bar_expect(FULL(0), STAGE_BYTES);
        copy_in(stages[0], out, STAGE_BYTES, FULL(0));
        bar_wait(FULL(0), 0);
        flag = 1;
    }
    if (T >= 32) {
        while (!flag) __nanosleep(100);
        if (!BROKEN) bar_wait(FULL(0), 0);
        out[T] = stages[0][T]; // told_by_a_flag
    }
}

static const bug bugs[] = {
    BUG(bytes_as_elements, 1, 128),
    BUG(bytes_of_one_operand, 1, 128),
    BUG(box_larger_than_its_array, 1, 32),
    BUG(mbarrier_of_the_next_array, 1, 128),
    BUG(bytes_of_a_tail, 1, 32),
    BUG(too_many_expected, 1, 128),
    BUG(too_many_arrive, 1, 64),
    BUG(mbarrier_of_another_stage, 1, 128),
    BUG(parity_not_flipped, 1, 64),
    BUG(parity_of_the_producer, 1, 64),
    BUG(stage_overrun, 1, 64),
    BUG(stage_released_early, 1, 64),
    BUG(stage_released_by_a_lane, 1, 64),
    BUG(announced_by_a_lane, 1, 64),
    BUG(announced_to_a_copy, 1, 64),
    BUG(phases_unwatched, 1, 64),
    BUG(init_not_visible, 1, 64),
    BUG(init_not_fenced, 1, 128),
    BUG(never_initialised, 1, 32),
    BUG(mbarrier_overwritten, 1, 64),
    BUG(map_in_local_memory, 1, 128),
    BUG(map_in_shared_memory, 1, 128),
    BUG(map_before_memory, 1, 128),
    BUG(tile_misaligned, 1, 128),
    BUG(box_between_pieces, 1, 128),
    BUG(copy_past_the_end, 1, 128),
    BUG(store_not_fenced, 1, 64),
    BUG(fenced_by_one_lane, 1, 32),
    BUG(stored_by_half, 1, 32),
    BUG(overwritten_by_a_copy, 1, 64),
    BUG(store_buffer_overwritten, 1, 32),
    BUG(store_buffer_rewritten_by_lanes, 1, 32),
    BUG(store_buffer_rewritten_by_warps, 1, 64),
    BUG(leaves_with_an_open_store, 1, 64),
    BUG(store_announced_early, 2, 64),
    BUG(added_before_it_is_stored, 2, 64),
    BUG(stored_over_what_others_wrote, 2, 64),
    BUG(stored_twice, 1, 64),
    BUG(stored_then_added, 1, 64),
    BUG(loaded_without_acquiring, 2, 64),
    BUG(box_loaded_without_acquiring, 2, 64),
    BUG(fenced_for_shared_memory, 2, 64),
    BUG(loaded_behind_a_barrier, 1, 64),
    BUG(loaded_without_releasing, 2, 64),
    BUG(box_loaded_without_releasing, 2, 64),
    BUG(copy_never_awaited, 1, 32),
    BUG(told_by_a_flag, 1, 64),
};

static void make_map(u32 *memory)
{
    const u64 dims[] = {64, 64}, twice[] = {64, 128}, strides[] = {256};
    const u32 box[] = {32, 4}, steps[] = {1, 1};
    CUtensorMap made;
    encode_map(&made, CU_TENSOR_MAP_DATA_TYPE_UINT32, 2, memory, dims, strides, box, steps,
               CU_TENSOR_MAP_SWIZZLE_NONE);
    CUDA_CHECK(cudaMemcpyToSymbol(map, &made, sizeof made));
    encode_map(&made, CU_TENSOR_MAP_DATA_TYPE_UINT32, 2, memory - 64 * 64, twice, strides, box, steps,
               CU_TENSOR_MAP_SWIZZLE_NONE);
    CUDA_CHECK(cudaMemcpyToSymbol(early_map, &made, sizeof made));
}

int main(int argc, char **argv)
{
    return bugs_main(bugs, argc, argv, make_map);
}
