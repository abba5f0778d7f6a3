// PTX instructions, one inline function each, named after the instruction.
//
// The comments name the section of the PTX ISA manual. An asm statement that touches memory or synchronises
// is volatile and carries "memory", so that the compiler moves no load or store across it.
#pragma once
#include <stdint.h>

// The address in shared memory, as the 32 bits that the instructions below take.
__device__ inline uint32_t smem_addr(const void *ptr)
{
    return (uint32_t)__cvta_generic_to_shared(ptr);
}

// Warp-level matrix load, ldmatrix: two 8x8 matrices of 16 bits. Lanes 0-7 give the rows of one, 8-15 of the
// other.
__device__ inline void ldmatrix_x2(uint32_t (&frag)[2], uint32_t addr)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
                 : "=r"(frag[0]), "=r"(frag[1])
                 : "r"(addr)
                 : "memory");
}

// Warp-level matrix load, ldmatrix: four 8x8 matrices of 16 bits. Lanes 8i to 8i + 7 give the rows of matrix
// i.
__device__ inline void ldmatrix_x4(uint32_t (&frag)[4], uint32_t addr)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(frag[0]), "=r"(frag[1]), "=r"(frag[2]), "=r"(frag[3])
                 : "r"(addr)
                 : "memory");
}

// Warp-level matrix load, ldmatrix with .trans: as ldmatrix_x2, and each 8x8 matrix arrives transposed.
__device__ inline void ldmatrix_x2_trans(uint32_t (&frag)[2], uint32_t addr)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
                 : "=r"(frag[0]), "=r"(frag[1])
                 : "r"(addr)
                 : "memory");
}

// Warp-level matrix load, ldmatrix with .trans: as ldmatrix_x4, and each 8x8 matrix arrives transposed.
__device__ inline void ldmatrix_x4_trans(uint32_t (&frag)[4], uint32_t addr)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(frag[0]), "=r"(frag[1]), "=r"(frag[2]), "=r"(frag[3])
                 : "r"(addr)
                 : "memory");
}

// Warp-level matrix store, stmatrix: four 8x8 matrices of 16 bits, laid out in registers as ldmatrix gives them. Lanes 8i to
// 8i + 7 give where the rows of matrix i go.
__device__ inline void stmatrix_x4(uint32_t addr, const uint32_t (&frag)[4])
{
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(addr), "r"(frag[0]),
                 "r"(frag[1]), "r"(frag[2]), "r"(frag[3])
                 : "memory");
}

// Multiply-and-accumulate instruction, mma: acc(16,8) += A(16,16) * B(16,8), f16 in, f32 accumulated.
__device__ inline void mma_m16n8k16_f16(float (&acc)[4], const uint32_t (&A_frag)[4],
                                        const uint32_t (&B_frag)[2])
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(acc[0]), "+f"(acc[1]), "+f"(acc[2]), "+f"(acc[3])
        : "r"(A_frag[0]), "r"(A_frag[1]), "r"(A_frag[2]), "r"(A_frag[3]), "r"(B_frag[0]), "r"(B_frag[1]));
}

// Multiply-and-accumulate instruction, mma: acc(16,8) += A(16,16) * B(16,8), bf16 in, f32 accumulated.
__device__ inline void mma_m16n8k16_bf16(float (&acc)[4], const uint32_t (&A_frag)[4],
                                         const uint32_t (&B_frag)[2])
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(acc[0]), "+f"(acc[1]), "+f"(acc[2]), "+f"(acc[3])
        : "r"(A_frag[0]), "r"(A_frag[1]), "r"(A_frag[2]), "r"(A_frag[3]), "r"(B_frag[0]), "r"(B_frag[1]));
}

// Non-bulk copy, cp.async: starts a copy of 16 bytes past the L1; src_bytes of them are read, the others
// become zeros.
__device__ inline void cp_async_cg_16(uint32_t dst_addr, const void *src, uint32_t src_bytes)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(dst_addr), "l"(src), "r"(src_bytes)
                 : "memory");
}

// Cache eviction policy, createpolicy: what is loaded with it is the first, or the last, to be evicted from the L2, or as any other.
__device__ inline uint64_t createpolicy_evict_first()
{
    uint64_t policy;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}
