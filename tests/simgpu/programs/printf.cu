// printf in a kernel: its conversions, its return value, one line a call. programs.bats compares the output.
#include "expect.h"

__device__ int arguments[3];

__global__ void conversions(const char *host_says)
{
    printf("plain\n");
    printf("%d %i %5d|%-5d|%05d %+d\n", 1, -2, 3, 4, 5, 6);
    printf("%u %x %X %#x %o %c %%\n", 4000000000u, 0xbeefu, 0xBEEFu, 255, 8, 'z');
    printf("%f %.2f %e %g %G %10.3f|\n", 1.5f, 2.345, 12345.678, 1e-10, 0.0001, 3.14159);
    printf("%lld %llu %llx %ld %hd %hhu\n", -1234567890123ll, 18446744073709551615ull, 0x123456789abcull, 5l,
           (short)-7, (unsigned char)200);
    printf("%s|%8s|%-8s|%.3s\n", "string", "right", "left", "truncated");
    printf("%*d|%-*d|%.*f\n", 6, 42, 6, 42, 2, 2.71828);
    printf("%s %f %f\n", host_says, -INFINITY, NAN);
    arguments[0] = printf("%d %d %d\n", 1, 2, 3);
    arguments[1] = printf("none\n");
    arguments[2] = printf(NULL);
}

__global__ void threads()
{
    if (threadIdx.x % 8 == 0) printf("block %d thread %2d\n", blockIdx.x, threadIdx.x);
}

int main()
{
    const char host_says[] = "from cudaMalloc";
    char *device;
    CUDA(cudaMalloc(&device, sizeof host_says));
    CUDA(cudaMemcpy(device, host_says, sizeof host_says, cudaMemcpyHostToDevice));
    conversions<<<1, 1>>>(device);
    CUDA(cudaDeviceSynchronize());
    int got[3];
    CUDA(cudaMemcpyFromSymbol(got, arguments, sizeof got));
    EXPECT(got[0] == 3 && got[1] == 0 && got[2] == -1);
    threads<<<2, 32>>>();
    CUDA(cudaDeviceSynchronize());
    return verdict();
}
