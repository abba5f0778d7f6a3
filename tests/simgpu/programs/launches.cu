// Ways to launch: cudaLaunchKernel, cudaLaunchKernelEx with attributes, cooperative launches, 3-D grids, many parameters.
#include "expect.h"

struct Big {
    int values[100];
    double last;
};

__global__ void parameters(int *out, char c, short s, long long l, float f, double d, Big big, bool b)
{
    out[0] = c;
    out[1] = s;
    out[2] = (int)(l >> 32);
    out[3] = (int)(f * 4);
    out[4] = (int)(d * 8);
    out[5] = big.values[threadIdx.x + 99];
    out[6] = (int)big.last;
    out[7] = b;
}

// Every thread of a 3-D grid of 3-D blocks writes its own rank.
__global__ void ranks(int *out)
{
    int block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
    int thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
    int i = block * (blockDim.x * blockDim.y * blockDim.z) + thread;
    out[i] = i + 1;
}

__global__ void __launch_bounds__(64) add(int *x, int amount)
{
    atomicAdd(x, amount);
}

// All blocks of the grid wait for each other: right only when all of them run at the same time.
__global__ void meet(unsigned *arrived, int *seen)
{
    if (threadIdx.x == 0) {
        atomicAdd(arrived, 1u);
        while (atomicAdd(arrived, 0u) < gridDim.x) continue;
        seen[blockIdx.x] = 1;
    }
}

// A grid that lets its dependent start early, and the dependent, which waits for all that the other has written.
__global__ void primary(int *x)
{
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
    for (int i = 0; i < 100; i++) x[blockIdx.x * blockDim.x + threadIdx.x] = i;
}

__global__ void dependent(const int *x, int *sum)
{
    asm volatile("griddepcontrol.wait;" ::: "memory");
    atomicAdd(sum, x[blockIdx.x * blockDim.x + threadIdx.x]);
}

// The same where the first lets nobody start early, and the second need not wait.
__global__ void primary_to_the_end(int *x)
{
    x[blockIdx.x * blockDim.x + threadIdx.x] = 77;
}

__global__ void dependent_of_its_end(const int *x, int *sum)
{
    atomicAdd(sum, x[blockIdx.x * blockDim.x + threadIdx.x]);
}

int main()
{
    int *out, host[8];
    CUDA(cudaMalloc(&out, 1 << 20));
    Big big;
    for (int i = 0; i < 100; i++) big.values[i] = i;
    big.last = 1234;
    parameters<<<1, 1>>>(out, -3, -300, 5ll << 32, 2.5f, 0.125, big, true);
    CUDA(cudaMemcpy(host, out, sizeof host, cudaMemcpyDeviceToHost));
    const int want[8] = {-3, -300, 5, 10, 1, 99, 1234, 1};
    for (int i = 0; i < 8; i++) EXPECT(host[i] == want[i]);

    dim3 grid(3, 5, 2), block(7, 4, 6);
    const int total = 30 * 168;
    ranks<<<grid, block>>>(out);
    int *all = (int *)malloc(total * sizeof *all);
    CUDA(cudaMemcpy(all, out, total * sizeof *all, cudaMemcpyDeviceToHost));
    for (int i = 0; i < total; i++)
        if (all[i] != i + 1) {
            EXPECT(all[i] == i + 1);
            break;
        }

    CUDA(cudaMemset(out, 0, sizeof *out));
    int amount = 3;
    void *arguments[] = {&out, &amount};
    CUDA(cudaLaunchKernel((const void *)add, dim3(2), dim3(64), arguments, 0, 0));
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(4);
    config.blockDim = dim3(32);
    cudaLaunchAttribute attributes[2];
    attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[0].val.programmaticStreamSerializationAllowed = 1;
    attributes[1].id = cudaLaunchAttributeClusterDimension;
    attributes[1].val.clusterDim.x = attributes[1].val.clusterDim.y = attributes[1].val.clusterDim.z = 1;
    config.attrs = attributes;
    config.numAttrs = 2;
    CUDA(cudaLaunchKernelEx(&config, add, out, 5));
    CUDA(cudaMemcpy(host, out, sizeof *host, cudaMemcpyDeviceToHost));
    EXPECT(host[0] == 2 * 64 * 3 + 4 * 32 * 5);

    CUDA(cudaMemset(out, 0, 1000 * sizeof *out));
    config.numAttrs = 1;
    CUDA(cudaLaunchKernelEx(&config, primary, out + 1));
    CUDA(cudaLaunchKernelEx(&config, dependent, (const int *)out + 1, out));
    CUDA(cudaMemcpy(host, out, sizeof *host, cudaMemcpyDeviceToHost));
    EXPECT(host[0] == 4 * 32 * 99);
    CUDA(cudaLaunchKernelEx(&config, primary_to_the_end, out + 1));
    CUDA(cudaLaunchKernelEx(&config, dependent_of_its_end, (const int *)out + 1, out));
    CUDA(cudaMemcpy(host, out, sizeof *host, cudaMemcpyDeviceToHost));
    EXPECT(host[0] == 4 * 32 * (99 + 77));

    int blocks_per_sm, sms, minimum_grid, best_block;
    CUDA(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, 0));
    CUDA(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks_per_sm, meet, 1024, 0));
    CUDA(cudaOccupancyMaxPotentialBlockSize(&minimum_grid, &best_block, add, 0, 0));
    EXPECT(blocks_per_sm == 2 && best_block == 64 && minimum_grid == sms * 32);
    unsigned *arrived;
    CUDA(cudaMalloc(&arrived, sizeof *arrived));
    CUDA(cudaMemset(arrived, 0, sizeof *arrived));
    CUDA(cudaMemset(out, 0, 1000 * sizeof *out));
    void *meeting[] = {&arrived, &out};
    CUDA(cudaLaunchCooperativeKernel((const void *)meet, dim3(100), dim3(64), meeting, 0, 0));
    CUDA(cudaMemcpy(all, out, 100 * sizeof *all, cudaMemcpyDeviceToHost));
    for (int i = 0; i < 100; i++) EXPECT(all[i] == 1);
    EXPECT(cudaLaunchCooperativeKernel((const void *)meet, dim3(2 * sms + 1), dim3(1024), meeting, 0, 0) ==
           cudaErrorCooperativeLaunchTooLarge);
    EXPECT(cudaGetLastError() == cudaErrorCooperativeLaunchTooLarge && cudaGetLastError() == cudaSuccess);
    return verdict();
}
