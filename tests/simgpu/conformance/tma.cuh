// Tensor copies: loads of every rank, swizzle and element size, out of bounds on every side, with both fills and with element
// strides; stores, and reductions of every type; multicast. A case is one box, and a block moves it.
//
// Where data only moves, each 16-bit half of memory holds its own number: a recording shows where every element came from,
// and is small when packed.
#include <cuda.h>

enum {
    TMA_CASES = 6,
    TMA_BOX_BYTES = 3072,  // the box, at most
    TMA_TILE_BYTES = 4096, // of shared memory, with room before and after the box
    TMA_GLOBAL_BYTES = 65536,
    TMA_OUT_BYTES = 4096 // of global memory that a store may change
};

struct tma_case {
    u32 rank, type, swizzle, fill;
    u64 dim[5], stride[5]; // bytes; stride[0] is the element's
    u32 box[5], step[5];
    s32 corner[5];
    u32 place, bytes; // in shared memory; that the mbarrier will count
    u32 offset;       // of the tensor in its memory: tensormap.cuh
};

struct tma_form {
    u32 rank, type, swizzle, fill;
    bool far, strided; // corners as far out as there are; element strides
    int op;            // of a store: 0 none, else the reduction
    enum input_kind values;
};

// By CUtensorMapDataType
static const u8 tma_bytes[] = {1, 2, 4, 4, 8, 8, 2, 4, 8, 2, 4, 4, 4};

// ---- Maps -------------------------------------------------------------------------------------------------------------

typedef CUresult (*tma_encode_fn)(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *, const cuuint64_t *,
                                  const cuuint64_t *, const cuuint32_t *, const cuuint32_t *,
                                  CUtensorMapInterleave, CUtensorMapSwizzle, CUtensorMapL2promotion,
                                  CUtensorMapFloatOOBfill);

static tma_encode_fn tma_encoder(void)
{
    static void *function;
    cudaDriverEntryPointQueryResult found;
    if (!function)
        CUDA_CHECK(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000,
                                                    cudaEnableDefault, &found));
    return (tma_encode_fn)function;
}

static void tma_map(CUtensorMap *map, const struct tma_case *c, void *base)
{
    const CUresult result = tma_encoder()(
        map, (CUtensorMapDataType)c->type, c->rank, base, (const cuuint64_t *)c->dim,
        (const cuuint64_t *)c->stride + 1, c->box, c->step, CU_TENSOR_MAP_INTERLEAVE_NONE,
        (CUtensorMapSwizzle)c->swizzle, CU_TENSOR_MAP_L2_PROMOTION_NONE, (CUtensorMapFloatOOBfill)c->fill);
    if (result != CUDA_SUCCESS) {
        printf("%s: cuTensorMapEncodeTiled returned %d\n", running->name, (int)result);
        exit(1);
    }
}

// ---- Cases ------------------------------------------------------------------------------------------------------------

// The rows of a box in shared memory are as wide as its swizzle.
static u32 tma_pitch(const struct tma_case *c)
{
    return c->swizzle ? 16u << c->swizzle : c->box[0] * tma_bytes[c->type];
}

