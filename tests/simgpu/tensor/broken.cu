// Kernels that break a rule of the tensor or asynchronous instructions: each must end with a fault that says which.
// broken NAME runs one; it prints the CUDA error it got.
#include "../check.h"

__device__ static u32 smem_addr(const void *p)
{
    return (u32)__cvta_generic_to_shared(p);
}
#define COPY_4(TO, FROM) \
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(smem_addr(TO)), "l"(FROM) : "memory")
#define COMMIT  asm volatile("cp.async.commit_group;" ::: "memory")
#define WAIT(N) asm volatile("cp.async.wait_group " #N ";" ::: "memory")
#define INIT(BAR, N) \
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(smem_addr(BAR)), "r"(N) : "memory")
#define ARRIVE(BAR) asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(smem_addr(BAR)) : "memory")
#define SPIN(WAIT, BAR, P)                                                                 \
    asm volatile("{ .reg .pred p; again: mbarrier." WAIT                                   \
                 ".parity.shared.b64 p, [%0], %1; @!p bra again; }" ::"r"(smem_addr(BAR)), \
                 "r"(P)                                                                    \
                 : "memory")

__shared__ __align__(16) u32 tile[4][32];
__shared__ __align__(8) u64 bar, other;

// ---- Reads before the data is there: poison ---------------------------------------------------------------------------

__global__ void missing_wait(u32 *out)
{
    const u32 t = threadIdx.x;
    COPY_4(&tile[0][t], out + t);
    COMMIT;
    __syncthreads();
    out[32 + t] = tile[0][t]; // fault: missing_wait
}

__global__ void missing_commit(u32 *out)
{
    const u32 t = threadIdx.x;
    COPY_4(&tile[0][t], out + t);
    WAIT(0);
    __syncthreads();
    out[32 + t] = tile[0][t]; // fault: missing_commit
}

__global__ void wait_one_short(u32 *out)
{
    const u32 t = threadIdx.x;
    for (int s = 0; s < 2; s++) {
        COPY_4(&tile[s][t], out + t);
        COMMIT;
    }
    WAIT(1);
    __syncthreads();
    out[32 + t] = tile[1][t]; // fault: wait_one_short
}

// The waits of others are no wait for one's own copies.
__global__ void wait_by_others(u32 *out)
{
    const u32 t = threadIdx.x;
    COPY_4(&tile[0][t], out + t);
    COMMIT;
    if (t % 2) WAIT(0);
    __syncthreads();
    out[32 + (t ^ 1)] = tile[0][t ^ 1]; // fault: wait_by_others
}

// ---- Races with a copy --------------------------------------------------------------------------------------------------

__global__ void source_changes(u32 *out)
{
    const u32 t = threadIdx.x;
    COPY_4(&tile[0][t], out + t);
    COMMIT;
    out[t] = 5;
    WAIT(0); // fault: source_changes
}

__global__ void destination_written(u32 *out)
{
    const u32 t = threadIdx.x;
    COPY_4(&tile[0][t], out + t);
    COMMIT;
    tile[0][t] = 5; // fault: destination_written
    WAIT(0);
}

// ---- Bad copies -----------------------------------------------------------------------------------------------------------

__global__ void source_out_of_bounds(u32 *out)
{
    COPY_4(&tile[0][threadIdx.x], out + 1024 + threadIdx.x); // fault: source_out_of_bounds
    WAIT(0);
}

__global__ void source_size_too_large(u32 *out)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(smem_addr(tile)), "l"(out),
                 "r"(5 + threadIdx.x) // fault: source_size_too_large
                 : "memory");
}

__global__ void misaligned_copy(u32 *out)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(smem_addr(&tile[0][1])),
                 "l"(out) // fault: misaligned_copy
                 : "memory");
}

// ---- mbarriers -------------------------------------------------------------------------------------------------------------

__global__ void uninitialised(u32 *out)
{
    if (threadIdx.x == 3) ARRIVE(&bar); // fault: uninitialised
}

__global__ void over_arrival(u32 *out)
{
    if (threadIdx.x) return;
    const u32 addr = smem_addr(&bar);
    INIT(&bar, 2);
    asm volatile("mbarrier.arrive.shared.b64 _, [%0], 3;" ::"r"(addr) : "memory"); // fault: over_arrival
}

__global__ void overwritten(u32 *out)
{
    if (threadIdx.x == 0) {
        INIT(&bar, 2);
        *(volatile u64 *)&bar = 0;
        ARRIVE(&bar); // fault: overwritten
    }
}

__global__ void initialised_twice(u32 *out)
{
    if (threadIdx.x == 0) {
        INIT(&bar, 2);
        INIT(&bar, 2); // fault: initialised_twice
    }
}

__global__ void too_many_bytes(u32 *out)
{
    if (threadIdx.x == 0) {
        INIT(&bar, 1);
        for (int i = 0; i < 2; i++)
            asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(smem_addr(&bar)),
                         "r"((1 << 20) - 1) // fault: too_many_bytes
                         : "memory");
    }
}

__global__ void bad_parity(u32 *out)
{
    if (threadIdx.x == 0) {
        INIT(&bar, 1);
        SPIN("try_wait", &bar, 2); // fault: bad_parity
    }
}

// ---- Waits for what never comes --------------------------------------------------------------------------------------------

