// cp.async: sizes, zero fill, groups and waits, completion through mbarriers.
#include "../check.h"

enum { THREADS = 128, STAGES = 4 };

__device__ static u32 smem_addr(const void *p)
{
    return (u32)__cvta_generic_to_shared(p);
}
#define COMMIT  asm volatile("cp.async.commit_group;" ::: "memory")
#define WAIT(N) asm volatile("cp.async.wait_group " #N ";" ::: "memory")

// ---- One copy: each form and size ------------------------------------------------------------------------------------

struct sixteen {
    u8 byte[16];
};

// What each thread's 16 bytes of shared memory hold after a copy to them.
#define COPY(NAME, TEXT, ...)                                                                        \
    __global__ void NAME##_kernel(const u8 *from, sixteen *after)                                    \
    {                                                                                                \
        __shared__ __align__(16) sixteen tile[THREADS];                                              \
        const u32 t = threadIdx.x;                                                                   \
        for (int i = 0; i < 16; i++) tile[t].byte[i] = 0x11;                                         \
        asm volatile(TEXT ::"r"(smem_addr(&tile[t])), "l"(from + t * 16), ##__VA_ARGS__ : "memory"); \
        asm volatile("cp.async.wait_all;" ::: "memory");                                             \
        after[t] = tile[t];                                                                          \
    }

COPY(ca_4, "cp.async.ca.shared.global [%0], [%1], 4;")
COPY(ca_8, "cp.async.ca.shared::cta.global [%0], [%1], 8;")
COPY(ca_16, "cp.async.ca.shared.global [%0], [%1], 16;")
COPY(cg_16, "cp.async.cg.shared.global [%0], [%1], 16;")
COPY(cg_16_prefetch, "cp.async.cg.shared.global.L2::256B [%0], [%1], 16;")
COPY(ca_4_size, "cp.async.ca.shared.global [%0], [%1], 4, %2;", "r"(t % 5))
COPY(ca_8_size, "cp.async.ca.shared.global [%0], [%1], 8, %2;", "r"(t % 9))
COPY(cg_16_size, "cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;", "r"(t % 17))
COPY(cg_16_ignore, "{ .reg .pred p; setp.ne.u32 p, %2, 0; cp.async.cg.shared.global [%0], [%1], 16, p; }",
     "r"(t % 3))
COPY(ca_8_policy, "{ .reg .b64 q; createpolicy.fractional.L2::evict_first.b64 q; "
                  "cp.async.ca.shared.global.L2::cache_hint [%0], [%1], 8, q; }")

static const struct {
    const char *name;
    void (*kernel)(const u8 *, sixteen *);
    int bytes, sizes; // sizes: the source size is t % sizes; 0: all; -1: t % 3 ? 0 : all
} copies[] = {{"ca 4", ca_4_kernel, 4, 0},
              {"ca 8", ca_8_kernel, 8, 0},
              {"ca 16", ca_16_kernel, 16, 0},
              {"cg 16", cg_16_kernel, 16, 0},
              {"cg 16 .L2::256B", cg_16_prefetch_kernel, 16, 0},
              {"ca 4, source size", ca_4_size_kernel, 4, 5},
              {"ca 8, source size", ca_8_size_kernel, 8, 9},
              {"cg 16, source size", cg_16_size_kernel, 16, 17},
              {"cg 16, ignore-src", cg_16_ignore_kernel, 16, -1},
              {"ca 8 .L2::cache_hint", ca_8_policy_kernel, 8, 0}};

static u8 source[1 << 16], *device;

static void check_copies()
{
    static sixteen after[THREADS];
    for (auto &c : copies) {
        check_begin(c.name);
        c.kernel<<<1, THREADS>>>(device, (sixteen *)(device + 65536));
        if (!launched(c.name)) continue;
        CUDA_CHECK(cudaMemcpy(after, device + 65536, sizeof after, cudaMemcpyDeviceToHost));
        for (int t = 0; t < THREADS; t++)
            for (int i = 0; i < 16; i++) {
                const int size = c.sizes > 0 ? t % c.sizes : c.sizes < 0 && t % 3 ? 0 : c.bytes;
                check(t * 16 + i, after[t].byte[i], i >= c.bytes ? 0x11 : i < size ? source[t * 16 + i] : 0);
            }
    }
}

// A lane that reads nothing may have any address.
__global__ void nothing_kernel(u32 *out)
{
    __shared__ __align__(16) u32 tile[4];
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, 0;" ::"r"(smem_addr(tile)), "l"((u64)16)
                 : "memory");
    asm volatile("cp.async.wait_all;" ::: "memory");
    if (threadIdx.x < 4) out[threadIdx.x] = tile[threadIdx.x];
}

