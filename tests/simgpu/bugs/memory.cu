// Accesses beyond what there is: global, shared, local and constant memory; alignment; memory that is no more.
#include "bugs.cuh"

#define T threadIdx.x

__constant__ u32 table[64];

// ---- Global memory -----------------------------------------------------------------------------------------------------

// bug one_past_the_end: out of bounds: write of 4 bytes
template <bool BROKEN>
__global__ void one_past_the_end(u32 *out)
{
    const u32 i = blockIdx.x * blockDim.x + T;
    if (BROKEN ? i <= WORDS : i < WORDS) out[i] = i; // one_past_the_end
}

// The last tile of a ragged matrix, its columns guarded and its rows not.
// bug rows_not_guarded: out of bounds: read of 4 bytes
template <bool BROKEN>
__global__ void rows_not_guarded(u32 *out)
{
    const u32 rows = 250, columns = WORDS / rows, row = blockIdx.x * 16 + T / 16;
    for (u32 column = T % 16; column < columns; column += 16)
        if (BROKEN || row < rows) out[row * columns + column] += 1; // rows_not_guarded
}

// The mask of an attention: 128 keys a tile, and the last one is not full.
// bug mask_of_the_last_tile: past the end of allocation 1
template <bool BROKEN>
__global__ void mask_of_the_last_tile(u32 *out)
{
    const u32 keys = 1000, queries = WORDS / keys, query = queries - 1;
    u32 visible = 0;
    const u32 *mask = out + WORDS - keys * queries;
    for (u32 key = T; key - T < keys; key += 128)
        if (BROKEN || key < keys) visible += mask[query * keys + key]; // mask_of_the_last_tile
    out[T] = visible;
}

// The row before the first: a halo.
// bug halo_before_the_start: bytes before allocation 1
template <bool BROKEN>
__global__ void halo_before_the_start(u32 *out)
{
    const int row = T / 32 - 1, column = T % 32;
    u32 above = 0;
    if (BROKEN || row >= 0) above = out[row * 32 + column]; // halo_before_the_start
    out[4096 + T] = above;
}

// 32 bits are too few for a row times its length.
// bug index_overflows: which is no device address
template <bool BROKEN>
__global__ void index_overflows(u32 *out)
{
    const int length = 1 << 20, row = 2049 + (int)out[0];
    const int at = BROKEN ? row * length : row * 16; // 0x80100000 is negative
    out[T] = out[at];                                // index_overflows
}

// bug vector_misaligned: misaligned global address
template <bool BROKEN>
__global__ void vector_misaligned(u32 *out)
{
    const uint4 v = *(const uint4 *)(out + (BROKEN ? 250 : 252) * (T + 1)); // vector_misaligned
    out[T] = v.x + v.w;
}

// bug null_pointer: a null pointer
template <bool BROKEN>
__global__ void null_pointer(u32 *out)
{
    u32 *list = *(u32 **)(out + 16); // a list that nobody made
    if (BROKEN || list) list[T] = 1; // null_pointer
}

// bug used_after_free: use after free
template <bool BROKEN>
__global__ void used_after_free(u32 *out)
{
    u32 *p = (u32 *)malloc(64);
    if (!p) return;
    p[0] = T;
    if (BROKEN) free(p);
    out[T] = *(volatile u32 *)p; // used_after_free
    if (!BROKEN) free(p);
}

// bug freed_twice: not an address that malloc returned
template <bool BROKEN>
__global__ void freed_twice(u32 *out)
{
    u32 *p = (u32 *)malloc(64);
    free(p);
    if (BROKEN) free(p); // freed_twice
}

// bug constant_written: write of 4 bytes to the constant variable table
template <bool BROKEN>
__global__ void constant_written(u32 *out)
{
    u32 *p = BROKEN ? (u32 *)table : out;
    asm volatile("" : "+l"(p));
    p[T] = T; // constant_written
}

