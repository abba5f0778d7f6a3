// Two steps that launch the same kernel, and say so to the simulated GPU: it counts for each what it launched, and leaves out what is
// no step's.
#include <dlfcn.h>
#include <stdio.h>

#include <cuda_runtime.h>

__global__ void shared_by_steps(int *x)
{
    x[threadIdx.x] = 1;
}

int main()
{
    void (*step)(const char *) = (void (*)(const char *))dlsym(RTLD_DEFAULT, "simgpu_step");
    int *x;
    if (!step || cudaMalloc(&x, 4096)) return 1;
    for (int round = 0; round < 2; round++) {
        step(""); // not counted, and with a seed not run before the next
        shared_by_steps<<<5, 32>>>(x);
        step("first");
        shared_by_steps<<<1, 32>>>(x);
        if (cudaDeviceSynchronize()) return 1;
        step("second");
        shared_by_steps<<<3, 32>>>(x);
        if (cudaDeviceSynchronize()) return 1;
    }
    step(NULL);
    shared_by_steps<<<1, 64>>>(x);
    return cudaDeviceSynchronize() != cudaSuccess;
}
