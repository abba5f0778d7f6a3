// Chapter 7, step 4: RMSNorm, the variation.
//
// Question: what is left of layernorm when nobody subtracts the mean?
//
//      rstd = 1 / sqrt(sum of x^2 / C + EPSILON)        out = x rstd weight
//
// Grows from: step 2 (layernorm_registers).
// One sum instead of two, which need not wait for another: half the shuffles and one barrier less. There is no bias, and
// nothing cancels. It is what Llama and most transformers since have.
//
// Launched early (chapter 6, step 3).
// Registers: at most 85. Shared memory: 64 bytes.
// Run: make chapter-7 OP=rmsnorm_forward STEP=rmsnorm
#include "../../common/device/launch.cuh"
#include "../../common/device/pack.cuh"
#include "launchers.h"

#include <cuda_runtime.h>

constexpr int MAX_PIECES = 8;     // a lane of a warp keeps that holds a row,
constexpr int BLOCK_PIECES = 4;   // and of a block
constexpr int MAX_THREADS = 1024; // that hold a row
constexpr int WARP_ROWS = 4;      // rows of a block when a warp holds a row
constexpr float EPSILON = 1e-5f;

static __device__ float warp_sum(float value)
{
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) value += __shfl_xor_sync(0xffffffff, value, offset);
    return value;
}

// Adds the values of the blockDim.x threads that hold a row: a warp, or the block.
static __device__ float row_sum(float value)
{
    __shared__ float warp_value[MAX_THREADS / 32];
    value = warp_sum(value);
    if (blockDim.x == 32) return value;
    if (threadIdx.x % 32 == 0) warp_value[threadIdx.x / 32] = value;
    __syncthreads(); // Every warp's value is there.
    const int lane = threadIdx.x % 32;
    return warp_sum(lane < blockDim.x / 32 ? warp_value[lane] : 0.0f);
}

// The sum of x^2.
template <typename T, int N>
static __device__ float piece_squares(Piece<T, N> piece)
{
    float values[N], sum = 0.0f;
    unpack(values, piece, T());
#pragma unroll
    for (int k = 0; k < N; k++) sum += values[k] * values[k];
    return sum;
}

// Turns x into out; weight is that of the piece.
template <typename T, int N>
static __device__ Piece<T, N> normalize(Piece<T, N> piece, float rstd, Piece<T, N> weight)
{
    float values[N], w[N];
    unpack(w, weight, T());
    unpack(values, piece, T());
#pragma unroll
    for (int k = 0; k < N; k++) values[k] = values[k] * rstd * w[k];
    return make_pack(values, T());
}

// A piece is N elements. They go round the threads that hold a row, which have PIECES each, the last one perhaps outside the
// row. BLOCK: those are the block, not a warp.
template <typename T, int N, int PIECES, bool BLOCK>
__global__ void __launch_bounds__(BLOCK ? MAX_THREADS : 32 * WARP_ROWS)
    rmsnorm_kernel(const T *inp,    // (rows, C)
                   const T *weight, // (C)
                   T *out,          // (rows, C)
                   float *rstd,     // (rows)
                   int rows, int C)
{
    wait_for_kernels_before();
    const int row = blockIdx.x * blockDim.y + threadIdx.y;
    if (row >= rows) return; // a whole warp, in blocks without barriers
    const T *x = inp + (size_t)row * C;
    T *y = out + (size_t)row * C;
    const unsigned first = threadIdx.x * N;
    const unsigned step = (BLOCK ? blockDim.x : 32) * N; // from a thread's piece to its next
    const unsigned rest = first + PIECES * step;         // the first column that is not in registers
    const auto inside = [&](int i) { return i < PIECES - 1 || first + i * step < C; };

    // Made here and not at each load: the last is conditional, and ptxas then asked for weight behind the first use of x.
    const uint64_t policy = createpolicy_evict_last();
    Piece<T, N> frag[PIECES], weight_frag[PIECES];
#pragma unroll
    for (int i = 0; i < PIECES; i++)
        if (inside(i)) frag[i] = load_piece_streamed<N>(x + first + i * step, policy);
#pragma unroll
    for (int i = 0; i < PIECES; i++)
        if (inside(i)) weight_frag[i] = load_piece<N>(weight + first + i * step);
    const float one_by_C = 1.0f / C; // a call, and ptxas moves no load over one: so it is behind them all

    float squares = 0.0f;
#pragma unroll
    for (int i = 0; i < PIECES; i++) {
        if (inside(i)) squares += piece_squares<T, N>(frag[i]);
    }
    for (unsigned c = rest; c < C && BLOCK; c += step) squares += piece_squares<T, N>(load_piece<N>(x + c));
    const float row_rstd = rsqrtf(row_sum(squares) * one_by_C + EPSILON);

    if (threadIdx.x == 0) rstd[row] = row_rstd;
#pragma unroll
    for (int i = 0; i < PIECES; i++) {
        keep_packed(frag[i]);
        if (inside(i)) store_piece(y + first + i * step, normalize<T, N>(frag[i], row_rstd, weight_frag[i]));
    }
    for (unsigned c = rest; c < C && BLOCK; c += step)
        store_piece(y + c, normalize<T, N>(load_piece<N>(x + c), row_rstd, load_piece<N>(weight + c)));
}

