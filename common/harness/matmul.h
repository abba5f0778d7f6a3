// What the matmul chapters declare alike: C[m,n] = A[m,k] · B[n,k]ᵀ (+ bias[n]), its tensors, how a step is launched, and
// cuBLAS and the best of cuBLASLt as baselines.
#pragma once

#include "../device/matmul.h"
#include "chapter.h"

#define MATMUL_DIMS   \
    {                 \
        "m", "n", "k" \
    }
// C is of type C_dtype, which may be RUN_TYPE as A, B and bias are.
#define MATMUL_TENSORS(C_dtype)                                                                       \
    {                                                                                                 \
        {"A", RUN_TYPE, IN, "m,k"}, {"B", RUN_TYPE, IN, "n,k"}, {"bias", RUN_TYPE, IN_OPTIONAL, "n"}, \
            {"C", C_dtype, OUT, "m,n"},                                                               \
    }

// Launch a step whose launcher is a matmul_f32, a matmul_bf16, a matmul_16bit.
cudaError_t matmul_launch_f32(any_launcher *launcher, const struct run *run, cudaStream_t stream);
cudaError_t matmul_launch_bf16(any_launcher *launcher, const struct run *run, cudaStream_t stream);
cudaError_t matmul_launch_16bit(any_launcher *launcher, const struct run *run, cudaStream_t stream);

// cuBLAS on the same tensors, in their types. cudaErrorNotSupported when the case has a bias.
cudaError_t matmul_cublas(const struct run *run, cudaStream_t stream);

// The best of cuBLASLt on the same tensors, for an operation in 16 bits.
#define MATMUL_CUBLASLT_BEST                                                                          \
    {                                                                                                 \
        .name = "cuBLASLt best", .candidates = matmul_cublaslt_candidates, .launch = matmul_cublaslt, \
    }
int matmul_cublaslt_candidates(const struct run *run);
cudaError_t matmul_cublaslt(const struct run *run, int candidate, cudaStream_t stream);

// A check_shape for kernels that copy 16 bytes at a time: NULL, or what m, n and k must be.
const char *matmul_check_16bit_rows(const int64_t *dim);
