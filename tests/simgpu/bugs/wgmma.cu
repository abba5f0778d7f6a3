// Products of warpgroups: fences, groups, operands, descriptors; setmaxnreg; clusters that multiply together.
#include "../hopper/hopper.cuh"
#include "bugs.cuh"

#define T threadIdx.x

// A is 64 x 16 elements of 2 bytes, B 8 x 16.
constexpr u32 A_BYTES = 2048;
__shared__ __align__(1024) u8 tile[2][4096];
__shared__ __align__(8) u64 full, empty;

__device__ static void fill_tiles()
{
    for (u32 i = T; i < sizeof tile; i += blockDim.x) tile[i / 4096][i % 4096] = 0;
    PROXY_FENCE;
    __syncthreads();
}
#define A(K)         tile_desc(tile[K])
#define B(K)         tile_desc(tile[K] + A_BYTES)
#define WGMMA(D, K)  WGMMA_AT(D, A(K), B(K))
#define WGMMA_WAIT_1 asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory")

// ---- Accumulators ----------------------------------------------------------------------------------------------------------

#pragma nv_diag_suppress used_before_set
// bug accumulators_not_cleared: this is added to accumulators that nothing has written: set them to 0 first, or let scale-d be 0
template <bool BROKEN>
__global__ void accumulators_not_cleared(u32 *out)
{
    float d[4];
    if (!BROKEN) d[0] = d[1] = d[2] = d[3] = 0;
    fill_tiles();
    WGMMA_FENCE;
#pragma unroll 1
    for (u32 k = 0; k < 2 + out[0]; k++) WGMMA(d, 0); // accumulators_not_cleared
    WGMMA_COMMIT;
    WGMMA_WAIT;
    out[1024 + T] = (u32)(d[0] + d[1] + d[2] + d[3]);
}

// ---- Fences and groups ---------------------------------------------------------------------------------------------------

// bug fence_missing: wgmma.fence is missing
template <bool BROKEN>
__global__ void fence_missing(u32 *out)
{
    float d[4] = {};
    fill_tiles();
    if (!BROKEN) WGMMA_FENCE;
    WGMMA(d, 0); // fence_missing
    WGMMA_COMMIT;
    WGMMA_WAIT;
    out[T] = (u32)d[0];
}

// The rescaling of an attention's output between two products.
// bug rescaled_without_fence: a register of the accumulator was accessed at line
template <bool BROKEN>
__global__ void rescaled_without_fence(u32 *out)
{
    float d[4] = {};
    fill_tiles();
    WGMMA_FENCE;
    for (u32 k = 0; k < 3; k++) {
        WGMMA(d, k % 2); // rescaled_without_fence
        WGMMA_COMMIT;
        WGMMA_WAIT;
        for (int i = 0; i < 4; i++) d[i] *= 0.5f + (float)T; // rescaled_without_fence
        if (!BROKEN) WGMMA_FENCE;
    }
    out[T] = (u32)d[0];
}

// The fence stands where only later products pass.
// bug fence_too_late: wgmma.fence is missing
template <bool BROKEN>
__global__ void fence_too_late(u32 *out)
{
    float d[4] = {};
    const u32 rounds = 3 + out[0];
    fill_tiles();
#pragma unroll 1
    for (u32 k = 0; k < rounds; k++) {
        if (k == BROKEN) WGMMA_FENCE;
        WGMMA(d, 0); // fence_too_late
        WGMMA_COMMIT;
    }
    WGMMA_WAIT;
    out[T] = (u32)d[0];
}

// bug result_not_awaited: wgmma.wait_group must come first
template <bool BROKEN>
__global__ void result_not_awaited(u32 *out)
{
    float d[4] = {};
    fill_tiles();
    WGMMA_FENCE;
    WGMMA(d, 0); // result_not_awaited
    WGMMA_COMMIT;
    if (!BROKEN) WGMMA_WAIT;
    out[T] = (u32)d[0];
    WGMMA_WAIT;
}

