// Several host threads use the device at once, each with a stream, allocations and errors of its own; compiled with
// per-thread default streams as well (programs.bats).
#include <pthread.h>

#include "expect.h"

__global__ void fill(int *x, int n, int value)
{
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) x[i] = value + i;
}

enum { THREADS = 8, ROUNDS = 20, N = 1000 };

static void *work(void *argument)
{
    int id = (int)(intptr_t)argument;
    cudaStream_t stream;
    CUDA(cudaStreamCreate(&stream));
    for (int round = 0; round < ROUNDS; round++) {
        int *x, host[N];
        CUDA(cudaMalloc(&x, sizeof host));
        CUDA(cudaMemset(x, 0, sizeof host));
        fill<<<3, 64, 0, round % 2 ? stream : cudaStreamPerThread>>>(x, N, id * 1000000 + round);
        CUDA(cudaGetLastError());
        if (id % 2) fill<<<0, 64>>>(x, N, 0); // its error is this thread's only
        EXPECT(cudaGetLastError() == (id % 2 ? cudaErrorInvalidConfiguration : cudaSuccess));
        CUDA(cudaStreamSynchronize(stream));
        CUDA(cudaMemcpy(host, x, sizeof host, cudaMemcpyDeviceToHost));
        for (int i = 0; i < N; i++)
            if (host[i] != id * 1000000 + round + i) {
                EXPECT(host[i] == id * 1000000 + round + i);
                break;
            }
        CUDA(cudaFree(x));
    }
    CUDA(cudaStreamDestroy(stream));
    return NULL;
}

int main()
{
    pthread_t threads[THREADS];
    for (intptr_t i = 0; i < THREADS; i++) pthread_create(&threads[i], NULL, work, (void *)i);
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    return verdict();
}
