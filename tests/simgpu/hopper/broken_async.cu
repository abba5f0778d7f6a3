// Kernels that break a rule of bulk copies, wgmma or setmaxnreg: each must end with a fault that says which. broken_async
// NAME runs one; it prints the CUDA error it got, or the first wrong value.
#include "hopper.cuh"

__shared__ __align__(1024) u8 tile[8192];
__shared__ __align__(8) u64 bar;
#define BAR smem_addr(&bar)

// ---- Bulk copies --------------------------------------------------------------------------------------------------------

__global__ void read_before_wait(u32 *out)
{
    if (threadIdx.x == 0) {
        bar_init(BAR, 1);
        INIT_FENCE;
        bar_expect(BAR, 128);
        copy_in(tile, out, 128, BAR);
    }
    __syncthreads();
    if (threadIdx.x < 32) out[64 + threadIdx.x] = ((u32 *)tile)[threadIdx.x]; // fault: read_before_wait
    __syncthreads();
    bar_wait(BAR, 0);
}

__global__ void never_waited(u32 *out)
{
    if (threadIdx.x) return;
    bar_init(BAR, 1);
    INIT_FENCE;
    bar_expect(BAR, 128);
    copy_in(tile, out, 128, BAR);
} // fault: never_waited

__global__ void bytes_mismatch(u32 *out)
{
    if (threadIdx.x == 0) {
        bar_init(BAR, 1);
        INIT_FENCE;
        bar_expect(BAR, 64);
        copy_in(tile, out, 128, BAR);
    }
    __syncthreads();
    bar_wait(BAR, 0); // fault: bytes_mismatch
}

// The other way round: 128 bytes come, 256 are expected.
__global__ void bytes_missing(u32 *out)
{
    if (threadIdx.x == 0) {
        bar_init(BAR, 1);
        INIT_FENCE;
        bar_expect(BAR, 256);
        copy_in(tile, out, 128, BAR);
    }
    __syncthreads();
    bar_wait(BAR, 0); // fault: bytes_missing
}

// The second arrival comes while the phase still lacks bytes, and no arrival.
__global__ void over_arrival(u32 *out)
{
    if (threadIdx.x) return;
    bar_init(BAR, 1);
    INIT_FENCE;
    bar_expect(BAR, 128);
    bar_arrive(BAR); // fault: over_arrival
    copy_in(tile, out, 128, BAR);
    bar_wait(BAR, 0);
}

// The second tile is awaited with the first one's parity: it passes, and the tile is read before it is there.
__global__ void parity_forgotten(u32 *out)
{
    if (threadIdx.x) return;
    bar_init(BAR, 1);
    INIT_FENCE;
    for (int i = 0; i < 2; i++) {
        bar_expect(BAR, 128);
        copy_in(tile, out, 128, BAR);
        bar_wait(BAR, 0);
        out[64] += *(volatile u32 *)tile; // fault: parity_forgotten
    }
}

// And with a parity one ahead: it never flips.
__global__ void parity_never_flips(u32 *out)
{
    if (threadIdx.x) return;
    bar_init(BAR, 1);
    INIT_FENCE;
    bar_expect(BAR, 128);
    copy_in(tile, out, 128, BAR);
    bar_wait(BAR, 0);
    bar_wait(BAR, 1); // fault: parity_never_flips
}

__global__ void init_not_visible(u32 *out)
{
    if (threadIdx.x == 0) bar_init(BAR, 1), bar_expect(BAR, 0);
    if (threadIdx.x == 32) bar_wait(BAR, 0); // fault: init_not_visible
}

__global__ void init_not_fenced(u32 *out)
{
    if (threadIdx.x) return;
    bar_init(BAR, 1);
    bar_expect(BAR, 128);
    copy_in(tile, out, 128, BAR); // fault: init_not_fenced
    bar_wait(BAR, 0);
}

