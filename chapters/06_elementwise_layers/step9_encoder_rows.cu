// Chapter 6, step 9: a warp a row.
//
// Question: the lanes of a warp divide 32 times to find out that they are in the same row. Who should know that?
//
// Grows from: step 8 (encoder).
// A warp has a row: the token is read once, the division is one, and then the row is packs of 16 bytes. A lane asks for
// PACKS of each table before it adds. The output goes past the L2 (st.cs), which is better used for wpe, read B times, and
// for the rows of the tokens that come often.
//
//      warp w:  row w = (b, t);    lane l:  packs l, l + 32, … of wte[inp[w]] and wpe[t]
//
// A row of another length than whole packs begins anywhere; then an element is what a lane takes (N = 1).
//
// Registers: at most 64. Shared memory: none.
// Run: make chapter-6 OP=encoder_forward STEP=encoder_rows
#include "../../common/device/pack.cuh"
#include "launchers.h"

#include <cuda_runtime.h>

constexpr int NUM_THREADS = 256;
constexpr int NUM_WARPS = NUM_THREADS / 32; // rows of a block
constexpr int PACKS = 3;                    // of each table, a lane has in flight

// A lane takes N elements at a time: a pack, or one.
template <typename T, int N>
__global__ void __launch_bounds__(NUM_THREADS) encoder_rows_kernel(const int *inp, // (rows)
                                                                   const T *wte,   // (V, C)
                                                                   const T *wpe,   // (positions, C)
                                                                   T *out,         // (rows, C)
                                                                   int rows, int positions, int C)
{
    const int row = blockIdx.x * NUM_WARPS + threadIdx.x / 32;
    const int lane = threadIdx.x % 32;
    if (row >= rows) return;
    const T *wte_row = wte + (size_t)inp[row] * C;
    const T *wpe_row = wpe + (size_t)(row % positions) * C;
    T *out_row = out + (size_t)row * C;

    // EXERCISE 6.3: the row of out, every load of a turn before its first store (about 17 lines)
    for (unsigned begin = lane * N; begin < C; begin += PACKS * 32 * N) {
        float token[PACKS][N], position[PACKS][N];
#pragma unroll
        for (int i = 0; i < PACKS; i++) {
            const unsigned c = begin + i * 32 * N;
            if (c >= C) continue;
            load_values(token[i], wte_row + c);
            load_values(position[i], wpe_row + c);
        }
#pragma unroll
        for (int i = 0; i < PACKS; i++) {
            const unsigned c = begin + i * 32 * N;
            if (c >= C) continue;
#pragma unroll
            for (int k = 0; k < N; k++) token[i][k] += position[i][k];
            store_values(out_row + c, token[i]);
        }
    }
    // STUB if (lane * PACKS < C) from_float(&out_row[lane], to_float(wte_row[lane]) + to_float(wpe_row[lane]));
    // END
}

template <typename T>
static cudaError_t launch(const int *inp, const void *wte, const void *wpe, void *out, int batch,
                          int positions, int C, cudaStream_t stream)
{
    if (!inp || !wte || !wpe || !out || batch <= 0 || positions <= 0 || C <= 0) return cudaErrorInvalidValue;
    if (((uintptr_t)wte | (uintptr_t)wpe | (uintptr_t)out) % PACK_BYTES != 0) return cudaErrorInvalidValue;
    const int rows = batch * positions;
    const int grid = (rows - 1) / NUM_WARPS + 1;
    const auto kernel = C % PACK<T> == 0 ? encoder_rows_kernel<T, PACK<T>> : encoder_rows_kernel<T, 1>;
    kernel<<<grid, NUM_THREADS, 0, stream>>>(inp, (const T *)wte, (const T *)wpe, (T *)out, rows, positions,
                                             C);
    return cudaGetLastError();
}

extern "C" cudaError_t encoder_rows(enum dtype dtype, const int *inp, const void *wte, const void *wpe,
                                    void *out, int B, int T, int C, cudaStream_t stream)
{
    return dtype == BF16 ? launch<__nv_bfloat16>(inp, wte, wpe, out, B, T, C, stream)
                         : launch<float>(inp, wte, wpe, out, B, T, C, stream);
}
