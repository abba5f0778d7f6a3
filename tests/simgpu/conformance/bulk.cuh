// Bulk copies without a tensor map: into shared memory, out of it, from block to block; reductions of every type; groups;
// multicast, with and without a map; and prefetches, which change nothing.

enum { BULK_BYTES = 4096, BULK_CASES = 8, BULK_CLUSTER = 4 };

// ---- Copies -----------------------------------------------------------------------------------------------------------

struct bulk_case {
    u32 from, to, bytes, unused; // offsets
};

// inputs: memory, the cases. Multiples of 16 bytes, of any length.
static void draw_bulk(const struct variant *v, u8 **inputs)
{
    struct bulk_case *cases = (struct bulk_case *)inputs[1];
    draw_numbers(inputs[0], v->input_bytes[0]);
    for (int n = 0; n < BULK_CASES; n++) {
        cases[n].bytes = n < 3 ? 16u << 3 * n : 16 * (1 + (u32)random_u64() % 128);
        if (n == 3) cases[n].bytes += 8; // the low bits of a size are dropped
        cases[n].from = 16 * ((u32)random_u64() % 64);
        cases[n].to = 16 * ((u32)random_u64() % 64);
    }
}
// inputs: shared memory, the cases, global memory as it was before: elements
struct bulk_form {
    u32 size;
    enum input_kind values;
};
static void draw_bulk_values(const struct variant *v, u8 **inputs)
{
    const struct bulk_form *f = (const struct bulk_form *)v->about;
    struct bulk_case *c = (struct bulk_case *)inputs[1];
    c->bytes = (u32)v->out_bytes;
    draw_values(inputs[0], v->input_bytes[0], f->size, f->values);
    draw_values(inputs[2], v->input_bytes[2], f->size, f->values);
}

__device__ static void bulk_fill(u8 *smem, const u8 *in) // NULL: with 0xab
{
    for (int i = threadIdx.x; i < BULK_BYTES; i += blockDim.x) smem[i] = in ? in[i] : 0xab;
    PROXY_FENCE;
    __syncthreads();
}

// BULK_LOAD(name, PTX with %0 = to, %1 = from, %2 = bytes, %3 = mbarrier, %4 = a cache policy)
#define BULK_LOAD(NAME, PTX)                                                                \
    __global__ void NAME##_kernel(u8 *out, const u8 *in, const struct bulk_case *cases)     \
    {                                                                                       \
        __shared__ __align__(128) u8 smem[BULK_BYTES];                                      \
        __shared__ __align__(8) u64 bar;                                                    \
        const struct bulk_case c = cases[blockIdx.x];                                       \
        u64 policy;                                                                         \
        asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));         \
        if (threadIdx.x == 0) bar_init(&bar, 1);                                            \
        bulk_fill(smem, NULL);                                                              \
        if (threadIdx.x == 0) {                                                             \
            bar_expect(&bar, c.bytes & ~15u);                                               \
            asm volatile(PTX ::"r"(smem_addr(smem) + c.to), "l"(in + c.from), "r"(c.bytes), \
                         "r"(smem_addr(&bar)), "l"(policy)                                  \
                         : "memory");                                                       \
        }                                                                                   \
        const bool done = bar_wait(&bar, 0);                                                \
        for (int i = threadIdx.x; i < BULK_BYTES; i += blockDim.x)                          \
            out[blockIdx.x * BULK_BYTES + i] = done ? smem[i] : 0xee;                       \
    }                                                                                       \
    BULK_VARIANT(NAME, BULK_CASES, BULK_CASES *BULK_BYTES)
#define BULK_VARIANT(NAME, BLOCKS, OUT_BYTES)                                   \
    static void NAME##_launch(u8 *out, u8 *const *in)                           \
    {                                                                           \
        NAME##_kernel<<<BLOCKS, 64>>>(out, in[0], (struct bulk_case *)in[1]);   \
    }                                                                           \
    VARIANT(NAME, draw_bulk, NAME##_launch, NULL, OUT_BYTES, 4, 2 * BULK_BYTES, \
            BULK_CASES * sizeof(struct bulk_case))
BULK_LOAD(bulk_load_cluster,
          "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];")
BULK_LOAD(bulk_load_cta,
          "cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];")
BULK_LOAD(
    bulk_load_hint,
    "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;")
BULK_LOAD(bulk_prefetch,
          "cp.async.bulk.prefetch.L2.global [%1], 16;\n"
          "cp.async.bulk.prefetch.L2.global.L2::cache_hint [%1], 32, %4;\n"
          "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];")

