// Bulk and tensor copies: every rank, swizzle and box, out of bounds, element strides, multicast, stores and reductions,
// against loops over coordinates on the host. Passes on a GPU too.
#include <cuda.h>

#include "../check.h"

__device__ static u32 smem_addr(const void *p)
{
    return (u32)__cvta_generic_to_shared(p);
}
__device__ static void bar_init(u64 *bar, u32 count)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(smem_addr(bar)), "r"(count) : "memory");
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
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
__device__ static void cluster_sync()
{
    asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}
#define PROXY_FENCE asm volatile("fence.proxy.async.shared::cta;" ::: "memory")
#define COMMIT      asm volatile("cp.async.bulk.commit_group;" ::: "memory")
#define WAIT_READ   asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory")
#define WAIT_ALL    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory")

typedef CUresult (*encode_fn)(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *, const cuuint64_t *,
                              const cuuint64_t *, const cuuint32_t *, const cuuint32_t *,
                              CUtensorMapInterleave, CUtensorMapSwizzle, CUtensorMapL2promotion,
                              CUtensorMapFloatOOBfill);
static encode_fn encode;

enum { SMEM = 32768, GLOBAL = 1 << 16 };
struct corner {
    int c[5];
};

// ---- Loads and stores by rank ------------------------------------------------------------------------------------------

#define LOAD_BOX(R, LIST, ...)                                                                  \
    asm volatile("cp.async.bulk.tensor." #R                                                     \
                 "d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {" LIST \
                 "}], [%2];" ::"r"(to),                                                         \
                 "l"(&map), "r"(smem_addr(&bar)), __VA_ARGS__                                   \
                 : "memory")

__global__ void load_kernel(const __grid_constant__ CUtensorMap map, int rank, corner at, u32 bytes, u8 *out)
{
    extern __shared__ __align__(1024) u8 smem[];
    __shared__ __align__(8) u64 bar;
    const u32 to = smem_addr(smem);
    for (int i = threadIdx.x; i < SMEM; i += blockDim.x) smem[i] = 0xab;
    if (threadIdx.x == 0) bar_init(&bar, 1);
    PROXY_FENCE;
    __syncthreads();
    if (threadIdx.x == 0) {
        bar_expect(&bar, bytes);
        asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
        switch (rank) {
        case 1: LOAD_BOX(1, "%3", "r"(at.c[0])); break;
        case 2: LOAD_BOX(2, "%3, %4", "r"(at.c[0]), "r"(at.c[1])); break;
        case 3: LOAD_BOX(3, "%3, %4, %5", "r"(at.c[0]), "r"(at.c[1]), "r"(at.c[2])); break;
        case 4: LOAD_BOX(4, "%3, %4, %5, %6", "r"(at.c[0]), "r"(at.c[1]), "r"(at.c[2]), "r"(at.c[3])); break;
        default:
            LOAD_BOX(5, "%3, %4, %5, %6, %7", "r"(at.c[0]), "r"(at.c[1]), "r"(at.c[2]), "r"(at.c[3]),
                     "r"(at.c[4]));
        }
    }
    bar_wait(&bar, 0);
    for (int i = threadIdx.x; i < SMEM; i += blockDim.x) out[i] = smem[i];
}

#define STORE_BOX(OP, R, LIST, ...)                                                                   \
    asm volatile(OP "." #R "d.global.shared::cta" LIST "], [%1];" ::"l"(&map), "r"(from), __VA_ARGS__ \
                 : "memory")

// op 0: store, 1: add
__global__ void store_kernel(const __grid_constant__ CUtensorMap map, int rank, corner at, int op,
                             const u8 *in)
{
    extern __shared__ __align__(1024) u8 smem[];
    const u32 from = smem_addr(smem);
    for (int i = threadIdx.x; i < SMEM; i += blockDim.x) smem[i] = in[i];
    PROXY_FENCE;
    __syncthreads();
    if (threadIdx.x) return;
    if (op)
        STORE_BOX("cp.reduce.async.bulk.tensor", 2, ".add.tile.bulk_group [%0, {%2, %3}", "r"(at.c[0]),
                  "r"(at.c[1]));
    else if (rank == 2)
        STORE_BOX("cp.async.bulk.tensor", 2, ".tile.bulk_group [%0, {%2, %3}", "r"(at.c[0]), "r"(at.c[1]));
    else
        STORE_BOX("cp.async.bulk.tensor", 3, ".bulk_group [%0, {%2, %3, %4}", "r"(at.c[0]), "r"(at.c[1]),
                  "r"(at.c[2]));
    COMMIT;
    WAIT_READ;
    smem[0] = 1; // free again
    WAIT_ALL;
}

