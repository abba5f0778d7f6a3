// The kernels of f16: kernel.cuh, kernel_256.cuh.
#include "launch_type.cuh"

cudaError_t products_f16(const attention_variant_backward &b, const BackwardPlan &plan, cudaStream_t stream)
{
    return launch_type<__half>(b, plan, stream);
}
