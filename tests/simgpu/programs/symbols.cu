// __device__ and __constant__ variables: initial values, copies to and from symbols, addresses and sizes.
#include "expect.h"

__device__ int counter = 41;
__device__ double table[5] = {0.5, 1.5, 2.5};
__constant__ float weights[8] = {1, 2, 3, 4, 5, 6, 7, 8};
__device__ const char text[] = "device text";
__device__ int *pointer_to_counter = &counter;
struct Config {
    int size;
    float scale[3];
};
__constant__ Config config;
template <typename T>
__device__ T zero_initialised[16];

__global__ void use(float *out, char *copy)
{
    int i = threadIdx.x;
    out[i] = weights[i % 8] * config.scale[i % 3] + (float)table[i % 5] + (float)config.size;
    if (i < (int)sizeof text) copy[i] = text[i];
    if (i == 0) atomicAdd(pointer_to_counter, 1);
    if (i < 16) zero_initialised<int>[i]++;
}

int main()
{
    double new_table[2] = {10, 20};
    CUDA(cudaMemcpyToSymbol(table, new_table, sizeof new_table, sizeof(double)));
    Config c = {100, {1, 10, 1000}};
    CUDA(cudaMemcpyToSymbol(config, &c, sizeof c));

    float *out;
    char *copy;
    CUDA(cudaMalloc(&out, 32 * sizeof *out));
    CUDA(cudaMalloc(&copy, sizeof text));
    use<<<1, 32>>>(out, copy);
    CUDA(cudaDeviceSynchronize());

    const double want_table[5] = {0.5, 10, 20, 0, 0};
    double want[32];
    for (int i = 0; i < 32; i++) want[i] = (i % 8 + 1) * c.scale[i % 3] + want_table[i % 5] + 100;
    expect_close("weights * scale + table", to_host(out, 32), want, 32, 0);
    char said[sizeof text];
    CUDA(cudaMemcpy(said, copy, sizeof said, cudaMemcpyDeviceToHost));
    EXPECT(strcmp(said, "device text") == 0);

    int count = 0, ones[16];
    CUDA(cudaMemcpyFromSymbol(&count, counter, sizeof count));
    EXPECT(count == 42);
    CUDA(cudaMemcpyFromSymbol(ones, zero_initialised<int>, sizeof ones));
    for (int i = 0; i < 16; i++) EXPECT(ones[i] == 1);

    void *address;
    size_t bytes;
    CUDA(cudaGetSymbolAddress(&address, counter));
    CUDA(cudaGetSymbolSize(&bytes, counter));
    EXPECT(bytes == sizeof(int));
    int seven = 7;
    CUDA(cudaMemcpy(address, &seven, sizeof seven, cudaMemcpyHostToDevice));
    use<<<1, 32>>>(out, copy);
    CUDA(cudaMemcpyFromSymbol(&count, counter, sizeof count));
    EXPECT(count == 8);
    CUDA(cudaGetSymbolSize(&bytes, config));
    EXPECT(bytes == sizeof(Config));
    return verdict();
}