// A tensor of at most `room` bytes, and a box of it.
static struct tma_case draw_box(const struct tma_form *f, u32 room)
{
    struct tma_case c = {.rank = f->rank, .type = f->type, .swizzle = f->swizzle, .fill = f->fill};
    const u32 bytes = tma_bytes[f->type], most = f->swizzle ? 16u << f->swizzle : 128;
    c.box[0] = 16 * (1 + (u32)random_u64() % (most / 16)) / bytes;
    c.dim[0] = 1 + random_u64() % (f->rank < 4 ? 3 * c.box[0] : c.box[0] + 8 / bytes);
    c.stride[0] = bytes;
    c.step[0] = 1;
    u64 size = (c.dim[0] * bytes + 15) / 16 * 16;
    u32 rows = TMA_BOX_BYTES / tma_pitch(&c);
    c.bytes = c.box[0] * bytes;
    for (u32 d = 1; d < f->rank; d++) {
        c.stride[d] = size;
        c.dim[d] = 1 + random_u64() % (f->rank == 2 ? 12 : 4);
        if (size * c.dim[d] > room) c.dim[d] = 1;
        size *= c.dim[d];
        c.step[d] = f->strided ? 1 + (u32)random_u64() % 8 : 1;
        c.box[d] = 1 + (u32)random_u64() % (f->rank == 2 ? 20 : 6);
        if (c.box[d] > rows) c.box[d] = rows;
        rows /= c.box[d];
        c.bytes *= (c.box[d] + c.step[d] - 1) / c.step[d];
    }
    return c;
}

// Moves the box out of bounds on the side that case n is for: dimension n % rank, below and above in turn.
static void draw_load_corner(const struct tma_form *f, struct tma_case *c, int n)
{
    const s32 piece = 16 / tma_bytes[f->type];
    for (u32 d = 0; d < f->rank; d++) {
        const s32 r = (s32)(random_u64() % 1000), end = (s32)c->dim[d], box = (s32)c->box[d];
        s32 x = r % 3 ? 0 : r % 7 - 3;
        if (n && d == (u32)n % f->rank) x = n / (int)f->rank % 2 ? end - r % box : -(r % (box + 1));
        if (f->far) x = n % 2 ? INT32_MAX - r : INT32_MIN + r;
        if (f->far && d != (u32)n % f->rank) x = 0;
        c->corner[d] = d ? x : x / piece * piece;
    }
}

static void draw_store_corner(const struct tma_form *f, struct tma_case *c, int n)
{
    const s32 piece = 16 / tma_bytes[f->type];
    for (u32 d = 0; d < f->rank; d++) {
        s32 x = n && d == (u32)n % f->rank ? (s32)(random_u64() % (c->dim[d] + 1)) : (s32)(random_u64() % 2);
        if (f->far && d == (u32)n % f->rank) x = INT32_MAX - (s32)(random_u64() % 5);
        c->corner[d] = d ? x : x / piece * piece;
    }
}

static void draw_numbers(u8 *bytes, size_t count)
{
    for (size_t i = 0; i < count; i++) bytes[i] = (u8)(i % 2 ? i >> 9 : i >> 1);
}
static void draw_values(u8 *bytes, size_t count, u32 size, enum input_kind kind)
{
    for (size_t i = 0; i < count; i += size) {
        const u64 x = draw(kind);
        memcpy(bytes + i, &x, size);
    }
}

// inputs: the tensor, the cases
static void draw_loads(const struct variant *v, u8 **inputs)
{
    const struct tma_form *f = (const struct tma_form *)v->about;
    struct tma_case *cases = (struct tma_case *)inputs[1];
    for (int n = 0; n < TMA_CASES; n++) {
        cases[n] = draw_box(f, TMA_GLOBAL_BYTES);
        draw_load_corner(f, &cases[n], n);
        cases[n].place = 128 * (u32)(random_u64() % 8);
    }
    if (f->values == UNUSED)
        draw_numbers(inputs[0], TMA_GLOBAL_BYTES);
    else
        draw_values(inputs[0], TMA_GLOBAL_BYTES, tma_bytes[f->type], f->values);
}

// inputs: shared memory, the cases, global memory as it was before
static void draw_stores(const struct variant *v, u8 **inputs)
{
    const struct tma_form *f = (const struct tma_form *)v->about;
    struct tma_case *cases = (struct tma_case *)inputs[1];
    const u32 size = tma_bytes[f->type];
    for (int n = 0; n < (int)(v->input_bytes[1] / sizeof *cases); n++) {
        cases[n] = draw_box(f, TMA_OUT_BYTES);
        draw_store_corner(f, &cases[n], n);
        cases[n].place = 128 * (u32)(random_u64() % 8);
    }
    if (f->values == UNUSED) {
        draw_numbers(inputs[0], TMA_TILE_BYTES);
        memset(inputs[2], 0x5a, v->input_bytes[2]);
    } else {
        draw_values(inputs[0], TMA_TILE_BYTES, size, f->values);
        draw_values(inputs[2], v->input_bytes[2], size, f->values);
    }
}

