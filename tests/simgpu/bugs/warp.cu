// What lanes of a warp, or warps of a block, must do together: shuffles, votes, aligned instructions, barriers.
#include "bugs.cuh"

#define T threadIdx.x

// ---- Shuffles and votes ------------------------------------------------------------------------------------------------

// The sum of a row that has fewer elements than the warp lanes; those without one have gone.
// bug shuffle_from_the_exited: which has exited (or never was): the value is undefined
template <bool BROKEN>
__global__ void shuffle_from_the_exited(u32 *out)
{
    const u32 n = 20 + out[0];
    if (BROKEN && T >= n) return;
    u32 x = T < n ? T : 0;
    for (u32 d = 16; d; d /= 2) x += __shfl_xor_sync(~0u, x, d); // shuffle_from_the_exited
    if (T == 0) out[0] = x;
}

// The last row's block has half a warp's threads.
// bug shuffle_beyond_the_block: which has exited (or never was): the value is undefined
template <bool BROKEN>
__global__ void shuffle_beyond_the_block(u32 *out)
{
    u32 x = out[T];
    for (u32 d = BROKEN ? 16 : 8; d; d /= 2) x += __shfl_xor_sync(~0u, x, d); // shuffle_beyond_the_block
    if (T == 0) out[0] = x;
}

// bug mask_without_itself: but its own member mask 0x000000ff does not name it
template <bool BROKEN>
__global__ void mask_without_itself(u32 *out)
{
    if (T < 16) out[T] = __shfl_xor_sync(BROKEN ? 0xffu : 0xffffu, T, 1); // mask_without_itself
}

// bug mask_of_all_in_a_branch: but these have gone another way and wait behind the branch
template <bool BROKEN>
__global__ void mask_of_all_in_a_branch(u32 *out)
{
    u32 x = out[T] + T;
    if (x < 12) {
        for (u32 k = 0; k < x; k++) x += out[k];
        x += __shfl_xor_sync(BROKEN ? ~0u : 0xfffu, x, 1); // mask_of_all_in_a_branch
    }
    out[T] = x;
}

// Lanes have different numbers of elements, and those that are done vote no more.
// bug vote_in_a_loop: but these have gone another way and wait behind the branch
template <bool BROKEN>
__global__ void vote_in_a_loop(u32 *out)
{
    u32 found = 0, n = T + out[0];
    for (u32 k = 0; k < (BROKEN ? n : 32); k++)
        found += __ballot_sync(~0u, k < n && out[k] == 0) != 0; // vote_in_a_loop
    out[T] = found;
}

// bug reduction_of_others: but its own member mask 0x0000ffff does not name it
template <bool BROKEN>
__global__ void reduction_of_others(u32 *out)
{
    out[T] = __reduce_add_sync(BROKEN ? 0xffffu : ~0u, T); // reduction_of_others
}

// bug syncwarp_in_a_branch: but these have gone another way and wait behind the branch
template <bool BROKEN>
__global__ void syncwarp_in_a_branch(u32 *out)
{
    __shared__ u32 box[32];
    box[T] = T;
    __syncwarp();
    if (T < 16) {
        box[T] += out[T] + box[T + 16];
        __syncwarp(BROKEN ? ~0u : 0xffffu); // syncwarp_in_a_branch
        box[T] = out[15 - T];
    }
    __syncwarp();
    out[T] = box[31 - T];
}

// ---- Instructions of the whole warp --------------------------------------------------------------------------------------

#define LDMATRIX_X1(R, ROW)                                             \
    asm volatile("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%0}, [%1];" \
                 : "=r"(R)                                              \
                 : "r"(smem_addr(ROW))                                  \
                 : "memory")
#define MMA(D)                                                                                       \
    asm volatile(                                                                                    \
        "mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, " \
        "%1, %2, %3};"                                                                               \
        : "+f"(D[0]), "+f"(D[1]), "+f"(D[2]), "+f"(D[3])                                             \
        : "r"(T), "r"(T), "r"(T))

// Only eight lanes have a row's address; all 32 must execute it.
// bug ldmatrix_by_some_lanes: but these have gone another way and wait behind the branch
template <bool BROKEN>
__global__ void ldmatrix_by_some_lanes(u32 *out)
{
    __shared__ __align__(16) u32 tile[32];
    tile[T] = T;
    __syncwarp();
    u32 r = 0;
    if (!BROKEN || T < 8 + out[0]) LDMATRIX_X1(r, tile + T % 8 * 4); // ldmatrix_by_some_lanes
    out[T] = r;
}

