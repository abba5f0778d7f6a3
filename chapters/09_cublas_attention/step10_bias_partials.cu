// Chapter 9, step 10: packs, and an order.
//
// Question: a lane of step 9 has 2 bytes of bf16 in a load, and the last bits of dbias depend on which block is first.
// Can both be had, more bytes in flight and the same bits?
//
// Grows from: step 9 (bias_atomics).
// A lane has a pack of columns, 4 or 8, and UNROLL rows in flight. The 16 warps of a block share its rows, every 16th
// each, and add their sums up in shared memory in their order. What a block has it writes to its own place, and a second
// kernel adds the blocks. The rows are cut into so many parts that the grid fills an H200 twice; elsewhere into as many,
// for the same bits. Where a layer's output is in several matrices, one behind the other, gridDim.z has one of each (chapter 11).
//
//      block (x, y), warp w:  columns of tile x; rows of part y: w, w + 16, …  ->  16 sums -> partials[y]  ->  dbias
//
// Registers: at most 64. Shared memory: 16 KB in bf16, 8 KB in fp32.
// Run: make chapter-9 OP=bias_backward STEP=bias_partials
#include "../../common/device/pack.cuh"
#include "../../common/device/scratch.h"
#include "launchers.h"

#include <cuda_runtime.h>

constexpr int NUM_THREADS = 512;
constexpr int NUM_WARPS = NUM_THREADS / 32;
constexpr int UNROLL = 4;       // rows that a lane has in flight
constexpr int BLOCKS = 132 * 2; // that the grid should have
constexpr int MAX_PARTS = 1024; // of the rows
constexpr int MAX_COLUMNS = 1 << 20;

template <typename T, int N>
__global__ void __launch_bounds__(NUM_THREADS, 2)
    bias_partials_kernel(const T *dout,   // (matrices, rows, OC)
                         float *partials, // (matrices, parts, OC)
                         int rows, int rows_each, int OC)
{
    __shared__ float warp_sums[NUM_WARPS][32 * N];
    const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const unsigned tile_begin = blockIdx.x * (32 * N), c = tile_begin + lane * N;
    const int begin = blockIdx.y * rows_each, end = min(rows, begin + rows_each);
    dout += (size_t)blockIdx.z * rows * OC;
    partials += (size_t)blockIdx.z * gridDim.y * OC;
    float sums[N] = {};
    for (int first = begin + warp; first < end && c < OC; first += NUM_WARPS * UNROLL) {
        Piece<T, N> frag[UNROLL];
#pragma unroll
        for (int i = 0; i < UNROLL; i++) {
            const int row = first + i * NUM_WARPS;
            frag[i] = Piece<T, N>();
            if (row < end) frag[i] = load_piece_once<N>(dout + (size_t)row * OC + c);
        }
#pragma unroll
        for (int i = 0; i < UNROLL; i++) {
            float values[N];
            unpack(values, frag[i], T());
#pragma unroll
            for (int k = 0; k < N; k++) sums[k] += values[k];
        }
    }
    // EXERCISE 9.3: the warps' sums meet in shared memory, without bank conflicts, and leave as partials (about 12 lines)
    // Neighbouring lanes, neighbouring banks.
#pragma unroll
    for (int k = 0; k < N; k++) warp_sums[warp][k * 32 + lane] = sums[k];
    __syncthreads(); // Every warp's sums are there.
    for (unsigned i = threadIdx.x; i < 32 * N; i += NUM_THREADS) {
        const unsigned column = tile_begin + i % 32 * N + i / 32;
        if (column >= OC) continue;
        float sum = 0.0f;
#pragma unroll
        for (int w = 0; w < NUM_WARPS; w++) sum += warp_sums[w][i];
        partials[(size_t)blockIdx.y * OC + column] = sum;
    }
    // STUB warp_sums[warp][lane] = sums[0];
    // STUB if (c < OC) partials[(size_t)blockIdx.y * OC + c] = warp_sums[warp][lane];
    // END
}

// dbias += the partial sums of its column, in their order.
__global__ void __launch_bounds__(NUM_THREADS)
    add_partials_kernel(const float *partials, // (matrices, parts, OC)
                        float *dbias,          // (matrices, OC)
                        int parts, int OC)
{
    const unsigned c = blockIdx.x * NUM_THREADS + threadIdx.x;
    if (c >= OC) return;
    dbias += (size_t)blockIdx.y * OC;
    partials += (size_t)blockIdx.y * parts * OC;
    float sum = dbias[c];
#pragma unroll 8
    for (int part = 0; part < parts; part++) sum += partials[(size_t)part * OC + c];
    dbias[c] = sum;
}

template <typename T, int N>
static cudaError_t launch_kernels(const T *dout, float *dbias, int matrices, int rows, int OC,
                                  cudaStream_t stream)
{
    const int tiles = (OC - 1) / (32 * N) + 1;
    const int wanted = min(max(BLOCKS / tiles / matrices, 1), MAX_PARTS);
    const int rows_each = max((rows - 1) / wanted + 1, NUM_WARPS * UNROLL);
    const int parts = (rows - 1) / rows_each + 1;
    void *scratch;
    cudaError_t error = get_scratch((size_t)matrices * parts * OC * sizeof(float), &scratch);
    if (error != cudaSuccess) return error;
    float *partials = (float *)scratch;
    bias_partials_kernel<T, N>
        <<<dim3(tiles, parts, matrices), NUM_THREADS, 0, stream>>>(dout, partials, rows, rows_each, OC);
    error = cudaGetLastError();
    if (error != cudaSuccess) return error;
    add_partials_kernel<<<dim3((OC - 1) / NUM_THREADS + 1, matrices), NUM_THREADS, 0, stream>>>(
        partials, dbias, parts, OC);
    return cudaGetLastError();
}

template <typename T>
static cudaError_t launch(const void *dout, float *dbias, int matrices, int rows, int OC, cudaStream_t stream)
{
    constexpr int MOST_MATRICES = 65535; // of a grid's second and third dimension
    if (!dout || !dbias || matrices <= 0 || matrices > MOST_MATRICES || rows <= 0 || OC <= 0 ||
        OC > MAX_COLUMNS || (uintptr_t)dout % PACK_BYTES != 0)
        return cudaErrorInvalidValue;
    const auto launch_them = OC % PACK<T> == 0 ? launch_kernels<T, PACK<T>> : launch_kernels<T, 1>;
    return launch_them((const T *)dout, dbias, matrices, rows, OC, stream);
}

extern "C" cudaError_t bias_partials_of_each(enum dtype dtype, const void *dout, float *dbias, int matrices,
                                             int rows, int OC, cudaStream_t stream)
{
    return dtype == BF16 ? launch<__nv_bfloat16>(dout, dbias, matrices, rows, OC, stream)
                         : launch<float>(dout, dbias, matrices, rows, OC, stream);
}

extern "C" cudaError_t bias_partials(enum dtype dtype, const void *dout, float *dbias, int rows, int OC,
                                     cudaStream_t stream)
{
    return bias_partials_of_each(dtype, dout, dbias, 1, rows, OC, stream);
}