// ---- Shared memory -------------------------------------------------------------------------------------------------------

// bug shared_one_past: out of bounds: write of 4 bytes at shared offset 1024
template <bool BROKEN>
__global__ void shared_one_past(u32 *out)
{
    __shared__ u32 tile[256];
    u32 *p = tile;
    asm volatile("" : "+l"(p)); // the compiler must not see it
    p[T + BROKEN] = T;          // shared_one_past
    __syncthreads();
    out[T] = p[255 - T + BROKEN];
}

// bug shared_before_the_start: shared offset -4
template <bool BROKEN>
__global__ void shared_before_the_start(u32 *out)
{
    __shared__ u32 scan[256];
    scan[T] = T;
    __syncthreads();
    u32 *p = scan;
    asm volatile("" : "+l"(p));
    const u32 left = BROKEN || T ? p[(int)T - 1] : 0; // shared_before_the_start
    out[T] = left;
}

// The launch gives fewer bytes than the kernel carves up.
// bug dynamic_too_small: 16384 dynamic)
template <bool BROKEN>
__global__ void dynamic_too_small(u32 *out)
{
    extern __shared__ u32 memory[];
    u32 *a = memory, *b = memory + (BROKEN ? 4096 : 2048);
    a[T] = T;
    b[T] = T; // dynamic_too_small
    __syncthreads();
    out[T] = a[255 - T] + b[255 - T];
}

// Arrays beside each other: what overruns the one is in the other, whose bytes are written and read as they should be.
// bug into_the_next_array: out of bounds: write of 4 bytes at byte 1024 of the shared variable keys, which has 1024 bytes
template <bool BROKEN>
__global__ void into_the_next_array(u32 *out)
{
    __shared__ u32 keys[256];
    __shared__ u32 counts[256];
    for (u32 k = T; BROKEN ? k <= 256 : k < 256; k += 32) keys[k] = k * out[k]; // into_the_next_array
    __syncthreads();
    for (u32 k = T; k < 256; k += 32) counts[k] = keys[255 - k];
    __syncthreads();
    out[T] = counts[T ^ 1] + keys[T];
}

// A ring of stages that turns one too late.
// bug one_stage_too_many: of the shared variable A, which has 1024 bytes
template <bool BROKEN>
__global__ void one_stage_too_many(u32 *out)
{
    __shared__ u32 A[2][128], B[2][128];
    u32 sum = 0, stage = 0;
    for (u32 k = 0; k < 8; k++) {
        A[stage][T] = out[128 * k + T]; // one_stage_too_many
        B[stage][T] = out[128 * k + 4096 + T];
        __syncthreads();
        sum += A[stage][127 - T] * B[stage][127 - T];
        __syncthreads();
        if (++stage == (BROKEN ? 3 : 2)) stage = 0;
    }
    out[T] = sum;
}

// The halo to the left of the first.
// bug before_the_second_array: out of bounds: read of 4 bytes at byte -4 of the shared variable scan, which has 1024 bytes
template <bool BROKEN>
__global__ void before_the_second_array(u32 *out)
{
    __shared__ u32 other[256], scan[256];
    scan[T] = T;
    other[T] = out[T];
    __syncthreads();
    u32 left = other[255 - T];
    if (BROKEN || T) left += scan[(int)T - 1]; // before_the_second_array
    out[T] = left;
}

// bug static_into_dynamic: out of bounds: write of 16 bytes at byte 512 of the shared variable rows
template <bool BROKEN>
__global__ void static_into_dynamic(u32 *out)
{
    extern __shared__ u32 memory[];
    __shared__ uint4 rows[32];
    memory[T] = T;
    if (T < 8)
        for (u32 k = T; k < (BROKEN ? 40 : 32); k += 8)
            rows[k] = make_uint4(k, k, k, out[k]); // static_into_dynamic
    __syncthreads();
    out[T] = memory[T ^ 1] + rows[T % 32].x;
}

