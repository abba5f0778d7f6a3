// A kernel that goes wrong in the way its argument names, and then what CUDA says: the launch succeeds, the next call that
// waits reports the error, and so does every call after it.
#include <assert.h>

#include "expect.h"

__device__ int zero;

__global__ void out_of_bounds(int *x)
{
    x[1000000000] = 1;
}
__global__ void host_pointer(int *x)
{
    *x = 1;
}
__global__ void misaligned(int *x)
{
    *(int *)((char *)x + 1) = 1;
}
__global__ void trapped(int *)
{
    asm volatile("trap;");
}
__global__ void asserted(int *)
{
    assert(zero == 1);
}
__global__ void endless(int *x)
{
    while (atomicAdd(x, 0) != 1) continue;
}
__global__ void fine(int *x)
{
    *x = 7;
}

static int run(void (*kernel)(int *), int *x, cudaError_t expected)
{
    int *other, value = 5;
    CUDA(cudaMalloc(&other, sizeof *other));
    kernel<<<1, 32>>>(x);
    EXPECT(cudaGetLastError() == cudaSuccess);      // the launch itself was right
    CUDA(cudaMemsetAsync(other, 0, sizeof *other)); // queued behind it
    cudaError_t error = cudaDeviceSynchronize();
    printf("%s: %s\n", cudaGetErrorName(error), cudaGetErrorString(error));
    EXPECT(error == expected);
    EXPECT(cudaGetLastError() == expected);
    EXPECT(cudaPeekAtLastError() == expected);
    EXPECT(cudaMemcpy(&value, other, sizeof value, cudaMemcpyDeviceToHost) == expected && value == 5);
    EXPECT(cudaMalloc(&other, 4) == expected);
    fine<<<1, 1>>>(x);
    EXPECT(cudaGetLastError() == expected);
    EXPECT(cudaStreamSynchronize(0) == expected);
    EXPECT(cudaDeviceReset() == expected);
    return verdict();
}

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "";
    int *x, on_host = 0;
    CUDA(cudaMalloc(&x, 32 * sizeof *x));
    CUDA(cudaMemset(x, 0, 32 * sizeof *x));
    if (!strcmp(what, "out_of_bounds")) return run(out_of_bounds, x, cudaErrorIllegalAddress);
    if (!strcmp(what, "host_pointer")) return run(host_pointer, &on_host, cudaErrorIllegalAddress);
    if (!strcmp(what, "misaligned")) return run(misaligned, x, cudaErrorMisalignedAddress);
    if (!strcmp(what, "trapped")) return run(trapped, x, cudaErrorLaunchFailure);
    if (!strcmp(what, "asserted")) return run(asserted, x, cudaErrorAssert);
    if (!strcmp(what, "endless")) return run(endless, x, cudaErrorLaunchTimeout);
    if (!strcmp(what, "freed")) {
        CUDA(cudaFree(x));
        return run(fine, x, cudaErrorIllegalAddress);
    }
    printf("usage: errors out_of_bounds|host_pointer|misaligned|trapped|asserted|endless|freed\n");
    return 2;
}
