// Chapter 6, step 13: dout is read once.
//
// Question: step 12 reads a row of dout for its token, and again for its position. Both sums need the same row. Who reads it once?
//
// Grows from: step 12 (encoder_buckets).
// Who has a position goes through its rows anyway, as in step 11. If a row's token comes only once, nobody else adds to that row of dwte, and
// it is done on the way. A token that comes again belongs to its first row: who comes by adds the later rows too, in their order. So a kernel
// sorts the rows by token first, with a block for each of step 12's buckets, and tells each row what to do:
//
//      b = 0   | 7 | 4 |     a text of 4 rows     by token   4: row 1      7: rows 0 2 3      row 0: three rows of 7    row 1: one row of 4
//          1   | 7 | 7 |     and 2 tokens                                                     rows 2 and 3: nothing
//
// A block lists its rows as in step 12, and counts those of lower buckets, which are sorted before its own. Of a bucket's tokens each has a
// slot; sums of the slots' sizes tell where a slot begins, and one warp puts the entries there in their order.
//
// Every sum is dwte + the first row + the second …, in the order of the strips, as in step 12: the same bits.
//
// Launched early (chapter 6, step 3). Registers: at most 80. Shared memory: 28,928 bytes.
// Run: make chapter-6 OP=encoder_backward STEP=encoder_sorted
#include "../../common/device/launch.cuh"
#include "../../common/device/pack.cuh"
#include "../../common/device/scratch.h"
#include "../../common/device/warp.cuh"
#include "launchers.h"

#include <cuda_runtime.h>

constexpr int NUM_BUCKETS = 132; // a block for each of an H200's SMs
constexpr int SORT_THREADS = 1024;
constexpr int SORT_WARPS = SORT_THREADS / 32;
constexpr int MAX_STRIPS = 1024;        // that are sorted at a time
constexpr int STRIPS_AHEAD = 8;         // whose tokens a warp asks for at a time
constexpr int MAX_LIST = 2048;          // entries in shared memory; a longer list is in global memory
constexpr int NUM_SLOTS = SORT_THREADS; // of a bucket; with more than 132 * 1024 tokens, some share one
constexpr int NUM_THREADS = 128;        // of the blocks that add up

static_assert(MAX_STRIPS <= 32 * SORT_WARPS, "a lane keeps one strip");

// Rows of dout that a lane has in flight, as many of dwte, and as many second rows; and blocks on an SM, whose registers these are.
template <int N>
constexpr int ROWS_AHEAD = N == 8 ? 1 : 3;
template <int N>
constexpr int BLOCKS_PER_SM = N == 8 ? 8 : 6;

struct Entry {
    int token;
    unsigned row;
};

// For the first row of a token: its place among the sorted entries, how many there are from it to the end of its slot (1 if none of the
// others is of the token), and the token's second row. For a later row: no entries.
struct Group {
    unsigned entries, place, second;
};

// What is known of the rows of the strips that are sorted at a time: 1,048,576 bytes of scratch memory.
struct Sorted {
    Group group[32 * MAX_STRIPS]; // of each row, by its number among the strips'
    Entry entry[32 * MAX_STRIPS]; // by bucket, then by slot, then in the order of the strips
    Entry list[32 * MAX_STRIPS];  // of blocks whose own lists are too long,
    int by_slot[32 * MAX_STRIPS]; // and these
};

struct SharedStorage {
    int found[SORT_WARPS];   // rows of the bucket, by warp, 128 bytes
    int below[SORT_WARPS];   // rows of lower buckets, 128 bytes
    int slot_end[NUM_SLOTS]; // entries of each slot, then where its next entry belongs, 4,096 bytes
    Entry list[MAX_LIST];    // of the bucket, in the order of the strips, 16,384 bytes
    int by_slot[MAX_LIST];   // its entries by slot, those of a slot in their order, 8,192 bytes
};

// Strips [begin, end) of a text: strip s is the 32 positions from s / batch * 32 on of sequence s % batch.
struct Strips {
    const int *inp; // (batch, positions)
    unsigned batch, positions, begin, end;

