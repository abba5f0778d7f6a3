// What nobody has written, and what it decides: shared, local and global memory. The twins move such values about, and compute
// with them what decides nothing.
#include "bugs.cuh"

#define T threadIdx.x

__device__ u32 *uncleared; // WORDS words from cudaMalloc, as they come

// ---- Shared memory -----------------------------------------------------------------------------------------------------

// A permutation of which only the first half is filled in.
// bug index_unwritten: this address depends on a value that nobody has written
template <bool BROKEN>
__global__ void index_unwritten(u32 *out)
{
    __shared__ u32 index[256];
    if (T < (BROKEN ? 128 : 256)) index[T] = 255 - T;
    __syncthreads();
    u32 at = index[T]; // index_unwritten
    out[at] = T;       // index_unwritten
}

// The largest of a row whose end nobody has written: a maximum drops NaN, and by luck it is right.
__device__ static float largest_of(float own)
{
    for (int mask = 16; mask; mask /= 2) own = fmaxf(own, __shfl_xor_sync(0xffffffff, own, mask));
    return own;
}

// bug maximum_over_the_end: which way the thread goes depends on a value that nobody has written
template <bool BROKEN>
__global__ void maximum_over_the_end(u32 *out)
{
    __shared__ float row[32];
    if (T < 20) row[T] = T;
    __syncwarp();
    float own = 0;
    if (BROKEN || T < 20) own = ((volatile float *)row)[T];
    if (largest_of(own) > 18) // maximum_over_the_end
        asm volatile("st.global.u32 [%0], 1;" ::"l"(out + T) : "memory");
}

// The same through shared memory: a tree, and the largest of what the warps found.
// bug maximum_of_a_tree: which way the thread goes depends on a value that nobody has written
template <bool BROKEN>
__global__ void maximum_of_a_tree(u32 *out)
{
    __shared__ float row[64];
    if (T < (BROKEN ? 50 : 64)) row[T] = T;
    __syncthreads();
    for (u32 d = 32; d; d /= 2) {
        if (T < d) row[T] = fmaxf(row[T], row[T + d]);
        __syncthreads();
    }
    if (row[0] > 18) // maximum_of_a_tree
        asm volatile("st.global.u32 [%0], 1;" ::"l"(out + T) : "memory");
}

// bug maximum_of_the_warps: which way the thread goes depends on a value that nobody has written
template <bool BROKEN>
__global__ void maximum_of_the_warps(u32 *out)
{
    __shared__ float row[1024], largest[32];
    if (T < (BROKEN ? 1000 : 1024)) row[T] = T;
    __syncthreads();
    const float own = largest_of(((volatile float *)row)[T]);
    if (T % 32 == 0) largest[T / 32] = own;
    __syncthreads();
    const float all = largest_of(((volatile float *)largest)[T % 32]);
    if (all > 18) // maximum_of_the_warps
        asm volatile("st.global.u32 [%0], 1;" ::"l"(out + T) : "memory");
}

// What comes of it is no number, wherever it goes.
// bug maximum_is_no_number: trap
template <bool BROKEN>
__global__ void maximum_is_no_number(u32 *out)
{
    __shared__ float row[32];
    if (T < 20) row[T] = T;
    __syncwarp();
    float own = 0;
    if (BROKEN || T < 20) own = ((volatile float *)row)[T];
    ((volatile float *)out)[T] = largest_of(own);
    if (((volatile float *)out)[T] != 19) __trap(); // maximum_is_no_number
}

// A row's end that nobody has written, masked by a minimum: with -infinity that is the result, whatever was there.
// bug masked_by_a_minimum: which way the thread goes depends on a value that nobody has written
template <bool BROKEN>
__global__ void masked_by_a_minimum(u32 *out)
{
    __shared__ float row[32];
    __shared__ u32 counts[32];
    if (T < 20) row[T] = T, counts[T] = T;
    __syncwarp();
    const float end = BROKEN ? 1e9f : -INFINITY;
    const u32 most = T < 20 ? 100 : BROKEN;
    const float own = fminf(((volatile float *)row)[T], T < 20 ? INFINITY : end);
    if (own > 18) // masked_by_a_minimum
        asm volatile("st.global.u32 [%0], 1;" ::"l"(out + T) : "memory");
    if (min(((volatile u32 *)counts)[T], most) > 18)
        asm volatile("st.global.u32 [%0], 2;" ::"l"(out + 32 + T) : "memory");
}