// BULK_STORE(name, PTX with %0 = to, %1 = from, %2 = bytes, %3 = a cache policy, and how it is waited for)
#define BULK_STORE(NAME, PTX)                                                                            \
    __global__ void NAME##_kernel(u8 *out, const u8 *in, const struct bulk_case *cases)                  \
    {                                                                                                    \
        __shared__ __align__(128) u8 smem[BULK_BYTES];                                                   \
        const struct bulk_case c = cases[blockIdx.x];                                                    \
        u64 policy;                                                                                      \
        asm("createpolicy.fractional.L2::evict_last.b64 %0, 0.5;" : "=l"(policy));                       \
        bulk_fill(smem, in);                                                                             \
        if (threadIdx.x == 0)                                                                            \
            asm volatile(PTX ::"l"(out + blockIdx.x * BULK_BYTES + c.to), "r"(smem_addr(smem) + c.from), \
                         "r"(c.bytes), "l"(policy)                                                       \
                         : "memory");                                                                    \
    }                                                                                                    \
    BULK_VARIANT(NAME, BULK_CASES, BULK_CASES *BULK_BYTES)
BULK_STORE(bulk_store, "cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;\n"
                       "cp.async.bulk.commit_group;\ncp.async.bulk.wait_group 0;")
BULK_STORE(bulk_store_hint, "cp.async.bulk.global.shared::cta.bulk_group.L2::cache_hint [%0], [%1], %2, %3;\n"
                            "cp.async.bulk.commit_group;\ncp.async.bulk.wait_group.read 0;")
BULK_STORE(bulk_store_twice, "cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;\n"
                             "cp.async.bulk.commit_group;\ncp.async.bulk.wait_group 0;\n"
                             "cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], 16;\n"
                             "cp.async.bulk.commit_group;\ncp.async.bulk.commit_group;\n"
                             "cp.async.bulk.wait_group.read 1;\ncp.async.bulk.wait_group 0;")

// Each block of a cluster sends a part of its memory to another, which keeps it, or combines it with what it has.
#define BULK_SEND(NAME, TO, COPY, OP)                                                                      \
    __global__ void __cluster_dims__(BULK_CLUSTER, 1, 1)                                                   \
        NAME##_kernel(u8 *out, const u8 *in, const struct bulk_case *cases)                                \
    {                                                                                                      \
        __shared__ __align__(128) u8 smem[BULK_BYTES], box[BULK_BYTES];                                    \
        __shared__ __align__(8) u64 bar;                                                                   \
        const u32 rank = blockIdx.x % BULK_CLUSTER, to = TO, sender = (rank + (rank - to)) % BULK_CLUSTER; \
        const struct bulk_case c = cases[rank], expected = cases[sender];                                  \
        u32 box_addr, bar_addr;                                                                            \
        for (int i = threadIdx.x; i < BULK_BYTES; i += blockDim.x) box[i] = in[BULK_BYTES + i];            \
        if (threadIdx.x == 0) bar_init(&bar, 1);                                                           \
        bulk_fill(smem, in + rank * 1024);                                                                 \
        cluster_sync();                                                                                    \
        asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(box_addr) : "r"(smem_addr(box)), "r"(to));       \
        asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(bar_addr) : "r"(smem_addr(&bar)), "r"(to));      \
        if (threadIdx.x == 0) {                                                                            \
            bar_expect(&bar, expected.bytes & ~15u);                                                       \
            asm volatile(COPY ".shared::cluster.shared::cta.mbarrier::complete_tx::bytes" OP               \
                              " [%0], [%1], %2, [%3];" ::"r"(box_addr + c.to),                             \
                         "r"(smem_addr(smem) + c.from), "r"(c.bytes), "r"(bar_addr)                        \
                         : "memory");                                                                      \
        }                                                                                                  \
        const bool done = bar_wait(&bar, 0);                                                               \
        for (int i = threadIdx.x; i < BULK_BYTES; i += blockDim.x)                                         \
            out[blockIdx.x * BULK_BYTES + i] = done ? box[i] : 0xee;                                       \
        cluster_sync();                                                                                    \
    }                                                                                                      \
    BULK_VARIANT(NAME, BULK_CLUSTER, BULK_CLUSTER *BULK_BYTES)
