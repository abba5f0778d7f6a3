// Kernels as tutorials write them: elementwise, tree reduction, histogram, layernorm, softmax, transpose, scan, each against
// sums in double on the host.
#include <float.h>

#include "expect.h"

__global__ void saxpy(int n, float a, const float *__restrict__ x, float *__restrict__ y)
{
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
        y[i] = a * x[i] + y[i];
}

__global__ void gelu(float *out, const float4 *x, int n4)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n4) return;
    float4 v = x[i];
    float in[4] = {v.x, v.y, v.z, v.w};
    for (int k = 0; k < 4; k++) {
        float cube = 0.044715f * in[k] * in[k] * in[k];
        out[4 * i + k] = 0.5f * in[k] * (1 + tanhf(0.7978845608f * (in[k] + cube)));
    }
}

__global__ void tree_sum(float *out, const float *x, int n)
{
    __shared__ float part[256];
    int t = threadIdx.x, i = blockIdx.x * 512 + t;
    part[t] = (i < n ? x[i] : 0) + (i + 256 < n ? x[i + 256] : 0);
    __syncthreads();
    for (int s = 128; s > 0; s >>= 1) {
        if (t < s) part[t] += part[t + s];
        __syncthreads();
    }
    if (t == 0) atomicAdd(out, part[0]);
}

__global__ void histogram(unsigned *bins, const float *x, int n)
{
    __shared__ unsigned local[64];
    if (threadIdx.x < 64) local[threadIdx.x] = 0;
    __syncthreads();
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
        atomicAdd(&local[min(63, (int)((x[i] + 1) * 32))], 1u);
    __syncthreads();
    if (threadIdx.x < 64) atomicAdd(&bins[threadIdx.x], local[threadIdx.x]);
}

__device__ float warp_sum(float v)
{
    for (int offset = 16; offset > 0; offset /= 2) v += __shfl_xor_sync(~0u, v, offset);
    return v;
}

// One warp a row.
__global__ void layernorm(float *out, const float *x, const float *weight, const float *bias, int rows,
                          int cols)
{
    int row = (blockIdx.x * blockDim.x + threadIdx.x) / 32, lane = threadIdx.x % 32;
    if (row >= rows) return;
    x += (size_t)row * cols;
    float sum = 0, squares = 0;
    for (int c = lane; c < cols; c += 32) sum += x[c];
    float mean = warp_sum(sum) / cols;
    for (int c = lane; c < cols; c += 32) squares += (x[c] - mean) * (x[c] - mean);
    float scale = rsqrtf(warp_sum(squares) / cols + 1e-5f);
    for (int c = lane; c < cols; c += 32)
        out[(size_t)row * cols + c] = (x[c] - mean) * scale * weight[c] + bias[c];
}

// One block a row, one pass for maximum and sum together.
__global__ void softmax(float *out, const float *x, int cols)
{
    __shared__ float maxima[32], sums[32];
    const float *row = x + (size_t)blockIdx.x * cols;
    float maximum = -FLT_MAX, sum = 0;
    for (int c = threadIdx.x; c < cols; c += blockDim.x) {
        float larger = fmaxf(maximum, row[c]);
        sum = sum * expf(maximum - larger) + expf(row[c] - larger);
        maximum = larger;
    }
    for (int offset = 16; offset > 0; offset /= 2) {
        float other = __shfl_down_sync(~0u, maximum, offset), other_sum = __shfl_down_sync(~0u, sum, offset);
        float larger = fmaxf(maximum, other);
        sum = sum * expf(maximum - larger) + other_sum * expf(other - larger);
        maximum = larger;
    }
    if (threadIdx.x % 32 == 0) maxima[threadIdx.x / 32] = maximum, sums[threadIdx.x / 32] = sum;
    __syncthreads();
    maximum = maxima[0];
    for (int w = 1; w < blockDim.x / 32; w++) maximum = fmaxf(maximum, maxima[w]);
    sum = 0;
    for (int w = 0; w < blockDim.x / 32; w++) sum += sums[w] * expf(maxima[w] - maximum);
    for (int c = threadIdx.x; c < cols; c += blockDim.x)
        out[(size_t)blockIdx.x * cols + c] = expf(row[c] - maximum) / sum;
}

__global__ void transpose(float *out, const float *x, int rows, int cols)
{
    __shared__ float tile[32][33];
    int c = blockIdx.x * 32 + threadIdx.x, r = blockIdx.y * 32 + threadIdx.y;
    for (int k = 0; k < 32; k += 8)
        if (c < cols && r + k < rows) tile[threadIdx.y + k][threadIdx.x] = x[(size_t)(r + k) * cols + c];
    __syncthreads();
    c = blockIdx.y * 32 + threadIdx.x, r = blockIdx.x * 32 + threadIdx.y;
    for (int k = 0; k < 32; k += 8)
        if (c < rows && r + k < cols) out[(size_t)(r + k) * rows + c] = tile[threadIdx.x][threadIdx.y + k];
}

