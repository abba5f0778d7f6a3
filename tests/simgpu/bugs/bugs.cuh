// bugs.cuh: seeded bugs, each beside its right twin: a kernel template whose argument leaves out, or does too early, what the
// twin does. `PROGRAM` lists them, `PROGRAM NAME` runs the broken one, `PROGRAM NAME right` its twin; the exit status is 1
// when a launch failed. bugs.bats runs all of them: it expects the words of the comment `// bug NAME: WORDS` (one of `WORDS |
// WORDS` where it depends on who comes first) and the lines that are marked with `// NAME` to be named by the report, and
// nothing at all from the twin.
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cuda_runtime.h>

typedef uint8_t u8;
typedef uint16_t u16;
typedef uint32_t u32;
typedef uint64_t u64;

typedef void (*kernel)(u32 *);
struct bug {
    const char *name;
    kernel broken, right;
    int blocks, threads;
    u32 dynamic_bytes;
    kernel before; // with it, a launch that the kernel need not wait for to begin; or NULL
    kernel between_broken, between_right; // the same between these two, or NULL
};
#define BUG(NAME, BLOCKS, THREADS)                                   \
    {                                                                \
#NAME, NAME < true>, NAME < false>, BLOCKS, THREADS, 0, NULL \
    }
#define BUG_DYNAMIC(NAME, BLOCKS, THREADS)                               \
    {                                                                    \
#NAME, NAME < true>, NAME < false>, BLOCKS, THREADS, 16384, NULL \
    }
#define BUG_AFTER(BEFORE, NAME, BLOCKS, THREADS)                       \
    {                                                                  \
#NAME, NAME < true>, NAME < false>, BLOCKS, THREADS, 0, BEFORE \
    }

#define BUG_AFTER_TWO(BEFORE, BETWEEN, NAME, BLOCKS, THREADS)                            \
    {                                                                                    \
#NAME, NAME, NAME, BLOCKS, THREADS, 0, BEFORE, BETWEEN < true>, BETWEEN < false> \
    }

// Each kernel gets this many words of zeros.
enum { WORDS = 1 << 16 };

// A block of 64 threads writes 64 words, turn by turn, each when whoever uses them has said that the turn before is over, or, too early, the
// one before that; and says so itself.
__device__ inline void fill_in_turns(u32 *words, u32 *filled, u32 *used, u32 turns, bool too_early)
{
    for (u32 turn = 0; turn < turns; turn++) {
        if (threadIdx.x == 0)
            while (atomicAdd(used, 0) + too_early < turn) __nanosleep(100);
        __threadfence();
        __syncthreads();
        words[threadIdx.x] = turn;
        __threadfence();
        __syncthreads();
        if (threadIdx.x == 0) atomicExch(filled, turn + 1);
    }
}

static void launch(const bug &b, kernel k, kernel between, u32 *memory)
{
    cudaLaunchAttribute early = {};
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t how = {};
    how.gridDim = b.blocks;
    how.blockDim = b.threads;
    how.dynamicSmemBytes = b.dynamic_bytes;
    how.attrs = &early;
    how.numAttrs = b.before != NULL;
    if (b.before) b.before<<<b.blocks, b.threads>>>(memory);
    if (between) cudaLaunchKernelEx(&how, between, memory);
    cudaLaunchKernelEx(&how, k, memory);
}

// `prepare`, if there is one, is told where they are before the launch.
template <int COUNT>
static int bugs_main(const bug (&bugs)[COUNT], int argc, char **argv, void (*prepare)(u32 *) = nullptr)
{
    if (argc < 2)
        for (const bug &b : bugs) printf("%s\n", b.name);
    for (const bug &b : bugs) {
        if (argc < 2 || strcmp(b.name, argv[1]) != 0) continue;
        u32 *memory;
        if (cudaMalloc(&memory, WORDS * sizeof *memory) || cudaMemset(memory, 0, WORDS * sizeof *memory))
            return 2;
        if (prepare) prepare(memory);
        launch(b, argc > 2 ? b.right : b.broken, argc > 2 ? b.between_right : b.between_broken, memory);
        cudaError_t error = cudaDeviceSynchronize();
        if (error) printf("%s\n", cudaGetErrorName(error));
        return error != cudaSuccess;
    }
    return argc < 2 ? 0 : 2;
}

// ---- PTX that the kernels share --------------------------------------------------------------------------------------

#ifndef HOPPER_CUH // which has it too
__device__ static inline u32 smem_addr(const void *p)
{
    return (u32)__cvta_generic_to_shared(p);
}
#endif
__device__ static inline void cp_async_16(void *to, const void *from)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(smem_addr(to)), "l"(from) : "memory");
}
__device__ static inline void cp_async_4(void *to, const void *from)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(smem_addr(to)), "l"(from) : "memory");
}
__device__ static inline void cp_async_commit()
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}
__device__ static inline void cluster_sync()
{
    asm volatile("barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;" ::: "memory");
}
// The same variable of another block of the cluster.
__device__ static inline u32 *peer(u32 *p, u32 rank)
{
    u64 there;
    asm("mapa.u64 %0, %1, %2;" : "=l"(there) : "l"(p), "r"(rank));
    return (u32 *)there;
}
template <int PENDING>
__device__ static inline void cp_async_wait()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}
template <int ID, int THREADS>
__device__ static inline void bar_sync()
{
    asm volatile("bar.sync %0, %1;" ::"n"(ID), "n"(THREADS) : "memory");
}
template <int ID, int THREADS>
__device__ static inline void bar_arrive()
{
    asm volatile("bar.arrive %0, %1;" ::"n"(ID), "n"(THREADS) : "memory");
}
