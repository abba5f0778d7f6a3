// Chapter 6, step 3: as many bytes in flight as the memory asks for, at all times.
//
// Question: step 2 has 64 KB under way on every SM, and between two kernels none. How many does the memory want?
//
// Grows from: step 2 (residual_packs).
// Little's law: bytes under way = bandwidth * latency. At about 1 us that is 3 TB/s * 1 us / 132 = 23 KB an SM on an H100, and 32 KB at the
// 4.2 TB/s of an H200. A thread has two loads under way, and an SM 2,048 threads:
//
//      bytes of a load                  4      8     16     16, two of each array
//      under way on an SM, KB          16     32     64     128
//      copied in the same time       0.83   1.00   0.99     0.98    (results/trials/layers_in_flight_h100.csv)
//
// So 16 bytes, which took the fewest instructions, are too many here; they are right where a thread has one load, as GELU's has (step 6). With 4
// bytes it is the instructions that take too long.
//
// Between two kernels of a stream the GPU is idle for more than half a microsecond: the last block ends, all it wrote becomes visible, the
// next kernel's blocks start. launch_early lets them start before, as soon as there is room, and wait inside (griddepcontrol.wait):
//
//      kernel 1   ████████████████████▄▂                        ████████████████████▄▂
//      kernel 2                          ░████████████████                         ████████████████
//                                        start                                  ░ started, waiting
//
// New: half packs (pack.cuh), launch_early (launch.cuh). New instructions: griddepcontrol.
// Registers: at most 24. Shared memory: none.
// Run: make chapter-6 OP=residual_forward STEP=residual_stream
#include "../../common/device/launch.cuh"
#include "../../common/device/pack.cuh"
#include "launchers.h"

#include <cuda_runtime.h>

constexpr int NUM_THREADS = 512;

template <typename T>
static __device__ uint2 add_halves(uint2 half1, uint2 half2)
{
    float values1[HALF_PACK<T>], values2[HALF_PACK<T>];
    unpack(values1, half1, T());
    unpack(values2, half2, T());
#pragma unroll
    for (int k = 0; k < HALF_PACK<T>; k++) values1[k] += values2[k];
    return make_pack(values1, T());
}

template <typename T>
__global__ void __launch_bounds__(NUM_THREADS) residual_stream_kernel(const T *inp1, // (n)
                                                                      const T *inp2, // (n)
                                                                      T *out,        // (n)
                                                                      size_t n)
{
    wait_for_kernels_before();
    const size_t halves = n / HALF_PACK<T>;
    const size_t h = (size_t)blockIdx.x * NUM_THREADS + threadIdx.x;
    if (h < halves)
        ((uint2 *)out)[h] = add_halves<T>(((const uint2 *)inp1)[h], ((const uint2 *)inp2)[h]);
    else if (h == halves)
        for (size_t i = h * HALF_PACK<T>; i < n; i++)
            from_float(&out[i], to_float(inp1[i]) + to_float(inp2[i]));
}

template <typename T>
static cudaError_t launch(const void *inp1, const void *inp2, void *out, size_t n, cudaStream_t stream)
{
    if (!inp1 || !inp2 || !out || n == 0) return cudaErrorInvalidValue;
    if (((uintptr_t)inp1 | (uintptr_t)inp2 | (uintptr_t)out) % PACK_BYTES != 0) return cudaErrorInvalidValue;
    const size_t grid = n / (NUM_THREADS * HALF_PACK<T>)+1; // one thread more than whole halves
    return launch_early(residual_stream_kernel<T>, grid, NUM_THREADS, 0, stream, (const T *)inp1,
                        (const T *)inp2, (T *)out, n);
}

extern "C" cudaError_t residual_stream(enum dtype dtype, const void *inp1, const void *inp2, void *out,
                                       size_t n, cudaStream_t stream)
{
    return dtype == BF16 ? launch<__nv_bfloat16>(inp1, inp2, out, n, stream)
                         : launch<float>(inp1, inp2, out, n, stream);
}