__global__ void init_twice(u32 *out)
{
    if (threadIdx.x) return;
#pragma unroll 1
    for (u32 i = 0; i < 3 + out[0]; i++) bar_init(BAR, 1); // fault: init_twice
}

__global__ void tile_overwritten(u32 *out)
{
    if (threadIdx.x) return;
    bar_init(BAR, 1);
    INIT_FENCE;
    bar_expect(BAR, 128);
    copy_in(tile, out, 128, BAR);
    tile[5] = 1;
    bar_wait(BAR, 0); // fault: tile_overwritten
}

__global__ void store_not_fenced(u32 *out)
{
    tile[threadIdx.x] = 1;
    __syncthreads();
    if (threadIdx.x) return;
    copy_out(out, tile, 128); // fault: store_not_fenced
    WAIT_READ;
}

// One thread fences, before the others have written.
__global__ void fenced_by_one(u32 *out)
{
    if (threadIdx.x >= 32) tile[threadIdx.x] = 1;
    if (threadIdx.x == 0) PROXY_FENCE;
    __syncthreads();
    if (threadIdx.x) return;
    copy_out(out, tile, 128); // fault: fenced_by_one
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
    WAIT_READ; // fault: store_source_changes
}

__global__ void store_not_waited(u32 *out)
{
    tile[threadIdx.x] = 1;
    PROXY_FENCE;
    __syncthreads();
    if (threadIdx.x == 0) copy_out(out, tile, 128);
} // fault: store_not_waited

// ---- wgmma ------------------------------------------------------------------------------------------------------------------

#define WGMMA(D) WGMMA_AT(D, tile_desc(tile), tile_desc(tile + 4096))
#define WGMMA_RS(D, A)                                                                                           \
    asm volatile(                                                                                                \
        "{ .reg .pred p; setp.ne.b32 p, 1, 0; wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%0, %1, %2, " \
        "%3}, {%4, %5, %6, %7}, %8, p, 1, 1, 0; }"                                                               \
        : "+f"(D[0]), "+f"(D[1]), "+f"(D[2]), "+f"(D[3])                                                         \
        : "r"(A[0]), "r"(A[1]), "r"(A[2]), "r"(A[3]), "l"(tile_desc(tile + 4096))                                \
        : "memory")

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
    WGMMA_FENCE;
    WGMMA(d);
    WGMMA_COMMIT;
    out[threadIdx.x] = (u32)d[1]; // fault: result_read_early
    WGMMA_WAIT;
}

// The wait is for groups, and the product is in none.
__global__ void commit_missing(u32 *out)
{
    float d[4] = {};
    fill_tile();
    WGMMA_FENCE;
    WGMMA(d);
    WGMMA_WAIT;
    out[threadIdx.x] = (u32)d[1]; // fault: commit_missing
}

__global__ void a_written_early(u32 *out)
{
    float d[4] = {};
    u32 a[4] = {1, 2, 3, 4};
    asm volatile("" : "+r"(a[0]), "+r"(a[1]), "+r"(a[2]), "+r"(a[3]));
    fill_tile();
    WGMMA_FENCE;
    WGMMA_RS(d, a);
    WGMMA_COMMIT;
    asm volatile("add.u32 %0, %0, 1;" : "+r"(a[2])); // fault: a_written_early
    WGMMA_WAIT;
    out[threadIdx.x] = (u32)d[1] + a[0] + a[1] + a[2];
}

__global__ void no_fence(u32 *out)
{
    float d[4] = {};
    fill_tile();
    WGMMA(d); // fault: no_fence
    WGMMA_COMMIT;
    WGMMA_WAIT;
    out[threadIdx.x] = (u32)d[1];
}

// The accumulators are scaled between two products.
__global__ void no_second_fence(u32 *out)
{
    float d[4] = {};
    fill_tile();
    WGMMA_FENCE;
    WGMMA(d);
    WGMMA_COMMIT;
    WGMMA_WAIT;
    for (int i = 0; i < 4; i++) d[i] *= (float)threadIdx.x;
    WGMMA(d); // fault: no_second_fence
    WGMMA_COMMIT;
    WGMMA_WAIT;
    out[threadIdx.x] = (u32)d[1];
}

