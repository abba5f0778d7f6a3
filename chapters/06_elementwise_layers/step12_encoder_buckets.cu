// Chapter 6, step 12: the same bits every time, and both sums side by side.
//
// Question: which rows belong to a token, the text decides. Can one thread have them all, in the same order every time?
//
// Grows from: step 11 (encoder_positions).
// A block owns a bucket of tokens, those whose remainder by NUM_BUCKETS is its number. It looks through the text, a strip of 32 positions of a
// sequence at a time: a ballot says which rows of a strip are its own, a lane keeps a strip's ballot, and sums of their ones tell where in the
// block's list they belong. For every token in the list a warp adds the rows up in registers, and reads and writes its row of dwte once.
//
//      b = 0   | 0 | 2 | 4 |   the order of         bucket 1 of 3   rows of tokens 7 7 4 7
//          1   | 1 | 3 | 5 |   6 strips             warp 0: token 7, three rows     warp 1: a 7, warp 0's     warp 2: token 4
//
// Every sum is dwte + the first row + the second …, in the order of the strips, whatever the buckets, the list and the GPU.
//
// dwpe needs the same rows. Its sums, 32 packs of a position at a time, are dealt to the blocks, and a block's warps take both kinds of work in
// turn, so that both go through the positions side by side: a row that one has just read from the memory, the other finds in the L2. (Not so the
// later rows of a token: they are read with its first.) While the list is made, the L2 is asked for the first rows.
//
// Launched early (chapter 6, step 3). New instruction: prefetch.
// Registers: at most 64. Shared memory: 32,900 bytes.
// Run: make chapter-6 OP=encoder_backward STEP=encoder_buckets
#include "../../common/device/launch.cuh"
#include "../../common/device/pack.cuh"
#include "../../common/device/warp.cuh"
#include "launchers.h"

#include <cuda_runtime.h>

constexpr int NUM_THREADS = 1024;
constexpr int NUM_WARPS = NUM_THREADS / 32;
constexpr int NUM_BUCKETS = 132;  // a block for each of an H200's SMs
constexpr int MAX_STRIPS = 1024;  // that a block looks through before it adds up what it found
constexpr int MAX_LIST = 4096;    // rows that it may find
constexpr int STRIPS_AHEAD = 8;   // whose tokens a warp asks for at a time
constexpr int TOKEN_PACKS = 8;    // of a token's row, that a lane takes at a time
constexpr int POSITION_AHEAD = 4; // rows of a position, that it has in flight

// Packs of a token's row, that a lane has in flight: 8 elements. For 16 of bf16 the registers are too few.
template <int N>
constexpr int PACKS = 8 / N;

static_assert(MAX_STRIPS <= 32 * NUM_WARPS, "a lane keeps one strip");

struct SharedStorage {
    int work_taken;            // of the block's pieces, 4 bytes
    int warp_count[NUM_WARPS]; // rows that a warp found, 128 bytes
    int token[MAX_LIST];       // of each row in the list, 16,384 bytes
    unsigned row[MAX_LIST];    // of the bucket's tokens, in the order of the strips, 16,384 bytes
};

struct Text {
    const int *inp; // (batch, positions)
    int batch, positions;
    __device__ unsigned strips() const { return ((positions - 1) / 32 + 1) * batch; }
};

// What a lane found in its strip: the rows of the bucket's tokens, a bit for each, from the strip's first row on.
struct Found {
    unsigned first_row, rows;
};

// Looks through strips [begin, end), each warp its share of at most 32.
static __device__ Found look_through(const Text &text, unsigned begin, unsigned end)
{
    const unsigned lane = threadIdx.x % 32, batch = text.batch, positions = text.positions;
    const unsigned share = (end - begin - 1) / NUM_WARPS + 1;
    const unsigned first = min(begin + threadIdx.x / 32 * share, end), last = min(first + share, end);
    unsigned b = first % batch, position = first / batch * 32 + lane;
    Found found = {(first + lane) % batch * positions + (first + lane) / batch * 32, 0};
    for (unsigned strip = first; strip < last; strip += STRIPS_AHEAD) {
        int token[STRIPS_AHEAD];
#pragma unroll
        for (int i = 0; i < STRIPS_AHEAD; i++) {
            token[i] = strip + i < last && position < positions ? text.inp[b * positions + position] : -1;
            if (++b == batch) {
                b = 0;
                position += 32;
            }
        }
#pragma unroll
        for (int i = 0; i < STRIPS_AHEAD; i++) {
            const unsigned rows = __ballot_sync(0xffffffff, token[i] % NUM_BUCKETS == (int)blockIdx.x);
            if (strip + i == first + lane) found.rows = rows;
        }
    }
    return found;
}

