// Memory that host and kernels share: managed, page-locked, registered, and __managed__ variables. Passes on a GPU too.
#include "expect.h"

__managed__ int counter = 40;
__managed__ float table[3] = {1, 2, 3};

__global__ void add(int *x, int n, int summand)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] += summand;
    if (i == 0) counter++, table[1] += table[0];
}

enum { N = 3000 };

// The host writes, a kernel adds, the host reads: no copy.
static void check(int *host, int *device, const char *what)
{
    for (int i = 0; i < N; i++) host[i] = i;
    add<<<(N + 127) / 128, 128>>>(device, N, 5);
    CUDA(cudaGetLastError());
    CUDA(cudaDeviceSynchronize());
    int wrong = 0;
    for (int i = 0; i < N; i++) wrong += host[i] != i + 5;
    if (wrong) printf("%s: %d of %d wrong\n", what, wrong, N);
    EXPECT(!wrong);
}

static cudaMemoryType type_of(const void *pointer)
{
    cudaPointerAttributes a;
    CUDA(cudaPointerGetAttributes(&a, pointer));
    if (a.type != cudaMemoryTypeUnregistered) EXPECT(a.devicePointer == pointer);
    if (a.type != cudaMemoryTypeDevice && a.type != cudaMemoryTypeUnregistered)
        EXPECT(a.hostPointer == pointer);
    return a.type;
}

int main()
{
    EXPECT(counter == 40 && table[2] == 3); // before any kernel
    table[0] = 10;
    int *managed, *mapped, *device, *pinned, managed_memory = 0;
    static int registered[N], copy[N];
    CUDA(cudaDeviceGetAttribute(&managed_memory, cudaDevAttrManagedMemory, 0));
    EXPECT(managed_memory);
    CUDA(cudaMallocManaged(&managed, N * sizeof *managed));
    check(managed, managed, "managed");
    EXPECT(type_of(managed) == cudaMemoryTypeManaged);
    CUDA(cudaHostAlloc(&mapped, N * sizeof *mapped, cudaHostAllocMapped));
    CUDA(cudaHostGetDevicePointer(&device, mapped, 0));
    check(mapped, device, "mapped");
    CUDA(cudaMallocHost(&pinned, N * sizeof *pinned));
    check(pinned, pinned, "page-locked");
    EXPECT(type_of(pinned) == cudaMemoryTypeHost && type_of(copy) == cudaMemoryTypeUnregistered);
    CUDA(cudaHostRegister(registered, sizeof registered, cudaHostRegisterMapped));
    CUDA(cudaHostGetDevicePointer(&device, registered, 0));
    check(registered, device, "registered");
    EXPECT(type_of(registered) == cudaMemoryTypeHost);
    EXPECT(counter == 44 && table[1] == 42);

    // Copies take managed memory for either side.
    CUDA(cudaMalloc(&device, N * sizeof *device));
    CUDA(cudaMemcpy(device, managed, N * sizeof *managed, cudaMemcpyHostToDevice));
    CUDA(cudaMemset(managed, 0, N * sizeof *managed));
    CUDA(cudaMemcpy(managed, device, N * sizeof *managed, cudaMemcpyDeviceToDevice));
    CUDA(cudaMemcpy(copy, managed, sizeof copy, cudaMemcpyDeviceToHost));
    EXPECT(copy[N - 1] == N + 4);
    CUDA(cudaMemcpyFromSymbol(copy, counter, sizeof counter));
    EXPECT(copy[0] == 44);
    cudaMemLocation here = {};
    here.type = cudaMemLocationTypeDevice;
    CUDA(cudaMemPrefetchAsync(managed, N * sizeof *managed, here, 0, 0));
    CUDA(cudaMemAdvise(managed, N * sizeof *managed, cudaMemAdviseSetReadMostly, here));
    EXPECT(cudaMemAdvise(copy, sizeof copy, cudaMemAdviseSetReadMostly, here) == cudaErrorInvalidValue);
    cudaGetLastError();

    CUDA(cudaFree(managed));
    CUDA(cudaFreeHost(mapped));
    CUDA(cudaFreeHost(pinned));
    CUDA(cudaHostUnregister(registered));
    return verdict();
}
