// Chapter 9, step 15: the slope of GELU in the product's epilogue.
//
// Question: step 13 left pre as an epilogue wrote it. Does the backward's epilogue read it so?
//
// Grows from: step 14 (matmul_gelu_gradient).
// It does: DGELU takes the auxiliary matrix of GELU_AUX_BIAS, and multiplies what the product has in registers by GELU's slope there. Two
// passes less over (rows, OC), and one rounding. DGELU_BGRAD would sum up the bias's gradient, too, in the type of dpre; but that one is
// added to what is there, in fp32.
//
//      desc: COMPUTE_32F, EPILOGUE = DGELU, AUX_POINTER = pre, AUX_LD      blas.c has the calls
//
// Run: make chapter-9 OP=matmul_gelu_backward STEP=matmul_gelu_gradient_epilogue
#include "blas.h"
#include "launchers.h"

#include <cuda_runtime.h>

extern "C" cudaError_t matmul_gelu_gradient_epilogue(enum dtype dtype, const void *dout, const void *weight,
                                                     const void *pre, void *dpre, int rows, int C, int OC,
                                                     cudaStream_t stream)
{
    if (!dout || !weight || !pre || !dpre || rows <= 0 || C <= 0 || OC <= 0 || OC % 8 != 0)
        return cudaErrorInvalidValue;
    return blas_multiply_gelu_backward(dtype, dout, weight, pre, dpre, rows, OC, C, stream);
}
