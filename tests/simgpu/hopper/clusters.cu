// Clusters: ranks, barrier.cluster, distributed shared memory, remote mbarriers, st.async, red.async, occupancy. Passes on a GPU too.
#include "../check.h"

__device__ static u32 smem_addr(const void *p)
{
    return (u32)__cvta_generic_to_shared(p);
}
__device__ static u32 special(const int which)
{
    u32 r = 0;
    switch (which) {
    case 0: asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(r)); break;
    case 1: asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(r)); break;
    case 2: asm("mov.u32 %0, %%cluster_ctaid.x;" : "=r"(r)); break;
    case 3: asm("mov.u32 %0, %%cluster_ctaid.y;" : "=r"(r)); break;
    case 4: asm("mov.u32 %0, %%clusterid.x;" : "=r"(r)); break;
    case 5: asm("mov.u32 %0, %%nclusterid.y;" : "=r"(r)); break;
    }
    return r;
}
__device__ static u32 mapa(u32 addr, u32 rank)
{
    u32 r;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(r) : "r"(addr), "r"(rank));
    return r;
}
__device__ static void cluster_sync()
{
    asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}

// ---- Ranks and addresses ----------------------------------------------------------------------------------------------

enum { VALUES = 12 };

__global__ void ranks(u32 *out)
{
    extern __shared__ u32 dynamic[];
    __shared__ u32 fixed[4];
    if (threadIdx.x) return;
    u32 *o = out + VALUES * (blockIdx.y * gridDim.x + blockIdx.x), rank = special(0), r;
    for (int i = 0; i < 6; i++) o[i] = special(i);
    o[6] = smem_addr(fixed) >> 24;
    o[7] = smem_addr(dynamic) >> 24;
    asm("{ .reg .u32 a; mov.u32 a, %1; getctarank.shared::cluster.u32 %0, a; }"
        : "=r"(r)
        : "r"(mapa(smem_addr(fixed), 1)));
    o[8] = r;
    u64 generic;
    asm("mapa.u64 %0, %1, %2;" : "=l"(generic) : "l"(fixed), "r"(1 - rank % 2));
    asm("getctarank.u64 %0, %1;" : "=r"(r) : "l"(generic));
    o[9] = r;
    asm("{ .reg .pred p; isspacep.shared::cta p, %1; selp.u32 %0, 1, 0, p; }" : "=r"(r) : "l"(generic));
    o[10] = r;
    asm("{ .reg .pred p; isspacep.shared::cluster p, %1; selp.u32 %0, 1, 0, p; }" : "=r"(r) : "l"(generic));
    o[11] = r;
}

static void test_ranks(u32 *device)
{
    static u32 out[VALUES * 8 * 4];
    cudaLaunchAttribute a = {};
    a.id = cudaLaunchAttributeClusterDimension;
    a.val.clusterDim.x = 2, a.val.clusterDim.y = 2, a.val.clusterDim.z = 1;
    cudaLaunchConfig_t c = {};
    c.gridDim = dim3(8, 4), c.blockDim = dim3(32), c.dynamicSmemBytes = 64;
    c.attrs = &a, c.numAttrs = 1;
    CUDA_CHECK(cudaLaunchKernelEx(&c, ranks, device));
    if (!launched("ranks")) return;
    CUDA_CHECK(cudaMemcpy(out, device, sizeof out, cudaMemcpyDeviceToHost));
    check_begin("ranks");
    for (u32 y = 0; y < 4; y++)
        for (u32 x = 0; x < 8; x++) {
            const u32 *o = out + VALUES * (y * 8 + x), rank = y % 2 * 2 + x % 2, peer = 1 - rank % 2;
            const u32 want[VALUES] = {rank, 4, x % 2, y % 2, x / 2, 2, rank, rank, 1, peer, rank == peer, 1};
            for (int i = 0; i < VALUES; i++) check((y * 8 + x) * 100 + i, o[i], want[i]);
        }
    int count = 0;
    check_begin("occupancy");
    CUDA_CHECK(cudaOccupancyMaxActiveClusters(&count, ranks, &c));
    check(0, count > 0, 1);
    CUDA_CHECK(cudaOccupancyMaxPotentialClusterSize(&count, ranks, &c));
    check(1, count, 8);
    check_begin("bad launches");
    c.gridDim = dim3(7, 4);
    check(0, cudaLaunchKernelEx(&c, ranks, device) != cudaSuccess, 1);
    c.gridDim = dim3(16, 4), a.val.clusterDim.x = 16;
    check(1, cudaLaunchKernelEx(&c, ranks, device) != cudaSuccess, 1);
    cudaGetLastError();
}

// ---- Distributed shared memory -----------------------------------------------------------------------------------------

