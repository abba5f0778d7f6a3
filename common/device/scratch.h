// Device memory that a launcher needs besides its tensors. C and CUDA alike.
#pragma once
#include <stddef.h>

#include <cuda_runtime_api.h>

// At least `bytes` bytes, which all launches from the file that includes this share, one after the other. They are kept for the next:
// a CUDA graph may have recorded them, and has then been launched without it before. Returns the error of cudaFree or cudaMalloc.
static inline cudaError_t get_scratch(size_t bytes, void **scratch)
{
    static void *memory;
    static size_t size;
    cudaError_t error = cudaSuccess;
    if (size < bytes) {
        error = cudaFree(memory);
        size = 0;
        memory = NULL;
        if (error == cudaSuccess) error = cudaMalloc(&memory, bytes);
        if (error == cudaSuccess) size = bytes;
    }
    *scratch = memory;
    return error;
}
