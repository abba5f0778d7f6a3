// The kernels of f16: kernel.cuh.
#include "kernel.cuh"

cudaError_t launch_f16(const attention_variant &v, const Plan &plan, cudaStream_t stream)
{
    return launch_type<__half>(v, plan, stream);
}
