// Functions that the other files call; a static function and a static variable that are called as theirs are.
#include "linked.h"

static __device__ float own(float x)
{
    return x * x;
}
static __device__ float secret = 6;

__device__ float shift(float x)
{
    return 2 * x;
}

// The block's values in reverse order. Its shared memory lies beside that of the kernel.
__device__ __noinline__ float reversed(float x)
{
    __shared__ float values[N];
    values[threadIdx.x] = x;
    __syncthreads();
    return values[N - 1 - threadIdx.x];
}

__device__ void fill_dynamic(float x)
{
    extern __shared__ float dynamic[];
    dynamic[threadIdx.x] = x;
}

__device__ float multiply(float x)
{
    return x * secret;
}

__device__ void store(float *to, float x)
{
    *to = x; // astray
}

__device__ function functions[3] = {own, multiply, shift};
