// Chapter 7, step 6: blocks that stay, and sums that stay in their registers.
//
// Question: step 5 reads every row twice, and sends two atomics an element. Can the row stay, and the columns' sums?
//
// Grows from: step 5 (gradient_atomics).
// A group of lanes, 32 to 512 as a row needs them, takes row after row and has the same columns in each: their sums of
// dout n and of dout are in its registers until its last row. Then come the atomics, two a column for each group, of which
// there are 2,112 at most, instead of two for each row. x and dout stay in registers while the row's sums are made.
//
//      block 0, group 0:  row 0   row 2112   …        a lane: the columns of its pieces, in every row
//               group 1:  row 1   row 2113   …
//      block 1, group 0:  row 16  row 2128   …
//
// A row wider than 512 lanes can hold is cut into tiles of columns, after a kernel that makes the sums of every row.
// Registers: at most 128. Shared memory: 256 bytes.
// Run: make chapter-7 OP=layernorm_backward STEP=gradient_registers
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

// dinp, and what the block adds to dweight and dbias, of the columns from blockIdx.y * (lanes * PIECES * N) on. row_sums, if
// WIDE: the sums of d and d n of every row, where a row has more columns than that.
template <typename T, int N, int PIECES, bool WIDE>
__global__ void __launch_bounds__(NUM_THREADS, 1)
    gradient_registers_kernel(const T *inp,           // (rows, C)
                              const T *dout,          // (rows, C)
                              const T *weight,        // (C)
                              const float *mean,      // (rows)
                              const float *rstd,      // (rows)
                              const float2 *row_sums, // (rows), if WIDE
                              T *dinp,                // (rows, C)
                              float *dweight,         // (C)
                              float *dbias,           // (C)
                              int rows, int C)
{
    __shared__ float2 warp_sums[2][NUM_WARPS]; // of a row, and of the next
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
#pragma unroll
    for (int i = 0; i < PIECES; i++) {
        const unsigned c = first + 32 * N * i;
        if (c >= columns) continue;
#pragma unroll
        for (int k = 0; k < N; k++) {
            atomicAdd(&dweight[tile_begin + c + k], dweight_sum[i][k]);
            atomicAdd(&dbias[tile_begin + c + k], dbias_sum[i][k]);
        }
    }
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
    void *row_sums = NULL;
    cudaError_t error = wide ? get_scratch(rows * sizeof(float2), &row_sums) : cudaSuccess;
    if (error != cudaSuccess) return error;
    if (wide)
        row_sums_kernel<<<rows, ROW_THREADS, 0, stream>>>(inp, dout, weight, mean, rstd, (float2 *)row_sums,
                                                          C);

    auto kernel = gradient_registers_kernel<T, N, MAX_PIECES, false>;
    if (wide)
        kernel = gradient_registers_kernel<T, N, 3, true>;
    else if (three)
        kernel = gradient_registers_kernel<T, N, 3, false>;
    const dim3 grid(blocks, (C - 1) / tile + 1);
    kernel<<<grid, block, 0, stream>>>(inp, dout, weight, mean, rstd, (const float2 *)row_sums, dinp, dweight,
                                       dbias, rows, C);
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

extern "C" cudaError_t gradient_registers(enum dtype dtype, const void *inp, const void *dout,
                                          const void *weight, const float *mean, const float *rstd,
                                          void *dinp, float *dweight, float *dbias, int rows, int C,
                                          cudaStream_t stream)
{
    return dtype == BF16
               ? launch<__nv_bfloat16>(inp, dout, weight, mean, rstd, dinp, dweight, dbias, rows, C, stream)
               : launch<float>(inp, dout, weight, mean, rstd, dinp, dweight, dbias, rows, C, stream);
}