    // Of a row, among those of the strips.
    __device__ unsigned number(unsigned row) const
    {
        const unsigned position = row % positions;
        return (position / 32 * batch + row / positions - begin) * 32 + position % 32;
    }
};

static __device__ unsigned slot_of(int token)
{
    return token / NUM_BUCKETS % NUM_SLOTS;
}

// The rows of a bucket, a block's: their list, and their numbers in it by slot. They are sorted behind `begin` others.
struct Bucket {
    int begin, count;
    Entry *list;
    int *by_slot;
};

// Lists the bucket's rows in the order of the strips, and counts them by slot. A ballot says which rows of a strip are the bucket's, and a
// lane keeps that of a strip.
static __device__ Bucket list_rows(SharedStorage &smem, const Strips &strips, Sorted *sorted)
{
    const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const unsigned batch = strips.batch, positions = strips.positions;
    const unsigned share = (strips.end - strips.begin - 1) / SORT_WARPS + 1;
    const unsigned first = min(strips.begin + warp * share, strips.end);
    const unsigned last = min(first + share, strips.end);
    unsigned b = first % batch, position = first / batch * 32 + lane;
    unsigned rows = 0;
    int below = 0;
    for (unsigned strip = first; strip < last; strip += STRIPS_AHEAD) {
        int token[STRIPS_AHEAD];
#pragma unroll
        for (int i = 0; i < STRIPS_AHEAD; i++) {
            token[i] = strip + i < last && position < positions ? strips.inp[b * positions + position] : -1;
            if (++b == batch) {
                b = 0;
                position += 32;
            }
        }
#pragma unroll
        for (int i = 0; i < STRIPS_AHEAD; i++) {
            const unsigned its_bucket = token[i] % NUM_BUCKETS; // of no token: above all
            const unsigned own = __ballot_sync(0xffffffff, its_bucket == blockIdx.x);
            if (strip + i == first + lane) rows = own;
            below += its_bucket < blockIdx.x;
        }
    }

    int place = sum_up_to_lane(__popc(rows));
    below = __reduce_add_sync(0xffffffff, below);
    smem.slot_end[threadIdx.x] = 0;
    if (lane == 31) {
        smem.found[warp] = place;
        smem.below[warp] = below;
    }
    __syncthreads(); // Every warp's counts are there.
    place -= __popc(rows);
    int begin = 0, count = 0;
    for (int w = 0; w < SORT_WARPS; w++) {
        if (w == (int)warp) place += count;
        count += smem.found[w];
        begin += smem.below[w];
    }
    const bool fits = count <= MAX_LIST;
    const Bucket bucket = {begin, count, fits ? smem.list : sorted->list + begin,
                           fits ? smem.by_slot : sorted->by_slot + begin};
    const unsigned first_row = (first + lane) % batch * positions + (first + lane) / batch * 32;
    for (; rows; rows &= rows - 1) {
        const unsigned row = first_row + __ffs(rows) - 1;
        const int token = strips.inp[row];
        atomicAdd(&smem.slot_end[slot_of(token)], 1);
        bucket.list[place++] = {token, row};
    }
    __syncthreads(); // The list is there, and the slots' sizes.
    return bucket;
}

// Puts the numbers of the list's entries into their slots, in their order.
static __device__ void fill_slots(SharedStorage &smem, const Bucket &bucket)
{
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, size = smem.slot_end[threadIdx.x];
    int end = sum_up_to_lane(size);
    if (lane == 31) smem.found[warp] = end;
    __syncthreads(); // Every warp's sum of sizes is there.
    for (int w = 0; w < warp; w++) end += smem.found[w];
    smem.slot_end[threadIdx.x] = end - size;
    __syncthreads(); // Every slot's beginning is there.
    if (warp == 0)
        for (int chunk = 0; chunk < bucket.count; chunk += 32) {
            const int i = chunk + lane;
            const bool is_entry = i < bucket.count;
            const unsigned slot = is_entry ? slot_of(bucket.list[i].token) : NUM_SLOTS;
            const unsigned same = __match_any_sync(0xffffffff, slot), before = same & ((1u << lane) - 1);
            const int at = is_entry ? smem.slot_end[slot] : 0;
            if (is_entry) bucket.by_slot[at + __popc(before)] = i;
            __syncwarp();
            if (is_entry && !before) smem.slot_end[slot] = at + __popc(same);
            __syncwarp();
        }
    __syncthreads(); // Every slot's entries are there.
}