__device__ inline uint64_t createpolicy_evict_normal()
{
    uint64_t policy;
    asm("createpolicy.fractional.L2::evict_normal.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}
__device__ inline uint64_t createpolicy_evict_last()
{
    uint64_t policy;
    asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}

// Non-bulk copy, cp.async with a cache policy of the L2: 16 bytes, past the L1, or 8 or 4, through it.
__device__ inline void cp_async_cg_16_cache_hint(uint32_t dst_addr, const void *src, uint64_t policy)
{
    asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2;" ::"r"(dst_addr), "l"(src),
                 "l"(policy)
                 : "memory");
}
template <int BYTES>
__device__ inline void cp_async_ca_cache_hint(uint32_t dst_addr, const void *src, uint64_t policy)
{
    asm volatile("cp.async.ca.shared.global.L2::cache_hint [%0], [%1], %2, %3;" ::"r"(dst_addr), "l"(src),
                 "n"(BYTES), "l"(policy)
                 : "memory");
}

// ld with a cache policy: 4 or 16 bytes that are read again soon, the last to be evicted from the L1 and the L2.
__device__ inline uint32_t ld_global_evict_last(const uint32_t *src)
{
    uint32_t word;
    asm volatile("ld.global.L1::evict_last.L2::cache_hint.u32 %0, [%1], %2;"
                 : "=r"(word)
                 : "l"(src), "l"(createpolicy_evict_last()));
    return word;
}

__device__ inline uint4 ld_global_evict_last(const uint4 *src)
{
    uint4 words;
    asm volatile("ld.global.L1::evict_last.L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%4], %5;"
                 : "=r"(words.x), "=r"(words.y), "=r"(words.z), "=r"(words.w)
                 : "l"(src), "l"(createpolicy_evict_last()));
    return words;
}

// ld with a cache policy of the L2: 16 or 8 bytes. Not of what this thread itself has written: the compiler may put the load before
// that store.
__device__ inline uint4 ld_global_cache_hint(const uint4 *src, uint64_t policy)
{
    uint4 words;
    asm volatile("ld.global.L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%4], %5;"
                 : "=r"(words.x), "=r"(words.y), "=r"(words.z), "=r"(words.w)
                 : "l"(src), "l"(policy));
    return words;
}

__device__ inline uint2 ld_global_cache_hint(const uint2 *src, uint64_t policy)
{
    uint2 words;
    asm volatile("ld.global.L2::cache_hint.v2.u32 {%0, %1}, [%2], %3;"
                 : "=r"(words.x), "=r"(words.y)
                 : "l"(src), "l"(policy));
    return words;
}

// prefetch: the L2 fetches the line that src is in. It is a hint: nothing waits for it, and nothing that is written later is missed.
__device__ inline void prefetch_global_l2(const void *src)
{
    asm volatile("prefetch.global.L2 [%0];" ::"l"(src));
}

// Non-bulk copy, cp.async.commit_group: this thread's copies since the last commit become one group.
__device__ inline void cp_async_commit_group()
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

// Non-bulk copy, cp.async.wait_group: waits until at most PENDING of this thread's latest groups are still on
// their way.
template <int PENDING>
__device__ inline void cp_async_wait_group()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

// Floating point instructions, ex2.approx.ftz.f32: 2^x with a relative error of at most 2^-22; results below 2^-126
// become zero. ex2(-infinity) is 0.
__device__ inline float ex2_approx_ftz(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// Floating point instructions, rcp.approx.ftz.f32: 1 / x, off by at most one unit in the last place; results below 2^-126
// become zero, and 1 / infinity is 0.
__device__ inline float rcp_approx_ftz(float x)
{
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// Memory consistency model, st.relaxed.gpu: writes 8 bytes for any thread of the GPU to see, all of them or none.
__device__ inline void st_relaxed_gpu(unsigned long long *address, unsigned long long value)
{
    asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(address), "l"(value) : "memory");
}

// Memory consistency model, ld.relaxed.gpu: 8 bytes as some thread of the GPU wrote them, and sooner or later the last.
__device__ inline unsigned long long ld_relaxed_gpu(const unsigned long long *address)
{
    unsigned long long value;
    asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(value) : "l"(address) : "memory");
    return value;
}

// Memory consistency model, red.release.gpu: adds to *counter after everything this thread wrote before, for any
// thread of the GPU that acquires the sum.
__device__ inline void red_release_gpu_add(unsigned *counter, unsigned value)
{
    asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(counter), "r"(value) : "memory");
}

// Memory consistency model, ld.acquire.gpu: *counter, before everything this thread reads after.
__device__ inline unsigned ld_acquire_gpu(const unsigned *counter)
{
    unsigned value;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(counter) : "memory");
    return value;
}

