// Kernels that break a rule of bulk copies, wgmma or setmaxnreg: each must end with a fault that says which. broken_async
// NAME runs one; it prints the CUDA error it got, or the first wrong value.
#include <cuda.h>

#include "../check.h"

__device__ static u32 smem_addr(const void *p)
{
    return (u32)__cvta_generic_to_shared(p);
}
__device__ static void bar_init(u64 *bar, u32 count)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(smem_addr(bar)), "r"(count) : "memory");
}
__device__ static void bar_expect(u64 *bar, u32 bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(smem_addr(bar)), "r"(bytes)
                 : "memory");
}
__device__ static void bar_wait(u64 *bar, u32 parity)
{
    asm volatile(
        "{ .reg .pred p; again: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1; @!p bra again; }" ::"r"(
            smem_addr(bar)),
        "r"(parity)
        : "memory");
}
__device__ static void copy_in(void *to, const void *from, u32 bytes, u64 *bar)
{
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
            smem_addr(to)),
        "l"(from), "r"(bytes), "r"(smem_addr(bar))
        : "memory");
}
__device__ static void copy_out(void *to, const void *from, u32 bytes)
{
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to),
                 "r"(smem_addr(from)), "r"(bytes)
                 : "memory");
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
#define INIT_FENCE  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory")
#define PROXY_FENCE asm volatile("fence.proxy.async.shared::cta;" ::: "memory")
#define WAIT_READ   asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory")

__shared__ __align__(1024) u8 tile[8192];
__shared__ __align__(8) u64 bar, second;

// ---- Bulk copies --------------------------------------------------------------------------------------------------------

__global__ void read_before_wait(u32 *out)
{
    if (threadIdx.x == 0) {
        bar_init(&bar, 1);
        INIT_FENCE;
        bar_expect(&bar, 128);
        copy_in(tile, out, 128, &bar);
    }
    __syncthreads();
    if (threadIdx.x < 32) out[64 + threadIdx.x] = ((u32 *)tile)[threadIdx.x];
    __syncthreads();
    bar_wait(&bar, 0);
}

__global__ void never_waited(u32 *out)
{
    if (threadIdx.x) return;
    bar_init(&bar, 1);
    INIT_FENCE;
    bar_expect(&bar, 128);
    copy_in(tile, out, 128, &bar);
}

__global__ void bytes_mismatch(u32 *out)
{
    if (threadIdx.x == 0) {
        bar_init(&bar, 1);
        INIT_FENCE;
        bar_expect(&bar, 64);
        copy_in(tile, out, 128, &bar);
    }
    __syncthreads();
    bar_wait(&bar, 0);
}

__global__ void init_not_visible(u32 *out)
{
    if (threadIdx.x == 0) bar_init(&bar, 1), bar_expect(&bar, 0);
    if (threadIdx.x == 32) bar_wait(&bar, 0);
}

__global__ void init_not_fenced(u32 *out)
{
    if (threadIdx.x) return;
    bar_init(&bar, 1);
    bar_expect(&bar, 128);
    copy_in(tile, out, 128, &bar);
    bar_wait(&bar, 0);
}

__global__ void tile_overwritten(u32 *out)
{
    if (threadIdx.x) return;
    bar_init(&bar, 1);
    INIT_FENCE;
    bar_expect(&bar, 128);
    copy_in(tile, out, 128, &bar);
    tile[5] = 1;
    bar_wait(&bar, 0);
}

__global__ void store_not_fenced(u32 *out)
{
    tile[threadIdx.x] = 1;
    __syncthreads();
    if (threadIdx.x) return;
    copy_out(out, tile, 128);
    WAIT_READ;
}

// One thread fences, before the others have written.
__global__ void fenced_by_one(u32 *out)
{
    if (threadIdx.x >= 32) tile[threadIdx.x] = 1;
    if (threadIdx.x == 0) PROXY_FENCE;
    __syncthreads();
    if (threadIdx.x) return;
    copy_out(out, tile, 128);
    WAIT_READ;
}

__global__ void store_source_changes(u32 *out)
{
    tile[threadIdx.x] = 1;
    PROXY_FENCE;
    __syncthreads();
    if (threadIdx.x) return;
    copy_out(out, tile, 128);
    tile[3] = 2;
    WAIT_READ;
}

__global__ void store_not_waited(u32 *out)
{
    tile[threadIdx.x] = 1;
    PROXY_FENCE;
    __syncthreads();
    if (threadIdx.x == 0) copy_out(out, tile, 128);
}

// ---- wgmma ------------------------------------------------------------------------------------------------------------------

#define FENCE  asm volatile("wgmma.fence.sync.aligned;" ::: "memory")
#define COMMIT asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory")
#define WAIT   asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory")
#define WGMMA(D)                                                                                                 \
    asm volatile(                                                                                                \
        "{ .reg .pred p; setp.ne.b32 p, 1, 0; wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%0, %1, %2, " \
        "%3}, %4, %5, p, 1, 1, 0, 0; }"                                                                          \
        : "+f"(D[0]), "+f"(D[1]), "+f"(D[2]), "+f"(D[3])                                                         \
        : "l"(descriptor(tile)), "l"(descriptor(tile + 4096))                                                    \
        : "memory")
#define WGMMA_RS(D, A)                                                                                           \
    asm volatile(                                                                                                \
        "{ .reg .pred p; setp.ne.b32 p, 1, 0; wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%0, %1, %2, " \
        "%3}, {%4, %5, %6, %7}, %8, p, 1, 1, 0; }"                                                               \
        : "+f"(D[0]), "+f"(D[1]), "+f"(D[2]), "+f"(D[3])                                                         \
        : "r"(A[0]), "r"(A[1]), "r"(A[2]), "r"(A[3]), "l"(descriptor(tile + 4096))                               \
        : "memory")

