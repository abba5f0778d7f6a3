// The types of the Hopper matmul chapters: A, B and bias are bf16 or f16 (T), C is of the same type or fp32 (TC).
#pragma once
#include <cuda_runtime.h>

#include "dtype.h"
#include "types.cuh"

// Calls launch(T(), TC()) for the types of this run.
template <typename LAUNCH>
cudaError_t with_matmul_types(enum dtype dtype, enum dtype C_dtype, LAUNCH launch)
{
    if (dtype == F16) return C_dtype == F32 ? launch(__half(), float()) : launch(__half(), __half());
    return C_dtype == F32 ? launch(__nv_bfloat16(), float()) : launch(__nv_bfloat16(), __nv_bfloat16());
}
