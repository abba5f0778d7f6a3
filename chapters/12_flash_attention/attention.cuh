// The two 16-bit types behind one name: what every step of this chapter needs and none of them teaches.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>
#include <type_traits>

#include "../../common/device/ptx.cuh"
#include "../../common/device/attention.h"

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

// Two floats rounded to T in one register, `low` in the lower half.
template <typename T>
static __device__ uint32_t pack(float low, float high)
{
    if constexpr (std::is_same<T, __half>::value) {
        const __half2 pair = __floats2half2_rn(low, high);
        return *reinterpret_cast<const uint32_t *>(&pair);
    } else {
        const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
        return *reinterpret_cast<const uint32_t *>(&pair);
    }
}

// What the launchers check: sizes that the kernels take, and rows that begin at multiples of 16 bytes.
static inline bool attention_valid(const struct attention &a)
{
    const uintptr_t bits = (uintptr_t)a.Q | (uintptr_t)a.K | (uintptr_t)a.V | (uintptr_t)a.O;
    return a.Q && a.K && a.V && a.O && a.LSE && bits % 16 == 0 && a.q_len > 0 && a.k_len > 0 &&
           a.q_len <= 1 << 30 && a.k_len <= 1 << 30 && a.batch > 0 && a.heads > 0 && a.kv_heads > 0 &&
           a.heads % a.kv_heads == 0 && a.batch <= 65535 && a.heads <= 65535 &&
           (a.head_dim == 64 || a.head_dim == 128);
}
