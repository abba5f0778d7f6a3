// What the matmul chapters declare alike: C[m,n] = A[m,k] · B[n,k]ᵀ (+ bias[n]), its tensors, how a step is launched,
// and cuBLAS as the baseline.
#pragma once

#include "chapter.h"

// A launcher in a .cu file. A is (M, K), B is (N, K), bias is (N) or NULL, C is (M, N), row-major in device memory, all of
// the chapter's type.
typedef cudaError_t matmul(const void *A, const void *B, const void *bias, void *C, int M, int N, int K,
                           cudaStream_t stream);

#define MATMUL_DIMS   \
    {                 \
        "m", "n", "k" \
    }
#define MATMUL_TENSORS(type)                                                              \
    {                                                                                     \
        {"A", type, IN, "m,k"}, {"B", type, IN, "n,k"}, {"bias", type, IN_OPTIONAL, "n"}, \
            {"C", type, OUT, "m,n"},                                                      \
    }
#define MATMUL_STEP(name, launcher)                     \
    {                                                   \
        name, matmul_launch, (void (*)(void))(launcher) \
    }

cudaError_t matmul_launch(const struct step *step, const struct run *run, cudaStream_t stream);

// cuBLAS on the same tensors; cudaErrorNotSupported when the case has a bias.
cudaError_t matmul_launch_sgemm(const struct step *step, const struct run *run, cudaStream_t stream);
cudaError_t matmul_launch_bf16(const struct step *step, const struct run *run, cudaStream_t stream);

// A check_shape for kernels that copy 16 bytes at a time: NULL, or what k must be.
const char *matmul_check_bf16_rows(const int64_t *dim);
