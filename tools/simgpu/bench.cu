// bench.cu: how fast is the simulated GPU? Three kernels of ordinary code and one of wgmma, run by `make bench-sim` on one host
// thread with --verbose, which makes the simulator say how many warp instructions it executed a second. Each checks its
// result.
#include <cstdio>
#include <cstdlib>
#include <cuda_runtime.h>

#include "../../common/device/wgmma.cuh"

#define CHECK(call)                                                                                   \
    do {                                                                                              \
        cudaError_t error = (call);                                                                   \
        if (error != cudaSuccess) {                                                                   \
            fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call, cudaGetErrorString(error)); \
            exit(3);                                                                                  \
        }                                                                                             \
    } while (0)

// Registers only: multiply-adds and integer arithmetic in eight independent chains.
__global__ void arithmetic(float *out, int rounds)
{
    float x[8];
    unsigned bits = threadIdx.x;
    for (int i = 0; i < 8; i++) x[i] = (float)(threadIdx.x + i);
    for (int r = 0; r < rounds; r++) {
#pragma unroll
        for (int i = 0; i < 8; i++) {
            x[i] = x[i] * 0.5f + 1.0f;
            bits = (bits ^ (bits << 5)) + (unsigned)i;
        }
    }
    float sum = 0;
    for (int i = 0; i < 8; i++) sum += x[i];
    out[blockIdx.x * blockDim.x + threadIdx.x] = sum + (float)(bits & 1);
}

// Two global loads for each multiply-add.
__global__ void naive_matmul(float *C, const float *A, const float *B, int n)
{
    int row = blockIdx.y * blockDim.y + threadIdx.y, col = blockIdx.x * blockDim.x + threadIdx.x;
    float sum = 0;
    for (int k = 0; k < n; k++) sum += A[row * n + k] * B[k * n + col];
    C[row * n + col] = sum;
}

// Shared memory, barriers, shuffles.
__global__ void block_sums(float *out, const float *in, int rounds)
{
    __shared__ float warps[8];
    float total = 0;
    for (int r = 0; r < rounds; r++) {
        float v = in[threadIdx.x];
        for (int offset = 16; offset > 0; offset /= 2) v += __shfl_xor_sync(0xffffffff, v, offset);
        if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = v;
        __syncthreads();
        for (int w = 0; w < 8; w++) total += warps[w];
        __syncthreads();
    }
    if (threadIdx.x == 0) out[blockIdx.x] = total;
}

// wgmma m64n256k16 on tiles that stay in shared memory: four a round, as many as 64 elements of K need.
__host__ __device__ inline float element(int row, int k)
{
    return (float)((row * 7 + k * 13) % 31 - 15) / 8;
}

__global__ void wgmma_tiles(float *C, int rounds)
{
    __shared__ alignas(1024) __nv_bfloat16 A_smem[64 * 64], B_smem[256 * 64];
    for (int i = threadIdx.x; i < (64 + 256) * 64; i += blockDim.x) {
        int row = i / 64 % 256, k = i % 64; // B's rows, then A's
        __nv_bfloat16 *tile = i < 256 * 64 ? B_smem : A_smem;
        tile[row * 64 + (k ^ row % 8 * 8)] = element(row, k); // swizzled by 128 bytes
    }
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    uint64_t A_desc = wgmma_descriptor(A_smem), B_desc = wgmma_descriptor(B_smem);
    float acc[128] = {};
    for (int r = 0; r < rounds; r++) {
        wgmma_touch(acc);
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < 4; k++) wgmma<256, __nv_bfloat16>(acc, A_desc + 2 * k, B_desc + 2 * k, true);
        wgmma_commit_group();
        wgmma_wait_group<0>();
        wgmma_touch(acc);
    }
    int row = 16 * (threadIdx.x / 32) + threadIdx.x % 32 / 4;
    for (int r = 0; r < 128; r++)
        C[(row + 8 * (r / 2 % 2)) * 256 + 8 * (r / 4) + 2 * (threadIdx.x % 4) + r % 2] = acc[r];
}

int main()
{
    const int n = 256;
    static float host[n * n], result[n * n];
    float *A, *B, *C;
    for (int i = 0; i < n * n; i++) host[i] = (float)(i % 7);
    CHECK(cudaMalloc(&A, sizeof host));
    CHECK(cudaMalloc(&B, sizeof host));
    CHECK(cudaMalloc(&C, sizeof host));
    CHECK(cudaMemcpy(A, host, sizeof host, cudaMemcpyHostToDevice));
    CHECK(cudaMemcpy(B, host, sizeof host, cudaMemcpyHostToDevice));

    arithmetic<<<16, 256>>>(C, 2000);
    CHECK(cudaMemcpy(result, C, 16 * 256 * 4, cudaMemcpyDeviceToHost));
    if (!(result[0] >= 16 && result[0] <= 17)) return printf("arithmetic is wrong: %f\n", result[0]), 1;

    naive_matmul<<<dim3(n / 32, n / 8), dim3(32, 8)>>>(C, A, B, n);
    CHECK(cudaMemcpy(result, C, sizeof result, cudaMemcpyDeviceToHost));
    for (int i = 0; i < n * n; i++) {
        float sum = 0;
        for (int k = 0; k < n; k++) sum += host[i / n * n + k] * host[k * n + i % n];
        if (result[i] != sum)
            return printf("naive_matmul is wrong at %d: %f, not %f\n", i, result[i], sum), 1;
    }

    block_sums<<<16, 256>>>(C, A, 1000);
    CHECK(cudaMemcpy(result, C, 16 * 4, cudaMemcpyDeviceToHost));
    float sum = 0;
    for (int i = 0; i < 256; i++) sum += host[i];
    if (result[0] != 1000 * sum) return printf("block_sums is wrong: %f, not %f\n", result[0], 1000 * sum), 1;

    const int rounds = 500;
    wgmma_tiles<<<1, 128>>>(C, rounds);
    CHECK(cudaMemcpy(result, C, 64 * 256 * 4, cudaMemcpyDeviceToHost));
    for (int i = 0; i < 64 * 256; i++) {
        float dot = 0;
        for (int k = 0; k < 64; k++) dot += element(i / 256, k) * element(i % 256, k);
        if (result[i] != rounds * dot)
            return printf("wgmma_tiles is wrong at %d: %f, not %f\n", i, result[i], rounds * dot), 1;
    }
    printf("wgmma_tiles: %d products\n", 4 * rounds);
    return 0;
}
