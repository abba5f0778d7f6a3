// CUB's reductions by key and scans of 64-bit sums, whose blocks hand on partial results with their flags, 16 bytes at once:
// torn apart between two blocks, the sums are wrong without a word. It is compiled for compute_80 only: CUB asks its kernels for
// their ptxVersion, and runs nothing when that is none of those it was compiled for.
#include <cub/cub.cuh>
#include <vector>

#include "expect.h"

static const int N = 1 << 18, ROUNDS = 4;

// The temporary memory that the call asks for, kept until the program ends.
template <class Call>
static void with_workspace(Call call)
{
    void *workspace = nullptr;
    size_t bytes = 0;
    CUDA(call(workspace, bytes));
    CUDA(cudaMalloc(&workspace, bytes));
    for (int round = 0; round < ROUNDS; round++) CUDA(call(workspace, bytes));
}

template <class T>
static std::vector<T> to_host(const T *device, size_t count)
{
    std::vector<T> host(count);
    CUDA(cudaMemcpy(host.data(), device, count * sizeof(T), cudaMemcpyDeviceToHost));
    return host;
}

int main()
{
    std::vector<int> keys(N);
    std::vector<long long> values(N), sums, by_key;
    long long sum = 0;
    for (int i = 0; i < N; i++) {
        keys[i] = i ? keys[i - 1] + (random_float() > 0.7f) : 0;
        values[i] = (long long)((double)random_float() * 0x1p40);
        sums.push_back(sum += values[i]);
        if (!i || keys[i] != keys[i - 1]) by_key.push_back(0);
        by_key.back() += values[i];
    }
    int *keys_in, *keys_out, *runs;
    long long *values_in, *values_out;
    CUDA(cudaMalloc(&keys_in, N * sizeof *keys_in));
    CUDA(cudaMalloc(&keys_out, N * sizeof *keys_out));
    CUDA(cudaMalloc(&runs, sizeof *runs));
    CUDA(cudaMalloc(&values_in, N * sizeof *values_in));
    CUDA(cudaMalloc(&values_out, N * sizeof *values_out));
    CUDA(cudaMemcpy(keys_in, keys.data(), N * sizeof *keys_in, cudaMemcpyHostToDevice));
    CUDA(cudaMemcpy(values_in, values.data(), N * sizeof *values_in, cudaMemcpyHostToDevice));

    with_workspace([&](void *workspace, size_t &bytes) {
        return cub::DeviceReduce::ReduceByKey(workspace, bytes, keys_in, keys_out, values_in, values_out,
                                              runs, cuda::std::plus<>{}, N);
    });
    EXPECT(to_host(runs, 1)[0] == (int)by_key.size());
    EXPECT(to_host(values_out, by_key.size()) == by_key);
    with_workspace([&](void *workspace, size_t &bytes) {
        return cub::DeviceScan::InclusiveSum(workspace, bytes, values_in, values_out, N);
    });
    EXPECT(to_host(values_out, N) == sums);
    return verdict();
}
