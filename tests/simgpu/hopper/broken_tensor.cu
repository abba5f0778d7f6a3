// Kernels that break a rule of tensor copies: each must end with a fault that says which. broken_tensor NAME runs one on a
// tensor of 64 x 64 16-bit elements; it prints the CUDA error it got.
#include "hopper.cuh"

__shared__ __align__(1024) u8 tile[8192];
__shared__ __align__(8) u64 bar;
#define BAR smem_addr(&bar)

enum { BOX_BYTES = 64 * 8 * 2 };

__device__ static void begin(u32 expected)
{
    bar_init(BAR, 1);
    INIT_FENCE;
    bar_expect(BAR, expected);
}

// ---- Coordinates and addresses ---------------------------------------------------------------------------------------------

__global__ void negative_store(const __grid_constant__ CUtensorMap map, u16 *tensor)
{
    PROXY_FENCE;
    tensor_out(&map, 0, -1, tile); // fault: negative_store
    WAIT_ALL;
}

__global__ void negative_reduction(const __grid_constant__ CUtensorMap map, u16 *tensor)
{
    PROXY_FENCE;
    tensor_add(&map, -8, 0, tile); // fault: negative_reduction
    WAIT_ALL;
}

// 4 elements of 2 bytes in: not a multiple of 16.
__global__ void load_between_pieces(const __grid_constant__ CUtensorMap map, u16 *tensor)
{
    begin(BOX_BYTES);
    tensor_in(tile, &map, 4, 0, BAR); // fault: load_between_pieces
    bar_wait(BAR, 0);
}

__global__ void store_between_pieces(const __grid_constant__ CUtensorMap map, u16 *tensor)
{
    PROXY_FENCE;
    tensor_out(&map, 4, 0, tile); // fault: store_between_pieces
    WAIT_ALL;
}

__global__ void misaligned_tile(const __grid_constant__ CUtensorMap map, u16 *tensor)
{
    begin(BOX_BYTES);
    tensor_in(tile + 64, &map, 0, 0, BAR); // fault: misaligned_tile
    bar_wait(BAR, 0);
}

__global__ void misaligned_bulk(const __grid_constant__ CUtensorMap map, u16 *tensor)
{
    begin(128);
    copy_in(tile + 8, tensor, 128, BAR); // fault: misaligned_bulk
    bar_wait(BAR, 0);
}

__global__ void no_map(const __grid_constant__ CUtensorMap map, u16 *tensor)
{
    begin(BOX_BYTES);
    tensor_in(tile, (const CUtensorMap *)tensor, 0, 0, BAR); // fault: no_map
    bar_wait(BAR, 0);
}

__global__ void beyond_the_tensor(const __grid_constant__ CUtensorMap map, u16 *tensor)
{
    begin(128);
    copy_in(tile, tensor + 64 * 64 - 32, 128, BAR); // fault: beyond_the_tensor
    bar_wait(BAR, 0);
}

__global__ void multicast_beyond_the_cluster(const __grid_constant__ CUtensorMap map, u16 *tensor)
{
    begin(BOX_BYTES);
    tensor_in_multicast(tile, &map, 0, 0, BAR, 6); // fault: multicast_beyond_the_cluster
    bar_wait(BAR, 0);
}

// ---- Order ---------------------------------------------------------------------------------------------------------------------

// Rows out of bounds count: the box's bytes are expected in full.
__global__ void bytes_of_what_is_inside(const __grid_constant__ CUtensorMap map, u16 *tensor)
{
    begin(BOX_BYTES / 2);
    tensor_in(tile, &map, 0, 60, BAR);
    bar_wait(BAR, 0); // fault: bytes_of_what_is_inside
}

__global__ void read_too_early(const __grid_constant__ CUtensorMap map, u16 *tensor)
{
    begin(BOX_BYTES);
    tensor_in(tile, &map, 0, 0, BAR);
    tensor[0] = *(volatile u16 *)(tile + 130); // fault: read_too_early
    bar_wait(BAR, 0);
}

// What one copy brings is sent on before it is there.
__global__ void sent_on_too_early(const __grid_constant__ CUtensorMap map, u16 *tensor)
{
    begin(BOX_BYTES);
    tensor_in(tile, &map, 0, 0, BAR);
    tensor_out(&map, 0, 8, tile); // fault: sent_on_too_early
    bar_wait(BAR, 0);
    WAIT_ALL;
}

__global__ void source_of_load_changes(const __grid_constant__ CUtensorMap map, u16 *tensor)
{
    begin(BOX_BYTES);
    tensor_in(tile, &map, 0, 0, BAR);
    tensor[70] = 1;
    bar_wait(BAR, 0); // fault: source_of_load_changes
}

__global__ void reduction_not_fenced(const __grid_constant__ CUtensorMap map, u16 *tensor)
{
    tile[300] = 1;
    tensor_add(&map, 0, 0, tile); // fault: reduction_not_fenced
    WAIT_ALL;
}

// ---- Maps that the kernel edits -----------------------------------------------------------------------------------------------

__global__ void edit_not_released(const __grid_constant__ CUtensorMap map, u16 *tensor)
{
    CUtensorMap *own = (CUtensorMap *)tensor;
    *own = map;
    asm volatile("tensormap.replace.tile.global_dim.global.b1024.b32 [%0], 1, %1;" ::"l"(own), "r"(8)
                 : "memory");
    asm volatile("fence.proxy.tensormap::generic.acquire.gpu [%0], 128;" ::"l"(own) : "memory");
    begin(BOX_BYTES);
    tensor_in(tile, own, 0, 8, BAR); // fault: edit_not_released
    bar_wait(BAR, 0);
}

