// Rows that the blocks of a cluster share: how many blocks, and their launch.
#pragma once
#include "../../common/device/exchange.cuh"
#include "../../common/device/launch.cuh"
#include "row.cuh"

#include <cuda_runtime.h>

constexpr int MAX_SPLIT = 16; // blocks of a row; more than 8 are not portable: an H200 has them

// Bytes of whole rows that are under way on an SM at most: more make it slower on an H100, and fewer on an H200.
constexpr int SLOW_MEMORY_BYTES = 64 << 10, FAST_MEMORY_BYTES = 192 << 10;

static inline cudaError_t ask_row_bytes(int *bytes)
{
    double gigabytes; // a second, of the memory
    const cudaError_t error = ask_bandwidth(&gigabytes);
    *bytes = gigabytes < SLOW_MEMORY ? SLOW_MEMORY_BYTES : FAST_MEMORY_BYTES;
    return error;
}

// Launches `rows` clusters of `threads` a block: the fewest of 1, 2, 4, 8 or 16 blocks whose parts of a row of `packs` are at
// most part_packs; at 16 they may be larger, where a block has them in dynamic shared memory, `arrays` of them, and not (0) in
// registers. Returns the launch's error.
template <typename... Parameters, typename... Arguments>
static cudaError_t launch_clusters(void (*kernel)(Parameters...), int rows, int packs, int part_packs,
                                   int arrays, int threads, cudaStream_t stream, Arguments... arguments)
{
    int split = 1;
    while (split < MAX_SPLIT && packs > split * part_packs) split *= 2;
    if (arrays == 0 && packs > split * part_packs) return cudaErrorInvalidValue;
    const int smem_bytes = arrays * packs_each(packs, split) * PACK_BYTES;
    cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, smem_bytes);
    if (error == cudaSuccess)
        error = cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
    if (error != cudaSuccess) return error;

    return launch_early_clusters(kernel, rows * split, split, threads, smem_bytes, stream, arguments...);
}
