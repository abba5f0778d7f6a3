// Lane 0 of a warp waits long for another block while its 31 siblings wait for it: the simulator lets them go on alone in
// the end, in case it is they who are waited for. What follows a barrier, or __syncwarp, runs as one all the same.
#include "expect.h"

__device__ static void await_earlier_block(volatile unsigned *turn)
{
    if (threadIdx.x % 32 == 0)
        while (*turn < blockIdx.x) {
        }
}

__device__ static void pass_on(volatile unsigned *turn, unsigned work)
{
    if (threadIdx.x) return;
    for (unsigned i = 0; i < work; i++) *turn; // longer than any warp's turn
    *turn = blockIdx.x + 1;
}

__global__ void after_syncthreads(unsigned *turn, unsigned *out)
{
    await_earlier_block(turn);
    __syncthreads();
    out[blockIdx.x * blockDim.x + threadIdx.x] = threadIdx.x; // stores
    pass_on(turn, 30000);
}

__global__ void after_barrier(unsigned *turn, unsigned *out)
{
    await_earlier_block(turn);
    asm volatile("barrier.sync 1, 64;" ::: "memory");
    out[blockIdx.x * blockDim.x + threadIdx.x] = threadIdx.x; // stores
    pass_on(turn, 30000);
}

__global__ void after_syncwarp(unsigned *turn, unsigned *out)
{
    await_earlier_block(turn);
    __syncwarp();
    out[blockIdx.x * blockDim.x + threadIdx.x] = threadIdx.x; // stores
    pass_on(turn, 30000);
}

// Lanes 16 to 31 need not wait for lane 0 in the loop's first turn: they are ahead of it, at the same __syncwarp in the second.
__global__ void after_turns(unsigned *turn, unsigned *out)
{
    await_earlier_block(turn);
#pragma unroll 1
    for (unsigned mask = 0xffff; mask; mask = mask == 0xffff ? 0xffffffff : 0)
        if (mask >> threadIdx.x % 32 & 1) __syncwarp(mask);
    out[blockIdx.x * blockDim.x + threadIdx.x] = threadIdx.x; // stores
    pass_on(turn, 30000);
}

int main()
{
    unsigned *turn, *out, host[64 * 8];
    void (*kernels[])(unsigned *, unsigned *) = {after_syncthreads, after_barrier, after_syncwarp,
                                                 after_turns};
    CUDA(cudaMalloc(&turn, 4));
    CUDA(cudaMalloc(&out, sizeof host));
    for (auto kernel : kernels) {
        CUDA(cudaMemset(turn, 0, 4));
        kernel<<<8, 64>>>(turn, out);
        CUDA(cudaMemcpy(host, out, sizeof host, cudaMemcpyDeviceToHost));
        for (unsigned i = 0; i < 64 * 8; i++) EXPECT(host[i] == i % 64);
    }
    return verdict();
}
