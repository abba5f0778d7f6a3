// Chapter 6, step 15: rows are on their way before it is known whose they are.
//
// Question: while the text is sorted, the memory has nothing to do. What can be asked for before it is known who adds up what?
//
// Grows from: step 14 (encoder_chunks).
// The rows of dout of one's own position: they are needed whatever their tokens are. A thread copies eight of them ahead into shared memory
// (cp.async, chapter 5), registers being too few, then four of dwte. It copies what it adds up itself, so no barrier is needed.
// To know who adds up what, nothing is sorted either. A table has a place for each token, where the rows count themselves, and the first 8 to
// come leave their numbers, in any order. Who has a position looks its tokens up: the row with the lowest number adds up all of them.
//
//      text 7 4 7 7     token 4: 1 row, 1        row 0: adds 0 2 3 to dwte[7]     row 1: adds 1 to dwte[4]     rows 2 and 3: nothing
//                             7: 3 rows, 2 0 3
//
// Who comes ninth puts the token on a list, and a bit for each row, 32 rows a word. Blocks that find the list not empty take a chunk of such a
// token's rows first, as in step 14, in the order of the bits, and clear them for the next launch. Counts need not be cleared: their upper bits
// say which launch they are of.
//
// A sum of up to 63 rows is step 12's, to the bit; of more it is dwte + the first chunk + the second's sum …, whatever the GPU.
//
// Launched early (chapter 6, step 3). Registers: at most 104. Shared memory: at most 32,768 bytes.
// Run: make chapter-6 OP=encoder_backward STEP=encoder_ahead
#include "../../common/device/launch.cuh"
#include "../../common/device/pack.cuh"
#include "../../common/device/scratch.h"
#include "../../common/device/warp.cuh"
#include "launchers.h"

#include <cuda_runtime.h>
#include <limits.h>

constexpr int MAX_STRIPS = 1024;   // that are done at a time
constexpr int TABLE_THREADS = 256; // of the blocks that fill the table
constexpr int MOST_ROWS = 8;       // of a token, that are added up with their positions
constexpr int CHUNK = 32;          // rows of one with more; its last chunk has what is left, up to 63
constexpr int MAX_COMMON = 32 * MAX_STRIPS / (MOST_ROWS + 1); // tokens with more
constexpr int NUM_THREADS = 64;                               // of the blocks that add up
constexpr int NUM_WARPS = NUM_THREADS / 32;
constexpr int DOUT_AHEAD = 8;  // rows of dout that a thread has in flight,
constexpr int DWTE_AHEAD = 4;  // of dwte, and second rows,
constexpr int ADDED_AHEAD = 8; // and of a chunk

// Of a row a warp takes so many parts of 32 * N elements. So many rows of dout behind those in flight the L2 is asked for. And blocks on an SM:
// bf16 wants more warps, and a larger L1, since a copy of 8 bytes goes through it.
template <typename T>
constexpr int PARTS = sizeof(T) == 4 ? 2 : 1;
template <typename T>
constexpr int PREFETCHED = sizeof(T) == 4 ? 0 : 4;
template <typename T>
constexpr int BLOCKS_PER_SM = sizeof(T) == 4 ? 6 : 13;

// A number that is 0 when a launch begins: what is above COUNT_BITS says which launch it is of.
using Counter = unsigned long long;
constexpr int COUNT_BITS = 16;
static_assert(32 * MAX_STRIPS < 1 << COUNT_BITS, "a count may be of all rows");

static __device__ unsigned count_of(Counter counter)
{
    return counter % (1 << COUNT_BITS);
}

// Adds to a counter. Returns what it was.
static __device__ unsigned add_count(Counter *counter, Counter launch, unsigned addend)
{
    atomicMax(counter, launch << COUNT_BITS);
    return count_of(atomicAdd(counter, addend));
}

// A token of the vocabulary.
struct __align__(32) Token
{
    uint16_t number[MOST_ROWS]; // of its first rows to come
    Counter rows;
    unsigned common; // 1 + its number among the common ones, else 0
    unsigned chunks_done;
};