// Each block fills its memory; each then reads its neighbour's through every kind of address, adds to the next one's
// counters, and leaves only after all have read.
enum { CLUSTER = 4 };
__global__ void __cluster_dims__(CLUSTER, 1, 1) distributed(u32 *out)
{
    __shared__ u32 data[32], counter;
    const u32 t = threadIdx.x, rank = special(0), next = (rank + 1) % CLUSTER;
    data[t] = blockIdx.x * 1000 + t;
    if (t == 0) counter = 0;
    cluster_sync();
    u32 a, b;
    asm volatile("ld.shared::cluster.u32 %0, [%1];" : "=r"(a) : "r"(mapa(smem_addr(&data[t]), next)));
    u64 generic;
    asm volatile("mapa.u64 %0, %1, %2;" : "=l"(generic) : "l"(&data[31 - t]), "r"(next));
    b = *(volatile u32 *)generic;
    asm volatile(
        "red.relaxed.cluster.shared::cluster.add.u32 [%0], %1;" ::"r"(mapa(smem_addr(&counter), t % CLUSTER)),
        "r"(rank + 1)
        : "memory");
    if (t == 5)
        asm volatile(
            "st.relaxed.cluster.shared::cluster.u32 [%0], %1;" ::"r"(mapa(smem_addr(&counter), rank)),
            "r"(100u)
            : "memory");
    cluster_sync();
    out[(blockIdx.x * 32 + t) * 2] = a;
    out[(blockIdx.x * 32 + t) * 2 + 1] = b;
    cluster_sync();
    if (t == 0) out[2048 + blockIdx.x] = counter;
}

static void test_distributed(u32 *device)
{
    static u32 out[2048 + 8];
    distributed<<<8, 32>>>(device);
    if (!launched("distributed")) return;
    CUDA_CHECK(cudaMemcpy(out, device, sizeof out, cudaMemcpyDeviceToHost));
    check_begin("distributed");
    for (u32 b = 0; b < 8; b++)
        for (u32 t = 0; t < 32; t++) {
            const u32 peer = b / CLUSTER * CLUSTER + (b + 1) % CLUSTER;
            check(b * 32 + t, out[(b * 32 + t) * 2], peer * 1000 + t);
            check(b * 32 + t, out[(b * 32 + t) * 2 + 1], peer * 1000 + 31 - t);
        }
}

// ---- Remote mbarriers ----------------------------------------------------------------------------------------------------

// Block 0 collects one arrival from each block of the cluster, and 4 bytes that each says it has completed.
__global__ void __cluster_dims__(CLUSTER, 1, 1) remote_arrivals(u32 *out)
{
    __shared__ __align__(8) u64 bar;
    __shared__ u32 box[CLUSTER];
    const u32 rank = special(0);
    if (threadIdx.x == 0) {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(smem_addr(&bar)), "r"((u32)CLUSTER)
                     : "memory");
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    cluster_sync();
    if (threadIdx.x == 0) {
        const u32 to = mapa(smem_addr(&bar), 0);
        asm volatile("st.shared::cluster.u32 [%0], %1;" ::"r"(mapa(smem_addr(&box[rank]), 0)), "r"(7 + rank)
                     : "memory");
        asm volatile("mbarrier.expect_tx.relaxed.cluster.shared::cluster.b64 [%0], 4;" ::"r"(to) : "memory");
        asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(to) : "memory");
        asm volatile("mbarrier.complete_tx.relaxed.cluster.shared::cluster.b64 [%0], 4;" ::"r"(to)
                     : "memory");
    }
    if (rank == 0) {
        asm volatile(
            "{ .reg .pred p; again: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%0], 0; @!p bra "
            "again; }" ::"r"(smem_addr(&bar))
            : "memory");
        if (threadIdx.x < CLUSTER) out[blockIdx.x + threadIdx.x] = box[threadIdx.x];
    }
    cluster_sync();
}

static void test_remote(u32 *device)
{
    u32 out[8];
    remote_arrivals<<<8, 64>>>(device);
    if (!launched("remote_arrivals")) return;
    CUDA_CHECK(cudaMemcpy(out, device, sizeof out, cudaMemcpyDeviceToHost));
    check_begin("remote_arrivals");
    for (u32 b = 0; b < 8; b++) check(b, out[b], 7 + b % CLUSTER);
}

// ---- st.async ---------------------------------------------------------------------------------------------------------------

// Every thread sends 28 bytes to the next block of the cluster, in all widths; the mbarrier there counts them.
__global__ void __cluster_dims__(CLUSTER, 1, 1) stores_async(u32 *out)
{
    __shared__ __align__(8) u64 bar;
    __shared__ __align__(16) u32 four[64][4];
    __shared__ u64 one[64];
    __shared__ float last[64];
    const u32 t = threadIdx.x, rank = special(0), to = (rank + 1) % CLUSTER, from = 100 * rank + t;
    if (t == 0) {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(smem_addr(&bar)) : "memory");
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(smem_addr(&bar)),
                     "r"(64 * 28u)
                     : "memory");
    }
    cluster_sync();
    const u32 there = mapa(smem_addr(&bar), to);
    asm volatile(
        "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.u32 [%0], {%1, %2, %3, %4}, [%5];" ::
            "r"(mapa(smem_addr(four[t]), to)),
        "r"(from), "r"(from + 1), "r"(from + 2), "r"(from + 3), "r"(there)
        : "memory");
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.b64 [%0], %1, [%2];" ::"r"(
                     mapa(smem_addr(&one[t]), to)),
                 "l"((u64)from << 32 | 5), "r"(there)
                 : "memory");
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.f32 [%0], %1, [%2];" ::"r"(
                     mapa(smem_addr(&last[t]), to)),
                 "f"((float)from), "r"(there)
                 : "memory");
    asm volatile(
        "{ .reg .pred p; again: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], 0; @!p bra again; }" ::"r"(
            smem_addr(&bar))
        : "memory");
    u32 *o = out + 7 * (64 * blockIdx.x + t);
    for (int i = 0; i < 4; i++) o[i] = four[t][i];
    o[4] = (u32)one[t];
    o[5] = (u32)(one[t] >> 32);
    o[6] = (u32)last[t];
    cluster_sync();
}

