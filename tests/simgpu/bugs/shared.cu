// Ordinary accesses to shared memory that nothing orders. `BROKEN ?` is what is left out or done too early.
#include "bugs.cuh"

#define T threadIdx.x

// ---- A block's barrier -----------------------------------------------------------------------------------------------

// bug tile_not_complete: such as __syncthreads()
template <bool BROKEN>
__global__ void tile_not_complete(u32 *out)
{
    __shared__ u32 tile[256];
    tile[T] = out[T] + T; // tile_not_complete
    if (!BROKEN) __syncthreads();
    out[T] = tile[255 - T]; // tile_not_complete
}

// bug tile_overwritten: such as __syncthreads()
template <bool BROKEN>
__global__ void tile_overwritten(u32 *out)
{
    __shared__ u32 tile[256];
    u32 sum = 0;
    for (u32 k = 0; k < 4; k++) {
        tile[T] = out[256 * k + T] + T; // tile_overwritten
        __syncthreads();
        sum += tile[255 - T]; // tile_overwritten
        if (!BROKEN) __syncthreads();
    }
    out[2048 + T] = sum;
}

// Two stages, but the barrier of the other one is left out: the warp that is ahead by two steps writes what is read.
// bug two_stages_too_soon: such as __syncthreads()
template <bool BROKEN>
__global__ void two_stages_too_soon(u32 *out)
{
    __shared__ u32 tile[2][256];
    u32 sum = 0;
    tile[0][T] = T;
    __syncthreads();
    for (u32 k = 0; k < 6; k++) {
        if (!BROKEN || k % 2 == 1) __syncthreads();
        tile[(k + 1) % 2][T] = k * T; // two_stages_too_soon
        __syncthreads();
        sum += tile[k % 2][(T + 37) % 256] + tile[(k + 1) % 2][(T + 37) % 256]; // two_stages_too_soon
    }
    out[T] = sum;
}

// The sum of a block, where thread 0 reads what the warps left.
// bug sums_of_warps: such as __syncthreads()
template <bool BROKEN>
__global__ void sums_of_warps(u32 *out)
{
    __shared__ u32 sum[8];
    u32 x = out[T] + T;
    for (u32 d = 16; d; d /= 2) x += __shfl_down_sync(~0u, x, d);
    if (T % 32 == 0) sum[T / 32] = x; // sums_of_warps
    if (!BROKEN) __syncthreads();
    if (T == 0)
        for (u32 k = 0; k < 8; k++) out[k] = sum[k]; // sums_of_warps
}

// A second sum in the same memory, while the first may still be read.
// bug broadcast_reused: such as __syncthreads()
template <bool BROKEN>
__global__ void broadcast_reused(u32 *out)
{
    __shared__ u32 total;
    for (u32 k = 0; k < 3; k++) {
        if (T == 0) total = out[k]; // broadcast_reused
        __syncthreads();
        out[64 + 256 * k + T] = total; // broadcast_reused
        if (!BROKEN) __syncthreads();
    }
}

// A reduction by halves whose last steps, of one warp, go without a barrier, and without __syncwarp.
// bug last_warp_unrolled: __syncwarp() between them is missing
template <bool BROKEN>
__global__ void last_warp_unrolled(u32 *out)
{
    __shared__ u32 sum[256];
    sum[T] = T;
    __syncthreads();
    for (u32 d = 128; d >= 32; d /= 2) {
        if (T < d) sum[T] += sum[T + d];
        __syncthreads();
    }
    if (T < 32)
        for (u32 d = 16; d; d /= 2) {
            u32 other = T < d ? sum[T + d] : 0; // last_warp_unrolled
            if (!BROKEN) __syncwarp();
            sum[T] += other; // last_warp_unrolled
            if (!BROKEN) __syncwarp();
        }
    if (T == 0) out[0] = sum[0];
}

