// Tensor maps that a kernel edits, or makes from zeros: tensormap.replace of every field, cp_fenceproxy, the fences. Passes on a
// GPU too.
#include "hopper.cuh"

enum { WIDTH = 64, HEIGHT = 32, BOX_ROWS = 8, TILE_BYTES = 8192 };

#define RELEASE asm volatile("fence.proxy.tensormap::generic.release.gpu;" ::: "memory")
#define ACQUIRE(MAP) \
    asm volatile("fence.proxy.tensormap::generic.acquire.gpu [%0], 128;" ::"l"(MAP) : "memory")

__device__ static void load_with(const CUtensorMap *map, s32 x, s32 y, u32 bytes, u8 *out)
{
    extern __shared__ __align__(1024) u8 tile[];
    __shared__ __align__(8) u64 bar;
    for (int i = threadIdx.x; i < TILE_BYTES; i += blockDim.x) tile[i] = 0xab;
    PROXY_FENCE;
    __syncwarp();
    if (threadIdx.x == 0) {
        bar_init(smem_addr(&bar), 1);
        INIT_FENCE;
        bar_expect(smem_addr(&bar), bytes);
        tensor_in(tile, map, x, y, smem_addr(&bar));
    }
    __syncwarp();
    bar_wait(smem_addr(&bar), 0);
    for (int i = threadIdx.x; i < TILE_BYTES; i += blockDim.x) out[i] = tile[i];
}

// What differs from the map that the host made.
struct edit {
    u64 address, stride;
    u32 width, height, box_width, box_height, step;
};

#define EDIT(SPACE, LETTER, MAP)                                                                            \
    do {                                                                                                    \
        asm volatile("tensormap.replace.tile.global_address" SPACE ".b1024.b64 [%0], %1;" ::LETTER(MAP),    \
                     "l"(e.address)                                                                         \
                     : "memory");                                                                           \
        asm volatile("tensormap.replace.tile.global_dim" SPACE ".b1024.b32 [%0], 0, %1;" ::LETTER(MAP),     \
                     "r"(e.width)                                                                           \
                     : "memory");                                                                           \
        asm volatile("tensormap.replace.tile.global_dim" SPACE ".b1024.b32 [%0], 1, %1;" ::LETTER(MAP),     \
                     "r"(e.height)                                                                          \
                     : "memory");                                                                           \
        asm volatile("tensormap.replace.tile.global_stride" SPACE ".b1024.b64 [%0], 0, %1;" ::LETTER(MAP),  \
                     "l"(e.stride)                                                                          \
                     : "memory");                                                                           \
        asm volatile("tensormap.replace.tile.box_dim" SPACE ".b1024.b32 [%0], 0, %1;" ::LETTER(MAP),        \
                     "r"(e.box_width)                                                                       \
                     : "memory");                                                                           \
        asm volatile("tensormap.replace.tile.box_dim" SPACE ".b1024.b32 [%0], 1, %1;" ::LETTER(MAP),        \
                     "r"(e.box_height)                                                                      \
                     : "memory");                                                                           \
        asm volatile("tensormap.replace.tile.element_stride" SPACE ".b1024.b32 [%0], 0, %1;" ::LETTER(MAP), \
                     "r"(1)                                                                                 \
                     : "memory");                                                                           \
        asm volatile("tensormap.replace.tile.element_stride" SPACE ".b1024.b32 [%0], 1, %1;" ::LETTER(MAP), \
                     "r"(e.step)                                                                            \
                     : "memory");                                                                           \
    } while (0)

// The host's map, edited in global memory.
__global__ void edit_in_global(CUtensorMap *map, edit e, s32 x, s32 y, u32 bytes, u8 *out)
{
    if (threadIdx.x == 0) {
        EDIT(".global", "l", map);
        RELEASE;
        ACQUIRE(map);
    }
    __syncwarp();
    load_with(map, x, y, bytes, out);
}

// The same, edited in shared memory and copied back.
__global__ void edit_in_shared(CUtensorMap *map, edit e, s32 x, s32 y, u32 bytes, u8 *out)
{
    __shared__ __align__(128) u32 copy[32];
    copy[threadIdx.x] = ((u32 *)map)[threadIdx.x];
    __syncwarp();
    if (threadIdx.x == 0) EDIT(".shared::cta", "r", smem_addr(copy));
    __syncwarp();
    asm volatile(
        "tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned [%0], [%1], 128;" ::
            "l"(map),
        "r"(smem_addr(copy))
        : "memory");
    ACQUIRE(map);
    load_with(map, x, y, bytes, out);
}

#define SET(FIELD, VALUE)                                                               \
    asm volatile("tensormap.replace.tile." FIELD ".shared::cta.b1024.b32 [%0], " #VALUE \
                 ";" ::"r"(smem_addr(copy))                                             \
                 : "memory")