// A block sorts the rows of its bucket, and tells each its group.
__global__ void __launch_bounds__(SORT_THREADS, 1) sort_rows_kernel(const Strips strips, Sorted *sorted)
{
    wait_for_kernels_before();
    __shared__ SharedStorage smem;
    const Bucket bucket = list_rows(smem, strips, sorted);
    fill_slots(smem, bucket);
    const auto entry_at = [&](int at) { return bucket.list[bucket.by_slot[at]]; };
    for (int at = threadIdx.x; at < bucket.count; at += SORT_THREADS) {
        const Entry entry = entry_at(at);
        const unsigned slot = slot_of(entry.token), place = bucket.begin + at;
        const int slot_end = smem.slot_end[slot];
        int first = slot > 0 ? smem.slot_end[slot - 1] : 0, second = at + 1; // of the token
        while (entry_at(first).token != entry.token) first++;
        while (second < slot_end && entry_at(second).token != entry.token) second++;
        const unsigned entries = first < at ? 0 : second < slot_end ? slot_end - at : 1;
        sorted->entry[place] = entry;
        sorted->group[strips.number(entry.row)] = {entries, place, entries > 1 ? entry_at(second).row : 0};
    }
}

// Adds elements [c, c + N) of the token's rows among the entries, but of its second, to sum.
template <typename T, int N>
static __device__ void add_later_rows(float (&sum)[N], int token, unsigned second, const Entry *entry,
                                      unsigned entries, const T *dout, int C, unsigned c)
{
    for (unsigned i = 0; i < entries; i++) {
        if (entry[i].token != token || entry[i].row == second) continue;
        float addend[N];
        load_values(addend, dout + (size_t)entry[i].row * C + c);
#pragma unroll
        for (int k = 0; k < N; k++) sum[k] += addend[k];
    }
}

// A warp adds up 32 * N elements of a position, of all its rows in the strips. A lane takes N elements: a pack of T, or one.
template <typename T, int N>
__global__ void __launch_bounds__(NUM_THREADS, BLOCKS_PER_SM<N>)
    encoder_sorted_kernel(const Strips strips, const Sorted *sorted,
                          const T *dout, // (batch, positions, C)
                          float *dwte,   // (V, C)
                          float *dwpe,   // (positions, C)
                          int C)
{
    const unsigned parts = (C - 1) / (32 * N) + 1, lane = threadIdx.x % 32;
    const unsigned batch = strips.batch, positions = strips.positions;
    const unsigned part = (blockIdx.x * NUM_THREADS + threadIdx.x) / 32; // a warp's
    const unsigned position = strips.begin / batch * 32 + part / parts,
                   c = part % parts * (32 * N) + lane * N;
    const unsigned strip = position / 32 * batch; // of the position, in the first sequence
    wait_for_kernels_before();
    if (position >= positions || strip >= strips.end) return;
    const bool has_column = c < C;
    float sum[N];
    if (has_column) load_values_once(sum, dwpe + (size_t)position * C + c);
    const unsigned end = min(strips.end - strip, batch);
    for (unsigned first = max(strips.begin, strip) - strip; first < end; first += 32) {
        // A lane looks up the token and the group of one of 32 rows.
        const unsigned its_row = min(first + lane, end - 1) * positions + position,
                       count = min(end - first, 32);
        const int its_token = strips.inp[its_row];
        const Group its_group = sorted->group[strips.number(its_row)];
        for (unsigned begin = 0; begin < count; begin += ROWS_AHEAD<N>) {
            float addend[ROWS_AHEAD<N>][N], token_sum[ROWS_AHEAD<N>][N], second[ROWS_AHEAD<N>][N];
            unsigned token[ROWS_AHEAD<N>], entries[ROWS_AHEAD<N>], second_row[ROWS_AHEAD<N>];
#pragma unroll
            for (int i = 0; i < ROWS_AHEAD<N>; i++) {
                token[i] = __shfl_sync(0xffffffff, its_token, begin + i);
                entries[i] = __shfl_sync(0xffffffff, its_group.entries, begin + i);
                const unsigned row = __shfl_sync(0xffffffff, its_row, begin + i);
                second_row[i] = __shfl_sync(0xffffffff, its_group.second, begin + i);
                if (begin + i >= count || !has_column) continue;
                load_values_streamed(addend[i], dout + (size_t)row * C + c);
                if (entries[i] > 0) load_values_once(token_sum[i], dwte + (size_t)token[i] * C + c);
                if (entries[i] > 1) load_values(second[i], dout + (size_t)second_row[i] * C + c);
            }
#pragma unroll
            for (int i = 0; i < ROWS_AHEAD<N>; i++) {
                const unsigned place = __shfl_sync(0xffffffff, its_group.place, begin + i);
                if (begin + i >= count || !has_column) continue;
#pragma unroll
                for (int k = 0; k < N; k++) sum[k] += addend[i][k];
                if (entries[i] == 0) continue;
#pragma unroll
                for (int k = 0; k < N; k++) token_sum[i][k] += addend[i][k];
#pragma unroll
                for (int k = 0; k < N && entries[i] > 1; k++) token_sum[i][k] += second[i][k];
                if (entries[i] > 2)
                    add_later_rows(token_sum[i], token[i], second_row[i], &sorted->entry[place + 1],
                                   entries[i] - 1, dout, C, c);
                store_values(dwte + (size_t)token[i] * C + c, token_sum[i]);
            }
        }
    }
    if (has_column) store_values(dwpe + (size_t)position * C + c, sum);
}