// ---- The same on the host ------------------------------------------------------------------------------------------------

struct box {
    int rank, bytes;       // of an element
    u64 dim[5], stride[5]; // bytes, stride[0] the element
    u32 size[5], step[5];
    int swizzle;
};

// Calls each(shared offset, global offset or -1) for the 1st byte of every element of the box.
template <class F>
static void for_box(const box &b, const corner &at, F each)
{
    u32 count[5], total = 1, pitch = b.swizzle ? 16u << b.swizzle : b.size[0] * b.bytes;
    for (int d = 0; d < b.rank; d++) {
        count[d] = d ? (b.size[d] + b.step[d] - 1) / b.step[d] : b.size[0];
        total *= count[d];
    }
    for (u32 n = 0; n < total; n++) {
        u32 rest = n, row = n / count[0];
        s64 from = 0;
        bool inside = true;
        for (int d = 0; d < b.rank; d++) {
            const s64 x = at.c[d] + (s64)(rest % count[d]) * (d ? b.step[d] : 1);
            rest /= count[d];
            inside &= x >= 0 && x < (s64)b.dim[d];
            from += x * (s64)b.stride[d];
        }
        u32 to = row * pitch + n % count[0] * b.bytes;
        to ^= (to >> 7 & ((1u << b.swizzle) - 1)) << 4;
        each(to, inside ? from : -1);
    }
}

static u8 host[GLOBAL], got[GLOBAL], want[GLOBAL];
static u8 *global_memory, *out_memory;

static bool make_map(CUtensorMap *map, const box &b, CUtensorMapDataType type, int fill = 0)
{
    cuuint32_t size[5], step[5];
    for (int d = 0; d < 5; d++) size[d] = b.size[d], step[d] = b.step[d];
    return encode(map, type, (u32)b.rank, global_memory, (const cuuint64_t *)b.dim,
                  (const cuuint64_t *)b.stride + 1, size, step, CU_TENSOR_MAP_INTERLEAVE_NONE,
                  (CUtensorMapSwizzle)b.swizzle, CU_TENSOR_MAP_L2_PROMOTION_NONE,
                  (CUtensorMapFloatOOBfill)fill) == CUDA_SUCCESS;
}

static CUtensorMapDataType type_of(int bytes)
{
    return bytes == 1   ? CU_TENSOR_MAP_DATA_TYPE_UINT8
           : bytes == 2 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
           : bytes == 4 ? CU_TENSOR_MAP_DATA_TYPE_INT32
                        : CU_TENSOR_MAP_DATA_TYPE_UINT64;
}

// A random tensor within GLOBAL bytes, and a box of at most SMEM bytes that fits the swizzle.
static box draw_box(int rank)
{
    box b = {};
    b.rank = rank;
    b.bytes = 1 << random_u64() % 4;
    b.swizzle = (int)(random_u64() % 4);
    const u32 most = b.swizzle ? 16u << b.swizzle : 128;
    b.size[0] = 16 * (1 + random_u64() % (most / 16)) / b.bytes;
    if (b.size[0] > 256) b.size[0] = 256;
    b.dim[0] = 1 + random_u64() % (3 * b.size[0]);
    u64 stride = (b.dim[0] * b.bytes + 15) / 16 * 16;
    b.stride[0] = b.bytes, b.step[0] = 1;
    for (int d = 1; d < rank; d++) {
        b.dim[d] = 1 + random_u64() % 4;
        b.stride[d] = stride;
        stride *= b.dim[d];
        b.size[d] = 1 + random_u64() % (rank < 3 ? 64 : 4);
        b.step[d] = random_u64() % 3 ? 1 : 1 + random_u64() % 8;
    }
    return b;
}