// The same with volatile instead of __syncwarp, as before Volta.
// bug last_warp_volatile: volatile does not order lanes
template <bool BROKEN>
__global__ void last_warp_volatile(u32 *out)
{
    __shared__ u32 sum[64];
    volatile u32 *s = sum;
    s[T] = T;
    __syncthreads();
    if (T < 32)
        for (u32 d = 32; d; d /= 2) {
            if (T < d) s[T] += s[T + d]; // last_warp_volatile
            if (!BROKEN) __syncwarp();
        }
    if (T == 0) out[0] = s[0];
}

// bug halves_volatile: volatile does not order lanes
template <bool BROKEN>
__global__ void halves_volatile(u32 *out)
{
    __shared__ float greatest[32];
    volatile float *s = greatest;
    s[T] = (float)(T * 7 % 32); // halves_volatile
    if (!BROKEN) __syncwarp();
    if (T < 16) s[T] = fmaxf(s[T], s[T + 16]); // halves_volatile
    if (!BROKEN) __syncwarp();
    if (T == 0) out[0] = (u32)fmaxf(s[0], s[1]);
}

// A histogram that is printed before all have counted.
// bug histogram_read_early: this read is not ordered after the write
template <bool BROKEN>
__global__ void histogram_read_early(u32 *out)
{
    __shared__ u32 bins[64];
    if (T < 64) bins[T] = 0;
    __syncthreads();
    atomicAdd(&bins[(T * 7) % 64], 1u); // histogram_read_early
    if (!BROKEN) __syncthreads();
    if (T < 64) out[T] = bins[T]; // histogram_read_early
}

// bug histogram_cleared_late: is not ordered after the write
template <bool BROKEN>
__global__ void histogram_cleared_late(u32 *out)
{
    __shared__ u32 bins[64];
    if (T < 64) bins[T] = 0; // histogram_cleared_late
    if (!BROKEN) __syncthreads();
    atomicAdd(&bins[(T * 7) % 64], 1u); // histogram_cleared_late
    __syncthreads();
    if (T < 64) out[T] = bins[T];
}

// Bytes: four warps share each word.
// bug flags_in_bytes: such as __syncthreads() | or __syncthreads() if other warps touch it too
template <bool BROKEN>
__global__ void flags_in_bytes(u32 *out)
{
    __shared__ u8 done[256];
    done[(T % 8) * 32 + T / 8] = (u8)T; // flags_in_bytes
    if (!BROKEN) __syncthreads();
    out[T] = done[255 - T]; // flags_in_bytes
}

// 16-bit elements transposed through shared memory.
// bug transposed_halves: such as __syncthreads() | or __syncthreads() if other warps touch it too
template <bool BROKEN>
__global__ void transposed_halves(u32 *out)
{
    __shared__ u16 tile[32][34];
    for (u32 k = T / 32; k < 32; k += 8) tile[k][T % 32] = (u16)(k * 32 + T % 32); // transposed_halves
    if (!BROKEN) __syncthreads();
    for (u32 k = T / 32; k < 32; k += 8) out[k * 32 + T % 32] = tile[T % 32][k]; // transposed_halves
}

// Two lanes share each word, of which each has a half: what they hand on is another's all the same.
// bug halves_between_lanes: __syncwarp() between them is missing
template <bool BROKEN>
__global__ void halves_between_lanes(u32 *out)
{
    __shared__ u16 row[32];
    row[T] = (u16)(3 * T); // halves_between_lanes
    if (!BROKEN) __syncwarp();
    out[T] = row[31 - T]; // halves_between_lanes
}

// bug halves_used_again: __syncwarp() between them is missing
template <bool BROKEN>
__global__ void halves_used_again(u32 *out)
{
    __shared__ u16 row[32];
    u32 sum = 0;
    for (u32 k = 0; k < 4; k++) {
        row[T] = (u16)(k + out[T]); // halves_used_again
        __syncwarp();
        sum += row[31 - T]; // halves_used_again
        if (!BROKEN) __syncwarp();
    }
    out[T] = sum;
}

