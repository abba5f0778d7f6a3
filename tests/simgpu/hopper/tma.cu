// Bulk and tensor copies: every rank, swizzle and box, out of bounds, element strides, multicast, stores and reductions,
// against loops over coordinates on the host. Passes on a GPU too.
#include "hopper.cuh"

__device__ static void cluster_sync()
{
    asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}
#define COMMIT asm volatile("cp.async.bulk.commit_group;" ::: "memory")

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
    if (threadIdx.x == 0) {
        bar_init(smem_addr(&bar), 1);
        INIT_FENCE;
    }
    PROXY_FENCE;
    __syncthreads();
    if (threadIdx.x == 0) {
        bar_expect(smem_addr(&bar), bytes);
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
    bar_wait(smem_addr(&bar), 0);
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
    u32 size[5], step[5];
    for (int d = 0; d < 5; d++) size[d] = b.size[d], step[d] = b.step[d];
    return encode_map(map, type, (u32)b.rank, global_memory, b.dim, b.stride + 1, size, step, b.swizzle,
                      fill) == CUDA_SUCCESS;
}

static CUtensorMapDataType type_of(int bytes)
{
    return bytes == 1   ? CU_TENSOR_MAP_DATA_TYPE_UINT8
           : bytes == 2 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
           : bytes == 4 ? CU_TENSOR_MAP_DATA_TYPE_INT32
                        : CU_TENSOR_MAP_DATA_TYPE_UINT64;
}

// A random tensor within GLOBAL bytes, and a box of at most SMEM bytes that fits the swizzle.
static box draw_box(int rank, int swizzle)
{
    box b = {};
    b.rank = rank;
    b.bytes = 1 << random_u64() % 4;
    b.swizzle = swizzle;
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
        const box b = draw_box(1 + n % 5, n / 5 % 4);
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
    static const struct {
        const char *name;
        CUtensorMapDataType type;
        int bytes;
    } types[] = {{"NaN fill, f16", CU_TENSOR_MAP_DATA_TYPE_FLOAT16, 2},
                 {"NaN fill, bf16", CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2},
                 {"NaN fill, f32", CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 4},
                 {"NaN fill, f64", CU_TENSOR_MAP_DATA_TYPE_FLOAT64, 8},
                 {"NaN fill, tf32", CU_TENSOR_MAP_DATA_TYPE_TFLOAT32, 4}};
    for (const auto &t : types) {
        box b = {2, t.bytes, {32, 8}, {(u64)t.bytes, 32ull * t.bytes}, {32u / t.bytes, 4}, {1, 1}, 1};
        CUtensorMap map;
        const corner at = {{-16 / t.bytes, 6}};
        check_begin(t.name);
        check(0, make_map(&map, b, t.type, 1), 1);
        load_kernel<<<1, 32, SMEM>>>(map, 2, at, 128, out_memory);
        if (!launched(t.name)) return;
        CUDA_CHECK(cudaMemcpy(got, out_memory, SMEM, cudaMemcpyDeviceToHost));
        for_box(b, at, [&](u32 to, s64 from) {
            u64 g = 0, w = 0x7ff77ff77ff77ff7 >> (64 - 8 * t.bytes);
            memcpy(&g, got + to, t.bytes);
            if (from >= 0) memcpy(&w, host + from, t.bytes);
            if (from >= 0 && t.type == CU_TENSOR_MAP_DATA_TYPE_TFLOAT32)
                w = (w & 0x7fffffff) > 0x7f800000 ? 0x7fffe000 : (w + 0xfff + (w >> 13 & 1)) & 0xffffe000;
            check(to, g, w);
        });
    }
}