// Asks the L2 for the first rows of strips [begin, end), as much as the grid's threads do with a line each.
template <typename T>
static __device__ void prefetch_rows(const Text &text, unsigned begin, unsigned end, const T *dout, int C)
{
    constexpr unsigned LINE = 128 / sizeof(T);
    const unsigned lines = (C - 1) / LINE + 1; // of a row
    const unsigned mine = blockIdx.x * NUM_THREADS + threadIdx.x, row = mine / lines;
    const unsigned strip = begin + row / 32, position = strip / text.batch * 32 + row % 32;
    if (strip < end && position < text.positions)
        prefetch_global_l2(dout + ((size_t)(strip % text.batch) * text.positions + position) * C +
                           mine % lines * LINE);
}

// Lists the rows that were found, in the order of the strips, and returns how many there are: if more than MAX_LIST, there is no list.
static __device__ int list_rows(SharedStorage &smem, const Text &text, Found found)
{
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    int place = sum_up_to_lane(__popc(found.rows));
    __syncthreads(); // Everyone is done with the list, and with the counts before.
    if (lane == 31) smem.warp_count[warp] = place;
    if (threadIdx.x == 0) smem.work_taken = 0;
    __syncthreads(); // Every warp's count is there.
    place -= __popc(found.rows);
    int count = 0;
    for (int w = 0; w < NUM_WARPS; w++) {
        if (w == warp) place += count;
        count += smem.warp_count[w];
    }
    if (count > MAX_LIST) return count;
    for (; found.rows; found.rows &= found.rows - 1) {
        const unsigned row = found.first_row + __ffs(found.rows) - 1;
        smem.row[place] = row;
        smem.token[place++] = text.inp[row];
    }
    __syncthreads(); // The list is there.
    return count;
}

// The lanes whose entry of the list, begin + lane, is below `end` and of this token.
static __device__ unsigned lanes_with(const SharedStorage &smem, int token, int begin, int end)
{
    const int entry = begin + (int)threadIdx.x % 32;
    return __ballot_sync(0xffffffff, entry < end && smem.token[entry] == token);
}

// A warp adds elements [c, c + TOKEN_PACKS * 32 * N) of all rows of an entry's token to dwte, if the entry is the first of that token.
template <typename T, int N>
static __device__ void add_token(const SharedStorage &smem, int entry, int count, unsigned c, const T *dout,
                                 float *dwte, int C)
{
    const int token = smem.token[entry];
    unsigned earlier = 0;
    for (int begin = 0; begin < entry && !earlier; begin += 32)
        earlier = lanes_with(smem, token, begin, entry);
    if (earlier) return; // with that entry
    float *dwte_row = dwte + (size_t)token * C;
    const unsigned end = min(c + TOKEN_PACKS * 32 * N, C);
    for (; c < end; c += PACKS<N> * 32 * N) {
        const unsigned first = c + threadIdx.x % 32 * N;
        float sum[PACKS<N>][N], addend[PACKS<N>][N];
#pragma unroll
        for (int i = 0; i < PACKS<N>; i++)
            if (first + i * 32 * N < C) load_values_once(sum[i], dwte_row + first + i * 32 * N);
        for (int begin = entry / 32 * 32; begin < count; begin += 32)
            for (unsigned same = lanes_with(smem, token, begin, count); same; same &= same - 1) {
                const T *dout_row = dout + (size_t)smem.row[begin + __ffs(same) - 1] * C;
#pragma unroll
                for (int i = 0; i < PACKS<N>; i++)
                    if (first + i * 32 * N < C)
                        load_values_streamed(addend[i], dout_row + first + i * 32 * N);
#pragma unroll
                for (int i = 0; i < PACKS<N>; i++)
#pragma unroll
                    for (int k = 0; k < N && first + i * 32 * N < C; k++) sum[i][k] += addend[i][k];
            }
#pragma unroll
        for (int i = 0; i < PACKS<N>; i++)
            if (first + i * 32 * N < C) store_values(dwte_row + first + i * 32 * N, sum[i]);
    }
}