static void test_stores_async(u32 *device)
{
    static u32 out[8 * 64 * 7];
    stores_async<<<8, 64>>>(device);
    if (!launched("stores_async")) return;
    CUDA_CHECK(cudaMemcpy(out, device, sizeof out, cudaMemcpyDeviceToHost));
    check_begin("stores_async");
    for (u32 b = 0; b < 8; b++)
        for (u32 t = 0; t < 64; t++) {
            const u32 *o = out + 7 * (64 * b + t), from = 100 * ((b + CLUSTER - 1) % CLUSTER) + t;
            for (u32 i = 0; i < 4; i++) check(b * 64 + t, o[i], from + i);
            check(b * 64 + t, o[4], 5);
            check(b * 64 + t, o[5], from);
            check(b * 64 + t, o[6], from);
        }
}

// ---- red.async --------------------------------------------------------------------------------------------------------------

#define RED_ASYNC(operation, type, constraint, to, value)                                            \
    asm volatile("red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes." operation \
                 "." type " [%0], %1, [%2];" ::"r"(to),                                              \
                 constraint(value), "r"(there)                                                       \
                 : "memory")

// Every thread combines 11 numbers of the next block of the cluster with its own.
__global__ void __cluster_dims__(CLUSTER, 1, 1) reductions_async(u32 *out)
{
    __shared__ __align__(8) u64 bar;
    __shared__ u64 wide;
    __shared__ u32 word[10];
    const u32 t = threadIdx.x, to = (special(0) + 1) % CLUSTER;
    if (t == 0) {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(smem_addr(&bar)) : "memory");
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(smem_addr(&bar)),
                     "r"(64 * 48u)
                     : "memory");
        wide = 1ull << 40;
        for (u32 i = 0; i < 10; i++) word[i] = i == 8 ? 0xffffffff : 7;
    }
    cluster_sync();
    const u32 there = mapa(smem_addr(&bar), to);
    const auto at = [&](u32 i) { return mapa(smem_addr(&word[i]), to); };
    RED_ASYNC("add", "u64", "l", mapa(smem_addr(&wide), to), (u64)t << 32);
    RED_ASYNC("add", "u32", "r", at(0), t);
    RED_ASYNC("add", "s32", "r", at(1), -(s32)t);
    RED_ASYNC("min", "u32", "r", at(2), t + 3);
    RED_ASYNC("max", "u32", "r", at(3), t);
    RED_ASYNC("min", "s32", "r", at(4), -(s32)t);
    RED_ASYNC("max", "s32", "r", at(5), -(s32)t - 1);
    RED_ASYNC("inc", "u32", "r", at(6), 100);
    RED_ASYNC("dec", "u32", "r", at(7), 9);
    RED_ASYNC("and", "b32", "r", at(8), ~(1u << t % 32));
    RED_ASYNC("or", "b32", "r", at(9), 1u << t % 16);
    asm volatile(
        "{ .reg .pred p; again: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], 0; @!p bra again; }" ::"r"(
            smem_addr(&bar))
        : "memory");
    if (t < 10) out[12 * blockIdx.x + t] = word[t];
    if (t == 0) memcpy(&out[12 * blockIdx.x + 10], &wide, sizeof wide);
    cluster_sync();
}

static void test_reductions_async(u32 *device)
{
    u32 out[8 * 12];
    reductions_async<<<8, 64>>>(device);
    if (!launched("reductions_async")) return;
    CUDA_CHECK(cudaMemcpy(out, device, sizeof out, cudaMemcpyDeviceToHost));
    check_begin("reductions_async");
    // dec from 7 wraps to 9 after 8 steps, and again every 10
    const u32 want[12] = {7 + 2016, (u32)(7 - 2016),   3, 63,     (u32)-63, 7,
                          71,       9 - (64 - 8) % 10, 0, 0xffff, 0,        256 + 2016};
    for (u32 b = 0; b < 8; b++)
        for (u32 i = 0; i < 12; i++) check(b * 12 + i, out[b * 12 + i], want[i]);
}

int main()
{
    u32 *device;
    CUDA_CHECK(cudaMalloc((void **)&device, 1 << 20));
    test_ranks(device);
    test_distributed(device);
    test_remote(device);
    test_stores_async(device);
    test_reductions_async(device);
    return check_end("clusters");
}