// Stores reach the next multiple of 16 bytes in dimension 0, and skip what else is out of bounds.
static void test_stores()
{
    static u8 source[SMEM];
    for (auto &x : source) x = (u8)random_u64();
    for (int n = 0; n < 40; n++) {
        const box b = draw_box(2 + n % 2, n / 2 % 4);
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
    bar_init(smem_addr(&bar), 1);
    INIT_FENCE;
    for (int phase = 0; phase < 2; phase++) {
        asm volatile(
            "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                smem_addr(smem + 512 * phase)),
            "l"(in + 512 * phase), "r"(phase ? 520 : 512),
            "r"(smem_addr(&bar)) // 520: the low bits are dropped
            : "memory");
        bar_expect(smem_addr(&bar), 512);
        bar_wait(smem_addr(&bar), phase);
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
    if (threadIdx.x == 0) bar_init(smem_addr(&bar), 1), bar_init(smem_addr(&second), 1);
    INIT_FENCE;
    cluster_sync();
    if (threadIdx.x == 0) {
        bar_expect(smem_addr(&bar), sizeof tile);
        asm volatile(
            "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], "
            "[%1, {%2, %3}], [%4], %5;" ::"r"(smem_addr(tile[rank])),
            "l"(&map), "r"(0), "r"(rank), "r"(smem_addr(&bar)), "h"((unsigned short)((1 << CLUSTER) - 1))
            : "memory");
    }
    bar_wait(smem_addr(&bar), 0);
    const u32 t = threadIdx.x, next = (rank + 1) % CLUSTER;
    for (int r = 0; r < CLUSTER; r++) out[(blockIdx.x * CLUSTER + r) * 32 + t] = tile[r][t];
    cluster_sync();
    if (t == 0) {
        u32 to, barrier;
        bar_expect(smem_addr(&second), 128);
        asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(to) : "r"(smem_addr(passed)), "r"(next));
        asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(barrier) : "r"(smem_addr(&second)), "r"(next));
        asm volatile(
            "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], 128, [%2];" ::
                "r"(to),
            "r"(smem_addr(tile[rank])), "r"(barrier)
            : "memory");
    }
    bar_wait(smem_addr(&second), 0);
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

// ---- Reductions -----------------------------------------------------------------------------------------------------------------

// A word, or two halves, in memory (a) and in shared memory (b).
#define HALVES(TYPE, EXPRESSION)                                                                            \
    (TYPE##_bits([](float x, float y) { return EXPRESSION; }(TYPE##_value(a), TYPE##_value(b))) |           \
     TYPE##_bits([](float x, float y) { return EXPRESSION; }(TYPE##_value(a >> 16), TYPE##_value(b >> 16))) \
         << 16)
// X(name, operation and type of the bulk form, of the tensor form, map's type, numbers, expected)
#define REDUCTIONS(X)                                                           \
    X(add_u32, "add.u32", "add", UINT32, INT32, a + b)                          \
    X(add_s32, "add.s32", "add", INT32, INT32, a + b)                           \
    X(min_u32, "min.u32", "min", UINT32, INT32, a < b ? a : b)                  \
    X(max_u32, "max.u32", "max", UINT32, INT32, a > b ? a : b)                  \
    X(min_s32, "min.s32", "min", INT32, INT32, (s32)a < (s32)b ? a : b)         \
    X(max_s32, "max.s32", "max", INT32, INT32, (s32)a > (s32)b ? a : b)         \
    X(inc_u32, "inc.u32", "inc", UINT32, INT32, a >= b ? 0 : a + 1)             \
    X(dec_u32, "dec.u32", "dec", UINT32, INT32, a == 0 || a > b ? b : a - 1)    \
    X(and_b32, "and.b32", "and", UINT32, INT32, a &b)                           \
    X(or_b32, "or.b32", "or", UINT32, INT32, a | b)                             \
    X(xor_b32, "xor.b32", "xor", UINT32, INT32, a ^ b)                          \
    X(add_f16, "add.noftz.f16", "add", FLOAT16, F16X2, HALVES(f16, x + y))      \
    X(min_f16, "min.f16", "min", FLOAT16, F16X2, HALVES(f16, fminf(x, y)))      \
    X(max_f16, "max.f16", "max", FLOAT16, F16X2, HALVES(f16, fmaxf(x, y)))      \
    X(add_bf16, "add.noftz.bf16", "add", BFLOAT16, BF16X2, HALVES(bf16, x + y)) \
    X(min_bf16, "min.bf16", "min", BFLOAT16, BF16X2, HALVES(bf16, fminf(x, y))) \
    X(max_bf16, "max.bf16", "max", BFLOAT16, BF16X2, HALVES(bf16, fmaxf(x, y)))

// Small integers as f16 and bf16: sums are exact.
static float f16_value(u32 h)
{
    const float magnitude = h & 0x7fff ? ldexpf(1024 + (h & 0x3ff), (int)(h >> 10 & 31) - 25) : 0;
    return h & 0x8000 ? -magnitude : magnitude;
}
static u32 f16_bits(float x)
{
    int e;
    const u32 m = (u32)ldexpf(frexpf(fabsf(x), &e), 11);
    return x == 0 ? 0 : (u32)(x < 0) << 15 | (u32)(e + 14) << 10 | (m & 0x3ff);
}
static float bf16_value(u32 h)
{
    float x;
    h <<= 16;
    memcpy(&x, &h, 4);
    return x;
}
static u32 bf16_bits(float x)
{
    u32 bits;
    memcpy(&bits, &x, 4);
    return x == 0 ? 0 : bits >> 16;
}
static u32 draw_word(input_kind kind)
{
    const float x = (float)(int)(random_u64() % 201) - 100, y = (float)(int)(random_u64() % 201) - 100;
    return kind == F16X2    ? f16_bits(x) | f16_bits(y) << 16
           : kind == BF16X2 ? bf16_bits(x) | bf16_bits(y) << 16
                            : (u32)draw_int(32);
}

// The words of `in` into those of memory from `to` on, in bulk; and into the tensor, all of it one box.
#define REDUCTION_KERNEL(NAME, BULK, TENSOR, TYPE, KIND, EXPECTED)                                 \
    __global__ void reduce_##NAME(const __grid_constant__ CUtensorMap map, u32 *to, const u32 *in) \
    {                                                                                              \
        __shared__ __align__(1024) u32 smem[256];                                                  \
        for (int i = threadIdx.x; i < 256; i += blockDim.x) smem[i] = in[i];                       \
        PROXY_FENCE;                                                                               \
        __syncthreads();                                                                           \
        if (threadIdx.x) return;                                                                   \
        asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group." BULK                    \
                     " [%0], [%1], 1024;" ::"l"(to),                                               \
                     "r"(smem_addr(smem))                                                          \
                     : "memory");                                                                  \
        asm volatile("cp.reduce.async.bulk.tensor.1d.global.shared::cta." TENSOR                   \
                     ".tile.bulk_group [%0, {%1}], [%2];" ::"l"(&map),                             \
                     "r"(0), "r"(smem_addr(smem))                                                  \
                     : "memory");                                                                  \
        COMMIT;                                                                                    \
        WAIT_ALL;                                                                                  \
    }                                                                                              \
    static u32 expect_##NAME(u32 a, u32 b)                                                         \
    {                                                                                              \
        return EXPECTED;                                                                           \
    }
REDUCTIONS(REDUCTION_KERNEL)

static void test_reductions()
{
    static const struct {
        const char *name;
        void (*kernel)(CUtensorMap, u32 *, const u32 *);
        u32 (*expect)(u32, u32);
        CUtensorMapDataType type;
        input_kind kind;
    } all[] = {
#define REDUCTION_ENTRY(NAME, BULK, TENSOR, TYPE, KIND, EXPECTED) \
    {#NAME, reduce_##NAME, expect_##NAME, CU_TENSOR_MAP_DATA_TYPE_##TYPE, KIND},
        REDUCTIONS(REDUCTION_ENTRY)};
    static u32 memory[512], in[256], after[512];
    for (const auto &r : all) {
        const u32 size = r.kind == INT32 ? 4 : 2, total = 1024 / size;
        const u64 dim = total, stride = 16; // of no dimension, but NULL is refused
        const u32 box = total < 256 ? total : 256, step = 1;
        CUtensorMap map;
        check_begin(r.name);
        check(0, encode_map(&map, r.type, 1, global_memory, &dim, &stride, &box, &step, 0), CUDA_SUCCESS);
        for (auto &x : memory) x = draw_word(r.kind);
        for (auto &x : in) x = draw_word(r.kind);
        CUDA_CHECK(cudaMemcpy(global_memory, memory, sizeof memory, cudaMemcpyHostToDevice));
        CUDA_CHECK(cudaMemcpy(out_memory, in, sizeof in, cudaMemcpyHostToDevice));
        r.kernel<<<1, 32>>>(map, (u32 *)global_memory + 256, (const u32 *)out_memory);
        if (!launched(r.name)) return;
        CUDA_CHECK(cudaMemcpy(after, global_memory, sizeof after, cudaMemcpyDeviceToHost));
        for (u32 i = 0; i < 256; i++) { // the tensor's box has 256 elements, the bulk copy 256 words
            const bool reached = i < box * size / 4;
            check(i, after[i], reached ? r.expect(memory[i], in[i]) : memory[i]);
            check(256 + i, after[256 + i], r.expect(memory[256 + i], in[i]));
        }
    }
    CUDA_CHECK(cudaMemcpy(global_memory, host, GLOBAL, cudaMemcpyHostToDevice));
}

// ---- Prefetches: they change nothing ----------------------------------------------------------------------------------------------

__global__ void prefetch_kernel(const __grid_constant__ CUtensorMap map, const u8 *from, u8 *out)
{
    asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
    asm volatile("cp.async.bulk.prefetch.tensor.2d.L2.global.tile [%0, {%1, %2}];" ::"l"(&map), "r"(-8),
                 "r"(40)
                 : "memory");
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(256) : "memory");
    out[threadIdx.x] = from[threadIdx.x];
}

static void test_prefetch()
{
    const box b = {2, 2, {64, 64}, {2, 128}, {64, 8}, {1, 1}, 3};
    CUtensorMap map;
    check_begin("prefetch");
    check(0, make_map(&map, b, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16), 1);
    prefetch_kernel<<<1, 64>>>(map, global_memory, out_memory);
    if (!launched("prefetch")) return;
    CUDA_CHECK(cudaMemcpy(got, out_memory, 64, cudaMemcpyDeviceToHost));
    for (int i = 0; i < 64; i++) check(i, got[i], host[i]);
}

// ---- What cuTensorMapEncodeTiled accepts, as measured --------------------------------------------------------------------------

struct encoding {
    int type = CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
    u32 rank = 2;
    u64 offset = 0, dims[5] = {64, 64, 2, 2, 2}, strides[4] = {128, 8192, 16384, 16384};
    u32 box[5] = {64, 8, 1, 1, 1}, steps[5] = {1, 1, 1, 1, 1};
    int swizzle = 3, fill = 0, interleave = 0;
};

static void test_encode()
{
    static const struct {
        const char *what;
        void (*change)(encoding &);
        bool ok;
    } cases[] = {{"as it is", [](encoding &) {}, true},
                 {"rank 5", [](encoding &e) { e.rank = 5; }, true},
                 {"rank 0", [](encoding &e) { e.rank = 0; }, false},
                 {"rank 6", [](encoding &e) { e.rank = 6; }, false},
                 {"type 13", [](encoding &e) { e.type = 13; }, false},
                 {"type 15", [](encoding &e) { e.type = 15; }, false},
                 {"address not a multiple of 16", [](encoding &e) { e.offset = 8; }, false},
                 {"no elements", [](encoding &e) { e.dims[1] = 0; }, false},
                 {"2^32 elements", [](encoding &e) { e.dims[1] = 1ull << 32; }, true},
                 {"2^32 + 1 elements", [](encoding &e) { e.dims[1] = (1ull << 32) + 1; }, false},
                 {"fewer elements than the box", [](encoding &e) { e.dims[0] = 3; }, true},
                 {"stride 24", [](encoding &e) { e.strides[0] = 24; }, false},
                 {"stride 0", [](encoding &e) { e.strides[0] = 0; }, true},
                 {"stride less than a row", [](encoding &e) { e.strides[0] = 16; }, true},
                 {"stride 2^40", [](encoding &e) { e.strides[0] = 1ull << 40; }, false},
                 {"box 0", [](encoding &e) { e.box[1] = 0; }, false},
                 {"box 256", [](encoding &e) { e.box[1] = 256; }, true},
                 {"box 257", [](encoding &e) { e.box[1] = 257; }, false},
                 {"box of 8 bytes", [](encoding &e) { e.box[0] = 4; }, false},
                 {"box wider than 128 bytes", [](encoding &e) { e.box[0] = 128; }, false},
                 {"box wider than 64 bytes", [](encoding &e) { e.swizzle = 2; }, false},
                 {"box as wide as 64 bytes", [](encoding &e) { e.swizzle = 2, e.box[0] = 32; }, true},
                 {"box wider than 32 bytes", [](encoding &e) { e.swizzle = 1, e.box[0] = 32; }, false},
                 {"wide box without swizzle", [](encoding &e) { e.swizzle = 0, e.box[0] = 256; }, true},
                 {"box of 256 KiB", [](encoding &e) { e.rank = 3, e.box[1] = 256, e.box[2] = 8; }, false},
                 {"element stride 0", [](encoding &e) { e.steps[1] = 0; }, false},
                 {"element stride 8", [](encoding &e) { e.steps[1] = 8; }, true},
                 {"element stride 9", [](encoding &e) { e.steps[1] = 9; }, false},
                 {"swizzle 4", [](encoding &e) { e.swizzle = 4; }, false},
                 {"swizzle 7", [](encoding &e) { e.swizzle = 7; }, false},
                 {"NaN fill", [](encoding &e) { e.fill = 1; }, true},
                 {"NaN fill of integers",
                  [](encoding &e) { e.fill = 1, e.type = CU_TENSOR_MAP_DATA_TYPE_UINT16; }, false},
                 {"interleave with rank 2", [](encoding &e) { e.interleave = 1; }, false}};
    for (const auto &c : cases) {
        encoding e;
        CUtensorMap map;
        c.change(e);
        check_begin(c.what);
        check(0,
              encode_map(&map, (CUtensorMapDataType)e.type, e.rank, global_memory + e.offset, e.dims,
                         e.strides, e.box, e.steps, e.swizzle, e.fill, e.interleave) == CUDA_SUCCESS,
              c.ok);
    }
    encoding e;
    CUtensorMap map;
    e.rank = 1;
    check_begin("no strides, of rank 1 either");
    check(0,
          encode_map(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 1, global_memory, e.dims, nullptr, e.box,
                     e.steps, 3) == CUDA_SUCCESS,
          0);
}

// CUTLASS from 4.3 on clears bit 21 of the second 64-bit word of maps of tensors under 128 KiB, for drivers up to 13.1. The
// map must mean the same, wherever the tensor lies: one half of these addresses have that bit, one half have not.
static void test_cleared_bit()
{
    check_begin("map with bit 21 of its second word cleared");
    u8 *const first = global_memory, *many;
    CUDA_CHECK(cudaMalloc((void **)&many, 8 << 20));
    for (int k = 0; k < 4; k++) {
        global_memory = many + ((u64)k << 20);
        CUDA_CHECK(cudaMemcpy(global_memory, host, GLOBAL, cudaMemcpyHostToDevice));
        for (int rank = 1; rank <= 5; rank++) {
            const box b = draw_box(rank, 0);
            CUtensorMap map;
            check(0, make_map(&map, b, type_of(b.bytes)), 1);
            map.opaque[1] &= ~(1ull << 21);
            corner at = {};
            u32 bytes = 0;
            memset(want, 0xab, SMEM);
            for_box(b, at, [&](u32 to, s64 from) {
                for (int i = 0; i < b.bytes; i++) want[to + i] = from < 0 ? 0 : host[from + i];
                bytes += b.bytes;
            });
            load_kernel<<<1, 128, SMEM>>>(map, rank, at, bytes, out_memory);
            if (!launched("load_kernel")) return;
            CUDA_CHECK(cudaMemcpy(got, out_memory, SMEM, cudaMemcpyDeviceToHost));
            for (u32 i = 0; i < SMEM; i++) check(i, got[i], want[i]);
        }
    }
    CUDA_CHECK(cudaFree(many));
    global_memory = first;
}

int main()
{
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
    test_reductions();
    test_prefetch();
    test_multicast();
    test_cleared_bit();
    return check_end("tma");
}