static void test_loads()
{
    for (int n = 0; n < 120; n++) {
        const box b = draw_box(1 + n % 5);
        corner at = {};
        CUtensorMap map;
        u32 bytes = 0;
        at.c[0] = ((int)(random_u64() % 5) - 2) * 16 / b.bytes;
        for (int d = 1; d < b.rank; d++) at.c[d] = (int)(random_u64() % 7) - 3;
        check_begin("encode");
        check(n, make_map(&map, b, type_of(b.bytes)), 1);
        memset(want, 0xab, SMEM);
        for_box(b, at, [&](u32 to, s64 from) {
            for (int k = 0; k < b.bytes; k++) want[to + k] = from < 0 ? 0 : host[from + k];
            bytes += b.bytes;
        });
        load_kernel<<<1, 64, SMEM>>>(map, b.rank, at, bytes, out_memory);
        if (!launched("load")) return;
        CUDA_CHECK(cudaMemcpy(got, out_memory, SMEM, cudaMemcpyDeviceToHost));
        check_begin("load");
        for (int i = 0; i < SMEM; i++) check(n * 100000 + i, got[i], want[i]);
    }
}

static void test_fill()
{
    box b = {2, 4, {32, 8}, {4, 128}, {8, 4}, {1, 1}, 1};
    CUtensorMap map;
    const corner at = {{-4, 6}};
    check_begin("NaN fill, tf32");
    check(0, make_map(&map, b, CU_TENSOR_MAP_DATA_TYPE_TFLOAT32, 1), 1);
    load_kernel<<<1, 32, SMEM>>>(map, 2, at, 128, out_memory);
    if (!launched("fill")) return;
    CUDA_CHECK(cudaMemcpy(got, out_memory, SMEM, cudaMemcpyDeviceToHost));
    for_box(b, at, [&](u32 to, s64 from) {
        u32 g, w = 0x7ff77ff7;
        memcpy(&g, got + to, 4);
        if (from >= 0) {
            memcpy(&w, host + from, 4);
            w = (w & 0x7fffffff) > 0x7f800000 ? 0x7fffe000 : (w + 0xfff + (w >> 13 & 1)) & ~0x1fffu;
        }
        check(to, g, w);
    });
    check_begin("NaN fill of integers");
    check(0, make_map(&map, b, CU_TENSOR_MAP_DATA_TYPE_INT32, 1), 0);
}

// Stores reach the next multiple of 16 bytes in dimension 0, and skip what else is out of bounds.
static void test_stores()
{
    static u8 source[SMEM];
    for (auto &x : source) x = (u8)random_u64();
    for (int n = 0; n < 40; n++) {
        const box b = draw_box(2 + n % 2);
        corner at = {};
        CUtensorMap map;
        at.c[0] = (int)(random_u64() % 3) * 16 / b.bytes;
        for (int d = 1; d < b.rank; d++) at.c[d] = (int)(random_u64() % 3);
        check_begin("encode");
        check(n, make_map(&map, b, type_of(b.bytes)), 1);
        CUDA_CHECK(cudaMemcpy(global_memory, host, GLOBAL, cudaMemcpyHostToDevice));
        CUDA_CHECK(cudaMemcpy(out_memory, source, SMEM, cudaMemcpyHostToDevice));
        memcpy(want, host, GLOBAL);
        box wide = b;
        wide.dim[0] = (b.dim[0] * b.bytes + 15) / 16 * 16 / b.bytes;
        for_box(wide, at, [&](u32 from, s64 to) {
            if (to >= 0) memcpy(want + to, source + from, b.bytes);
        });
        store_kernel<<<1, 64, SMEM>>>(map, b.rank, at, 0, out_memory);
        if (!launched("store")) return;
        CUDA_CHECK(cudaMemcpy(got, global_memory, GLOBAL, cudaMemcpyDeviceToHost));
        check_begin("store");
        for (int i = 0; i < GLOBAL; i++) check(n * 100000 + i, got[i], want[i]);
    }
    CUDA_CHECK(cudaMemcpy(global_memory, host, GLOBAL, cudaMemcpyHostToDevice));
}

