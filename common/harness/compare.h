// Compares arrays where a benchmark has them, in device memory: bringing gigabytes to the host takes minutes.
#pragma once

#include <cuda_runtime_api.h>
#include <stdint.h>

#include "npy.h"

// An element that is not what it should be.
struct difference {
    int64_t index; // -1: there is none
    double value, expected, allowed;
};

// Finds the first of `count` elements for which |got - expected| <= share * RMS + share_of_all * RMS of all elements +
// max(dtype_epsilon * |expected|, dtype_least) does not hold, as for a NaN it never does. RMS is the root of the mean
// square of the expected elements in the same row, a row being `row` elements. Both arrays are in device memory. Returns
// after the comparison, or with its error.
cudaError_t compare_arrays(enum dtype dtype, const void *got, const void *expected, int64_t count,
                           int64_t row, double share, double share_of_all, struct difference *first);
