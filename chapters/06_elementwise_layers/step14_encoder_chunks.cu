// Chapter 6, step 14: common tokens.
//
// Question: every twentieth word of a text is "the", every sixth byte a space. Who adds up thousands of rows of one token?
//
// Grows from: step 13 (encoder_sorted).
// Not one warp, row after row. The sorted rows of a token stand side by side, so those of a token with more than 32 are cut into chunks of 32:
// a block adds up a chunk, and writes the sum down. The last one to finish of a token's blocks (chapter 10, step 7) adds the sums to dwte.
//
//      sorted   | 7 7 7 7 7 7 7 7 7 7 7 | 4 | 9 9 |     chunks of 4, if 32 were 4    | 7 7 7 7 | 7 7 7 7 7 7 7 |  with what is left
//                                                       their sums                        ↓           ↓
//               4 and 9: with their positions           dwte[7] +=                     first   +   second
//
// A chunk has 32 rows at least, so of 32 sorted rows no two begin one: a block looks where in its 32 one begins, and mostly none does. Tokens
// that share a slot are told apart by the sort, whose rows of a token stand together then, too.
//
// A common token's sum is dwte + the sum of the first chunk + that of the second …, whatever the GPU; another's is step 12's, to the bit.
//
// Launched early (chapter 6, step 3). Registers: at most 80. Shared memory: 37,120 bytes.
// Run: make chapter-6 OP=encoder_backward STEP=encoder_chunks
#include "../../common/device/launch.cuh"
#include "../../common/device/pack.cuh"
#include "../../common/device/scratch.h"
#include "../../common/device/warp.cuh"
#include "launchers.h"

#include <cuda_runtime.h>
#include <limits.h>

constexpr int NUM_BUCKETS = 132; // a block for each of an H200's SMs
constexpr int SORT_THREADS = 1024;
constexpr int SORT_WARPS = SORT_THREADS / 32;
constexpr int MAX_STRIPS = 1024;        // that are sorted at a time
constexpr int STRIPS_AHEAD = 8;         // whose tokens a warp asks for at a time
constexpr int MAX_LIST = 2048;          // entries in shared memory; a longer list is in global memory
constexpr int NUM_SLOTS = SORT_THREADS; // of a bucket; with more than 132 * 1024 tokens, some share one
constexpr int ENTRIES_AHEAD = 8;        // entries of the list, that a lane puts into their slots at a time
constexpr int NUM_THREADS = 128;        // of the blocks that add up
constexpr int NUM_WARPS = NUM_THREADS / 32;
constexpr int CHUNK = 32;     // rows of a common token, that a block adds up; its last chunk has up to 63
constexpr int SUMS_AHEAD = 4; // sums of chunks, that a thread has in flight

static_assert(MAX_STRIPS <= 32 * SORT_WARPS, "a lane keeps one strip");

// Rows of dout that a lane has in flight, as many of dwte, and as many second rows; and blocks on an SM, whose registers these are.
template <int N>
constexpr int ROWS_AHEAD = N == 8 ? 1 : 3;
template <int N>
constexpr int BLOCKS_PER_SM = N == 8 ? 8 : 6;

// Of a chunk's rows.
template <int N>
constexpr int CHUNK_AHEAD = N == 8 ? 4 : 8;

struct Listed {
    int token;
    unsigned row;
};

// Where a token's rows begin among the sorted ones, and how many they are.
struct Run {
    unsigned first, rows;
    __device__ bool is_common() const { return rows > CHUNK; }
    __device__ unsigned chunks() const { return rows / CHUNK; }
};

// For the first row of a token: how many rows the token has, the place of the first among the sorted ones, and the second. For later rows, and
// for those of common tokens: no rows.
struct Group {
    unsigned rows, place, second;
};

// What is known of the rows of the strips that are sorted at a time: 1,183,748 bytes of scratch memory. Chunks' sums are behind it: the
// first / CHUNK + i-th row is of a token's i-th chunk. (No two tokens have the same: the next one's first row is at least at first + rows.)
struct Sorted {
    Group group[32 * MAX_STRIPS];  // of each row, by its number among the strips'
    unsigned row[32 * MAX_STRIPS]; // by bucket, slot and token, those of a token in the order of the strips
    Run run[32 * MAX_STRIPS];      // of each of them
    Listed list[32 * MAX_STRIPS];  // of buckets whose lists are too long for shared memory,
    int by_slot[32 * MAX_STRIPS];  // and these
    unsigned chunks_done[MAX_STRIPS]; // of a common token, by first / CHUNK
    unsigned rows;                    // in all
};
constexpr size_t SUMS_AT = (sizeof(Sorted) + PACK_BYTES - 1) / PACK_BYTES * PACK_BYTES; // bytes