// ---- Groups ------------------------------------------------------------------------------------------------------------

// Four groups of one copy each; what must be there after wait_group 3, 2, 1, 0. Odd lanes commit an empty group more, so
// that in them one group fewer may be outstanding.
__global__ void groups_kernel(const u32 *from, u32 *out)
{
    __shared__ u32 tile[STAGES][THREADS];
    const u32 t = threadIdx.x;
    for (int s = 0; s < STAGES; s++) {
        asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(smem_addr(&tile[s][t])),
                     "l"(from + s * THREADS + t)
                     : "memory");
        COMMIT;
    }
    if (t % 2) COMMIT;
    const int groups = STAGES + t % 2;
    out += t;
    WAIT(3);
    for (int s = 0; s < STAGES; s++, out += THREADS) *out = s < groups - 3 ? tile[s][t] : ~0u;
    WAIT(2);
    for (int s = 0; s < STAGES; s++, out += THREADS) *out = s < groups - 2 ? tile[s][t] : ~0u;
    WAIT(1);
    for (int s = 0; s < STAGES; s++, out += THREADS) *out = s < groups - 1 ? tile[s][t] : ~0u;
    WAIT(0);
    for (int s = 0; s < STAGES; s++, out += THREADS) *out = s < groups - 0 ? tile[s][t] : ~0u;
}

// A pipeline over many tiles, in which only a part of each warp copies: each thread sums what others copied.
__global__ void pipeline_kernel(const u32 *from, u32 *out, int tiles)
{
    __shared__ u32 tile[STAGES][THREADS];
    const u32 t = threadIdx.x;
    u32 sum = 0;
    for (int k = 0; k < tiles + STAGES - 1; k++) {
        if (k < tiles) {
            const u32 size = (k * THREADS + t) % 7 ? 4 : 0;
            if (t % 4 != 3) // one in four is copied by its neighbour
                asm volatile(
                    "cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(smem_addr(&tile[k % STAGES][t])),
                    "l"(from + k * THREADS + t), "r"(size)
                    : "memory");
            if (t % 4 == 2)
                asm volatile(
                    "cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(smem_addr(&tile[k % STAGES][t + 1])),
                    "l"(from + k * THREADS + t + 1)
                    : "memory");
        }
        COMMIT;
        if (k < STAGES - 1) continue;
        WAIT(3);
        __syncthreads();
        sum = sum * 3 + tile[(k + 1) % STAGES][THREADS - 1 - t];
        __syncthreads();
    }
    out[t] = sum;
}

// ---- Completion through an mbarrier -------------------------------------------------------------------------------------

