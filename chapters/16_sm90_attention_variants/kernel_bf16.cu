// The kernels of bf16: kernel.cuh.
#include "kernel.cuh"

cudaError_t launch_bf16(const attention_variant &v, const Plan &plan, cudaStream_t stream)
{
    return launch_type<__nv_bfloat16>(v, plan, stream);
}