// A chunk of a common token's rows.
struct Chunk {
    unsigned common, index;
};

// How many common tokens there are, and how many chunks of theirs besides the first ones. Read at once: all blocks wait for it.
struct __align__(16) Counts
{
    Counter common, others;
};

// What is kept between launches, zeros at first: 14,997,760 bytes, and 32 for each token.
struct Table {
    Counts counts;                             // in this launch
    Counter launch;                            // how many there have been
    int common[MAX_COMMON];                    // tokens
    Chunk chunk[MAX_STRIPS];                   // their second and later chunks
    uint16_t sum_of[32 * MAX_STRIPS];          // of such a chunk, its number, by that of its first row
    unsigned in_strip[MAX_COMMON][MAX_STRIPS]; // a bit for each row of a common token
    Token token[];                             // (V)
};

// Strips [begin, end) of a text: strip s is the 32 positions from s / batch * 32 on of sequence s % batch.
struct Strips {
    const int *inp; // (batch, positions)
    unsigned batch, positions, begin, end;

    __device__ unsigned count() const { return end - begin; }

    // Of a row, among those of the strips; and the row that has it.
    __device__ unsigned number(unsigned row) const
    {
        const unsigned position = row % positions;
        return (position / 32 * batch + row / positions - begin) * 32 + position % 32;
    }
    __device__ unsigned row(unsigned number) const
    {
        const unsigned strip = begin + number / 32;
        return strip % batch * positions + strip / batch * 32 + number % 32;
    }
};

// A warp enters the rows of a strip into the table. The rows of a token in it are counted by the first of them.
__global__ void __launch_bounds__(TABLE_THREADS)
    fill_table_kernel(const Strips strips, Table *table, unsigned V)
{
    constexpr unsigned TOKENS_IN_LINE = 128 / sizeof(Token);
    const unsigned lane = threadIdx.x % 32, number = blockIdx.x * TABLE_THREADS + threadIdx.x;
    const unsigned strip = strips.begin + number / 32, row = strips.row(number);
    const bool is_row = strip < strips.end && strip / strips.batch * 32 + lane < strips.positions;
    // The L2 shall have what is needed first.
    if (number == 0) prefetch_global_l2(table);
    if (is_row && lane == 0) prefetch_global_l2(strips.inp + row);
    for (unsigned token = number * TOKENS_IN_LINE; token < V;
         token += gridDim.x * TABLE_THREADS * TOKENS_IN_LINE)
        prefetch_global_l2(&table->token[token]);
#if __CUDA_ARCH__ >= 900
    griddepcontrol_wait();
    griddepcontrol_launch_dependents(); // What was written before this kernel, the next one may read at once.
#endif
    const Counter launch = table->launch + 1;
    if (number == 0) {
        add_count(&table->counts.common, launch, 0);
        add_count(&table->counts.others, launch, 0);
    }
    const int token = is_row ? strips.inp[row] : -1;
    const unsigned same = __match_any_sync(0xffffffff, token), before = same & ((1u << lane) - 1);
    Token &its = table->token[is_row ? token : 0];
    const bool counts = is_row && !before;
    const unsigned first = counts ? add_count(&its.rows, launch, __popc(same)) : 0,
                   last = first + __popc(same);
    const unsigned place = __shfl_sync(0xffffffff, first, __ffs(same) - 1) + __popc(before); // as they come
    if (is_row && place < MOST_ROWS) its.number[place] = number;

    // The warp that has the ninth row numbers the token, and the others wait for the number.
    const bool is_common = counts && last > MOST_ROWS, is_new = is_common && first <= MOST_ROWS;
    const unsigned new_ones = __ballot_sync(0xffffffff, is_new);
    unsigned common = new_ones && lane == 0 ? add_count(&table->counts.common, launch, __popc(new_ones)) : 0;
    common = __shfl_sync(0xffffffff, common, 0) + __popc(new_ones & ((1u << lane) - 1)) + 1;
    if (is_new) {
        table->common[common - 1] = token;
        atomicExch(&its.common, common);
    }
    __syncwarp(); // Nobody waits whose own warp is waited for.
    if (!is_common) return;
    while (!is_new && !(common = *(volatile unsigned *)&its.common)) {
    }
    table->in_strip[common - 1][number / 32] = same;
    if (last / CHUNK > max(first / CHUNK, 1))
        table->chunk[add_count(&table->counts.others, launch, 1)] = {common - 1, last / CHUNK - 1};
}

