// Chapter 10, step 4: parameters in bf16 without a copy, rounded by chance.
//
// Question: the master copy is 8 of 28 bytes to move, and 4 of 14 to keep. Can bf16 alone keep small steps, on average?
//
// Grows from: step 3 (adamw_master).
// A number between two of bf16 becomes the upper one with the probability of its distance from the lower one: nothing is
// lost in the mean. In bits: a bf16 is the upper half of a float. Add a random number of 16 bits to the lower half, and
// cut it off:
//
//      float   upper half | 0x4000      a quarter of the way: of the 65,536 random numbers a quarter carry into the upper half
//                         + random
//
// The random bits are a hash of the seed, the step and the element's number: nobody keeps a state, any thread may ask,
// and the same run gives the same bits. (NaN must not be added to: 0x7fffffff would carry into 0x8000, which is -0.)
//
// Registers: at most 48. Shared memory: none.
// Run: make chapter-10 OP=adamw_stochastic STEP=adamw_stochastic
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

// A hash of 32 bits: every bit of x changes about half of those of the result (C. Wellons, triple32).
static __host__ __device__ uint32_t hash(uint32_t x)
{
    x = (x ^ x >> 17) * 0xed5ad4bbu;
    x = (x ^ x >> 11) * 0xac4c1b51u;
    x = (x ^ x >> 15) * 0x31848babu;
    return x ^ x >> 14;
}

// 16 random bits for element i.
static __device__ uint32_t random_bits(uint32_t key, size_t i)
{
    return hash(hash(key + (uint32_t)(i >> 32)) ^ (uint32_t)i) >> 16;
}

// The bf16 below or above x, towards and away from 0, as a float.
static __device__ float round_by_chance(float x, uint32_t random)
{
    return isnan(x) ? x : __uint_as_float((__float_as_uint(x) + random) & 0xffff0000u);
}

template <typename T>
__global__ void __launch_bounds__(NUM_THREADS)
    adamw_stochastic_kernel(const T *grad,        // (n)
                            __nv_bfloat16 *param, // (n)
                            float *m,             // (n)
                            float *v,             // (n)
                            size_t n, adamw_settings settings, float correction1, float correction2,
                            uint32_t key)
{
    const size_t fours = n / 4;
    const size_t four = (size_t)blockIdx.x * NUM_THREADS + threadIdx.x;
    const size_t i = four * 4;
    if (four < fours) {
        float grad_frag[4], param_frag[4], m_frag[4], v_frag[4];
        unpack(grad_frag, load_four(grad + i), T());
        unpack(param_frag, load_four(param + i), __nv_bfloat16());
        unpack(m_frag, load_four(m + i), float());
        unpack(v_frag, load_four(v + i), float());
#pragma unroll
        for (int k = 0; k < 4; k++)
            param_frag[k] = round_by_chance(adamw_of(param_frag[k], grad_frag[k], m_frag[k], v_frag[k],
                                                     settings, correction1, correction2),
                                            random_bits(key, i + k));
        store_four(param + i, make_pack(param_frag, __nv_bfloat16())); // exact
        store_four(m + i, make_pack(m_frag, float()));
        store_four(v + i, make_pack(v_frag, float()));
    } else if (four == fours)
        for (size_t j = i; j < n; j++)
            from_float(&param[j], round_by_chance(adamw_of(to_float(param[j]), to_float(grad[j]), m[j], v[j],
                                                           settings, correction1, correction2),
                                                  random_bits(key, j)));
}

template <typename T>
static cudaError_t launch(const void *grad, void *param, float *m, float *v, size_t n,
                          adamw_settings settings, int t, uint32_t seed, cudaStream_t stream)
{
    if (!grad || !param || !m || !v || n == 0 || t < 1) return cudaErrorInvalidValue;
    if (((uintptr_t)grad | (uintptr_t)param | (uintptr_t)m | (uintptr_t)v) % PACK_BYTES != 0)
        return cudaErrorInvalidValue;
    if (!(settings.beta1 >= 0 && settings.beta1 < 1 && settings.beta2 >= 0 && settings.beta2 < 1 &&
          settings.epsilon >= 0x1p-126f))
        return cudaErrorInvalidValue;
    const float correction1 = 1 / (1 - pow((double)settings.beta1, t)),
                correction2 = 1 / (1 - pow((double)settings.beta2, t));
    const size_t grid = n / (4 * NUM_THREADS) + 1; // one thread more than whole fours
    adamw_stochastic_kernel<<<grid, NUM_THREADS, 0, stream>>>((const T *)grad, (__nv_bfloat16 *)param, m, v,
                                                              n, settings, correction1, correction2,
                                                              hash(hash(seed) + t));
    return cudaGetLastError();
}

extern "C" cudaError_t adamw_stochastic(enum dtype dtype, const void *grad, void *param, float *m, float *v,
                                        size_t n, struct adamw_settings settings, int t, uint32_t seed,
                                        cudaStream_t stream)
{
    return dtype == BF16 ? launch<__nv_bfloat16>(grad, param, m, v, n, settings, t, seed, stream)
                         : launch<float>(grad, param, m, v, n, settings, t, seed, stream);
}
