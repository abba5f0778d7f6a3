// Chapter 9, step 7: the backward of attention, four products.
//
// Question: out = att V, att = softmax(Q K^T / sqrt(D)). What comes back to Q, K and V?
//
//      dV = att^T dO        dP = dO V^T        dS = softmax's backward of dP, times 1 / sqrt(D)        dQ = dS K        dK = dS^T Q
//
// Grows from: step 4 (attention_permuted).
// A product has a product for the gradient of each of its factors: the transposes are only another way to read. dS takes
// the place of dP, and zeros above the diagonal keep the future out of dQ and dK.
//
//      dout, qkv --permute--> dO, Q, K, V  --four batches--> dQ, dK, dV --unpermute--> dqkv
//
// Run: make chapter-9 OP=attention_backward STEP=gradient_permuted
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

extern "C" cudaError_t gradient_permuted(enum dtype dtype, const void *qkv, const void *att, const void *dout,
                                         void *datt, void *dqkv, void *scratch, int B, int T, int H, int D,
                                         cudaStream_t stream)
{
    if (!qkv || !att || !dout || !datt || !dqkv || !scratch || !fits(B, T, H, D))
        return cudaErrorInvalidValue;
    const int64_t squares = (int64_t)T * T, rows = (int64_t)T * D;
    const size_t part_bytes = B * H * rows * (dtype == BF16 ? 2 : 4);
    const auto part = [=](int i) {
        return blas_matrix{(char *)scratch + i * part_bytes, dtype, D, rows, false};
    };
    const blas_matrix Q = part(0), K = part(1), V = part(2), dQ = part(3), dK = part(4), dV = part(5),
                      dO = part(6), P = {att, dtype, T, squares, false},
                      dS = {datt, dtype, T, squares, false};

    cudaError_t error = permute_packs(dtype, qkv, (void *)Q.data, B, T, 3, H, D, stream);
    if (error == cudaSuccess) error = permute_packs(dtype, dout, (void *)dO.data, B, T, 1, H, D, stream);
    if (error == cudaSuccess) error = blas_multiply(transpose(P), dO, 1, 0, dV, T, D, T, B * H, stream);
    if (error == cudaSuccess) error = blas_multiply(dO, transpose(V), 1, 0, dS, T, T, D, B * H, stream);
    if (error == cudaSuccess) error = causal_backward(dtype, att, datt, datt, 1 / sqrtf(D), B * H, T, stream);
    if (error == cudaSuccess) error = blas_multiply(dS, K, 1, 0, dQ, T, D, T, B * H, stream);
    if (error == cudaSuccess) error = blas_multiply(transpose(dS), Q, 1, 0, dK, T, D, T, B * H, stream);
    if (error == cudaSuccess) error = unpermute_packs(dtype, dQ.data, dqkv, B, T, 3, H, D, stream);
    return error;
}
