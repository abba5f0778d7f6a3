// Chapter 9, step 8: the backward without a permutation.
//
// Question: step 7 permutes four arrays and three back. Which of them must lie together?
//
// Grows from: step 7 (gradient_permuted).
// None, as in step 5: queries, keys, values and their gradients are matrices with rows 3 H D apart, dout's and out's with
// rows H D apart. Four products for each sequence, and the softmax's backward between the second and the third, for all
// at once.
//
//      dqkv, sequence b:   t = 0   dQ0 dQ1 … dK0 dK1 … dV0 dV1 …       dK1:  data + (H + 1) D,  ld = 3 H D,  stride = D
//
// Run: make chapter-9 OP=attention_backward STEP=gradient_in_place
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

static blas_matrix transpose(blas_matrix matrix)
{
    matrix.transposed = true;
    return matrix;
}

extern "C" cudaError_t gradient_in_place(enum dtype dtype, const void *qkv, const void *att, const void *dout,
                                         void *datt, void *dqkv, void *, int B, int T, int H, int D,
                                         cudaStream_t stream)
{
    if (!qkv || !att || !dout || !datt || !dqkv || !fits(B, T, H, D)) return cudaErrorInvalidValue;
    const size_t element = dtype == BF16 ? 2 : 4;
    const int64_t squares = (int64_t)T * T;
    const int width = H * D; // of a position's queries, and of its output
    // The heads of sequence b: part 0, 1 or 2 of an array like qkv, of one like out, of one like att.
    const auto part = [=](const void *array, int b, int which) {
        return blas_matrix{(const char *)array + ((size_t)b * T * 3 + which) * width * element, dtype,
                           3 * width, D, false};
    };
    const auto plain = [=](const void *array, int b) {
        return blas_matrix{(const char *)array + (size_t)b * T * width * element, dtype, width, D, false};
    };
    const auto square = [=](const void *array, int b) {
        return blas_matrix{(const char *)array + b * H * squares * element, dtype, T, squares, false};
    };

    cudaError_t error = cudaSuccess;
    for (int b = 0; b < B && error == cudaSuccess; b++) {
        const blas_matrix dO = plain(dout, b), V = part(qkv, b, 2), dV = part(dqkv, b, 2);
        error = blas_multiply(transpose(square(att, b)), dO, 1, 0, dV, T, D, T, H, stream);
        if (error == cudaSuccess)
            error = blas_multiply(dO, transpose(V), 1, 0, square(datt, b), T, T, D, H, stream);
    }
    if (error == cudaSuccess) error = causal_backward(dtype, att, datt, datt, 1 / sqrtf(D), B * H, T, stream);
    for (int b = 0; b < B && error == cudaSuccess; b++) {
        const blas_matrix dS = square(datt, b);
        error = blas_multiply(dS, part(qkv, b, 1), 1, 0, part(dqkv, b, 0), T, D, T, H, stream);
        if (error == cudaSuccess)
            error = blas_multiply(transpose(dS), part(qkv, b, 0), 1, 0, part(dqkv, b, 1), T, D, T, H, stream);
    }
    return error;
}
