// The tensor memory accelerator: copies of whole boxes between global and shared memory, started by one thread; one
// inline function an instruction. tensor_map.h makes the maps.
#pragma once
#include <cuda.h>
#include <stdint.h>

#include "ptx.cuh"

// elect.sync: true in one lane of the warp, the same each time (PTX ISA, elect.sync). It names the thread that issues copies. All 32
// lanes must come here, for it waits for them: what stands before it must hold for the whole warp, as in `tid / 32 == 0 && elect_one()`.
// Why not tid == 0: ptxas does not see there that no other lane has come along, and makes of each copy a loop over those that may have.
// Behind elect.sync a copy is one instruction. Which lane it is PTX does not say; it was the lowest on an H200 (recorded for
// tests/simgpu/conformance.bats), and the marks of trace.cuh count on lane 0.
__device__ inline bool elect_one()
{
    uint32_t elected;
    asm volatile("{ .reg .pred p; elect.sync _|p, 0xffffffff; selp.u32 %0, 1, 0, p; }" : "=r"(elected));
    return elected;
}

// prefetch.tensormap: the map will be needed soon.
__device__ inline void prefetch_tensormap(const CUtensorMap &map)
{
    asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

// cp.async.bulk, global to shared: `bytes` neighbouring bytes, counted at `bar` as they land. They and both addresses are
// multiples of 16.
__device__ inline void cp_async_bulk(void *dst_smem, const void *src, uint32_t bytes, uint64_t *bar)
{
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
            smem_addr(dst_smem)),
        "l"(src), "r"(bytes), "r"(smem_addr(bar))
        : "memory");
}

// cp.async.bulk.tensor, global to shared: the box at {col, row}. Its bytes, also those past an edge, are counted at
// `bar` as they land.
__device__ inline void cp_async_bulk_tensor_2d(void *dst_smem, const CUtensorMap &map, uint64_t *bar, int col,
                                               int row)
{
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, "
        "{%2, %3}], [%4];" ::"r"(smem_addr(dst_smem)),
        "l"(&map), "r"(col), "r"(row), "r"(smem_addr(bar))
        : "memory");
}

// The same of a tensor of five dimensions: the box at {c0, ..., c4}.
__device__ inline void cp_async_bulk_tensor_5d(void *dst_smem, const CUtensorMap &map, uint64_t *bar, int c0,
                                               int c1, int c2, int c3, int c4)
{
    asm volatile(
        "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, "
        "{%2, %3, %4, %5, %6}], [%7];" ::"r"(smem_addr(dst_smem)),
        "l"(&map), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(c4), "r"(smem_addr(bar))
        : "memory");
}

// The same with a cache policy of the L2 (ptx.cuh, createpolicy).
__device__ inline void cp_async_bulk_tensor_5d_cache_hint(void *dst_smem, const CUtensorMap &map,
                                                          uint64_t *bar, int c0, int c1, int c2, int c3,
                                                          int c4, uint64_t policy)
{
    asm volatile(
        "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint "
        "[%0], [%1, {%2, %3, %4, %5, %6}], [%7], %8;" ::"r"(smem_addr(dst_smem)),
        "l"(&map), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(c4), "r"(smem_addr(bar)), "l"(policy)
        : "memory");
}

// cp.async.bulk.prefetch.tensor: the L2 fetches the box. It is a hint: nothing waits for it, and nothing that is written later is missed.
__device__ inline void cp_async_bulk_prefetch_tensor_2d(const CUtensorMap &map, int col, int row)
{
    asm volatile("cp.async.bulk.prefetch.tensor.2d.L2.global.tile [%0, {%1, %2}];" ::"l"(&map), "r"(col),
                 "r"(row)
                 : "memory");
}

__device__ inline void cp_async_bulk_prefetch_tensor_5d(const CUtensorMap &map, int c0, int c1, int c2,
                                                        int c3, int c4)
{
    asm volatile("cp.async.bulk.prefetch.tensor.5d.L2.global.tile [%0, {%1, %2, %3, %4, %5}];" ::"l"(&map),
                 "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(c4)
                 : "memory");
}

// cp.async.bulk.tensor with .multicast::cluster: the box lands in every block of the cluster whose bit is set in `mask`,
// at the same place of its shared memory, and is counted at its barrier of the same place as `bar`.
__device__ inline void cp_async_bulk_tensor_2d_multicast(void *dst_smem, const CUtensorMap &map,
                                                         uint64_t *bar, int col, int row, uint16_t mask)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
                 ".multicast::cluster [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(smem_addr(dst_smem)),
                 "l"(&map), "r"(col), "r"(row), "r"(smem_addr(bar)), "h"(mask)
                 : "memory");
}

// cp.async.bulk.tensor, shared to global: the box at {col, row}; what lies past an edge is not written. Belongs to this
// thread's current bulk group.
__device__ inline void cp_async_bulk_tensor_2d_store(const CUtensorMap &map, const void *src_smem, int col,
                                                     int row)
{
    asm volatile(
        "cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%1, %2}], [%3];" ::"l"(&map),
        "r"(col), "r"(row), "r"(smem_addr(src_smem))
        : "memory");
}

// cp.reduce.async.bulk.tensor, shared to global: adds the box to what is at {col, row}, each element by itself, relaxed; what lies past
// an edge is not added. Belongs to this thread's current bulk group.
__device__ inline void cp_reduce_async_bulk_tensor_2d_add(const CUtensorMap &map, const void *src_smem,
                                                          int col, int row)
{
    asm volatile(
        "cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.tile.bulk_group [%0, {%1, %2}], [%3];" ::"l"(
            &map),
        "r"(col), "r"(row), "r"(smem_addr(src_smem))
        : "memory");
}

// The same to a tensor of five dimensions.
__device__ inline void cp_async_bulk_tensor_5d_store(const CUtensorMap &map, const void *src_smem, int c0,
                                                     int c1, int c2, int c3, int c4)
{
    asm volatile("cp.async.bulk.tensor.5d.global.shared::cta.tile.bulk_group [%0, {%1, %2, %3, %4, %5}], "
                 "[%6];" ::"l"(&map),
                 "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(c4), "r"(smem_addr(src_smem))
                 : "memory");
}

// cp.async.bulk.commit_group: this thread's stores since the last commit become one group.
__device__ inline void cp_async_bulk_commit_group()
{
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

// cp.async.bulk.wait_group: waits until all but this thread's latest PENDING groups are done: what they store is in its place.
template <int PENDING>
__device__ inline void cp_async_bulk_wait_group()
{
    asm volatile("cp.async.bulk.wait_group %0;" ::"n"(PENDING) : "memory");
}

// cp.async.bulk.wait_group.read: waits until all but this thread's latest PENDING groups have read their shared memory,
// which may then be overwritten.
template <int PENDING>
__device__ inline void cp_async_bulk_wait_group_read()
{
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(PENDING) : "memory");
}

// membar/fence, fence.proxy.async: TMA and wgmma, the asynchronous proxy, see what this thread wrote to shared memory
// before, once they are started after it.
__device__ inline void fence_proxy_async()
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
