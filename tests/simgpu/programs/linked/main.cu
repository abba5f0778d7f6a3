// Three files compiled apart and linked (nvcc -rdc=true): functions, variables and pointers to them across files.
#include "linked.h"

static __device__ float own(float x)
{
    return x + 1;
}
static __device__ int secret = 1;
__device__ int owned_by_main = 5;
__device__ const float *end_of_steps = steps + N;

__global__ void use(float *out)
{
    extern __shared__ float dynamic[];
    __shared__ float mine[N];
    const int i = threadIdx.x;
    mine[i] = (float)i;
    room[i] = 5;
    fill_dynamic((float)(10 * i));
    __syncthreads();
    float sum =
        own(shift((float)i)) * scale[i % 4] + functions[i % 3](2) + (float)secret + end_of_steps[i - N];
    sum += mine[N - 1 - i] + reversed(100.0f * (float)i) + dynamic[(i + 1) % N];
    out[i] = sum;
    atomicAdd(&counter, 1);
    if (i == 0) {
        *of_another_file += (int)room[N - 1] - 4;
        launches++;
    }
}

__global__ void count(float *out)
{
    *out = counted(0.5f);
}

__global__ void few(float *out)
{
    __shared__ float one[1];
    one[threadIdx.x] = *out;
    __syncthreads();
    *out = one[0];
}

__global__ void astray(float *out)
{
    store(out + 1, 1);
}

static int shared_bytes(const void *kernel)
{
    cudaFuncAttributes attributes;
    CUDA(cudaFuncGetAttributes(&attributes, kernel));
    return (int)attributes.sharedSizeBytes;
}

int main(int argc, char **argv)
{
    (void)argv;
    float *out, new_steps[N], new_scale[2] = {7, 8};
    CUDA(cudaMalloc(&out, N * sizeof *out));
    if (argc > 1) {
        float *one;
        CUDA(cudaMalloc(&one, sizeof *one));
        astray<<<1, 1>>>(one);
        EXPECT(cudaDeviceSynchronize() == cudaErrorIllegalAddress);
        return verdict();
    }
    for (int i = 0; i < N; i++) new_steps[i] = (float)(3 * i);
    CUDA(cudaMemcpyToSymbol(steps, new_steps, sizeof new_steps));
    CUDA(cudaMemcpyToSymbol(scale, new_scale, sizeof new_scale, 2 * sizeof *new_scale));

    use<<<1, N, N * sizeof(float)>>>(out);
    CUDA(cudaDeviceSynchronize());
    const double scales[4] = {2, 3, 7, 8}, called[3] = {4, 12, 4};
    double want[N];
    for (int i = 0; i < N; i++)
        want[i] = (2.0 * i + 1) * scales[i % 4] + called[i % 3] + 1 + 3 * i + (N - 1 - i) +
                  100.0 * (N - 1 - i) + 10 * ((i + 1) % N);
    expect_close("use", to_host(out, N), want, N, 0);

    int number;
    CUDA(cudaMemcpyFromSymbol(&number, counter, sizeof number));
    EXPECT(number == N);
    CUDA(cudaMemcpyFromSymbol(&number, owned_by_main, sizeof number));
    EXPECT(number == 6);
    EXPECT(launches == 41);

    const double of_two_files[3] = {0.5, 1000.5, 2010};
    count<<<1, 1>>>(out);
    count<<<1, 1>>>(out + 1);
    launch_other(out + 2);
    CUDA(cudaDeviceSynchronize());
    expect_close("counted", to_host(out, 3), of_two_files, 3, 0);

    EXPECT(shared_bytes((const void *)use) == 3 * N * (int)sizeof(float));
    EXPECT(shared_bytes((const void *)few) == (int)sizeof(float));
    return verdict();
}
