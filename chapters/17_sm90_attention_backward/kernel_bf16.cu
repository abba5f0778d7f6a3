// The kernels of bf16: kernel.cuh.
#include "kernel.cuh"

cudaError_t products_bf16(const attention_variant_backward &b, const BackwardPlan &plan, cudaStream_t stream)
{
    return launch_type<__nv_bfloat16>(b, plan, stream);
}
