// Cooperative groups: blocks, tiles and their shuffles, votes, reductions and scans, coalesced and labelled groups.
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
#include <cooperative_groups/scan.h>

#include "expect.h"

namespace cg = cooperative_groups;

// out[block] = the sum of the block's part of x.
__global__ void block_sums(float *out, const float *x, int n)
{
    __shared__ float partial[32];
    cg::thread_block block = cg::this_thread_block();
    cg::thread_block_tile<32> warp = cg::tiled_partition<32>(block);
    float sum = 0;
    for (int i = blockIdx.x * blockDim.x + block.thread_rank(); i < n; i += gridDim.x * blockDim.x)
        sum += x[i];
    sum = cg::reduce(warp, sum, cg::plus<float>());
    if (warp.thread_rank() == 0) partial[warp.meta_group_rank()] = sum;
    block.sync();
    if (warp.meta_group_rank() != 0) return;
    sum = warp.thread_rank() < warp.meta_group_size() ? partial[warp.thread_rank()] : 0;
    sum = cg::reduce(warp, sum, cg::plus<float>());
    if (warp.thread_rank() == 0) out[blockIdx.x] = sum;
}

template <int SIZE>
__global__ void tiles(int *out)
{
    auto tile = cg::tiled_partition<SIZE>(cg::this_thread_block());
    int t = threadIdx.x, *o = out + 8 * t;
    o[0] = tile.thread_rank();
    o[1] = tile.shfl_xor(t, SIZE / 2);
    o[2] = cg::reduce(tile, t * t % 37, cg::greater<int>());
    o[3] = cg::inclusive_scan(tile, t);
    o[4] = tile.shfl_down(t, 1);
    o[5] = (int)tile.ballot(t % 3 == 0);
    o[6] = tile.any(t == 5) + 2 * tile.all(t < 1000);
    o[7] = cg::reduce(tile, 1u << t % SIZE, cg::bit_or<unsigned>()) ==
           (SIZE == 32 ? ~0u : (1u << SIZE % 32) - 1);
}

// Lanes that take a branch together count themselves; one of them adds for all.
__global__ void aggregate(int *count, int *groups)
{
    if (threadIdx.x % 3 == 0) {
        cg::coalesced_group active = cg::coalesced_threads();
        if (active.thread_rank() == 0) atomicAdd(count, active.size());
    }
    cg::coalesced_group warp = cg::coalesced_threads();
    auto same = cg::labeled_partition(warp, threadIdx.x % 4);
    if (same.thread_rank() == 0) atomicAdd(&groups[threadIdx.x % 4], same.size());
}

template <int SIZE>
static void try_tiles()
{
    const int threads = 96;
    int *device, host[8 * threads];
    CUDA(cudaMalloc(&device, sizeof host));
    tiles<SIZE><<<1, threads>>>(device);
    CUDA(cudaMemcpy(host, device, sizeof host, cudaMemcpyDeviceToHost));
    for (int t = 0; t < threads; t++) {
        const int *o = host + 8 * t, first = t / SIZE * SIZE, rank = t % SIZE;
        int greatest = 0, sum = 0, ballot = 0;
        for (int i = first; i < first + SIZE; i++) {
            if (i * i % 37 > greatest) greatest = i * i % 37;
            if (i <= t) sum += i;
            if (i % 3 == 0) ballot |= 1 << (i - first);
        }
        EXPECT(o[0] == rank);
        EXPECT(o[1] == first + (rank ^ SIZE / 2));
        EXPECT(o[2] == greatest);
        EXPECT(o[3] == sum);
        EXPECT(rank == SIZE - 1 || o[4] == t + 1);
        EXPECT(o[5] == ballot);
        EXPECT(o[6] == (first <= 5 && 5 < first + SIZE) + 2);
        EXPECT(o[7] == 1);
    }
    CUDA(cudaFree(device));
}

int main()
{
    const int n = 100003, blocks = 13;
    float *x = random_floats(n), *device_x = to_device(x, n), *sums;
    CUDA(cudaMalloc(&sums, blocks * sizeof *sums));
    for (int threads = 32; threads <= 1024; threads *= 2) {
        block_sums<<<blocks, threads>>>(sums, device_x, n);
        double want[blocks] = {0};
        for (int i = 0; i < n; i++) want[i / threads % blocks] += x[i];
        expect_close("block_sums", to_host(sums, blocks), want, blocks, 1e-3);
    }

    try_tiles<32>();
    try_tiles<16>();
    try_tiles<8>();
    try_tiles<4>();

    int *count, host_count[5];
    CUDA(cudaMalloc(&count, sizeof host_count));
    CUDA(cudaMemset(count, 0, sizeof host_count));
    aggregate<<<2, 100>>>(count, count + 1);
    CUDA(cudaMemcpy(host_count, count, sizeof host_count, cudaMemcpyDeviceToHost));
    EXPECT(host_count[0] == 2 * 34);
    for (int i = 1; i < 5; i++) EXPECT(host_count[i] == 50);
    return verdict();
}
