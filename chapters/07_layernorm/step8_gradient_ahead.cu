// Chapter 7, step 8: a row is unpacked once, and the next ones are under way meanwhile.
//
// Question: step 7 unpacks x, dout and weight for the sums and once more for dinp, and asks for a row when it is done with the one
// before. What else could its registers hold, and where do rows go that are asked for earlier?
//
// Grows from: step 7 (gradient_partials).
// n and d, as floats: dinp takes no more than these. Only weight stays packed, in registers for all rows. That is twice the registers for
// an element of bf16, so lanes have fewer of them or blocks fewer lanes, and a group is any number of warps. The next rows go to shared
// memory by cp.async (chapter 5), one or two of each group: of 768 to 4,096 columns 32 to 77 KB an SM. A lane reads what it has copied
// itself: no barrier.
//
//                                  first pass        sums          second pass
//      shared memory               rows 1, 2, in flight
//      n, d, floats                row 0 →           row 0         row 0 → dinp
//      dweight, dbias, floats      += row 0
//
// A turn's rows are dealt to the blocks one by one, and no block gets more than one row more than another.
//
// Code: the kernel is here, what it shares with steps 9 and 10 in gradient.cuh. Registers: at most 144. Shared memory: 147,840 bytes at most.
// Launched early (chapter 6, step 3).
// Run: make chapter-7 OP=layernorm_backward STEP=gradient_ahead
#include "gradient.cuh"
#include "launchers.h"

// dinp, and the block's partial sums of dweight and dbias, of the columns from blockIdx.y * (lanes * PIECES * N) on. row_sums, if
// WIDE: the sums of d and d n of every row, where a row has more columns than that.
template <typename T, int N, int PIECES, int THREADS, bool WIDE>
__global__ void __maxnreg__(registers_of(PIECES *N, THREADS))
    gradient_ahead_kernel(const T *inp,           // (rows, C)
                          const T *dout,          // (rows, C)
                          const T *weight,        // (C)
                          const float *mean,      // (rows)
                          const float *rstd,      // (rows)
                          const float2 *row_sums, // (rows), if WIDE
                          T *dinp,                // (rows, C)
                          float *partials,        // (gridDim.x, 2, C)
                          int rows, int C, int rows_ahead)
{
    wait_for_kernels_before();
    extern __shared__ __align__(128) float smem[]; // rows; then (2, groups, lanes * PIECES * N)
    __shared__ float2 warp_sums[2][MAX_WARPS];     // of a row, and of the next
    const unsigned tile_begin = blockIdx.y * (blockDim.x * PIECES * N);
    const unsigned columns = min(C - tile_begin, blockDim.x * PIECES * N);
    const unsigned first = (threadIdx.x / 32 * (32 * PIECES) + threadIdx.x % 32) * N; // in the tile

    // A lane's pieces behind the last column are zeros, and so is what they add: nothing but loads and stores asks where the row ends.
    Piece<T, N> weight_frag[PIECES] = {};
    bool inside[PIECES];
#pragma unroll
    for (int i = 0; i < PIECES; i++) {
        inside[i] = first + 32 * N * i < columns;
        if (inside[i]) weight_frag[i] = load_piece<N>(weight + tile_begin + first + 32 * N * i);
    }
    const unsigned stride = gridDim.x * blockDim.y;
    Ahead<T, N, PIECES, 2, THREADS> ahead(rows_ahead, smem);
    const auto ask_row = [&](unsigned row) {
        const size_t begin = (size_t)row * C + tile_begin + first;
        ahead.ask(row < rows, {inp + begin, dout + begin}, inside);
    };
    float dweight_sum[PIECES][N] = {}, dbias_sum[PIECES][N] = {};
    int parity = 0;
    unsigned row = threadIdx.y * gridDim.x + blockIdx.x;
    for (int i = 0; i < ahead.rows; i++) ask_row(row + i * stride);
    float row_mean, row_rstd;
    const auto load_statistics = [&](unsigned row) {
        if (row < rows) row_mean = mean[row], row_rstd = rstd[row];
    };
    load_statistics(row);
    for (; row < rows; row += stride) {
        ask_row(row + ahead.rows * stride);
        ahead.wait();
        const float m = row_mean, r = row_rstd, r_by_C = r / C;
        float n[PIECES][N], d[PIECES][N];
        float2 sums = {0.0f, 0.0f}; // of d, of d n
#pragma unroll
        for (int i = 0; i < PIECES; i++) {
            if (i == PIECES / 2) load_statistics(row + stride); // sooner takes registers, later time
            float dy[N], w[N];
            keep_packed(weight_frag[i]);
            unpack(n[i], ahead.piece(0, i), T());
            unpack(dy, ahead.piece(1, i), T());
            unpack(w, weight_frag[i], T());
#pragma unroll
            for (int k = 0; k < N; k++) {
                n[i][k] = (n[i][k] - m) * r;
                d[i][k] = w[k] * dy[k];
                sums.x += d[i][k];
                sums.y += d[i][k] * n[i][k];
                dweight_sum[i][k] += dy[k] * n[i][k];
                dbias_sum[i][k] += dy[k];
            }
        }
        // One barrier a row is enough: who writes the sums of the row after the next has passed that of the next, and so
        // everyone has read this row's.
        sums = WIDE ? row_sums[row] : group_sum(sums, warp_sums[parity]);
        parity ^= 1;
        const float shift = -sums.x * r_by_C, slope = -sums.y * r_by_C;

        T *dinp_row = dinp + (size_t)row * C + tile_begin + first;
#pragma unroll
        for (int i = 0; i < PIECES; i++) {
#pragma unroll
            for (int k = 0; k < N; k++) d[i][k] = d[i][k] * r + (n[i][k] * slope + shift);
            if (inside[i]) store_piece(dinp_row + 32 * N * i, make_pack(d[i], T()));
        }
    }
    __syncthreads(); // Nobody has rows ahead.
    put_sums(smem, 0, first, dweight_sum);
    put_sums(smem, 1, first, dbias_sum);
    add_groups<2, SUMS_OF<N>>(smem, blockDim.x * PIECES * N,
                              partials + (size_t)blockIdx.x * 2 * C + tile_begin, columns, C);
}

