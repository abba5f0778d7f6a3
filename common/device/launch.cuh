// Launches of kernels that are set up while the kernel before still runs: programmatic dependent launch (CUDA C++ Programming
// Guide, "Programmatic Dependent Launch and Synchronization").
#pragma once
#include "ptx.cuh"

#include <cuda_runtime.h>

// Whether this GPU gets code that can wait inside, which takes sm_90: of what this file is compiled for it gets the newest that it can run.
static inline cudaError_t can_wait_inside(bool *can)
{
    int device, major, minor, newest = 0;
    cudaError_t error = cudaGetDevice(&device);
    if (error == cudaSuccess)
        error = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
    if (error == cudaSuccess)
        error = cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device);
    if (error != cudaSuccess) return error;
    for (const int arch : {__CUDA_ARCH_LIST__}) // 800, 900, ...
        if (arch <= major * 100 + minor * 10 && arch > newest) newest = arch;
    *can = newest >= 900;
    return cudaSuccess;
}

// Launches a kernel whose blocks may begin as soon as every block of the kernel before in the stream has executed
// griddepcontrol_launch_dependents() or ended, and there is room for them; on GPUs before sm_90 as any other. What other kernels write it
// reads, and what they read or write it writes, behind griddepcontrol_wait(). cluster: blocks of a cluster; {0, 0, 0}: as the kernel is
// declared. Returns the launch's error.
template <typename... PARAMETERS, typename... ARGUMENTS>
static cudaError_t launch_early_clusters(void (*kernel)(PARAMETERS...), dim3 grid, dim3 cluster, dim3 block,
                                         int smem_bytes, cudaStream_t stream, const ARGUMENTS &...arguments)
{
    bool early = false;
    const cudaError_t error = can_wait_inside(&early);
    if (error != cudaSuccess) return error;
    cudaLaunchAttribute attributes[2] = {};
    int count = 0;
    if (early) {
        attributes[count].id = cudaLaunchAttributeProgrammaticStreamSerialization;
        attributes[count++].val.programmaticStreamSerializationAllowed = 1;
    }
    if (cluster.x > 0) {
        attributes[count].id = cudaLaunchAttributeClusterDimension;
        attributes[count++].val.clusterDim = {cluster.x, cluster.y, cluster.z};
    }
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = block;
    config.dynamicSmemBytes = smem_bytes;
    config.stream = stream;
    config.attrs = attributes;
    config.numAttrs = count;
    return cudaLaunchKernelEx(&config, kernel, arguments...);
}

template <typename... PARAMETERS, typename... ARGUMENTS>
static cudaError_t launch_early(void (*kernel)(PARAMETERS...), dim3 grid, dim3 block, int smem_bytes,
                                cudaStream_t stream, const ARGUMENTS &...arguments)
{
    return launch_early_clusters(kernel, grid, dim3(0, 0, 0), block, smem_bytes, stream, arguments...);
}

constexpr double SLOW_MEMORY = 4000; // GB/s: an H100 has 3,352, an H200 4,800

// The memory's bandwidth in GB/s: two words a cycle. Asked for once.
static inline cudaError_t ask_bandwidth(double *gigabytes)
{
    static double asked;
    *gigabytes = asked;
    if (asked > 0) return cudaSuccess;
    int device, kilohertz = 0, bits = 0;
    cudaError_t error = cudaGetDevice(&device);
    if (error == cudaSuccess) error = cudaDeviceGetAttribute(&kilohertz, cudaDevAttrMemoryClockRate, device);
    if (error == cudaSuccess) error = cudaDeviceGetAttribute(&bits, cudaDevAttrGlobalMemoryBusWidth, device);
    *gigabytes = asked = 2e-6 * kilohertz * (bits / 8);
    return error;
}

constexpr int SHARED_BYTES = 100 << 10; // of an SM: what is left of a Hopper's 256 KB is its L1

// Launches early a kernel of which no more than `blocks` shall be on an SM, since more would have more bytes under way than the memory asks
// for: each gets dynamic shared memory that it does not use. Not all that there is: loads come through the L1, and AdamW on an H200 takes 3 %
// longer where 28 KB are left to it (results/trials/layers_in_flight_h200.csv, run 8). The kernel declares none. blocks: at least 2. Returns
// the launch's error.
template <typename... PARAMETERS, typename... ARGUMENTS>
static cudaError_t launch_early_at_most(int blocks, void (*kernel)(PARAMETERS...), dim3 grid, dim3 block,
                                        cudaStream_t stream, const ARGUMENTS &...arguments)
{
    int device, sm_bytes;
    cudaFuncAttributes attributes;
    cudaError_t error = cudaGetDevice(&device);
    if (error == cudaSuccess)
        error = cudaDeviceGetAttribute(&sm_bytes, cudaDevAttrMaxSharedMemoryPerMultiprocessor, device);
    if (error == cudaSuccess) error = cudaFuncGetAttributes(&attributes, kernel);
    if (error != cudaSuccess) return error;
    const int shared_bytes = min(sm_bytes, SHARED_BYTES), percent = 100 * shared_bytes / sm_bytes;
    // A block has whole 128 bytes of its share, and 1 KB of them is the system's.
    const int own = ((int)attributes.sharedSizeBytes + 127) / 128 * 128 + 1024;
    const int share = shared_bytes / blocks / 128 * 128, bytes = share > own ? share - own : 0;
    error = cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, percent);
    if (error == cudaSuccess)
        error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (error != cudaSuccess) return error;
    return launch_early(kernel, grid, block, bytes, stream, arguments...);
}

// What stands before this in such a kernel may run beside the kernels before: the next one may now be set up, and this one waits.
__device__ inline void wait_for_kernels_before()
{
#if __CUDA_ARCH__ >= 900
    griddepcontrol_launch_dependents();
    griddepcontrol_wait();
#endif
}