// ---- Device -----------------------------------------------------------------------------------------------------------

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
// Waits, but not for ever: a GPU gives up after a few milliseconds. True: the phase is over.
__device__ static bool bar_wait(u64 *barrier, u32 parity)
{
    const u32 bar = smem_addr(barrier);
    for (int tries = 0; tries < 2000; tries++)
        if (MB_WAIT("mbarrier.try_wait.parity.shared::cta.b64", "r", parity)) return true;
    return false;
}
__device__ static void cluster_sync()
{
    asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}
#define PROXY_FENCE asm volatile("fence.proxy.async.shared::cta;" ::: "memory")
// The host has just written this map in global memory.
#define MAP_FENCE(MAP) \
    asm volatile("fence.proxy.tensormap::generic.acquire.gpu [%0], 128;" ::"l"(MAP) : "memory")
#define COMMIT    asm volatile("cp.async.bulk.commit_group;" ::: "memory")
#define WAIT_READ asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory")
#define WAIT_ALL  asm volatile("cp.async.bulk.wait_group 0;" ::: "memory")

// RANKS(PTX before, after, operands that come first): the instruction for each rank; %0, %1, %2 come first, then 5 coordinates.
#define FOR_RANK(BEFORE, AFTER, X, Y, Z)                                     \
    switch (c.rank) {                                                        \
    case 1: RANK_ASM(BEFORE "1d" AFTER, "{%3}", X, Y, Z); break;             \
    case 2: RANK_ASM(BEFORE "2d" AFTER, "{%3, %4}", X, Y, Z); break;         \
    case 3: RANK_ASM(BEFORE "3d" AFTER, "{%3, %4, %5}", X, Y, Z); break;     \
    case 4: RANK_ASM(BEFORE "4d" AFTER, "{%3, %4, %5, %6}", X, Y, Z); break; \
    default: RANK_ASM(BEFORE "5d" AFTER, "{%3, %4, %5, %6, %7}", X, Y, Z);   \
    }

// RANK_ASM of a prefetch, which has one operand and the coordinates
#define RANK_PREFETCH(RANK, LIST)                                                                         \
    asm volatile("cp.async.bulk.prefetch.tensor." RANK ".L2.global.tile [%0, " LIST "];" ::"l"(map),      \
                 "r"(c.corner[0]), "r"(c.corner[1]), "r"(c.corner[2]), "r"(c.corner[3]), "r"(c.corner[4]) \
                 : "memory")
__device__ static void tma_prefetch_box(const CUtensorMap *map, const struct tma_case &c)
{
    switch (c.rank) {
    case 1: RANK_PREFETCH("1d", "{%1}"); break;
    case 2: RANK_PREFETCH("2d", "{%1, %2}"); break;
    case 3: RANK_PREFETCH("3d", "{%1, %2, %3}"); break;
    case 4: RANK_PREFETCH("4d", "{%1, %2, %3, %4}"); break;
    default: RANK_PREFETCH("5d", "{%1, %2, %3, %4, %5}");
    }
}

