// Dynamic shared memory: its size from the launch, beside static arrays, carved by hand, and beyond 48 KiB.
#include "expect.h"

// Reverses a row through shared memory.
__global__ void reverse(float *x, int n)
{
    extern __shared__ float row[];
    __shared__ int last;
    if (threadIdx.x == 0) last = n - 1;
    for (int i = threadIdx.x; i < n; i += blockDim.x) row[i] = x[blockIdx.x * n + i];
    __syncthreads();
    for (int i = threadIdx.x; i < n; i += blockDim.x) x[blockIdx.x * n + i] = row[last - i];
}

// Two arrays of different types in the same dynamic memory.
__global__ void carve(double *sums, int *counts, int n)
{
    extern __shared__ double memory[];
    double *sum = memory;
    int *count = (int *)(sum + n);
    int i = threadIdx.x;
    sum[i] = 0.5 * i;
    count[i] = 2 * i;
    __syncthreads();
    sums[i] = sum[n - 1 - i];
    counts[i] = count[n - 1 - i];
}

__global__ void ask(unsigned *bytes)
{
    extern __shared__ char unused[];
    asm("mov.u32 %0, %%dynamic_smem_size;" : "=r"(bytes[0]));
    bytes[1] = (unsigned)(__cvta_generic_to_shared(unused) % 16);
}

static void try_reverse(int n)
{
    float *host = random_floats(3 * n), *device = to_device(host, 3 * n);
    reverse<<<3, 128, n * sizeof(float)>>>(device, n);
    CUDA(cudaGetLastError());
    double *want = (double *)malloc(3 * n * sizeof *want);
    for (int r = 0; r < 3; r++)
        for (int i = 0; i < n; i++) want[r * n + i] = host[r * n + n - 1 - i];
    expect_close("reverse", to_host(device, 3 * n), want, 3 * n, 0);
    CUDA(cudaFree(device));
}

int main()
{
    try_reverse(1);
    try_reverse(1000);

    const int big = 50000; // 200 KB
    cudaFuncAttributes attributes;
    reverse<<<3, 128, big * sizeof(float)>>>(NULL, big);
    EXPECT(cudaGetLastError() == cudaErrorInvalidValue);
    CUDA(cudaFuncSetAttribute(reverse, cudaFuncAttributeMaxDynamicSharedMemorySize, big * sizeof(float)));
    CUDA(cudaFuncGetAttributes(&attributes, reverse));
    EXPECT(attributes.maxDynamicSharedSizeBytes == big * sizeof(float) &&
           attributes.sharedSizeBytes == sizeof(int));
    try_reverse(big);
    EXPECT(cudaFuncSetAttribute(reverse, cudaFuncAttributeMaxDynamicSharedMemorySize, 227 * 1024) ==
           cudaErrorInvalidValue); // its own 4 bytes are too many
    cudaGetLastError();
    EXPECT(cudaFuncSetAttribute(carve, cudaFuncAttributeMaxDynamicSharedMemorySize, 227 * 1024) ==
           cudaSuccess);

    const int n = 64;
    double *sums;
    int *counts, host_counts[n];
    double host_sums[n];
    CUDA(cudaMalloc(&sums, sizeof host_sums));
    CUDA(cudaMalloc(&counts, sizeof host_counts));
    carve<<<1, n, n *(sizeof(double) + sizeof(int))>>>(sums, counts, n);
    CUDA(cudaMemcpy(host_sums, sums, sizeof host_sums, cudaMemcpyDeviceToHost));
    CUDA(cudaMemcpy(host_counts, counts, sizeof host_counts, cudaMemcpyDeviceToHost));
    for (int i = 0; i < n; i++)
        EXPECT(host_sums[i] == 0.5 * (n - 1 - i) && host_counts[i] == 2 * (n - 1 - i));

    unsigned *bytes, host_bytes[2];
    CUDA(cudaMalloc(&bytes, sizeof host_bytes));
    ask<<<1, 1, 1234>>>(bytes);
    CUDA(cudaMemcpy(host_bytes, bytes, sizeof host_bytes, cudaMemcpyDeviceToHost));
    EXPECT(host_bytes[0] == 1234 && host_bytes[1] == 0);
    return verdict();
}
