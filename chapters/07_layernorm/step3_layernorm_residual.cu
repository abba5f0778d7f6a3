// Chapter 7, step 3: the residual before it, in the same kernel.
//
// Question: in every block of a transformer a residual writes what the next layernorm reads. What does fusing them save?
//
// Grows from: step 2 (layernorm_registers).
// Alone they move 3 and 2 arrays, together 4: residual is still written, for the next residual and the backward, but not
// read again. The sum is rounded to its type before anything is computed from it, so that the layernorm is of what was
// written, as if there were two kernels. A lane has pieces of two inputs in flight, so it keeps 4 of each: half as long a row
// fits a block. The rest it reads again from residual, where the same thread has written it.
//
// Launched early (chapter 6, step 3).
// Registers: at most 88. Shared memory: 128 bytes.
// Run: make chapter-7 OP=fused_residual_forward STEP=layernorm_residual
#include "../../common/device/launch.cuh"
#include "../../common/device/pack.cuh"
#include "launchers.h"

#include <cuda_runtime.h>

constexpr int MAX_PIECES = 4;    // of each input, a thread keeps
constexpr int MAX_THREADS = 512; // that hold a row
constexpr int WARP_ROWS = 4;     // rows of a block when a warp holds a row
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

// inp1 + inp2, rounded.
template <typename T, int N>
static __device__ Piece<T, N> add_pieces(Piece<T, N> piece1, Piece<T, N> piece2)
{
    float values1[N], values2[N];
    unpack(values1, piece1, T());
    unpack(values2, piece2, T());
#pragma unroll
    for (int k = 0; k < N; k++) values1[k] += values2[k];
    return make_pack(values1, T());
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

// A piece is N elements. A warp's pieces are neighbours: the first PIECES of each of its lanes, 32 at a time. BLOCK: the block has one row.
template <typename T, int N, int PIECES, bool BLOCK>
__global__ void __launch_bounds__(BLOCK ? MAX_THREADS : 32 * WARP_ROWS)
    layernorm_residual_kernel(const T *inp1,   // (rows, C)
                              const T *inp2,   // (rows, C)
                              const T *weight, // (C)
                              const T *bias,   // (C)
                              T *residual,     // (rows, C)
                              T *out,          // (rows, C)
                              float *mean,     // (rows)
                              float *rstd,     // (rows)
                              int rows, int C)
{
    wait_for_kernels_before();
    __shared__ float warp_value[2][MAX_THREADS / 32];
    const int row = blockIdx.x * blockDim.y + threadIdx.y;
    if (row >= rows) return; // a whole warp, in blocks without barriers
    const T *x1 = inp1 + (size_t)row * C;
    const T *x2 = inp2 + (size_t)row * C;
    T *x = residual + (size_t)row * C;
    T *y = out + (size_t)row * C;
    const unsigned first = (threadIdx.x / 32 * (32 * PIECES) + threadIdx.x % 32) * N;
    const unsigned step = blockDim.x * N;
    const unsigned rest = PIECES * step + threadIdx.x * N; // the first column that is not in registers
    const float one_by_C = 1.0f / C;                       // a division is a call

    const uint64_t policy = createpolicy_evict_last();
    Piece<T, N> frag[PIECES], frag2[PIECES], weight_frag[PIECES], bias_frag[PIECES];
#pragma unroll
    for (int i = 0; i < PIECES; i++) {
        const unsigned c = first + 32 * N * i;
        if (c >= C) continue;
        frag[i] = load_piece_streamed<N>(x1 + c, policy);
        frag2[i] = load_piece_streamed<N>(x2 + c, policy);
    }
#pragma unroll
    for (int i = 0; i < PIECES; i++) {
        const unsigned c = first + 32 * N * i;
        if (c >= C) continue;
        weight_frag[i] = load_piece<N>(weight + c);
        bias_frag[i] = load_piece<N>(bias + c);
    }

    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < PIECES; i++) {
        const unsigned c = first + 32 * N * i;
        if (c >= C) continue;
        frag[i] = add_pieces<T, N>(frag[i], frag2[i]);
        store_piece(x + c, frag[i]);
        sum += piece_sum<T, N>(frag[i]);
    }
    for (unsigned c = rest; c < C && BLOCK; c += step) {
        const Piece<T, N> piece = add_pieces<T, N>(load_piece<N>(x1 + c), load_piece<N>(x2 + c));
        store_piece(x + c, piece);
        sum += piece_sum<T, N>(piece);
    }
    const float row_mean = row_sum(sum, warp_value[0]) * one_by_C;

    float squares = 0.0f;
#pragma unroll
    for (int i = 0; i < PIECES; i++) {
        keep_packed(frag[i]);
        if (first + 32 * N * i < C) squares += piece_squares<T, N>(frag[i], row_mean);
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
        const unsigned c = first + 32 * N * i;
        keep_packed(frag[i]);
        if (c < C)
            store_piece(y + c, normalize<T, N>(frag[i], row_mean, row_rstd, weight_frag[i], bias_frag[i]));
    }
    for (unsigned c = rest; c < C && BLOCK; c += step)
        store_piece(y + c, normalize<T, N>(load_piece<N>(x + c), row_mean, row_rstd,
                                           load_piece<N>(weight + c), load_piece<N>(bias + c)));
}

