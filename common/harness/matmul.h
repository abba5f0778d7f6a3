// What the matmul chapters declare alike: C[m,n] = A[m,k] · B[n,k]ᵀ (+ bias[n]), its tensors, how a step is launched,
// and cuBLAS as the baseline.
#pragma once

#include "chapter.h"

// A launcher in a .cu file. A is (M, K), B is (N, K), bias is (N) or NULL, C is (M, N), row-major in device memory, all of
// the chapter's type.
typedef cudaError_t matmul(const void *A, const void *B, const void *bias, void *C, int M, int N, int K,
                           cudaStream_t stream);

// The same for kernels of several types: A, B and bias are f16 or else bf16, C is fp32 or else of their type.
typedef cudaError_t matmul_16bit(const void *A, const void *B, const void *bias, void *C, int M, int N, int K,
                                 bool f16, bool f32_out, cudaStream_t stream);

#define MATMUL_DIMS   \
    {                 \
        "m", "n", "k" \
    }
#define MATMUL_TENSORS(type) MATMUL_TENSORS_TO(type, type)
#define MATMUL_TENSORS_TO(type, C_type)                                                   \
    {                                                                                     \
        {"A", type, IN, "m,k"}, {"B", type, IN, "n,k"}, {"bias", type, IN_OPTIONAL, "n"}, \
            {"C", C_type, OUT, "m,n"},                                                    \
    }
#define MATMUL_STEP(name, launcher)                     \
    {                                                   \
        name, matmul_launch, (void (*)(void))(launcher) \
    }
// Steps whose launcher is a matmul_16bit: C like A, and C in fp32.
#define MATMUL_16BIT_STEP(name, launcher)                     \
    {                                                         \
        name, matmul_launch_16bit, (void (*)(void))(launcher) \
    }
#define MATMUL_F32_OUT_STEP(name, launcher)                     \
    {                                                           \
        name, matmul_launch_f32_out, (void (*)(void))(launcher) \
    }

cudaError_t matmul_launch(const struct step *step, const struct run *run, cudaStream_t stream);
cudaError_t matmul_launch_16bit(const struct step *step, const struct run *run, cudaStream_t stream);
cudaError_t matmul_launch_f32_out(const struct step *step, const struct run *run, cudaStream_t stream);

// cuBLAS on the same tensors, fp32; bf16 or f16; the same with C in fp32. cudaErrorNotSupported when the case has a bias.
cudaError_t matmul_cublas_f32(const struct step *step, const struct run *run, cudaStream_t stream);
cudaError_t matmul_cublas_16bit(const struct step *step, const struct run *run, cudaStream_t stream);
cudaError_t matmul_cublas_f32_out(const struct step *step, const struct run *run, cudaStream_t stream);

// A check_shape for kernels that copy 16 bytes at a time: NULL, or what m, n and k must be.
const char *matmul_check_16bit_rows(const int64_t *dim);
