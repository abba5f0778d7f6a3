// Chapter 7, step 2: the row stays in registers, so that it is read once.
//
// Question: two sums and an output; must the row be read for each of them?
//
// Grows from: step 1 (layernorm).
// Not when it is still there: a lane keeps 8 pieces of 16 bytes, a warp 4 KB, a block of 512 threads 64 KB. All of them
// are asked for before the first is used, as the last that the L2 evicts (load_piece_streamed), and behind them weight and bias, which
// come while the sums are made. Both sums are still exact ones, the second of differences.
//
//      pieces in a row   who holds it                                 bytes of a row at most
//      up to 128         a warp; a block has 4 rows, no barrier         2 KB
//      up to 256         a warp that is a block                         4 KB
//      up to 4096        a block of 64 to 512 threads                  64 KB
//      more              the block; the rest is read for each sum, and for the output
//
// A row of another length than whole packs begins at any address; its pieces are single elements.
// Launched early (chapter 6, step 3).
// Registers: at most 128. Shared memory: 128 bytes.
// Run: make chapter-7 OP=layernorm_forward STEP=layernorm_registers
#include "../../common/device/launch.cuh"
#include "../../common/device/pack.cuh"
#include "launchers.h"

#include <cuda_runtime.h>

constexpr int MAX_PIECES = 8;    // a thread keeps
constexpr int MAX_THREADS = 512; // that hold a row
constexpr int WARP_ROWS = 4;     // rows of a block when a warp holds a row, in up to half of its pieces
constexpr float EPSILON = 1e-5f;

static __device__ float warp_sum(float value)
{
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) value += __shfl_xor_sync(0xffffffff, value, offset);
    return value;
}

// Adds the values of the blockDim.x threads that hold a row: a warp, or the block. Each of a row's sums has a
// warp_value of its own, so that one barrier is enough.
static __device__ float row_sum(float value, float (&warp_value)[MAX_THREADS / 32])
{
    value = warp_sum(value);
    if (blockDim.x == 32) return value;
    if (threadIdx.x % 32 == 0) warp_value[threadIdx.x / 32] = value;
    __syncthreads(); // Every warp's value is there.
    const int lane = threadIdx.x % 32;
    return warp_sum(lane < blockDim.x / 32 ? warp_value[lane] : 0.0f);
}

template <typename T, int N>
static __device__ float piece_sum(Piece<T, N> piece)
{
    float values[N], sum = 0.0f;
    unpack(values, piece, T());
#pragma unroll
    for (int k = 0; k < N; k++) sum += values[k];
    return sum;
}

// The sum of (x - mean)^2.
template <typename T, int N>
static __device__ float piece_squares(Piece<T, N> piece, float mean)
{
    float values[N], sum = 0.0f;
    unpack(values, piece, T());
#pragma unroll
    for (int k = 0; k < N; k++) sum += (values[k] - mean) * (values[k] - mean);
    return sum;
}

// Turns x into out; weight and bias are those of the piece.
template <typename T, int N>
static __device__ Piece<T, N> normalize(Piece<T, N> piece, float mean, float rstd, Piece<T, N> weight,
                                        Piece<T, N> bias)
{
    float values[N], w[N], b[N];
    unpack(w, weight, T());
    unpack(b, bias, T());
    unpack(values, piece, T());
#pragma unroll
    for (int k = 0; k < N; k++) values[k] = (values[k] - mean) * rstd * w[k] + b[k];
    return make_pack(values, T());
}

// A piece is N elements. They go round the threads that hold a row, which have PIECES each, the last one perhaps outside the
// row. BLOCK: those are the block, not a warp.
template <typename T, int N, int PIECES, bool BLOCK>
__global__ void __launch_bounds__(BLOCK ? MAX_THREADS : 32 * WARP_ROWS)
    layernorm_registers_kernel(const T *inp,    // (rows, C)
                               const T *weight, // (C)
                               const T *bias,   // (C)
                               T *out,          // (rows, C)
                               float *mean,     // (rows)
                               float *rstd,     // (rows)
                               int rows, int C)
{
    wait_for_kernels_before();
    __shared__ float warp_value[2][MAX_THREADS / 32];
    const int row = blockIdx.x * blockDim.y + threadIdx.y;
    if (row >= rows) return; // a whole warp, in blocks without barriers
    const T *x = inp + (size_t)row * C;
    T *y = out + (size_t)row * C;
    const unsigned first = threadIdx.x * N;
    const unsigned step = (BLOCK ? blockDim.x : 32) * N; // from a thread's piece to its next
    const unsigned rest = first + PIECES * step;         // the first column that is not in registers
    const auto inside = [&](int i) { return i < PIECES - 1 || first + i * step < C; };

    // Made here and not at each load: the last is conditional, and ptxas then asked for weight and bias behind the first use of x.
    const uint64_t policy = createpolicy_evict_last();
    Piece<T, N> frag[PIECES], weight_frag[PIECES], bias_frag[PIECES];
#pragma unroll
    for (int i = 0; i < PIECES; i++)
        if (inside(i)) frag[i] = load_piece_streamed<N>(x + first + i * step, policy);
#pragma unroll
    for (int i = 0; i < PIECES; i++) {
        if (!inside(i)) continue;
        weight_frag[i] = load_piece<N>(weight + first + i * step);
        bias_frag[i] = load_piece<N>(bias + first + i * step);
    }
    const float one_by_C = 1.0f / C; // a call, and ptxas moves no load over one: so it is behind them all

    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < PIECES; i++)
        if (inside(i)) sum += piece_sum<T, N>(frag[i]);
    for (unsigned c = rest; c < C && BLOCK; c += step) sum += piece_sum<T, N>(load_piece<N>(x + c));
    const float row_mean = row_sum(sum, warp_value[0]) * one_by_C;

    float squares = 0.0f;
