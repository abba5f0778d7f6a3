// What steps 8, 9 and 10 share: the groups of a block, and the sums along rows and down columns, which are step 7's. S is the sums along a
// row: LayerNorm's are two, of d and of d n, and down the columns it has the two of dweight and dbias; RMSNorm has the second, and dweight.
//
// A block has as many threads as there are registers for; a group is as many of its warps as hold a row. A lane has one, two or three packs
// of a row (where rows begin anywhere: 3, 6 or 9 elements), the fewest that give a block the most groups.
//
//      elements of a lane      3, 4    6, 8    9 to 16          24
//      threads of a block       768     640     512, 640       384
//      registers of a thread     80      88     112,  96       144      at most; for 9 elements 120
//
// An SM has 65,536. What 88, 112 and 144 leave is enough for a block of the last kernel, which can so be set up, and wait, while rows are
// computed with; 96 are for 16 elements, where more groups are worth more than that.
#pragma once
#include "../../common/device/launch.cuh"
#include "../../common/device/pack.cuh"
#include "../../common/device/ptx.cuh"
#include "../../common/device/scratch.h"

#include <cuda_runtime.h>

constexpr int MAX_WARPS = 24;   // of a block
constexpr int MAX_BLOCKS = 132; // as many as an H200 has SMs; elsewhere the same, for the same bits
constexpr int ROW_THREADS = 256;
// A block of the last kernel: so many lanes, with as many columns of the partial sums each as are read at once, and so many rows at a time.
constexpr int SUM_LANES = 8;
constexpr int SUM_ROWS = 16;
static_assert(MAX_WARPS / 2 <= 15, "groups of several warps have a named barrier each");

// Of a block whose lanes have so many elements of a row each.
__host__ __device__ constexpr int threads_of(int elements)
{
    return elements <= 4 ? 768 : elements <= 8 ? 640 : elements <= 16 ? 512 : 384;
}

// Of a lane of so many elements, in a block of so many threads.
__host__ __device__ constexpr int registers_of(int elements, int threads)
{
    return threads == 768   ? 80
           : threads == 640 ? (elements <= 8 ? 88 : 96)
           : threads == 512 ? (elements == 9 ? 120 : 112)
                            : 144;
}

// A lane's pieces of the rows of ARRAYS arrays that are under way. Packs go to shared memory: what a lane has there nobody else writes or
// reads, so that it needs no barrier. Single elements are smaller than what cp.async copies; they wait in registers, of one row.
template <typename T, int N, int PIECES, int ARRAYS, int THREADS>
struct Ahead {
    const int rows;     // under way while one is computed with: 0, 1 or 2; 1 if N is 1
    Piece<T, N> *slots; // (rows + 1, ARRAYS, PIECES, THREADS), from this thread on
    int next = 0;       // slot to be filled
    Piece<T, N> waiting[ARRAYS][PIECES] = {}, taken[ARRAYS][PIECES]; // if N is 1

    __device__ Ahead(int rows, void *smem)
        : rows(rows), slots(static_cast<Piece<T, N> *>(smem) + threadIdx.y * blockDim.x + threadIdx.x)
    {
        // Pieces behind the last column are never asked for, and stay zeros.
        for (int i = 0; i < (rows + 1) * ARRAYS * PIECES && N > 1; i++) slots[i * THREADS] = Piece<T, N>();
    }
    __device__ Piece<T, N> *place(int slot, int array, int piece) const
    {
        return slots + ((slot * ARRAYS + array) * PIECES + piece) * THREADS;
    }

    // Asks for a row, if there is one: src is where its first piece of each array is, `inside` says of which pieces there are columns.
    __device__ void ask(bool exists, const T *const (&src)[ARRAYS], const bool (&inside)[PIECES])
    {
#pragma unroll
        for (int i = 0; i < PIECES; i++) {
#pragma unroll
            for (int a = 0; a < ARRAYS && N == 1; a++) taken[a][i] = waiting[a][i];
            if (!exists || !inside[i]) continue;
#pragma unroll
            for (int a = 0; a < ARRAYS; a++)
                if constexpr (N == 1)
                    waiting[a][i] = src[a][32 * i];
                else
                    cp_async_cg_16(smem_addr(place(next, a, i)), src[a] + 32 * N * i, PACK_BYTES);
        }
        cp_async_commit_group(); // also of nothing: a row is a group
        next = next == rows ? 0 : next + 1;
    }

