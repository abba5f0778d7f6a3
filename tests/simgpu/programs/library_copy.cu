// cuda::memcpy_async of a cuda::barrier becomes a bulk copy, whose mbarrier the library's init does not fence: the program cannot
// know of that, and is let alone.
#include <cuda/barrier>

#include "expect.h"

#pragma nv_diag_suppress static_var_with_dynamic_init // init() below is its constructor

typedef cuda::barrier<cuda::thread_scope_block> block_barrier;
enum { N = 256 };

__global__ void reverse(const int *x, int *y)
{
    __shared__ block_barrier full;
    __shared__ alignas(16) int tile[N];
    if (threadIdx.x == 0) init(&full, N);
    __syncthreads();
    if (threadIdx.x == 0) cuda::memcpy_async(tile, x, cuda::aligned_size_t<16>(sizeof tile), full);
    full.arrive_and_wait();
    y[threadIdx.x] = tile[N - 1 - threadIdx.x];
}

int main()
{
    static int x[N], y[N];
    int *from, *to;
    for (int i = 0; i < N; i++) x[i] = i;
    CUDA(cudaMalloc(&from, sizeof x));
    CUDA(cudaMalloc(&to, sizeof y));
    CUDA(cudaMemcpy(from, x, sizeof x, cudaMemcpyHostToDevice));
    reverse<<<1, N>>>(from, to);
    CUDA(cudaGetLastError());
    CUDA(cudaMemcpy(y, to, sizeof y, cudaMemcpyDeviceToHost));
    for (int i = 0; i < N; i++) EXPECT(y[i] == N - 1 - i);
    return verdict();
}
