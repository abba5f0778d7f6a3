// Chapter 7, step 9: the next rows are on their way while this one is summed up.
//
// Question: in step 7 a group asks for a row, waits for it, sums it up, writes dinp, and asks for the next. Who keeps the memory busy
// in between?
//
// Grows from: step 7 (gradient_partials).
// Registers are full of the columns' sums, so the rows to come wait in shared memory: every thread has a ring of STAGES rows there,
// its own packs of x and dout, which cp.async fetches without a register. What a thread reads it has fetched itself: its own wait is
// all the synchronisation that it takes. mean and rstd, which a row needs first, are a row ahead in registers.
//
//      thread:  fetch row r + 3 -> ring[3]      ring[0] -> registers -> sums of row r -> dinp
//               fetch row r + 4 -> ring[0]                              ring[1] -> …
//
// Rows that are no whole packs, rows longer than what a block has registers for, and GPUs whose blocks have less shared memory are
// left to step 7.
// Registers: at most 128. Shared memory: 196,608 bytes at most, 66 to 144 KB of them on their way.
// Run: make chapter-7 OP=layernorm_backward STEP=gradient_in_flight
#include "../../common/device/pack.cuh"
#include "../../common/device/ptx.cuh"
#include "../../common/device/scratch.h"
#include "launchers.h"

#include <cuda_runtime.h>

constexpr int NUM_THREADS = 512;
constexpr int NUM_WARPS = NUM_THREADS / 32;
constexpr int MAX_PIECES = 4;   // of x, and of dout, a lane has of a row
constexpr int MAX_BLOCKS = 132; // as many as an H200 has SMs; elsewhere the same, for the same bits
constexpr int TILE = 32;        // columns of a block of the second kernel, and its warps
constexpr int ARRAYS = 2;       // that are read: x and dout
constexpr int PLACES = 24;      // for packs, that a thread has in shared memory
template <int PIECES>
constexpr int STAGES = PLACES / (ARRAYS * PIECES); // rows that they make
constexpr int RING_BYTES = PLACES * NUM_THREADS * PACK_BYTES;

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