template <typename T, int N, int PIECES, int THREADS = threads_of(PIECES *N)>
constexpr Lanes<T, float2> LANES = {gradient_ahead_kernel<T, N, PIECES, THREADS, false>, PIECES, THREADS};

template <typename T, int N>
static cudaError_t launch_kernels(const T *inp, const T *dout, const T *weight, const float *mean,
                                  const float *rstd, T *dinp, float *dweight, float *dbias, int rows, int C,
                                  cudaStream_t stream)
{
    constexpr int LEAST = LEAST_PIECES<N>;
    // Two packs of bf16 also with more threads, which have fewer registers: for more groups only.
    const Lanes<T, float2> of_lanes[] = {LANES<T, N, LEAST>, LANES<T, N, 2 * LEAST>, LANES<T, N, 3 * LEAST>,
                                         LANES<T, N, 2 * LEAST, 640>};
    return launch_gradient<T, N, float2>(
        of_lanes, gradient_ahead_kernel<T, N, LEAST, threads_of(LEAST * N), true>, 2, inp, dout, weight, mean,
        rstd, dinp, dweight, dbias, rows, C, stream);
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

extern "C" cudaError_t gradient_ahead(enum dtype dtype, const void *inp, const void *dout, const void *weight,
                                      const float *mean, const float *rstd, void *dinp, float *dweight,
                                      float *dbias, int rows, int C, cudaStream_t stream)
{
    return dtype == BF16
               ? launch<__nv_bfloat16>(inp, dout, weight, mean, rstd, dinp, dweight, dbias, rows, C, stream)
               : launch<float>(inp, dout, weight, mean, rstd, dinp, dweight, dbias, rows, C, stream);
}