__global__ void edit_not_acquired(const __grid_constant__ CUtensorMap map, u16 *tensor)
{
    CUtensorMap *own = (CUtensorMap *)tensor;
    *own = map;
    asm volatile("tensormap.replace.tile.global_dim.global.b1024.b32 [%0], 1, %1;" ::"l"(own), "r"(8)
                 : "memory");
    asm volatile("fence.proxy.tensormap::generic.release.gpu;" ::: "memory");
    begin(BOX_BYTES);
    tensor_in(tile, own, 0, 8, BAR); // fault: edit_not_acquired
    bar_wait(BAR, 0);
}

__global__ void map_not_complete(const __grid_constant__ CUtensorMap map,
                                 u16 *tensor) // the tensor's zeros become a map
{
    asm volatile("tensormap.replace.tile.rank.global.b1024.b32 [%0], 1;" ::"l"(tensor) : "memory");
    asm volatile("fence.proxy.tensormap::generic.release.gpu;" ::: "memory");
    asm volatile("fence.proxy.tensormap::generic.acquire.gpu [%0], 128;" ::"l"(tensor) : "memory");
    begin(BOX_BYTES);
    tensor_in(tile, (const CUtensorMap *)tensor, 0, 8, BAR); // fault: map_not_complete
    bar_wait(BAR, 0);
}

__device__ static void begin_with(CUtensorMap *own)
{
    asm volatile("fence.proxy.tensormap::generic.release.gpu;" ::: "memory");
    asm volatile("fence.proxy.tensormap::generic.acquire.gpu [%0], 128;" ::"l"(own) : "memory");
    begin(BOX_BYTES);
}

// There is no such integer: on an H200 too, the load is an illegal instruction.
__global__ void nan_for_integers(const __grid_constant__ CUtensorMap map, u16 *tensor)
{
    CUtensorMap *own = (CUtensorMap *)tensor;
    *own = map;
    asm volatile("tensormap.replace.tile.elemtype.global.b1024.b32 [%0], 1;" ::"l"(own) : "memory");
    asm volatile("tensormap.replace.tile.fill_mode.global.b1024.b32 [%0], 1;" ::"l"(own) : "memory");
    begin_with(own);
    tensor_in(tile, own, 0, 8, BAR); // fault: nan_for_integers
    bar_wait(BAR, 0);
}

// A map that was made for tf32 goes on rounding, which integers cannot: on an H200 too, the load is an illegal instruction.
__global__ void load_of_former_tf32(const __grid_constant__ CUtensorMap map, u16 *tensor)
{
    CUtensorMap *own = (CUtensorMap *)tensor;
    *own = map;
    asm volatile("tensormap.replace.tile.elemtype.global.b1024.b32 [%0], 2;" ::"l"(own) : "memory");
    begin_with(own);
    tensor_in(tile, own, 0, 8, BAR); // fault: load_of_former_tf32
    bar_wait(BAR, 0);
}

__global__ void im2col(const __grid_constant__ CUtensorMap map, u16 *tensor)
{
    begin(BOX_BYTES);
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes [%0], [%1, {%2, %2, "
        "%2}], [%3], {%4};" ::"r"(smem_addr(tile)),
        "l"(&map), "r"(0), "r"(BAR), "h"((u16)0) // fault: im2col
        : "memory");
    bar_wait(BAR, 0);
}

#define KERNEL(NAME) \
    {                \
#NAME, NAME  \
    }
static const struct {
    const char *name;
    void (*kernel)(CUtensorMap, u16 *);
} kernels[] = {KERNEL(negative_store),
               KERNEL(negative_reduction),
               KERNEL(load_between_pieces),
               KERNEL(store_between_pieces),
               KERNEL(misaligned_tile),
               KERNEL(misaligned_bulk),
               KERNEL(no_map),
               KERNEL(beyond_the_tensor),
               KERNEL(multicast_beyond_the_cluster),
               KERNEL(bytes_of_what_is_inside),
               KERNEL(read_too_early),
               KERNEL(sent_on_too_early),
               KERNEL(source_of_load_changes),
               KERNEL(reduction_not_fenced),
               KERNEL(edit_not_released),
               KERNEL(edit_not_acquired),
               KERNEL(map_not_complete),
               KERNEL(nan_for_integers),
               KERNEL(load_of_former_tf32),
               KERNEL(im2col)};

int main(int argc, char **argv)
{
    const bool tf32 = argc > 1 && !strcmp(argv[1], "load_of_former_tf32");
    const u32 width = tf32 ? 32 : 64, box[] = {width, 8}, steps[] = {1, 1};
    const u64 dims[] = {width, 64}, strides[] = {128};
    CUtensorMap map;
    u16 *tensor;
    CUDA_CHECK(cudaMalloc((void **)&tensor, 64 * 64 * 2));
    CUDA_CHECK(cudaMemset(tensor, 0, 64 * 64 * 2));
    if (encode_map(&map, tf32 ? CU_TENSOR_MAP_DATA_TYPE_TFLOAT32 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2,
                   tensor, dims, strides, box, steps, 3))
        return 3;
    for (auto &k : kernels) {
        if (argc < 2 || strcmp(argv[1], k.name)) continue;
        k.kernel<<<1, 1>>>(map, tensor);
        return !launched(k.name);
    }
    printf("broken_tensor NAME\n");
    return 2;
}
