// What the programs of the tests that call a chapter's launchers have in common.
#pragma once

#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>

// Ends the program with status 3 and the error's name.
static inline void check(cudaError_t error)
{
    if (error == cudaSuccess) return;
    fprintf(stderr, "%s\n", cudaGetErrorName(error));
    exit(3);
}

// Device memory with these bytes, or zeros.
static inline void *upload(const void *from, size_t bytes)
{
    void *to;
    check(cudaMalloc(&to, bytes));
    check(from ? cudaMemcpy(to, from, bytes, cudaMemcpyHostToDevice) : cudaMemset(to, 0, bytes));
    return to;
}