struct SharedStorage {
    int found[SORT_WARPS];   // rows of the bucket, by warp, 128 bytes
    int below[SORT_WARPS];   // rows of lower buckets, 128 bytes
    int slot_end[NUM_SLOTS]; // entries of each slot, then where its next entry belongs, 4,096 bytes
    int lowest[NUM_SLOTS];   // token of each slot, 4,096 bytes
    int highest[NUM_SLOTS];  // the same number, if no tokens share it, 4,096 bytes
    Listed list[MAX_LIST];   // of the bucket, in the order of the strips, 16,384 bytes
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
    Listed *list;
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
    smem.lowest[threadIdx.x] = INT_MAX;
    smem.highest[threadIdx.x] = 0;
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
        const unsigned slot = slot_of(token);
        atomicAdd(&smem.slot_end[slot], 1);
        atomicMin(&smem.lowest[slot], token);
        atomicMax(&smem.highest[slot], token);
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
    for (int begin = 0; warp == 0 && begin < bucket.count; begin += 32 * ENTRIES_AHEAD) {
        unsigned slot[ENTRIES_AHEAD];
#pragma unroll
        for (int i = 0; i < ENTRIES_AHEAD; i++) {
            const int entry = begin + 32 * i + lane;
            slot[i] = entry < bucket.count ? slot_of(bucket.list[entry].token) : NUM_SLOTS;
        }
#pragma unroll
        for (int i = 0; i < ENTRIES_AHEAD; i++) {
            const unsigned same = __match_any_sync(0xffffffff, slot[i]), before = same & ((1u << lane) - 1);
            const int at = slot[i] < NUM_SLOTS ? smem.slot_end[slot[i]] : 0;
            if (slot[i] < NUM_SLOTS) bucket.by_slot[at + __popc(before)] = begin + 32 * i + lane;
            __syncwarp();
            if (slot[i] < NUM_SLOTS && !before) smem.slot_end[slot[i]] = at + __popc(same);
            __syncwarp();
        }
    }
    __syncthreads(); // Every slot's entries are there.
}

// A block sorts the rows of its bucket, and tells each its group.
__global__ void __launch_bounds__(SORT_THREADS, 1) sort_tokens_kernel(const Strips strips, Sorted *sorted)
{
    wait_for_kernels_before();
    __shared__ SharedStorage smem;
    const Bucket bucket = list_rows(smem, strips, sorted);
    fill_slots(smem, bucket);
    const auto listed_at = [&](int at) { return bucket.list[bucket.by_slot[at]]; };
    for (int at = threadIdx.x; at < bucket.count; at += SORT_THREADS) {
        const Listed its = listed_at(at);
        const unsigned slot = slot_of(its.token);
        const int begin = slot > 0 ? smem.slot_end[slot - 1] : 0, end = smem.slot_end[slot];
        int first = begin, rows = end - begin, second = begin + 1, place = at;
        if (smem.lowest[slot] != smem.highest[slot]) {
            int earlier = 0; // Tokens share the slot: a lower one's rows come first.
            rows = 0;
            for (int other = begin; other < end; other++) {
                const int token = listed_at(other).token;
                first += token < its.token;
                if (token != its.token) continue;
                if (++rows == 2) second = other;
                earlier += other < at;
            }
            place = first + earlier;
        }
        const Run run = {(unsigned)(bucket.begin + first), (unsigned)rows};
        const bool leads = place == first;
        place += bucket.begin;
        sorted->row[place] = its.row;
        sorted->run[place] = run;
        sorted->group[strips.number(its.row)] = {leads && !run.is_common() ? run.rows : 0, (unsigned)place,
                                                 leads && rows > 1 ? listed_at(second).row : 0};
        if (leads && run.is_common()) sorted->chunks_done[run.first / CHUNK] = 0;
    }
    if (blockIdx.x == NUM_BUCKETS - 1 && threadIdx.x == 0) sorted->rows = bucket.begin + bucket.count;
}