    // Waits for the row that was asked for `rows` rows ago.
    __device__ void wait() const
    {
        if (rows == 2)
            cp_async_wait_group<2>();
        else if (rows == 1)
            cp_async_wait_group<1>();
        else
            cp_async_wait_group<0>();
    }

    // A piece of that row, whose slot is the next to be filled.
    __device__ Piece<T, N> piece(int array, int i) const
    {
        if constexpr (N == 1)
            return taken[array][i];
        else
            return *place(next, array, i);
    }
};

static __device__ float warp_sum(float value)
{
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) value += __shfl_xor_sync(0xffffffff, value, offset);
    return value;
}

static __device__ float2 warp_sum(float2 sums)
{
    return make_float2(warp_sum(sums.x), warp_sum(sums.y));
}

static __device__ void add(float2 &sums, float2 more)
{
    sums.x += more.x;
    sums.y += more.y;
}

static __device__ void add(float &sum, float more)
{
    sum += more;
}

// Adds S over the blockDim.x lanes of a group: a warp, or several, which meet at a barrier of their own.
template <typename S>
static __device__ S group_sum(S sums, S (&warp_sums)[MAX_WARPS])
{
    sums = warp_sum(sums);
    if (blockDim.x == 32) return sums;
    const int warps = blockDim.x / 32;
    const int first = threadIdx.y * warps;
    if (threadIdx.x % 32 == 0) warp_sums[first + threadIdx.x / 32] = sums;
    named_barrier_sync(1 + threadIdx.y, blockDim.x); // The group's sums are there.
    sums = warp_sums[first];
#pragma unroll 4
    for (int w = 1; w < warps; w++) add(sums, warp_sums[first + w]);
    return sums;
}

// A lane's sums of gradient number `gradient`, into smem (gradients, groups, lanes * PIECES * N).
template <int PIECES, int N>
static __device__ void put_sums(float *smem, unsigned gradient, unsigned first,
                                const float (&sums)[PIECES][N])
{
    float *place = smem + (gradient * blockDim.y + threadIdx.y) * (blockDim.x * PIECES * N) + first;
#pragma unroll
    for (int i = 0; i < PIECES; i++)
        if constexpr (N % 4 == 0) {
#pragma unroll
            for (int k = 0; k < N; k += 4)
                *reinterpret_cast<float4 *>(place + 32 * N * i + k) =
                    make_float4(sums[i][k], sums[i][k + 1], sums[i][k + 2], sums[i][k + 3]);
        } else
            place[32 * N * i] = sums[i][0];
}

// How many columns' sums are read at once where rows come in pieces of N elements.
template <int N>
constexpr int SUMS_OF = N == 1 ? 1 : 4;

// Adds what a piece has of V columns.
template <int V>
static __device__ void add_piece(float (&sums)[V], Piece<float, V> piece)
{
    float more[V];
    unpack(more, piece, float());
#pragma unroll
    for (int k = 0; k < V; k++) sums[k] += more[k];
}

// Adds up what the groups of the block have put of each column, group by group, into partial (GRADIENTS, C), from its tile's first column
// on. width: a group's columns in smem.
template <int GRADIENTS, int V>
static __device__ void add_groups(const float *smem, unsigned width, float *partial, unsigned columns, int C)
{
    __syncthreads(); // Every group's sums are there.
    for (unsigned i = V * (threadIdx.y * blockDim.x + threadIdx.x); i < GRADIENTS * columns;
         i += V * blockDim.x * blockDim.y) {
        const unsigned gradient = i >= columns, c = i - gradient * columns;
        const float *place = smem + gradient * blockDim.y * width + c;
        float sums[V];
        unpack(sums, load_piece<V>(place), float());
#pragma unroll 4
        for (unsigned group = 1; group < blockDim.y; group++)
            add_piece(sums, load_piece<V>(place + group * width));
        store_piece(partial + (size_t)gradient * C + c, make_pack(sums, float()));
    }
}