template <int N>
static __device__ void add_to(float (&sum)[N], const float (&addend)[N])
{
#pragma unroll
    for (int k = 0; k < N; k++) sum[k] += addend[k];
}

// N elements, of shared or of global memory.
template <typename T, int N>
static __device__ void load_elements(float (&values)[N], const T *src)
{
    if constexpr (N == 1)
        values[0] = to_float(*src);
    else if constexpr (N == PACK<T>)
        unpack(values, *reinterpret_cast<const uint4 *>(src), T());
    else
        unpack(values, *reinterpret_cast<const uint2 *>(src), T());
}

// Asks for N elements. One of bf16 is too little for a copy: its thread waits for it.
template <int N, typename T>
static __device__ void copy_elements(T *dst, const T *src, uint64_t policy)
{
    if constexpr (N * sizeof(T) == 16)
        cp_async_cg_16_cache_hint(smem_addr(dst), src, policy);
    else if constexpr (N * sizeof(T) >= 4)
        cp_async_ca_cache_hint<N * sizeof(T)>(smem_addr(dst), src, policy);
    else
        *dst = *src;
}

// What is found of a common token's rows, then what is added up, N elements a thread.
template <typename T, int N>
struct Found {
    union {
        unsigned in_strip[MAX_STRIPS]; // a bit for each, 4,096 bytes
        __align__(16) T rows[ADDED_AHEAD][NUM_THREADS][N];
        __align__(16) float sums[ADDED_AHEAD * sizeof(T) / sizeof(float)][NUM_THREADS][N];
    };
    uint16_t first[MAX_STRIPS];       // of each chunk, its number; then where its sum is, 2,048 bytes
    unsigned row[2 * CHUNK];          // of one chunk, 256 bytes
    unsigned rows_of_warp[NUM_WARPS]; // in its strips, 8 bytes
    bool is_last;
};

// Finds the rows of a token's chunk in the order of the strips, and the first row of each chunk. Returns how many chunks there are.
template <typename FOUND>
static __device__ unsigned find_rows(FOUND &found, const Strips &strips, const Token &token,
                                     const unsigned *in_strip, unsigned chunk)
{
    const unsigned chunks = max(count_of(token.rows) / CHUNK, 1);
    const unsigned early = threadIdx.x < MOST_ROWS ? token.number[threadIdx.x] : 0;
#pragma unroll 8
    for (unsigned strip = threadIdx.x; strip < strips.count(); strip += NUM_THREADS)
        found.in_strip[strip] = in_strip[strip];
    __syncthreads(); // The bits are there,
    if (threadIdx.x < MOST_ROWS) atomicOr(&found.in_strip[early / 32], 1u << early % 32);
    __syncthreads(); // and those of rows that came before the ninth.
    const unsigned share = (strips.count() - 1) / NUM_THREADS + 1;
    const unsigned begin = min(threadIdx.x * share, strips.count()), end = min(begin + share, strips.count());
    unsigned rows = 0;
    for (unsigned strip = begin; strip < end; strip++) rows += __popc(found.in_strip[strip]);
    unsigned place = sum_up_to_lane(rows);
    if (threadIdx.x % 32 == 31) found.rows_of_warp[threadIdx.x / 32] = place;
    __syncthreads(); // Every warp's count is there.
    place -= rows;
    for (unsigned warp = 0; warp < threadIdx.x / 32; warp++) place += found.rows_of_warp[warp];
    for (unsigned strip = begin; strip < end; strip++)
        for (unsigned left = found.in_strip[strip]; left; left &= left - 1, place++) {
            const unsigned number = strip * 32 + __ffs(left) - 1, its_chunk = min(place / CHUNK, chunks - 1);
            if (its_chunk == chunk) found.row[place - chunk * CHUNK] = strips.row(number);
            if (place == its_chunk * CHUNK) found.first[its_chunk] = number;
        }
    __syncthreads(); // The chunk's rows are there.
    return chunks;
}

