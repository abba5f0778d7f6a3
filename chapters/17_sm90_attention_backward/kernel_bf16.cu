// The kernels of bf16: kernel.cuh.
//
// spills: allowed, 20 bytes a block at head dimension 256: addresses for the end, where dV is stored.
#include "kernel.cuh"

cudaError_t products_bf16(const attention_variant_backward &b, const BackwardPlan &plan, cudaStream_t stream)
{
    return launch_type<__nv_bfloat16>(b, plan, stream);
}
