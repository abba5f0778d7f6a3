// Chapter 9, step 2: 16 bytes a thread, and no division.
//
// Question: an SM gets 32 bytes a nanosecond, 8 bf16 to read and 8 to write, and each of step 1's costs four divisions of
// 64 bits. Need a thread divide to know where it is?
//
// Grows from: step 1 (permute).
// The grid has three dimensions, and the block two: sequence, head and tile of positions are the block's numbers,
// position and pack the thread's. A thread has the packs of two positions: 64 KB under way on an SM, as chapter 6's step 3. With one an
// H200 takes 2 to 6 % longer (results/trials/layers_in_flight_h200.csv).
//
//      blockIdx.z: b    blockIdx.y: s, h    blockIdx.x: a tile of positions
//
//      threadIdx.y:   t      [ pack 0 | pack 1 | … | pack D/N - 1 ]       threadIdx.x
//                     t + 1  [ pack 0 | pack 1 | …                ]
//
// Where D is no multiple of a pack, it is all done element by element: N = 1.
// Launched early (chapter 6, step 3).
// Registers: at most 40. Shared memory: none.
// Run: make chapter-9 OP=permute STEP=permute_packs
#include "../../common/device/launch.cuh"
#include "../../common/device/pack.cuh"
#include "launchers.h"

#include <cuda_runtime.h>

constexpr int NUM_THREADS = 512;
constexpr int PACKS = 2; // of a thread, blockDim.y positions apart

template <typename T, int N>
__global__ void __launch_bounds__(NUM_THREADS)
    permute_packs_kernel(const T *inp, // (batch, positions, S, H, D)
                         T *out,       // (S, batch, H, positions, D)
                         int positions, int S, int H, int D, int chunks)
{
    wait_for_kernels_before();
    const unsigned b = blockIdx.z, head = blockIdx.y / chunks, s = head / H, h = head % H;
    const unsigned d = (blockIdx.y % chunks * blockDim.x + threadIdx.x) * N;
    if (d >= D) return;
    const size_t src_step = (size_t)S * H * D; // from one position to the next
    const T *src = inp + (size_t)b * positions * src_step + (size_t)head * D + d;
    T *dst = out + (((size_t)s * gridDim.z + b) * H + h) * positions * D + d;
    const unsigned t0 = blockIdx.x * blockDim.y * PACKS + threadIdx.y;
    Piece<T, N> frag[PACKS];
#pragma unroll
    for (int i = 0; i < PACKS; i++) {
        const unsigned t = t0 + i * blockDim.y;
        if (t < positions) frag[i] = load_piece_streamed<N>(src + (size_t)t * src_step);
    }
#pragma unroll
    for (int i = 0; i < PACKS; i++) {
        const unsigned t = t0 + i * blockDim.y;
        if (t < positions) store_piece(dst + (size_t)t * D, frag[i]);
    }
}

template <typename T, int N>
static cudaError_t launch_kernel(const T *inp, T *out, int batch, int positions, int S, int H, int D,
                                 cudaStream_t stream)
{
    const int lanes = min(D / N, NUM_THREADS);  // of a position
    const int chunks = (D / N - 1) / lanes + 1; // of a position's head, where it is wider than a block
    const dim3 block(lanes, NUM_THREADS / lanes);
    const dim3 grid((positions - 1) / (block.y * PACKS) + 1, S * H * chunks, batch);
    return launch_early(permute_packs_kernel<T, N>, grid, block, 0, stream, inp, out, positions, S, H, D,
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

extern "C" cudaError_t permute_packs(enum dtype dtype, const void *inp, void *out, int B, int T, int S, int H,
                                     int D, cudaStream_t stream)
{
    return dtype == BF16 ? launch<__nv_bfloat16>(inp, out, B, T, S, H, D, stream)
                         : launch<float>(inp, out, B, T, S, H, D, stream);
}
