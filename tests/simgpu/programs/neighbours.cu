// Addresses that run so far out of one allocation that they lie in another: which of them are faults, and which are made so on
// purpose, of a difference of pointers or of a pointer from memory, and are let alone. `neighbours` runs these; `neighbours NAME`
// runs one of the others.
#include "expect.h"

enum { COUNT = 1024, THREADS = 32 };

struct pair {
    const int *first, *second;
};
__device__ int weights[COUNT], bias[COUNT];

// ---- Faults: `far` elements from `a` on is b ------------------------------------------------------------------------------

__global__ void by_index(const int *a, int *, int *out, int far)
{
    out[threadIdx.x] = a[far + threadIdx.x]; // fault: by_index
}

__global__ void by_step(const int *a, int *, int *out, int far)
{
    int sum = 0;
    for (int i = 0; i < 2; i++, a += far) sum += a[threadIdx.x]; // fault: by_step
    out[threadIdx.x] = sum;
}

__global__ void by_long_index(const int *a, int *, int *out, int far)
{
    out[1] = far;
    const long long at = *(volatile int *)(out + 1) * 1ll;
    out[threadIdx.x] = a[at + threadIdx.x]; // fault: by_long_index
}

__global__ void written(int *a, int *, int *, int far)
{
    if (threadIdx.x == 7) a[far] = 1; // fault: written
}

__global__ void added(int *a, int *, int *, int far)
{
    atomicAdd(a + far, 1); // fault: added
}

__global__ void copied(const int *a, int *, int *out, int far)
{
    __shared__ alignas(16) int tile[4 * THREADS];
    const uint32_t to = (uint32_t)__cvta_generic_to_shared(tile + 4 * threadIdx.x);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(a + far)); // fault: copied
    asm volatile("cp.async.wait_all;" ::: "memory");
    out[threadIdx.x] = tile[4 * threadIdx.x];
}

__global__ void stored_in_bulk(int *a, int *, int *, int far)
{
    __shared__ alignas(16) int tile[4];
    const uint32_t from = (uint32_t)__cvta_generic_to_shared(tile);
    if (threadIdx.x) return;
    tile[0] = tile[1] = tile[2] = tile[3] = 1;
    asm volatile("fence.proxy.async;" ::: "memory");
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], 16;" ::"l"(a + far),
                 "r"(from) // fault: stored_in_bulk
                 : "memory");
    asm volatile("cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;" ::: "memory");
}

__global__ void of_a_struct(const pair p, int *, int *out, int far)
{
    out[threadIdx.x] = p.second[threadIdx.x] + p.first[far + threadIdx.x]; // fault: of_a_struct
}

__global__ void of_a_variable(int *, int *, int *out, int)
{
    out[threadIdx.x] =
        weights[out[0] + COUNT + 128 + threadIdx.x] + bias[threadIdx.x]; // fault: of_a_variable
}

// ---- Right ------------------------------------------------------------------------------------------------------------------

__global__ void difference(const int *a, const int *b, int *out)
{
    const ptrdiff_t apart = b - a;
    out[threadIdx.x] = a[apart + threadIdx.x];
}

// The element of b that lies where *p does in a.
__global__ void counterpart(const int *a, const int *b, int *const *table, int *out)
{
    const int *p = table[0] + threadIdx.x; // in a
    out[threadIdx.x] = b[p - a];
}

__global__ void chosen(const int *a, const int *b, int *out)
{
    const int *p = threadIdx.x % 2 ? a : b;
    for (int i = 0; i < 3; i++) { // two buffers that take turns
        out[threadIdx.x] += p[threadIdx.x];
        p = p == a ? b : a;
    }
}

__global__ void from_a_table(int *const *table, size_t stride, int *out)
{
    const char *p = (const char *)table[1];
    out[threadIdx.x] = *(const int *)(p + stride * threadIdx.x);
}

// A pointer comes from another lane, in two halves.
__global__ void broadcast(const int *a, const int *b, int *out)
{
    const uint64_t mine = (uint64_t)(threadIdx.x ? a : b);
    const uint64_t theirs = __shfl_sync(~0u, mine, 0);
    out[threadIdx.x] = ((const int *)theirs)[threadIdx.x];
}

// A size that is a parameter is none that points.
__global__ void from_the_end(const int *a, size_t count, int *out)
{
    out[threadIdx.x] = a[count - 1 - threadIdx.x] + *(const int *)((const char *)a + (count - 4) * sizeof *a);
}

__device__ __noinline__ int sum_of(const int *p, const int *q, ptrdiff_t apart)
{
    return p[apart] + q[0];
}
__global__ void by_a_call(const int *a, const int *b, int *out)
{
    out[threadIdx.x] = sum_of(a, b, b - a);
}

int main(int argc, char **argv)
{
    int *memory[3], **table, number[COUNT];
    for (int i = 0; i < COUNT; i++) number[i] = i;
    for (int i = 0; i < 3; i++) {
        CUDA(cudaMalloc(&memory[i], sizeof number));
        CUDA(cudaMemcpy(memory[i], number, sizeof number, cudaMemcpyHostToDevice));
        for (int k = 0; k < COUNT; k++) number[k] += COUNT;
    }
    int *a = memory[0], *b = memory[1], *out = memory[2];
    const int far = (int)(b - a);
    CUDA(cudaMemset(out, 0, sizeof number));
#define FAULT(NAME, FIRST) \
    if (argc == 2 && !strcmp(argv[1], #NAME)) NAME<<<1, THREADS>>>(FIRST, b, out, far)
    const pair both = {a, b};
    FAULT(by_index, a);
    FAULT(by_step, a);
    FAULT(by_long_index, a);
    FAULT(written, a);
    FAULT(added, a);
    FAULT(copied, a);
    FAULT(stored_in_bulk, a);
    FAULT(of_a_struct, both);
    FAULT(of_a_variable, a);
    if (argc == 2) {
        const cudaError_t error = cudaDeviceSynchronize();
        printf("%s\n", cudaGetErrorName(error));
        return error != cudaSuccess;
    }
    CUDA(cudaMalloc(&table, 2 * sizeof *table));
    CUDA(cudaMemcpy(table, memory, 2 * sizeof *table, cudaMemcpyHostToDevice));
#define RIGHT(NAME, EXPECTED, ...)                                                   \
    NAME<<<1, THREADS>>>(__VA_ARGS__);                                               \
    CUDA(cudaMemcpy(number, out, THREADS * sizeof *number, cudaMemcpyDeviceToHost)); \
    for (int i = 0; i < THREADS; i++) EXPECT(number[i] == (EXPECTED))
    RIGHT(difference, COUNT + i, a, b, out);
    RIGHT(counterpart, COUNT + i, a, b, table, out);
    CUDA(cudaMemset(out, 0, THREADS * sizeof *out));
    RIGHT(chosen, 3 * i + (i % 2 ? 1 : 2) * COUNT, a, b, out);
    RIGHT(from_a_table, COUNT + 2 * i, table, 8, out);
    RIGHT(broadcast, COUNT + i, a, b, out);
    RIGHT(from_the_end, COUNT - 1 - i + COUNT - 4, a, COUNT, out);
    RIGHT(by_a_call, 2 * COUNT, a, b, out);
    return verdict();
}