// A map made from nothing.
template <int TYPE>
__global__ void make(CUtensorMap *map, edit e, s32 x, s32 y, u32 bytes, u8 *out)
{
    __shared__ __align__(128) u32 copy[32];
    copy[threadIdx.x] = 0;
    __syncwarp();
    if (threadIdx.x == 0) {
        EDIT(".shared::cta", "r", smem_addr(copy));
        SET("rank", 1); // two dimensions
        if (TYPE == 1) SET("elemtype", 1);
        if (TYPE == 3) SET("elemtype", 3);
        if (TYPE == 10) SET("elemtype", 10);
        if (TYPE == 11) SET("elemtype", 11);
        SET("interleave_layout", 0);
        SET("swizzle_mode", 2);
        if (TYPE >= 10)
            SET("fill_mode", 1);
        else
            SET("fill_mode", 0);
    }
    __syncwarp();
    asm volatile(
        "tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned [%0], [%1], 128;" ::
            "l"(map),
        "r"(smem_addr(copy))
        : "memory");
    ACQUIRE(map);
    load_with(map, x, y, bytes, out);
}

// ---- The same on the host ------------------------------------------------------------------------------------------------

static u8 tensor[8192], got[TILE_BYTES], want[TILE_BYTES];

static void expect_tile(const char *name, const edit &e, const u8 *base, u32 size, int swizzle, s32 x, s32 y,
                        u32 fill)
{
    const u32 pitch = swizzle ? 16u << swizzle : e.box_width * size,
              rows = (e.box_height + e.step - 1) / e.step;
    memset(want, 0xab, sizeof want);
    for (u32 r = 0; r < rows; r++)
        for (u32 c = 0; c < e.box_width; c++) {
            const s32 column = x + (s32)c, row = y + (s32)(r * e.step);
            u32 at = r * pitch + c * size, v = fill;
            at ^= (at >> 7 & ((1u << swizzle) - 1)) << 4;
            if (column >= 0 && row >= 0 && column < (s32)e.width && row < (s32)e.height)
                memcpy(&v, base + row * e.stride + column * size, size);
            memcpy(want + at, &v, size);
        }
    check_begin(name);
    for (u32 i = 0; i < TILE_BYTES; i++) check(i, got[i], want[i]);
}

typedef void (*kernel_fn)(CUtensorMap *, edit, s32, s32, u32, u8 *);

static void try_edit(const char *name, kernel_fn kernel, const edit &e, const u8 *base, u32 size, int swizzle,
                     s32 x, s32 y, u32 fill, const CUtensorMap &start, CUtensorMap *map, u8 *out)
{
    const u32 bytes = (e.box_height + e.step - 1) / e.step * e.box_width * size;
    CUDA_CHECK(cudaMemcpy(map, &start, sizeof start, cudaMemcpyHostToDevice));
    kernel<<<1, 32, TILE_BYTES>>>(map, e, x, y, bytes, out);
    if (!launched(name)) exit(1);
    CUDA_CHECK(cudaMemcpy(got, out, sizeof got, cudaMemcpyDeviceToHost));
    expect_tile(name, e, base, size, swizzle, x, y, fill);
}

int main()
{
    const u64 dims[] = {WIDTH, HEIGHT}, strides[] = {WIDTH * 2};
    const u32 box[] = {16, BOX_ROWS}, steps[] = {1, 1};
    u8 *device, *out;
    CUtensorMap start, *map;
    for (auto &x : tensor)
        x = (u8)(random_u64() & 0x3f); // f32 without exponents that matter, and exact in tf32 below
    for (u32 i = 0; i < sizeof tensor; i += 4) tensor[i] = 0, tensor[i + 1] &= 0xe0;
    CUDA_CHECK(cudaMalloc((void **)&device, sizeof tensor));
    CUDA_CHECK(cudaMalloc((void **)&out, TILE_BYTES));
    CUDA_CHECK(cudaMalloc((void **)&map, sizeof *map));
    CUDA_CHECK(cudaMemcpy(device, tensor, sizeof tensor, cudaMemcpyHostToDevice));
    check_begin("encode");
    check(0, encode_map(&start, CU_TENSOR_MAP_DATA_TYPE_UINT16, 2, device, dims, strides, box, steps, 0),
          CUDA_SUCCESS);

    const u64 at = (u64)(uintptr_t)device + 512;
    const u8 *base = tensor + 512;
    const edit shifted = {at, 192, 40, 20, 32, 5, 1}, strided = {at, 96, 48, 30, 16, 8, 3};
    for (kernel_fn kernel : {edit_in_global, edit_in_shared}) {
        try_edit("edited", kernel, shifted, base, 2, 0, 8, 17, 0, start, map, out);
        try_edit("edited, with element strides", kernel, strided, base, 2, 0, -8, -2, 0, start, map, out);
    }
    const edit u16 = {at, 192, 40, 20, 32, 9, 1}, s32_ = {at, 192, 20, 20, 16, 9, 1};
    try_edit("made: u16", make<1>, u16, base, 2, 2, 16, 15, 0, start, map, out);
    try_edit("made: s32", make<3>, s32_, base, 4, 2, 8, 15, 0, start, map, out);
    try_edit("made: bf16", make<10>, u16, base, 2, 2, 16, 15, 0x7ff7, start, map, out);
    try_edit("made: tf32", make<11>, s32_, base, 4, 2, 8, 15, 0x7ff77ff7, start, map, out);
    return check_end("tensormap");
}