// A block adds up these rows of src, a thread N elements at a time, from zeros or from what is at dst, where the sum goes.
template <typename S, int AHEAD, int N, typename ROW>
static __device__ void add_rows(S (&ahead)[AHEAD][NUM_THREADS][N], const ROW *row, unsigned rows,
                                const S *src, float *dst, bool from_zeros, int C)
{
    const uint64_t keep = createpolicy_evict_last();
    unsigned asked = 0, slot = 0, asked_c = threadIdx.x * N;
    const auto ask = [&] {
        if (asked_c < C)
            copy_elements<N>(ahead[slot][threadIdx.x], src + (size_t)row[asked] * C + asked_c, keep);
        cp_async_commit_group();
        slot = (slot + 1) % AHEAD;
        if (++asked < rows) return;
        asked = 0;
        asked_c += NUM_THREADS * N;
    };
#pragma unroll 1
    for (int i = 0; i < AHEAD; i++) ask();
#pragma unroll 1
    for (unsigned c = threadIdx.x * N; c < C; c += NUM_THREADS * N) {
        float sum[N] = {};
        if (!from_zeros) load_elements(sum, dst + c);
#pragma unroll 4
        for (unsigned i = 0; i < rows; i++) {
            float addend[N];
            cp_async_wait_group<AHEAD - 1>(); // The next row is there.
            load_elements(addend, ahead[slot][threadIdx.x]);
            add_to(sum, addend);
            ask();
        }
        store_values(dst + c, sum);
    }
}

// A block adds up the number-th chunk, the tokens' first ones behind all others: to dwte the first, and who is the last at a token with several
// adds the others' sums.
template <typename T, int N>
static __device__ void add_chunk(Found<T, N> &found, const Strips &strips, Table *table, unsigned number,
                                 unsigned others, float *sums, const T *dout, float *dwte, int C)
{
    const bool is_first = number >= others;
    const Chunk chunk = is_first ? Chunk{number - others, 0} : table->chunk[number];
    unsigned *const in_strip = table->in_strip[chunk.common];
    const int its_token = table->common[chunk.common];
    Token &token = table->token[its_token];
    const unsigned chunks = find_rows(found, strips, token, in_strip, chunk.index);
    const unsigned rows = chunk.index + 1 < chunks ? CHUNK : count_of(token.rows) - chunk.index * CHUNK;
    float *const dwte_row = dwte + (size_t)its_token * C;
    add_rows(found.rows, found.row, rows, dout, is_first ? dwte_row : sums + (size_t)number * C, !is_first,
             C);
    if (chunks > 1) {
        if (!is_first && threadIdx.x == 0) table->sum_of[found.first[chunk.index]] = number;
        __syncthreads(); // The chunk's sum is there.
        if (threadIdx.x == 0) {
            __threadfence(); // What was written is seen before the count is.
            found.is_last = atomicAdd(&token.chunks_done, 1) == chunks - 1;
            __threadfence(); // What is read from here on is no older than the count.
        }
        __syncthreads(); // Everyone knows who is the last.
        if (!found.is_last) return;
        for (unsigned i = 1 + threadIdx.x; i < chunks; i += NUM_THREADS)
            found.first[i] = table->sum_of[found.first[i]];
        __syncthreads(); // It is known where the others' sums are.
        add_rows(found.sums, found.first + 1, chunks - 1, sums, dwte_row, false, C);
    }
    for (unsigned strip = threadIdx.x; strip < strips.count(); strip += NUM_THREADS) in_strip[strip] = 0;
    if (threadIdx.x == 0) token.common = token.chunks_done = 0;
}

