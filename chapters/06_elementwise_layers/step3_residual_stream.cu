// Chapter 6, step 3: blocks of 1,024 threads.
//
// Question: a thread waits for its only two loads. Does it gain to have more in flight, or to start more threads at once?
//
// Grows from: step 2 (residual_packs).
// A thread can have any number of packs, PACKS, and asks for all of them before it adds the first: PACKS * 2 * 16 bytes in
// flight, for an SM's 2,048 threads 64 KB with one pack, 128 KB with two. Little's law asks for 4.2 TB/s * 1 us / 132 = 32 KB,
// and two packs cost 0.1 to 0.3 % in blocks of 512: so it has one. What gains is 1,024 threads for 512, 0.2 to 0.6 %
// (results/trials/layers_variants_h100.csv). With two, as steps 4 and 5 have them, a block's packs are neighbours:
//
//      block 0:  packs 0 to 1023 (thread 0 to 1023), packs 1024 to 2047 (thread 0 to 1023);  block 1: packs 2048 …
//
// ld.cs and st.cs, which mark lines that only stream through as the first to be evicted, gain nothing here
// (06_block_sizes.csv).
//
// Registers: at most 24. Shared memory: none.
// Run: make chapter-6 OP=residual_forward STEP=residual_stream
#include "../../common/device/pack.cuh"
#include "launchers.h"

#include <cuda_runtime.h>

constexpr int NUM_THREADS = 1024;
constexpr int PACKS = 1; // of each array, a thread has in flight

template <typename T>
static __device__ uint4 add_packs(uint4 pack1, uint4 pack2)
{
    float values1[PACK<T>], values2[PACK<T>];
    unpack(values1, pack1, T());
    unpack(values2, pack2, T());
#pragma unroll
    for (int k = 0; k < PACK<T>; k++) values1[k] += values2[k];
    return make_pack(values1, T());
}

template <typename T>
__global__ void __launch_bounds__(NUM_THREADS) residual_stream_kernel(const T *inp1, // (n)
                                                                      const T *inp2, // (n)
                                                                      T *out,        // (n)
                                                                      size_t n)
{
    const size_t packs = n / PACK<T>;
    const size_t first = (size_t)blockIdx.x * (NUM_THREADS * PACKS) + threadIdx.x;
    uint4 frag1[PACKS], frag2[PACKS];
#pragma unroll
    for (int i = 0; i < PACKS; i++) {
        const size_t p = first + i * NUM_THREADS;
        if (p >= packs) continue;
        frag1[i] = ((const uint4 *)inp1)[p];
        frag2[i] = ((const uint4 *)inp2)[p];
    }
#pragma unroll
    for (int i = 0; i < PACKS; i++) {
        const size_t p = first + i * NUM_THREADS;
        if (p < packs)
            ((uint4 *)out)[p] = add_packs<T>(frag1[i], frag2[i]);
        else if (p == packs)
            for (size_t j = p * PACK<T>; j < n; j++)
                from_float(&out[j], to_float(inp1[j]) + to_float(inp2[j]));
    }
}

template <typename T>
static cudaError_t launch(const void *inp1, const void *inp2, void *out, size_t n, cudaStream_t stream)
{
    if (!inp1 || !inp2 || !out || n == 0) return cudaErrorInvalidValue;
    if (((uintptr_t)inp1 | (uintptr_t)inp2 | (uintptr_t)out) % PACK_BYTES != 0) return cudaErrorInvalidValue;
    const size_t grid = (n - 1) / (NUM_THREADS * PACKS * PACK<T>)+1;
    residual_stream_kernel<<<grid, NUM_THREADS, 0, stream>>>((const T *)inp1, (const T *)inp2, (T *)out, n);
    return cudaGetLastError();
}

extern "C" cudaError_t residual_stream(enum dtype dtype, const void *inp1, const void *inp2, void *out,
                                       size_t n, cudaStream_t stream)
{
    return dtype == BF16 ? launch<__nv_bfloat16>(inp1, inp2, out, n, stream)
                         : launch<float>(inp1, inp2, out, n, stream);
}
