// The kernels of bf16: kernel.cuh.
//
// spills: allowed, up to 48 bytes of the producer's at head dimensions of 192 and 256, whose consumers leave it 24 registers.
#include "kernel.cuh"

cudaError_t launch_bf16(const attention_variant &v, const Plan &plan, cudaStream_t stream)
{
    return launch_type<__nv_bfloat16>(v, plan, stream);
}