// The sums S of a row, for rows that are cut into tiles: a block a row.
template <typename T, typename S>
__global__ void __launch_bounds__(ROW_THREADS) row_sums_kernel(const T *inp,      // (rows, C)
                                                               const T *dout,     // (rows, C)
                                                               const T *weight,   // (C)
                                                               const float *mean, // (rows), or NULL: 0
                                                               const float *rstd, // (rows)
                                                               S *row_sums,       // (rows)
                                                               int C)
{
    wait_for_kernels_before();
    __shared__ S warp_sums[MAX_WARPS];
    const size_t begin = (size_t)blockIdx.x * C;
    const float row_mean = mean ? mean[blockIdx.x] : 0.0f;
    S sums = {};
    for (unsigned c = threadIdx.x; c < C; c += ROW_THREADS) {
        const float d = to_float(weight[c]) * to_float(dout[begin + c]);
        const float n = (to_float(inp[begin + c]) - row_mean) * rstd[blockIdx.x];
        if constexpr (sizeof(S) == sizeof(float2))
            add(sums, make_float2(d, d * n));
        else
            add(sums, d * n);
    }
    sums = group_sum(sums, warp_sums);
    if (threadIdx.x == 0) row_sums[blockIdx.x] = sums;
}

// dweight, and dbias if the grid has a second row, += the sums of the partials' columns. A thread has V columns of every SUM_ROWS-th row,
// and then, of the first threads, one column of all.
template <int V>
static __global__ void __launch_bounds__(SUM_ROWS *SUM_LANES, 8)
    column_sums_kernel(const float *partials, // (blocks, gridDim.y, C)
                       float *dweight,        // (C)
                       float *dbias,          // (C)
                       int blocks, int C)
{
    wait_for_kernels_before();
    __shared__ __align__(16) float part_sums[SUM_ROWS][SUM_LANES * V];
    const unsigned row = threadIdx.x / SUM_LANES, lane = threadIdx.x % SUM_LANES;
    const unsigned first = blockIdx.x * (SUM_LANES * V), c = first + lane * V;
    const unsigned stride = gridDim.y * C; // from a row to the next
    const float *partial = partials + (size_t)row * stride + blockIdx.y * C + c;
    float *gradient = (blockIdx.y ? dbias : dweight) + first + threadIdx.x;

    constexpr int ROUNDS = (MAX_BLOCKS - 1) / SUM_ROWS + 1;
    const bool adds = threadIdx.x < SUM_LANES * V && first + threadIdx.x < C;
    const float before = adds ? *gradient : 0.0f;
    Piece<float, V> part[ROUNDS]; // all are asked for at once
#pragma unroll
    for (int i = 0; i < ROUNDS; i++) {
        part[i] = {};
        if (row + i * SUM_ROWS < blocks && c < C)
            part[i] = load_piece<V>(partial + (size_t)i * SUM_ROWS * stride);
    }
    float sums[V] = {};
#pragma unroll
    for (int i = 0; i < ROUNDS; i++) add_piece(sums, part[i]);
    store_piece(&part_sums[row][lane * V], make_pack(sums, float()));
    __syncthreads(); // Every row's sums are there.
    if (!adds) return;
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < SUM_ROWS; i++) sum += part_sums[i][threadIdx.x];
    *gradient = before + sum;
}

// A step's kernel: of whole rows, or, WIDE, of tiles of them, whose row_sums are there. The dynamic shared memory is the rows that are
// under way, and then, in their place, (gradients, groups, lanes * pieces * N). rows_ahead: as in Ahead.
template <typename T, typename S>
using gradient_kernel = void (*)(const T *inp,      // (rows, C)
                                 const T *dout,     // (rows, C)
                                 const T *weight,   // (C)
                                 const float *mean, // (rows), LayerNorm's
                                 const float *rstd, // (rows)
                                 const S *row_sums, // (rows), if WIDE
                                 T *dinp,           // (rows, C)
                                 float *partials,   // (blocks, gradients, C)
                                 int rows, int C, int rows_ahead);

// A lane's pieces, at least: a pack, or 3 elements.
template <int N>
constexpr int LEAST_PIECES = N == 1 ? 3 : 1;