// A warp adds 32 packs of a position, from element c on, of all sequences to dwpe.
template <typename T, int N>
static __device__ void add_position(const Text &text, unsigned position, unsigned c, const T *dout,
                                    float *dwpe, int C)
{
    c += threadIdx.x % 32 * N;
    if (c >= C) return;
    const T *src = dout + (size_t)position * C + c;
    float sum[N];
    load_values_once(sum, dwpe + (size_t)position * C + c);
#pragma unroll POSITION_AHEAD
    for (int b = 0; b < text.batch; b++) {
        float addend[N];
        load_values_streamed(addend, src);
        src += (size_t)text.positions * C;
#pragma unroll
        for (int k = 0; k < N; k++) sum[k] += addend[k];
    }
    store_values(dwpe + (size_t)position * C + c, sum);
}

// A block a bucket. A lane takes N elements at a time: a pack of T, or one.
template <typename T, int N>
__global__ void __launch_bounds__(NUM_THREADS, 1)
    encoder_buckets_kernel(const int *inp, // (batch, positions)
                           const T *dout,  // (batch, positions, C)
                           float *dwte,    // (V, C)
                           float *dwpe,    // (positions, C)
                           int batch, int positions, int C)
{
    wait_for_kernels_before();
    __shared__ SharedStorage smem;
    const Text text = {inp, batch, positions};
    const unsigned strips = text.strips();
    const unsigned parts = (C - 1) / (32 * N) + 1;                     // of a position
    const unsigned token_parts = (C - 1) / (TOKEN_PACKS * 32 * N) + 1; // of a token's row
    unsigned parts_done = 0; // of this block's: blockIdx.x, blockIdx.x + NUM_BUCKETS, …
    for (unsigned begin = 0; begin < strips;) {
        unsigned end = min(begin + MAX_STRIPS, strips);
        const Found found = look_through(text, begin, end);
        prefetch_rows(text, begin, end, dout, C);
        int count = list_rows(smem, text, found);
        if (count > MAX_LIST) { // So many strips have room for certain.
            end = min(begin + MAX_LIST / 32, strips);
            count = list_rows(smem, text, look_through(text, begin, end));
        }

        // The parts of positions that have been looked through in all sequences, evenly spread between the list's entries.
        const unsigned until = (end == strips ? positions : end / batch * 32) * parts;
        const unsigned parts_until = until > blockIdx.x ? (until - blockIdx.x - 1) / NUM_BUCKETS + 1 : 0;
        const unsigned parts_now = parts_until - parts_done, work = parts_now + count * token_parts;
        for (;;) {
            unsigned mine = 0;
            if (threadIdx.x % 32 == 0) mine = atomicAdd(&smem.work_taken, 1);
            mine = __shfl_sync(0xffffffff, mine, 0);
            if (mine >= work) break;
            const unsigned parts_before = (size_t)mine * parts_now / work;
            if (parts_before < (size_t)(mine + 1) * parts_now / work) {
                const unsigned part = blockIdx.x + (parts_done + parts_before) * NUM_BUCKETS;
                add_position<T, N>(text, part / parts, part % parts * (32 * N), dout, dwpe, C);
            } else {
                const unsigned part = mine - parts_before;
                add_token<T, N>(smem, part / token_parts, count, part % token_parts * (TOKEN_PACKS * 32 * N),
                                dout, dwte, C);
            }
        }
        parts_done = parts_until;
        begin = end;
    }
}

template <typename T>
static cudaError_t launch(const int *inp, const void *dout, float *dwte, float *dwpe, int batch,
                          int positions, int C, cudaStream_t stream)
{
    if (!inp || !dout || !dwte || !dwpe || batch <= 0 || positions <= 0 || C <= 0)
        return cudaErrorInvalidValue;
    if (((uintptr_t)dout | (uintptr_t)dwte | (uintptr_t)dwpe) % PACK_BYTES != 0) return cudaErrorInvalidValue;
    const auto kernel = C % PACK<T> == 0 ? encoder_buckets_kernel<T, PACK<T>> : encoder_buckets_kernel<T, 1>;
    return launch_early(kernel, NUM_BUCKETS, NUM_THREADS, 0, stream, inp, (const T *)dout, dwte, dwpe, batch,
                        positions, C);
}

extern "C" cudaError_t encoder_buckets(enum dtype dtype, const int *inp, const void *dout, float *dwte,
                                       float *dwpe, int B, int T, int C, int, cudaStream_t stream)
{
    return dtype == BF16 ? launch<__nv_bfloat16>(inp, dout, dwte, dwpe, B, T, C, stream)
                         : launch<float>(inp, dout, dwte, dwpe, B, T, C, stream);
}