// Counters of a byte, four of four lanes in a word, as of a histogram: each lane writes and reads its own without any barrier.
// bug counters_in_bytes: such as __syncthreads()
template <bool BROKEN>
__global__ void counters_in_bytes(u32 *out)
{
    __shared__ u8 count[64];
    count[T] = 0;
    for (u32 k = 0; k < 3 + out[0]; k++)
        if (k == 0 || T % 4 == 0) count[T] += 1;
    asm volatile("" ::: "memory");
    const u32 own = count[T];
    if (!BROKEN) __syncthreads();
    out[T] = own + count[63 - T]; // counters_in_bytes
}

// 16-byte accesses: the neighbour's row.
// bug vectors: such as __syncthreads()
template <bool BROKEN>
__global__ void vectors(u32 *out)
{
    __shared__ uint4 tile[256];
    tile[T] = ((uint4 *)out)[T]; // vectors
    if (!BROKEN) __syncthreads();
    ((uint4 *)out)[T] = tile[T ^ 32]; // vectors
}

// Two threads write different values to one place, in warps that nothing orders.
// bug written_twice: such as __syncthreads()
template <bool BROKEN>
__global__ void written_twice(u32 *out)
{
    __shared__ u32 last;
    if (T % 32 == 0 && (BROKEN || T == 64)) last = T; // written_twice
    __syncthreads();
    if (T == 0) out[0] = last;
}

// bug written_twice_by_a_warp: lanes of the warp write different values
template <bool BROKEN>
__global__ void written_twice_by_a_warp(u32 *out)
{
    __shared__ u32 half[32];
    half[BROKEN ? T / 2 : T] = T; // written_twice_by_a_warp
    __syncthreads();
    out[T] = half[T / 2];
}

// Dynamic shared memory, carved wrongly: the second array begins inside the first one.
// bug arrays_overlap: such as __syncthreads()
template <bool BROKEN>
__global__ void arrays_overlap(u32 *out)
{
    extern __shared__ u32 memory[];
    u32 *a = memory, *b = memory + (BROKEN ? 128 : 256);
    a[T] = T;              // arrays_overlap
    b[255 - T] = 1000 + T; // arrays_overlap
    __syncthreads();
    out[T] = a[T] + b[T];
}

// ---- Named barriers ----------------------------------------------------------------------------------------------------

// bug arrives_before_it_writes: such as __syncthreads()
template <bool BROKEN>
__global__ void arrives_before_it_writes(u32 *out)
{
    __shared__ u32 box[32];
    if (T < 32) {
        if (BROKEN) bar_arrive<1, 64>();
        box[T] = T; // arrives_before_it_writes
        if (!BROKEN) bar_arrive<1, 64>();
    } else {
        bar_sync<1, 64>();
        out[T] = box[63 - T]; // arrives_before_it_writes
    }
}

// The consumer says that the buffer is free before it has read it.
// bug freed_before_it_reads: such as __syncthreads()
template <bool BROKEN>
__global__ void freed_before_it_reads(u32 *out)
{
    __shared__ u32 box[32];
    for (u32 k = 0; k < 3; k++) {
        if (T < 32) {
            if (k) bar_sync<2, 64>();
            box[T] = k; // freed_before_it_reads
            bar_arrive<1, 64>();
        } else {
            bar_sync<1, 64>();
            if (BROKEN && k < 2) bar_arrive<2, 64>();
            out[k * 32 + T] = box[63 - T]; // freed_before_it_reads
            if (!BROKEN && k < 2) bar_arrive<2, 64>();
        }
    }
}

// The barrier of the other pair of warps.
// bug wrong_barrier: such as __syncthreads()
template <bool BROKEN>
__global__ void wrong_barrier(u32 *out)
{
    __shared__ u32 box[128];
    const u32 warp = T / 32;
    box[T] = T; // wrong_barrier
    if (BROKEN ? warp / 2 == 0 : warp % 2 == 0)
        bar_sync<1, 64>();
    else
        bar_sync<2, 64>();
    out[T] = box[T ^ 64]; // wrong_barrier
}

// ---- Lanes of a warp -----------------------------------------------------------------------------------------------------