// Two warps copy, two others wait for the mbarrier and read. With .noinc the barrier counts the copies' arrivals; without
// it those come on top of the threads' own.
template <bool NOINC>
__global__ void mbarrier_kernel(const u32 *from, u32 *out, int tiles)
{
    __shared__ u32 tile[2][64];
    __shared__ __align__(8) u64 full[2], empty[2];
    const u32 t = threadIdx.x;
    if (t == 0)
        for (int s = 0; s < 2; s++) {
            asm volatile("mbarrier.init.shared.b64 [%0], 64;" ::"r"(smem_addr(&full[s])) : "memory");
            asm volatile("mbarrier.init.shared.b64 [%0], 64;" ::"r"(smem_addr(&empty[s])) : "memory");
        }
    __syncthreads();
    u32 sum = 0;
    for (int k = 0; k < tiles; k++) {
        const u32 s = k % 2, phase = k / 2 % 2, full_addr = smem_addr(&full[s]),
                  empty_addr = smem_addr(&empty[s]);
        const u32 addr = t < 64 ? empty_addr : full_addr, parity = t < 64 ? phase ^ 1 : phase;
        asm volatile(
            "{ .reg .pred p; again: mbarrier.try_wait.parity.shared.b64 p, [%0], %1; @!p bra again; }" ::"r"(
                addr),
            "r"(parity)
            : "memory");
        if (t < 64) {
            asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(smem_addr(&tile[s][t])),
                         "l"(from + k * 64 + t)
                         : "memory");
            if (NOINC) {
                asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(full_addr) : "memory");
            } else {
                asm volatile("cp.async.mbarrier.arrive.shared::cta.b64 [%0];" ::"r"(full_addr) : "memory");
                asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(full_addr) : "memory");
            }
        } else {
            sum = sum * 3 + tile[s][63 - t % 64];
            asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(empty_addr) : "memory");
        }
    }
    if (t >= 64) out[t - 64] = sum;
}

int main()
{
    const u32 *word = (const u32 *)source;
    for (size_t i = 0; i < sizeof source; i++) source[i] = (u8)(random_u64() % 255); // never 0xff
    CUDA_CHECK(cudaMalloc((void **)&device, 1 << 18));
    CUDA_CHECK(cudaMemcpy(device, source, sizeof source, cudaMemcpyHostToDevice));
    u32 *out = (u32 *)(device + 65536);
    static u32 host[16 * THREADS];
    check_copies();

    check_begin("a lane that reads nothing");
    nothing_kernel<<<1, 32>>>(out);
    if (launched("nothing")) {
        CUDA_CHECK(cudaMemcpy(host, out, 16, cudaMemcpyDeviceToHost));
        for (int i = 0; i < 4; i++) check(i, host[i], 0);
    }

    check_begin("groups");
    groups_kernel<<<1, THREADS>>>((const u32 *)device, out);
    if (launched("groups")) {
        CUDA_CHECK(cudaMemcpy(host, out, sizeof host, cudaMemcpyDeviceToHost));
        for (int i = 0; i < 16 * THREADS; i++) {
            const int wait = 3 - i / (4 * THREADS), s = i / THREADS % 4, t = i % THREADS;
            check(i, host[i], s < STAGES + t % 2 - wait ? word[s * THREADS + t] : ~0u);
        }
    }

    check_begin("pipeline");
    pipeline_kernel<<<1, THREADS>>>((const u32 *)device, out, 100);
    if (launched("pipeline")) {
        CUDA_CHECK(cudaMemcpy(host, out, THREADS * 4, cudaMemcpyDeviceToHost));
        for (int t = 0; t < THREADS; t++) {
            u32 want = 0;
            for (int k = 0; k < 100; k++) {
                const int at = k * THREADS + THREADS - 1 - t;
                want = want * 3 + (at % 4 == 3 || at % 7 ? word[at] : 0);
            }
            check(t, host[t], want);
        }
    }

    for (int noinc = 0; noinc < 2; noinc++) {
        check_begin(noinc ? "mbarrier, noinc" : "mbarrier");
        if (noinc)
            mbarrier_kernel<true><<<3, 128>>>((const u32 *)device, out, 50);
        else
            mbarrier_kernel<false><<<3, 128>>>((const u32 *)device, out, 50);
        if (!launched("mbarrier")) continue;
        CUDA_CHECK(cudaMemcpy(host, out, 256, cudaMemcpyDeviceToHost));
        for (int t = 0; t < 64; t++) {
            u32 want = 0;
            for (int k = 0; k < 50; k++) want = want * 3 + word[k * 64 + 63 - t];
            check(t, host[t], want);
        }
    }
    return check_end("copies");
}
