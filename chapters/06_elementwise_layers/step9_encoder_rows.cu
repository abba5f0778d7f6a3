// Chapter 6, step 9: a warp some rows.
//
// Question: the lanes of a warp divide 32 times to find out that they are in the same row. Who should know that?
//
// Grows from: step 8 (encoder).
// A warp has a position and ROWS sequences: a token is read once, the division is one, and then a row is packs of 16 bytes. A lane
// asks for PACKS of the position's row and of every token's before it adds: 15 packs on their way, of which the position's serve
// ROWS times. The output goes past the L2 (st.cs), which is better used for wpe and for the rows of the tokens that come often.
//
//      warp w:  rows (b, t), (b + 1, t), …;    lane l:  packs l, l + 32, … of wpe[t] and of wte[inp[b, t]], wte[inp[b + 1, t]], …
//
// A row of another length than whole packs begins anywhere; then an element is what a lane takes (N = 1).
//
// Registers: at most 112. Shared memory: none.
// Run: make chapter-6 OP=encoder_forward STEP=encoder_rows
#include "../../common/device/pack.cuh"
#include "launchers.h"

#include <cuda_runtime.h>

constexpr int NUM_THREADS = 256;
constexpr int NUM_WARPS = NUM_THREADS / 32;
constexpr int ROWS = 4;  // of out, all at one position, that a warp has at a time
constexpr int PACKS = 3; // of each of their tokens, and of the position, a lane has in flight

// A lane takes N elements at a time: a pack, or one.
template <typename T, int N>
__global__ void __launch_bounds__(NUM_THREADS) encoder_rows_kernel(const int *inp, // (batch, positions)
                                                                   const T *wte,   // (V, C)
                                                                   const T *wpe,   // (positions, C)
                                                                   T *out,         // (batch, positions, C)
                                                                   int batch, int positions, int C)
{
    const int warp = blockIdx.x * NUM_WARPS + threadIdx.x / 32;
    const int lane = threadIdx.x % 32;
    const int t = warp % positions, first = warp / positions * ROWS, rows = min(ROWS, batch - first);
    if (rows <= 0) return;
    const T *wpe_row = wpe + (size_t)t * C;
    const T *wte_row[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; r++)
        if (r < rows) wte_row[r] = wte + (size_t)inp[(size_t)(first + r) * positions + t] * C;

    // EXERCISE 6.3: the rows of out, every load of a turn before its first store (about 24 lines)
    for (unsigned begin = lane * N; begin < C; begin += PACKS * 32 * N) {
        Piece<T, N> position[PACKS], token[ROWS][PACKS];
#pragma unroll
        for (int i = 0; i < PACKS; i++) {
            const unsigned c = begin + i * 32 * N;
            if (c >= C) continue;
            position[i] = load_piece<N>(wpe_row + c);
#pragma unroll
            for (int r = 0; r < ROWS; r++)
                if (r < rows) token[r][i] = load_piece<N>(wte_row[r] + c);
        }
#pragma unroll
        for (int r = 0; r < ROWS; r++)
#pragma unroll
            for (int i = 0; i < PACKS; i++) {
                const unsigned c = begin + i * 32 * N;
                if (c >= C || r >= rows) continue;
                float sum[N], beside[N];
                unpack(sum, token[r][i], T());
                unpack(beside, position[i], T());
#pragma unroll
                for (int k = 0; k < N; k++) sum[k] += beside[k];
                store_piece(out + ((size_t)(first + r) * positions + t) * C + c, make_pack(sum, T()));
            }
    }
    // STUB if (lane * PACKS < C)
    // STUB     from_float(&out[((size_t)first * positions + t) * C + lane], to_float(wte_row[0][lane]) + to_float(wpe_row[lane]));
    // END
}

template <typename T>
static cudaError_t launch(const int *inp, const void *wte, const void *wpe, void *out, int batch,
                          int positions, int C, cudaStream_t stream)
{
    if (!inp || !wte || !wpe || !out || batch <= 0 || positions <= 0 || C <= 0) return cudaErrorInvalidValue;
    if (((uintptr_t)wte | (uintptr_t)wpe | (uintptr_t)out) % PACK_BYTES != 0) return cudaErrorInvalidValue;
    const int64_t warps = ((batch - 1) / ROWS + 1) * (int64_t)positions;
    const int grid = (int)((warps - 1) / NUM_WARPS + 1);
    const auto kernel = C % PACK<T> == 0 ? encoder_rows_kernel<T, PACK<T>> : encoder_rows_kernel<T, 1>;
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