// One arrival of four is missing, and 16 bytes.
__global__ void try_wait_forever(u32 *out)
{
    if (threadIdx.x == 0) {
        INIT(&bar, 4);
        for (int i = 0; i < 2; i++) ARRIVE(&bar);
        asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], 16;" ::"r"(smem_addr(&bar)) : "memory");
    }
    __syncthreads();
    SPIN("try_wait", &bar, 0); // fault: try_wait_forever
}

__global__ void test_wait_forever(u32 *out)
{
    if (threadIdx.x == 0) {
        INIT(&bar, 2);
        INIT(&other, 1);
    }
    __syncthreads();
    if (threadIdx.x < 32)
        SPIN("test_wait", &bar, 0); // fault: test_wait_forever
    else
        SPIN("try_wait", &other, 0);
}

// A producer that waits for the wrong parity of an empty barrier: both wait.
__global__ void wrong_parity(u32 *out)
{
    if (threadIdx.x == 0) {
        INIT(&bar, 1);
        INIT(&other, 1);
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        // 1 would be right: nothing has been in the stage yet
        SPIN("try_wait", &other, 0); // fault: wrong_parity
        ARRIVE(&bar);
    }
    if (threadIdx.x == 32) {
        SPIN("try_wait", &bar, 0);
        ARRIVE(&other);
    }
}

// ---- Matrices ----------------------------------------------------------------------------------------------------------------

__global__ void half_a_warp(u32 *out)
{
    u32 r = threadIdx.x;
    if (threadIdx.x < 16)
        asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %0;" : "+r"(r)); // fault: half_a_warp
    out[threadIdx.x] = r;
}

__global__ void predicated_off(u32 *out)
{
    u32 r = threadIdx.x;
    asm volatile("{ .reg .pred p; setp.lt.u32 p, %1, 16; @p movmatrix.sync.aligned.m8n8.trans.b16 %0, %0; }"
                 : "+r"(r)
                 : "r"(threadIdx.x)); // fault: predicated_off
    out[threadIdx.x] = r;
}

__global__ void exited_lanes(u32 *out)
{
    u32 r = threadIdx.x;
    if (threadIdx.x >= 16) return;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %0;" : "+r"(r)); // fault: exited_lanes
    out[threadIdx.x] = r;
}

__global__ void row_misaligned(u32 *out)
{
    u32 r;
    asm volatile("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%0}, [%1];"
                 : "=r"(r)
                 : "r"(smem_addr(&tile[0][threadIdx.x])) // fault: row_misaligned
                 : "memory");
    out[threadIdx.x] = r;
}

__global__ void row_in_global(u32 *out)
{
    u32 r;
    asm volatile("ldmatrix.sync.aligned.m8n8.x1.b16 {%0}, [%1];"
                 : "=r"(r)
                 : "l"(out) // fault: row_in_global
                 : "memory");
    out[threadIdx.x] = r;
}

__global__ void volta_shape_refused(u32 *out)
{
    float d[8] = {};
    asm volatile(
        "mma.sync.aligned.m8n8k4.row.col.f32.f16.f16.f32 {%0, %1, %2, %3, %4, %5, %6, %7}, {%8, %8}, "
        "{%8, %8}, {%0, %1, %2, %3, %4, %5, %6, %7};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7])
        : "r"(out[0])); // fault: volta_shape_refused
    out[threadIdx.x] = (u32)d[0];
}

#define KERNEL(NAME) \
    {                \
#NAME, NAME  \
    }
static const struct {
    const char *name;
    void (*kernel)(u32 *);
} kernels[] = {KERNEL(missing_wait),         KERNEL(missing_commit),        KERNEL(wait_one_short),
               KERNEL(wait_by_others),       KERNEL(source_changes),        KERNEL(destination_written),
               KERNEL(source_out_of_bounds), KERNEL(source_size_too_large), KERNEL(misaligned_copy),
               KERNEL(uninitialised),        KERNEL(over_arrival),          KERNEL(overwritten),
               KERNEL(initialised_twice),    KERNEL(too_many_bytes),        KERNEL(bad_parity),
               KERNEL(try_wait_forever),     KERNEL(test_wait_forever),     KERNEL(wrong_parity),
               KERNEL(half_a_warp),          KERNEL(predicated_off),        KERNEL(exited_lanes),
               KERNEL(row_misaligned),       KERNEL(row_in_global),         KERNEL(volta_shape_refused)};

int main(int argc, char **argv)
{
    u32 *device, host[64];
    for (int i = 0; i < 64; i++) host[i] = (u32)i;
    CUDA_CHECK(cudaMalloc((void **)&device, sizeof host));
    CUDA_CHECK(cudaMemcpy(device, host, sizeof host, cudaMemcpyHostToDevice));
    for (auto &k : kernels) {
        if (argc < 2 || strcmp(argv[1], k.name)) continue;
        k.kernel<<<1, strstr(k.name, "forever") || strstr(k.name, "parity") ? 64 : 32>>>(device);
        if (!launched(k.name)) return 1;
        CUDA_CHECK(cudaMemcpy(host, device, sizeof host, cudaMemcpyDeviceToHost));
        for (int t = 0; t < 32; t++)
            if (host[32 + t] != (u32)t) {
                printf("%s: thread %d read 0x%08x\n", k.name, t, host[32 + t]);
                return 1;
            }
        return 0;
    }
    printf("broken NAME\n");
    return 2;
}
