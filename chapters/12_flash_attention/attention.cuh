// The two 16-bit types behind one name: what every step of this chapter needs and none of them teaches.
#pragma once
#include "../../common/device/attention.h"
#include "../../common/device/ptx.cuh"
#include "../../common/device/types.cuh"

// acc(16,8) += A(16,16) * B(16,8); B's two registers come one by one: an ldmatrix.x4 brings those of two B.
template <typename T>
static __device__ void mma_m16n8k16(float (&acc)[4], const uint32_t (&A_frag)[4], uint32_t B_0, uint32_t B_1)
{
    const uint32_t B_frag[2] = {B_0, B_1};
    if constexpr (std::is_same<T, __half>::value)
        mma_m16n8k16_f16(acc, A_frag, B_frag);
    else
        mma_m16n8k16_bf16(acc, A_frag, B_frag);
}

// What the launchers check.
static inline bool attention_valid(const struct attention &a)
{
    return attention_sizes_valid(&a) && (a.head_dim == 64 || a.head_dim == 128);
}
