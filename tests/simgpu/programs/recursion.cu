// Device functions that call themselves and each other, through pointers too, with arguments and results of every size.
#include "expect.h"

__device__ __noinline__ int fibonacci(int n)
{
    return n < 2 ? n : fibonacci(n - 1) + fibonacci(n - 2);
}

__device__ int is_odd(unsigned n);
__device__ __noinline__ int is_even(unsigned n)
{
    return n == 0 ? 1 : is_odd(n - 1);
}
__device__ __noinline__ int is_odd(unsigned n)
{
    return n == 0 ? 0 : is_even(n - 1);
}

// Sorts in place, each thread an array of its own length.
__device__ __noinline__ void quicksort(int *x, int count)
{
    if (count < 2) return;
    int pivot = x[count / 2], i = 0, j = count - 1;
    while (i <= j) {
        while (x[i] < pivot) i++;
        while (x[j] > pivot) j--;
        if (i > j) break;
        int t = x[i];
        x[i++] = x[j];
        x[j--] = t;
    }
    quicksort(x, j + 1);
    quicksort(x + i, count - i);
}

struct Pair {
    double a;
    long long b;
    char c;
};
__device__ __noinline__ Pair combine(Pair p, short s, unsigned char u, const double *d)
{
    return Pair{p.a + s + *d, p.b * u, (char)(p.c + 1)};
}

// Recursion with a local array at every level.
__device__ __noinline__ int depth_sum(int depth)
{
    int local[4];
    for (int i = 0; i < 4; i++) local[i] = depth * i;
    int below = depth ? depth_sum(depth - 1) : 0;
    return below + local[depth % 4];
}

typedef int (*Unary)(int);
__device__ __noinline__ int doubled(int x)
{
    return 2 * x;
}
__device__ __noinline__ int squared(int x)
{
    return x * x;
}
__device__ __noinline__ int negated(int x)
{
    return -x;
}
__device__ Unary operations[3] = {doubled, squared, negated};

enum { THREADS = 96, LENGTH = 40 };

__global__ void run(int *fib, int *even, int *arrays, Pair *pairs, int *sums, int *applied)
{
    int t = threadIdx.x;
    fib[t] = fibonacci(t % 13);
    even[t] = is_even((unsigned)t);
    quicksort(arrays + t * LENGTH, t % (LENGTH + 1));
    double half = 0.5;
    pairs[t] = combine(Pair{1.0 * t, -t, 'a'}, (short)-t, (unsigned char)(200 + t), &half);
    sums[t] = depth_sum(t % 10);
    applied[t] = operations[t % 3](t);
}

int main()
{
    int *ints, host[4][THREADS], *arrays, host_arrays[THREADS * LENGTH], sorted[THREADS * LENGTH];
    Pair *pairs, host_pairs[THREADS];
    for (int i = 0; i < THREADS * LENGTH; i++) host_arrays[i] = (int)(random_float() * 1000);
    CUDA(cudaMalloc(&ints, sizeof host));
    CUDA(cudaMalloc(&arrays, sizeof host_arrays));
    CUDA(cudaMalloc(&pairs, sizeof host_pairs));
    CUDA(cudaMemcpy(arrays, host_arrays, sizeof host_arrays, cudaMemcpyHostToDevice));
    CUDA(cudaDeviceSetLimit(cudaLimitStackSize, 16 << 10));
    run<<<1, THREADS>>>(ints, ints + THREADS, arrays, pairs, ints + 2 * THREADS, ints + 3 * THREADS);
    CUDA(cudaDeviceSynchronize());
    CUDA(cudaMemcpy(host, ints, sizeof host, cudaMemcpyDeviceToHost));
    CUDA(cudaMemcpy(sorted, arrays, sizeof sorted, cudaMemcpyDeviceToHost));
    CUDA(cudaMemcpy(host_pairs, pairs, sizeof host_pairs, cudaMemcpyDeviceToHost));

    const int fib[13] = {0, 1, 1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144};
    for (int t = 0; t < THREADS; t++) {
        EXPECT(host[0][t] == fib[t % 13]);
        EXPECT(host[1][t] == (t % 2 == 0));
        const int *x = sorted + t * LENGTH, *was = host_arrays + t * LENGTH, count = t % (LENGTH + 1);
        long long sum = 0;
        for (int i = 0; i < LENGTH; i++) sum += x[i] - was[i];
        EXPECT(sum == 0);
        for (int i = 1; i < count; i++) EXPECT(x[i - 1] <= x[i]);
        for (int i = count; i < LENGTH; i++) EXPECT(x[i] == was[i]);
        EXPECT(host_pairs[t].a == 0.5 && host_pairs[t].b == -t * (unsigned char)(200 + t) &&
               host_pairs[t].c == 'b');
        int depth_sum = 0;
        for (int d = 0; d <= t % 10; d++) depth_sum += d * (d % 4);
        EXPECT(host[2][t] == depth_sum);
        EXPECT(host[3][t] == (t % 3 == 0 ? 2 * t : t % 3 == 1 ? t * t : -t));
    }
    return verdict();
}
