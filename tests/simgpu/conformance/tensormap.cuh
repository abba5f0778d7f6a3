// Tensor maps that a kernel edits: tensormap.replace of each field and of all, in shared and in global memory, from a map that
// the host made and from zeros; what loads, stores and reductions through the edited map do; the fences, and who edits for
// whom. The bytes of a map are the driver's own affair, so that only what a copy does is recorded.
//
// A case is drawn as in tma.cuh, and is what the map says in the end; another, at the start, differs in the fields to be edited.

enum {
    MAP_RANK = 1,
    MAP_ADDRESS = 2,
    MAP_DIM = 4,
    MAP_STRIDE = 8,
    MAP_BOX = 16,
    MAP_STEP = 32,
    MAP_TYPE = 64,
    MAP_SWIZZLE = 128,
    MAP_FILL = 256,
    MAP_LAYOUT = 512, // interleaved or not: never
    MAP_ALL = 1023,
    MAP_FROM_ZEROS = 1024, // all fields of 128 bytes of zeros
    MAP_STEP_0 = 2048,     // an element stride in dimension 0, which is ignored
    MAP_TWICE = 4096       // the type becomes tf32 before it becomes what it is in the end
};
enum { ANY_TYPE = -1 };
enum map_way { IN_GLOBAL, IN_SHARED, GENERIC_GLOBAL, GENERIC_SHARED };
enum map_scope { SCOPE_GPU, SCOPE_CTA, SCOPE_CLUSTER, SCOPE_SYS };

struct tensormap_form {
    struct tma_form form; // comes first: tma.cuh's functions see no more
    u32 fields;
    enum map_way way;
    enum map_scope scope;
    int from; // the type at the start
};

// What a kernel is told of its maps. The tensor of map n is at base + n * apart.
struct tensormap_job {
    CUtensorMap *maps;
    const struct tma_case *end, *start;
    u8 *base;
    u32 apart, fields;
    enum map_scope scope;
};

// ---- Device -----------------------------------------------------------------------------------------------------------

#define SCOPED(BEFORE, AFTER, ...)                                                            \
    switch (scope) {                                                                          \
    case SCOPE_CTA: asm volatile(BEFORE "cta" AFTER ::__VA_ARGS__ : "memory"); break;         \
    case SCOPE_CLUSTER: asm volatile(BEFORE "cluster" AFTER ::__VA_ARGS__ : "memory"); break; \
    case SCOPE_SYS: asm volatile(BEFORE "sys" AFTER ::__VA_ARGS__ : "memory"); break;         \
    default: asm volatile(BEFORE "gpu" AFTER ::__VA_ARGS__ : "memory");                       \
    }
__device__ static void map_release(const CUtensorMap *map, enum map_scope scope){
    SCOPED("fence.proxy.tensormap::generic.release.", ";", "l"(map))} __device__
    static void map_acquire(const CUtensorMap *map, enum map_scope scope){
        SCOPED("fence.proxy.tensormap::generic.acquire.", " [%0], 128;", "l"(map))} __device__
    static void map_copy(CUtensorMap *map, const u32 *from, enum map_scope scope)
{
    SCOPED("tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.",
           ".sync.aligned [%0], [%1], 128;", "l"(map), "r"(smem_addr(from)))
}

// REPLACE(field, PTX of its type, of its dimension, letter of the value's register, value)
#define REPLACE(FIELD, TYPE, DIM, LETTER, VALUE)                                                           \
    if (WAY == IN_GLOBAL)                                                                                  \
        asm volatile("tensormap.replace.tile." FIELD ".global.b1024." TYPE " [%0]" DIM ", %1;" ::"l"(map), \
                     LETTER(VALUE)                                                                         \
                     : "memory");                                                                          \
    else if (WAY == IN_SHARED)                                                                             \
        asm volatile("tensormap.replace.tile." FIELD ".shared::cta.b1024." TYPE " [%0]" DIM                \
                     ", %1;" ::"r"(smem_addr(map)),                                                        \
                     LETTER(VALUE)                                                                         \
                     : "memory");                                                                          \
    else                                                                                                   \
        asm volatile("tensormap.replace.tile." FIELD ".b1024." TYPE " [%0]" DIM ", %1;" ::"l"(map),        \
                     LETTER(VALUE)                                                                         \
                     : "memory")
