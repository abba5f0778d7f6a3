// Chapter 6, step 9: a warp 64 packs of one row.
//
// Question: the lanes of a warp divide 32 times to find out that they are in the same row. Who should know that?
//
// Grows from: step 8 (encoder).
// The warp: it has a row, and PIECES packs a lane of it. A lane asks for its packs of the position's row and of the token's before it adds.
// Warps are many and short: none waits for loads twice, and a row of 200 packs is 4 of them, not 4 turns of one.
//
//      warps:   b = 0, t = 0           | b = 0, t = 1           | …        lane l: packs 64 chunk + l and 64 chunk + 32 + l of
//               chunk 0, 1, 2, 3       | chunk 0, 1, 2, 3       |                  wpe[t], of wte[inp[b, t]], of out[b, t]
//
// Text by text out is written from its beginning to its end, and wpe is read again for every text. So what is read again is marked to be
// evicted last (load_piece_kept), and out first (st.cs). It works while wpe is small beside the L2, but 1024
// rows of 4096 floats are 16 MB, which all the rest pushes out: there rows go position by position, all texts' rows of one before the next.
//
// Launched early (chapter 6, step 3).
// New: load_piece_kept (pack.cuh).
// Registers: at most 32. Shared memory: none.
// Run: make chapter-6 OP=encoder_forward STEP=encoder_rows
#include "../../common/device/launch.cuh"
#include "../../common/device/pack.cuh"
#include "launchers.h"

#include <cuda_runtime.h>

constexpr int NUM_THREADS = 512;
constexpr int NUM_WARPS = NUM_THREADS / 32;
constexpr int PIECES = 2;               // that a lane has of its row
constexpr size_t KEPT_BYTES = 10 << 20; // of wpe, which stay in the L2 from text to text

// A lane takes N elements at a time: a pack, or one.
template <typename T, int N>
__global__ void __launch_bounds__(NUM_THREADS)
    encoder_rows_kernel(const int *inp, // (batch, positions)
                        const T *wte,   // (V, C)
                        const T *wpe,   // (positions, C)
                        T *out,         // (batch, positions, C)
                        int batch, int positions, int C, bool by_position)
{
    wait_for_kernels_before();
    const unsigned warp = blockIdx.x * NUM_WARPS + threadIdx.x / 32; // of (rows, chunks)
    const unsigned chunks = (C - 1) / (32 * N * PIECES) + 1, row = warp / chunks;
    const unsigned c = (warp % chunks * (32 * PIECES) + threadIdx.x % 32) * N;
    if (row >= (unsigned)batch * positions) return;
    const unsigned t = by_position ? row / batch : row % positions;
    const unsigned place = by_position ? row % batch * positions + t : row; // in inp and out
    const T *wte_row = wte + (size_t)load_kept(inp + place) * C, *wpe_row = wpe + (size_t)t * C;

    // EXERCISE 6.3: this lane's pieces of the row of out, every load before the first store (about 16 lines)
    Piece<T, N> token[PIECES], position[PIECES];
#pragma unroll
    for (int i = 0; i < PIECES; i++) {
        if (c + i * 32 * N >= C) continue;
        position[i] = load_piece_kept<N>(wpe_row + c + i * 32 * N);
        token[i] = load_piece<N>(wte_row + c + i * 32 * N);
    }
#pragma unroll
    for (int i = 0; i < PIECES; i++) {
        if (c + i * 32 * N >= C) continue;
        float sum[N], beside[N];
        unpack(sum, token[i], T());
        unpack(beside, position[i], T());
#pragma unroll
        for (int k = 0; k < N; k++) sum[k] += beside[k];
        store_piece_once(out + (size_t)place * C + c + i * 32 * N, make_pack(sum, T()));
    }
    // STUB if (c < C) from_float(&out[(size_t)place * C + c], to_float(wte_row[c]) + to_float(wpe_row[c]));
    // END
}

template <typename T>
static cudaError_t launch(const int *inp, const void *wte, const void *wpe, void *out, int batch,
                          int positions, int C, cudaStream_t stream)
{
    if (!inp || !wte || !wpe || !out || batch <= 0 || positions <= 0 || C <= 0) return cudaErrorInvalidValue;
    if (((uintptr_t)wte | (uintptr_t)wpe | (uintptr_t)out) % PACK_BYTES != 0) return cudaErrorInvalidValue;
    const int n = C % PACK<T> == 0 ? PACK<T> : 1;
    const int64_t warps = (int64_t)batch * positions * ((C - 1) / (32 * n * PIECES) + 1);
    if (warps > UINT32_MAX - NUM_WARPS) return cudaErrorInvalidValue;
    const auto kernel = n == 1 ? encoder_rows_kernel<T, 1> : encoder_rows_kernel<T, PACK<T>>;
    const unsigned grid = (unsigned)((warps - 1) / NUM_WARPS + 1);
    const bool by_position = (size_t)positions * C * sizeof(T) > KEPT_BYTES;
    return launch_early(kernel, grid, NUM_THREADS, 0, stream, inp, (const T *)wte, (const T *)wpe, (T *)out,
                        batch, positions, C, by_position);
}

extern "C" cudaError_t encoder_rows(enum dtype dtype, const int *inp, const void *wte, const void *wpe,
                                    void *out, int B, int T, int C, cudaStream_t stream)
{
    return dtype == BF16 ? launch<__nv_bfloat16>(inp, wte, wpe, out, B, T, C, stream)
                         : launch<float>(inp, wte, wpe, out, B, T, C, stream);
}
