// Chapter 10, step 2: four parameters a thread.
//
// Question: a thread of step 1 has 16 bytes in flight, an SM's 2,048 threads 32 KB, which is just what Little's law asks
// for (4.2 TB/s * 1 us / 132). Who keeps memory busy while threads begin, divide and store?
//
// Grows from: step 1 (adamw).
// More bytes a thread. Four floats are 16 bytes, the most that an instruction moves: all four arrays are asked for before
// the first is used, 64 bytes a thread. Of a gradient in bf16 four elements are 8 bytes, so that a lane has the same four
// parameters in every array, and a warp whole sectors in each.
//
//      lane 0:  grad[0..3]  param[0..3]  m[0..3]  v[0..3]        lane 1:  [4..7]  …
//
// What is left of n behind the last whole four, one thread takes element by element.
// Launched early (chapter 6, step 3).
// New: fours (four.cuh).
// Registers: at most 48. Shared memory: a quarter of an SM's, which nobody uses, so that no more than four blocks fit.
// Run: make chapter-10 OP=adamw STEP=adamw_fours
#include "../../common/device/launch.cuh"
#include "approx.cuh"
#include "four.cuh"
#include "launchers.h"

#include <cuda_runtime.h>
#include <math.h>

constexpr int NUM_THREADS = 256;
// 64 KB of loads are under way then; with the 8 that registers allow it takes longer (results/trials/layers_in_flight_h100.csv).
constexpr int BLOCKS_PER_SM = 4;

// The new parameter; m and v become the new means.
static __device__ float adamw_of(float param, float grad, float &m, float &v, const adamw_settings &settings,
                                 float correction1, float correction2)
{
    // EXERCISE 10.2: both means, and a step of AdamW; corrections are factors of m and v (about 5 lines)
    m = settings.beta1 * m + (1.0f - settings.beta1) * grad;
    v = settings.beta2 * v + (1.0f - settings.beta2) * (grad * grad);
    const float root = sqrt_approx(v * correction2);
    const float direction = divide_approx(m * correction1, root + settings.epsilon);
    return param - settings.lr * (direction + settings.weight_decay * param);
    // STUB m = correction1 * grad, v = correction2 * grad;
    // STUB return param - settings.lr * grad;
    // END
}

template <typename T>
__global__ void __launch_bounds__(NUM_THREADS)
    adamw_fours_kernel(const T *grad, // (n)
                       float *param,  // (n)
                       float *m,      // (n)
                       float *v,      // (n)
                       size_t n, adamw_settings settings, float correction1, float correction2)
{
    wait_for_kernels_before();
    const size_t fours = n / 4;
    const size_t four = (size_t)blockIdx.x * NUM_THREADS + threadIdx.x;
    const size_t i = four * 4;
    // EXERCISE 10.3: four neighbours of each array at a time; what is left behind the last four, singly (about 16 lines)
    if (four < fours) {
        float grad_frag[4], param_frag[4], m_frag[4], v_frag[4];
        unpack(grad_frag, load_four(grad + i), T());
        unpack(param_frag, load_four(param + i), float());
        unpack(m_frag, load_four(m + i), float());
        unpack(v_frag, load_four(v + i), float());
#pragma unroll
        for (int k = 0; k < 4; k++)
            param_frag[k] = adamw_of(param_frag[k], grad_frag[k], m_frag[k], v_frag[k], settings, correction1,
                                     correction2);
        store_four(param + i, make_pack(param_frag, float()));
        store_four(m + i, make_pack(m_frag, float()));
        store_four(v + i, make_pack(v_frag, float()));
    } else if (four == fours)
        for (size_t j = i; j < n; j++)
            param[j] = adamw_of(param[j], to_float(grad[j]), m[j], v[j], settings, correction1, correction2);
    // STUB if (four < fours)
    // STUB     param[i] = adamw_of(param[i], to_float(grad[i]), m[i], v[i], settings, correction1, correction2);
    // END
}

template <typename T>
static cudaError_t launch(const void *grad, float *param, float *m, float *v, size_t n,
                          adamw_settings settings, int t, cudaStream_t stream)
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
    return launch_early_at_most(BLOCKS_PER_SM, adamw_fours_kernel<T>, grid, NUM_THREADS, stream,
                                (const T *)grad, param, m, v, n, settings, correction1, correction2);
}

extern "C" cudaError_t adamw_fours(enum dtype dtype, const void *grad, float *param, float *m, float *v,
                                   size_t n, struct adamw_settings settings, int t, cudaStream_t stream)
{
    return dtype == BF16 ? launch<__nv_bfloat16>(grad, param, m, v, n, settings, t, stream)
                         : launch<float>(grad, param, m, v, n, settings, t, stream);
}
