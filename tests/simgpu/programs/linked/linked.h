// linked.h: what the files of this program know of each other.
#ifndef LINKED_H
#define LINKED_H

#include "../expect.h"

enum { N = 64 };
typedef float (*function)(float);

extern __device__ int counter;
extern __device__ float steps[N];
extern __constant__ float scale[4];
extern __managed__ int launches;
extern __device__ function functions[3];
extern __device__ int *of_another_file;
extern __shared__ float room[N];
extern __device__ float shift(float x);
extern __device__ float reversed(float x);
extern __device__ void fill_dynamic(float x);
extern __device__ void store(float *to, float x);

// Every file that calls it has a copy, with a counter of its own: one of them all remains.
template <typename T>
__device__ __noinline__ T counted(T x)
{
    static __device__ int calls;
    return x + (T)(1000 * atomicAdd(&calls, 1));
}

void launch_other(float *out);

#endif
