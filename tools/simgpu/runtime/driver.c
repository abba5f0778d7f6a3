/* driver.c: libcuda.so.1, for programs that link the driver to encode their tensor maps. It passes calls on to the simulated
 * runtime; what else of the driver API a program needs is missing when it is loaded, or called. */
#include <cuda.h>
#include <cuda_runtime_api.h>

#define EXPORT __attribute__((visibility("default")))

EXPORT CUresult cuInit(unsigned flags)
{
    return flags ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

EXPORT CUresult cuDriverGetVersion(int *version)
{
    return (CUresult)cudaDriverGetVersion(version); /* the errors of both have the same numbers */
}

EXPORT CUresult cuGetErrorString(CUresult error, const char **text)
{
    *text = cudaGetErrorString((cudaError_t)error);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGetErrorName(CUresult error, const char **name)
{
    *name = cudaGetErrorName((cudaError_t)error);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuTensorMapEncodeTiled(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank,
                                       void *address, const cuuint64_t *dims, const cuuint64_t *strides,
                                       const cuuint32_t *box, const cuuint32_t *element_strides,
                                       CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                                       CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill)
{
    static __typeof__(&cuTensorMapEncodeTiled) encode;
    enum cudaDriverEntryPointQueryResult found;
    if (!encode)
        cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", (void **)&encode, 12000, cudaEnableDefault,
                                         &found);
    return encode(map, type, rank, address, dims, strides, box, element_strides, interleave, swizzle,
                  promotion, fill);
}