// bug lanes_exchange: __syncwarp() between them is missing
template <bool BROKEN>
__global__ void lanes_exchange(u32 *out)
{
    __shared__ u32 box[256];
    box[T] = out[T]; // lanes_exchange
    if (!BROKEN) __syncwarp();
    out[T] = box[T ^ 1]; // lanes_exchange
}

// The halves of a warp meet each on their own; lanes of the other half, and those that were not there, they have not met.
// bug halves_meet_apart: with a mask that names both
template <bool BROKEN>
__global__ void halves_meet_apart(u32 *out)
{
    __shared__ u32 box[32];
    box[T] = out[T]; // halves_meet_apart
    __syncwarp(T < 16 ? 0xffffu : 0xffff0000u);
    out[T] = box[BROKEN ? T ^ 16 : T ^ 8]; // halves_meet_apart
}

// bug half_meets: with a mask that names both
template <bool BROKEN>
__global__ void half_meets(u32 *out)
{
    __shared__ u32 box[32];
    box[T] = out[T]; // half_meets
    if (T < 16) {
        __syncwarp(0xffff);
        out[T] = box[T ^ 1];
        __syncwarp(0xffff);
        if (T == 0) box[BROKEN ? 20 : 10] = 5; // half_meets
    }
}

// By way of others: quarters, then one lane of each.
// bug quarters_then_leaders: with a mask that names both
template <bool BROKEN>
__global__ void quarters_then_leaders(u32 *out)
{
    __shared__ u32 box[32];
    box[T] = out[T]; // quarters_then_leaders
    __syncwarp(0xffu << T / 8 * 8);
    if (T % 8 == 0) {
        if (!BROKEN) __syncwarp(0x01010101);
        for (u32 k = 0; k < 32; k++) out[T] += box[k]; // quarters_then_leaders
    }
}

// A shuffle does not order memory.
// bug shuffle_is_no_barrier: or shuffle, orders no memory
template <bool BROKEN>
__global__ void shuffle_is_no_barrier(u32 *out)
{
    __shared__ u32 box[32];
    box[T] = out[T]; // shuffle_is_no_barrier
    const u32 other = __shfl_xor_sync(~0u, T, 1);
    if (!BROKEN) __syncwarp();
    out[T] = box[other]; // shuffle_is_no_barrier
}

// The leader publishes for its warp.
// bug leader_publishes: __syncwarp() between them is missing
template <bool BROKEN>
__global__ void leader_publishes(u32 *out)
{
    __shared__ u32 next[8];
    if (T % 32 == 0) next[T / 32] = out[T]; // leader_publishes
    if (!BROKEN) __syncwarp();
    out[256 + T] = next[T / 32]; // leader_publishes
}

// ... and again, while the lanes may still read the last one.
// bug leader_publishes_again: __syncwarp() between them is missing
template <bool BROKEN>
__global__ void leader_publishes_again(u32 *out)
{
    __shared__ u32 next[8];
    for (u32 k = 0; k < 3; k++) {
        if (T % 32 == 0) next[T / 32] = out[T] + k; // leader_publishes_again
        __syncwarp();
        out[256 + T] += next[T / 32]; // leader_publishes_again
        if (!BROKEN) __syncwarp();
    }
}

// A whole warp's store over what the warp has read: by ldmatrix, as CUTLASS's epilogues do, or by ordinary loads of its lanes.
#define STORE_MATRIX(ROW, X) \
    asm volatile("stmatrix.sync.aligned.m8n8.x1.shared.b16 [%0], {%1};" ::"r"(ROW), "r"(X) : "memory")
// bug matrix_in_place: __syncwarp() between them is missing
template <bool BROKEN>
__global__ void matrix_in_place(u32 *out)
{
    __shared__ uint4 rows[8];
    u32 row = (u32)__cvta_generic_to_shared(rows + T % 8), x;
    ((u32 *)rows)[T] = out[T] + T;
    __syncwarp();
    if (BROKEN)
        x = ((u32 *)rows)[31 - T]; // matrix_in_place
    else
        asm volatile("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%0}, [%1];" : "=r"(x) : "r"(row) : "memory");
    STORE_MATRIX(row, x + 1); // matrix_in_place
    __syncwarp();
    out[T] = ((u32 *)rows)[T];
}