// What a thread adds up itself and has copied ahead, N elements of each part. What is found of a common token takes the place of rows that can
// be asked for again.
template <typename T, int N>
struct SharedStorage {
    T dout[DOUT_AHEAD][PARTS<T>][NUM_THREADS][N];
    union {
        struct {
            float dwte[DWTE_AHEAD][PARTS<T>][NUM_THREADS][N];
            T second[DWTE_AHEAD][PARTS<T>][NUM_THREADS][N];
        };
        Found<T, N> found;
    };
};

// How many rows of a row's token are to be added up with it, and the second: none for later rows, and for those of common tokens.
struct Group {
    unsigned rows, second;
};

static __device__ Group group_of(const Strips &strips, const Token &token, unsigned row)
{
    const uint4 words = *reinterpret_cast<const uint4 *>(token.number);
    const unsigned word[] = {words.x, words.y, words.z, words.w}, rows = count_of(token.rows);
    unsigned lowest = UINT_MAX, second = UINT_MAX;
#pragma unroll
    for (int i = 0; i < MOST_ROWS; i++) {
        const unsigned number = i < rows ? word[i / 2] >> i % 2 * 16 & 0xffff : UINT_MAX;
        second = min(second, max(lowest, number));
        lowest = min(lowest, number);
    }
    const bool leads = rows <= MOST_ROWS && lowest == strips.number(row);
    return {leads ? rows : 0, leads && rows > 1 ? strips.row(second) : 0};
}

