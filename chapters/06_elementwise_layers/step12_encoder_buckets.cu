// Chapter 6, step 12: the same bits every time.
//
// Question: which rows belong to a token, the text decides. Can one thread have them all, in the same order every time?
//
// Grows from: step 11 (encoder_positions).
// A block owns a bucket of tokens, those whose remainder by NUM_BUCKETS is its number. It walks over the text, and collects
// the rows of its tokens in the order in which they come: ballots count whom a lane has before it. For every token in the
// list a warp then adds the rows up in registers, and reads and writes its row of dwte once.
//
//      inp            7 2 9 7 4 1 2 7 …
//      bucket 1 of 3  7 . . 7 4 1 . 7     list: rows 0 3 4 5 7
//      warp 0: token 7, rows 0 3 7        warp 1: an entry of token 7, warp 0's        warp 2: token 4        warp 3: token 1
//
// Every sum is dwte + the first row + the second …, whatever the buckets, the list and the GPU. A list that is full is
// added up before the block goes on. dwpe, in a kernel of its own, takes packs now.
//
// Launched early (chapter 6, step 3).
// Registers: at most 64. Shared memory: 32,832 bytes.
// Run: make chapter-6 OP=encoder_backward STEP=encoder_buckets
#include "../../common/device/launch.cuh"
#include "../../common/device/pack.cuh"
#include "launchers.h"

#include <cuda_runtime.h>

constexpr int NUM_THREADS = 512;
constexpr int NUM_WARPS = NUM_THREADS / 32;
constexpr int NUM_BUCKETS = 264;           // 2 blocks for each of an H200's SMs
constexpr int LOOKS = 4;                   // rows that a thread looks at, at a time
constexpr int CHUNK = LOOKS * NUM_THREADS; // and a block
constexpr int MAX_LIST = 2 * CHUNK;        // rows that a block collects before it adds them up
constexpr int PACKS = 2;                   // of dout, a lane has in flight
constexpr int MAX_POSITION_THREADS = 256;  // of a block with one position

struct SharedStorage {
    unsigned row[MAX_LIST];    // of the bucket's tokens, in the order of the text, 16,384 bytes
    int token[MAX_LIST];       // of each, 16,384 bytes
    int warp_count[NUM_WARPS]; // rows that a warp found, 64 bytes
};

// Appends those of the CHUNK rows from `begin` on that are the bucket's to a list of `count`; returns its new length. A warp
// looks at neighbouring rows, 32 at a time.
static __device__ int collect(SharedStorage &smem, int count, const int *inp, unsigned begin, unsigned rows)
{
    const int warp = threadIdx.x / 32;
    const int lane = threadIdx.x % 32;
    const unsigned first = begin + warp * (32 * LOOKS) + lane;
    int token[LOOKS], found_by_warp = 0;
    unsigned found[LOOKS]; // lanes
#pragma unroll
    for (int i = 0; i < LOOKS; i++) token[i] = first + 32 * i < rows ? inp[first + 32 * i] : -1;
#pragma unroll
    for (int i = 0; i < LOOKS; i++) {
        found[i] = __ballot_sync(0xffffffff, token[i] % NUM_BUCKETS == (int)blockIdx.x);
        found_by_warp += __popc(found[i]);
    }
    if (lane == 0) smem.warp_count[warp] = found_by_warp;
    __syncthreads(); // Every warp's count is there.
    int place = count, total = count;
    for (int w = 0; w < NUM_WARPS; w++) {
        if (w < warp) place += smem.warp_count[w];
        total += smem.warp_count[w];
    }
#pragma unroll
    for (int i = 0; i < LOOKS; i++) {
        if (found[i] >> lane & 1) {
            const int mine = place + __popc(found[i] & ((1u << lane) - 1));
            smem.row[mine] = first + 32 * i;
            smem.token[mine] = token[i];
        }
        place += __popc(found[i]);
    }
    __syncthreads(); // The list is there, and everyone has read the counts.
    return total;
}

// The lanes whose entry of the list, begin + lane, is below `end` and of this token.
static __device__ unsigned lanes_with(const SharedStorage &smem, int token, int begin, int end)
{
    const int entry = begin + (int)threadIdx.x % 32;
    return __ballot_sync(0xffffffff, entry < end && smem.token[entry] == token);
}

