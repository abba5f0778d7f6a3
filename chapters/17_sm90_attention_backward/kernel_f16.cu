// The kernels of f16: kernel.cuh.
//
// spills: allowed, 4 bytes a tile at head dimension 64, and at 128 with softcap.
#include "kernel.cuh"

cudaError_t products_f16(const attention_variant_backward &b, const BackwardPlan &plan, cudaStream_t stream)
{
    return launch_type<__half>(b, plan, stream);
}
