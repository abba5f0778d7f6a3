// The kernels of bf16: kernel.cuh.
//
// spills: allowed, up to 48 bytes at head dimensions of 192 and 256, once a tile of queries: in the warp that looks for work,
// which the consumers leave 24 registers, and where these begin a tile and end it.
#include "kernel.cuh"

cudaError_t launch_bf16(const attention_variant &v, const Plan &plan, cudaStream_t stream)
{
    return launch_type<__nv_bfloat16>(v, plan, stream);
}