// bug histogram_of_a_bin_too_many: out of bounds: write of 4 bytes at byte 256 of the shared variable bins, which has 256 bytes
template <bool BROKEN>
__global__ void histogram_of_a_bin_too_many(u32 *out)
{
    __shared__ u32 bins[64], totals[64];
    if (T < 64) bins[T] = totals[T] = 0;
    __syncthreads();
    atomicAdd(&bins[(T + out[T]) % (BROKEN ? 65 : 64)], 1); // histogram_of_a_bin_too_many
    __syncthreads();
    if (T < 64) totals[63 - T] += bins[T];
    __syncthreads();
    if (T < 64) out[T] = totals[T];
}

// Rows of 33 words have no bank conflicts, and no alignment for a vector.
// bug padded_row_misaligned: misaligned shared address
template <bool BROKEN>
__global__ void padded_row_misaligned(u32 *out)
{
    __shared__ __align__(16) u32 tile[32][BROKEN ? 33 : 36];
    for (u32 k = 0; k < 32; k++) tile[k][T] = k;
    __syncwarp();
    const uint4 v = *(const uint4 *)&tile[T][0]; // padded_row_misaligned
    out[T] = v.x + v.w;
}

// A shared address of 32 bits, taken for a pointer.
// bug shared_address_as_pointer: a null pointer
template <bool BROKEN>
__global__ void shared_address_as_pointer(u32 *out)
{
    __shared__ u32 tile[32];
    tile[T] = T;
    u32 *p = BROKEN ? (u32 *)(u64)smem_addr(tile) : tile;
    out[T] = *(volatile u32 *)(p + T); // shared_address_as_pointer
}

// ---- Local memory ----------------------------------------------------------------------------------------------------------

// bug local_one_past: at local offset
template <bool BROKEN>
__global__ void local_one_past(u32 *out)
{
    u32 history[16];
    for (u32 k = 0; k < 16; k++) history[k] = out[k];
    u32 *p = history;
    asm volatile("" : "+l"(p)::"memory");
    for (u32 k = 0; k < (BROKEN ? 17u : 16u) + out[0]; k++) p[k] += T; // local_one_past
    out[T] = p[T % 16];
}

// bug generic_beyond_local: of local memory
template <bool BROKEN>
__global__ void generic_beyond_local(u32 *out)
{
    u32 v[4] = {1, 2, 3, 4}, *p = v;
    asm volatile("" : "+l"(p)::"memory");
    out[T] = p[BROKEN ? 4096 + out[T] : out[T]]; // generic_beyond_local
}

static const bug bugs[] = {
    BUG(one_past_the_end, 257, 256),
    BUG(rows_not_guarded, 16, 256),
    BUG(mask_of_the_last_tile, 1, 128),
    BUG(halo_before_the_start, 1, 64),
    BUG(index_overflows, 1, 32),
    BUG(vector_misaligned, 1, 32),
    BUG(null_pointer, 1, 32),
    BUG(used_after_free, 1, 32),
    BUG(freed_twice, 1, 32),
    BUG(constant_written, 1, 32),
    BUG(shared_one_past, 1, 256),
    BUG(shared_before_the_start, 1, 256),
    BUG(into_the_next_array, 1, 32),
    BUG(one_stage_too_many, 1, 128),
    BUG(before_the_second_array, 1, 256),
    BUG_DYNAMIC(static_into_dynamic, 1, 256),
    BUG(histogram_of_a_bin_too_many, 1, 65),
    BUG_DYNAMIC(dynamic_too_small, 1, 256),
    BUG(padded_row_misaligned, 1, 32),
    BUG(shared_address_as_pointer, 1, 32),
    BUG(local_one_past, 1, 32),
    BUG(generic_beyond_local, 1, 32),
};

int main(int argc, char **argv)
{
    return bugs_main(bugs, argc, argv);
}