// A warp adds up PARTS * 32 * N elements of a position, of all its rows in the strips; before them a block takes chunks of common tokens, from
// the first quarter of the grid on: what takes long shall not be last, and the first positions have most tokens' first rows.
template <typename T, int N>
__global__ void __launch_bounds__(NUM_THREADS, BLOCKS_PER_SM<T>)
    encoder_ahead_kernel(const Strips strips, Table *table,
                         float *sums,   // of chunks, (strips, C)
                         const T *dout, // (batch, positions, C)
                         float *dwte,   // (V, C)
                         float *dwpe,   // (positions, C)
                         int C)
{
    __shared__ SharedStorage<T, N> smem;
#if __CUDA_ARCH__ >= 900
    griddepcontrol_launch_dependents();
#endif
    constexpr int WIDTH = PARTS<T> * 32 * N;
    const unsigned parts = (C - 1) / WIDTH + 1, lane = threadIdx.x % 32;
    const unsigned batch = strips.batch, positions = strips.positions;
    const unsigned part = (blockIdx.x * NUM_THREADS + threadIdx.x) / 32; // a warp's
    const unsigned position = strips.begin / batch * 32 + part / parts,
                   first_c = part % parts * WIDTH + lane * N;
    const unsigned strip = position / 32 * batch; // of the position, in the first sequence
    const bool has_position = position < positions && strip < strips.end;
    const uint64_t keep = createpolicy_evict_last(), drop = createpolicy_evict_first();
    // Each of this thread's parts that the row has.
    const auto for_each_part = [&](const auto &body) {
#pragma unroll
        for (int p = 0; p < PARTS<T>; p++)
            if (first_c + p * 32 * N < C) body(p, first_c + p * 32 * N);
    };
    float sum[PARTS<T>][N];
    if (has_position)
        for_each_part([&](int p, unsigned c) { load_elements(sum[p], dwpe + (size_t)position * C + c); });

    // 32 rows of the position at a time, from the strips' first on, of which a lane looks one up.
    const unsigned end = has_position ? min(strips.end - strip, batch) : 0;
    unsigned first = max(strips.begin, strip) - strip, count = 0;
    int its_token = 0;
    const auto row_of = [&](unsigned i) { return (first + i) * positions + position; };
    const auto ask_for_dout = [&](unsigned i) {
        if (i < count)
            for_each_part([&](int p, unsigned c) {
                copy_elements<N>(smem.dout[i % DOUT_AHEAD][p][threadIdx.x], dout + (size_t)row_of(i) * C + c,
                                 keep);
            });
    };
    const auto begin_rows = [&] {
        count = first < end ? min(end - first, 32) : 0;
        if (count == 0) return;
        its_token = strips.inp[row_of(min(lane, count - 1))];
#pragma unroll
        for (int i = 0; i < DOUT_AHEAD; i++) ask_for_dout(i);
#pragma unroll
        for (unsigned i = DOUT_AHEAD; i < DOUT_AHEAD + PREFETCHED<T>; i++)
            if (i < count && lane * N * sizeof(T) % 128 == 0) // a lane a line
                for_each_part([&](int, unsigned c) { prefetch_global_l2(dout + (size_t)row_of(i) * C + c); });
    };
    begin_rows();
#if __CUDA_ARCH__ >= 900
    griddepcontrol_wait(); // From here on the table is known.
#endif
    if (blockIdx.x == 0 && threadIdx.x == 0) table->launch++;
    const Counts counts = table->counts;
    const unsigned others = count_of(counts.others), chunks = others + count_of(counts.common);
    unsigned chunk = (blockIdx.x + gridDim.x - gridDim.x / 4) % gridDim.x;
    for (;;) {
        Group its_group = group_of(strips, table->token[its_token], row_of(min(lane, count - 1)));
        if (lane >= count) its_group.rows = 0; // a lane without a row, or a warp without a position
        const unsigned leads = __ballot_sync(0xffffffff, its_group.rows > 0);
        const unsigned come_again = __ballot_sync(0xffffffff, its_group.rows > 1);
        const auto ask_for_dwte = [&](unsigned i) {
            const int token = __shfl_sync(0xffffffff, its_token, i % 32);
            const unsigned second = __shfl_sync(0xffffffff, its_group.second, i % 32);
            if (i < 32 && come_again >> i & 1)
                for_each_part([&](int p, unsigned c) {
                    copy_elements<N>(smem.second[i % DWTE_AHEAD][p][threadIdx.x],
                                     dout + (size_t)second * C + c, keep);
                });
            if (i < 32 && leads >> i & 1)
                for_each_part([&](int p, unsigned c) {
                    copy_elements<N>(smem.dwte[i % DWTE_AHEAD][p][threadIdx.x], dwte + (size_t)token * C + c,
                                     drop);
                });
        };
        for (;;) {
#pragma unroll
            for (int i = 0; i < DWTE_AHEAD; i++) {
                ask_for_dwte(i);
                cp_async_commit_group();
            }
            if (chunk >= chunks) break;
            cp_async_wait_group<0>();
            __syncthreads(); // Nothing is on its way any more. It is asked for again.
            for (; chunk < chunks; chunk += gridDim.x) {
                add_chunk(smem.found, strips, table, chunk, others, sums, dout, dwte, C);
                __syncthreads(); // Everyone is done with what was found.
            }
        }
#pragma unroll 4
        for (unsigned i = 0; i < count; i++) {
            const int token = __shfl_sync(0xffffffff, its_token, i);
            const unsigned rows = __shfl_sync(0xffffffff, its_group.rows, i);
            float token_sum[PARTS<T>][N];
            cp_async_wait_group<DWTE_AHEAD - 1>(); // The i-th row of both is there.
            for_each_part([&](int p, unsigned) {
                float addend[N];
                load_elements(addend, smem.dout[i % DOUT_AHEAD][p][threadIdx.x]);
                add_to(sum[p], addend);
                if (rows == 0) return;
                load_elements(token_sum[p], smem.dwte[i % DWTE_AHEAD][p][threadIdx.x]);
                add_to(token_sum[p], addend);
                if (rows == 1) return;
                load_elements(addend, smem.second[i % DWTE_AHEAD][p][threadIdx.x]);
                add_to(token_sum[p], addend);
            });
            if (rows > 2) {
                unsigned number = strips.number(__shfl_sync(0xffffffff, its_group.second, i));
                const unsigned other = lane < rows ? table->token[token].number[lane] : UINT_MAX;
#pragma unroll 1
                for (unsigned r = 2; r < rows; r++) { // The lanes look for the next row.
                    number = __reduce_min_sync(0xffffffff, other > number ? other : UINT_MAX);
                    const T *const row = dout + (size_t)strips.row(number) * C;
                    float addend[PARTS<T>][N];
                    for_each_part([&](int p, unsigned c) { load_elements(addend[p], row + c); });
                    for_each_part([&](int p, unsigned) { add_to(token_sum[p], addend[p]); });
                }
            }
            if (rows > 0)
                for_each_part(
                    [&](int p, unsigned c) { store_values(dwte + (size_t)token * C + c, token_sum[p]); });
            ask_for_dout(i + DOUT_AHEAD);
            ask_for_dwte(i + DWTE_AHEAD);
            cp_async_commit_group();
        }
        first += 32;
        if (first >= end) break;
        begin_rows();
    }
    if (has_position)
        for_each_part([&](int p, unsigned c) { store_values(dwpe + (size_t)position * C + c, sum[p]); });
}

