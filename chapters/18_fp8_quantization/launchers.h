// The launchers of this chapter's steps: defined in the .cu files, called by main.c.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cuda_runtime_api.h>

#include "../../common/device/dtype.h"

#ifdef __cplusplus
extern "C" {
#endif

// Arrays are in device memory and begin at a multiple of 16 bytes. Inputs are bf16; `format`, E4M3 or E5M2, is what they become.
// A scale is a float, and out * scale is what was quantised. Of numbers with the largest magnitude amax it is
//
//      scale = max(amax, 2^-100) / (448 or 57344, the format's largest number)    `pow2`: the next power of two that is not below
//      out   = the nearest of the format to x / scale; what is past its largest number becomes that (saturates)
//
// A NaN among the numbers makes their scale and all of them NaN; an infinity makes the scale infinite, itself NaN and the
// others 0: out * scale is NaN for all of them in both cases.

// One scale for x, n elements, of its own amax.
typedef cudaError_t per_tensor(enum dtype format, const void *x, void *out, float *scale, size_t n,
                               cudaStream_t stream);
per_tensor two_passes;

// What one call leaves for the next, in device memory: the host waits for none of it.
struct delayed_state {
    float *scale;   // of the next call
    float *history; // (length): amax of the last calls, a ring
    int *position;  // in history, of the next call: 0 to length - 1
    int length;     // at least 1
};

// Divides x, n elements, by the scale of the state, writes that scale to *used, and x's amax into the history. The next scale
// is of 2^margin times the history's largest amax, or, if most_recent, x's; it stays as it is when that amax is 0, infinite or
// NaN. margin is from 0 to 16. Here an infinity saturates, and a NaN is NaN alone.
typedef cudaError_t delayed_scaling(enum dtype format, const void *x, void *out, float *used, size_t n,
                                    struct delayed_state state, int margin, bool most_recent,
                                    cudaStream_t stream);
delayed_scaling delayed;

// A scale for each 128 neighbours of a row of x (m, k), k a multiple of 16. scale is (ceil(k / 128), m rounded up to a multiple
// of 4), so that TMA may load it: a column of groups is a row of scales, and what is past m is 0.
typedef cudaError_t activations(enum dtype format, const void *x, void *out, float *scale, int m, int k,
                                bool pow2, cudaStream_t stream);
activations groups_of_128;

// A scale for each square of 128 x 128 of x (n, k), k a multiple of 16. scale is (ceil(n / 128), ceil(k / 128)).
typedef cudaError_t weights(enum dtype format, const void *x, void *out, float *scale, int n, int k,
                            bool pow2, cudaStream_t stream);
weights squares_of_128;

// What groups_of_128 makes of x (m, k), and what it would make of x transposed: out_t (k, m rounded up to a multiple of 16), and
// scale_t (ceil(m / 128), k). What is past m in out_t is 0, but NaN in a column that has a NaN.
typedef cudaError_t both_ways(enum dtype format, const void *x, void *out, float *scale, void *out_t,
                              float *scale_t, int m, int k, bool pow2, cudaStream_t stream);
both_ways transposed;

// The activation function between two matrices of a feed-forward layer, then groups_of_128 of what it gives, (m, k), which
// never is in memory. gated: x is (m, 2 k), and the function silu(x[i, j]) x[i, k + j], silu(g) = g / (1 + exp(-g)). Else x is
// (m, k), and the function GELU, as in chapter 6.
typedef cudaError_t activation_function(enum dtype format, const void *x, void *out, float *scale, int m,
                                        int k, bool gated, bool pow2, cudaStream_t stream);
activation_function fused;

#ifdef __cplusplus
}
#endif
