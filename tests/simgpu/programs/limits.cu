// Wrong calls that CUDA refuses without harm: each gives its error, cudaGetLastError clears it, and the next launch runs.
#include "expect.h"

__global__ void __launch_bounds__(128) bounded(int *x)
{
    x[threadIdx.x] = threadIdx.x;
}
__global__ void plain(int *x)
{
    x[threadIdx.x] = threadIdx.x;
}
__device__ int variable[4];

// What the call or launch gave, which is also the last error, once.
static bool refused(cudaError_t expected, cudaError_t got)
{
    cudaError_t last = cudaGetLastError(), next = cudaGetLastError();
    if (got == cudaSuccess) got = last;
    if (got != expected) printf("expected %s, got %s\n", cudaGetErrorName(expected), cudaGetErrorName(got));
    return got == expected && last == expected && next == cudaSuccess;
}
#define LAUNCH_REFUSED(expected, ...)           \
    do {                                        \
        plain<<<__VA_ARGS__>>>(x);              \
        EXPECT(refused(expected, cudaSuccess)); \
    } while (0)

int main()
{
    int *x, host[256];
    CUDA(cudaMalloc(&x, sizeof host));
    LAUNCH_REFUSED(cudaErrorInvalidConfiguration, 0, 32);
    LAUNCH_REFUSED(cudaErrorInvalidConfiguration, 1, 0);
    LAUNCH_REFUSED(cudaErrorInvalidConfiguration, 1, 1025);
    LAUNCH_REFUSED(cudaErrorInvalidConfiguration, 1, dim3(32, 33));
    LAUNCH_REFUSED(cudaErrorInvalidConfiguration, 1, dim3(1, 1, 65));
    LAUNCH_REFUSED(cudaErrorInvalidConfiguration, dim3(1, 65536), 1);
    LAUNCH_REFUSED(cudaErrorInvalidValue, 1, 32, 48 * 1024 + 1);
    bounded<<<1, 129>>>(x);
    EXPECT(refused(cudaErrorInvalidValue, cudaSuccess));
    EXPECT(refused(cudaErrorInvalidDeviceFunction,
                   cudaLaunchKernel((const void *)main, dim3(1), dim3(1), NULL, 0, 0)));

    // Copies and fills: outside an allocation, in the wrong direction, of what was freed.
    EXPECT(refused(cudaErrorInvalidValue, cudaMemcpy(x, host, sizeof host + 4, cudaMemcpyHostToDevice)));
    EXPECT(refused(cudaErrorInvalidValue, cudaMemcpy(host, x + 1, sizeof host, cudaMemcpyDeviceToHost)));
    EXPECT(refused(cudaErrorInvalidValue, cudaMemcpy(host, x, sizeof host, cudaMemcpyHostToDevice)));
    EXPECT(refused(cudaErrorInvalidValue, cudaMemcpy(x, NULL, 4, cudaMemcpyHostToDevice)));
    EXPECT(refused(cudaErrorInvalidMemcpyDirection, cudaMemcpy(x, host, 4, (cudaMemcpyKind)9)));
    EXPECT(refused(cudaErrorInvalidValue, cudaMemset(x, 0, sizeof host + 1)));
    EXPECT(refused(cudaErrorInvalidValue, cudaMemset(host, 0, 4)));
    EXPECT(refused(cudaErrorInvalidPitchValue, cudaMemcpy2D(x, 8, host, 16, 16, 2, cudaMemcpyHostToDevice)));
    EXPECT(refused(cudaErrorInvalidValue, cudaMemcpyToSymbol(variable, host, sizeof variable, 4)));
    EXPECT(refused(cudaErrorInvalidSymbol, cudaMemcpyToSymbol(&host, host, 4)));
    int *freed;
    CUDA(cudaMalloc(&freed, 64));
    CUDA(cudaFree(freed));
    EXPECT(refused(cudaErrorInvalidValue, cudaMemcpy(host, freed, 64, cudaMemcpyDeviceToHost)));
    EXPECT(refused(cudaErrorInvalidValue, cudaFree(freed)));
    EXPECT(refused(cudaErrorInvalidValue, cudaFree(x + 1)));
    EXPECT(refused(cudaErrorInvalidValue, cudaFree(host)));
    void *symbol;
    CUDA(cudaGetSymbolAddress(&symbol, variable));
    EXPECT(refused(cudaErrorInvalidValue, cudaFree(symbol)));
    EXPECT(refused(cudaErrorInvalidValue, cudaFreeHost(host)));
    void *huge;
    EXPECT(refused(cudaErrorMemoryAllocation, cudaMalloc(&huge, 1ull << 50)));

    // Handles.
    cudaStream_t stream;
    cudaEvent_t event;
    CUDA(cudaStreamCreate(&stream));
    CUDA(cudaStreamDestroy(stream));
    EXPECT(refused(cudaErrorInvalidResourceHandle, cudaStreamSynchronize(stream)));
    LAUNCH_REFUSED(cudaErrorInvalidResourceHandle, 1, 32, 0, stream);
    CUDA(cudaEventCreate(&event));
    CUDA(cudaEventDestroy(event));
    EXPECT(refused(cudaErrorInvalidResourceHandle, cudaEventRecord(event)));

    // Not supported, and said so.
    cudaArray_t array;
    EXPECT(refused(cudaErrorNotSupported, cudaMallocArray(&array, nullptr, 4)));
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(2);
    config.blockDim = dim3(32);
    cudaLaunchAttribute cluster;
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim.x = 3; // does not divide the grid
    cluster.val.clusterDim.y = cluster.val.clusterDim.z = 1;
    config.attrs = &cluster;
    config.numAttrs = 1;
    EXPECT(refused(cudaErrorInvalidConfiguration, cudaLaunchKernelEx(&config, plain, x)));
    void *function;
    cudaDriverEntryPointQueryResult found;
    CUDA(cudaGetDriverEntryPointByVersion("cuNoSuchFunction", &function, 12000, cudaEnableDefault, &found));
    EXPECT(found == cudaDriverEntryPointSymbolNotFound && !function);

    EXPECT(strcmp(cudaGetErrorName(cudaErrorIllegalAddress), "cudaErrorIllegalAddress") == 0);
    EXPECT(strcmp(cudaGetErrorString((cudaError_t)12345), "unrecognized error code") == 0);
    plain<<<1, 256>>>(x);
    CUDA(cudaMemcpy(host, x, sizeof host, cudaMemcpyDeviceToHost));
    for (int i = 0; i < 256; i++) EXPECT(host[i] == i);
    return verdict();
}
