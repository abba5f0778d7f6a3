// Chapter 6, step 9: a warp two rows at one position, 32 packs of each.
//
// Question: the lanes of a warp divide 32 times to find out that they are in the same row. Who should know that?
//
// Grows from: step 8 (encoder).
// The warp: it has a position, ROWS sequences and 32 packs of their rows. A lane asks for its pack of the position's row and of each
// token's before it adds. Warps are many and short: none waits for loads twice, and a row of 200 packs is 7 of them, not 3 turns of one.
//
//      warps:   position t  | b = 0, 1         | b = 2, 3         | …  | position t + 1 | …
//                           | chunk 0, 1, 2, … | chunk 0, 1, 2, … |        lane l: pack 32 chunk + l of wpe[t], of each wte[inp[b, t]]
//
// The sequences of a position are neighbours: its row of wpe is in the L2 for all of them. Walked the other way, all positions for two
// sequences and then for the next two, it would have left: 1024 rows of 4096 floats are 16 MB, and twice that of wte and of out comes
// with them. The output goes past the L2 (st.cs). A row of another length than whole packs begins anywhere; a lane then takes an element.
//
// Registers: at most 40. Shared memory: none.
// Run: make chapter-6 OP=encoder_forward STEP=encoder_rows
#include "../../common/device/pack.cuh"
#include "launchers.h"

#include <cuda_runtime.h>

constexpr int NUM_THREADS = 256;
constexpr int NUM_WARPS = NUM_THREADS / 32;
constexpr int ROWS = 2; // of out, both at one position, that a warp has

// A lane takes N elements: a pack, or one.
template <typename T, int N>
__global__ void __launch_bounds__(NUM_THREADS) encoder_rows_kernel(const int *inp, // (batch, positions)
                                                                   const T *wte,   // (V, C)
                                                                   const T *wpe,   // (positions, C)
                                                                   T *out,         // (batch, positions, C)
                                                                   int batch, int positions, int C)
{
    const unsigned warp = blockIdx.x * NUM_WARPS + threadIdx.x / 32; // of (positions, groups, chunks)
    const unsigned groups = (batch - 1) / ROWS + 1, chunks = (C - 1) / (32 * N) + 1;
    const unsigned c = (warp % chunks * 32 + threadIdx.x % 32) * N;
    const unsigned t = warp / chunks / groups;
    const int first = warp / chunks % groups * ROWS, rows = min(ROWS, batch - first);
    if (t >= positions || c >= C) return;
    const T *wte_row[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; r++)
        if (r < rows) wte_row[r] = wte + (size_t)inp[(size_t)(first + r) * positions + t] * C;

    // EXERCISE 6.3: this lane's piece of both rows of out, every load before the first store (about 14 lines)
    const Piece<T, N> position = load_piece<N>(wpe + (size_t)t * C + c);
    Piece<T, N> token[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; r++)
        if (r < rows) token[r] = load_piece<N>(wte_row[r] + c);
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        if (r >= rows) continue;
        float sum[N], beside[N];
        unpack(sum, token[r], T());
        unpack(beside, position, T());
#pragma unroll
        for (int k = 0; k < N; k++) sum[k] += beside[k];
        store_piece_once(out + ((size_t)(first + r) * positions + t) * C + c, make_pack(sum, T()));
    }
    // STUB from_float(&out[((size_t)first * positions + t) * C + c], to_float(wte_row[0][c]) + to_float(wpe[(size_t)t * C + c]));
    // END
}

template <typename T>
static cudaError_t launch(const int *inp, const void *wte, const void *wpe, void *out, int batch,
                          int positions, int C, cudaStream_t stream)
{
    if (!inp || !wte || !wpe || !out || batch <= 0 || positions <= 0 || C <= 0) return cudaErrorInvalidValue;
    if (((uintptr_t)wte | (uintptr_t)wpe | (uintptr_t)out) % PACK_BYTES != 0) return cudaErrorInvalidValue;
    const int n = C % PACK<T> == 0 ? PACK<T> : 1;
    const int64_t warps = ((batch - 1) / ROWS + 1) * (int64_t)positions * ((C - 1) / (32 * n) + 1);
    if (warps > UINT32_MAX - NUM_WARPS) return cudaErrorInvalidValue;
    const auto kernel = n == 1 ? encoder_rows_kernel<T, 1> : encoder_rows_kernel<T, PACK<T>>;
    const unsigned grid = (unsigned)((warps - 1) / NUM_WARPS + 1);
    kernel<<<grid, NUM_THREADS, 0, stream>>>(inp, (const T *)wte, (const T *)wpe, (T *)out, batch, positions,
                                             C);
    return cudaGetLastError();
}

extern "C" cudaError_t encoder_rows(enum dtype dtype, const int *inp, const void *wte, const void *wpe,
                                    void *out, int B, int T, int C, cudaStream_t stream)
{
    return dtype == BF16 ? launch<__nv_bfloat16>(inp, wte, wpe, out, B, T, C, stream)
                         : launch<float>(inp, wte, wpe, out, B, T, C, stream);
}
