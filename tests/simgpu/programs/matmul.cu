// A tiled matrix product with cooperative groups, templates and a ragged shape; and the same product by cuBLAS, opened as a
// library, so that the program builds where the toolkit has no cuBLAS.
#include <cooperative_groups.h>
#include <dlfcn.h>

#include "expect.h"

template <int TILE>
__global__ void matmul(float *C, const float *A, const float *B, int M, int N, int K)
{
    namespace cg = cooperative_groups;
    cg::thread_block block = cg::this_thread_block();
    __shared__ float A_smem[TILE][TILE], B_smem[TILE][TILE];
    int row = block.group_index().y * TILE + block.thread_index().y;
    int col = block.group_index().x * TILE + block.thread_index().x;
    float sum = 0;
    for (int k = 0; k < K; k += TILE) {
        int x = block.thread_index().x, y = block.thread_index().y;
        A_smem[y][x] = row < M && k + x < K ? A[row * K + k + x] : 0;
        B_smem[y][x] = k + y < K && col < N ? B[(k + y) * N + col] : 0;
        cg::sync(block);
#pragma unroll
        for (int i = 0; i < TILE; i++) sum += A_smem[y][i] * B_smem[i][x];
        cg::sync(block);
    }
    if (row < M && col < N) C[row * N + col] = sum;
}

// Declared as in cublas_api.h.
typedef int (*Create)(void **);
typedef int (*Sgemm)(void *, int, int, int, int, int, const float *, const float *, int, const float *, int,
                     const float *, float *, int);

int main()
{
    const int M = 77, N = 101, K = 59;
    float *A = random_floats(M * K), *B = random_floats(K * N), *a = to_device(A, M * K),
          *b = to_device(B, K * N), *c;
    CUDA(cudaMalloc(&c, M * N * sizeof *c));
    double *want = (double *)calloc(M * N, sizeof *want);
    for (int m = 0; m < M; m++)
        for (int n = 0; n < N; n++)
            for (int k = 0; k < K; k++) want[m * N + n] += (double)A[m * K + k] * B[k * N + n];
    matmul<16><<<dim3((N + 15) / 16, (M + 15) / 16), dim3(16, 16)>>>(c, a, b, M, N, K);
    CUDA(cudaDeviceSynchronize());
    expect_close("matmul<16>", to_host(c, M * N), want, M * N, 1e-5);
    matmul<32><<<dim3((N + 31) / 32, (M + 31) / 32), dim3(32, 32)>>>(c, a, b, M, N, K);
    expect_close("matmul<32>", to_host(c, M * N), want, M * N, 1e-5);

    void *library = dlopen("libcublas.so.13", RTLD_NOW), *handle;
    if (!library) {
        printf("no cuBLAS: %s\n", dlerror());
        return 1;
    }
    Create create = (Create)dlsym(library, "cublasCreate_v2");
    Sgemm sgemm = (Sgemm)dlsym(library, "cublasSgemm_v2");
    const float one = 1, zero = 0;
    CUDA(cudaMemset(c, 0xff, M * N * sizeof *c));
    EXPECT(create(&handle) == 0);
    EXPECT(sgemm(handle, 0, 0, N, M, K, &one, b, N, a, K, &zero, c, N) == 0);
    expect_close("cublasSgemm", to_host(c, M * N), want, M * N, 1e-5);
    return verdict();
}
