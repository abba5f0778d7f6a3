// Chapter 7, step 7: a row of sums a block, and a fixed order.
//
// Question: step 6 has few atomics left, but still no order. What does an order cost?
//
// Grows from: step 6 (gradient_registers).
// A block adds up what its groups have of each column, in shared memory, in the order of their numbers, and writes a row of
// partial sums; a second kernel adds the rows of partials, 132 at most, in a fixed order, too. The orders depend on nothing
// but the shape: the bits are the same on every run and on every GPU.
//
//      block 0: group 0 + group 1 + …   -> partials[0]  (2, C) |
//      block 1                          -> partials[1]         | -> dweight, dbias += the sums of the rows
//      …                                                       |
//
// Registers: at most 128. Shared memory: 65,792 bytes at most.
// Run: make chapter-7 OP=layernorm_backward STEP=gradient_partials
#include "../../common/device/pack.cuh"
#include "../../common/device/ptx.cuh"
#include "../../common/device/scratch.h"
#include "launchers.h"

#include <cuda_runtime.h>

constexpr int NUM_THREADS = 512;
constexpr int NUM_WARPS = NUM_THREADS / 32;
constexpr int MAX_PIECES = 4;   // of x, and of dout, a lane keeps
constexpr int MAX_BLOCKS = 132; // as many as an H200 has SMs; elsewhere the same, for the same bits
constexpr int ROW_THREADS = 256;
constexpr int TILE = 32; // columns of a block of the second kernel, and its warps

static __device__ float warp_sum(float value)
{
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) value += __shfl_xor_sync(0xffffffff, value, offset);
    return value;
}

// Adds two sums over the blockDim.x lanes of a group: a warp, or several, which meet at a barrier of their own.
static __device__ float2 group_sum(float2 sums, float2 (&warp_sums)[NUM_WARPS])
{
    sums = make_float2(warp_sum(sums.x), warp_sum(sums.y));
    if (blockDim.x == 32) return sums;
    const int warps = blockDim.x / 32;
    const int first = threadIdx.y * warps;
    if (threadIdx.x % 32 == 0) warp_sums[first + threadIdx.x / 32] = sums;
    named_barrier_sync(1 + threadIdx.y, blockDim.x); // The group's sums are there.
    sums = warp_sums[first];
    for (int w = 1; w < warps; w++) {
        sums.x += warp_sums[first + w].x;
        sums.y += warp_sums[first + w].y;
    }
    return sums;
}

// Adds up what the groups of the block have of each column, group by group, into dst (columns). smem: a row of
// columns for every group.
template <int PIECES, int N>
static __device__ void add_groups(float *smem, const float (&sums)[PIECES][N], float *dst, unsigned first,
                                  unsigned columns)
{
    const unsigned width = blockDim.x * PIECES * N;
#pragma unroll
    for (int i = 0; i < PIECES; i++) {
        float *place = smem + threadIdx.y * width + first + 32 * N * i;
        if constexpr (N % 4 == 0) {
#pragma unroll
            for (int k = 0; k < N; k += 4)
                *reinterpret_cast<float4 *>(place + k) =
                    make_float4(sums[i][k], sums[i][k + 1], sums[i][k + 2], sums[i][k + 3]);
        } else
            place[0] = sums[i][0];
    }
    __syncthreads(); // Every group's sums are there.
    for (unsigned c = threadIdx.y * blockDim.x + threadIdx.x; c < columns; c += NUM_THREADS) {
        float sum = smem[c];
        for (unsigned group = 1; group < blockDim.y; group++) sum += smem[group * width + c];
        dst[c] = sum;
    }
    __syncthreads(); // They have been read.
}

