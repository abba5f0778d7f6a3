// Chapter 10, step 3: parameters in bf16, and a copy of them in fp32 that is updated.
//
// Question: the tensor cores want parameters in bf16, which has 8 bits: from 1 the next number is 1.0078. A step of lr =
// 3e-4 is lost in rounding, every time. Where do the small steps add up?
//
// Grows from: step 2 (adamw_fours).
// In a master copy in fp32, which only the optimizer sees. The forward and the backward read what it rounds to, written in
// the same pass: 2 bytes more an element, and half of what they would read of fp32.
//
//      master, m, v, grad  ->  master, m, v  ->  param = bf16(master)        28 bytes with a gradient in bf16, 30 in fp32
//
// Registers: at most 48. Shared memory: none.
// Run: make chapter-10 OP=adamw_master STEP=adamw_master
#include "approx.cuh"
#include "four.cuh"
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
    adamw_master_kernel(const T *grad,        // (n)
                        __nv_bfloat16 *param, // (n)
                        float *master,        // (n)
                        float *m,             // (n)
                        float *v,             // (n)
                        size_t n, adamw_settings settings, float correction1, float correction2)
{
    const size_t fours = n / 4;
    const size_t four = (size_t)blockIdx.x * NUM_THREADS + threadIdx.x;
    const size_t i = four * 4;
    if (four < fours) {
        float grad_frag[4], master_frag[4], m_frag[4], v_frag[4];
        unpack(grad_frag, load_four(grad + i), T());
        unpack(master_frag, load_four(master + i), float());
        unpack(m_frag, load_four(m + i), float());
        unpack(v_frag, load_four(v + i), float());
#pragma unroll
        for (int k = 0; k < 4; k++)
            master_frag[k] = adamw_of(master_frag[k], grad_frag[k], m_frag[k], v_frag[k], settings,
                                      correction1, correction2);
        store_four(master + i, make_pack(master_frag, float()));
        store_four(param + i, make_pack(master_frag, __nv_bfloat16()));
        store_four(m + i, make_pack(m_frag, float()));
        store_four(v + i, make_pack(v_frag, float()));
    } else if (four == fours)
        for (size_t j = i; j < n; j++) {
            master[j] =
                adamw_of(master[j], to_float(grad[j]), m[j], v[j], settings, correction1, correction2);
            from_float(&param[j], master[j]);
        }
}

template <typename T>
static cudaError_t launch(const void *grad, void *param, float *master, float *m, float *v, size_t n,
                          adamw_settings settings, int t, cudaStream_t stream)
{
    if (!grad || !param || !master || !m || !v || n == 0 || t < 1) return cudaErrorInvalidValue;
    if (((uintptr_t)grad | (uintptr_t)param | (uintptr_t)master | (uintptr_t)m | (uintptr_t)v) % PACK_BYTES !=
        0)
        return cudaErrorInvalidValue;
    if (!(settings.beta1 >= 0 && settings.beta1 < 1 && settings.beta2 >= 0 && settings.beta2 < 1 &&
          settings.epsilon >= 0x1p-126f))
        return cudaErrorInvalidValue;
    const float correction1 = 1 / (1 - pow((double)settings.beta1, t)),
                correction2 = 1 / (1 - pow((double)settings.beta2, t));
    const size_t grid = n / (4 * NUM_THREADS) + 1; // one thread more than whole fours
    adamw_master_kernel<<<grid, NUM_THREADS, 0, stream>>>((const T *)grad, (__nv_bfloat16 *)param, master, m,
                                                          v, n, settings, correction1, correction2);
    return cudaGetLastError();
}

extern "C" cudaError_t adamw_master(enum dtype dtype, const void *grad, void *param, float *master, float *m,
                                    float *v, size_t n, struct adamw_settings settings, int t,
                                    cudaStream_t stream)
{
    return dtype == BF16 ? launch<__nv_bfloat16>(grad, param, master, m, v, n, settings, t, stream)
                         : launch<float>(grad, param, master, m, v, n, settings, t, stream);
}
