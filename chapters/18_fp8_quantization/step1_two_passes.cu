// Chapter 18, step 1: one scale for a tensor, found just in time.
//
// Question: 8 bits with 3 of fraction reach from 2^-9 to 448, and a tensor's numbers lie anywhere. Divided by a scale they
// lie there, the largest at 448. Who knows the largest?
//
// Grows from: nothing.
// Nobody, before all have been looked at. So x is read twice: once for amax, its largest magnitude, once to be cast. A float's
// magnitudes are ordered as the integers that its bits are, and atomicMax on these has no order of blocks in it; NaN is
// above infinity. A block finds its own in shared memory first: all that add to one address of the L2 wait for each other.
// The second reading begins at the end: what was read last, the L2 may still have.
//
//      x 2n bytes -> amax      x 2n bytes, amax -> out n bytes, scale          5 bytes an element where 3 would do
//
// New instruction: cvt.rn.satfinite.e4m3x2. Registers: at most 40. Shared memory: 4 bytes. Launched early (chapter 6,
// step 3).
// Run: make chapter-18 OP=per_tensor STEP=two_passes
#include "../../common/device/fp8.cuh"
#include "../../common/device/launch.cuh"
#include "../../common/device/scratch.h"
#include "launchers.h"

constexpr int NUM_THREADS = 512;
constexpr int PACKS = 4; // a thread has in flight
constexpr int BLOCK_PACKS = NUM_THREADS * PACKS;

// This thread's packs of the block's: zeros past the last whole one.
static __device__ void load_packs(uint4 (&frag)[PACKS], const __nv_bfloat16 *x, size_t first, size_t packs)
{
#pragma unroll
    for (int i = 0; i < PACKS; i++) {
        const size_t p = first + i * NUM_THREADS;
        frag[i] = p < packs ? load_piece_streamed<8>(x + p * 8) : make_uint4(0, 0, 0, 0);
    }
}

__global__ void __launch_bounds__(NUM_THREADS) amax_kernel(const __nv_bfloat16 *x, // (n)
                                                           unsigned *amax_bits, size_t n)
{
    wait_for_kernels_before();
    const size_t packs = n / PACK<__nv_bfloat16>;
    const size_t first = (size_t)blockIdx.x * BLOCK_PACKS + threadIdx.x;
    uint4 frag[PACKS];
    load_packs(frag, x, first, packs);
    __nv_bfloat162 amax = pack_amax(frag[0]);
#pragma unroll
    for (int i = 1; i < PACKS; i++) amax = larger(amax, pack_amax(frag[i]));
    if (blockIdx.x == 0 && threadIdx.x < n % PACK<__nv_bfloat16>) {
        const __nv_bfloat16 last = __habs(x[packs * PACK<__nv_bfloat16> + threadIdx.x]);
        amax = larger(amax, __halves2bfloat162(last, last));
    }
    __shared__ unsigned block_amax;
    if (threadIdx.x == 0) block_amax = 0;
    __syncthreads(); // It is 0.
    const float warp_amax = lanes_amax<32>(amax);
    if (threadIdx.x % 32 == 0) atomicMax(&block_amax, __float_as_uint(warp_amax));
    __syncthreads(); // Every warp's is in it.
    if (threadIdx.x == 0) atomicMax(amax_bits, block_amax);
}

template <typename FORMAT>
__global__ void __launch_bounds__(NUM_THREADS) two_passes_kernel(const __nv_bfloat16 *x, // (n)
                                                                 const unsigned *amax_bits,
                                                                 uint8_t *out, // (n)
                                                                 float *scale, // (1)
                                                                 size_t n)
{
    wait_for_kernels_before();
    const size_t packs = n / PACK<__nv_bfloat16>;
    const size_t first = (size_t)(gridDim.x - 1 - blockIdx.x) * BLOCK_PACKS + threadIdx.x;
    uint4 frag[PACKS];
    load_packs(frag, x, first, packs);
    const float s = scale_of<FORMAT>(__uint_as_float(*amax_bits), false), inverse = __frcp_rn(s);
#pragma unroll
    for (int i = 0; i < PACKS; i++) {
        const size_t p = first + i * NUM_THREADS;
        float values[8];
        unpack(values, frag[i], __nv_bfloat16());
        if (p < packs) __stcs((uint2 *)out + p, quantise<FORMAT>(values, inverse));
    }
    if (blockIdx.x == 0 && threadIdx.x < n % PACK<__nv_bfloat16>) {
        const size_t last = packs * PACK<__nv_bfloat16> + threadIdx.x;
        out[last] = FORMAT::pair(to_float(x[last]) * inverse, 0.0f) & 0xff;
    }
    if (blockIdx.x == 0 && threadIdx.x == 0) *scale = s;
}

template <typename FORMAT>
static cudaError_t launch(FORMAT, const void *x, void *out, float *scale, size_t n, cudaStream_t stream)
{
    if (!x || !out || !scale || n == 0) return cudaErrorInvalidValue;
    if (((uintptr_t)x | (uintptr_t)out) % PACK_BYTES != 0) return cudaErrorInvalidValue;
    void *amax_bits;
    cudaError_t error = get_scratch(sizeof(unsigned), &amax_bits);
    if (error == cudaSuccess) error = cudaMemsetAsync(amax_bits, 0, sizeof(unsigned), stream);
    if (error != cudaSuccess) return error;
    const size_t grid = (n - 1) / (BLOCK_PACKS * PACK<__nv_bfloat16>)+1;
    error = launch_early(amax_kernel, grid, NUM_THREADS, 0, stream, (const __nv_bfloat16 *)x,
                         (unsigned *)amax_bits, n);
    if (error != cudaSuccess) return error;
    return launch_early(two_passes_kernel<FORMAT>, grid, NUM_THREADS, 0, stream, (const __nv_bfloat16 *)x,
                        (const unsigned *)amax_bits, (uint8_t *)out, scale, n);
}

extern "C" cudaError_t two_passes(enum dtype format, const void *x, void *out, float *scale, size_t n,
                                  cudaStream_t stream)
{
    return with_format(format, [&](auto f) { return launch(f, x, out, scale, n, stream); });
}