static void test_reduce()
{
    const box b = {2, 4, {40, 10}, {4, 160}, {32, 8}, {1, 1}, 3};
    const corner at = {{16, 4}};
    static float a[GLOBAL / 4], s[SMEM / 4], r[GLOBAL / 4];
    CUtensorMap map;
    for (auto &x : a) x = (float)((int)(random_u64() % 2001) - 1000);
    for (auto &x : s) x = (float)((int)(random_u64() % 2001) - 1000) / 8;
    CUDA_CHECK(cudaMemcpy(global_memory, a, GLOBAL, cudaMemcpyHostToDevice));
    CUDA_CHECK(cudaMemcpy(out_memory, s, SMEM, cudaMemcpyHostToDevice));
    check_begin("reduce");
    check(0, make_map(&map, b, CU_TENSOR_MAP_DATA_TYPE_FLOAT32), 1);
    store_kernel<<<1, 64, SMEM>>>(map, 2, at, 1, out_memory);
    if (!launched("reduce")) return;
    CUDA_CHECK(cudaMemcpy(r, global_memory, GLOBAL, cudaMemcpyDeviceToHost));
    for_box(b, at, [&](u32 from, s64 to) {
        if (to >= 0) a[to / 4] += s[from / 4];
    });
    for (int i = 0; i < GLOBAL / 4; i++) check(i, r[i] == a[i], 1);
    CUDA_CHECK(cudaMemcpy(global_memory, host, GLOBAL, cudaMemcpyHostToDevice));
}

// ---- Copies without a map ---------------------------------------------------------------------------------------------------

// in -> shared -> out, and 16-bit sums into out + 1024.
__global__ void linear_kernel(const u8 *in, u8 *out)
{
    __shared__ __align__(128) u8 smem[1024];
    __shared__ __align__(8) u64 bar;
    if (threadIdx.x) return;
    bar_init(&bar, 1);
    for (int phase = 0; phase < 2; phase++) {
        asm volatile(
            "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                smem_addr(smem + 512 * phase)),
            "l"(in + 512 * phase), "r"(phase ? 520 : 512),
            "r"(smem_addr(&bar)) // 520: the low bits are dropped
            : "memory");
        bar_expect(&bar, 512);
        bar_wait(&bar, phase);
    }
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], 1024;" ::"l"(out),
                 "r"(smem_addr(smem))
                 : "memory");
    COMMIT;
    asm volatile(
        "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32 [%0], [%1], 1024;" ::"l"(out + 1024),
        "r"(smem_addr(smem))
        : "memory");
    COMMIT;
    asm volatile("cp.async.bulk.wait_group 1;" ::: "memory");
    out[2048] = out[5]; // the first group is there
    WAIT_ALL;
}

static void test_linear()
{
    memset(want, 0, GLOBAL);
    memcpy(want, host, 1024);
    CUDA_CHECK(cudaMemset(out_memory, 7, 4096));
    linear_kernel<<<1, 32>>>(global_memory, out_memory);
    if (!launched("linear")) return;
    CUDA_CHECK(cudaMemcpy(got, out_memory, 4096, cudaMemcpyDeviceToHost));
    check_begin("linear");
    for (int i = 0; i < 1024; i++) check(i, got[i], host[i]);
    for (int i = 0; i < 1024; i += 4) {
        u32 g, h;
        memcpy(&g, got + 1024 + i, 4);
        memcpy(&h, host + i, 4);
        check(1024 + i, g, h + 0x07070707u);
    }
    check(2048, got[2048], host[5]);
}

// ---- Clusters -------------------------------------------------------------------------------------------------------------------