// A fence behind a condition: on the first of several products of one shape it is enough, the others only follow it.
__global__ void right_fence_first(u32 *out)
{
    float d[4] = {};
    const u32 rounds = 3 + out[0];
    fill_tile();
#pragma unroll 1
    for (u32 k = 0; k < rounds; k++) {
        if (k == 0) WGMMA_FENCE;
        WGMMA(d);
        WGMMA_COMMIT;
    }
    WGMMA_WAIT;
    out[threadIdx.x] = (u32)d[1];
}

// On the second it comes too late; and where the accumulators are scaled in between, each needs its own.
__global__ void fence_on_the_second(u32 *out)
{
    float d[4] = {};
    const u32 rounds = 3 + out[0];
    fill_tile();
#pragma unroll 1
    for (u32 k = 0; k < rounds; k++) {
        if (k == 1) WGMMA_FENCE;
        WGMMA(d); // fault: fence_on_the_second
        WGMMA_COMMIT;
    }
    WGMMA_WAIT;
    out[threadIdx.x] = (u32)d[1];
}
__global__ void scaled_after_the_fence(u32 *out)
{
    float d[4] = {};
    const u32 rounds = 3 + out[0];
    fill_tile();
#pragma unroll 1
    for (u32 k = 0; k < rounds; k++) {
        if (k == 0) WGMMA_FENCE;
        WGMMA(d); // fault: scaled_after_the_fence
        WGMMA_COMMIT;
        WGMMA_WAIT;
        for (int i = 0; i < 4; i++) d[i] *= (float)threadIdx.x;
    }
    out[threadIdx.x] = (u32)d[1];
}

// Products of one accumulator follow each other without a fence only when they have the same shape.
#define WGMMA_TF32(D)                                                                                           \
    asm volatile(                                                                                               \
        "{ .reg .pred p; setp.ne.b32 p, 1, 0; wgmma.mma_async.sync.aligned.m64n8k8.f32.tf32.tf32 {%0, %1, %2, " \
        "%3}, %4, %5, p, 1, 1; }"                                                                               \
        : "+f"(D[0]), "+f"(D[1]), "+f"(D[2]), "+f"(D[3])                                                        \
        : "l"(tile_desc(tile)), "l"(tile_desc(tile + 4096))                                                     \
        : "memory")
__global__ void another_shape(u32 *out)
{
    float d[4] = {};
    fill_tile();
    WGMMA_FENCE;
    WGMMA(d);
    WGMMA_TF32(d); // fault: another_shape
    WGMMA_COMMIT;
    WGMMA_WAIT;
    out[threadIdx.x] = (u32)d[1];
}

__global__ void operand_changes(u32 *out)
{
    float d[4] = {};
    fill_tile();
    WGMMA_FENCE;
    WGMMA(d);
    WGMMA_COMMIT;
    __syncthreads();
    tile[4096 + threadIdx.x] = 1;
    WGMMA_WAIT; // fault: operand_changes
    out[threadIdx.x] = (u32)d[1];
}

__global__ void operand_not_fenced(u32 *out)
{
    float d[4] = {};
    fill_tile();
    tile[4096 + threadIdx.x] = 1;
    __syncthreads();
    WGMMA_FENCE;
    WGMMA(d); // fault: operand_not_fenced
    WGMMA_COMMIT;
    WGMMA_WAIT;
    out[threadIdx.x] = (u32)d[1];
}

__global__ void three_warps(u32 *out)
{
    float d[4] = {};
    fill_tile();
    if (threadIdx.x < 96) {
        WGMMA_FENCE;
        WGMMA(d); // fault: three_warps
        WGMMA_COMMIT;
        WGMMA_WAIT;
    }
    out[threadIdx.x] = (u32)d[1];
}

