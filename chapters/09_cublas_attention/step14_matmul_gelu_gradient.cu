// Chapter 9, step 14: back through a product and the GELU before it.
//
// Question: the layer behind GELU hands back dout weight, and GELU that times its slope. What do they cost one after the other?
//
// Grows from: step 12 (matmul_gelu).
// Bytes: cuBLAS writes the product, chapter 6's step 7 reads it, reads pre, and writes dpre: 4 passes over (rows, OC) where 2 would do.
// In bf16 the product is also rounded once more, before the slope.
//
//      dout, weight --cuBLAS--> dpre      dpre * slope of GELU at pre -> dpre
//
// Registers: chapter 6's. Shared memory: none.
// Run: make chapter-9 OP=matmul_gelu_backward STEP=matmul_gelu_gradient
#include "../06_elementwise_layers/launchers.h"
#include "blas.h"
#include "launchers.h"

#include <cuda_runtime.h>

extern "C" cudaError_t matmul_gelu_gradient(enum dtype dtype, const void *dout, const void *weight,
                                            const void *pre, void *dpre, int rows, int C, int OC,
                                            cudaStream_t stream)
{
    if (!dout || !weight || !pre || !dpre || rows <= 0 || C <= 0 || OC <= 0 || OC % 8 != 0)
        return cudaErrorInvalidValue;
    const blas_matrix D = {dout, dtype, C, 0, false}, W = {weight, dtype, OC, 0, false},
                      product = {dpre, dtype, OC, 0, false};
    const cudaError_t error = blas_multiply(D, W, 1, 0, product, rows, OC, C, 1, stream);
    return error == cudaSuccess ? gelu_gradient(dtype, pre, dpre, dpre, (size_t)rows * OC, stream) : error;
}
