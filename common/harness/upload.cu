#include <cuda_runtime.h>

#include "../device/ptx.cuh"
extern "C" {
#include "upload.h"
}

constexpr int NUM_THREADS = 256;
constexpr int NUM_BLOCKS = 8; // Cases are small.

// The next kernel may begin at once: if it was launched early, it has to wait.
static __global__ void upload_kernel(const __grid_constant__ struct upload upload)
{
#if __CUDA_ARCH__ >= 900
    griddepcontrol_launch_dependents();
#endif
    const size_t first = blockIdx.x * NUM_THREADS + threadIdx.x, step = NUM_BLOCKS * NUM_THREADS;
    for (int k = 0; k < upload.count; k++) {
        const auto &input = upload.inputs[k];
        const size_t packs = input.bytes / sizeof(uint4);
        for (size_t i = first; i < packs; i += step) ((uint4 *)input.to)[i] = ((const uint4 *)input.from)[i];
        for (size_t i = packs * sizeof(uint4) + first; i < input.bytes; i += step)
            ((char *)input.to)[i] = ((const char *)input.from)[i];
    }
}

extern "C" cudaError_t upload_inputs(const struct upload *upload, cudaStream_t stream)
{
    upload_kernel<<<NUM_BLOCKS, NUM_THREADS, 0, stream>>>(*upload);
    return cudaGetLastError();
}