// A is 64 rows: the last warp's lie beyond shared memory.
__global__ void operand_out_of_bounds(u32 *out)
{
    float d[4] = {};
    const u64 beyond = (smem_addr(tile) + 8192 - 1024) >> 4 | (u64)8 << 16 | (u64)16 << 32;
    fill_tile();
    WGMMA_FENCE;
    WGMMA_AT(d, beyond, tile_desc(tile)); // fault: operand_out_of_bounds
    WGMMA_COMMIT;
    WGMMA_WAIT;
    out[threadIdx.x] = (u32)d[1];
}

__global__ void descriptors_differ(u32 *out)
{
    float d[4] = {};
    fill_tile();
    WGMMA_FENCE;
    WGMMA_AT(d, tile_desc(tile) + (threadIdx.x / 32 == 2), tile_desc(tile)); // fault: descriptors_differ
    WGMMA_COMMIT;
    WGMMA_WAIT;
    out[threadIdx.x] = (u32)d[1];
}

// ---- setmaxnreg -----------------------------------------------------------------------------------------------------------------

// 384 threads have 168 registers each; the second and third warpgroup free too few for the first.
__global__ void __launch_bounds__(384, 1) too_few_registers(u32 *out)
{
    if (threadIdx.x < 128)
        asm volatile("setmaxnreg.inc.sync.aligned.u32 240;"); // fault: too_few_registers
    else
        asm volatile("setmaxnreg.dec.sync.aligned.u32 152;");
    out[threadIdx.x % 128] = 1;
}

// Nobody frees any: more than the block has is asked for.
__global__ void __launch_bounds__(384, 1) over_budget(u32 *out)
{
    if (threadIdx.x < 128)
        asm volatile("setmaxnreg.inc.sync.aligned.u32 176;"); // fault: over_budget
    else
        asm volatile("setmaxnreg.inc.sync.aligned.u32 184;");
    out[threadIdx.x % 128] = 1;
}

__global__ void __launch_bounds__(384, 1) wrong_direction(u32 *out)
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 200;"); // fault: wrong_direction
}

// ptxas cannot know how many registers the kernel starts with, and ignores both.
__global__ void __launch_bounds__(384) registers_unknown(u32 *out)
{
    if (threadIdx.x < 128)
        asm volatile("setmaxnreg.inc.sync.aligned.u32 240;"); // fault: registers_unknown
    else
        asm volatile("setmaxnreg.dec.sync.aligned.u32 152;");
    out[threadIdx.x % 128] = 1;
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
    KERNEL(read_before_wait, 128),   KERNEL(never_waited, 128),          KERNEL(bytes_mismatch, 128),
    KERNEL(init_not_visible, 128),   KERNEL(init_not_fenced, 128),       KERNEL(init_twice, 128),
    KERNEL(registers_unknown, 384),  KERNEL(tile_overwritten, 128),      KERNEL(store_not_fenced, 128),
    KERNEL(fenced_by_one, 128),      KERNEL(store_source_changes, 128),  KERNEL(store_not_waited, 128),
    KERNEL(result_read_early, 128),  KERNEL(commit_missing, 128),        KERNEL(a_written_early, 128),
    KERNEL(no_fence, 128),           KERNEL(no_second_fence, 128),       KERNEL(operand_changes, 128),
    KERNEL(operand_not_fenced, 128), KERNEL(three_warps, 128),           KERNEL(bytes_missing, 128),
    KERNEL(over_arrival, 128),       KERNEL(parity_forgotten, 128),      KERNEL(parity_never_flips, 128),
    KERNEL(over_budget, 384),        KERNEL(operand_out_of_bounds, 128), KERNEL(descriptors_differ, 128),
    KERNEL(too_few_registers, 384),  KERNEL(wrong_direction, 384),       KERNEL(right_fence_first, 128),
    KERNEL(another_shape, 128),      KERNEL(fence_on_the_second, 128),   KERNEL(scaled_after_the_fence, 128)};

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
