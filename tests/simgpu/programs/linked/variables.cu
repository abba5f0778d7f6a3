// Variables that the other files use, and a kernel.
#include "linked.h"

extern __device__ int owned_by_main;

__device__ int counter;
__device__ float steps[N];
__constant__ float scale[4] = {2, 3, 4, 5};
__managed__ int launches = 40;
__shared__ float room[N];
__device__ int *of_another_file = &owned_by_main;

__global__ void other(float *out)
{
    *out = counted(10.0f);
}

void launch_other(float *out)
{
    other<<<1, 1>>>(out);
}
