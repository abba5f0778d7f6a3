// Chapter 18, step 5: the same numbers along the rows and along the columns, read once.
//
// Question: the forward multiplies activations along k, the backward the same along m, for the weights' gradient; and 8-bit
// products take both matrices with their rows along what is summed up. Along m other 128 numbers share a scale. Must x be
// kept in bf16, and read again?
//
// Grows from: step 4 (squares_of_128).
// A block has its square in registers anyway. Eight rows of a lane's eight columns are neighbours now, not 16 apart, so that
// a lane finds eight columns' largest of eight rows without a word to others, and its eight bytes of a column are neighbours
// in the transposed square. The other warps' maxima come through shared memory, and so does the square on its way out: a
// row of 128 bytes for each column, swizzled as in chapter 4, written 8 bytes at a time, read 16.
//
// Two divisions, amax / 448 and 1 / scale, take some 25 instructions: nothing for 128 numbers, but much where each of 16 lanes
// makes them for each of its 8 rows and 8 columns, that is for 64. A lane makes those of one row, and a thread those of one column.
//
//      registers: rows r to r + 7, columns c to c + 7  ->  shared memory: rows c to c + 7, bytes r to r + 7  ->  out_t
//
// Registers: at most 64. Shared memory: 19,456 bytes. Launched early (chapter 6, step 3).
// Run: make chapter-18 OP=transposed STEP=transposed
#include "../../common/device/fp8.cuh"
#include "../../common/device/launch.cuh"
#include "launchers.h"

constexpr int NUM_THREADS = 256;
constexpr int NUM_WARPS = NUM_THREADS / 32;
constexpr int BLOCKS_PER_SM = 4;
constexpr int ROWS = 8; // a thread has in flight, a pack of each; and as many columns
static_assert(NUM_THREADS / GROUP_LANES * ROWS == GROUP, "the threads have a square");

// Eight magnitudes, and the larger of eight places each.
static __device__ uint4 magnitudes(uint4 pack)
{
    return make_uint4(pack.x & 0x7fff7fff, pack.y & 0x7fff7fff, pack.z & 0x7fff7fff, pack.w & 0x7fff7fff);
}
static __device__ uint32_t larger(uint32_t a, uint32_t b)
{
    const __nv_bfloat162 pair =
        larger(*reinterpret_cast<__nv_bfloat162 *>(&a), *reinterpret_cast<__nv_bfloat162 *>(&b));
    return *reinterpret_cast<const uint32_t *>(&pair);
}
static __device__ uint4 larger(uint4 a, uint4 b)
{
    return make_uint4(larger(a.x, b.x), larger(a.y, b.y), larger(a.z, b.z), larger(a.w, b.w));
}
static __device__ uint4 shuffle_xor(uint4 pack, int lanes)
{
    return make_uint4(__shfl_xor_sync(0xffffffff, pack.x, lanes), __shfl_xor_sync(0xffffffff, pack.y, lanes),
                      __shfl_xor_sync(0xffffffff, pack.z, lanes), __shfl_xor_sync(0xffffffff, pack.w, lanes));
}

// Element c, 0 to 7, of a pack.
static __device__ float element(uint4 pack, int c)
{
    const uint32_t words[4] = {pack.x, pack.y, pack.z, pack.w};
    return __uint_as_float(c % 2 ? words[c / 2] & 0xffff0000u : words[c / 2] << 16);
}