// Fills the tile, loads a box into it and copies all of it out, and last what the wait said. The first thread has made sure
// that it sees the map.
__device__ static void tma_load_box(u8 *out, const CUtensorMap *map, const struct tma_case &c)
{
    extern __shared__ __align__(1024) u8 smem[];
    __shared__ __align__(8) u64 bar;
    for (int i = threadIdx.x; i < TMA_TILE_BYTES; i += blockDim.x) smem[i] = 0xab;
    if (threadIdx.x == 0) bar_init(&bar, 1);
    PROXY_FENCE;
    __syncthreads();
    if (threadIdx.x == 0) {
        bar_expect(&bar, c.bytes);
#define RANK_ASM(BEFORE, LIST, X, Y, Z)                                                               \
    asm volatile(BEFORE " [%0], [%1, " LIST "], [%2];" ::X, Y, Z, "r"(c.corner[0]), "r"(c.corner[1]), \
                 "r"(c.corner[2]), "r"(c.corner[3]), "r"(c.corner[4])                                 \
                 : "memory")
        FOR_RANK("cp.async.bulk.tensor.", ".shared::cluster.global.mbarrier::complete_tx::bytes",
                 "r"(smem_addr(smem) + c.place), "l"(map), "r"(smem_addr(&bar)))
#undef RANK_ASM
    }
    const bool done = bar_wait(&bar, 0);
    for (int i = threadIdx.x; i < TMA_TILE_BYTES / 4; i += blockDim.x) ((u32 *)out)[i] = ((u32 *)smem)[i];
    if (threadIdx.x == 0) *(u32 *)(out + TMA_TILE_BYTES) = done;
    __syncthreads();
    if (threadIdx.x == 0)
        asm volatile("mbarrier.inval.shared::cta.b64 [%0];" ::"r"(smem_addr(&bar)) : "memory");
    __syncthreads();
}

// The box of case blockIdx.x
template <bool PREFETCH>
__global__ void tma_load_kernel(u8 *out, const CUtensorMap *maps, const struct tma_case *cases)
{
    const struct tma_case c = cases[blockIdx.x];
    if (threadIdx.x == 0) MAP_FENCE(maps + blockIdx.x);
    if (PREFETCH && threadIdx.x == 0) tma_prefetch_box(maps + blockIdx.x, c);
    tma_load_box(out + blockIdx.x * (TMA_TILE_BYTES + 4), maps + blockIdx.x, c);
}

enum { TMA_STORE, TMA_ADD, TMA_MIN, TMA_MAX, TMA_INC, TMA_DEC, TMA_AND, TMA_OR, TMA_XOR };

// A box goes out, or is combined with what is there.
__device__ static void tma_store_box(const CUtensorMap *map, const struct tma_case &c, const u8 *in, int op)
{
    extern __shared__ __align__(1024) u8 smem[];
    for (int i = threadIdx.x; i < TMA_TILE_BYTES; i += blockDim.x) smem[i] = in[i];
    PROXY_FENCE;
    __syncthreads();
    if (threadIdx.x) return;
    const u32 from = smem_addr(smem) + c.place;
#define RANK_ASM(BEFORE, LIST, X, Y, Z)                                                         \
    asm volatile(BEFORE " [%0, " LIST "], [%1];" ::X, Y, Z, "r"(c.corner[0]), "r"(c.corner[1]), \
                 "r"(c.corner[2]), "r"(c.corner[3]), "r"(c.corner[4])                           \
                 : "memory")
#define TMA_REDUCE(OP)                                                                               \
    FOR_RANK("cp.reduce.async.bulk.tensor.", ".global.shared::cta." OP ".tile.bulk_group", "l"(map), \
             "r"(from), "r"(0))                                                                      \
    break
    switch (op) {
    case TMA_STORE:
        FOR_RANK("cp.async.bulk.tensor.", ".global.shared::cta.tile.bulk_group", "l"(map), "r"(from), "r"(0))
        break;
    case TMA_ADD: TMA_REDUCE("add");
    case TMA_MIN: TMA_REDUCE("min");
    case TMA_MAX: TMA_REDUCE("max");
    case TMA_INC: TMA_REDUCE("inc");
    case TMA_DEC: TMA_REDUCE("dec");
    case TMA_AND: TMA_REDUCE("and");
    case TMA_OR: TMA_REDUCE("or");
    default: TMA_REDUCE("xor");
    }
#undef RANK_ASM
    COMMIT;
    WAIT_READ;
    WAIT_ALL;
}