template <int N>
static __device__ void add_to(float (&sum)[N], const float (&addend)[N])
{
#pragma unroll
    for (int k = 0; k < N; k++) sum[k] += addend[k];
}

// Adds elements [c, c + N) of these rows to sum.
template <typename T, int N>
static __device__ void add_later_rows(float (&sum)[N], const unsigned *row, unsigned rows, const T *dout,
                                      int C, unsigned c)
{
#pragma unroll 1
    for (unsigned i = 0; i < rows; i++) {
        float addend[N];
        load_values(addend, dout + (size_t)row[i] * C + c);
        add_to(sum, addend);
    }
}

// A block adds the sums of a token's chunks to its row of dwte, a thread N elements at a time.
template <int N>
static __device__ void add_up_chunks(const float *sums, unsigned chunks, float *dwte_row, int C)
{
    for (unsigned c = threadIdx.x * N; c < C; c += NUM_THREADS * N) {
        float sum[N];
        load_values_once(sum, dwte_row + c);
        for (unsigned i = 0; i < chunks; i += SUMS_AHEAD) {
            float addend[SUMS_AHEAD][N];
#pragma unroll
            for (int j = 0; j < SUMS_AHEAD; j++)
                if (i + j < chunks) load_values(addend[j], sums + (size_t)(i + j) * C + c);
#pragma unroll
            for (int j = 0; j < SUMS_AHEAD; j++)
                if (i + j < chunks) add_to(sum, addend[j]);
        }
        store_values(dwte_row + c, sum);
    }
}

// A block adds up the chunk that begins among the 32 sorted rows from `begin` on, a thread N elements at a time. The last one of a token's
// blocks adds up its chunks.
template <typename T, int N>
static __device__ void add_chunk(const Strips &strips, Sorted *sorted, float *chunk_sums, unsigned begin,
                                 const T *dout, float *dwte, int C)
{
    __shared__ unsigned row[2 * CHUNK];
    __shared__ bool is_last;
    const unsigned place = begin + threadIdx.x % 32;
    const Run its_run = place < sorted->rows ? sorted->run[place] : Run{};
    const unsigned its_chunk = (place - its_run.first) / CHUNK;
    const bool begins = (place - its_run.first) % CHUNK == 0 && its_chunk < its_run.chunks();
    const unsigned lanes = __ballot_sync(0xffffffff, its_run.is_common() && begins);
    if (!lanes) return;
    const int from = __ffs(lanes) - 1;
    const Run run = {__shfl_sync(0xffffffff, its_run.first, from),
                     __shfl_sync(0xffffffff, its_run.rows, from)};
    const unsigned chunk = __shfl_sync(0xffffffff, its_chunk, from);
    const unsigned rows = chunk + 1 < run.chunks() ? CHUNK : run.rows - chunk * CHUNK;
    if (threadIdx.x < rows) row[threadIdx.x] = sorted->row[begin + from + threadIdx.x];
    __syncthreads(); // The rows are there.

    float *dwte_row = dwte + (size_t)strips.inp[row[0]] * C;
    float *sums = chunk_sums + (size_t)(run.first / CHUNK) * C; // of the token
    for (unsigned c = threadIdx.x * N; c < C; c += NUM_THREADS * N) {
        float sum[N] = {};
        for (unsigned i = 0; i < rows; i += CHUNK_AHEAD<N>) {
            Piece<T, N> piece[CHUNK_AHEAD<N>];
#pragma unroll
            for (int j = 0; j < CHUNK_AHEAD<N>; j++)
                if (i + j < rows) piece[j] = load_piece<N>(dout + (size_t)row[i + j] * C + c);
#pragma unroll
            for (int j = 0; j < CHUNK_AHEAD<N>; j++) {
                float addend[N];
                unpack(addend, piece[j], T());
                if (i + j < rows) add_to(sum, addend);
            }
        }
        store_values(sums + (size_t)chunk * C + c, sum);
    }

    __syncthreads(); // The chunk's sum is there.
    if (threadIdx.x == 0) {
        __threadfence(); // What was written is seen before the count is.
        is_last = atomicAdd(&sorted->chunks_done[run.first / CHUNK], 1) == run.chunks() - 1;
        __threadfence(); // What is read from here on is no older than the count.
    }
    __syncthreads(); // Everyone knows who is the last.
    if (!is_last) return;
    add_up_chunks<N == 1 ? 1 : PACK<float>>(sums, run.chunks(), dwte_row, C);
}