// bug shifted_in_place: __syncwarp() between them is missing
template <bool BROKEN>
__global__ void shifted_in_place(u32 *out)
{
    __shared__ u32 row[33];
    row[T] = T;
    __syncwarp();
    const u32 next = row[T + 1 < 32 ? T + 1 : 0]; // shifted_in_place
    if (!BROKEN) __syncwarp();
    row[T] = next; // shifted_in_place
    __syncwarp();
    out[T] = row[31 - T];
}

// Each lane writes a word that another has read, close to the one that it has read itself.
// bug reversed_in_place: __syncwarp() between them is missing
template <bool BROKEN>
__global__ void reversed_in_place(u32 *out)
{
    __shared__ u32 row[32];
    row[T] = T;
    __syncwarp();
    const u32 mirrored = row[31 - T]; // reversed_in_place
    if (!BROKEN) __syncwarp();
    row[T] = mirrored; // reversed_in_place
    __syncwarp();
    out[T] = row[T ^ 1];
}

// A warp turns vectors of three into three rows through its part of shared memory, and uses it again.
// bug staged_again: __syncwarp() between them is missing
template <bool BROKEN>
__global__ void staged_again(u32 *out)
{
    __shared__ u32 part[4][96];
    u32 *mine = part[T / 32], lane = T % 32;
    for (u32 n = 0; n < 2; n++) {
        for (u32 k = 0; k < 3; k++) mine[32 * k + lane] = out[96 * n + 32 * k + lane]; // staged_again
        __syncwarp();
        for (u32 k = 0; k < 3; k++) out[1024 + 3 * T + k] += mine[3 * lane + k]; // staged_again
        if (!BROKEN) __syncwarp();
    }
}

// A lane stores four words, of which it has itself read the first.
// bug vector_over_words: __syncwarp() between them is missing
template <bool BROKEN>
__global__ void vector_over_words(u32 *out)
{
    __shared__ uint4 row[8];
    ((u32 *)row)[T] = T;
    __syncwarp();
    const u32 mine = __shfl_xor_sync(~0u, ((u32 *)row)[T], 1); // vector_over_words
    if (!BROKEN) __syncwarp();
    if (T % 4 == 0) row[T / 4] = make_uint4(mine, mine, mine, mine); // vector_over_words
    __syncwarp();
    out[T] = ((u32 *)row)[T];
}

// Each half of the warp meets, but not the halves each other.
// bug halves_meet: such as __syncthreads()
template <bool BROKEN>
__global__ void halves_meet(u32 *out)
{
    __shared__ u32 box[64];
    box[T] = T; // halves_meet
    if (BROKEN)
        __syncwarp();
    else
        __syncthreads();
    out[T] = box[T ^ 32]; // halves_meet
}

// ---- cp.async --------------------------------------------------------------------------------------------------------------

// bug copy_read_unwaited: before the cp.async at line
template <bool BROKEN>
__global__ void copy_read_unwaited(u32 *out)
{
    __shared__ __align__(16) u32 tile[256];
    cp_async_4(&tile[T], out + T);
    cp_async_commit();
    if (!BROKEN) cp_async_wait<0>();
    __syncthreads();
    out[256 + T] = tile[255 - T]; // copy_read_unwaited
}

// bug copy_of_others: and then a barrier for the others
template <bool BROKEN>
__global__ void copy_of_others(u32 *out)
{
    __shared__ __align__(16) u32 tile[256];
    cp_async_4(&tile[T], out + T);
    cp_async_commit();
    if (BROKEN) __syncthreads(); // too early
    cp_async_wait<0>();
    if (!BROKEN) __syncthreads();
    out[256 + T] = tile[255 - T]; // copy_of_others
}

// bug copy_of_other_lanes: __syncwarp() between them is missing
template <bool BROKEN>
__global__ void copy_of_other_lanes(u32 *out)
{
    __shared__ __align__(16) u32 tile[128];
    if (T < 8) cp_async_16(&tile[4 * T], out + 4 * T);
    cp_async_commit();
    cp_async_wait<0>();
    if (!BROKEN) __syncwarp();
    out[256 + T] = tile[T]; // copy_of_other_lanes
}