// Inclusive, one block.
__global__ void scan(int *x, int n)
{
    __shared__ int values[1024];
    int t = threadIdx.x;
    values[t] = t < n ? x[t] : 0;
    __syncthreads();
    for (int step = 1; step < 1024; step *= 2) {
        int add = t >= step ? values[t - step] : 0;
        __syncthreads();
        values[t] += add;
        __syncthreads();
    }
    if (t < n) x[t] = values[t];
}

int main()
{
    const int rows = 37, cols = 333, n = rows * cols; // n is odd; n / 4 rounds down
    float *x = random_floats(n), *y = random_floats(n), *device_x = to_device(x, n),
          *device_y = to_device(y, n), *out;
    double *want = (double *)calloc(n, sizeof *want);
    CUDA(cudaMalloc(&out, n * sizeof *out));

    for (int i = 0; i < n; i++) want[i] = 2.5 * x[i] + y[i];
    saxpy<<<7, 96>>>(n, 2.5f, device_x, device_y);
    expect_close("saxpy", to_host(device_y, n), want, n, 1e-6);

    for (int i = 0; i < n; i++)
        want[i] = 0.5 * x[i] * (1 + tanh(0.7978845608 * (x[i] + 0.044715 * x[i] * x[i] * x[i])));
    gelu<<<(n / 4 + 127) / 128, 128>>>(out, (const float4 *)device_x, n / 4);
    expect_close("gelu", to_host(out, n / 4 * 4), want, n / 4 * 4, 1e-6);

    double sum = 0;
    for (int i = 0; i < n; i++) sum += x[i];
    CUDA(cudaMemset(out, 0, sizeof *out));
    tree_sum<<<(n + 511) / 512, 256>>>(out, device_x, n);
    expect_close("tree_sum", to_host(out, 1), &sum, 1, 1e-3);

    unsigned *bins, host_bins[64], want_bins[64] = {0};
    for (int i = 0; i < n; i++) want_bins[(int)((x[i] + 1) * 32) > 63 ? 63 : (int)((x[i] + 1) * 32)]++;
    CUDA(cudaMalloc(&bins, sizeof host_bins));
    CUDA(cudaMemset(bins, 0, sizeof host_bins));
    histogram<<<5, 128>>>(bins, device_x, n);
    CUDA(cudaMemcpy(host_bins, bins, sizeof host_bins, cudaMemcpyDeviceToHost));
    EXPECT(memcmp(host_bins, want_bins, sizeof want_bins) == 0);

    float *weight = random_floats(cols), *bias = random_floats(cols);
    for (int r = 0; r < rows; r++) {
        double mean = 0, variance = 0;
        for (int c = 0; c < cols; c++) mean += x[r * cols + c] / (double)cols;
        for (int c = 0; c < cols; c++) variance += (x[r * cols + c] - mean) * (x[r * cols + c] - mean) / cols;
        for (int c = 0; c < cols; c++)
            want[r * cols + c] = (x[r * cols + c] - mean) / sqrt(variance + 1e-5) * weight[c] + bias[c];
    }
    layernorm<<<(rows * 32 + 127) / 128, 128>>>(out, device_x, to_device(weight, cols), to_device(bias, cols),
                                                rows, cols);
    expect_close("layernorm", to_host(out, n), want, n, 1e-5);

    for (int r = 0; r < rows; r++) {
        double maximum = -1e30, total = 0;
        for (int c = 0; c < cols; c++) maximum = fmax(maximum, x[r * cols + c]);
        for (int c = 0; c < cols; c++) total += exp(x[r * cols + c] - maximum);
        for (int c = 0; c < cols; c++) want[r * cols + c] = exp(x[r * cols + c] - maximum) / total;
    }
    softmax<<<rows, 128>>>(out, device_x, cols);
    expect_close("softmax", to_host(out, n), want, n, 1e-7);

    for (int r = 0; r < rows; r++)
        for (int c = 0; c < cols; c++) want[c * rows + r] = x[r * cols + c];
    transpose<<<dim3((cols + 31) / 32, (rows + 31) / 32), dim3(32, 8)>>>(out, device_x, rows, cols);
    expect_close("transpose", to_host(out, n), want, n, 0);

    int *ints, host_ints[1000];
    for (int i = 0; i < 1000; i++) host_ints[i] = i % 17;
    CUDA(cudaMalloc(&ints, sizeof host_ints));
    CUDA(cudaMemcpy(ints, host_ints, sizeof host_ints, cudaMemcpyHostToDevice));
    scan<<<1, 1024>>>(ints, 1000);
    int scanned[1000], running = 0;
    CUDA(cudaMemcpy(scanned, ints, sizeof scanned, cudaMemcpyDeviceToHost));
    for (int i = 0; i < 1000; i++) EXPECT(scanned[i] == (running += host_ints[i]));
    return verdict();
}