// The flag that a search raises, and nobody lowered before.
// bug flag_unwritten: which way the thread goes depends on a value that nobody has written
template <bool BROKEN>
__global__ void flag_unwritten(u32 *out)
{
    __shared__ volatile u32 found;
    if (!BROKEN && T == 0) found = 0;
    __syncthreads();
    if (out[T] == 7) found = 1;
    __syncthreads();
    u32 f = found;
    if (f) asm volatile("st.global.u32 [%0], %1;" ::"l"(out + T), "r"(f) : "memory"); // flag_unwritten
}

// Counts of two bytes, of which the even ones are cleared; the twin reads both, too, but goes by the one that is written.
// bug half_a_word: which way the thread goes depends on a value that nobody has written
template <bool BROKEN>
__global__ void half_a_word(u32 *out)
{
    __shared__ __align__(4) u16 counts[64];
    counts[2 * T] = 0;
    __syncwarp();
    u32 both = *(volatile u32 *)&counts[2 * T];
    for (u32 n = BROKEN ? both >> 16 : both & 0xffff; n; n &= n - 1) // half_a_word
        asm volatile("st.global.u32 [%0], %1;" ::"l"(out + T), "r"(n) : "memory");
}

// The last words of a row, which no 16-byte copy is issued for.
// bug tail_not_copied: this address depends on a value that nobody has written
template <bool BROKEN>
__global__ void tail_not_copied(u32 *out)
{
    __shared__ __align__(16) u32 row[32];
    const u32 words = BROKEN ? 28 : 32;
    if (4 * T < words) cp_async_16(row + 4 * T, out + 4 * T);
    cp_async_commit();
    cp_async_wait<0>();
    __syncthreads();
    const u32 from = row[T]; // tail_not_copied
    out[64 + T] = out[from]; // tail_not_copied
}

// A tile with padding: copied whole, which is right, and summed whole, which is not.
// bug padding_summed: this address depends on a value that nobody has written
template <bool BROKEN>
__global__ void padding_summed(u32 *out)
{
    __shared__ __align__(16) u32 tile[8][36];
    for (u32 i = T; i < 8 * 32; i += 32) tile[i / 32][i % 32] = out[i] + 1;
    __syncwarp();
    for (u32 i = T; i < 8 * 9; i += 32) ((uint4 *)(out + 1024))[i] = ((const uint4 *)tile)[i];
    u32 sum = 0;
    if (T < 8)
        for (u32 k = 0; k < (BROKEN ? 33 : 32); k++) sum += ((volatile u32 *)tile[T])[k]; // padding_summed
    out[sum % 1024] = sum;                                                                // padding_summed
}

// A histogram that is not cleared.
// bug histogram_not_cleared: an atomic operation on shared offset
template <bool BROKEN>
__global__ void histogram_not_cleared(u32 *out)
{
    __shared__ u32 count[32];
    if (!BROKEN && T < 32) count[T] = 0;
    __syncthreads();
    atomicAdd(&count[out[T] % 32], 1); // histogram_not_cleared
    __syncthreads();
    if (T < 32) out[1024 + T] = count[T];
}

// ---- Local memory ------------------------------------------------------------------------------------------------------

// bug histogram_unwritten: this address depends on a value that nobody has written
template <bool BROKEN>
__global__ void histogram_unwritten(u32 *out)
{
    u32 last[8], *p = last;
    asm volatile("" : "+l"(p)::"memory");
    for (u32 k = 0; k < (BROKEN ? 7 : 8); k++) p[k] = k;
    const u32 at = p[(T + out[0]) % 8]; // histogram_unwritten
    out[at] = T;                        // histogram_unwritten
}

// ---- Global memory -----------------------------------------------------------------------------------------------------

// bug counter_not_cleared: an atomic operation on
template <bool BROKEN>
__global__ void counter_not_cleared(u32 *out)
{
    u32 *counter = BROKEN ? uncleared : out;
    atomicAdd(counter, 1); // counter_not_cleared
}

// A lock that is taken with atomicCAS.
// bug lock_not_cleared: an atomic operation on
template <bool BROKEN>
__global__ void lock_not_cleared(u32 *out)
{
    u32 *lock = BROKEN ? uncleared : out;
    if (T == 0 && atomicCAS(lock, 0, 1) == 0) atomicExch(lock, 0); // lock_not_cleared
}

