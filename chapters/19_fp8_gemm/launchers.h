// The launchers of this chapter's steps: defined in the .cu files, called by main.c.
#pragma once

#include <cuda_runtime_api.h>

#include "../../common/device/dtype.h"

#ifdef __cplusplus
extern "C" {
#endif

// D[M,N] = A[M,K] · B[N,K]ᵀ, row-major in device memory; A and B are e4m3, D is BF16 or F32 (`D_dtype`). K is a multiple of 16,
// and A and B begin at a multiple of 16 bytes, as TMA needs; else cudaErrorInvalidValue. Scales are floats, as chapter 18 has
// them: what they are multiplied by is what was quantised.
//
//      plain_sums             scale_A (1), scale_B (1)
//      weight_gradient        scale_A (K / 128 rounded up, M rounded up to a multiple of 4), scale_B the same with N; D, in F32
//                             only, is added to
//      all the others         scale_A the same, scale_B (N / 128 rounded up, K / 128 rounded up)
//
// scale_A, and scale_B of weight_gradient, begin at a multiple of 16 bytes.
typedef cudaError_t fp8_gemm(enum dtype D_dtype, const void *A, const void *B, const float *scale_A,
                             const float *scale_B, void *D, int M, int N, int K, cudaStream_t stream);
fp8_gemm plain_sums, promoted, two_math_warpgroups, persistent_multicast, weight_gradient, few_rows;

#ifdef __cplusplus
}
#endif
