// What the CUDA headers make of cp.async and mbarriers: __pipeline_*, cooperative_groups::memcpy_async, cuda::barrier and
// cuda::pipeline. Each kernel reverses 128 numbers by way of shared memory.
#include "../check.h"
#include <cooperative_groups/memcpy_async.h>
#include <cuda/barrier>
#include <cuda/pipeline>
#include <cuda_pipeline.h>

namespace cg = cooperative_groups;
#pragma nv_diag_suppress static_var_with_dynamic_init

enum { THREADS = 128, STAGES = 2 };

__global__ void pipeline_functions(const u32 *from, u32 *to)
{
    __shared__ u32 tile[THREADS];
    __pipeline_memcpy_async(&tile[threadIdx.x], from + threadIdx.x, sizeof *from);
    __pipeline_commit();
    __pipeline_wait_prior(0);
    __syncthreads();
    to[threadIdx.x] = tile[THREADS - 1 - threadIdx.x];
}

__global__ void group_copy(const u32 *from, u32 *to)
{
    __shared__ __align__(16) u32 tile[THREADS];
    cg::memcpy_async(cg::this_thread_block(), tile, from, sizeof tile);
    cg::wait(cg::this_thread_block());
    to[threadIdx.x] = tile[THREADS - 1 - threadIdx.x];
}

__global__ void block_barrier(const u32 *from, u32 *to)
{
    __shared__ __align__(16) u32 tile[THREADS];
    __shared__ cuda::barrier<cuda::thread_scope_block> arrived;
    if (threadIdx.x == 0) init(&arrived, THREADS);
    __syncthreads();
    cuda::memcpy_async(cg::this_thread_block(), tile, from, sizeof tile, arrived);
    arrived.arrive_and_wait();
    to[threadIdx.x] = tile[THREADS - 1 - threadIdx.x];
}

__global__ void block_pipeline(const u32 *from, u32 *to)
{
    __shared__ __align__(16) u32 tile[STAGES][THREADS / STAGES];
    __shared__ cuda::pipeline_shared_state<cuda::thread_scope_block, STAGES> state;
    auto pipeline = cuda::make_pipeline(cg::this_thread_block(), &state);
    for (int s = 0; s < STAGES; s++) {
        pipeline.producer_acquire();
        cuda::memcpy_async(cg::this_thread_block(), tile[s], from + s * THREADS / STAGES, sizeof tile[s],
                           pipeline);
        pipeline.producer_commit();
    }
    for (int s = 0; s < STAGES; s++) {
        pipeline.consumer_wait();
        const u32 at = THREADS - 1 - threadIdx.x;
        if (at * STAGES / THREADS == s) to[threadIdx.x] = tile[s][at % (THREADS / STAGES)];
        pipeline.consumer_release();
    }
}

static const struct {
    const char *name;
    void (*kernel)(const u32 *, u32 *);
} kernels[] = {{"__pipeline_memcpy_async", pipeline_functions},
               {"cooperative_groups::memcpy_async", group_copy},
               {"cuda::barrier", block_barrier},
               {"cuda::pipeline", block_pipeline}};

int main(void)
{
    u32 *device, from[THREADS], to[THREADS];
    CUDA_CHECK(cudaMalloc((void **)&device, sizeof from + sizeof to));
    for (auto &k : kernels) {
        for (auto &x : from) x = (u32)random_u64();
        CUDA_CHECK(cudaMemcpy(device, from, sizeof from, cudaMemcpyHostToDevice));
        check_begin(k.name);
        k.kernel<<<1, THREADS>>>(device, device + THREADS);
        if (!launched(k.name)) continue;
        CUDA_CHECK(cudaMemcpy(to, device + THREADS, sizeof to, cudaMemcpyDeviceToHost));
        for (int t = 0; t < THREADS; t++) check(t, to[t], from[THREADS - 1 - t]);
    }
    return check_end("library");
}