// A kernel of whole rows, and what its blocks are.
template <typename T, typename S>
struct Lanes {
    gradient_kernel<T, S> kernel;
    int pieces;  // of a lane
    int threads; // of a block, at most
};

// of_lanes: the kernels to choose from; wide: that of tiles, with LEAST_PIECES<N>. RMSNorm's mean and dbias are NULL. arrays: how many the
// kernels read rows of.
template <typename T, int N, typename S, int COUNT>
static cudaError_t launch_gradient(const Lanes<T, S> (&of_lanes)[COUNT], gradient_kernel<T, S> wide,
                                   int arrays, const T *inp, const T *dout, const T *weight,
                                   const float *mean, const float *rstd, T *dinp, float *dweight,
                                   float *dbias, int rows, int C, cudaStream_t stream)
{
    const int warp_pieces = (C - 1) / (32 * N) + 1;
    constexpr int GRADIENTS = sizeof(S) / sizeof(float); // as many as sums along a row
    gradient_kernel<T, S> kernel = NULL;
    int pieces = 0, threads = 0, warps = 0, groups = 0;
    for (const Lanes<T, S> &lanes : of_lanes) {
        const int needed = (warp_pieces - 1) / lanes.pieces + 1;
        const int fit = lanes.threads / 32 / needed;
        if (fit <= groups) continue;
        kernel = lanes.kernel, pieces = lanes.pieces, threads = lanes.threads;
        warps = needed, groups = fit;
    }
    const bool cut = !kernel;
    if (cut) {
        kernel = wide, pieces = LEAST_PIECES<N>, threads = threads_of(pieces * N);
        warps = threads / 32, groups = 1;
    }
    const int tile = warps * 32 * pieces * N;
    const int blocks = min((rows - 1) / groups + 1, MAX_BLOCKS);
    const size_t partial_bytes = ((size_t)blocks * GRADIENTS * C + 1) / 2 * 2 * sizeof(float);
    void *scratch;
    cudaError_t error = get_scratch(partial_bytes + rows * sizeof(S), &scratch);
    if (error != cudaSuccess) return error;
    float *partials = (float *)scratch;
    S *row_sums = cut ? (S *)((char *)scratch + partial_bytes) : NULL;
    if (cut)
        error = launch_early(row_sums_kernel<T, S>, rows, ROW_THREADS, 0, stream, inp, dout, weight, mean,
                             rstd, row_sums, C);

    int device, most_bytes;
    if (error == cudaSuccess) error = cudaGetDevice(&device);
    if (error == cudaSuccess)
        error = cudaDeviceGetAttribute(&most_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
    if (error != cudaSuccess) return error;
    // Where many groups take turns, one row of each is enough; a GPU with less shared memory than a Hopper has no room for more.
    const int sum_bytes = GRADIENTS * groups * tile * sizeof(float);
    const int static_bytes = (2 * MAX_WARPS * sizeof(S) + 127) / 128 * 128;    // as smem is aligned
    const int row_bytes = N == 1 ? 0 : arrays * pieces * threads * PACK_BYTES; // a slot of Ahead
    int rows_ahead = N == 1 || groups > 4 ? 1 : 2;
    while (rows_ahead > 0 && (rows_ahead + 1) * row_bytes + static_bytes > most_bytes) rows_ahead--;
    const int smem_bytes = max(sum_bytes, (rows_ahead + 1) * row_bytes);
    error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, smem_bytes);
    if (error != cudaSuccess) return error;
    const dim3 grid(blocks, (C - 1) / tile + 1), block(warps * 32, groups);
    error = launch_early(kernel, grid, block, smem_bytes, stream, inp, dout, weight, mean, rstd, row_sums,
                         dinp, partials, rows, C, rows_ahead);
    if (error != cudaSuccess) return error;
    constexpr int V = SUMS_OF<N>;
    return launch_early(column_sums_kernel<V>, dim3((C - 1) / (SUM_LANES * V) + 1, GRADIENTS),
                        SUM_ROWS * SUM_LANES, 0, stream, partials, dweight, dbias, blocks, C);
}