// Two products in flight, and a wait that leaves one there: the other's result is read.
// bug result_of_the_latest: wgmma.wait_group must come first
template <bool BROKEN>
__global__ void result_of_the_latest(u32 *out)
{
    float c[4] = {}, d[4] = {};
    fill_tiles();
    WGMMA_FENCE;
    WGMMA(c, 0);
    WGMMA_COMMIT;
    WGMMA(d, 1); // result_of_the_latest
    WGMMA_COMMIT;
    if (BROKEN)
        WGMMA_WAIT_1;
    else
        WGMMA_WAIT;
    out[T] = (u32)d[0];
    WGMMA_WAIT;
    out[T] += (u32)c[0];
}

// The group was not closed, so there is nothing to wait for.
// bug group_not_committed: wgmma.wait_group must come first
template <bool BROKEN>
__global__ void group_not_committed(u32 *out)
{
    float d[4] = {};
    fill_tiles();
    WGMMA_FENCE;
    WGMMA(d, 0); // group_not_committed
    if (!BROKEN) WGMMA_COMMIT;
    WGMMA_WAIT;
    out[T] = (u32)d[0];
}

// ---- Operands ----------------------------------------------------------------------------------------------------------------

// bug operand_not_fenced: fence.proxy.async is missing
template <bool BROKEN>
__global__ void operand_not_fenced(u32 *out)
{
    float d[4] = {};
    fill_tiles();
    tile[0][T] = 1; // operand_not_fenced
    if (!BROKEN) PROXY_FENCE;
    __syncthreads();
    WGMMA_FENCE;
    WGMMA(d, 0); // operand_not_fenced
    WGMMA_COMMIT;
    WGMMA_WAIT;
    out[T] = (u32)d[0];
}

// The fence without the barrier: each warp's own rows are not all it multiplies.
// bug operand_of_other_warps: a barrier is missing | was written before the wgmma at line
template <bool BROKEN>
__global__ void operand_of_other_warps(u32 *out)
{
    float d[4] = {};
    fill_tiles();
    tile[0][A_BYTES + T] = 1; // operand_of_other_warps
    PROXY_FENCE;
    if (!BROKEN) __syncthreads();
    WGMMA_FENCE;
    WGMMA(d, 0);
    WGMMA_COMMIT;
    WGMMA_WAIT;
    out[T] = (u32)d[0];
}

// bug operand_overwritten: was written before the wgmma at line
template <bool BROKEN>
__global__ void operand_overwritten(u32 *out)
{
    float d[4] = {};
    fill_tiles();
    WGMMA_FENCE;
    WGMMA(d, 0);
    WGMMA_COMMIT;
    if (!BROKEN) WGMMA_WAIT;
    __syncthreads();
    tile[0][T] = 1; // operand_overwritten
    WGMMA_WAIT;     // (operand)
    out[T] = (u32)d[0];
}

// bug descriptor_beyond: the descriptor of B reaches shared offset
template <bool BROKEN>
__global__ void descriptor_beyond(u32 *out)
{
    extern __shared__ __align__(1024) u8 memory[]; // behind all others
    float d[4] = {};
    for (u32 i = T; i < 16384; i += blockDim.x) memory[i] = 0;
    fill_tiles();
    WGMMA_FENCE;
    WGMMA_AT(d, A(0), tile_desc(memory + (BROKEN ? 16384 - 128 : 0))); // descriptor_beyond
    WGMMA_COMMIT;
    WGMMA_WAIT;
    out[T] = (u32)d[0];
}

// Each warp's descriptor begins at its own rows, as with mma.sync.
// bug descriptor_by_warp: of this warpgroup has 0x
template <bool BROKEN>
__global__ void descriptor_by_warp(u32 *out)
{
    float d[4] = {};
    fill_tiles();
    WGMMA_FENCE;
    WGMMA_AT(d, tile_desc(tile[0] + (BROKEN ? T / 32 * 512 : 0)), B(1)); // descriptor_by_warp
    WGMMA_COMMIT;
    WGMMA_WAIT;
    out[T] = (u32)d[0];
}

// bug one_warp_left_out: all four execute each | waits for the other warps of its warpgroup to execute the same wgmma
template <bool BROKEN>
__global__ void one_warp_left_out(u32 *out)
{
    float d[4] = {};
    fill_tiles();
    if (!BROKEN || T / 32 != 3 + out[0]) {
        WGMMA_FENCE;
        WGMMA(d, 0);
        WGMMA_COMMIT;
        WGMMA_WAIT;
    }
    out[T] = (u32)d[0];
}

