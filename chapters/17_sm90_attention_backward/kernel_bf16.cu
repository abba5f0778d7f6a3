// The kernels of bf16: kernel.cuh, kernel_256.cuh.
#include "launch_type.cuh"

cudaError_t products_bf16(const attention_variant_backward &b, const BackwardPlan &plan, cudaStream_t stream)
{
    return launch_type<__nv_bfloat16>(b, plan, stream);
}