// bug wait_one_short: before the cp.async at line
template <bool BROKEN>
__global__ void wait_one_short(u32 *out)
{
    __shared__ __align__(16) u32 tile[2][256];
    for (u32 k = 0; k < 2; k++) {
        cp_async_4(&tile[k][T], out + 256 * k + T);
        cp_async_commit();
    }
    u32 sum = 0;
    for (u32 k = 0; k < 4; k++) {
        cp_async_wait<BROKEN ? 2 : 1>();
        __syncthreads();
        sum += tile[k % 2][255 - T]; // wait_one_short
        __syncthreads();
        cp_async_4(&tile[k % 2][T], out + 256 * k + T);
        cp_async_commit();
    }
    cp_async_wait<0>();
    out[8192 + T] = sum;
}

// The copy for the stage that other warps still read.
// bug copy_too_soon: such as __syncthreads()
template <bool BROKEN>
__global__ void copy_too_soon(u32 *out)
{
    __shared__ __align__(16) u32 tile[2][256];
    u32 sum = 0;
    cp_async_4(&tile[0][T], out + T);
    cp_async_commit();
    for (u32 k = 0; k < 4; k++) {
        cp_async_wait<0>();
        __syncthreads();
        if (!BROKEN) cp_async_4(&tile[(k + 1) % 2][T], out + 256 * k + T);
        sum += tile[k % 2][255 - T];                                // copy_too_soon
        if (BROKEN) cp_async_4(&tile[k % 2][T], out + 256 * k + T); // copy_too_soon
        cp_async_commit();
    }
    cp_async_wait<0>();
    out[8192 + T] = sum;
}

static const bug bugs[] = {
    BUG(tile_not_complete, 1, 256),
    BUG(tile_overwritten, 1, 256),
    BUG(two_stages_too_soon, 1, 256),
    BUG(sums_of_warps, 1, 256),
    BUG(broadcast_reused, 1, 256),
    BUG(last_warp_unrolled, 1, 256),
    BUG(last_warp_volatile, 1, 64),
    BUG(halves_volatile, 1, 32),
    BUG(histogram_read_early, 1, 256),
    BUG(histogram_cleared_late, 1, 256),
    BUG(flags_in_bytes, 1, 256),
    BUG(halves_between_lanes, 1, 32),
    BUG(halves_used_again, 1, 32),
    BUG(counters_in_bytes, 1, 64),
    BUG(transposed_halves, 1, 256),
    BUG(vectors, 1, 256),
    BUG(written_twice, 1, 256),
    BUG(written_twice_by_a_warp, 1, 32),
    BUG_DYNAMIC(arrays_overlap, 1, 256),
    BUG(arrives_before_it_writes, 1, 64),
    BUG(freed_before_it_reads, 1, 64),
    BUG(wrong_barrier, 1, 128),
    BUG(lanes_exchange, 1, 256),
    BUG(halves_meet_apart, 1, 32),
    BUG(half_meets, 1, 32),
    BUG(quarters_then_leaders, 1, 32),
    BUG(shuffle_is_no_barrier, 1, 32),
    BUG(leader_publishes, 1, 256),
    BUG(leader_publishes_again, 1, 256),
    BUG(matrix_in_place, 1, 32),
    BUG(shifted_in_place, 1, 32),
    BUG(reversed_in_place, 1, 32),
    BUG(staged_again, 1, 128),
    BUG(vector_over_words, 1, 32),
    BUG(halves_meet, 1, 64),
    BUG(copy_read_unwaited, 1, 256),
    BUG(copy_of_others, 1, 256),
    BUG(copy_of_other_lanes, 1, 32),
    BUG(wait_one_short, 1, 256),
    BUG(copy_too_soon, 1, 256),
};

int main(int argc, char **argv)
{
    return bugs_main(bugs, argc, argv);
}