template <typename FORMAT>
__global__ void __launch_bounds__(NUM_THREADS, BLOCKS_PER_SM)
    transposed_kernel(const __nv_bfloat16 *x, // (m, k)
                      uint8_t *out,           // (m, k)
                      float *scale,           // (groups, scale_rows)
                      uint8_t *out_t,         // (k, out_t_cols)
                      float *scale_t,         // (ceil(m / 128), k)
                      int m, int k, int groups, int scale_rows, int out_t_cols, bool pow2)
{
    wait_for_kernels_before();
    __shared__ __align__(16) __nv_bfloat16 warp_amax[NUM_WARPS][GROUP]; // of 16 rows, (warp, column)
    __shared__ float4 inverse_t[2][GROUP_LANES + 4]; // 1 / scale: (half, eight columns), in other banks
    __shared__ __align__(1024) uint8_t square_t[GROUP * GROUP]; // (column, row), swizzled
    const int tile = blockIdx.x / groups, group = blockIdx.x % groups;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, pack = lane % GROUP_LANES;
    const int row0 = tile * GROUP + threadIdx.x / GROUP_LANES * ROWS;
    const int col = group * GROUP + pack * PACK<__nv_bfloat16>;
    const int rows = col < k ? m - row0 : 0; // of this thread's, that there are
    const __nv_bfloat16 *src = x + (size_t)row0 * k + col;
    uint8_t *dst = out + (size_t)row0 * k + col;
    uint4 frag[ROWS];
#pragma unroll
    for (int i = 0; i < ROWS; i++)
        frag[i] =
            i < rows ? load_piece_streamed<PACK<__nv_bfloat16>>(src + (size_t)i * k) : make_uint4(0, 0, 0, 0);

    uint4 amax = make_uint4(0, 0, 0, 0);
    __nv_bfloat162 row_amax[ROWS];
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
        amax = larger(amax, magnitudes(frag[i]));
        row_amax[i] = pack_amax(frag[i]);
    }
    amax = larger(amax, shuffle_xor(amax, 16)); // the warp's other eight rows
    if (lane < GROUP_LANES) *(uint4 *)&warp_amax[warp][pack * 8] = amax;

    // The rows. Lane i of a group's 16 makes the scale of row i % ROWS, for all.
    const __nv_bfloat162 own = rows_amax(row_amax);
    const float s = scale_of<FORMAT>(__bfloat162float(__hmax_nan(own.x, own.y)), pow2);
    const float inverse = __frcp_rn(s);
    if (pack < ROWS && row0 + pack < scale_rows)
        scale[(size_t)group * scale_rows + row0 + pack] = row0 + pack < m ? s : 0.0f;

    __syncthreads();           // Every warp's maxima of the columns are there.
    if (threadIdx.x < GROUP) { // a column each
        __nv_bfloat16 largest = warp_amax[0][threadIdx.x];
#pragma unroll
        for (int w = 1; w < NUM_WARPS; w++) largest = __hmax_nan(largest, warp_amax[w][threadIdx.x]);
        const float s = scale_of<FORMAT>(__bfloat162float(largest), pow2);
        ((float *)&inverse_t[threadIdx.x / 4 % 2][threadIdx.x / 8])[threadIdx.x % 4] = __frcp_rn(s);
        if (group * GROUP + threadIdx.x < k) scale_t[(size_t)tile * k + group * GROUP + threadIdx.x] = s;
    }
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
        float values[8];
        keep_packed(frag[i]);
        unpack(values, frag[i], __nv_bfloat16());
        const uint2 bytes = quantise<FORMAT>(values, __shfl_sync(0xffffffff, inverse, i, GROUP_LANES));
        if (i < rows) *(uint2 *)(dst + (size_t)i * k) = bytes;
    }

    __syncthreads(); // The columns' scales are there.
#pragma unroll
    for (int i = 0; i < ROWS; i++) keep_packed(frag[i]);
    const float4 inverses[2] = {inverse_t[0][pack], inverse_t[1][pack]};
#pragma unroll
    for (int c = 0; c < 8; c++) {
        float column[ROWS];
#pragma unroll
        for (int i = 0; i < ROWS; i++) column[i] = element(frag[i], c);
        *(uint2 *)(square_t + swizzled(pack * 8 + c, threadIdx.x / GROUP_LANES)) =
            quantise<FORMAT>(column, ((const float *)inverses)[c]);
    }

    __syncthreads(); // The square is there.
    const int line0 = threadIdx.x / 8, chunk = threadIdx.x % 8, row_t = tile * GROUP + chunk * 16;
    uint8_t *dst_t = out_t + (size_t)(group * GROUP + line0) * out_t_cols + row_t;
#pragma unroll
    for (int i = 0; i < GROUP; i += NUM_THREADS / 8) {
        const int line = line0 + i;
        if (group * GROUP + line >= k || row_t >= out_t_cols) continue;
        const uint4 bytes = *(const uint4 *)(square_t + (swizzled(line, 2 * chunk) & ~15));
        *(uint4 *)(dst_t + (size_t)i * out_t_cols) =
            line < GROUP / 2 ? bytes : make_uint4(bytes.z, bytes.w, bytes.x, bytes.y);
    }
}

template <typename FORMAT>
static cudaError_t launch(FORMAT, const void *x, void *out, float *scale, void *out_t, float *scale_t, int m,
                          int k, bool pow2, cudaStream_t stream)
{
    if (!x || !out || !scale || !out_t || !scale_t) return cudaErrorInvalidValue;
    if (m <= 0 || m > INT32_MAX - 15 || k <= 0 || k % 16 != 0) return cudaErrorInvalidValue;
    if (((uintptr_t)x | (uintptr_t)out | (uintptr_t)out_t) % PACK_BYTES != 0) return cudaErrorInvalidValue;
    const int groups = (k - 1) / GROUP + 1, scale_rows = (m + 3) / 4 * 4, out_t_cols = (m + 15) / 16 * 16;
    const long long grid = (long long)groups * ((m - 1) / GROUP + 1);
    if (grid > INT32_MAX) return cudaErrorInvalidConfiguration;
    return launch_early(transposed_kernel<FORMAT>, (int)grid, NUM_THREADS, 0, stream,
                        (const __nv_bfloat16 *)x, (uint8_t *)out, scale, (uint8_t *)out_t, scale_t, m, k,
                        groups, scale_rows, out_t_cols, pow2);
}

extern "C" cudaError_t transposed(enum dtype format, const void *x, void *out, float *scale, void *out_t,
                                  float *scale_t, int m, int k, bool pow2, cudaStream_t stream)
{
    return with_format(format,
                       [&](auto f) { return launch(f, x, out, scale, out_t, scale_t, m, k, pow2, stream); });
}
