// Chapter 7, step 10: the backward of RMSNorm.
//
// Question: which sums fall away without a mean and a bias?
//
//      n = x rstd    d = weight dout    dinp = rstd (d - n mean of d n)    dweight += sum over rows of dout n
//
// Grows from: step 8 (gradient_ahead).
// One of two along the row, one of two down the columns. A lane keeps one sum for each of its columns instead of two, and a block has half the
// partial sums to leave.
//
// Code: the kernel is here, what it shares with steps 8 and 9 in gradient.cuh. Registers: at most 144. Shared memory: 147,712 bytes at most.
// Launched early (chapter 6, step 3).
// Run: make chapter-7 OP=rmsnorm_backward STEP=rmsnorm_gradient
#include "gradient.cuh"
#include "launchers.h"

// dinp, and the block's partial sums of dweight, of the columns from blockIdx.y * (lanes * PIECES * N) on. row_sums, if
// WIDE: the sum of d n of every row, where a row has more columns than that.
template <typename T, int N, int PIECES, int THREADS, bool WIDE>
__global__ void __maxnreg__(registers_of(PIECES *N, THREADS))
    rmsnorm_gradient_kernel(const T *inp,          // (rows, C)
                            const T *dout,         // (rows, C)
                            const T *weight,       // (C)
                            const float *,         // no mean
                            const float *rstd,     // (rows)
                            const float *row_sums, // (rows), if WIDE
                            T *dinp,               // (rows, C)
                            float *partials,       // (gridDim.x, C)
                            int rows, int C, int rows_ahead)
{
    wait_for_kernels_before();
    extern __shared__ __align__(128) float smem[]; // rows; then (groups, lanes * PIECES * N)
    __shared__ float warp_sums[2][MAX_WARPS];      // of a row, and of the next
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
    float dweight_sum[PIECES][N] = {};
    int parity = 0;
    unsigned row = threadIdx.y * gridDim.x + blockIdx.x;
    for (int i = 0; i < ahead.rows; i++) ask_row(row + i * stride);
    float row_rstd;
    const auto load_statistics = [&](unsigned row) {
        if (row < rows) row_rstd = rstd[row];
    };
    load_statistics(row);
    for (; row < rows; row += stride) {
        ask_row(row + ahead.rows * stride);
        ahead.wait();
        const float r = row_rstd, r_by_C = r / C;
        float n[PIECES][N], d[PIECES][N];
        float sum = 0.0f; // of d n
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
                n[i][k] *= r;
                d[i][k] = w[k] * dy[k];
                sum += d[i][k] * n[i][k];
                dweight_sum[i][k] += dy[k] * n[i][k];
            }
        }
        // One barrier a row is enough: who writes the sums of the row after the next has passed that of the next, and so
        // everyone has read this row's.
        sum = WIDE ? row_sums[row] : group_sum(sum, warp_sums[parity]);
        parity ^= 1;
        const float slope = -sum * r_by_C;

        T *dinp_row = dinp + (size_t)row * C + tile_begin + first;
#pragma unroll
        for (int i = 0; i < PIECES; i++) {
#pragma unroll
            for (int k = 0; k < N; k++) d[i][k] = d[i][k] * r + n[i][k] * slope;
            if (inside[i]) store_piece(dinp_row + 32 * N * i, make_pack(d[i], T()));
        }
    }
    __syncthreads(); // Nobody has rows ahead.
    put_sums(smem, 0, first, dweight_sum);
    add_groups<1, SUMS_OF<N>>(smem, blockDim.x * PIECES * N, partials + (size_t)blockIdx.x * C + tile_begin,
                              columns, C);
}

template <typename T, int N, int PIECES, int THREADS = threads_of(PIECES *N)>
constexpr Lanes<T, float> LANES = {rmsnorm_gradient_kernel<T, N, PIECES, THREADS, false>, PIECES, THREADS};

template <typename T, int N>
static cudaError_t launch_kernels(const T *inp, const T *dout, const T *weight, const float *rstd, T *dinp,
                                  float *dweight, int rows, int C, cudaStream_t stream)
{
    constexpr int LEAST = LEAST_PIECES<N>;
    // Two packs of bf16 also with more threads, which have fewer registers: for more groups only.
    const Lanes<T, float> of_lanes[] = {LANES<T, N, LEAST>, LANES<T, N, 2 * LEAST>, LANES<T, N, 3 * LEAST>,
                                        LANES<T, N, 2 * LEAST, 640>};
    return launch_gradient<T, N, float>(of_lanes,
                                        rmsnorm_gradient_kernel<T, N, LEAST, threads_of(LEAST * N), true>, 2,
                                        inp, dout, weight, NULL, rstd, dinp, dweight, NULL, rows, C, stream);
}

template <typename T>
static cudaError_t launch(const void *inp, const void *dout, const void *weight, const float *rstd,
                          void *dinp, float *dweight, int rows, int C, cudaStream_t stream)
{
    if (!inp || !dout || !weight || !rstd || !dinp || !dweight || rows <= 0 || C <= 0)
        return cudaErrorInvalidValue;
    if (((uintptr_t)inp | (uintptr_t)dout | (uintptr_t)weight | (uintptr_t)dinp) % PACK_BYTES != 0)
        return cudaErrorInvalidValue;
    const auto launch_them = C % PACK<T> == 0 ? launch_kernels<T, PACK<T>> : launch_kernels<T, 1>;
    return launch_them((const T *)inp, (const T *)dout, (const T *)weight, rstd, (T *)dinp, dweight, rows, C,
                       stream);
}

extern "C" cudaError_t rmsnorm_gradient(enum dtype dtype, const void *inp, const void *dout,
                                        const void *weight, const float *rstd, void *dinp, float *dweight,
                                        int rows, int C, cudaStream_t stream)
{
    return dtype == BF16 ? launch<__nv_bfloat16>(inp, dout, weight, rstd, dinp, dweight, rows, C, stream)
                         : launch<float>(inp, dout, weight, rstd, dinp, dweight, rows, C, stream);
}
