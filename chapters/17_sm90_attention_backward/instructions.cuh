// The PTX instructions that this chapter brings in, one inline function each, named after the instruction.
#pragma once
#include "../../common/device/ptx.cuh"

// Parallel synchronization, red.global.add.v4.f32: adds each of the four to memory, relaxed: others may add to the same at the same
// time, in any order. dst is a multiple of 16 bytes.
__device__ inline void red_add_v4(float4 *dst, float4 value)
{
    asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(dst), "f"(value.x),
                 "f"(value.y), "f"(value.z), "f"(value.w)
                 : "memory");
}

// cp.reduce.async.bulk, shared to global: adds `bytes` bytes of floats to those at dst, relaxed as above. Both addresses and `bytes`
// are multiples of 16. Belongs to this thread's current bulk group.
__device__ inline void cp_reduce_async_bulk_add(float4 *dst, const float4 *src_smem, uint32_t bytes)
{
    asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(dst),
                 "r"(smem_addr(src_smem)), "r"(bytes)
                 : "memory");
}

// cp.async.bulk, shared to global: writes `bytes` bytes to dst. Both addresses and `bytes` are multiples of 16. Belongs to this thread's
// current bulk group.
__device__ inline void cp_async_bulk_store(float4 *dst, const float4 *src_smem, uint32_t bytes)
{
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(dst),
                 "r"(smem_addr(src_smem)), "r"(bytes)
                 : "memory");
}

// Memory consistency model, atom.acquire.gpu: adds to *counter and returns what it was, before everything this thread reads after.
__device__ inline unsigned atom_acquire_gpu_add(unsigned *counter, unsigned value)
{
    unsigned before;
    asm volatile("atom.acquire.gpu.global.add.u32 %0, [%1], %2;"
                 : "=r"(before)
                 : "l"(counter), "r"(value)
                 : "memory");
    return before;
}

// membar/fence, fence.proxy.async of global memory: what this thread did there and saw there before comes before what the copy
// engine does for it after, and the other way round.
__device__ inline void fence_proxy_async_global()
{
    asm volatile("fence.proxy.async.global;" ::: "memory");
}

// Warp-level matrix store, stmatrix with .trans: as stmatrix_x4, and each 8x8 matrix is stored transposed.
__device__ inline void stmatrix_x4_trans(uint32_t addr, const uint32_t (&frag)[4])
{
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(addr),
                 "r"(frag[0]), "r"(frag[1]), "r"(frag[2]), "r"(frag[3])
                 : "memory");
}

// cp.async.bulk, shared memory to that of block `rank` of the cluster, at the same place as dst_smem here; counted there at its
// barrier of the same place as `bar`.
__device__ inline void cp_async_bulk_to_block(const void *dst_smem, const void *src_smem, uint32_t bytes,
                                              const uint64_t *bar, uint32_t rank)
{
    asm volatile(
        "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
            mapa(smem_addr(dst_smem), rank)),
        "r"(smem_addr(src_smem)), "r"(bytes), "r"(mapa(smem_addr(bar), rank))
        : "memory");
}
