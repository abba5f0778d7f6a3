// Chapter 9, step 3: and back.
//
// Question: what attention leaves, head after head, the next layer wants position by position. Is that another kernel?
//
// Grows from: step 2 (permute_packs).
// The same with source and destination exchanged. It serves twice: S = 1 for the output, S = 3 for the gradients of
// queries, keys and values. One pack a thread: with two it takes 2 % longer (results/trials/layers_in_flight_h200.csv).
//
//      inp (S, B, H, T, D)    s b h t d  ->  out (B, T, S, H, D)    b t s h d
//
// Launched early (chapter 6, step 3).
// Registers: at most 40. Shared memory: none.
// Run: make chapter-9 OP=unpermute STEP=unpermute_packs
#include "../../common/device/launch.cuh"
#include "../../common/device/pack.cuh"
#include "launchers.h"

#include <cuda_runtime.h>

constexpr int NUM_THREADS = 256;

template <typename T, int N>
__global__ void __launch_bounds__(NUM_THREADS)
    unpermute_packs_kernel(const T *inp, // (S, batch, H, positions, D)
                           T *out,       // (batch, positions, S, H, D)
                           int positions, int S, int H, int D, int chunks)
{
    wait_for_kernels_before();
    const unsigned b = blockIdx.z, head = blockIdx.y / chunks, s = head / H, h = head % H;
    const unsigned d = (blockIdx.y % chunks * blockDim.x + threadIdx.x) * N;
    if (d >= D) return;
    const size_t dst_step = (size_t)S * H * D; // from one position to the next
    const T *src = inp + (((size_t)s * gridDim.z + b) * H + h) * positions * D + d;
    T *dst = out + (size_t)b * positions * dst_step + (size_t)head * D + d;
    const unsigned t = blockIdx.x * blockDim.y + threadIdx.y;
    if (t < positions)
        *(Piece<T, N> *)(dst + (size_t)t * dst_step) = load_piece_streamed<N>(src + (size_t)t * D);
}

template <typename T, int N>
static cudaError_t launch_kernel(const T *inp, T *out, int batch, int positions, int S, int H, int D,
                                 cudaStream_t stream)
{
    const int lanes = min(D / N, NUM_THREADS);  // of a position
    const int chunks = (D / N - 1) / lanes + 1; // of a position's head, where it is wider than a block
    const dim3 block(lanes, NUM_THREADS / lanes);
    const dim3 grid((positions - 1) / block.y + 1, S * H * chunks, batch);
    return launch_early(unpermute_packs_kernel<T, N>, grid, block, 0, stream, inp, out, positions, S, H, D,
                        chunks);
}

template <typename T>
static cudaError_t launch(const void *inp, void *out, int batch, int positions, int S, int H, int D,
                          cudaStream_t stream)
{
    constexpr int MOST_BLOCKS = 65535; // of a grid's second and third dimension
    if (!inp || !out || batch <= 0 || positions <= 0 || S <= 0 || H <= 0 || D <= 0)
        return cudaErrorInvalidValue;
    const bool packs = D % PACK<T> == 0;
    if (batch > MOST_BLOCKS || H > MOST_BLOCKS / S || D > MOST_BLOCKS / (S * H) * NUM_THREADS)
        return cudaErrorInvalidValue;
    if (packs && ((uintptr_t)inp | (uintptr_t)out) % PACK_BYTES != 0) return cudaErrorInvalidValue;
    const auto launch_it = packs ? launch_kernel<T, PACK<T>> : launch_kernel<T, 1>;
    return launch_it((const T *)inp, (T *)out, batch, positions, S, H, D, stream);
}

extern "C" cudaError_t unpermute_packs(enum dtype dtype, const void *inp, void *out, int B, int T, int S,
                                       int H, int D, cudaStream_t stream)
{
    return dtype == BF16 ? launch<__nv_bfloat16>(inp, out, B, T, S, H, D, stream)
                         : launch<float>(inp, out, B, T, S, H, D, stream);
}
