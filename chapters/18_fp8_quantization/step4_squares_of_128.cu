// Chapter 18, step 4: a scale for each square of 128 x 128.
//
// Question: the products that will use these numbers are made tile by tile, and multiply each tile's sum by the scales of
// both its matrices. What if one of them has one scale for the whole tile?
//
// Grows from: step 3 (groups_of_128).
// Weights change slowly and have few outliers: they take squares. 128 scales fewer to load, and one multiplication where
// there would be one a column; and the transposed weights that the backward needs have the same squares: the same bytes,
// elsewhere. A square is 32 KB, and 256 threads hold it in their registers: eight packs each, all asked for before the
// first is used. What half a warp knows of its rows goes through shared memory to the block.
//
// Registers: at most 64. Shared memory: 32 bytes. Launched early (chapter 6, step 3).
// Run: make chapter-18 OP=weights STEP=squares_of_128
#include "../../common/device/fp8.cuh"
#include "../../common/device/launch.cuh"
#include "launchers.h"

constexpr int NUM_THREADS = 256;
constexpr int NUM_WARPS = NUM_THREADS / 32;
constexpr int ROWS = NUM_THREADS / GROUP_LANES; // at a time
constexpr int PACKS = GROUP / ROWS;             // a thread has in flight: of as many rows

template <typename FORMAT>
__global__ void __launch_bounds__(NUM_THREADS) squares_of_128_kernel(const __nv_bfloat16 *x, // (n, k)
                                                                     uint8_t *out,           // (n, k)
                                                                     float *scale,           // (squares)
                                                                     int n, int k, int groups, bool pow2)
{
    wait_for_kernels_before();
    __shared__ float warp_amax[NUM_WARPS];
    const int row0 = blockIdx.x / groups * GROUP + threadIdx.x / GROUP_LANES;
    const int col = blockIdx.x % groups * GROUP + threadIdx.x % GROUP_LANES * PACK<__nv_bfloat16>;
    uint4 frag[PACKS];
#pragma unroll
    for (int i = 0; i < PACKS; i++) {
        const int row = row0 + i * ROWS;
        frag[i] = row < n && col < k ? load_piece_streamed<PACK<__nv_bfloat16>>(x + (size_t)row * k + col)
                                     : make_uint4(0, 0, 0, 0);
    }
    __nv_bfloat162 amax = pack_amax(frag[0]);
#pragma unroll
    for (int i = 1; i < PACKS; i++) amax = larger(amax, pack_amax(frag[i]));
    const float mine = lanes_amax<32>(amax);
    if (threadIdx.x % 32 == 0) warp_amax[threadIdx.x / 32] = mine;
    __syncthreads(); // Every warp's is there.
    // Magnitudes are ordered as their bits are.
    const unsigned bits = __reduce_max_sync(0xffffffff, __float_as_uint(warp_amax[threadIdx.x % NUM_WARPS]));
    const float s = scale_of<FORMAT>(__uint_as_float(bits), pow2), inverse = __frcp_rn(s);
#pragma unroll
    for (int i = 0; i < PACKS; i++) {
        const int row = row0 + i * ROWS;
        float values[8];
        keep_packed(frag[i]);
        unpack(values, frag[i], __nv_bfloat16());
        if (row < n && col < k) *(uint2 *)(out + (size_t)row * k + col) = quantise<FORMAT>(values, inverse);
    }
    if (threadIdx.x == 0) scale[blockIdx.x] = s;
}

template <typename FORMAT>
static cudaError_t launch(FORMAT, const void *x, void *out, float *scale, int n, int k, bool pow2,
                          cudaStream_t stream)
{
    if (!x || !out || !scale || n <= 0 || k <= 0 || k % 16 != 0) return cudaErrorInvalidValue;
    if (((uintptr_t)x | (uintptr_t)out) % PACK_BYTES != 0) return cudaErrorInvalidValue;
    const int groups = (k - 1) / GROUP + 1;
    const long long grid = (long long)groups * ((n - 1) / GROUP + 1);
    if (grid > INT32_MAX) return cudaErrorInvalidConfiguration;
    return launch_early(squares_of_128_kernel<FORMAT>, (int)grid, NUM_THREADS, 0, stream,
                        (const __nv_bfloat16 *)x, (uint8_t *)out, scale, n, k, groups, pow2);
}

extern "C" cudaError_t squares_of_128(enum dtype format, const void *x, void *out, float *scale, int n, int k,
                                      bool pow2, cudaStream_t stream)
{
    return with_format(format, [&](auto f) { return launch(f, x, out, scale, n, k, pow2, stream); });
}
