// A grid barrier made by hand, of blocks that were not launched as cooperative: each polls until all of them have started.
#include "expect.h"

enum { BLOCKS = 64, THREADS = 64, ROUNDS = 3 };

__global__ void rounds(unsigned *arrived, unsigned *left, unsigned *sum)
{
    for (unsigned round = 1; round <= ROUNDS; round++) {
        left[blockIdx.x * THREADS + threadIdx.x] = round * (blockIdx.x + 1);
        __syncthreads();
        if (threadIdx.x == 0) {
            __threadfence();
            atomicAdd(arrived, 1u);
            while (*(volatile unsigned *)arrived < (2 * round - 1) * BLOCKS) {
            }
            __threadfence();
        }
        __syncthreads();
        sum[blockIdx.x * THREADS + threadIdx.x] += left[(BLOCKS - 1 - blockIdx.x) * THREADS + threadIdx.x];
        __syncthreads();
        if (threadIdx.x == 0) {
            __threadfence();
            atomicAdd(arrived, 1u);
            while (*(volatile unsigned *)arrived < 2 * round * BLOCKS) {
            }
            __threadfence();
        }
        __syncthreads();
    }
}

int main()
{
    static unsigned host[BLOCKS * THREADS];
    unsigned *arrived, *left, *sum;
    CUDA(cudaMalloc(&arrived, sizeof *arrived));
    CUDA(cudaMalloc(&left, sizeof host));
    CUDA(cudaMalloc(&sum, sizeof host));
    CUDA(cudaMemset(arrived, 0, sizeof *arrived));
    CUDA(cudaMemset(sum, 0, sizeof host));
    rounds<<<BLOCKS, THREADS>>>(arrived, left, sum);
    CUDA(cudaMemcpy(host, sum, sizeof host, cudaMemcpyDeviceToHost));
    for (unsigned i = 0; i < BLOCKS * THREADS; i++) EXPECT(host[i] == 6 * (BLOCKS - i / THREADS));
    puts(failures ? "wrong" : "right");
    return failures != 0;
}
