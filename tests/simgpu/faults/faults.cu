// Kernels that go wrong, each in the way its name says, on the line marked with that name. `faults NAME` launches one and
// prints the CUDA error that the next call reports, and whether the error stays, as CUDA's errors do.
#include <assert.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cuda_runtime.h>

enum { COUNT = 100 }; // ints in the allocation that each kernel gets

__constant__ int constant_table[8] = {1, 2, 3};
__device__ int variable[4];

// ---- Global memory ------------------------------------------------------------------------------------------------

__global__ void read_beyond(int *x)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (x[i] > 7) x[i] = 0; // fault: read_beyond
}
__global__ void write_beyond(int *x)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i == COUNT) x[i] = i; // fault: write_beyond
}
__global__ void write_before(int *x)
{
    x[(int)threadIdx.x - 2] = 1; // fault: write_before
}
__global__ void vector_across_the_end(int *x)
{
    ((int4 *)x)[threadIdx.x] = make_int4(1, 2, 3, 4); // fault: vector_across_the_end
}
__global__ void beyond_a_variable(int *x)
{
    variable[x[0] + threadIdx.x] = 1; // fault: beyond_a_variable
}
__global__ void misaligned_vector(int *x)
{
    *(int2 *)(x + 1 + threadIdx.x * 2) = make_int2(1, 2); // fault: misaligned_vector
}
__global__ void after_free(int *x)
{
    x[threadIdx.x] = 1; // fault: after_free
}
__global__ void null_pointer(int *x)
{
    if (threadIdx.x == 7) x[3] = 1; // fault: null_pointer
}
__global__ void host_pointer(int *x)
{
    x[threadIdx.x] = 1; // fault: host_pointer
}
__global__ void atomic_beyond(int *x)
{
    atomicAdd(x + COUNT * 2 + threadIdx.x, 1); // fault: atomic_beyond
}
__global__ void write_constant(int *x)
{
    int *table = const_cast<int *>(constant_table);
    asm volatile("" : "+l"(table));    // the compiler forgets where it points
    table[x[0] + threadIdx.x % 8] = 1; // fault: write_constant
}

__global__ void before_null(int *x)
{
    ((double *)x)[-1 - (int)threadIdx.x] = 1; // fault: before_null
}
__global__ void freed_here(int *x)
{
    int *own = (int *)malloc(64);
#pragma unroll 1
    for (int i = 0; i < 2; i++) {
        *(volatile int *)(own + x[i]) = i; // fault: freed_here
        if (i == 0) free(own);
    }
}
__global__ void free_of_the_host(int *x)
{
    if (threadIdx.x == 2) free(x); // fault: free_of_the_host
}

// ---- Shared and local memory --------------------------------------------------------------------------------------