// A stage that a bulk copy fills again while the product may still read it.
// bug stage_refilled: (only an arrival after its wgmma.wait_group does)
template <bool BROKEN>
__global__ void stage_refilled(u32 *out)
{
    if (T == 0) {
        bar_init(smem_addr(&full), 1);
        bar_init(smem_addr(&empty), 1);
        INIT_FENCE;
    }
    __syncthreads();
    if (T < 128) {
        float d[4] = {};
        for (u32 k = 0; k < 4; k++) {
            bar_wait(smem_addr(&full), k & 1);
            WGMMA_FENCE;
            WGMMA(d, 0); // stage_refilled
            WGMMA_COMMIT;
            if (!BROKEN) WGMMA_WAIT;
            if (T == 0) bar_arrive(smem_addr(&empty));
            if (BROKEN) WGMMA_WAIT;
        }
        out[65536 - 128 + T] = (u32)d[0];
    } else if (T == 128) {
        for (u32 k = 0; k < 4; k++) {
            if (k) bar_wait(smem_addr(&empty), (k - 1) & 1);
            bar_expect(smem_addr(&full), 4096);
            copy_in(tile[0], out, 4096, smem_addr(&full)); // stage_refilled
        }
    }
}

// ---- Registers -----------------------------------------------------------------------------------------------------------------

#define REGISTERS_UP(N)   asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N))
#define REGISTERS_DOWN(N) asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N))

// 384 threads with 168 registers each: two warpgroups take more than the third gives.
// bug registers_too_many: the block's pool has
template <bool BROKEN>
__global__ void __launch_bounds__(384, 1) registers_too_many(u32 *out)
{
    if (T < 128)
        REGISTERS_DOWN(40);
    else
        REGISTERS_UP(BROKEN ? 240 : 232); // registers_too_many
    out[T] = T;
}

// bug registers_of_one_lane: but these have gone another way and wait behind the branch
template <bool BROKEN>
__global__ void __launch_bounds__(384, 1) registers_of_one_lane(u32 *out)
{
    if (T < 128) {
        if (!BROKEN || T % 32 == out[512]) {
            out[T] += 1;
            REGISTERS_DOWN(40); // registers_of_one_lane
        }
        out[T] += T;
    }
}

// bug registers_of_one_warp: setmaxnreg: all four must execute each
template <bool BROKEN>
__global__ void __launch_bounds__(384, 1) registers_of_one_warp(u32 *out)
{
    if (T < (BROKEN ? 32 : 128)) REGISTERS_DOWN(40);
    out[T] = T;
}

// bug registers_differ: all four must execute the same
template <bool BROKEN>
__global__ void __launch_bounds__(384, 1) registers_differ(u32 *out)
{
    if (T < 32)
        REGISTERS_DOWN(40);
    else if (T < 128)
        REGISTERS_DOWN(BROKEN ? 24 : 40);
    out[T] = T;
}

static const bug bugs[] = {
    BUG(accumulators_not_cleared, 1, 128),  BUG(fence_missing, 1, 128),
    BUG(rescaled_without_fence, 1, 128),    BUG(fence_too_late, 1, 128),
    BUG(result_not_awaited, 1, 128),        BUG(result_of_the_latest, 1, 128),
    BUG(group_not_committed, 1, 128),       BUG(operand_not_fenced, 1, 128),
    BUG(operand_of_other_warps, 1, 128),    BUG(operand_overwritten, 1, 128),
    BUG_DYNAMIC(descriptor_beyond, 1, 128), BUG(descriptor_by_warp, 1, 128),
    BUG(one_warp_left_out, 1, 128),         BUG(stage_refilled, 1, 160),
    BUG(registers_too_many, 1, 384),        BUG(registers_of_one_lane, 1, 384),
    BUG(registers_of_one_warp, 1, 384),     BUG(registers_differ, 1, 384),
};

int main(int argc, char **argv)
{
    return bugs_main(bugs, argc, argv);
}
