// The kernels of f16: kernel.cuh.
#include "kernel.cuh"

cudaError_t products_f16(const attention_variant_backward &b, const BackwardPlan &plan, cudaStream_t stream)
{
    return launch_type<__half>(b, plan, stream);
}