// dinp, and the block's partial sums of dweight and dbias.
template <typename T, int PIECES>
__global__ void __launch_bounds__(NUM_THREADS, 1)
    gradient_in_flight_kernel(const T *inp,      // (rows, C)
                              const T *dout,     // (rows, C)
                              const T *weight,   // (C)
                              const float *mean, // (rows)
                              const float *rstd, // (rows)
                              T *dinp,           // (rows, C)
                              float *partials,   // (gridDim.x, 2, C)
                              int rows, int C)
{
    constexpr int N = PACK<T>;
    extern __shared__ uint4
        ring[]; // (stage, array, piece, thread); at last (groups, lanes * PIECES * N) floats
    __shared__ float2 warp_sums[2][NUM_WARPS]; // of a row, and of the next
    const unsigned first = (threadIdx.x / 32 * (32 * PIECES) + threadIdx.x % 32) * N; // column
    const unsigned step = gridDim.x * blockDim.y;                                     // rows
    const auto place = [&](int stage, int array, int i) {
        return &ring[((stage * ARRAYS + array) * PIECES + i) * NUM_THREADS + threadIdx.y * blockDim.x +
                     threadIdx.x];
    };
    const auto fetch = [&](int stage, unsigned row) {
#pragma unroll
        for (int i = 0; i < PIECES; i++) {
            const unsigned c = first + 32 * N * i;
            if (row >= rows || c >= C) continue;
            cp_async_cg_16_evict_first(smem_addr(place(stage, 0, i)), inp + (size_t)row * C + c);
            cp_async_cg_16_evict_first(smem_addr(place(stage, 1, i)), dout + (size_t)row * C + c);
        }
        cp_async_commit_group();
    };

    float dweight_sum[PIECES][N] = {}, dbias_sum[PIECES][N] = {};
    unsigned row = blockIdx.x * blockDim.y + threadIdx.y;
    float next_mean = 0.0f, next_rstd = 0.0f;
    if (row < rows) next_mean = mean[row], next_rstd = rstd[row];
    for (int stage = 0; stage < STAGES<PIECES> - 1; stage++) fetch(stage, row + stage * step);
    for (int stage = 0, parity = 0; row < rows; row += step, parity ^= 1) {
        // The place of the row before is free: this thread has read it.
        fetch(stage == 0 ? STAGES<PIECES> - 1 : stage - 1, row + (STAGES<PIECES> - 1) * step);
        const float row_mean = next_mean, row_rstd = next_rstd;
        if (row + step < rows) next_mean = mean[row + step], next_rstd = rstd[row + step];
        cp_async_wait_group<STAGES<PIECES> - 1>(); // This row has come; those after it may be on their way.

        float2 sums = {0.0f, 0.0f}; // of d, of d n
#pragma unroll
        for (int i = 0; i < PIECES; i++) {
            const unsigned c = first + 32 * N * i;
            if (c >= C) continue;
            float x[N], dy[N], w[N];
            load_values(w, weight + c);
            unpack(x, *place(stage, 0, i), T());
            unpack(dy, *place(stage, 1, i), T());
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
        sums = group_sum(sums, warp_sums[parity]);
        const float d_mean = sums.x / C, dn_mean = sums.y / C;

#pragma unroll
        for (int i = 0; i < PIECES; i++) {
            const unsigned c = first + 32 * N * i;
            if (c >= C) continue;
            float x[N], dy[N], w[N];
            load_values(w, weight + c);
            unpack(x, *place(stage, 0, i), T());
            unpack(dy, *place(stage, 1, i), T());
#pragma unroll
            for (int k = 0; k < N; k++) {
                const float n = (x[k] - row_mean) * row_rstd;
                x[k] = (w[k] * dy[k] - d_mean - n * dn_mean) * row_rstd;
            }
            store_piece(dinp + (size_t)row * C + c, make_pack(x, T()));
        }
        stage = stage + 1 == STAGES<PIECES> ? 0 : stage + 1;
    }
    __syncthreads(); // Nobody reads the rings any more.
    float *partial = partials + (size_t)blockIdx.x * 2 * C;
    add_groups(reinterpret_cast<float *>(ring), dweight_sum, partial, first, C);
    add_groups(reinterpret_cast<float *>(ring), dbias_sum, partial + C, first, C);
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

template <typename T>
static cudaError_t launch(enum dtype dtype, const T *inp, const T *dout, const T *weight, const float *mean,
                          const float *rstd, T *dinp, float *dweight, float *dbias, int rows, int C,
                          cudaStream_t stream)
{
    if (!inp || !dout || !weight || !mean || !rstd || !dinp || !dweight || !dbias || rows <= 0 || C <= 0)
        return cudaErrorInvalidValue;
    if (((uintptr_t)inp | (uintptr_t)dout | (uintptr_t)weight | (uintptr_t)dinp) % PACK_BYTES != 0)
        return cudaErrorInvalidValue;
    int device, smem_bytes; // that a block may have
    cudaError_t error = cudaGetDevice(&device);
    if (error == cudaSuccess)
        error = cudaDeviceGetAttribute(&smem_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
    if (error != cudaSuccess) return error;
    if (C % PACK<T> != 0 || C > NUM_THREADS * MAX_PIECES * PACK<T> || smem_bytes < RING_BYTES + 1024)
        return gradient_partials(dtype, inp, dout, weight, mean, rstd, dinp, dweight, dbias, rows, C, stream);

    const int packs = C / PACK<T>;
    int lanes = 32; // of a group
    while (lanes * MAX_PIECES < packs) lanes *= 2;
    const bool three = lanes * 3 >= packs; // packs a lane
    const dim3 block(lanes, NUM_THREADS / lanes);
    const int blocks = min((rows - 1) / (int)block.y + 1, MAX_BLOCKS);
    void *scratch;
    error = get_scratch((size_t)blocks * 2 * C * sizeof(float), &scratch);
    if (error != cudaSuccess) return error;
    float *partials = (float *)scratch;

    const auto kernel = three ? gradient_in_flight_kernel<T, 3> : gradient_in_flight_kernel<T, MAX_PIECES>;
    error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, RING_BYTES);
    if (error != cudaSuccess) return error;
    kernel<<<blocks, block, RING_BYTES, stream>>>(inp, dout, weight, mean, rstd, dinp, partials, rows, C);
    error = cudaGetLastError();
    if (error != cudaSuccess) return error;
    column_sums_kernel<<<dim3((C - 1) / TILE + 1, 2), TILE * TILE, 0, stream>>>(partials, dweight, dbias,
                                                                                blocks, C);
    return cudaGetLastError();
}

extern "C" cudaError_t gradient_in_flight(enum dtype dtype, const void *inp, const void *dout,
                                          const void *weight, const float *mean, const float *rstd,
                                          void *dinp, float *dweight, float *dbias, int rows, int C,
                                          cudaStream_t stream)
{
    using bf16 = __nv_bfloat16;
    return dtype == BF16 ? launch(dtype, (const bf16 *)inp, (const bf16 *)dout, (const bf16 *)weight, mean,
                                  rstd, (bf16 *)dinp, dweight, dbias, rows, C, stream)
                         : launch(dtype, (const float *)inp, (const float *)dout, (const float *)weight, mean,
                                  rstd, (float *)dinp, dweight, dbias, rows, C, stream);
}
