// The kernels of f16: kernel.cuh.
//
// spills: allowed, 20 bytes a block at head dimension 256: addresses for the end, where dV is stored.
#include "kernel.cuh"

cudaError_t products_f16(const attention_variant_backward &b, const BackwardPlan &plan, cudaStream_t stream)
{
    return launch_type<__half>(b, plan, stream);
}