// dinp, and the block's partial sums of dweight and dbias, of the columns from blockIdx.y * (lanes * PIECES * N) on. row_sums, if
// WIDE: the sums of d and d n of every row, where a row has more columns than that.
template <typename T, int N, int PIECES, bool WIDE>
__global__ void __launch_bounds__(NUM_THREADS, 1)
    gradient_partials_kernel(const T *inp,           // (rows, C)
                             const T *dout,          // (rows, C)
                             const T *weight,        // (C)
                             const float *mean,      // (rows)
                             const float *rstd,      // (rows)
                             const float2 *row_sums, // (rows), if WIDE
                             T *dinp,                // (rows, C)
                             float *partials,        // (gridDim.x, 2, C)
                             int rows, int C)
{
    extern __shared__ __align__(128) float smem[]; // (groups, lanes * PIECES * N)
    __shared__ float2 warp_sums[2][NUM_WARPS];     // of a row, and of the next
    const unsigned tile_begin = blockIdx.y * (blockDim.x * PIECES * N);
    const unsigned columns = min(C - tile_begin, blockDim.x * PIECES * N);
    const unsigned first = (threadIdx.x / 32 * (32 * PIECES) + threadIdx.x % 32) * N; // in the tile

    float dweight_sum[PIECES][N] = {}, dbias_sum[PIECES][N] = {};
    int parity = 0;
    for (unsigned row = blockIdx.x * blockDim.y + threadIdx.y; row < rows; row += gridDim.x * blockDim.y) {
        const size_t begin = (size_t)row * C + tile_begin;
        Piece<T, N> x_frag[PIECES], dout_frag[PIECES];
#pragma unroll
        for (int i = 0; i < PIECES; i++) {
            const unsigned c = first + 32 * N * i;
            if (c >= columns) continue;
            x_frag[i] = load_piece_once<N>(inp + begin + c);
            dout_frag[i] = load_piece_once<N>(dout + begin + c);
        }
        const float row_mean = mean[row], row_rstd = rstd[row];

        float2 sums = {0.0f, 0.0f}; // of d, of d n
#pragma unroll
        for (int i = 0; i < PIECES; i++) {
            const unsigned c = first + 32 * N * i;
            if (c >= columns) continue;
            float x[N], dy[N], w[N];
            keep_packed(x_frag[i]);
            keep_packed(dout_frag[i]);
            load_values(w, weight + tile_begin + c);
            unpack(x, x_frag[i], T());
            unpack(dy, dout_frag[i], T());
#pragma unroll
            for (int k = 0; k < N; k++) {
                const float n = (x[k] - row_mean) * row_rstd;
                const float d = w[k] * dy[k];
                sums.x += d;
                sums.y += d * n;
                dweight_sum[i][k] += dy[k] * n;
                dbias_sum[i][k] += dy[k];
            }
        }
        // One barrier a row is enough: who writes the sums of the row after the next has passed that of the next, and so
        // everyone has read this row's.
        sums = WIDE ? row_sums[row] : group_sum(sums, warp_sums[parity]);
        parity ^= 1;
        const float d_mean = sums.x / C, dn_mean = sums.y / C;

#pragma unroll
        for (int i = 0; i < PIECES; i++) {
            const unsigned c = first + 32 * N * i;
            if (c >= columns) continue;
            float x[N], dy[N], w[N];
            keep_packed(x_frag[i]);
            keep_packed(dout_frag[i]);
            load_values(w, weight + tile_begin + c);
            unpack(x, x_frag[i], T());
            unpack(dy, dout_frag[i], T());
#pragma unroll
            for (int k = 0; k < N; k++) {
                const float n = (x[k] - row_mean) * row_rstd;
                x[k] = (w[k] * dy[k] - d_mean - n * dn_mean) * row_rstd;
            }
            store_piece_once(dinp + begin + c, make_pack(x, T()));
        }
    }
    float *partial = partials + (size_t)blockIdx.x * 2 * C + tile_begin;
    add_groups(smem, dweight_sum, partial, first, columns);
    add_groups(smem, dbias_sum, partial + C, first, columns);
}

// The sums of d and d n of a row, for rows that are cut into tiles: a block a row.
template <typename T>
__global__ void __launch_bounds__(ROW_THREADS) row_sums_kernel(const T *inp,      // (rows, C)
                                                               const T *dout,     // (rows, C)
                                                               const T *weight,   // (C)
                                                               const float *mean, // (rows)
                                                               const float *rstd, // (rows)
                                                               float2 *row_sums,  // (rows)
                                                               int C)
{
    __shared__ float2 warp_sums[NUM_WARPS];
    const size_t begin = (size_t)blockIdx.x * C;
    float2 sums = {0.0f, 0.0f};
    for (unsigned c = threadIdx.x; c < C; c += ROW_THREADS) {
        const float d = to_float(weight[c]) * to_float(dout[begin + c]);
        sums.x += d;
        sums.y += d * ((to_float(inp[begin + c]) - mean[blockIdx.x]) * rstd[blockIdx.x]);
    }
    sums = group_sum(sums, warp_sums);
    if (threadIdx.x == 0) row_sums[blockIdx.x] = sums;
}

