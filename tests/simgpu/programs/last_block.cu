// The last block of a grid to count itself resets the counter with an ordinary store: it has seen all the others' atomics, so that
// nothing races, however close in time they are.
#include "expect.h"

__device__ unsigned counted, launches;

__global__ void count_blocks()
{
    __threadfence();
    if (atomicAdd(&counted, 1) < gridDim.x - 1) return;
    __threadfence();
    counted = 0;
    launches++;
}

int main()
{
    const unsigned expected = 3000;
    unsigned found = 0;
    for (unsigned i = 0; i < expected; i++) count_blocks<<<32, 1>>>();
    CUDA(cudaMemcpyFromSymbol(&found, launches, sizeof found));
    EXPECT(found == expected);
    return verdict();
}