__global__ void shared_beyond(int *x)
{
    __shared__ int tile[64];
    tile[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    x[threadIdx.x] = tile[threadIdx.x * 3]; // fault: shared_beyond
}
__global__ void dynamic_shared_beyond(int *x)
{
    extern __shared__ int dynamic[];
    dynamic[threadIdx.x + x[0]] = 1; // fault: dynamic_shared_beyond
    __syncthreads();
    x[threadIdx.x] = dynamic[0];
}
__global__ void shared_misaligned(int *x)
{
    __shared__ __align__(16) char tile[256];
    *(double *)(tile + 4 + x[0]) = 1; // fault: shared_misaligned
    __syncthreads();
    x[threadIdx.x] = tile[threadIdx.x];
}
__global__ void local_beyond(int *x)
{
    int array[16];
    for (int i = 0; i < 16; i++) array[i] = x[i];
    x[threadIdx.x] = array[x[0] + (threadIdx.x == 5 ? 1 << 20 : threadIdx.x % 16)]; // fault: local_beyond
}
__device__ __noinline__ int endless(int n, const int *up)
{
    int array[8];
    for (int i = 0; i < 8; i++) array[i] = up[i] + n;
    return n < 0 ? array[3] : endless(n + 1, array) + array[n % 8]; // fault: endless_recursion
}
__global__ void endless_recursion(int *x)
{
    x[threadIdx.x] = endless(x[0], x);
}

typedef int two_ints(int, int);
typedef int wide_and_int(long long, int);
typedef int one_int(int);
__device__ __noinline__ int sum(int a, int b)
{
    return a + b;
}
__device__ two_ints *functions[2] = {sum, sum};
__global__ void wider_argument(int *x)
{
    x[threadIdx.x] = ((wide_and_int *)functions[x[0]])(1ll << 40, 2); // fault: wider_argument
}
__global__ void argument_missing(int *x)
{
    x[threadIdx.x] = ((one_int *)functions[x[0]])(1); // fault: argument_missing
}

// ---- Synchronisation ----------------------------------------------------------------------------------------------

__global__ void absent_warp(int *x)
{
    if (threadIdx.x < 64)
        asm volatile("bar.sync 3, 128;" ::: "memory"); // fault: absent_warp
    else if (threadIdx.x < 96)
        asm volatile("bar.sync 4, 64;" ::: "memory");
    x[threadIdx.x % COUNT] = 1;
}
__global__ void divergent_barrier(int *x)
{
    if (threadIdx.x % 2)
        __syncthreads(); // fault: divergent_barrier
    else
        __syncwarp();
    x[threadIdx.x] = 1;
}
__global__ void predicated_barrier(int *x)
{
    const int t = threadIdx.x;
    asm volatile(
        "{ .reg .pred p; setp.lt.u32 p, %0, 8; @p bar.sync 0; }" ::"r"(t)); // fault: predicated_barrier
    x[threadIdx.x] = 1;
}
__global__ void absent_lanes(int *x)
{
    if (threadIdx.x < 16)
        x[threadIdx.x] = __shfl_sync(0xffffffff, x[threadIdx.x], 0); // fault: absent_lanes
    else
        __syncthreads();
    x[threadIdx.x] = 1;
}
__global__ void uneven_barrier(int *x)
{
    if (threadIdx.x < 32)
        asm volatile("bar.sync 1, 64;" ::: "memory");
    else
        asm volatile("bar.sync 1, 96;" ::: "memory"); // fault: uneven_barrier
    x[threadIdx.x] = 1;
}
__global__ void endless_loop(int *x)
{
    while (*(volatile int *)x == 0) continue; // fault: endless_loop
}

// ---- Said by the program ------------------------------------------------------------------------------------------

__global__ void trapped(int *x)
{
    if (x[0] == 0 && threadIdx.x == 3) __trap(); // fault: trapped
}
__global__ void asserted(int *x)
{
    assert(threadIdx.x != 9 || x[0] == 1); // fault: asserted
}
__global__ void texture(int *x)
{
    float4 v;
    asm volatile("tex.1d.v4.f32.s32 {%0, %1, %2, %3}, [%4, {%5}];" // fault: texture
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
                 : "l"((uint64_t)x), "r"(0));
    x[threadIdx.x] = (int)v.x;
}

__device__ const char three_numbers[] = "%d %lld %f\n";
__global__ void printf_without(int *x)
{
    if (x[0] == 0) printf(three_numbers); // fault: printf_without
}
__global__ void printf_with_too_few(int *x)
{
    if (threadIdx.x == 1) printf(three_numbers, x[0]); // fault: printf_with_too_few
}

// ---- Asynchronous copies ------------------------------------------------------------------------------------------

__device__ static uint32_t shared_address(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}
#define CP_ASYNC_4(to, from) \
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(from) : "memory")

// Reads what it copied without waiting.
__global__ void unwaited_copy(int *x)
{
    __shared__ int tile[32];
    CP_ASYNC_4(shared_address(tile + threadIdx.x), x + threadIdx.x);
    asm volatile("cp.async.commit_group;" ::: "memory");
    x[threadIdx.x] = *(volatile int *)&tile[threadIdx.x]; // fault: unwaited_copy
    asm volatile("cp.async.wait_group 0;" ::: "memory");
}
__global__ void source_changed(int *x)
{
    __shared__ int tile[32];
    CP_ASYNC_4(shared_address(tile + threadIdx.x), x + threadIdx.x);
    x[threadIdx.x] = 77;
    asm volatile("cp.async.wait_all;" ::: "memory"); // fault: source_changed
    x[threadIdx.x + 32] = tile[threadIdx.x];
}
__global__ void over_arrival(int *x)
{
    __shared__ uint64_t barrier;
    const uint32_t b = shared_address(&barrier);
    if (threadIdx.x == 0) asm volatile("mbarrier.init.shared.b64 [%0], 2;" ::"r"(b) : "memory");
    __syncthreads();
    if (threadIdx.x == 4)
        asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0], 3;" ::"r"(b)); // fault: over_arrival
    x[threadIdx.x] = 1;
}

