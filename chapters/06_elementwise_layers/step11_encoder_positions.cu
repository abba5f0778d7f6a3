// Chapter 6, step 11: whoever has a position adds it up.
//
// Question: step 10 has two atomic additions an element. Which rows belong together is known for one of them; why ask?
//
// Grows from: step 10 (encoder_atomics).
// dwpe[t] gets the rows (0, t), (1, t), …: the same for every text. So a thread takes column c of position t, walks over
// the batch, and keeps the sum in a register: dwpe needs no atomics and is read and written once. dwte still has them.
//
//      b = 0   | . . t . . |
//          1   | . . t . . |     block: position t, 256 columns        thread: one column, from b = 0 to B - 1
//          2   | . . t . . |
//
// Registers: at most 40. Shared memory: none.
// Run: make chapter-6 OP=encoder_backward STEP=encoder_positions
#include "../../common/device/pack.cuh"
#include "launchers.h"

#include <cuda_runtime.h>

constexpr int NUM_THREADS = 256;

template <typename T>
__global__ void __launch_bounds__(NUM_THREADS)
    encoder_positions_kernel(const int *inp, // (batch, positions)
                             const T *dout,  // (batch, positions, C)
                             float *dwte,    // (V, C)
                             float *dwpe,    // (positions, C)
                             int batch, int positions, int C)
{
    const size_t position = blockIdx.x;
    const unsigned c = blockIdx.y * NUM_THREADS + threadIdx.x;
    if (c >= C) return;
    float sum = dwpe[position * C + c];
#pragma unroll 4
    for (int b = 0; b < batch; b++) {
        const size_t row = (size_t)b * positions + position;
        const float gradient = to_float(dout[row * C + c]);
        sum += gradient;
        atomicAdd(&dwte[(size_t)inp[row] * C + c], gradient);
    }
    dwpe[position * C + c] = sum;
}

template <typename T>
static cudaError_t launch(const int *inp, const void *dout, float *dwte, float *dwpe, int batch,
                          int positions, int C, cudaStream_t stream)
{
    constexpr int MOST_COLUMNS = 65535 * NUM_THREADS; // of a grid's second dimension
    if (!inp || !dout || !dwte || !dwpe || batch <= 0 || positions <= 0 || C <= 0)
        return cudaErrorInvalidValue;
    if (C > MOST_COLUMNS) return cudaErrorInvalidValue;
    const dim3 grid(positions, (C - 1) / NUM_THREADS + 1);
    encoder_positions_kernel<<<grid, NUM_THREADS, 0, stream>>>(inp, (const T *)dout, dwte, dwpe, batch,
                                                               positions, C);
    return cudaGetLastError();
}

extern "C" cudaError_t encoder_positions(enum dtype dtype, const int *inp, const void *dout, float *dwte,
                                         float *dwpe, int B, int T, int C, int, cudaStream_t stream)
{
    return dtype == BF16 ? launch<__nv_bfloat16>(inp, dout, dwte, dwpe, B, T, C, stream)
                         : launch<float>(inp, dout, dwte, dwpe, B, T, C, stream);
}