// dweight and dbias += the sums of the partials' columns: a warp has every TILE-th row of them, then a column.
static __global__ void __launch_bounds__(TILE *TILE)
    column_sums_kernel(const float *partials, // (blocks, 2, C)
                       float *dweight,        // (C)
                       float *dbias,          // (C)
                       int blocks, int C)
{
    __shared__ float sums[TILE][TILE + 1]; // (warp, column), without bank conflicts for who reads a column
    const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const unsigned c0 = blockIdx.x * TILE;
    float *gradient = blockIdx.y ? dbias : dweight;
    float sum = 0.0f;
    for (unsigned b = warp; b < blocks && c0 + lane < C; b += TILE)
        sum += partials[((size_t)b * 2 + blockIdx.y) * C + c0 + lane];
    sums[warp][lane] = sum;
    __syncthreads(); // Every warp's sums are there.
    sum = warp_sum(sums[lane][warp]);
    if (lane == 0 && c0 + warp < C) gradient[c0 + warp] += sum;
}

template <typename T, int N>
static cudaError_t launch_kernels(const T *inp, const T *dout, const T *weight, const float *mean,
                                  const float *rstd, T *dinp, float *dweight, float *dbias, int rows, int C,
                                  cudaStream_t stream)
{
    const int pieces = (C - 1) / N + 1;
    int lanes = 32; // of a group
    while (lanes < NUM_THREADS && lanes * MAX_PIECES < pieces) lanes *= 2;
    const bool wide = lanes * MAX_PIECES < pieces;
    const bool three = wide || lanes * 3 >= pieces; // pieces a lane
    const int tile = lanes * (three ? 3 : MAX_PIECES) * N;
    const dim3 block(lanes, NUM_THREADS / lanes);
    const int blocks = min((rows - 1) / (int)block.y + 1, MAX_BLOCKS);
    const size_t partial_bytes = ((size_t)blocks * 2 * C + 1) / 2 * 2 * sizeof(float);
    void *scratch;
    cudaError_t error = get_scratch(partial_bytes + rows * sizeof(float2), &scratch);
    if (error != cudaSuccess) return error;
    float *partials = (float *)scratch;
    float2 *row_sums = wide ? (float2 *)((char *)scratch + partial_bytes) : NULL;
    if (wide) row_sums_kernel<<<rows, ROW_THREADS, 0, stream>>>(inp, dout, weight, mean, rstd, row_sums, C);

    auto kernel = gradient_partials_kernel<T, N, MAX_PIECES, false>;
    if (wide)
        kernel = gradient_partials_kernel<T, N, 3, true>;
    else if (three)
        kernel = gradient_partials_kernel<T, N, 3, false>;
    const size_t smem_bytes = (size_t)block.y * tile * sizeof(float);
    error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, smem_bytes);
    if (error != cudaSuccess) return error;
    const dim3 grid(blocks, (C - 1) / tile + 1);
    kernel<<<grid, block, smem_bytes, stream>>>(inp, dout, weight, mean, rstd, row_sums, dinp, partials, rows,
                                                C);
    error = cudaGetLastError();
    if (error != cudaSuccess) return error;
    column_sums_kernel<<<dim3((C - 1) / TILE + 1, 2), TILE * TILE, 0, stream>>>(partials, dweight, dbias,
                                                                                blocks, C);
    return cudaGetLastError();
}

template <typename T>
static cudaError_t launch(const void *inp, const void *dout, const void *weight, const float *mean,
                          const float *rstd, void *dinp, float *dweight, float *dbias, int rows, int C,
                          cudaStream_t stream)
{
    if (!inp || !dout || !weight || !mean || !rstd || !dinp || !dweight || !dbias || rows <= 0 || C <= 0)
        return cudaErrorInvalidValue;
    if (((uintptr_t)inp | (uintptr_t)dout | (uintptr_t)weight | (uintptr_t)dinp) % PACK_BYTES != 0)
        return cudaErrorInvalidValue;
    const auto launch_them = C % PACK<T> == 0 ? launch_kernels<T, PACK<T>> : launch_kernels<T, 1>;
    return launch_them((const T *)inp, (const T *)dout, (const T *)weight, mean, rstd, (T *)dinp, dweight,
                       dbias, rows, C, stream);
}

extern "C" cudaError_t gradient_partials(enum dtype dtype, const void *inp, const void *dout,
                                         const void *weight, const float *mean, const float *rstd, void *dinp,
                                         float *dweight, float *dbias, int rows, int C, cudaStream_t stream)
{
    return dtype == BF16
               ? launch<__nv_bfloat16>(inp, dout, weight, mean, rstd, dinp, dweight, dbias, rows, C, stream)
               : launch<float>(inp, dout, weight, mean, rstd, dinp, dweight, dbias, rows, C, stream);
}
