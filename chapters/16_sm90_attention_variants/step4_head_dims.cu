// Chapter 16, step 4: V's head dimension is its own.
//
// Question: DeepSeek's latent attention has 192 numbers in a head of Q and K and 128 in one of V. What in the kernel is of
// Q and K, what of V and O?
//
// S = Q Kᵀ runs over D, O = P V over DV, and they meet only in the tile: its registers (DV / 2 of O, KV / 2 of S, twice
// KV / 4 of P) want KV = 64 where DV = 256, its shared memory (K and V of each stage, Q, O) decides how many stages there are.
// Tile computes both; the scale is that of D. The table at the end of kernel.cuh has the pairs.
//
// Grows from: step 3 (sinks).
// Code: kernel.cuh, Tile and launch_type.
// Run: make chapter-16 OP=head_dims
#include "launchers.h"
#include "plan.h"

extern "C" cudaError_t head_dims(const struct attention_variant *v, cudaStream_t stream)
{
    return launch_attention(*v, HEAD_DIMS, stream);
}