// A table whose last entries its kernel does not write.
// bug table_unwritten: this address depends on a value that nobody has written
template <bool BROKEN>
__global__ void table_unwritten(u32 *out)
{
    u32 *table = uncleared;
    if (!BROKEN || T < 200) table[T] = 4 * T;
    const u32 row = ((volatile u32 *)table)[T]; // table_unwritten
    out[row + 3] = T;                           // table_unwritten
}

// The end of a table that its kernel does not write comes to shared memory by cp.async.
// bug copied_unwritten: which way the thread goes depends on a value that nobody has written
template <bool BROKEN>
__global__ void copied_unwritten(u32 *out)
{
    __shared__ __align__(16) u32 tile[256];
    u32 *table = uncleared + 1024;
    for (u32 i = T; i < (BROKEN ? 200 : 256); i += 64) table[i] = i;
    __syncthreads();
    cp_async_16(tile + 4 * T, table + 4 * T);
    cp_async_commit();
    cp_async_wait<0>();
    __syncthreads();
    const u32 found = ((volatile u32 *)tile)[255 - T];
    if (found > 250) atomicAdd(out, found); // copied_unwritten
}

// Accumulators that are never set to 0: registers, which hold what was there before.
#define MMA(D)                                                                                       \
    asm volatile(                                                                                    \
        "mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, " \
        "%1, %2, %3};"                                                                               \
        : "+f"(D[0]), "+f"(D[1]), "+f"(D[2]), "+f"(D[3])                                             \
        : "r"(T), "r"(T), "r"(T))
#pragma nv_diag_suppress used_before_set
// bug accumulators_not_cleared: this is added to accumulators that nothing has written: set them to 0 first
template <bool BROKEN>
__global__ void accumulators_not_cleared(u32 *out)
{
    float d[4];
    if (!BROKEN) d[0] = d[1] = d[2] = d[3] = 0;
#pragma unroll 1
    for (u32 k = 0; k < 3 + out[0]; k++) MMA(d); // accumulators_not_cleared
    out[T] = (u32)(d[0] + d[1] + d[2] + d[3]);
}

// Input and output are other registers.
#define MMA_INTO(D, C)                                                                                            \
    asm volatile(                                                                                                 \
        "mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%7, %8, %9, %10};" \
        : "=f"(D[0]), "=f"(D[1]), "=f"(D[2]), "=f"(D[3])                                                          \
        : "r"(T), "r"(T), "r"(T), "f"(C[0]), "f"(C[1]), "f"(C[2]), "f"(C[3]))
// bug accumulators_not_passed: this is added to accumulators that nothing has written: set them to 0 first
template <bool BROKEN>
__global__ void accumulators_not_passed(u32 *out)
{
    float c[4], d[4];
    if (!BROKEN) c[0] = c[1] = c[2] = c[3] = 0;
    MMA_INTO(d, c); // accumulators_not_passed
    out[T] = (u32)(d[0] + d[1] + d[2] + d[3]);
}

static const bug bugs[] = {
    BUG(index_unwritten, 1, 256),
    BUG(flag_unwritten, 1, 256),
    BUG(half_a_word, 1, 32),
    BUG(tail_not_copied, 1, 32),
    BUG(padding_summed, 1, 32),
    BUG(histogram_unwritten, 1, 32),
    BUG(histogram_not_cleared, 1, 128),
    BUG(counter_not_cleared, 4, 128),
    BUG(lock_not_cleared, 4, 32),
    BUG(table_unwritten, 1, 256),
    BUG(maximum_over_the_end, 1, 32),
    BUG(maximum_is_no_number, 1, 32),
    BUG(masked_by_a_minimum, 1, 32),
    BUG(maximum_of_a_tree, 1, 64),
    BUG(maximum_of_the_warps, 1, 1024),
    BUG(copied_unwritten, 1, 64),
    BUG(accumulators_not_cleared, 1, 32),
    BUG(accumulators_not_passed, 1, 32),
};

static void prepare(u32 *)
{
    u32 *memory;
    if (cudaMalloc(&memory, WORDS * sizeof *memory) == cudaSuccess)
        cudaMemcpyToSymbol(uncleared, &memory, sizeof memory);
}

int main(int argc, char **argv)
{
    return bugs_main(bugs, argc, argv, prepare);
}
