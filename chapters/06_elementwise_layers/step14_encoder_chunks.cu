// Chapter 6, step 14: the rows of a common token are added up in chunks.
//
// Question: every twentieth word of a text is "the", every sixth byte a space. Who adds up thousands of rows of one token?
//
// Grows from: step 13 (encoder_sorted).
// Not the warp that has the position of the first: it would read one after the other. The rows of a token with more than 4 are left to other
// blocks. Each looks at 32 sorted rows, where those of a token stand side by side, and adds up the tokens that begin there. A token with more
// than 63 rows is cut into chunks of 32, and each is added up by the block where it begins; who is the last of these to finish (chapter 10,
// step 7) adds the chunks' sums to dwte.
//
//      sorted rows   | 7 7 7 7 7 7 7 7 7 7 7 | 4 | 9 9 |     chunks, if 32 were 4   | 7 7 7 7 | 7 7 7 7 7 7 7 |  with what is left
//                                                            their sums                  ↓           ↓
//                    4 and 9: with their positions           dwte[7] +=                first   +   second
//
// Tokens that share a slot are told apart by the sort, so that a token's rows stand side by side even then.
//
// A sum of up to 63 rows is step 12's, to the bit; of more it is dwte + the first chunk's + the second's …, whatever the GPU.
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
constexpr int MOST_ROWS = 4;  // of a token, that are added up with their positions
constexpr int CHUNK = 32;     // rows of one with more; its last chunk has what is left, up to 63
constexpr int SUMS_AHEAD = 4; // sums of chunks, that a thread has in flight

static_assert(MAX_STRIPS <= 32 * SORT_WARPS, "a lane keeps one strip");
static_assert(CHUNK == 32, "a warp looks at as many rows; and so many sums as strips are enough");

// Rows of dout that a lane has in flight, as many of dwte, and as many second rows; and blocks on an SM, whose registers these are.
template <int N>
constexpr int ROWS_AHEAD = N == 8 ? 1 : 3;
template <int N>
constexpr int BLOCKS_PER_SM = N == 8 ? 8 : 6;

// Rows of a chunk that a thread has in flight.
template <int N>
constexpr int CHUNK_AHEAD = N == 8 ? 4 : 6;

struct Listed {
    int token;
    unsigned row;
};

// Where a token's rows begin among the sorted ones, and how many they are.
struct Run {
    unsigned first, rows;
    __device__ bool is_common() const { return rows > MOST_ROWS; }
    __device__ unsigned chunks() const { return max(rows / CHUNK, 1); }
};

// For the first row of a token: how many rows the token has, the place of the first among the sorted ones, and the second. For later rows, and
// for those of common tokens: no rows.
struct Group {
    unsigned rows, place, second;
};