template <typename T, int N>
static cudaError_t launch_kernel(const T *inp, const T *weight, T *out, float *rstd, int rows, int C,
                                 cudaStream_t stream)
{
    static constexpr decltype(&rmsnorm_kernel<T, N, 1, false>) of_a_warp[MAX_PIECES] = {
        rmsnorm_kernel<T, N, 1, false>, rmsnorm_kernel<T, N, 2, false>, rmsnorm_kernel<T, N, 3, false>,
        rmsnorm_kernel<T, N, 4, false>, rmsnorm_kernel<T, N, 5, false>, rmsnorm_kernel<T, N, 6, false>,
        rmsnorm_kernel<T, N, 7, false>, rmsnorm_kernel<T, N, 8, false>};
    // Of three warps and more, as few as can hold the row, each lane has more than half of the pieces that it might.
    static constexpr decltype(&rmsnorm_kernel<T, N, 3, true>) of_a_block[BLOCK_PIECES / 2] = {
        rmsnorm_kernel<T, N, 3, true>, rmsnorm_kernel<T, N, 4, true>};
    const int warp_pieces = (C - 1) / (32 * N) + 1; // that each lane of a warp would have
    const bool one = warp_pieces <= MAX_PIECES;
    const int warps = one ? 1 : min((warp_pieces - 1) / BLOCK_PIECES + 1, MAX_THREADS / 32);
    const int pieces =
        min((warp_pieces - 1) / warps + 1, one ? MAX_PIECES : BLOCK_PIECES); // of each of their lanes
    const dim3 block = one ? dim3(32, WARP_ROWS) : dim3(32 * warps);
    const auto kernel = one ? of_a_warp[pieces - 1] : of_a_block[pieces - 1 - BLOCK_PIECES / 2];
    return launch_early(kernel, (rows - 1) / block.y + 1, block, 0, stream, inp, weight, out, rstd, rows, C);
}

template <typename T>
static cudaError_t launch(const void *inp, const void *weight, void *out, float *rstd, int rows, int C,
                          cudaStream_t stream)
{
    if (!inp || !weight || !out || !rstd || rows <= 0 || C <= 0) return cudaErrorInvalidValue;
    if (((uintptr_t)inp | (uintptr_t)weight | (uintptr_t)out) % PACK_BYTES != 0) return cudaErrorInvalidValue;
    const auto launch_it = C % PACK<T> == 0 ? launch_kernel<T, PACK<T>> : launch_kernel<T, 1>;
    return launch_it((const T *)inp, (const T *)weight, (T *)out, rstd, rows, C, stream);
}

extern "C" cudaError_t rmsnorm(enum dtype dtype, const void *inp, const void *weight, void *out, float *rstd,
                               int rows, int C, cudaStream_t stream)
{
    return dtype == BF16 ? launch<__nv_bfloat16>(inp, weight, out, rstd, rows, C, stream)
                         : launch<float>(inp, weight, out, rstd, rows, C, stream);
}
