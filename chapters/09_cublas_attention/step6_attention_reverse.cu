// Chapter 9, step 6: a softmax that begins where the product ended.
//
// Question: the first product ends with the last rows of the last head, and leaves them in the L2. Why does the softmax
// begin with the first row of the first?
//
// Grows from: step 5 (attention_in_place).
// For no reason: chapter 8's last causal step begins with the last row. It also computes no exponential of the future,
// which step 5's throws away. What is read is the same, row i up to column i; the products still make, and read, both
// halves.
//
//      product:  b = 0, h = 0, row 0  …  b = B - 1, h = H - 1, row T - 1  |  softmax:  row T - 1  …
//
// Run: make chapter-9 OP=attention_forward STEP=attention_reverse
#include "../08_online_softmax/launchers.h"
#include "blas.h"
#include "launchers.h"

#include <cuda_runtime.h>
#include <math.h>

// Whether the sizes are what the steps take.
static bool fits(int B, int T, int H, int D)
{
    return B > 0 && T > 0 && H > 0 && D > 0 && (int64_t)B * H * T <= INT32_MAX && T <= 16384;
}

extern "C" cudaError_t attention_reverse(enum dtype dtype, const void *qkv, void *att, void *out, void *,
                                         int B, int T, int H, int D, cudaStream_t stream)
{
    if (!qkv || !att || !out || !fits(B, T, H, D)) return cudaErrorInvalidValue;
    const int64_t squares = (int64_t)T * T;
    const int width = H * D; // of a position's queries, and of its output
    const size_t element = dtype == BF16 ? 2 : 4;
    cudaError_t error = cudaSuccess;
    for (int b = 0; b < B && error == cudaSuccess; b++) {
        const char *Q = (const char *)qkv + (size_t)b * T * 3 * width * element, *K = Q + width * element;
        const blas_matrix queries = {Q, dtype, 3 * width, D, false}, keys = {K, dtype, 3 * width, D, true},
                          scores = {(char *)att + b * H * squares * element, dtype, T, squares, false};
        error = blas_multiply(queries, keys, 1, 0, scores, T, T, D, H, stream);
    }
    if (error == cudaSuccess) error = causal_reverse(dtype, att, att, 1 / sqrtf(D), B * H, T, stream);
    for (int b = 0; b < B && error == cudaSuccess; b++) {
        const char *V = (const char *)qkv + ((size_t)b * T * 3 + 2) * width * element;
        const blas_matrix values = {V, dtype, 3 * width, D, false},
                          scores = {(char *)att + b * H * squares * element, dtype, T, squares, false},
                          sums = {(char *)out + (size_t)b * T * width * element, dtype, width, D, false};
        error = blas_multiply(scores, values, 1, 0, sums, T, D, T, H, stream);
    }
    return error;
}