BULK_SEND(bulk_send_next, (rank + 1) % BULK_CLUSTER, "cp.async.bulk", "")
BULK_SEND(bulk_send_last, (rank + 3) % BULK_CLUSTER, "cp.async.bulk", "")
BULK_SEND(bulk_send_self, rank, "cp.async.bulk", "")
#define BULK_COMBINE(NAME, OP) \
    BULK_SEND(bulk_send_##NAME, (rank + 1) % BULK_CLUSTER, "cp.reduce.async.bulk", OP)
BULK_COMBINE(add_u32, ".add.u32")
BULK_COMBINE(add_s32, ".add.s32")
BULK_COMBINE(add_u64, ".add.u64")
BULK_COMBINE(inc_u32, ".inc.u32")
BULK_COMBINE(dec_u32, ".dec.u32")
BULK_COMBINE(min_u32, ".min.u32")
BULK_COMBINE(max_u32, ".max.u32")
BULK_COMBINE(min_s32, ".min.s32")
BULK_COMBINE(max_s32, ".max.s32")
BULK_COMBINE(and_b32, ".and.b32")
BULK_COMBINE(or_b32, ".or.b32")
BULK_COMBINE(xor_b32, ".xor.b32")

// ---- Reductions -------------------------------------------------------------------------------------------------------

// BULK_REDUCE(name, PTX of operation and type, size, inputs): 2 KB of elements
#define BULK_REDUCE(NAME, OP, SIZE, VALUES)                                              \
    __global__ void NAME##_kernel(u8 *out, const u8 *in)                                 \
    {                                                                                    \
        __shared__ __align__(128) u8 smem[BULK_BYTES];                                   \
        bulk_fill(smem, in);                                                             \
        if (threadIdx.x) return;                                                         \
        asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group." OP            \
                     " [%0], [%1], 2048;" ::"l"(out),                                    \
                     "r"(smem_addr(smem))                                                \
                     : "memory");                                                        \
        COMMIT;                                                                          \
        WAIT_ALL;                                                                        \
    }                                                                                    \
    static void NAME##_launch(u8 *out, u8 *const *in)                                    \
    {                                                                                    \
        CUDA_CHECK(cudaMemcpy(out, in[2], 2048, cudaMemcpyDeviceToDevice));              \
        NAME##_kernel<<<1, 64>>>(out, in[0]);                                            \
    }                                                                                    \
    static const struct bulk_form NAME##_form = {SIZE, VALUES};                          \
    VARIANT(NAME, draw_bulk_values, NAME##_launch, &NAME##_form, 2048, SIZE, BULK_BYTES, \
            sizeof(struct bulk_case), 2048)
#define BULK_MINMAX(TYPE, SIZE, VALUES)                      \
    BULK_REDUCE(bulk_min_##TYPE, "min." #TYPE, SIZE, VALUES) \
    BULK_REDUCE(bulk_max_##TYPE, "max." #TYPE, SIZE, VALUES)
#define BULK_LOGIC(TYPE, SIZE, VALUES)                       \
    BULK_REDUCE(bulk_and_##TYPE, "and." #TYPE, SIZE, VALUES) \
    BULK_REDUCE(bulk_or_##TYPE, "or." #TYPE, SIZE, VALUES)   \
    BULK_REDUCE(bulk_xor_##TYPE, "xor." #TYPE, SIZE, VALUES)
BULK_REDUCE(bulk_add_u32, "add.u32", 4, INT32)
BULK_REDUCE(bulk_add_s32, "add.s32", 4, INT32)
BULK_REDUCE(bulk_add_u64, "add.u64", 8, INT64)
BULK_REDUCE(bulk_add_f32, "add.f32", 4, F32)
BULK_REDUCE(bulk_add_f64, "add.f64", 8, F64)
BULK_REDUCE(bulk_add_f16, "add.noftz.f16", 2, F16)
BULK_REDUCE(bulk_add_bf16, "add.noftz.bf16", 2, BF16)
BULK_REDUCE(bulk_inc_u32, "inc.u32", 4, INT32)
BULK_REDUCE(bulk_dec_u32, "dec.u32", 4, INT32)
BULK_MINMAX(u32, 4, INT32)
BULK_MINMAX(s32, 4, INT32)
BULK_MINMAX(u64, 8, INT64)
BULK_MINMAX(s64, 8, INT64)
BULK_MINMAX(f16, 2, F16)
BULK_MINMAX(bf16, 2, BF16)
BULK_LOGIC(b32, 4, INT32)
BULK_LOGIC(b64, 8, INT64)

// ---- Multicast and the other forms of tensor copies -------------------------------------------------------------------

// Blocks of a cluster load parts of a matrix for some of them: block r for the ranks of mask r. inputs[1] is the 1st case.
struct tma_params {
    CUtensorMap map;
};
__global__ void __cluster_dims__(BULK_CLUSTER, 1, 1)
    multicast_kernel(const __grid_constant__ struct tma_params p, u8 *out, const u8 *in, u32 masks,
                     bool tensor)
{
    __shared__ __align__(1024) u8 tile[BULK_CLUSTER][1024];
    __shared__ __align__(8) u64 bar;
    const u32 rank = blockIdx.x % BULK_CLUSTER;
    u32 expected = 0;
    for (int i = threadIdx.x; i < (int)sizeof tile; i += blockDim.x) tile[0][i] = 0xab;
    for (u32 r = 0; r < BULK_CLUSTER; r++) expected += masks >> (8 * r + rank) & 1 ? 1024 : 0;
    if (threadIdx.x == 0) {
        bar_init(&bar, 1);
        bar_expect(&bar, expected);
    }
    PROXY_FENCE;
    cluster_sync();
    const u32 mask = masks >> 8 * rank & 0xff;
    if (threadIdx.x == 0 && mask) {
        if (tensor)
            asm volatile(
                "prefetch.tensormap [%1];\n"
                "cp.async.bulk.prefetch.tensor.2d.L2.global.tile [%1, {%2, %3}];\n"
                "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster "
                "[%0], [%1, {%2, %3}], [%4], %5;" ::"r"(smem_addr(tile[rank])),
                "l"(&p.map), "r"(0), "r"(16 * rank), "r"(smem_addr(&bar)), "h"((u16)mask)
                : "memory");
        else
            asm volatile(
                "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1], "
                "1024, [%2], %3;" ::"r"(smem_addr(tile[rank])),
                "l"(in + 1024 * rank), "r"(smem_addr(&bar)), "h"((u16)mask)
                : "memory");
    }
    const bool done = bar_wait(&bar, 0);
    for (int i = threadIdx.x; i < (int)sizeof tile; i += blockDim.x)
        out[blockIdx.x * sizeof tile + i] = done ? tile[0][i] : 0xee;
    cluster_sync();
}

struct multicast_form {
    u32 masks;
    bool tensor;
};
static void draw_multicast(const struct variant *v, u8 **inputs)
{
    struct tma_case *c = (struct tma_case *)inputs[1];
    draw_numbers(inputs[0], v->input_bytes[0]);
    *c = {2, CU_TENSOR_MAP_DATA_TYPE_UINT32, 2, 0, {20, 60}, {4, 80}, {16, 16}, {1, 1}};
}
static void multicast_launch(u8 *out, u8 *const *in)
{
    const struct multicast_form *f = (const struct multicast_form *)running->about;
    static struct tma_params p;
    tma_map(&p.map, (const struct tma_case *)host_inputs[1], in[0]);
    multicast_kernel<<<2 * BULK_CLUSTER, 64>>>(p, out, in[0], f->masks, f->tensor);
}
// MULTICAST(name, masks of ranks 3 2 1 0, tensor)
#define MULTICAST(NAME, MASKS, TENSOR)                                                                       \
    static const struct multicast_form NAME##_form = {MASKS, TENSOR};                                        \
    VARIANT(NAME, draw_multicast, multicast_launch, &NAME##_form, 2 * BULK_CLUSTER * BULK_CLUSTER * 1024, 4, \
            8192, sizeof(struct tma_case))
MULTICAST(tma_multicast_all, 0x0f0f0f0f, true)
MULTICAST(tma_multicast_one, 0x01020408, true)
MULTICAST(tma_multicast_some, 0x0603090c, true)
MULTICAST(tma_multicast_from_one, 0x00000f00, true)
MULTICAST(bulk_multicast_all, 0x0f0f0f0f, false)
MULTICAST(bulk_multicast_one, 0x01020408, false)
MULTICAST(bulk_multicast_some, 0x0603090c, false)

// Each block loads a box, or 1 KB without a map, into another block's memory, and that one's mbarrier tells it.
__global__ void __cluster_dims__(BULK_CLUSTER, 1, 1)
    remote_load_kernel(const __grid_constant__ struct tma_params p, u8 *out, const u8 *in, bool tensor)
{
    __shared__ __align__(1024) u8 tile[1024];
    __shared__ __align__(8) u64 bar;
    const u32 rank = blockIdx.x % BULK_CLUSTER, to = (rank + 3) % BULK_CLUSTER;
    u32 tile_addr, bar_addr;
    if (threadIdx.x == 0) {
        bar_init(&bar, 1);
        bar_expect(&bar, 1024);
    }
    cluster_sync();
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(tile_addr) : "r"(smem_addr(tile)), "r"(to));
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(bar_addr) : "r"(smem_addr(&bar)), "r"(to));
    if (threadIdx.x == 0 && tensor)
        asm volatile(
            "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], "
            "[%4];" ::"r"(tile_addr),
            "l"(&p.map), "r"(4), "r"(16 * blockIdx.x), "r"(bar_addr)
            : "memory");
    else if (threadIdx.x == 0)
        asm volatile(
            "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], 1024, [%2];" ::"r"(
                tile_addr),
            "l"(in + 1024 * blockIdx.x), "r"(bar_addr)
            : "memory");
    const bool done = bar_wait(&bar, 0);
    for (int i = threadIdx.x; i < 1024; i += blockDim.x) out[blockIdx.x * 1024 + i] = done ? tile[i] : 0xee;
    cluster_sync();
}
static void remote_load_launch(u8 *out, u8 *const *in)
{
    const struct multicast_form *f = (const struct multicast_form *)running->about;
    static struct tma_params p;
    tma_map(&p.map, (const struct tma_case *)host_inputs[1], in[0]);
    remote_load_kernel<<<2 * BULK_CLUSTER, 64>>>(p, out, in[0], f->tensor);
}
#define REMOTE_LOAD(NAME, TENSOR)                                                                     \
    static const struct multicast_form NAME##_form = {0, TENSOR};                                     \
    VARIANT(NAME, draw_multicast, remote_load_launch, &NAME##_form, 2 * BULK_CLUSTER * 1024, 4, 8192, \
            sizeof(struct tma_case))
REMOTE_LOAD(tma_load_for_another_block, true)
REMOTE_LOAD(bulk_load_for_another_block, false)

// A 2-d box in and out again, with the map as a parameter; the load's and the store's other spellings.
__global__ void tma_param_kernel(const __grid_constant__ struct tma_params p, u8 *out, int form)
{
    __shared__ __align__(1024) u8 tile[1024];
    __shared__ __align__(8) u64 bar;
    u64 policy;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    if (threadIdx.x == 0) bar_init(&bar, 1);
    PROXY_FENCE;
    __syncthreads();
    if (threadIdx.x == 0) {
        bar_expect(&bar, 1024);
#define PARAM_LOAD(PTX)                                                                                      \
    asm volatile(PTX ::"r"(smem_addr(tile)), "l"(&p.map), "r"(8), "r"(16), "r"(smem_addr(&bar)), "l"(policy) \
                 : "memory")
        if (form == 0)
            PARAM_LOAD(
                "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, "
                "{%2, %3}], [%4];");
        else if (form == 1)
            PARAM_LOAD("cp.async.bulk.tensor.2d.shared::cta.global.mbarrier::complete_tx::bytes [%0], [%1, "
                       "{%2, %3}], [%4];");
        else
            PARAM_LOAD(
                "cp.async.bulk.prefetch.tensor.2d.L2.global.tile.L2::cache_hint [%1, {%2, %3}], %5;\n"
                "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint "
                "[%0], [%1, {%2, %3}], [%4], %5;");
    }
    const bool done = bar_wait(&bar, 0);
    for (int i = threadIdx.x; i < 1024; i += blockDim.x) out[i] = done ? tile[i] : 0xee;
    __syncthreads();
    if (threadIdx.x) return;
#define PARAM_STORE(PTX) \
    asm volatile(PTX ::"r"(smem_addr(tile)), "l"(&p.map), "r"(0), "r"(40), "l"(policy) : "memory")
    if (form == 0)
        PARAM_STORE("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%1, {%2, %3}], [%0];");
    else if (form == 1)
        PARAM_STORE("cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.bulk_group [%1, {%2, %3}], [%0];");
    else
        PARAM_STORE(
            "cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group.L2::cache_hint [%1, {%2, %3}], [%0], "
            "%4;");
    COMMIT;
    WAIT_ALL;
}
static void tma_param_launch(u8 *out, u8 *const *in)
{
    static struct tma_params p;
    tma_map(&p.map, (const struct tma_case *)host_inputs[1], in[0]);
    tma_param_kernel<<<1, 64>>>(p, out, *(const int *)running->about);
    CUDA_CHECK(cudaMemcpy(out + 1024, in[0], 8192, cudaMemcpyDeviceToDevice)); // what the store left
}
#define TMA_PARAM(NAME, FORM)                                                           \
    static const int NAME##_form = FORM;                                                \
    VARIANT(NAME, draw_multicast, tma_param_launch, &NAME##_form, 1024 + 8192, 4, 8192, \
            sizeof(struct tma_case))
TMA_PARAM(tma_param_tile, 0)
TMA_PARAM(tma_param_cta_add, 1)
TMA_PARAM(tma_param_hint, 2)
