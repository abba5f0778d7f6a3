// cp.async: pipelines that wait for too little, in the wrong place or for the wrong stage; sources and destinations.
#include "bugs.cuh"

#define T threadIdx.x

constexpr u32 STAGES = 3, STEPS = 8;

// A pipeline of three stages, 64 threads of 16 bytes; what is wrong with it is a template argument.
enum fault {
    RIGHT,
    WAITS_FOR_TOO_LITTLE,
    NO_EMPTY_GROUPS,
    WRONG_STAGE,
    NO_BARRIER_BEFORE,
    COMMITS_TOO_EARLY,
    WAITS_ALONE
};

template <fault WRONG>
__device__ static u32 pipeline(const u32 *from)
{
    __shared__ __align__(16) u32 tile[STAGES][256];
    u32 sum = 0;
    for (u32 k = 0; k < STAGES - 1; k++) {
        if (WRONG == COMMITS_TOO_EARLY) cp_async_commit();
        cp_async_16(&tile[k][4 * T], from + 256 * k + 4 * T);
        if (WRONG != COMMITS_TOO_EARLY) cp_async_commit();
    }
    for (u32 k = 0; k < STEPS; k++) {
        const u32 next = k + STAGES - 1;
        if (WRONG != WAITS_ALONE || T < 32)
            cp_async_wait<WRONG == WAITS_FOR_TOO_LITTLE ? STAGES - 1 : STAGES - 2>();
        if (WRONG != NO_BARRIER_BEFORE) __syncthreads();
        if (next < STEPS) cp_async_16(&tile[next % STAGES][4 * T], from + 256 * next + 4 * T); // (next)
        if (next < STEPS || WRONG != NO_EMPTY_GROUPS) cp_async_commit();
        const u32 stage = WRONG == WRONG_STAGE ? (k + 1) % STAGES : k % STAGES;
        for (u32 i = 0; i < 4; i++) sum += tile[stage][(4 * T + 64 * i + i) % 256]; // (sum)
    }
    cp_async_wait<0>();
    return sum;
}
#define PIPELINE(NAME, WRONG)                                      \
    template <bool BROKEN>                                         \
    __global__ void NAME(u32 *out)                                 \
    {                                                              \
        out[8192 + T] = pipeline < BROKEN ? WRONG : RIGHT > (out); \
    }

// bug waits_for_too_little: before the cp.async at line
PIPELINE(waits_for_too_little, WAITS_FOR_TOO_LITTLE)
// bug no_empty_groups: before the cp.async at line
PIPELINE(no_empty_groups, NO_EMPTY_GROUPS)
// bug wrong_stage: before the cp.async at line
PIPELINE(wrong_stage, WRONG_STAGE)
// bug no_barrier_before: such as __syncthreads() | __syncwarp() between them is missing | before the cp.async at line
PIPELINE(no_barrier_before, NO_BARRIER_BEFORE)
// bug commits_too_early: before the cp.async at line
PIPELINE(commits_too_early, COMMITS_TOO_EARLY)
// bug waits_alone: before the cp.async at line
PIPELINE(waits_alone, WAITS_ALONE)

// bug copy_misaligned: must be a multiple of 16
template <bool BROKEN>
__global__ void copy_misaligned(u32 *out)
{
    __shared__ __align__(16) u32 tile[64][BROKEN ? 6 : 8];
    cp_async_16(tile[T], out + 8 * T); // copy_misaligned
    cp_async_commit();
    cp_async_wait<0>();
    out[4096 + T] = tile[T][0];
}

// The last columns of a row that is no multiple of 16 bytes.
// bug copy_of_ragged_rows: misaligned global address
template <bool BROKEN>
__global__ void copy_of_ragged_rows(u32 *out)
{
    __shared__ __align__(16) u32 tile[64][4];
    const u32 k = BROKEN ? 77 : 80;
    cp_async_16(tile[T], out + T * k); // copy_of_ragged_rows
    cp_async_commit();
    cp_async_wait<0>();
    out[8192 + T] = tile[T][0];
}

// bug copy_past_the_end: past the end of allocation 1
template <bool BROKEN>
__global__ void copy_past_the_end(u32 *out)
{
    __shared__ __align__(16) u32 tile[64][4];
    const u32 row = WORDS / 4 - 32 + T;
    if (BROKEN || row < WORDS / 4) cp_async_16(tile[T], out + 4 * row); // copy_past_the_end
    cp_async_commit();
    cp_async_wait<0>();
    if (row < WORDS / 4) out[T] = tile[T][0];
}

// bug source_changed: the source was changed while the copy was in flight
template <bool BROKEN>
__global__ void source_changed(u32 *out)
{
    __shared__ __align__(16) u32 tile[64];
    cp_async_4(&tile[T], out + T); // source_changed
    cp_async_commit();
    if (BROKEN) out[T] = T + 1;
    cp_async_wait<0>(); // source_changed
    out[T] = tile[T];
}

// The tile is cleared while a copy to it is in flight.
// bug destination_cleared: before the cp.async at line
template <bool BROKEN>
__global__ void destination_cleared(u32 *out)
{
    __shared__ __align__(16) u32 tile[64];
    if (!BROKEN) tile[T] = 0;
    if (!BROKEN) __syncthreads();
    if (T < 60) cp_async_4(&tile[T], out + T); // destination_cleared
    cp_async_commit();
    if (BROKEN) tile[T] = 0; // destination_cleared
    cp_async_wait<0>();
    __syncthreads();
    out[64 + T] = tile[63 - T];
}

static const bug bugs[] = {
    BUG(waits_for_too_little, 1, 64), BUG(no_empty_groups, 1, 64),     BUG(wrong_stage, 1, 64),
    BUG(no_barrier_before, 1, 64),    BUG(commits_too_early, 1, 64),   BUG(waits_alone, 1, 64),
    BUG(copy_misaligned, 1, 64),      BUG(copy_of_ragged_rows, 1, 64), BUG(copy_past_the_end, 1, 64),
    BUG(source_changed, 1, 64),       BUG(destination_cleared, 1, 64),
};

int main(int argc, char **argv)
{
    return bugs_main(bugs, argc, argv);
}