// The first KiB of shared addresses is the system's.
__global__ void mbarrier_at_0(int *x)
{
    asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(x[0]) : "memory"); // fault: mbarrier_at_0
}
__global__ void cp_async_to_0(int *x)
{
    CP_ASYNC_4(x[0], x); // fault: cp_async_to_0
    asm volatile("cp.async.wait_all;" ::: "memory");
}
__global__ void bulk_to_0(int *x)
{
    __shared__ uint64_t barrier;
    const uint32_t b = shared_address(&barrier);
    asm volatile("mbarrier.init.shared.b64 [%0], 1; fence.mbarrier_init.release.cluster;" ::"r"(b)
                 : "memory");
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], 64, [%2];" ::"r"(x[0]),
        "l"(x), "r"(b) // fault: bulk_to_0
        : "memory");
}
__global__ void bulk_from_0(int *x)
{
    const int system = x[0];
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], 64;" ::"l"(x),
                 "r"(system)); // fault: bulk_from_0
    asm volatile("cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;" ::: "memory");
}

// ---- The program --------------------------------------------------------------------------------------------------

struct fault {
    const char *name;
    void (*kernel)(int *);
    int blocks, threads, shared_bytes;
};
#define FAULT(NAME) #NAME, NAME
static const struct fault faults[] = {
    {FAULT(read_beyond), 2, 64, 0},
    {FAULT(write_beyond), 2, 64, 0},
    {FAULT(write_before), 1, 32, 0},
    {FAULT(vector_across_the_end), 1, 32, 0},
    {FAULT(beyond_a_variable), 1, 32, 0},
    {FAULT(misaligned_vector), 1, 32, 0},
    {FAULT(after_free), 1, 32, 0},
    {FAULT(null_pointer), 1, 32, 0},
    {FAULT(host_pointer), 1, 32, 0},
    {FAULT(atomic_beyond), 1, 32, 0},
    {FAULT(write_constant), 1, 32, 0},
    {FAULT(before_null), 1, 32, 0},
    {FAULT(freed_here), 1, 32, 0},
    {FAULT(free_of_the_host), 1, 32, 0},
    {FAULT(shared_beyond), 1, 64, 0},
    {FAULT(dynamic_shared_beyond), 1, 64, 128},
    {FAULT(shared_misaligned), 1, 32, 0},
    {FAULT(local_beyond), 1, 32, 0},
    {FAULT(endless_recursion), 1, 32, 0},
    {FAULT(wider_argument), 1, 32, 0},
    {FAULT(argument_missing), 1, 32, 0},
    {FAULT(absent_warp), 1, 128, 0},
    {FAULT(divergent_barrier), 1, 64, 0},
    {FAULT(predicated_barrier), 1, 32, 0},
    {FAULT(uneven_barrier), 1, 64, 0},
    {FAULT(absent_lanes), 1, 32, 0},
    {FAULT(endless_loop), 1, 32, 0},
    {FAULT(trapped), 1, 32, 0},
    {FAULT(asserted), 1, 32, 0},
    {FAULT(texture), 1, 32, 0},
    {FAULT(unwaited_copy), 1, 32, 0},
    {FAULT(source_changed), 1, 32, 0},
    {FAULT(over_arrival), 1, 32, 0},
    {FAULT(printf_without), 1, 1, 0},
    {FAULT(printf_with_too_few), 1, 32, 0},
    {FAULT(mbarrier_at_0), 1, 1, 0},
    {FAULT(cp_async_to_0), 1, 1, 0},
    {FAULT(bulk_to_0), 1, 1, 0},
    {FAULT(bulk_from_0), 1, 1, 0},
};

static int run(const struct fault *f)
{
    static int on_host[COUNT], got[COUNT];
    int *x, *argument, *unused;
    if (cudaMalloc(&x, sizeof got) || cudaMemset(x, 0, sizeof got)) return 3;
    argument = x;
    if (f->kernel == after_free && cudaFree(x)) return 3;
    if (f->kernel == null_pointer || f->kernel == before_null) argument = NULL;
    if (f->kernel == host_pointer) argument = on_host;
    f->kernel<<<f->blocks, f->threads, f->shared_bytes>>>(argument);
    const cudaError_t launch = cudaGetLastError(), error = launch ? launch : cudaDeviceSynchronize();
    printf("%s\n", cudaGetErrorName(error));
    const cudaError_t after = cudaMalloc(&unused, 4);
    printf("then %s\n", cudaGetErrorName(after));
    if (error) return 1;
    if (cudaMemcpy(got, x, sizeof got, cudaMemcpyDeviceToHost)) return 3;
    printf("x[0] = 0x%x, x[32] = 0x%x\n", (unsigned)got[0], (unsigned)got[32]);
    return 0;
}

int main(int argc, char **argv)
{
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++)
        if (argc == 2 && !strcmp(argv[1], faults[i].name)) return run(&faults[i]);
    fprintf(stderr, "usage: faults NAME\n");
    return 2;
}
