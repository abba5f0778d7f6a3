/* driver.h: what libcuda.so.1 (driver.c) asks of libcudart.so.13 beyond the runtime's public calls. Each records and returns the
 * error that the driver's call gives: both number them alike. */
#ifndef DRIVER_H
#define DRIVER_H

#include <cuda_runtime_api.h>
#include <stddef.h>

struct binary;

/* Loads PTX text, or the PTX in a fatbin. */
cudaError_t simgpu_load_module(struct binary **module, const void *image, const char *caller);
/* A kernel of it, for cudaLaunchKernel and every other call that takes one. */
cudaError_t simgpu_module_kernel(struct binary *module, const char *name, cudaKernel_t *kernel,
                                 const char *caller);
cudaError_t simgpu_module_variable(struct binary *module, const char *name, void **address, size_t *bytes,
                                   const char *caller);
/* Launches with the arguments packed into a buffer, each where the kernel's parameters have it. */
cudaError_t simgpu_launch_packed(cudaKernel_t kernel, dim3 grid, dim3 block, void *buffer, size_t bytes,
                                 size_t dynamic_bytes, cudaStream_t stream);

#endif