__device__ static u64 descriptor(const void *p)
{
    return smem_addr(p) >> 4 | (u64)8 << 16 | (u64)16 << 32;
}
__device__ static void fill_tile()
{
    for (int i = threadIdx.x; i < 8192; i += blockDim.x) tile[i] = 0;
    PROXY_FENCE;
    __syncthreads();
}

__global__ void result_read_early(u32 *out)
{
    float d[4] = {};
    fill_tile();
    FENCE;
    WGMMA(d);
    COMMIT;
    out[threadIdx.x] = (u32)d[1];
    WAIT;
}

// The wait is for groups, and the product is in none.
__global__ void commit_missing(u32 *out)
{
    float d[4] = {};
    fill_tile();
    FENCE;
    WGMMA(d);
    WAIT;
    out[threadIdx.x] = (u32)d[1];
}

__global__ void a_written_early(u32 *out)
{
    float d[4] = {};
    u32 a[4] = {1, 2, 3, 4};
    asm volatile("" : "+r"(a[0]), "+r"(a[1]), "+r"(a[2]), "+r"(a[3]));
    fill_tile();
    FENCE;
    WGMMA_RS(d, a);
    COMMIT;
    asm volatile("add.u32 %0, %0, 1;" : "+r"(a[2]));
    WAIT;
    out[threadIdx.x] = (u32)d[1] + a[0] + a[1] + a[2];
}

__global__ void no_fence(u32 *out)
{
    float d[4] = {};
    fill_tile();
    WGMMA(d);
    COMMIT;
    WAIT;
    out[threadIdx.x] = (u32)d[1];
}

// The accumulators are scaled between two products.
__global__ void no_second_fence(u32 *out)
{
    float d[4] = {};
    fill_tile();
    FENCE;
    WGMMA(d);
    COMMIT;
    WAIT;
    for (int i = 0; i < 4; i++) d[i] *= (float)threadIdx.x;
    WGMMA(d);
    COMMIT;
    WAIT;
    out[threadIdx.x] = (u32)d[1];
}

__global__ void operand_changes(u32 *out)
{
    float d[4] = {};
    fill_tile();
    FENCE;
    WGMMA(d);
    COMMIT;
    __syncthreads();
    tile[4096 + threadIdx.x] = 1;
    WAIT;
    out[threadIdx.x] = (u32)d[1];
}

__global__ void operand_not_fenced(u32 *out)
{
    float d[4] = {};
    fill_tile();
    tile[4096 + threadIdx.x] = 1;
    __syncthreads();
    FENCE;
    WGMMA(d);
    COMMIT;
    WAIT;
    out[threadIdx.x] = (u32)d[1];
}

__global__ void three_warps(u32 *out)
{
    float d[4] = {};
    fill_tile();
    if (threadIdx.x < 96) {
        FENCE;
        WGMMA(d);
        COMMIT;
        WAIT;
    }
    out[threadIdx.x] = (u32)d[1];
}

// ---- setmaxnreg -----------------------------------------------------------------------------------------------------------------

// 256 threads have 248 registers each at the most; the second warpgroup frees too few for the first.
__global__ void __launch_bounds__(384) too_few_registers(u32 *out)
{
    if (threadIdx.x < 128)
        asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
    else
        asm volatile("setmaxnreg.dec.sync.aligned.u32 152;");
    out[threadIdx.x % 128] = 1;
}

__global__ void __launch_bounds__(384) wrong_direction(u32 *out)
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 200;");
}

#define KERNEL(NAME, THREADS) \
    {                         \
#NAME, NAME, THREADS  \
    }
static const struct {
    const char *name;
    void (*kernel)(u32 *);
    int threads;
} kernels[] = {
    KERNEL(read_before_wait, 128),  KERNEL(never_waited, 128),       KERNEL(bytes_mismatch, 128),
    KERNEL(init_not_visible, 128),  KERNEL(init_not_fenced, 128),    KERNEL(tile_overwritten, 128),
    KERNEL(store_not_fenced, 128),  KERNEL(fenced_by_one, 128),      KERNEL(store_source_changes, 128),
    KERNEL(store_not_waited, 128),  KERNEL(result_read_early, 128),  KERNEL(commit_missing, 128),
    KERNEL(a_written_early, 128),   KERNEL(no_fence, 128),           KERNEL(no_second_fence, 128),
    KERNEL(operand_changes, 128),   KERNEL(operand_not_fenced, 128), KERNEL(three_warps, 128),
    KERNEL(too_few_registers, 384), KERNEL(wrong_direction, 384)};

int main(int argc, char **argv)
{
    u32 *device, host[128];
    for (u32 i = 0; i < 128; i++) host[i] = i;
    CUDA_CHECK(cudaMalloc((void **)&device, sizeof host));
    CUDA_CHECK(cudaMemcpy(device, host, sizeof host, cudaMemcpyHostToDevice));
    for (auto &k : kernels) {
        if (argc < 2 || strcmp(argv[1], k.name)) continue;
        k.kernel<<<1, k.threads>>>(device);
        if (!launched(k.name)) return 1;
        CUDA_CHECK(cudaMemcpy(host, device, sizeof host, cudaMemcpyDeviceToHost));
        if (host[64] != 0) {
            printf("%s: read 0x%08x\n", k.name, host[64]);
            return 1;
        }
        return 0;
    }
    printf("broken_async NAME\n");
    return 2;
}
