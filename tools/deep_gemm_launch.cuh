// What DeepGEMM's host code does around a launch, for the units that deep_gemm_kernels.py writes: the tensor maps and the launch.
// Source: DeepGEMM, csrc/jit_kernels/impls/runtime_utils.hpp (make_tma_2d_desc) and csrc/jit/handle.hpp (construct_launch_config).
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>

// The row-major matrix `base` (rows, cols) and a box of it. `swizzle` is in bytes; if it is not 0, it is also what a row of the box
// takes, and box_cols is not looked at. Returns cudaErrorInvalidValue when the driver refuses.
inline cudaError_t describe(CUtensorMap *map, CUtensorMapDataType type, const void *base, int rows, int cols,
                            int box_rows, int box_cols, int swizzle)
{
    void *encode;
    cudaDriverEntryPointQueryResult found;
    cudaError_t error =
        cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &encode, 12000, cudaEnableDefault, &found);
    if (error != cudaSuccess) return error;
    if (found != cudaDriverEntryPointSuccess) return cudaErrorNotSupported;
    const int bytes = type == CU_TENSOR_MAP_DATA_TYPE_UINT8      ? 1
                      : type == CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 ? 2
                                                                 : 4;
    const cuuint64_t dims[] = {(cuuint64_t)cols, (cuuint64_t)rows};
    const cuuint64_t stride_bytes[] = {(cuuint64_t)cols * bytes};
    const cuuint32_t box[] = {(cuuint32_t)(swizzle ? swizzle / bytes : box_cols), (cuuint32_t)box_rows};
    const cuuint32_t every[] = {1, 1};
    CUtensorMapSwizzle mode = swizzle == 128  ? CU_TENSOR_MAP_SWIZZLE_128B
                              : swizzle == 64 ? CU_TENSOR_MAP_SWIZZLE_64B
                              : swizzle == 32 ? CU_TENSOR_MAP_SWIZZLE_32B
                                              : CU_TENSOR_MAP_SWIZZLE_NONE;
    CUresult result = ((decltype(&cuTensorMapEncodeTiled))encode)(
        map, type, 2, (void *)base, dims, stride_bytes, box, every, CU_TENSOR_MAP_INTERLEAVE_NONE, mode,
        CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    return result == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

// A block on each of `sms` SMs, `cluster` of them together; without programmatic dependent launch, as DeepGEMM by default.
template <typename... Parameters, typename... Arguments>
cudaError_t launch(void (*kernel)(Parameters...), int sms, int cluster, int threads, int smem_bytes,
                   cudaStream_t stream, Arguments... arguments)
{
    cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, smem_bytes);
    if (error != cudaSuccess) return error;
    cudaLaunchAttribute attribute = {};
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim.x = cluster;
    attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = sms;
    config.blockDim = threads;
    config.dynamicSmemBytes = smem_bytes;
    config.stream = stream;
    config.attrs = &attribute;
    config.numAttrs = cluster > 1;
    return cudaLaunchKernelEx(&config, kernel, (Parameters)arguments...);
}
