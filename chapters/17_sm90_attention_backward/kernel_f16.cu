// The kernels of f16: kernel.cuh.
//
// spills: allowed, at D = 256 12 bytes, written and read before and behind the loop over the tiles of queries.
#include "kernel.cuh"

cudaError_t products_f16(const attention_variant_backward &b, const BackwardPlan &plan, cudaStream_t stream)
{
    return launch_type<__half>(b, plan, stream);
}