// A warp of the first blocks adds up 32 * N elements of a position, of all its rows in the strips; each block behind these, a chunk. A lane
// takes N elements: a pack of T, or one.
template <typename T, int N>
__global__ void __launch_bounds__(NUM_THREADS, BLOCKS_PER_SM<N>)
    encoder_chunks_kernel(const Strips strips, Sorted *sorted,
                          float *chunk_sums, // (strips, C)
                          unsigned position_blocks,
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
    if (blockIdx.x >= position_blocks) {
        add_chunk<T, N>(strips, sorted, chunk_sums, (blockIdx.x - position_blocks) * 32, dout, dwte, C);
        return;
    }
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
            unsigned token[ROWS_AHEAD<N>], rows[ROWS_AHEAD<N>], second_row[ROWS_AHEAD<N>];
#pragma unroll
            for (int i = 0; i < ROWS_AHEAD<N>; i++) {
                token[i] = __shfl_sync(0xffffffff, its_token, begin + i);
                rows[i] = __shfl_sync(0xffffffff, its_group.rows, begin + i);
                const unsigned row = __shfl_sync(0xffffffff, its_row, begin + i);
                second_row[i] = __shfl_sync(0xffffffff, its_group.second, begin + i);
                if (begin + i >= count || !has_column) continue;
                load_values_streamed(addend[i], dout + (size_t)row * C + c);
                if (rows[i] > 0) load_values_once(token_sum[i], dwte + (size_t)token[i] * C + c);
                if (rows[i] > 1) load_values(second[i], dout + (size_t)second_row[i] * C + c);
            }
#pragma unroll
            for (int i = 0; i < ROWS_AHEAD<N>; i++) {
                const unsigned place = __shfl_sync(0xffffffff, its_group.place, begin + i);
                if (begin + i >= count || !has_column) continue;
                add_to(sum, addend[i]);
                if (rows[i] == 0) continue;
                add_to(token_sum[i], addend[i]);
                if (rows[i] > 1) add_to(token_sum[i], second[i]);
                if (rows[i] > 2)
                    add_later_rows(token_sum[i], &sorted->row[place + 2], rows[i] - 2, dout, C, c);
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
    const unsigned all = ((positions - 1) / 32 + 1) * batch, parts = (C - 1) / (32 * N) + 1;
    void *scratch;
    cudaError_t error = get_scratch(SUMS_AT + (size_t)MAX_STRIPS * C * sizeof(float), &scratch);
    Sorted *const sorted = (Sorted *)scratch;
    float *const chunk_sums = (float *)((char *)scratch + SUMS_AT);
    for (unsigned begin = 0; begin < all && error == cudaSuccess; begin += MAX_STRIPS) {
        const Strips strips = {inp, batch, positions, begin,
                               all - begin < MAX_STRIPS ? all : begin + MAX_STRIPS};
        error = launch_early(sort_tokens_kernel, NUM_BUCKETS, SORT_THREADS, 0, stream, strips, sorted);
        if (error != cudaSuccess) break;
        const size_t warps = ((strips.end - 1) / batch - begin / batch + 1) * 32 * (size_t)parts;
        const unsigned position_blocks = (warps - 1) / NUM_WARPS + 1, chunk_blocks = strips.end - begin;
        error = launch_early(encoder_chunks_kernel<T, N>, position_blocks + chunk_blocks, NUM_THREADS, 0,
                             stream, strips, sorted, chunk_sums, position_blocks, dout, dwte, dwpe, C);
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

extern "C" cudaError_t encoder_chunks(enum dtype dtype, const int *inp, const void *dout, float *dwte,
                                      float *dwpe, int B, int T, int C, cudaStream_t stream)
{
    return dtype == BF16 ? launch<__nv_bfloat16>(inp, dout, dwte, dwpe, B, T, C, stream)
                         : launch<float>(inp, dout, dwte, dwpe, B, T, C, stream);
}