// Block r loads row r for all blocks; then each sends its own tile on to its neighbour.
enum { CLUSTER = 4 };
__global__ void __cluster_dims__(CLUSTER, 1, 1)
    multicast_kernel(const __grid_constant__ CUtensorMap map, u32 *out)
{
    __shared__ __align__(1024) u32 tile[CLUSTER][32];
    __shared__ __align__(128) u32 passed[32];
    __shared__ __align__(8) u64 bar, second;
    u32 rank;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    if (threadIdx.x == 0) bar_init(&bar, 1), bar_init(&second, 1);
    cluster_sync();
    if (threadIdx.x == 0) {
        bar_expect(&bar, sizeof tile);
        asm volatile(
            "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], "
            "[%1, {%2, %3}], [%4], %5;" ::"r"(smem_addr(tile[rank])),
            "l"(&map), "r"(0), "r"(rank), "r"(smem_addr(&bar)), "h"((unsigned short)((1 << CLUSTER) - 1))
            : "memory");
    }
    bar_wait(&bar, 0);
    const u32 t = threadIdx.x, next = (rank + 1) % CLUSTER;
    for (int r = 0; r < CLUSTER; r++) out[(blockIdx.x * CLUSTER + r) * 32 + t] = tile[r][t];
    cluster_sync();
    if (t == 0) {
        u32 to, barrier;
        bar_expect(&second, 128);
        asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(to) : "r"(smem_addr(passed)), "r"(next));
        asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(barrier) : "r"(smem_addr(&second)), "r"(next));
        asm volatile(
            "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], 128, [%2];" ::
                "r"(to),
            "r"(smem_addr(tile[rank])), "r"(barrier)
            : "memory");
    }
    bar_wait(&second, 0);
    out[4096 + blockIdx.x * 32 + t] = passed[t];
    cluster_sync();
}

static void test_multicast()
{
    const box b = {2, 4, {32, 8}, {4, 128}, {32, 1}, {1, 1}, 0};
    static u32 out[8192];
    CUtensorMap map;
    check_begin("multicast");
    check(0, make_map(&map, b, CU_TENSOR_MAP_DATA_TYPE_INT32), 1);
    multicast_kernel<<<8, 32>>>(map, (u32 *)out_memory);
    if (!launched("multicast")) return;
    CUDA_CHECK(cudaMemcpy(out, out_memory, sizeof out, cudaMemcpyDeviceToHost));
    for (u32 i = 0; i < 8 * CLUSTER * 32; i++) check(i, out[i], ((u32 *)host)[i % (CLUSTER * 32)]);
    for (u32 i = 0; i < 8 * 32; i++)
        check(4096 + i, out[4096 + i], ((u32 *)host)[(i / 32 + CLUSTER - 1) % CLUSTER * 32 + i % 32]);
}

// ---- What cuTensorMapEncodeTiled accepts, as measured --------------------------------------------------------------------------

static void test_encode()
{
    CUtensorMap map;
    const box good = {2, 2, {64, 64}, {2, 128}, {64, 8}, {1, 1}, 3};
    struct {
        const char *what;
        box b;
        bool ok;
    } cases[] = {
        {"good", good, true},     {"inner bytes", good, false}, {"inner beyond the swizzle", good, false},
        {"box 0", good, false},   {"box 257", good, false},     {"stride 24", good, false},
        {"stride 0", good, true}, {"dim 0", good, false},       {"element stride 9", good, false},
        {"rank 6", good, false}};
    cases[1].b.size[0] = 4;
    cases[2].b.size[0] = 128;
    cases[3].b.size[1] = 0;
    cases[4].b.size[1] = 257;
    cases[5].b.stride[1] = 24;
    cases[6].b.stride[1] = 0;
    cases[7].b.dim[1] = 0;
    cases[8].b.step[1] = 9;
    cases[9].b.rank = 6;
    for (auto &c : cases) {
        check_begin(c.what);
        check(0, make_map(&map, c.b, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16), c.ok);
    }
}

int main()
{
    cudaDriverEntryPointQueryResult found;
    void *function = nullptr;
    CUDA_CHECK(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault,
                                                &found));
    encode = (encode_fn)function;
    for (auto &x : host) x = (u8)random_u64();
    CUDA_CHECK(cudaMalloc((void **)&global_memory, GLOBAL));
    CUDA_CHECK(cudaMalloc((void **)&out_memory, GLOBAL));
    CUDA_CHECK(cudaMemcpy(global_memory, host, GLOBAL, cudaMemcpyHostToDevice));
    test_encode();
    test_linear();
    test_loads();
    test_fill();
    test_stores();
    test_reduce();
    test_multicast();
    return check_end("tma");
}