// As many strips a launch of the two as there is scratch memory for.
template <typename T, int N>
static cudaError_t launch_kernels(const int *inp, const T *dout, float *dwte, float *dwpe, unsigned batch,
                                  unsigned positions, int C, cudaStream_t stream)
{
    void *scratch;
    cudaError_t error = get_scratch(sizeof(Sorted), &scratch);
    Sorted *const sorted = (Sorted *)scratch;
    const unsigned all = ((positions - 1) / 32 + 1) * batch, parts = (C - 1) / (32 * N) + 1;
    for (unsigned begin = 0; begin < all && error == cudaSuccess; begin += MAX_STRIPS) {
        const Strips strips = {inp, batch, positions, begin,
                               all - begin < MAX_STRIPS ? all : begin + MAX_STRIPS};
        error = launch_early(sort_rows_kernel, NUM_BUCKETS, SORT_THREADS, 0, stream, strips, sorted);
        if (error != cudaSuccess) break;
        const size_t warps = ((strips.end - 1) / batch - begin / batch + 1) * 32 * (size_t)parts;
        error = launch_early(encoder_sorted_kernel<T, N>, (warps - 1) / (NUM_THREADS / 32) + 1, NUM_THREADS,
                             0, stream, strips, (const Sorted *)sorted, dout, dwte, dwpe, C);
    }
    return error;
}

template <typename T>
static cudaError_t launch(const int *inp, const void *dout, float *dwte, float *dwpe, int batch,
                          int positions, int C, cudaStream_t stream)
{
    if (!inp || !dout || !dwte || !dwpe || batch <= 0 || positions <= 0 || C <= 0)
        return cudaErrorInvalidValue;
    if (((uintptr_t)dout | (uintptr_t)dwte | (uintptr_t)dwpe) % PACK_BYTES != 0) return cudaErrorInvalidValue;
    const auto launch_by = C % PACK<T> == 0 ? launch_kernels<T, PACK<T>> : launch_kernels<T, 1>;
    return launch_by(inp, (const T *)dout, dwte, dwpe, batch, positions, C, stream);
}

extern "C" cudaError_t encoder_sorted(enum dtype dtype, const int *inp, const void *dout, float *dwte,
                                      float *dwpe, int B, int T, int C, int, cudaStream_t stream)
{
    return dtype == BF16 ? launch<__nv_bfloat16>(inp, dout, dwte, dwpe, B, T, C, stream)
                         : launch<float>(inp, dout, dwte, dwpe, B, T, C, stream);
}
