// Chapter 9, step 11: the backward of a layer's product.
//
// Question: out = inp weight^T + bias. Three inputs, three gradients; which of them begin anew?
//
// Grows from: step 10 (bias_partials).
// dinp does: the layer's input has this one reader. A weight's gradient is the sum over all micro-batches since it was
// set to 0, so cuBLAS adds to what is there, beta = 1, in fp32: in bf16 the sum of many would stop to grow. dbias
// likewise.
//
//      dinp (rows, C) = dout (rows, OC) weight (OC, C)        dweight (OC, C) += dout^T (OC, rows) inp (rows, C)
//
// Run: make chapter-9 OP=matmul_backward STEP=matmul_gradient
#include "blas.h"
#include "launchers.h"

#include <cuda_runtime.h>

extern "C" cudaError_t matmul_gradient(enum dtype dtype, const void *inp, const void *weight,
                                       const void *dout, void *dinp, float *dweight, float *dbias, int rows,
                                       int C, int OC, cudaStream_t stream)
{
    if (!inp || !weight || !dout || !dinp || !dweight || !dbias || rows <= 0 || C <= 0 || OC <= 0)
        return cudaErrorInvalidValue;
    const blas_matrix D = {dout, dtype, OC, 0, false}, D_transposed = {dout, dtype, OC, 0, true},
                      X = {inp, dtype, C, 0, false}, W = {weight, dtype, C, 0, false},
                      dX = {dinp, dtype, C, 0, false}, dW = {dweight, F32, C, 0, false};
    cudaError_t error = blas_multiply(D, W, 1, 0, dX, rows, C, OC, 1, stream);
    if (error == cudaSuccess) error = blas_multiply(D_transposed, X, 1, 1, dW, OC, C, rows, 1, stream);
    return error == cudaSuccess ? bias_partials(dtype, dout, dbias, rows, OC, stream) : error;
}