__global__ void tma_store_kernel(const CUtensorMap *maps, const struct tma_case *cases, const u8 *in, int op)
{
    if (threadIdx.x == 0) MAP_FENCE(maps + blockIdx.x);
    tma_store_box(maps + blockIdx.x, cases[blockIdx.x], in, op);
}

// ---- Variants ---------------------------------------------------------------------------------------------------------

// The maps of all cases, in global memory; the tensor of case n is at base + n * apart.
static CUtensorMap *tma_maps(u8 *base, size_t apart)
{
    const struct tma_case *cases = (const struct tma_case *)host_inputs[1];
    const size_t count = running->input_bytes[1] / sizeof *cases;
    static CUtensorMap host[64], *device;
    for (size_t n = 0; n < count; n++) tma_map(&host[n], &cases[n], base + n * apart);
    if (!device) CUDA_CHECK(cudaMalloc((void **)&device, sizeof host));
    CUDA_CHECK(cudaMemcpy(device, host, count * sizeof *host, cudaMemcpyHostToDevice));
    return device;
}

static void tma_load_launch(u8 *out, u8 *const *in)
{
    tma_load_kernel<false>
        <<<TMA_CASES, 64, TMA_TILE_BYTES>>>(out, tma_maps(in[0], 0), (struct tma_case *)in[1]);
}
static void tma_prefetch_launch(u8 *out, u8 *const *in)
{
    tma_load_kernel<true>
        <<<TMA_CASES, 64, TMA_TILE_BYTES>>>(out, tma_maps(in[0], 0), (struct tma_case *)in[1]);
}
static void tma_store_launch(u8 *out, u8 *const *in)
{
    const struct tma_form *f = (const struct tma_form *)running->about;
    const u32 count = (u32)(running->input_bytes[1] / sizeof(struct tma_case));
    CUDA_CHECK(cudaMemcpy(out, in[2], running->out_bytes, cudaMemcpyDeviceToDevice));
    tma_store_kernel<<<count, 64, TMA_TILE_BYTES>>>(tma_maps(out, TMA_OUT_BYTES), (struct tma_case *)in[1],
                                                    in[0], f->op);
}

#define TMA_LOAD(NAME, RANK, TYPE, SWIZZLE, FILL, FAR, STRIDED, VALUES)                          \
    static const struct tma_form NAME##_form = {                                                 \
        RANK, CU_TENSOR_MAP_DATA_TYPE_##TYPE, SWIZZLE, FILL, FAR, STRIDED, 0, VALUES};           \
    VARIANT(NAME, draw_loads, tma_load_launch, &NAME##_form, TMA_CASES *(TMA_TILE_BYTES + 4), 4, \
            TMA_GLOBAL_BYTES, TMA_CASES * sizeof(struct tma_case))
#define TMA_OUT(NAME, RANK, TYPE, SWIZZLE, FAR, STRIDED, OP, VALUES, CASES)                              \
    static const struct tma_form NAME##_form = {                                                         \
        RANK, CU_TENSOR_MAP_DATA_TYPE_##TYPE, SWIZZLE, 0, FAR, STRIDED, TMA_##OP, VALUES};               \
    VARIANT(NAME, draw_stores, tma_store_launch, &NAME##_form, (CASES)*TMA_OUT_BYTES, 4, TMA_TILE_BYTES, \
            (CASES) * sizeof(struct tma_case), (CASES)*TMA_OUT_BYTES)