// A table for V tokens, which all launches share, one after the other. A larger one, all zeros, takes its place.
static cudaError_t get_table(int V, Table **table, cudaStream_t stream)
{
    static Table *memory;
    static int tokens;
    cudaError_t error = cudaSuccess;
    if (tokens < V) {
        const size_t bytes = sizeof(Table) + V * sizeof(Token);
        error = cudaFree(memory);
        memory = NULL;
        tokens = 0;
        if (error == cudaSuccess) error = cudaMalloc(&memory, bytes);
        if (error == cudaSuccess) error = cudaMemsetAsync(memory, 0, bytes, stream);
        if (error == cudaSuccess) tokens = V;
    }
    *table = memory;
    return error;
}

// As many strips a launch of the two as the table has room for.
template <typename T, int N>
static cudaError_t launch_kernels(const int *inp, const T *dout, float *dwte, float *dwpe, unsigned batch,
                                  unsigned positions, int C, int V, cudaStream_t stream)
{
    const unsigned all = ((positions - 1) / 32 + 1) * batch, parts = (C - 1) / (PARTS<T> * 32 * N) + 1;
    Table *table;
    void *sums;
    cudaError_t error = get_table(V, &table, stream);
    if (error == cudaSuccess) error = get_scratch((size_t)MAX_STRIPS * C * sizeof(float), &sums);
    for (unsigned begin = 0; begin < all && error == cudaSuccess; begin += MAX_STRIPS) {
        const Strips strips = {inp, batch, positions, begin,
                               all - begin < MAX_STRIPS ? all : begin + MAX_STRIPS};
        error = launch_early(fill_table_kernel, (strips.end - begin - 1) / (TABLE_THREADS / 32) + 1,
                             TABLE_THREADS, 0, stream, strips, table, V);
        if (error != cudaSuccess) break;
        const size_t warps = ((strips.end - 1) / batch - begin / batch + 1) * 32 * (size_t)parts;
        error = launch_early(encoder_ahead_kernel<T, N>, (warps - 1) / NUM_WARPS + 1, NUM_THREADS, 0, stream,
                             strips, table, (float *)sums, dout, dwte, dwpe, C);
    }
    return error;
}

template <typename T>
static cudaError_t launch(const int *inp, const void *dout, float *dwte, float *dwpe, int batch,
                          int positions, int C, int V, cudaStream_t stream)
{
    if (!inp || !dout || !dwte || !dwpe || batch <= 0 || positions <= 0 || C <= 0 || V <= 0)
        return cudaErrorInvalidValue;
    if (((uintptr_t)dout | (uintptr_t)dwte | (uintptr_t)dwpe) % PACK_BYTES != 0) return cudaErrorInvalidValue;
    const auto launch_by = C % 4 == 0 ? launch_kernels<T, 4> : launch_kernels<T, 1>;
    return launch_by(inp, (const T *)dout, dwte, dwpe, batch, positions, C, V, stream);
}

extern "C" cudaError_t encoder_ahead(enum dtype dtype, const int *inp, const void *dout, float *dwte,
                                     float *dwpe, int B, int T, int C, int V, cudaStream_t stream)
{
    return dtype == BF16 ? launch<__nv_bfloat16>(inp, dout, dwte, dwpe, B, T, C, V, stream)
                         : launch<float>(inp, dout, dwte, dwpe, B, T, C, V, stream);
}