#define REPLACE_CASE(FIELD, WHEN, VALUE) \
    case WHEN: REPLACE(FIELD, "b32", "", "n", VALUE); break
// The dimension that the tensor has, and (in PTX) the stride before it
#define REPLACE_DIMENSION(D, BEFORE)                                                               \
    if (D < c.rank) {                                                                              \
        const bool added = D >= rank; /* to a map of lower rank, which may hold anything there */  \
        if (fields & MAP_DIM || added) REPLACE("global_dim", "b32", ", " #D, "r", (u32)c.dim[D]);  \
        if (D && (fields & MAP_STRIDE || added))                                                   \
            REPLACE("global_stride", "b64", ", " #BEFORE, "l", c.stride[D]);                       \
        if (fields & MAP_BOX || added) REPLACE("box_dim", "b32", ", " #D, "r", c.box[D]);          \
        if (fields & MAP_STEP || added) REPLACE("element_stride", "b32", ", " #D, "r", c.step[D]); \
    }

// Makes c of a map of this rank.
template <enum map_way WAY>
__device__ static void map_replace(void *map, const struct tma_case &c, u32 rank, u8 *address, u32 fields)
{
    if (fields & MAP_ADDRESS) REPLACE("global_address", "b64", "", "l", address);
    if (fields & MAP_RANK) REPLACE("rank", "b32", "", "r", c.rank - 1);
    REPLACE_DIMENSION(0, 0)
    REPLACE_DIMENSION(1, 0)
    REPLACE_DIMENSION(2, 1)
    REPLACE_DIMENSION(3, 2)
    REPLACE_DIMENSION(4, 3)
    if (fields & MAP_LAYOUT) REPLACE("interleave_layout", "b32", "", "n", 0);
    if (fields & MAP_TWICE) REPLACE("elemtype", "b32", "", "n", 11);
    if (fields & MAP_TYPE) switch (c.type) { // PTX numbers them in another order
            REPLACE_CASE("elemtype", CU_TENSOR_MAP_DATA_TYPE_UINT8, 0);
            REPLACE_CASE("elemtype", CU_TENSOR_MAP_DATA_TYPE_UINT16, 1);
            REPLACE_CASE("elemtype", CU_TENSOR_MAP_DATA_TYPE_UINT32, 2);
            REPLACE_CASE("elemtype", CU_TENSOR_MAP_DATA_TYPE_INT32, 3);
            REPLACE_CASE("elemtype", CU_TENSOR_MAP_DATA_TYPE_UINT64, 4);
            REPLACE_CASE("elemtype", CU_TENSOR_MAP_DATA_TYPE_INT64, 5);
            REPLACE_CASE("elemtype", CU_TENSOR_MAP_DATA_TYPE_FLOAT16, 6);
            REPLACE_CASE("elemtype", CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 7);
            REPLACE_CASE("elemtype", CU_TENSOR_MAP_DATA_TYPE_FLOAT32_FTZ, 8);
            REPLACE_CASE("elemtype", CU_TENSOR_MAP_DATA_TYPE_FLOAT64, 9);
            REPLACE_CASE("elemtype", CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 10);
            REPLACE_CASE("elemtype", CU_TENSOR_MAP_DATA_TYPE_TFLOAT32, 11);
            REPLACE_CASE("elemtype", CU_TENSOR_MAP_DATA_TYPE_TFLOAT32_FTZ, 12);
        }
    if (fields & MAP_SWIZZLE) switch (c.swizzle) {
            REPLACE_CASE("swizzle_mode", 0, 0);
            REPLACE_CASE("swizzle_mode", 1, 1);
            REPLACE_CASE("swizzle_mode", 2, 2);
            REPLACE_CASE("swizzle_mode", 3, 3);
        }
    if (fields & MAP_FILL) switch (c.fill) {
            REPLACE_CASE("fill_mode", 0, 0);
            REPLACE_CASE("fill_mode", 1, 1);
        }
}

// Warp `editor` of the block makes case n of map m, in place or in shared memory, and releases it.
template <enum map_way WAY>
__device__ static void map_edit(const struct tensormap_job &job, u32 m, u32 n, u32 editor)
{
    __shared__ __align__(128) u32 copy[32];
    const bool copied = WAY == IN_SHARED || WAY == GENERIC_SHARED;
    const u32 t = threadIdx.x - 32 * editor;
    CUtensorMap *const map = job.maps + m;
    if (t >= 32) return;
    if (copied)
        copy[t] = job.fields & MAP_FROM_ZEROS ? 0 : ((u32 *)map)[t];
    else if (job.fields & MAP_FROM_ZEROS)
        ((u32 *)map)[t] = 0;
    __syncwarp();
    if (t == 0)
        map_replace<WAY>(copied ? (void *)copy : (void *)map, job.end[n], job.start[n].rank,
                         job.base + m * job.apart + job.end[n].offset, job.fields);
    __syncwarp();
    if (copied)
        map_copy(map, copy, job.scope);
    else if (t == 0)
        map_release(map, job.scope);
}

template <enum map_way WAY, int EDITOR>
__global__ void tensormap_load_kernel(u8 *out, const __grid_constant__ struct tensormap_job job)
{
    const u32 n = blockIdx.x;
    map_edit<WAY>(job, n, n, EDITOR);
    __syncthreads();
    if (threadIdx.x == 0) map_acquire(job.maps + n, job.scope);
    tma_load_box(out + n * (TMA_TILE_BYTES + 4), job.maps + n, job.end[n]);
}
template <enum map_way WAY>
__global__ void tensormap_store_kernel(const u8 *in, int op, const __grid_constant__ struct tensormap_job job)
{
    const u32 n = blockIdx.x;
    map_edit<WAY>(job, n, n, 0);
    __syncthreads();
    if (threadIdx.x == 0) map_acquire(job.maps + n, job.scope);
    tma_store_box(job.maps + n, job.end[n], in, op);
}

// One map, edited again for every load.
template <enum map_way WAY>
__global__ void tensormap_rounds_kernel(u8 *out, const __grid_constant__ struct tensormap_job job)
{
    for (u32 n = 0; n < TMA_CASES; n++) {
        map_edit<WAY>(job, 0, n, 0);
        if (threadIdx.x == 0) map_acquire(job.maps, job.scope);
        tma_load_box(out + n * (TMA_TILE_BYTES + 4), job.maps, job.end[n]);
    }
}

// Even blocks edit, and the next block loads.
__device__ static u32 map_ready[TMA_CASES];
template <enum map_way WAY>
__global__ void tensormap_blocks_kernel(u8 *out, u32 turn, const __grid_constant__ struct tensormap_job job)
{
    const u32 n = blockIdx.x / 2;
    if (blockIdx.x % 2 == 0) {
        map_edit<WAY>(job, n, n, 0);
        if (threadIdx.x == 0)
            asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(&map_ready[n]), "r"(turn) : "memory");
        return;
    }
    if (threadIdx.x == 0) {
        u32 ready;
        do asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(ready) : "l"(&map_ready[n]) : "memory");
        while (ready != turn);
        map_acquire(job.maps + n, job.scope);
    }
    tma_load_box(out + n * (TMA_TILE_BYTES + 4), job.maps + n, job.end[n]);
}

// ---- Cases ------------------------------------------------------------------------------------------------------------

static u32 below(u32 n)
{
    return (u32)(random_u64() % n);
}

// A map that was once one of tf32 rounds for ever: loads of other types than f32 trap.
static bool type_is_f32(u32 type)
{
    return type == CU_TENSOR_MAP_DATA_TYPE_FLOAT32 || type >= CU_TENSOR_MAP_DATA_TYPE_FLOAT32_FTZ;
}

// Whether the host may make such a map, and a kernel the other of it.
static bool start_is_legal(const struct tma_case *c, const struct tma_case *end, int from)
{
    if (from != ANY_TYPE && c->type != (u32)from) return false;
    if (from == ANY_TYPE && c->type >= CU_TENSOR_MAP_DATA_TYPE_TFLOAT32 && !type_is_f32(end->type))
        return false;
    const u32 width = c->box[0] * tma_bytes[c->type];
    u32 size = width;
    for (u32 d = 1; d < c->rank; d++) size *= c->box[d];
    return width % 16 == 0 && size < 65536 && (!c->swizzle || width <= 16u << c->swizzle) &&
           (!c->fill || c->type >= CU_TENSOR_MAP_DATA_TYPE_FLOAT16);
}

// A map that differs from `end` in these fields, or may.
static struct tma_case draw_start(const struct tma_case *end, u32 fields, int from)
{
    for (;;) {
        struct tma_case c = *end;
        if (fields & MAP_RANK) {
            c.rank = 1 + (end->rank + below(4)) % 5; // another one
            for (u32 d = end->rank; d < c.rank; d++)
                c.dim[d] = 1 + below(4), c.stride[d] = 16 * (1 + below(64)), c.box[d] = c.step[d] = 1;
        }
        if (fields & MAP_ADDRESS) c.offset = 16 * below(64);
        if (fields & MAP_TYPE) c.type = (end->type + 1 + below(12)) % 13;
        if (fields & MAP_SWIZZLE) c.swizzle = (end->swizzle + 1 + below(3)) % 4;
        if (fields & MAP_FILL) c.fill = fields & MAP_TYPE ? below(2) : !end->fill;
        for (u32 d = 0; d < c.rank; d++) {
            if (fields & MAP_DIM) c.dim[d] = 1 + below(64);
            if (fields & MAP_STRIDE && d) c.stride[d] = 16 * (1 + below(64));
            if (fields & MAP_BOX) c.box[d] = d ? 1 + below(8) : 16 * (1 + below(8)) / tma_bytes[c.type];
            if (fields & MAP_STEP) c.step[d] = 1 + below(8);
        }
        if (start_is_legal(&c, end, from)) return c;
    }
}

static void draw_starts(const struct variant *v, u8 **inputs, u32 room)
{
    const struct tensormap_form *f = (const struct tensormap_form *)v->about;
    const u32 fields = f->fields;
    struct tma_case *end = (struct tma_case *)inputs[1], *start = (struct tma_case *)inputs[3];
    for (int n = 0; n < (int)(v->input_bytes[1] / sizeof *end); n++) {
        const u32 last = end[n].rank - 1;
        const u64 size =
            last ? end[n].stride[last] * end[n].dim[last] : (end[n].dim[0] * end[n].stride[0] + 15) / 16 * 16;
        end[n].offset = 16 * below((u32)(size + 1024 < room ? 1024 : room - size) / 16 + 1);
        if (fields & MAP_STEP_0) end[n].step[0] = 2 + below(7);
        start[n] = draw_start(&end[n], fields, f->from);
    }
}
// inputs: the tensor, the cases, none, the cases at the start
static void draw_tensormap_loads(const struct variant *v, u8 **inputs)
{
    draw_loads(v, inputs);
    draw_starts(v, inputs, TMA_GLOBAL_BYTES);
}
// inputs: shared memory, the cases, global memory as it was before, the cases at the start
static void draw_tensormap_stores(const struct variant *v, u8 **inputs)
{
    draw_stores(v, inputs);
    draw_starts(v, inputs, TMA_OUT_BYTES);
}

// ---- Variants ---------------------------------------------------------------------------------------------------------

// The maps of the start, in global memory, and what is to be made of them.
static struct tensormap_job tensormap_begin(u8 *base, u32 apart, u8 *const *in)
{
    const struct tensormap_form *f = (const struct tensormap_form *)running->about;
    const struct tma_case *start = (const struct tma_case *)host_inputs[3];
    static CUtensorMap host[TMA_CASES], *device;
    for (u32 n = 0; n < running->input_bytes[3] / sizeof *start; n++)
        tma_map(&host[n], &start[n], base + n * apart + start[n].offset);
    if (!device) CUDA_CHECK(cudaMalloc((void **)&device, sizeof host));
    CUDA_CHECK(cudaMemcpy(device, host, sizeof host, cudaMemcpyHostToDevice));
    return {device, (struct tma_case *)in[1], (struct tma_case *)in[3], base, apart, f->fields, f->scope};
}
#define ANY_WAY(KERNEL, BLOCKS, ...)                                                                 \
    switch (((const struct tensormap_form *)running->about)->way) {                                  \
    case IN_GLOBAL: KERNEL(IN_GLOBAL)<<<BLOCKS, 64, TMA_TILE_BYTES>>>(__VA_ARGS__); break;           \
    case IN_SHARED: KERNEL(IN_SHARED)<<<BLOCKS, 64, TMA_TILE_BYTES>>>(__VA_ARGS__); break;           \
    case GENERIC_GLOBAL: KERNEL(GENERIC_GLOBAL)<<<BLOCKS, 64, TMA_TILE_BYTES>>>(__VA_ARGS__); break; \
    default: KERNEL(GENERIC_SHARED)<<<BLOCKS, 64, TMA_TILE_BYTES>>>(__VA_ARGS__);                    \
    }
#define LOAD_KERNEL(WAY)       tensormap_load_kernel<WAY, 0>
#define OTHER_WARP_KERNEL(WAY) tensormap_load_kernel<WAY, 1>
#define ROUNDS_KERNEL(WAY)     tensormap_rounds_kernel<WAY>
#define BLOCKS_KERNEL(WAY)     tensormap_blocks_kernel<WAY>
#define STORE_KERNEL(WAY)      tensormap_store_kernel<WAY>

static void tensormap_load(u8 *out, u8 *const *in)
{
    const struct tensormap_job job = tensormap_begin(in[0], 0, in);
    ANY_WAY(LOAD_KERNEL, TMA_CASES, out, job)
}
static void tensormap_other_warp(u8 *out, u8 *const *in)
{
    const struct tensormap_job job = tensormap_begin(in[0], 0, in);
    ANY_WAY(OTHER_WARP_KERNEL, TMA_CASES, out, job)
}
static void tensormap_rounds(u8 *out, u8 *const *in)
{
    const struct tensormap_job job = tensormap_begin(in[0], 0, in);
    ANY_WAY(ROUNDS_KERNEL, 1, out, job)
}
static void tensormap_other_block(u8 *out, u8 *const *in)
{
    const struct tensormap_job job = tensormap_begin(in[0], 0, in);
    static u32 turn;
    turn++;
    ANY_WAY(BLOCKS_KERNEL, 2 * TMA_CASES, out, turn, job)
}
static void tensormap_store(u8 *out, u8 *const *in)
{
    const struct tensormap_form *f = (const struct tensormap_form *)running->about;
    const struct tensormap_job job = tensormap_begin(out, TMA_OUT_BYTES, in);
    CUDA_CHECK(cudaMemcpy(out, in[2], running->out_bytes, cudaMemcpyDeviceToDevice));
    ANY_WAY(STORE_KERNEL, (u32)(running->input_bytes[1] / sizeof(struct tma_case)), in[0], f->form.op, job)
}

#define MAP_FORM(NAME, RANK, TYPE, SWIZZLE, FILL, STRIDED, OP, VALUES, FIELDS, WAY, SCOPE, FROM) \
    static const struct tensormap_form NAME##_form = {                                           \
        {RANK, CU_TENSOR_MAP_DATA_TYPE_##TYPE, SWIZZLE, FILL, false, STRIDED, OP, VALUES},       \
        FIELDS,                                                                                  \
        WAY,                                                                                     \
        SCOPE,                                                                                   \
        FROM};
#define MAP_LOAD_VARIANT(LAUNCH, NAME)                                                            \
    VARIANT(NAME, draw_tensormap_loads, LAUNCH, &NAME##_form, TMA_CASES *(TMA_TILE_BYTES + 4), 4, \
            TMA_GLOBAL_BYTES, TMA_CASES * sizeof(struct tma_case), 0, TMA_CASES * sizeof(struct tma_case))
#define MAP_STORE_VARIANT(NAME, CASES)                                                            \
    VARIANT(NAME, draw_tensormap_stores, tensormap_store, &NAME##_form, (CASES)*TMA_OUT_BYTES, 4, \
            TMA_TILE_BYTES, (CASES) * sizeof(struct tma_case), (CASES)*TMA_OUT_BYTES,             \
            (CASES) * sizeof(struct tma_case))
#define MAP_LOAD(NAME, RANK, TYPE, SWIZZLE, FILL, STRIDED, FIELDS, WAY)                             \
    MAP_FORM(NAME, RANK, TYPE, SWIZZLE, FILL, STRIDED, 0, UNUSED, FIELDS, WAY, SCOPE_GPU, ANY_TYPE) \
    MAP_LOAD_VARIANT(tensormap_load, NAME)

// Each field of a map of each rank
#define MAP_FIELDS(RANK, TYPE, SWIZZLE, WAY, SUFFIX)                                  \
    MAP_LOAD(tensormap_address_##SUFFIX, RANK, TYPE, SWIZZLE, 0, 0, MAP_ADDRESS, WAY) \
    MAP_LOAD(tensormap_dim_##SUFFIX, RANK, TYPE, SWIZZLE, 0, 0, MAP_DIM, WAY)         \
    MAP_LOAD(tensormap_box_##SUFFIX, RANK, TYPE, SWIZZLE, 0, 0, MAP_BOX, WAY)         \
    MAP_LOAD(tensormap_rank_##SUFFIX, RANK, TYPE, SWIZZLE, 0, 0, MAP_RANK, WAY)       \
    MAP_LOAD(tensormap_all_##SUFFIX, RANK, TYPE, SWIZZLE, 0, 1, MAP_ALL, WAY)         \
    MAP_LOAD(tensormap_from_zeros_##SUFFIX, RANK, TYPE, SWIZZLE, 0, 0, MAP_ALL | MAP_FROM_ZEROS, WAY)
#define MAP_STRIDES(RANK, TYPE, SWIZZLE, WAY, SUFFIX)                               \
    MAP_LOAD(tensormap_stride_##SUFFIX, RANK, TYPE, SWIZZLE, 0, 0, MAP_STRIDE, WAY) \
    MAP_LOAD(tensormap_step_##SUFFIX, RANK, TYPE, SWIZZLE, 0, 1, MAP_STEP, WAY)
MAP_FIELDS(1, UINT32, 0, IN_SHARED, 1d_shared)
MAP_FIELDS(2, UINT16, 2, IN_SHARED, 2d_shared)
MAP_FIELDS(3, UINT8, 3, IN_GLOBAL, 3d_global)
MAP_FIELDS(4, UINT64, 1, IN_SHARED, 4d_shared)
MAP_FIELDS(5, UINT16, 0, IN_GLOBAL, 5d_global)
MAP_STRIDES(2, UINT32, 0, IN_SHARED, 2d_shared)
MAP_STRIDES(3, UINT16, 3, IN_GLOBAL, 3d_global)
MAP_STRIDES(4, UINT32, 0, IN_GLOBAL, 4d_global)
MAP_STRIDES(5, UINT16, 2, IN_SHARED, 5d_shared)
MAP_LOAD(tensormap_all_3d_generic_global, 3, UINT16, 2, 0, 1, MAP_ALL, GENERIC_GLOBAL)
MAP_LOAD(tensormap_all_3d_generic_shared, 3, UINT16, 2, 0, 1, MAP_ALL, GENERIC_SHARED)
MAP_LOAD(tensormap_step_0, 2, UINT16, 0, 0, 0, MAP_STEP | MAP_STEP_0, IN_SHARED)
MAP_LOAD(tensormap_swizzle_none, 2, UINT16, 0, 0, 0, MAP_SWIZZLE, IN_SHARED)
MAP_LOAD(tensormap_swizzle_32, 2, UINT16, 1, 0, 0, MAP_SWIZZLE, IN_GLOBAL)
MAP_LOAD(tensormap_swizzle_64, 2, UINT16, 2, 0, 0, MAP_SWIZZLE, IN_SHARED)
MAP_LOAD(tensormap_swizzle_128, 2, UINT16, 3, 0, 0, MAP_SWIZZLE, IN_GLOBAL)
MAP_LOAD(tensormap_fill_zero_f32, 2, FLOAT32, 0, 0, 0, MAP_FILL, IN_SHARED)
MAP_LOAD(tensormap_fill_nan_f16, 2, FLOAT16, 0, 1, 0, MAP_FILL, IN_GLOBAL)
MAP_LOAD(tensormap_fill_nan_f32, 3, FLOAT32, 0, 1, 0, MAP_FILL, IN_SHARED)
MAP_LOAD(tensormap_fill_nan_f64, 2, FLOAT64, 2, 1, 0, MAP_FILL, IN_GLOBAL)
MAP_LOAD(tensormap_fill_nan_bf16, 2, BFLOAT16, 3, 1, 0, MAP_FILL, IN_SHARED)

// Each type of element, in loads; and in additions, where it decides what is added
#define MAP_TYPE_LOAD(NAME, TYPE, VALUES, FIELDS, WAY, FROM)                             \
    MAP_FORM(NAME, 2, TYPE, 0, 0, 0, 0, VALUES, MAP_TYPE | FIELDS, WAY, SCOPE_GPU, FROM) \
    MAP_LOAD_VARIANT(tensormap_load, NAME)
#define MAP_TYPE_ADD(NAME, TYPE, VALUES, FIELDS, WAY, FROM)                                    \
    MAP_FORM(NAME, 2, TYPE, 0, 0, 0, TMA_ADD, VALUES, MAP_TYPE | FIELDS, WAY, SCOPE_GPU, FROM) \
    MAP_STORE_VARIANT(NAME, 1)
#define MAP_ELEMENTS(TYPE, NAME, VALUES, WAY) \
    MAP_TYPE_LOAD(tensormap_type_##NAME, TYPE, VALUES, 0, WAY, ANY_TYPE)
#define MAP_ADD(TYPE, NAME, VALUES, WAY) \
    MAP_TYPE_ADD(tensormap_type_add_##NAME, TYPE, VALUES, 0, WAY, ANY_TYPE)
MAP_ELEMENTS(UINT8, u8, UNUSED, IN_SHARED)
MAP_ELEMENTS(UINT16, u16, UNUSED, IN_GLOBAL)
MAP_ELEMENTS(UINT32, u32, UNUSED, IN_SHARED)
MAP_ELEMENTS(INT32, s32, UNUSED, IN_GLOBAL)
MAP_ELEMENTS(UINT64, u64, UNUSED, IN_SHARED)
MAP_ELEMENTS(INT64, s64, UNUSED, IN_GLOBAL)
MAP_ELEMENTS(FLOAT16, f16, UNUSED, IN_SHARED)
MAP_ELEMENTS(FLOAT32, f32, UNUSED, IN_GLOBAL)
MAP_ELEMENTS(FLOAT64, f64, UNUSED, IN_SHARED)
MAP_ELEMENTS(BFLOAT16, bf16, UNUSED, IN_GLOBAL)
MAP_ELEMENTS(FLOAT32_FTZ, f32_ftz, F32, IN_SHARED)
MAP_ELEMENTS(TFLOAT32, tf32, F32, IN_GLOBAL)
MAP_ELEMENTS(TFLOAT32_FTZ, tf32_ftz, F32, IN_SHARED)
MAP_ADD(UINT32, u32, INT32, IN_SHARED)
MAP_ADD(UINT64, u64, INT64, IN_GLOBAL)
MAP_ADD(FLOAT16, f16, F16, IN_SHARED)
MAP_ADD(BFLOAT16, bf16, BF16, IN_GLOBAL)
MAP_ADD(FLOAT32, f32, F32, IN_SHARED)
MAP_ADD(FLOAT32_FTZ, f32_ftz, F32, IN_GLOBAL)
MAP_ADD(TFLOAT32, tf32, F32, IN_SHARED)
MAP_ADD(FLOAT64, f64, F64, IN_GLOBAL)
// What stays of tf32, and of flushing
#define TF32     CU_TENSOR_MAP_DATA_TYPE_TFLOAT32
#define TF32_FTZ CU_TENSOR_MAP_DATA_TYPE_TFLOAT32_FTZ
#define F32_FTZ  CU_TENSOR_MAP_DATA_TYPE_FLOAT32_FTZ
MAP_TYPE_LOAD(tensormap_type_tf32_to_f32, FLOAT32, F32, 0, IN_SHARED, TF32)
MAP_TYPE_LOAD(tensormap_type_tf32_ftz_to_f32, FLOAT32, F32, 0, IN_GLOBAL, TF32_FTZ)
MAP_TYPE_LOAD(tensormap_type_f32_ftz_to_f32, FLOAT32, F32, 0, IN_SHARED, F32_FTZ)
MAP_TYPE_LOAD(tensormap_type_twice_f32, FLOAT32, F32, MAP_TWICE, IN_SHARED, CU_TENSOR_MAP_DATA_TYPE_UINT32)
MAP_TYPE_ADD(tensormap_type_add_tf32_to_f32, FLOAT32, F32, 0, IN_GLOBAL, TF32)
MAP_TYPE_ADD(tensormap_type_add_tf32_ftz_to_f32, FLOAT32, F32, 0, IN_SHARED, TF32_FTZ)
MAP_TYPE_ADD(tensormap_type_add_f32_ftz_to_f32, FLOAT32, F32, 0, IN_SHARED, F32_FTZ)
MAP_TYPE_ADD(tensormap_type_add_tf32_to_f32_ftz, FLOAT32_FTZ, F32, 0, IN_SHARED, TF32)
MAP_TYPE_ADD(tensormap_type_add_tf32_to_u32, UINT32, INT32, 0, IN_SHARED, TF32)
MAP_TYPE_ADD(tensormap_type_add_tf32_to_f16, FLOAT16, F16, 0, IN_SHARED, TF32)
MAP_TYPE_ADD(tensormap_type_add_twice_f32, FLOAT32, F32, MAP_TWICE, IN_SHARED, CU_TENSOR_MAP_DATA_TYPE_UINT32)

#define MAP_STORE(NAME, RANK, TYPE, SWIZZLE, STRIDED, FIELDS, WAY)                                    \
    MAP_FORM(tensormap_store_##NAME, RANK, TYPE, SWIZZLE, 0, STRIDED, TMA_STORE, UNUSED, FIELDS, WAY, \
             SCOPE_GPU, ANY_TYPE)                                                                     \
    MAP_STORE_VARIANT(tensormap_store_##NAME, 4)
MAP_STORE(address, 2, UINT16, 2, 0, MAP_ADDRESS, IN_GLOBAL)
MAP_STORE(dim, 3, UINT32, 0, 0, MAP_DIM, IN_SHARED)
MAP_STORE(stride, 3, UINT16, 1, 0, MAP_STRIDE, IN_GLOBAL)
MAP_STORE(box, 2, UINT8, 3, 0, MAP_BOX, IN_SHARED)
MAP_STORE(step, 3, UINT32, 0, 1, MAP_STEP, IN_GLOBAL)
MAP_STORE(type, 2, UINT64, 0, 0, MAP_TYPE, IN_SHARED)
MAP_STORE(swizzle, 2, UINT16, 3, 0, MAP_SWIZZLE, IN_GLOBAL)
MAP_STORE(rank, 4, UINT16, 0, 0, MAP_RANK, IN_SHARED)
MAP_STORE(all, 5, UINT16, 2, 1, MAP_ALL, IN_GLOBAL)
MAP_STORE(from_zeros, 1, UINT32, 0, 0, MAP_ALL | MAP_FROM_ZEROS, IN_SHARED)

// Fences of every scope; edits of another warp and another block; one map, edited again and again
#define MAP_HANDED_ON(NAME, WAY, SCOPE, LAUNCH)                                              \
    MAP_FORM(tensormap_##NAME, 2, UINT16, 2, 0, 0, 0, UNUSED, MAP_ALL, WAY, SCOPE, ANY_TYPE) \
    MAP_LOAD_VARIANT(LAUNCH, tensormap_##NAME)
MAP_HANDED_ON(scope_cta_global, IN_GLOBAL, SCOPE_CTA, tensormap_load)
MAP_HANDED_ON(scope_cta_shared, IN_SHARED, SCOPE_CTA, tensormap_load)
MAP_HANDED_ON(scope_cluster_global, IN_GLOBAL, SCOPE_CLUSTER, tensormap_load)
MAP_HANDED_ON(scope_cluster_shared, IN_SHARED, SCOPE_CLUSTER, tensormap_load)
MAP_HANDED_ON(scope_sys_global, IN_GLOBAL, SCOPE_SYS, tensormap_load)
MAP_HANDED_ON(scope_sys_shared, IN_SHARED, SCOPE_SYS, tensormap_load)
MAP_HANDED_ON(of_another_warp_global, IN_GLOBAL, SCOPE_GPU, tensormap_other_warp)
MAP_HANDED_ON(of_another_warp_shared, IN_SHARED, SCOPE_GPU, tensormap_other_warp)
MAP_HANDED_ON(of_another_block_global, IN_GLOBAL, SCOPE_GPU, tensormap_other_block)
MAP_HANDED_ON(of_another_block_shared, IN_SHARED, SCOPE_GPU, tensormap_other_block)
MAP_HANDED_ON(rounds_global, IN_GLOBAL, SCOPE_GPU, tensormap_rounds)
MAP_HANDED_ON(rounds_shared, IN_SHARED, SCOPE_GPU, tensormap_rounds)