#define TMA_SIZES(RANK, SWIZZLE, SUFFIX)                                                           \
    TMA_LOAD(tma_load_##RANK##d_u8_##SUFFIX, RANK, UINT8, SWIZZLE, 0, 0, 0, UNUSED)                \
    TMA_LOAD(tma_load_##RANK##d_u16_##SUFFIX, RANK, UINT16, SWIZZLE, 0, 0, 0, UNUSED)              \
    TMA_LOAD(tma_load_##RANK##d_u32_##SUFFIX, RANK, UINT32, SWIZZLE, 0, 0, 0, UNUSED)              \
    TMA_LOAD(tma_load_##RANK##d_u64_##SUFFIX, RANK, UINT64, SWIZZLE, 0, 0, 0, UNUSED)              \
    TMA_LOAD(tma_load_##RANK##d_f16_nan_##SUFFIX, RANK, FLOAT16, SWIZZLE, 1, 0, 0, UNUSED)         \
    TMA_LOAD(tma_load_##RANK##d_u16_strided_##SUFFIX, RANK, UINT16, SWIZZLE, 0, 0, 1, UNUSED)      \
    TMA_LOAD(tma_load_##RANK##d_f32_strided_nan_##SUFFIX, RANK, FLOAT32, SWIZZLE, 1, 0, 1, UNUSED) \
    TMA_OUT(tma_store_##RANK##d_u8_##SUFFIX, RANK, UINT8, SWIZZLE, 0, 0, STORE, UNUSED, 6)         \
    TMA_OUT(tma_store_##RANK##d_bf16_##SUFFIX, RANK, BFLOAT16, SWIZZLE, 0, 0, STORE, UNUSED, 6)    \
    TMA_OUT(tma_store_##RANK##d_f32_##SUFFIX, RANK, FLOAT32, SWIZZLE, 0, 0, STORE, UNUSED, 6)      \
    TMA_OUT(tma_store_##RANK##d_s64_##SUFFIX, RANK, INT64, SWIZZLE, 0, 0, STORE, UNUSED, 6)
#define TMA_SWIZZLES(RANK)        \
    TMA_SIZES(RANK, 0, plain)     \
    TMA_SIZES(RANK, 1, swizzle32) \
    TMA_SIZES(RANK, 2, swizzle64) \
    TMA_SIZES(RANK, 3, swizzle128)
TMA_SWIZZLES(1)
TMA_SWIZZLES(2)
TMA_SWIZZLES(3)
TMA_SWIZZLES(4)
TMA_SWIZZLES(5)
TMA_LOAD(tma_load_2d_far, 2, UINT32, 0, 0, 1, 0, UNUSED)
TMA_LOAD(tma_load_5d_far_swizzle128, 5, UINT16, 3, 0, 1, 0, UNUSED)
TMA_OUT(tma_store_2d_far, 2, UINT32, 0, 1, 0, STORE, UNUSED, 6)
TMA_OUT(tma_store_3d_strided, 3, UINT32, 0, 0, 1, STORE, UNUSED, 6)
TMA_OUT(tma_store_2d_strided_swizzle64, 2, UINT16, 2, 0, 1, STORE, UNUSED, 6)

// What each type of element becomes, and the fills.
#define TMA_TYPE(TYPE, NAME, VALUES)                            \
    TMA_LOAD(tma_load_type_##NAME, 2, TYPE, 0, 0, 0, 0, VALUES) \
    TMA_OUT(tma_store_type_##NAME, 2, TYPE, 0, 0, 0, STORE, VALUES, 1)
#define TMA_FLOAT_TYPE(TYPE, NAME, VALUES) \
    TMA_TYPE(TYPE, NAME, VALUES)           \
    TMA_LOAD(tma_load_type_##NAME##_nan, 2, TYPE, 1, 1, 0, 0, VALUES)
TMA_TYPE(INT32, s32, INT32)
TMA_TYPE(INT64, s64, INT64)
TMA_FLOAT_TYPE(FLOAT16, f16, F16)
TMA_FLOAT_TYPE(FLOAT32, f32, F32)
TMA_FLOAT_TYPE(FLOAT64, f64, F64)
TMA_FLOAT_TYPE(BFLOAT16, bf16, BF16)
TMA_FLOAT_TYPE(FLOAT32_FTZ, f32_ftz, F32)
TMA_FLOAT_TYPE(TFLOAT32, tf32, F32)
TMA_FLOAT_TYPE(TFLOAT32_FTZ, tf32_ftz, F32)

#define TMA_REDUCTION(OP, OP_NAME, TYPE, NAME, VALUES) \
    TMA_OUT(tma_##OP_NAME##_##NAME, 2, TYPE, 3, 0, 0, OP, VALUES, 2)
#define TMA_REDUCE_INTEGER(TYPE, NAME, VALUES)  \
    TMA_REDUCTION(ADD, add, TYPE, NAME, VALUES) \
    TMA_REDUCTION(MIN, min, TYPE, NAME, VALUES) \
    TMA_REDUCTION(MAX, max, TYPE, NAME, VALUES) \
    TMA_REDUCTION(AND, and, TYPE, NAME, VALUES) \
    TMA_REDUCTION(OR, or, TYPE, NAME, VALUES)   \
    TMA_REDUCTION(XOR, xor, TYPE, NAME, VALUES)
TMA_REDUCE_INTEGER(UINT32, u32, INT32)
TMA_REDUCE_INTEGER(INT32, s32, INT32)
TMA_REDUCE_INTEGER(UINT64, u64, INT64)
TMA_REDUCTION(MIN, min, INT64, s64, INT64) // the others trap
TMA_REDUCTION(MAX, max, INT64, s64, INT64)
TMA_REDUCTION(INC, inc, UINT32, u32, INT32)
TMA_REDUCTION(DEC, dec, UINT32, u32, INT32)
TMA_REDUCTION(ADD, add, FLOAT16, f16, F16)
TMA_REDUCTION(MIN, min, FLOAT16, f16, F16)
TMA_REDUCTION(MAX, max, FLOAT16, f16, F16)
TMA_REDUCTION(ADD, add, BFLOAT16, bf16, BF16)
TMA_REDUCTION(MIN, min, BFLOAT16, bf16, BF16)
TMA_REDUCTION(MAX, max, BFLOAT16, bf16, BF16)
TMA_REDUCTION(ADD, add, FLOAT32, f32, F32)
TMA_REDUCTION(ADD, add, FLOAT32_FTZ, f32_ftz, F32)
TMA_REDUCTION(ADD, add, TFLOAT32, tf32, F32)
TMA_REDUCTION(ADD, add, TFLOAT32_FTZ, tf32_ftz, F32)
TMA_REDUCTION(ADD, add, FLOAT64, f64, F64)
#define TMA_REDUCE_RANK(RANK) TMA_OUT(tma_add_##RANK##d_u32, RANK, UINT32, 1, 0, 0, ADD, INT32, 2)
TMA_REDUCE_RANK(1)
TMA_REDUCE_RANK(3)
TMA_REDUCE_RANK(4)
TMA_REDUCE_RANK(5)

// A prefetch of the box comes first, wherever the box lies, and changes nothing.
#define TMA_PREFETCH(RANK)                                                                         \
    static const struct tma_form tma_prefetch_##RANK##d_form = {                                   \
        RANK, CU_TENSOR_MAP_DATA_TYPE_UINT16, 2, 0, 0, 0, 0, UNUSED};                              \
    VARIANT(tma_prefetch_##RANK##d, draw_loads, tma_prefetch_launch, &tma_prefetch_##RANK##d_form, \
            TMA_CASES *(TMA_TILE_BYTES + 4), 4, TMA_GLOBAL_BYTES, TMA_CASES * sizeof(struct tma_case))
TMA_PREFETCH(1)
TMA_PREFETCH(2)
TMA_PREFETCH(3)
TMA_PREFETCH(4)
TMA_PREFETCH(5)