// Adds the rows in the list to dwte: a warp takes every NUM_WARPS-th entry, if it is the first of its token.
template <typename T, int N>
static __device__ void add_rows(const SharedStorage &smem, int count, const T *dout, float *dwte, int C)
{
    for (int entry = threadIdx.x / 32; entry < count; entry += NUM_WARPS) {
        const int token = smem.token[entry];
        unsigned earlier = 0;
        for (int begin = 0; begin < entry && !earlier; begin += 32)
            earlier = lanes_with(smem, token, begin, entry);
        if (earlier) continue; // with that entry
        float *dwte_row = dwte + (size_t)token * C;
        for (unsigned c0 = 0; c0 < C; c0 += PACKS * 32 * N) {
            const unsigned first = c0 + threadIdx.x % 32 * N;
            float sum[PACKS][N], addend[PACKS][N];
#pragma unroll
            for (int i = 0; i < PACKS; i++)
                if (first + i * 32 * N < C) load_values_once(sum[i], dwte_row + first + i * 32 * N);
            for (int begin = entry / 32 * 32; begin < count; begin += 32)
                for (unsigned same = lanes_with(smem, token, begin, count); same; same &= same - 1) {
                    const T *dout_row = dout + (size_t)smem.row[begin + __ffs(same) - 1] * C;
#pragma unroll
                    for (int i = 0; i < PACKS; i++)
                        if (first + i * 32 * N < C)
                            load_values_once(addend[i], dout_row + first + i * 32 * N);
#pragma unroll
                    for (int i = 0; i < PACKS; i++)
#pragma unroll
                        for (int k = 0; k < N && first + i * 32 * N < C; k++) sum[i][k] += addend[i][k];
                }
#pragma unroll
            for (int i = 0; i < PACKS; i++)
                if (first + i * 32 * N < C) store_values(dwte_row + first + i * 32 * N, sum[i]);
        }
    }
}

// A block a bucket. A lane takes N elements at a time: a pack of T, or one.
template <typename T, int N>
__global__ void __launch_bounds__(NUM_THREADS, 2) encoder_buckets_kernel(const int *inp, // (rows)
                                                                         const T *dout,  // (rows, C)
                                                                         float *dwte,    // (V, C)
                                                                         unsigned rows, int C)
{
    wait_for_kernels_before();
    __shared__ SharedStorage smem;
    int count = 0;
    for (unsigned begin = 0; begin < rows; begin += CHUNK) {
        count = collect(smem, count, inp, begin, rows);
        if (count <= MAX_LIST - CHUNK && begin + CHUNK < rows) continue; // There is room for another chunk.
        add_rows<T, N>(smem, count, dout, dwte, C);
        count = 0; // Who is still reading the list is waited for where the next chunk's counts are.
    }
}

// A block a position, or a part of its columns.
template <typename T, int N>
__global__ void __launch_bounds__(MAX_POSITION_THREADS)
    positions_kernel(const T *dout, // (batch, positions, C)
                     float *dwpe,   // (positions, C)
                     int batch, int positions, int C)
{
    wait_for_kernels_before();
    const size_t position = blockIdx.x;
    const unsigned c = (blockIdx.y * blockDim.x + threadIdx.x) * N;
    if (c >= C) return;
    float sum[N];
    load_values_once(sum, dwpe + position * C + c);
#pragma unroll 4
    for (int b = 0; b < batch; b++) {
        float addend[N];
        load_values(addend, dout + ((size_t)b * positions + position) * C + c);
#pragma unroll
        for (int k = 0; k < N; k++) sum[k] += addend[k];
    }
    store_values(dwpe + position * C + c, sum);
}

template <typename T, int N>
static cudaError_t launch_kernels(const int *inp, const T *dout, float *dwte, float *dwpe, int batch,
                                  int positions, int C, cudaStream_t stream)
{
    const int lanes = (C - 1) / N + 1;
    const int threads = lanes < MAX_POSITION_THREADS ? (lanes + 31) / 32 * 32 : MAX_POSITION_THREADS;
    const dim3 grid(positions, (lanes - 1) / threads + 1);
    if (grid.y > 65535) return cudaErrorInvalidValue;
    const cudaError_t error =
        launch_early(positions_kernel<T, N>, grid, threads, 0, stream, dout, dwpe, batch, positions, C);
    if (error != cudaSuccess) return error;
    return launch_early(encoder_buckets_kernel<T, N>, NUM_BUCKETS, NUM_THREADS, 0, stream, inp, dout, dwte,
                        (unsigned)batch * positions, C);
}

template <typename T>
static cudaError_t launch(const int *inp, const void *dout, float *dwte, float *dwpe, int batch,
                          int positions, int C, cudaStream_t stream)
{
    if (!inp || !dout || !dwte || !dwpe || batch <= 0 || positions <= 0 || C <= 0)
        return cudaErrorInvalidValue;
    if (((uintptr_t)dout | (uintptr_t)dwte | (uintptr_t)dwpe) % PACK_BYTES != 0) return cudaErrorInvalidValue;
    const auto launch_it = C % PACK<T> == 0 ? launch_kernels<T, PACK<T>> : launch_kernels<T, 1>;
    return launch_it(inp, (const T *)dout, dwte, dwpe, batch, positions, C, stream);
}

extern "C" cudaError_t encoder_buckets(enum dtype dtype, const int *inp, const void *dout, float *dwte,
                                       float *dwpe, int B, int T, int C, cudaStream_t stream)
{
    return dtype == BF16 ? launch<__nv_bfloat16>(inp, dout, dwte, dwpe, B, T, C, stream)
                         : launch<float>(inp, dout, dwte, dwpe, B, T, C, stream);
}
