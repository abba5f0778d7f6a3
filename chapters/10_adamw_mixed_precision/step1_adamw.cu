// Chapter 10, step 1: AdamW, one parameter a thread.
//
// Question: what does a parameter's step take besides its gradient?
//
//      m = beta1 m + (1 - beta1) grad          the running mean of the gradient
//      v = beta2 v + (1 - beta2) grad^2        and of its square
//      param -= lr (m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + epsilon) + weight_decay param)
//
// Grows from: chapter 6, step 1 (residual).
// Two arrays that remember. m and v begin with 0, so that after t steps their weights sum up to 1 - beta^t only: dividing
// by that is the bias correction. It is the same for all parameters, so the host computes it, in double: 1 - 0.999^2 is
// 0.002, and in fp32 nine of 24 bits would be gone. The decay is of the parameter itself: added to the gradient, as Adam
// with L2 does, it would be divided by sqrt(v) too.
//
//      thread i:   grad[i], param[i], m[i], v[i]  ->  param[i], m[i], v[i]        28 bytes in fp32
//
// Registers: at most 40. Shared memory: none.
// Run: make chapter-10 OP=adamw STEP=adamw
#include "../../common/device/pack.cuh"
#include "approx.cuh"
#include "launchers.h"

#include <cuda_runtime.h>
#include <math.h>

constexpr int NUM_THREADS = 256;

// The new parameter; m and v become the new means.
static __device__ float adamw_of(float param, float grad, float &m, float &v, const adamw_settings &settings,
                                 float correction1, float correction2)
{
    m = settings.beta1 * m + (1.0f - settings.beta1) * grad;
    v = settings.beta2 * v + (1.0f - settings.beta2) * (grad * grad);
    const float root = sqrt_approx(v * correction2);
    const float direction = divide_approx(m * correction1, root + settings.epsilon);
    return param - settings.lr * (direction + settings.weight_decay * param);
}

template <typename T>
__global__ void __launch_bounds__(NUM_THREADS)
    adamw_kernel(const T *grad, // (n)
                 float *param,  // (n)
                 float *m,      // (n)
                 float *v,      // (n)
                 size_t n, adamw_settings settings, float correction1, float correction2)
{
    const size_t i = (size_t)blockIdx.x * NUM_THREADS + threadIdx.x;
    if (i >= n) return;
    float m_i = m[i], v_i = v[i];
    param[i] = adamw_of(param[i], to_float(grad[i]), m_i, v_i, settings, correction1, correction2);
    m[i] = m_i;
    v[i] = v_i;
}

template <typename T>
static cudaError_t launch(const void *grad, float *param, float *m, float *v, size_t n,
                          adamw_settings settings, int t, cudaStream_t stream)
{
    if (!grad || !param || !m || !v || n == 0 || t < 1) return cudaErrorInvalidValue;
    if (!(settings.beta1 >= 0 && settings.beta1 < 1 && settings.beta2 >= 0 && settings.beta2 < 1 &&
          settings.epsilon >= 0x1p-126f))
        return cudaErrorInvalidValue;
    const float correction1 = 1 / (1 - pow((double)settings.beta1, t)),
                correction2 = 1 / (1 - pow((double)settings.beta2, t));
    const size_t grid = (n - 1) / NUM_THREADS + 1;
    adamw_kernel<<<grid, NUM_THREADS, 0, stream>>>((const T *)grad, param, m, v, n, settings, correction1,
                                                   correction2);
    return cudaGetLastError();
}

extern "C" cudaError_t adamw(enum dtype dtype, const void *grad, float *param, float *m, float *v, size_t n,
                             struct adamw_settings settings, int t, cudaStream_t stream)
{
    return dtype == BF16 ? launch<__nv_bfloat16>(grad, param, m, v, n, settings, t, stream)
                         : launch<float>(grad, param, m, v, n, settings, t, stream);
}
