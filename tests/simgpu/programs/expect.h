// expect.h: what these ordinary CUDA programs share: a call must succeed (CUDA), a statement must hold (EXPECT).
#ifndef EXPECT_H
#define EXPECT_H

#include <cuda_runtime.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int failures;

#define CUDA(call)                                                                             \
    do {                                                                                       \
        cudaError_t status_ = (call);                                                          \
        if (status_ != cudaSuccess) {                                                          \
            printf("%s:%d: %s: %s\n", __FILE__, __LINE__, #call, cudaGetErrorString(status_)); \
            exit(3);                                                                           \
        }                                                                                      \
    } while (0)

#define EXPECT(statement)                                                         \
    do {                                                                          \
        if (!(statement)) {                                                       \
            printf("%s:%d: does not hold: %s\n", __FILE__, __LINE__, #statement); \
            failures++;                                                           \
        }                                                                         \
    } while (0)

// Every element within `tolerance` of the reference; a NaN never is.
static inline void expect_close(const char *what, const float *got, const double *want, size_t count,
                                double tolerance)
{
    for (size_t i = 0; i < count; i++) {
        if (fabs((double)got[i] - want[i]) <= tolerance) continue;
        printf("%s: element %zu is %.9g, expected %.9g\n", what, i, got[i], want[i]);
        failures++;
        return;
    }
}

// Random numbers in [-1, 1), the same on every machine.
static inline float random_float(void)
{
    static uint32_t state = 1;
    state = state * 1664525u + 1013904223u;
    return (float)(int32_t)state * 0x1p-31f;
}

static inline float *random_floats(size_t count)
{
    float *values = (float *)malloc(count * sizeof *values);
    for (size_t i = 0; i < count; i++) values[i] = random_float();
    return values;
}

static inline float *to_device(const float *host, size_t count)
{
    float *device;
    CUDA(cudaMalloc((void **)&device, count * sizeof *device));
    CUDA(cudaMemcpy(device, host, count * sizeof *device, cudaMemcpyHostToDevice));
    return device;
}

static inline float *to_host(const float *device, size_t count)
{
    float *host = (float *)malloc(count * sizeof *host);
    CUDA(cudaMemcpy(host, device, count * sizeof *host, cudaMemcpyDeviceToHost));
    return host;
}

static inline int verdict(void)
{
    puts(failures ? "wrong" : "right");
    return failures != 0;
}

#endif