#pragma unroll
    for (int i = 0; i < PIECES; i++) {
        keep_packed(frag[i]);
        if (inside(i)) squares += piece_squares<T, N>(frag[i], row_mean);
    }
    for (unsigned c = rest; c < C && BLOCK; c += step)
        squares += piece_squares<T, N>(load_piece<N>(x + c), row_mean);
    const float row_rstd = rsqrtf(row_sum(squares, warp_value[1]) * one_by_C + EPSILON);

    if (threadIdx.x == 0) {
        mean[row] = row_mean;
        rstd[row] = row_rstd;
    }
#pragma unroll
    for (int i = 0; i < PIECES; i++) {
        keep_packed(frag[i]);
        if (inside(i))
            store_piece(y + first + i * step,
                        normalize<T, N>(frag[i], row_mean, row_rstd, weight_frag[i], bias_frag[i]));
    }
    for (unsigned c = rest; c < C && BLOCK; c += step)
        store_piece(y + c, normalize<T, N>(load_piece<N>(x + c), row_mean, row_rstd,
                                           load_piece<N>(weight + c), load_piece<N>(bias + c)));
}

template <typename T, int N>
static cudaError_t launch_kernel(const T *inp, const T *weight, const T *bias, T *out, float *mean,
                                 float *rstd, int rows, int C, cudaStream_t stream)
{
    static constexpr decltype(&layernorm_registers_kernel<T, N, 1, false>) of_a_warp[MAX_PIECES] = {
        layernorm_registers_kernel<T, N, 1, false>, layernorm_registers_kernel<T, N, 2, false>,
        layernorm_registers_kernel<T, N, 3, false>, layernorm_registers_kernel<T, N, 4, false>,
        layernorm_registers_kernel<T, N, 5, false>, layernorm_registers_kernel<T, N, 6, false>,
        layernorm_registers_kernel<T, N, 7, false>, layernorm_registers_kernel<T, N, 8, false>};
    // Of two warps and more, as few as can hold the row, each lane has more than half of the pieces that it might.
    static constexpr decltype(&layernorm_registers_kernel<T, N, 5, true>) of_a_block[MAX_PIECES / 2] = {
        layernorm_registers_kernel<T, N, 5, true>, layernorm_registers_kernel<T, N, 6, true>,
        layernorm_registers_kernel<T, N, 7, true>, layernorm_registers_kernel<T, N, 8, true>};
    const int warp_pieces = (C - 1) / (32 * N) + 1; // that each lane of a warp would have
    const int warps = min((warp_pieces - 1) / MAX_PIECES + 1, MAX_THREADS / 32);
    const int pieces = min((warp_pieces - 1) / warps + 1, MAX_PIECES); // that each of their lanes has
    // Of warps with more pieces an SM has few: the next row need not wait until those of four are done.
    const dim3 block = warps > 1 ? dim3(32 * warps) : dim3(32, pieces > MAX_PIECES / 2 ? 1 : WARP_ROWS);
    const auto kernel = warps == 1 ? of_a_warp[pieces - 1] : of_a_block[pieces - 1 - MAX_PIECES / 2];
    return launch_early(kernel, (rows - 1) / block.y + 1, block, 0, stream, inp, weight, bias, out, mean,
                        rstd, rows, C);
}

template <typename T>
static cudaError_t launch(const void *inp, const void *weight, const void *bias, void *out, float *mean,
                          float *rstd, int rows, int C, cudaStream_t stream)
{
    if (!inp || !weight || !bias || !out || !mean || !rstd || rows <= 0 || C <= 0)
        return cudaErrorInvalidValue;
    if (((uintptr_t)inp | (uintptr_t)weight | (uintptr_t)bias | (uintptr_t)out) % PACK_BYTES != 0)
        return cudaErrorInvalidValue;
    const auto launch_it = C % PACK<T> == 0 ? launch_kernel<T, PACK<T>> : launch_kernel<T, 1>;
    return launch_it((const T *)inp, (const T *)weight, (const T *)bias, (T *)out, mean, rstd, rows, C,
                     stream);
}

extern "C" cudaError_t layernorm_registers(enum dtype dtype, const void *inp, const void *weight,
                                           const void *bias, void *out, float *mean, float *rstd, int rows,
                                           int C, cudaStream_t stream)
{
    return dtype == BF16 ? launch<__nv_bfloat16>(inp, weight, bias, out, mean, rstd, rows, C, stream)
                         : launch<float>(inp, weight, bias, out, mean, rstd, rows, C, stream);
}
