// The device's mathematical functions, in f32, f64, f16 and bf16, against the host's.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "expect.h"

// clang-format off
#define FUNCTIONS(X)                                                                                         \
    X(sin) X(cos) X(tan) X(exp) X(exp2) X(expm1) X(log) X(log2) X(log10) X(log1p) X(sqrt) X(cbrt) X(sinh)     \
    X(cosh) X(tanh) X(asin) X(acos) X(atan) X(asinh) X(erf) X(erfc) X(tgamma) X(lgamma) X(floor) X(ceil)      \
    X(round) X(trunc) X(rint)
// clang-format on

#define KERNELS(name)                                             \
    __global__ void name##_f32(float *out, const float *x, int n) \
    {                                                             \
        int i = blockIdx.x * blockDim.x + threadIdx.x;            \
        if (i < n) out[i] = name##f(x[i]);                        \
    }                                                             \
    __global__ void name##_f64(float *out, const float *x, int n) \
    {                                                             \
        int i = blockIdx.x * blockDim.x + threadIdx.x;            \
        if (i < n) out[i] = (float)name((double)x[i]);            \
    }
FUNCTIONS(KERNELS)

__global__ void binary(float *out, const float *x, const float *y, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    out[i] = powf(x[i], y[i]);
    out[n + i] = fmodf(x[i], y[i]);
    out[2 * n + i] = atan2f(x[i], y[i]);
    out[3 * n + i] = hypotf(x[i], y[i]);
    out[4 * n + i] = x[i] / y[i];
    out[5 * n + i] = (float)((double)x[i] / (double)y[i]);
    out[6 * n + i] = __half2float(__hadd(__float2half(x[i]), __float2half(y[i])));
    out[7 * n + i] = __bfloat162float(__hmul(__float2bfloat16(x[i]), __float2bfloat16(y[i])));
    out[8 * n + i] = (float)((long long)(x[i] * 1000000) / (long long)(y[i] * 1000 + 1));
    out[9 * n + i] = (float)((unsigned)(x[i] * 1000000) % (unsigned)(y[i] * 1000 + 1));
    float2 sum = __half22float2(__hadd2(__floats2half2_rn(x[i], y[i]), __floats2half2_rn(1, 2)));
    out[10 * n + i] = sum.x + sum.y;
    out[11 * n + i] = __expf(x[i]) + __logf(y[i]) + __fdividef(x[i], y[i]) + rsqrtf(y[i]);
}

static void close(const char *name, const float *got, int i, double want, double relative)
{
    double bound = relative * fabs(want) + 1e-30;
    if (fabs(got[i] - want) <= bound) return;
    if (failures++ < 20) printf("%s: element %d is %.9g, expected %.9g\n", name, i, got[i], want);
}

int main()
{
    const int n = 1000;
    float x[n], y[n];
    for (int i = 0; i < n; i++) x[i] = 0.001f + 0.99f * (float)i / n, y[i] = 0.1f + fabsf(random_float());
    float *device_x = to_device(x, n), *device_y = to_device(y, n), *out, *got;
    CUDA(cudaMalloc(&out, 12 * n * sizeof *out));

#define CHECK(name)                                                                 \
    name##_f32<<<(n + 127) / 128, 128>>>(out, device_x, n);                         \
    got = to_host(out, n);                                                          \
    for (int i = 0; i < n; i++) close(#name "f", got, i, name((double)x[i]), 1e-5); \
    free(got);                                                                      \
    name##_f64<<<(n + 127) / 128, 128>>>(out, device_x, n);                         \
    got = to_host(out, n);                                                          \
    for (int i = 0; i < n; i++) close(#name, got, i, name((double)x[i]), 1e-7);     \
    free(got);
    FUNCTIONS(CHECK)

    binary<<<(n + 127) / 128, 128>>>(out, device_x, device_y, n);
    got = to_host(out, 12 * n);
    for (int i = 0; i < n; i++) {
        close("powf", got, i, pow(x[i], y[i]), 1e-5);
        close("fmodf", got + n, i, fmodf(x[i], y[i]), 0);
        close("atan2f", got + 2 * n, i, atan2(x[i], y[i]), 1e-5);
        close("hypotf", got + 3 * n, i, hypot(x[i], y[i]), 1e-5);
        close("f32 division", got + 4 * n, i, x[i] / y[i], 0);
        close("f64 division", got + 5 * n, i, (float)((double)x[i] / y[i]), 0);
        close("f16 addition", got + 6 * n, i, (double)x[i] + y[i], 2e-3);
        close("bf16 product", got + 7 * n, i, (double)x[i] * y[i], 1.2e-2);
        close("s64 division", got + 8 * n, i,
              (float)((long long)(x[i] * 1000000) / (long long)(y[i] * 1000 + 1)), 0);
        close("u32 remainder", got + 9 * n, i,
              (float)((unsigned)(x[i] * 1000000) % (unsigned)(y[i] * 1000 + 1)), 0);
        close("f16x2 addition", got + 10 * n, i, (double)x[i] + y[i] + 3, 2e-3);
        close("fast functions", got + 11 * n, i, exp(x[i]) + log(y[i]) + (double)x[i] / y[i] + 1 / sqrt(y[i]),
              1e-4);
    }
    return verdict();
}
