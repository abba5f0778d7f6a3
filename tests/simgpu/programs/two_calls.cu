// Lanes of one warp that reach a shuffle or a reduction through different calls of the function that holds it: the same
// instruction, so they exchange values, although each call has registers of its own.
#include "expect.h"

__device__ __noinline__ unsigned total(unsigned x)
{
    return __reduce_add_sync(~0u, x);
}

__device__ __noinline__ unsigned long long neighbour(unsigned x)
{
    unsigned long long wide = __shfl_xor_sync(~0u, (unsigned long long)x << 20, 1);
    return wide + __ballot_sync(~0u, x & 1);
}

__global__ void two_calls(unsigned *sums, unsigned long long *neighbours)
{
    unsigned t = threadIdx.x;
    sums[t] = t % 3 ? total(t) + 1 : total(2 * t) + 2;
    neighbours[t] = t & 2 ? neighbour(t) : neighbour(t) + 1;
}

int main()
{
    unsigned *sums, host_sums[32], sum = 0;
    unsigned long long *neighbours, host_neighbours[32];
    CUDA(cudaMalloc(&sums, sizeof host_sums));
    CUDA(cudaMalloc(&neighbours, sizeof host_neighbours));
    two_calls<<<1, 32>>>(sums, neighbours);
    CUDA(cudaMemcpy(host_sums, sums, sizeof host_sums, cudaMemcpyDeviceToHost));
    CUDA(cudaMemcpy(host_neighbours, neighbours, sizeof host_neighbours, cudaMemcpyDeviceToHost));
    for (unsigned t = 0; t < 32; t++) sum += t % 3 ? t : 2 * t;
    for (unsigned t = 0; t < 32; t++) {
        EXPECT(host_sums[t] == sum + (t % 3 ? 1 : 2));
        EXPECT(host_neighbours[t] == ((unsigned long long)(t ^ 1) << 20) + 0xaaaaaaaau + (t & 2 ? 0 : 1));
    }
    return verdict();
}
