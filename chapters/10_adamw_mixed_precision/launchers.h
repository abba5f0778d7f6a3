// The launchers of this chapter's steps: defined in the .cu files, called by main.c.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include <cuda_runtime_api.h>

#include "../../common/device/dtype.h"

#ifdef __cplusplus
extern "C" {
#endif

// Arrays are in device memory and begin at a multiple of 16 bytes; n elements each. grad is of type `dtype`, F32 or BF16;
// m and v, the running means of the gradient and of its square, are fp32, and so is what is a pointer to float here.

struct adamw_settings {
    float lr;           // learning rate
    float beta1, beta2; // what of m and v is kept: from 0 to below 1
    float epsilon;      // 2^-126 or more
    float weight_decay; // of the parameter itself, not of its gradient: decoupled
};

// param and its m and v take step number t, the first is 1:
//     m = beta1 m + (1 - beta1) grad,  v = beta2 v + (1 - beta2) grad^2
//     param -= lr (m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + epsilon) + weight_decay param)
typedef cudaError_t adamw_update(enum dtype dtype, const void *grad, float *param, float *m, float *v,
                                 size_t n, struct adamw_settings settings, int t, cudaStream_t stream);
adamw_update adamw, adamw_fours;

// The same of master, and param, in bf16, becomes the nearest to it.
typedef cudaError_t master_update(enum dtype dtype, const void *grad, void *param, float *master, float *m,
                                  float *v, size_t n, struct adamw_settings settings, int t,
                                  cudaStream_t stream);
master_update adamw_master;

// The same of param, in bf16, which is rounded up or down by chance: bits that seed, t and the element's number decide.
typedef cudaError_t stochastic_update(enum dtype dtype, const void *grad, void *param, float *m, float *v,
                                      size_t n, struct adamw_settings settings, int t, uint32_t seed,
                                      cudaStream_t stream);
stochastic_update adamw_stochastic;

// *norm = sqrt(sum of grad^2), *factor = min(1, max_norm / (norm + 1e-6)), what clips grad to max_norm.
typedef cudaError_t gradient_norm(enum dtype dtype, const void *grad, float *norm, float *factor, size_t n,
                                  float max_norm, cudaStream_t stream);
gradient_norm norm_atomics, norm_partials, norm_last_block;

// What a training step leaves for the next one and for its own later kernels, in device memory: the host waits for none
// of it.
struct update_state {
    float *scale;    // the loss was multiplied by it, and so is grad
    int *good_steps; // without an overflow since scale changed
    int *steps;      // t of the last update
    float *norm;     // of grad / scale; infinity: grad has overflowed, and nothing is updated
    float *control;  // (3): clipping / scale, 1 / (1 - beta1^t), 1 / (1 - beta2^t); or 0, 0, 0
};

// The norm of a scaled gradient, and all of the state. A sum of squares that is infinity or NaN is an overflow: norm is
// infinity, control 0, steps stays, scale is halved. Without one scale doubles once growth_interval steps were good; 0:
// scale never changes.
typedef cudaError_t scaled_norm(enum dtype dtype, const void *grad, size_t n, float max_norm, float beta1,
                                float beta2, int growth_interval, struct update_state state,
                                cudaStream_t stream);
scaled_norm loss_scale;

// scaled_norm, and then what adamw_master does with grad * control[0] and *lr, which is in device memory, instead of
// settings.lr; nothing on an overflow. param may be NULL: master is all there is.
typedef cudaError_t whole_update(enum dtype dtype, const void *grad, void *param, float *master, float *m,
                                 float *v, size_t n, const float *lr, float max_norm,
                                 struct adamw_settings settings, int growth_interval,
                                 struct update_state state, cudaStream_t stream);
whole_update update_in_one_pass;

// The latter half of that, for some of the parameters: settings.weight_decay need not be the same for all.
typedef cudaError_t controlled_update(enum dtype dtype, const void *grad, void *param, float *master,
                                      float *m, float *v, size_t n, const float *lr,
                                      struct adamw_settings settings, const float *control,
                                      cudaStream_t stream);
controlled_update update_as_controlled;

#ifdef __cplusplus
}
#endif