// Miscellaneous instructions, setmaxnreg: this warpgroup gives registers back, or waits until the block has that many more
// for it. All its warps execute it. ptxas heeds it only in kernels whose __launch_bounds__ fix the registers at the start.
template <int REGISTERS>
__device__ inline void setmaxnreg_dec()
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}
template <int REGISTERS>
__device__ inline void setmaxnreg_inc()
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}

// Special register %laneid, read anew at every call: the compiler keeps neither it nor what is made of it.
__device__ inline int laneid()
{
    int lane;
    asm volatile("mov.u32 %0, %%laneid;" : "=r"(lane));
    return lane;
}

// Parallel synchronization, bar.sync: waits until `count` threads, whole warps, are at barrier `id`, 1 to 15.
__device__ inline void named_barrier_sync(int id, int count)
{
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(count) : "memory");
}

// Parallel synchronization, bar.arrive: counts at barrier `id` as the threads above do, and does not wait.
__device__ inline void named_barrier_arrive(int id, int count)
{
    asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(count) : "memory");
}

// Parallel synchronization, barrier.cluster: every thread of the cluster arrives, then waits for all the others. Relaxed: it
// makes no thread's writes visible to another; fence_mbarrier_init does that for new barriers.
__device__ inline void cluster_sync_relaxed()
{
    asm volatile("barrier.cluster.arrive.relaxed.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}

// Parallel synchronization, barrier.cluster.arrive, release: what this thread did before is visible to the cluster's threads that
// wait, and so the thread first waits for it (MEMBAR). Relaxed: says no more than that it is here.
__device__ inline void cluster_arrive()
{
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
__device__ inline void cluster_arrive_relaxed()
{
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}

// Parallel synchronization, barrier.cluster.wait, acquire: until every thread of the cluster has arrived.
__device__ inline void cluster_wait()
{
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// Data movement and conversion, st.shared::cluster: into the shared memory of any block of the cluster; the address from mapa.
__device__ inline void st_shared_cluster(uint32_t addr, float value)
{
    asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(addr), "f"(value) : "memory");
}

// Special registers, %cluster_ctarank: this block's number in its cluster.
__device__ inline uint32_t cluster_ctarank()
{
    uint32_t rank;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

// Special registers, %clusterid: this cluster's number in a grid of one dimension.
__device__ inline uint32_t clusterid_x()
{
    uint32_t id;
    asm("mov.u32 %0, %%clusterid.x;" : "=r"(id));
    return id;
}

// Special registers, %cluster_nctarank: the number of blocks of the cluster.
__device__ inline uint32_t cluster_nctarank()
{
    uint32_t blocks;
    asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(blocks));
    return blocks;
}

// Data movement and conversion, mapa: where block `rank` of the cluster has what this block has at `addr`.
__device__ inline uint32_t mapa(uint32_t addr, uint32_t rank)
{
    uint32_t remote;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(addr), "r"(rank));
    return remote;
}

// Data movement and conversion, st.async: 4, 8 or 16 bytes into another block of the cluster, counted at an mbarrier of that block
// when they are there; both addresses from mapa. No fence is needed: who waits for the mbarrier sees them.
__device__ inline void st_async(uint32_t addr, float value, uint32_t bar_addr)
{
    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.f32 [%0], %1, [%2];" ::"r"(addr),
                 "f"(value), "r"(bar_addr)
                 : "memory");
}
__device__ inline void st_async(uint32_t addr, float2 value, uint32_t bar_addr)
{
    asm volatile(
        "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1, %2}, [%3];" ::"r"(addr),
        "f"(value.x), "f"(value.y), "r"(bar_addr)
        : "memory");
}
__device__ inline void st_async(uint32_t addr, float4 value, uint32_t bar_addr)
{
    asm volatile(
        "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];" ::
            "r"(addr),
        "f"(value.x), "f"(value.y), "f"(value.z), "f"(value.w), "r"(bar_addr)
        : "memory");
}

// Parallel synchronization, griddepcontrol.launch_dependents: once every block has said so or ended, the next kernel of the
// stream may begin, if it was launched as one that waits for this.
__device__ inline void griddepcontrol_launch_dependents()
{
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

// Parallel synchronization, griddepcontrol.wait: until the kernels before in the stream have ended and what they wrote is
// visible.
__device__ inline void griddepcontrol_wait()
{
    asm volatile("griddepcontrol.wait;" ::: "memory");
}
