// Rows that the blocks of a cluster share: how many blocks, and their launch.
#pragma once
#include "../../common/device/exchange.cuh"
#include "../../common/device/launch.cuh"
#include "row.cuh"

#include <cuda_runtime.h>

constexpr int MAX_SPLIT = 16;   // blocks of a row; more than 8 are not portable: an H200 has them
constexpr int THREAD_PACKS = 8; // that a thread keeps of a part

// Bytes of whole rows that are under way on an SM at most: more make it slower on an H100, and fewer on an H200.
constexpr int SLOW_MEMORY_BYTES = 64 << 10, FAST_MEMORY_BYTES = 192 << 10;

static inline cudaError_t ask_row_bytes(int *bytes)
{
    double gigabytes; // a second, of the memory
    const cudaError_t error = ask_bandwidth(&gigabytes);
    *bytes = gigabytes < SLOW_MEMORY ? SLOW_MEMORY_BYTES : FAST_MEMORY_BYTES;
    return error;
}

// Launches `rows` clusters: the fewest of 1, 2, 4, 8 or 16 blocks of at most `threads` whose parts of a row of `packs` they can keep; at 16 they
// may be larger, where a block has them in dynamic shared memory, `arrays` of them, and not (0) in registers. A block has no more warps than
// its part asks for. The kernel's last parameter is the share: packs of a part. Returns the launch's error.
template <typename... Parameters, typename... Arguments>
static cudaError_t launch_clusters(void (*kernel)(Parameters...), int rows, int packs, int arrays,
                                   int threads, cudaStream_t stream, Arguments... arguments)
{
    int split = 1;
    while (split < MAX_SPLIT && packs > split * threads * THREAD_PACKS) split *= 2;
    const int share = packs_each(packs, split);
    const int warps = (share - 1) / (32 * THREAD_PACKS) + 1;
    if (arrays == 0 && warps * 32 > threads) return cudaErrorInvalidValue;
    const int smem_bytes = arrays * share * PACK_BYTES;
    cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, smem_bytes);
    if (error == cudaSuccess)
        error = cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
    if (error != cudaSuccess) return error;

    return launch_early_clusters(kernel, rows * split, split, min(warps * 32, threads), smem_bytes, stream,
                                 arguments..., share);
}
