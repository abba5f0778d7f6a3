// Chapter 9, step 13: bias and GELU in the product's epilogue.
//
// Question: cuBLAS has every element of the product in a register before it stores it. Why not add and bend it there?
//
// Grows from: step 12 (matmul_gelu).
// cuBLASLt does, when asked: an epilogue is part of the description of the product, like the layouts. GELU_AUX_BIAS adds
// a bias, writes what GELU is going to see to an auxiliary matrix, for the backward, and GELU of it to the output. Two
// passes less over (rows, OC), and one rounding.
//
//      desc: COMPUTE_32F, TRANSA, EPILOGUE = GELU_AUX_BIAS, BIAS_POINTER, AUX_POINTER, AUX_LD      blas.c has the calls
//
// Run: make chapter-9 OP=matmul_gelu STEP=matmul_gelu_epilogue
#include "blas.h"
#include "launchers.h"

#include <cuda_runtime.h>

extern "C" cudaError_t matmul_gelu_epilogue(enum dtype dtype, const void *inp, const void *weight,
                                            const void *bias, void *pre, void *out, int rows, int C, int OC,
                                            cudaStream_t stream)
{
    if (!inp || !weight || !bias || !pre || !out || rows <= 0 || C <= 0 || OC <= 0 || OC % 8 != 0)
        return cudaErrorInvalidValue;
    return blas_multiply_gelu(dtype, inp, weight, bias, pre, out, rows, OC, C, stream);
}
