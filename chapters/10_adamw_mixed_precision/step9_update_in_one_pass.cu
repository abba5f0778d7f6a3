// Chapter 10, step 9: the whole update in one pass over memory, behind the one that the norm needs.
//
// Question: unscale, clip, skip, decay, step, round: a framework has a kernel for each. How often must a gradient be read?
//
// Grows from: step 3 (adamw_master).
// Twice: by step 8 for the norm, and once here, where its factor is a product in a register. All that the host told step
// 3 and that can change from step to step is in device memory now: the factor, the corrections, the learning rate, and
// whether there is an update at all. So both kernels can be recorded in a CUDA graph, and replayed for as long as
// training lasts.
//
//      step 8:  grad -> norm, control, scale     here:  grad, master, m, v, control  ->  master, m, v, param
//
// After an overflow the arrays are written as they were read, so that no thread waits for control before it asks for them.
// Registers: at most 48. Shared memory: none.
// Run: make chapter-10 OP=mixed_update STEP=update_in_one_pass
#include "approx.cuh"
#include "four.cuh"
#include "launchers.h"

#include <cuda_runtime.h>

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

// The same, or, when the gradient has overflowed and there are no corrections, everything as it was. A return instead of
// the choice would be shorter, but ptxas puts the loads of the arrays behind it (nvdisasm shows it): they would wait for
// control.
static __device__ float update_of(float param, float grad, float &m, float &v, const adamw_settings &settings,
                                  float correction1, float correction2)
{
    const bool overflow = correction1 == 0.0f;
    const float old_m = m, old_v = v;
    const float new_param = adamw_of(param, grad, m, v, settings, correction1, correction2);
    m = overflow ? old_m : m;
    v = overflow ? old_v : v;
    return overflow ? param : new_param;
}

template <typename T>
__global__ void __launch_bounds__(NUM_THREADS) update_in_one_pass_kernel(const T *grad,        // (n)
                                                                         __nv_bfloat16 *param, // (n) or NULL
                                                                         float *master,        // (n)
                                                                         float *m,             // (n)
                                                                         float *v,             // (n)
                                                                         size_t n, adamw_settings settings,
                                                                         const float *lr,      // (1)
                                                                         const float *control) // (3)
{
    const size_t fours = n / 4;
    const size_t four = (size_t)blockIdx.x * NUM_THREADS + threadIdx.x;
    const size_t i = four * 4;
    settings.lr = *lr;
    const float factor = control[0], correction1 = control[1], correction2 = control[2];
    if (four < fours) {
        float grad_frag[4], master_frag[4], m_frag[4], v_frag[4];
        unpack(grad_frag, load_four(grad + i), T());
        unpack(master_frag, load_four(master + i), float());
        unpack(m_frag, load_four(m + i), float());
        unpack(v_frag, load_four(v + i), float());
#pragma unroll
        for (int k = 0; k < 4; k++)
            master_frag[k] = update_of(master_frag[k], factor * grad_frag[k], m_frag[k], v_frag[k], settings,
                                       correction1, correction2);
        store_four(master + i, make_pack(master_frag, float()));
        if (param) store_four(param + i, make_pack(master_frag, __nv_bfloat16()));
        store_four(m + i, make_pack(m_frag, float()));
        store_four(v + i, make_pack(v_frag, float()));
    } else if (four == fours)
        for (size_t j = i; j < n; j++) {
            master[j] = update_of(master[j], factor * to_float(grad[j]), m[j], v[j], settings, correction1,
                                  correction2);
            if (param) from_float(&param[j], master[j]);
        }
}

template <typename T>
static cudaError_t launch(const void *grad, void *param, float *master, float *m, float *v, size_t n,
                          const float *lr, adamw_settings settings, const float *control, cudaStream_t stream)
{
    if (!grad || !master || !m || !v || !lr || !control || n == 0 || !(settings.epsilon >= 0x1p-126f))
        return cudaErrorInvalidValue;
    if (((uintptr_t)grad | (uintptr_t)param | (uintptr_t)master | (uintptr_t)m | (uintptr_t)v) % PACK_BYTES !=
        0)
        return cudaErrorInvalidValue;
    const size_t grid = n / (4 * NUM_THREADS) + 1; // one thread more than whole fours
    update_in_one_pass_kernel<<<grid, NUM_THREADS, 0, stream>>>((const T *)grad, (__nv_bfloat16 *)param,
                                                                master, m, v, n, settings, lr, control);
    return cudaGetLastError();
}

extern "C" cudaError_t update_as_controlled(enum dtype dtype, const void *grad, void *param, float *master,
                                            float *m, float *v, size_t n, const float *lr,
                                            struct adamw_settings settings, const float *control,
                                            cudaStream_t stream)
{
    return dtype == BF16 ? launch<__nv_bfloat16>(grad, param, master, m, v, n, lr, settings, control, stream)
                         : launch<float>(grad, param, master, m, v, n, lr, settings, control, stream);
}

extern "C" cudaError_t update_in_one_pass(enum dtype dtype, const void *grad, void *param, float *master,
                                          float *m, float *v, size_t n, const float *lr, float max_norm,
                                          struct adamw_settings settings, int growth_interval,
                                          struct update_state state, cudaStream_t stream)
{
    const cudaError_t error = loss_scale(dtype, grad, n, max_norm, settings.beta1, settings.beta2,
                                         growth_interval, state, stream); // checks what it takes
    if (error != cudaSuccess) return error;
    return update_as_controlled(dtype, grad, param, master, m, v, n, lr, settings, state.control, stream);
}