// bug mma_after_some_left: have exited or never were
template <bool BROKEN>
__global__ void mma_after_some_left(u32 *out)
{
    float d[4] = {};
    if (BROKEN && T >= 24 + out[0]) return; // rows of C that are not there
    MMA(d);                                 // mma_after_some_left
    if (T < 24) out[T] = (u32)d[0];
}

// ---- Barriers --------------------------------------------------------------------------------------------------------------

// bug barrier_in_a_branch: but these have gone another way and wait behind the branch
template <bool BROKEN>
__global__ void barrier_in_a_branch(u32 *out)
{
    __shared__ u32 tile[64];
    tile[T] = out[T];
    if (BROKEN) {
        if (T % 32 < 16 + out[0]) {
            tile[T] += 1;
            __syncthreads(); // barrier_in_a_branch
        }
    } else {
        if (T % 32 < 16) tile[T] += 1;
        __syncthreads();
    }
    out[T] = tile[63 - T];
}

// Threads without a row leave a loop early that has a barrier for all. The barrier of an sm_70 or newer counts those that
// have exited as there, but not those that wait elsewhere.
// bug barrier_in_a_loop: waits at barrier 1, where 32 of 64 threads have arrived
template <bool BROKEN>
__global__ void barrier_in_a_loop(u32 *out)
{
    const u32 n = !BROKEN || T < 32 ? 4 : 3;
    for (u32 k = 0; k < n; k++) {
        out[64 * k + T] += k;
        bar_sync<1, 64>(); // barrier_in_a_loop
    }
    bar_sync<2, 64>(); // barrier_in_a_loop
}

// bug barrier_for_too_many: waits at barrier 1, where 64 of 96 threads have arrived
template <bool BROKEN>
__global__ void barrier_for_too_many(u32 *out)
{
    if (T < 64)
        bar_sync<1, BROKEN ? 96 : 64>(); // barrier_for_too_many
    else
        bar_sync<2, 64>();
    out[T] = T;
}

// bug barrier_for_different_counts: barrier 1 is used
template <bool BROKEN>
__global__ void barrier_for_different_counts(u32 *out)
{
    __shared__ u32 tile[128];
    tile[T] = T;
    if (T < 64)
        bar_sync<1, 128>();
    else
        bar_sync<1, BROKEN ? 64 : 128>();
    out[T] = tile[T ^ 32];
}

// A producer that announces a second tile before it knows that the first announcement has been taken.
// bug arrives_twice: is used again by a warp that cannot know that its last phase is over
template <bool BROKEN>
__global__ void arrives_twice(u32 *out)
{
    __shared__ u32 box[2][32];
    for (u32 k = 0; k < 2; k++) {
        if (T < 32) {
            if (!BROKEN && k) bar_sync<2, 64>();
            box[k][T] = T;
            bar_arrive<1, 64>(); // arrives_twice
        } else {
            bar_sync<1, 64>();
            out[T] += box[k][63 - T];
            if (!BROKEN && !k) bar_arrive<2, 64>();
        }
    }
}

// Two pairs of warps with one barrier between them: who is counted for whom?
// bug barrier_of_two_pairs: is used again by a warp that cannot know that its last phase is over
template <bool BROKEN>
__global__ void barrier_of_two_pairs(u32 *out)
{
    __shared__ u32 tile[128];
    tile[T] = T;
    if (T < 64)
        bar_sync<1, 64>();
    else
        bar_sync<BROKEN ? 1 : 2, 64>();
    out[T] = tile[T];
}

static const bug bugs[] = {
    BUG(shuffle_from_the_exited, 1, 32),
    BUG(shuffle_beyond_the_block, 1, 16),
    BUG(mask_without_itself, 1, 32),
    BUG(mask_of_all_in_a_branch, 1, 32),
    BUG(vote_in_a_loop, 1, 32),
    BUG(reduction_of_others, 1, 32),
    BUG(syncwarp_in_a_branch, 1, 32),
    BUG(ldmatrix_by_some_lanes, 1, 32),
    BUG(mma_after_some_left, 1, 32),
    BUG(barrier_in_a_branch, 1, 64),
    BUG(barrier_in_a_loop, 1, 64),
    BUG(barrier_for_too_many, 1, 128),
    BUG(barrier_for_different_counts, 1, 128),
    BUG(arrives_twice, 1, 64),
    BUG(barrier_of_two_pairs, 1, 128),
};

int main(int argc, char **argv)
{
    return bugs_main(bugs, argc, argv);
}
