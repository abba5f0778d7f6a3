// Chapter 6, step 3: as many bytes in flight as the memory asks for, at all times.
//
// Question: step 2 has 64 KB under way on every SM, and between two kernels none. How many does the memory want?
//
// Grows from: step 2 (residual_packs).
// Little's law: bytes under way = bandwidth * latency. At about 1 us that is 3 TB/s * 1 us / 132 = 23 KB an SM on an H100, and 32 KB at the
// 4.2 TB/s of an H200. A thread has two loads under way, and an SM 2,048 threads:
//
//      bytes of a load                    4      8     16     16, two of each array
//      under way on an SM, KB            16     32     64     128
//      copied in the same time, H100   0.84   1.01   1.00     0.99    (results/trials/layers_in_flight_h100.csv)
//                               H200          0.97   1.00     0.99    (results/trials/layers_in_flight_h200.csv)
//
// So 16 bytes are right for both, twice of what Little's law says; with 4 it is the instructions that take too long.
//
// Between two kernels of a stream the GPU is idle for more than half a microsecond: the last block ends, all it wrote becomes visible, the
// next kernel's blocks start. launch_early lets them start before, as soon as there is room, and wait inside (griddepcontrol.wait):
//
//      kernel 1   ████████████████████▄▂                        ████████████████████▄▂
//      kernel 2                          ░████████████████                         ████████████████
//                                        start                                  ░ started, waiting
//
// New: launch_early (launch.cuh), loads that the L2 evicts last (load_piece_streamed, pack.cuh). New instructions: griddepcontrol, createpolicy.
// Registers: at most 24. Shared memory: none.
// Run: make chapter-6 OP=residual_forward STEP=residual_stream
#include "../../common/device/launch.cuh"
#include "../../common/device/pack.cuh"
#include "launchers.h"

#include <cuda_runtime.h>

constexpr int NUM_THREADS = 256;

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
    wait_for_kernels_before();
    const size_t packs = n / PACK<T>;
    const size_t p = (size_t)blockIdx.x * NUM_THREADS + threadIdx.x;
    if (p < packs) {
        const uint4 pack1 = load_piece_streamed<PACK<T>>(inp1 + p * PACK<T>);
        const uint4 pack2 = load_piece_streamed<PACK<T>>(inp2 + p * PACK<T>);
        ((uint4 *)out)[p] = add_packs<T>(pack1, pack2);
    } else if (p == packs)
        for (size_t i = p * PACK<T>; i < n; i++) from_float(&out[i], to_float(inp1[i]) + to_float(inp2[i]));
}

template <typename T>
static cudaError_t launch(const void *inp1, const void *inp2, void *out, size_t n, cudaStream_t stream)
{
    if (!inp1 || !inp2 || !out || n == 0) return cudaErrorInvalidValue;
    if (((uintptr_t)inp1 | (uintptr_t)inp2 | (uintptr_t)out) % PACK_BYTES != 0) return cudaErrorInvalidValue;
    const size_t grid = n / (NUM_THREADS * PACK<T>)+1; // one thread more than whole packs
    return launch_early(residual_stream_kernel<T>, grid, NUM_THREADS, 0, stream, (const T *)inp1,
                        (const T *)inp2, (T *)out, n);
}

extern "C" cudaError_t residual_stream(enum dtype dtype, const void *inp1, const void *inp2, void *out,
                                       size_t n, cudaStream_t stream)
{
    return dtype == BF16 ? launch<__nv_bfloat16>(inp1, inp2, out, n, stream)
                         : launch<float>(inp1, inp2, out, n, stream);
}
