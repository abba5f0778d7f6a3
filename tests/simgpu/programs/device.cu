// What the device says about itself holds together; it calls itself a simulated one.
#include "expect.h"

__global__ void __launch_bounds__(256) small(int *x)
{
    __shared__ int tile[1024];
    tile[threadIdx.x] = threadIdx.x;
    __syncthreads();
    x[threadIdx.x] = tile[255 - threadIdx.x];
}

static int attribute(cudaDeviceAttr a)
{
    int value = -1;
    CUDA(cudaDeviceGetAttribute(&value, a, 0));
    return value;
}

int main()
{
    int count = 0, current = -1, driver = 0, runtime = 0;
    CUDA(cudaGetDeviceCount(&count));
    CUDA(cudaSetDevice(0));
    CUDA(cudaGetDevice(&current));
    EXPECT(count == 1 && current == 0);
    EXPECT(cudaSetDevice(1) == cudaErrorInvalidDevice && cudaGetLastError() == cudaErrorInvalidDevice);
    CUDA(cudaDriverGetVersion(&driver));
    CUDA(cudaRuntimeGetVersion(&runtime));
    EXPECT(driver >= 13000 && runtime / 1000 == 13);

    cudaDeviceProp p;
    CUDA(cudaGetDeviceProperties(&p, 0));
    printf("%s, %d multiprocessors, %zu MiB\n", p.name, p.multiProcessorCount, p.totalGlobalMem >> 20);
    EXPECT(p.major == 9 && p.minor == 0);
    EXPECT(p.major == attribute(cudaDevAttrComputeCapabilityMajor));
    EXPECT(p.multiProcessorCount == attribute(cudaDevAttrMultiProcessorCount));
    EXPECT(p.warpSize == 32 && attribute(cudaDevAttrWarpSize) == 32);
    EXPECT(p.maxThreadsPerBlock == 1024 && p.maxThreadsPerMultiProcessor == 2048);
    EXPECT(p.maxThreadsDim[2] == 64 && p.maxGridSize[0] == 2147483647 && p.maxGridSize[1] == 65535);
    EXPECT(p.sharedMemPerBlock == 48 * 1024 && p.sharedMemPerBlockOptin == 227 * 1024);
    EXPECT(p.sharedMemPerMultiprocessor == 228 * 1024 && p.reservedSharedMemPerBlock == 1024);
    EXPECT(p.regsPerBlock == 65536 && p.regsPerMultiprocessor == 65536);
    EXPECT((int)p.sharedMemPerBlockOptin == attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin));
    EXPECT(p.l2CacheSize == attribute(cudaDevAttrL2CacheSize) && p.l2CacheSize > 0);
    EXPECT(p.cooperativeLaunch == 1 && p.managedMemory == 1 && p.canMapHostMemory == 1);

    cudaFuncAttributes f;
    CUDA(cudaFuncGetAttributes(&f, small));
    EXPECT(f.maxThreadsPerBlock == 256 && f.sharedSizeBytes == 4096 && f.numRegs > 0 &&
           f.localSizeBytes == 0);
    EXPECT(f.maxDynamicSharedSizeBytes == 48 * 1024 - 4096);
    CUDA(cudaFuncSetCacheConfig(small, cudaFuncCachePreferShared));

    int blocks;
    CUDA(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, small, 256, 0));
    EXPECT(blocks == 8); // 2048 threads
    CUDA(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, small, 256, 64 * 1024));
    EXPECT(blocks == 3); // 228 KiB of shared memory, 69 KiB each
    CUDA(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, small, 512, 0));
    EXPECT(blocks == 0); // launch bounds
    size_t value;
    CUDA(cudaDeviceGetLimit(&value, cudaLimitStackSize));
    EXPECT(value == 1024);
    CUDA(cudaDeviceSetLimit(cudaLimitStackSize, 4096));
    CUDA(cudaDeviceGetLimit(&value, cudaLimitStackSize));
    EXPECT(value == 4096);
    CUDA(cudaDeviceReset());
    return verdict();
}
