// Chapter 18, step 3: a scale for each 128 neighbours of a row.
//
// Question: one token among thousands is a hundred thousand times as large, and has the only scale: 448 for it leaves nothing
// for the others. And what if nobody has to wait for all of x, because a scale is of what one warp holds?
//
// Grows from: step 2 (delayed).
// 128 numbers of a row are 16 lanes' packs. Four shuffles, and all 16 know their amax; it is never in memory, and neither a
// second pass nor a history is needed. A block's 16 half-warps have 64 rows of one column of groups:
//
//      x (m, k):   lanes 0-15: 128 k of row r      lanes 16-31: of row r + 1      four rows a lane, 16 rows apart
//      scale (ceil(k / 128), m):  a column of groups is a row: for 64 rows 256 bytes, which TMA can load at once
//
// Registers: at most 48. Shared memory: none. Launched early (chapter 6, step 3).
// Run: make chapter-18 OP=activations STEP=groups_of_128
#include "../../common/device/fp8.cuh"
#include "../../common/device/launch.cuh"
#include "launchers.h"

constexpr int NUM_THREADS = 256;
constexpr int ROWS = NUM_THREADS / GROUP_LANES; // at a time
constexpr int PACKS = 4;                        // a thread has in flight: of as many rows
constexpr int BLOCK_M = ROWS * PACKS;

template <typename FORMAT>
__global__ void __launch_bounds__(NUM_THREADS)
    groups_of_128_kernel(const __nv_bfloat16 *x, // (m, k)
                         uint8_t *out,           // (m, k)
                         float *scale,           // (groups, scale_rows)
                         int m, int k, int groups, int scale_rows, bool pow2)
{
    wait_for_kernels_before();
    const int group = blockIdx.x % groups; // neighbouring blocks read neighbouring bytes
    const int row0 = blockIdx.x / groups * BLOCK_M + threadIdx.x / GROUP_LANES;
    const int col = group * GROUP + threadIdx.x % GROUP_LANES * PACK<__nv_bfloat16>;
    uint4 frag[PACKS];
#pragma unroll
    for (int i = 0; i < PACKS; i++) {
        const int row = row0 + i * ROWS;
        frag[i] = row < m && col < k ? load_piece_streamed<PACK<__nv_bfloat16>>(x + (size_t)row * k + col)
                                     : make_uint4(0, 0, 0, 0);
    }
    // EXERCISE 18.2: each row's scale, its numbers in 8 bits, and the scale where step 5 wants it (about 12 lines)
#pragma unroll
    for (int i = 0; i < PACKS; i++) {
        const int row = row0 + i * ROWS;
        const float s = scale_of<FORMAT>(lanes_amax<GROUP_LANES>(pack_amax(frag[i])), pow2);
        float values[8];
        unpack(values, frag[i], __nv_bfloat16());
        if (row < m && col < k)
            *(uint2 *)(out + (size_t)row * k + col) = quantise<FORMAT>(values, __frcp_rn(s));
        if (threadIdx.x % GROUP_LANES == 0 && row < scale_rows)
            scale[(size_t)group * scale_rows + row] = row < m ? s : 0.0f;
    }
    // STUB if (row0 < scale_rows)
    // STUB     scale[(size_t)group * scale_rows + row0] = scale_of<FORMAT>(lanes_amax<32>(pack_amax(frag[0])), pow2);
    // STUB if (row0 < m && col < k) out[(size_t)row0 * k + col] = 0;
    // END
}

template <typename FORMAT>
static cudaError_t launch(FORMAT, const void *x, void *out, float *scale, int m, int k, bool pow2,
                          cudaStream_t stream)
{
    if (!x || !out || !scale || m <= 0 || k <= 0 || k % 16 != 0) return cudaErrorInvalidValue;
    if (((uintptr_t)x | (uintptr_t)out) % PACK_BYTES != 0) return cudaErrorInvalidValue;
    const int groups = (k - 1) / GROUP + 1, scale_rows = (m + 3) / 4 * 4;
    const long long grid = (long long)groups * ((scale_rows - 1) / BLOCK_M + 1);
    if (grid > INT32_MAX) return cudaErrorInvalidConfiguration;
    return launch_early(groups_of_128_kernel<FORMAT>, (int)grid, NUM_THREADS, 0, stream,
                        (const __nv_bfloat16 *)x, (uint8_t *)out, scale, m, k, groups, scale_rows, pow2);
}

extern "C" cudaError_t groups_of_128(enum dtype format, const void *x, void *out, float *scale, int m, int k,
                                     bool pow2, cudaStream_t stream)
{
    return with_format(format, [&](auto f) { return launch(f, x, out, scale, m, k, pow2, stream); });
}