template <typename T, int N>
static cudaError_t launch_kernel(const T *inp1, const T *inp2, const T *weight, const T *bias, T *residual,
                                 T *out, float *mean, float *rstd, int rows, int C, cudaStream_t stream)
{
    static constexpr decltype(&layernorm_residual_kernel<T, N, 1, false>) of_a_warp[MAX_PIECES] = {
        layernorm_residual_kernel<T, N, 1, false>, layernorm_residual_kernel<T, N, 2, false>,
        layernorm_residual_kernel<T, N, 3, false>, layernorm_residual_kernel<T, N, 4, false>};
    const int warp_pieces = (C - 1) / (32 * N) + 1; // that each lane of a warp would have
    dim3 block(32, WARP_ROWS);
    auto kernel = layernorm_residual_kernel<T, N, MAX_PIECES, true>;
    if (warp_pieces <= MAX_PIECES)
        kernel = of_a_warp[warp_pieces - 1];
    else
        block = dim3(32 * min((warp_pieces - 1) / MAX_PIECES + 1, MAX_THREADS / 32));
    return launch_early(kernel, (rows - 1) / block.y + 1, block, 0, stream, inp1, inp2, weight, bias,
                        residual, out, mean, rstd, rows, C);
}

template <typename T>
static cudaError_t launch(const void *inp1, const void *inp2, const void *weight, const void *bias,
                          void *residual, void *out, float *mean, float *rstd, int rows, int C,
                          cudaStream_t stream)
{
    if (!inp1 || !inp2 || !weight || !bias || !residual || !out || !mean || !rstd || rows <= 0 || C <= 0)
        return cudaErrorInvalidValue;
    if (((uintptr_t)inp1 | (uintptr_t)inp2 | (uintptr_t)weight | (uintptr_t)bias | (uintptr_t)residual |
         (uintptr_t)out) %
            PACK_BYTES !=
        0)
        return cudaErrorInvalidValue;
    const auto launch_it = C % PACK<T> == 0 ? launch_kernel<T, PACK<T>> : launch_kernel<T, 1>;
    return launch_it((const T *)inp1, (const T *)inp2, (const T *)weight, (const T *)bias, (T *)residual,
                     (T *)out, mean, rstd, rows, C, stream);
}

extern "C" cudaError_t layernorm_residual(enum dtype dtype, const void *inp1, const void *inp2,
                                          const void *weight, const void *bias, void *residual, void *out,
                                          float *mean, float *rstd, int rows, int C, cudaStream_t stream)
{
    return dtype == BF16
               ? launch<__nv_bfloat16>(inp1, inp2, weight, bias, residual, out, mean, rstd, rows, C, stream)
               : launch<float>(inp1, inp2, weight, bias, residual, out, mean, rstd, rows, C, stream);
}