// What is known of the rows of the strips that are sorted at a time: 1,183,748 bytes of scratch memory. Behind it are the sums of chunks, if
// a token has several: row first / CHUNK + i is the i-th chunk's. (It is no other token's: the next one's first is at least first + rows.)
struct Sorted {
    Group group[32 * MAX_STRIPS];  // of each row, by its number among the strips'
    unsigned row[32 * MAX_STRIPS]; // by bucket, slot and token, those of a token in the order of the strips
    Run run[32 * MAX_STRIPS];      // of each of them
    Listed list[32 * MAX_STRIPS];  // of buckets whose lists are too long for shared memory,
    int by_slot[32 * MAX_STRIPS];  // and these
    unsigned chunks_done[MAX_STRIPS]; // of a token, at first / CHUNK
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
        if (leads && run.chunks() > 1) sorted->chunks_done[run.first / CHUNK] = 0;
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
static __device__ void add_sums(const float *sums, unsigned chunks, float *dwte_row, int C)
{
    for (unsigned c = threadIdx.x * N; c < C; c += NUM_THREADS * N) {
        float sum[N];
        load_values_once(sum, dwte_row + c);
#pragma unroll 1
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

// A block adds up these rows, a thread N elements at a time, from zeros or from what is at dst, where the sum goes.
template <typename T, int N>
static __device__ void add_rows(const unsigned *row, unsigned rows, const T *dout, float *dst,
                                bool from_zeros, int C)
{
    for (unsigned c = threadIdx.x * N; c < C; c += NUM_THREADS * N) {
        float sum[N] = {};
        if (!from_zeros) load_values_once(sum, dst + c);
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
        store_values(dst + c, sum);
    }
}

// A block adds up the chunks that begin among the 32 sorted rows from `begin` on.
template <typename T, int N>
static __device__ void add_chunks(const Strips &strips, Sorted *sorted, unsigned begin, float *sums,
                                  const T *dout, float *dwte, int C)
{
    __shared__ unsigned row[3 * CHUNK]; // of chunks that begin among the first 32
    __shared__ bool is_last;
    const unsigned lane = threadIdx.x % 32;
    const Run its_run = begin + lane < sorted->rows ? sorted->run[begin + lane] : Run{};
    const unsigned its_number = begin + lane - its_run.first; // of the token's rows
    const bool begins = its_number % CHUNK == 0 && its_number / CHUNK < its_run.chunks();
    unsigned left = __ballot_sync(0xffffffff, its_run.is_common() && begins);
    if (!left) return;
    if (threadIdx.x < 3 * CHUNK && begin + threadIdx.x < sorted->rows)
        row[threadIdx.x] = sorted->row[begin + threadIdx.x];
    __syncthreads(); // The rows are there.
    for (; left; left &= left - 1) {
        const int from = __ffs(left) - 1;
        const Run run = {__shfl_sync(0xffffffff, its_run.first, from),
                         __shfl_sync(0xffffffff, its_run.rows, from)};
        const unsigned chunk = (begin + from - run.first) / CHUNK;
        const unsigned rows = chunk + 1 < run.chunks() ? CHUNK : run.rows - chunk * CHUNK;
        float *const dwte_row = dwte + (size_t)strips.inp[row[from]] * C;
        if (run.chunks() == 1) {
            add_rows<T, N>(&row[from], rows, dout, dwte_row, false, C);
            continue;
        }
        float *const token_sums = sums + (size_t)(run.first / CHUNK) * C;
        add_rows<T, N>(&row[from], rows, dout, token_sums + (size_t)chunk * C, true, C);
        __syncthreads(); // The chunk's sum is there.
        if (threadIdx.x == 0) {
            __threadfence(); // What was written is seen before the count is.
            is_last = atomicAdd(&sorted->chunks_done[run.first / CHUNK], 1) == run.chunks() - 1;
            __threadfence(); // What is read from here on is no older than the count.
        }
        __syncthreads(); // Everyone knows who is the last.
        if (is_last) add_sums<N == 1 ? 1 : PACK<float>>(token_sums, run.chunks(), dwte_row, C);
    }
}

// A warp adds up 32 * N elements of a position, of all its rows in the strips. Half way through the positions come the blocks that have the
// chunks: what takes long shall not be last. A lane takes N elements: a pack of T, or one.
template <typename T, int N>
__global__ void __launch_bounds__(NUM_THREADS, BLOCKS_PER_SM<N>)
    encoder_chunks_kernel(const Strips strips, Sorted *sorted,
                          float *sums,   // (strips, C)
                          const T *dout, // (batch, positions, C)
                          float *dwte,   // (V, C)
                          float *dwpe,   // (positions, C)
                          int C)
{
    const unsigned chunk_blocks = strips.end - strips.begin, before = (gridDim.x - chunk_blocks) / 2;
    wait_for_kernels_before();
    if (blockIdx.x - before < chunk_blocks) {
        add_chunks<T, N>(strips, sorted, (blockIdx.x - before) * 32, sums, dout, dwte, C);
        return;
    }
    const unsigned block = blockIdx.x < before ? blockIdx.x : blockIdx.x - chunk_blocks;
    const unsigned parts = (C - 1) / (32 * N) + 1, lane = threadIdx.x % 32;
    const unsigned batch = strips.batch, positions = strips.positions;
    const unsigned part = (block * NUM_THREADS + threadIdx.x) / 32; // a warp's
    const unsigned position = strips.begin / batch * 32 + part / parts,
                   c = part % parts * (32 * N) + lane * N;
    const unsigned strip = position / 32 * batch; // of the position, in the first sequence
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
    float *const sums = (float *)((char *)scratch + SUMS_AT);
    for (unsigned begin = 0; begin < all && error == cudaSuccess; begin += MAX_STRIPS) {
        const Strips strips = {inp, batch, positions, begin,
                               all - begin < MAX_STRIPS ? all : begin + MAX_STRIPS};
        error = launch_early(sort_tokens_kernel, NUM_BUCKETS, SORT_THREADS, 0, stream, strips, sorted);
        if (error != cudaSuccess) break;
        const size_t warps = ((strips.end - 1) / batch - begin / batch + 1) * 32 * (size_t)parts;
        const unsigned position_blocks = (warps - 1) / NUM_WARPS + 1, chunk_blocks = strips.end - begin;
        error = launch_early(encoder_chunks_kernel<T, N>, position_blocks + chunk_blocks, NUM_THREADS, 0,
                             stream, strips, sorted, sums, dout, dwte, dwpe, C);
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
                                      float *dwpe, int B, int T, int C, int, cudaStream_t stream)
{
    return dtype == BF16 ? launch<__nv_bfloat16>(inp, dout, dwte, dwpe, B, T, C, stream)
                         : launch<float>(inp, dout, dwte, dwpe, B, T, C, stream);
}
