// hopper.cuh: the instructions that the broken kernels share, each a function or a macro named after it. What goes wrong in one
// is reported at the line of the kernel that used it.
#ifndef HOPPER_CUH
#define HOPPER_CUH

#include <cuda.h>

#include "../check.h"

__device__ static u32 smem_addr(const void *p)
{
    return (u32)__cvta_generic_to_shared(p);
}
__device__ static u32 mapa(const void *p, u32 rank)
{
    u32 r;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(r) : "r"(smem_addr(p)), "r"(rank));
    return r;
}

// ---- mbarrier; `bar` is a shared address, of another block too where PTX allows that -------------------------------------

__device__ static void bar_init(u32 bar, u32 count)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(count) : "memory");
}
__device__ static void bar_arrive(u32 bar, u32 count = 1)
{
    asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0], %1;" ::"r"(bar), "r"(count)
                 : "memory");
}
__device__ static void bar_expect(u32 bar, u32 bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.release.cluster.shared::cluster.b64 _, [%0], %1;" ::"r"(bar),
                 "r"(bytes)
                 : "memory");
}
__device__ static void bar_wait(u32 bar, u32 parity)
{
    asm volatile(
        "{ .reg .pred p; again: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1; @!p bra again; }" ::"r"(
            bar),
        "r"(parity)
        : "memory");
}
#define INIT_FENCE asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory")

// ---- Clusters ---------------------------------------------------------------------------------------------------------------

__device__ static u32 remote_load(u32 addr)
{
    u32 r;
    asm volatile("ld.shared::cluster.u32 %0, [%1];" : "=r"(r) : "r"(addr) : "memory");
    return r;
}
#define CLUSTER_ARRIVE         asm volatile("barrier.cluster.arrive.aligned;" ::: "memory")
#define CLUSTER_ARRIVE_RELAXED asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory")
#define CLUSTER_WAIT           asm volatile("barrier.cluster.wait.aligned;" ::: "memory")

// ---- Bulk and tensor copies ------------------------------------------------------------------------------------------------

__device__ static void copy_in(void *to, const void *from, u32 bytes, u32 bar)
{
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
            smem_addr(to)),
        "l"(from), "r"(bytes), "r"(bar)
        : "memory");
}
// The same bytes into every block of `blocks`.
__device__ static void copy_in_multicast(void *to, const void *from, u32 bytes, u32 bar, u32 blocks)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], "
                 "[%1], %2, [%3], %4;" ::"r"(smem_addr(to)),
                 "l"(from), "r"(bytes), "r"(bar), "h"((u16)blocks)
                 : "memory");
}
__device__ static void copy_out(void *to, const void *from, u32 bytes)
{
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to),
                 "r"(smem_addr(from)), "r"(bytes)
                 : "memory");
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
__device__ static void add_out(void *to, const void *from, u32 bytes)
{
    asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32 [%0], [%1], %2;" ::"l"(to),
                 "r"(smem_addr(from)), "r"(bytes)
                 : "memory");
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
__device__ static void tensor_in(void *to, const CUtensorMap *map, s32 x, s32 y, u32 bar)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], "
                 "[%1, {%2, %3}], [%4];" ::"r"(smem_addr(to)),
                 "l"(map), "r"(x), "r"(y), "r"(bar)
                 : "memory");
}
__device__ static void tensor_in_multicast(void *to, const CUtensorMap *map, s32 x, s32 y, u32 bar,
                                           u32 blocks)
{
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster "
        "[%0], [%1, {%2, %3}], [%4], %5;" ::"r"(smem_addr(to)),
        "l"(map), "r"(x), "r"(y), "r"(bar), "h"((u16)blocks)
        : "memory");
}
__device__ static void tensor_out(const CUtensorMap *map, s32 x, s32 y, const void *from)
{
    asm volatile(
        "cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%1, %2}], [%3];" ::"l"(map), "r"(x),
        "r"(y), "r"(smem_addr(from))
        : "memory");
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
__device__ static void tensor_add(const CUtensorMap *map, s32 x, s32 y, const void *from)
{
    asm volatile(
        "cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.tile.bulk_group [%0, {%1, %2}], [%3];" ::"l"(
            map),
        "r"(x), "r"(y), "r"(smem_addr(from))
        : "memory");
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
#define PROXY_FENCE        asm volatile("fence.proxy.async.shared::cta;" ::: "memory")
#define GLOBAL_PROXY_FENCE asm volatile("fence.proxy.async.global;" ::: "memory")
#define WAIT_READ          asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory")
#define WAIT_ALL           asm volatile("cp.async.bulk.wait_group 0;" ::: "memory")

// ---- wgmma -------------------------------------------------------------------------------------------------------------------

#define WGMMA_FENCE  asm volatile("wgmma.fence.sync.aligned;" ::: "memory")
#define WGMMA_COMMIT asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory")
#define WGMMA_WAIT   asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory")
#define WGMMA_AT(D, A, B)                                                                                        \
    asm volatile(                                                                                                \
        "{ .reg .pred p; setp.ne.b32 p, 1, 0; wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%0, %1, %2, " \
        "%3}, %4, %5, p, 1, 1, 0, 0; }"                                                                          \
        : "+f"(D[0]), "+f"(D[1]), "+f"(D[2]), "+f"(D[3])                                                         \
        : "l"(A), "l"(B)                                                                                         \
        : "memory")
// Core matrices of 8 x 16 bytes lie one after the other.
__device__ static u64 tile_desc(const void *p)
{
    return smem_addr(p) >> 4 | (u64)8 << 16 | (u64)16 << 32;
}

// cuTensorMapEncodeTiled, as a program gets it without linking the driver.
static inline CUresult encode_map(CUtensorMap *map, CUtensorMapDataType type, u32 rank, void *address,
                                  const u64 *dims, const u64 *strides, const u32 *box, const u32 *steps,
                                  int swizzle, int fill = 0, int interleave = 0)
{
    typedef CUresult (*encode_fn)(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *, const cuuint64_t *,
                                  const cuuint64_t *, const cuuint32_t *, const cuuint32_t *,
                                  CUtensorMapInterleave, CUtensorMapSwizzle, CUtensorMapL2promotion,
                                  CUtensorMapFloatOOBfill);
    static void *function;
    cudaDriverEntryPointQueryResult found;
    if (!function)
        CUDA_CHECK(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000,
                                                    cudaEnableDefault, &found));
    return ((encode_fn)function)(map, type, rank, address, (const cuuint64_t *)dims,
                                 (const cuuint64_t *)strides, box, steps, (CUtensorMapInterleave)interleave,
                                 (CUtensorMapSwizzle)swizzle, CU_TENSOR_MAP_L2_PROMOTION_NONE,
                                 (CUtensorMapFloatOOBfill)fill);
}

#endif
