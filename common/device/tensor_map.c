#include "tensor_map.h"

typedef CUresult encode_tiled(CUtensorMap *, CUtensorMapDataType, cuuint32_t rank, void *base,
                              const cuuint64_t *dims, const cuuint64_t *stride_bytes, const cuuint32_t *box,
                              const cuuint32_t *element_strides, CUtensorMapInterleave, CUtensorMapSwizzle,
                              CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

static size_t type_bytes(CUtensorMapDataType type)
{
    switch (type) {
    case CU_TENSOR_MAP_DATA_TYPE_UINT8: return 1; // and e4m3, which TMA only moves
    case CU_TENSOR_MAP_DATA_TYPE_FLOAT16:
    case CU_TENSOR_MAP_DATA_TYPE_BFLOAT16: return 2;
    case CU_TENSOR_MAP_DATA_TYPE_FLOAT32: return 4;
    default: return 0; // not used by any chapter; the driver refuses the stride of 0
    }
}

// Zeros outside.
static cudaError_t tensor_map(CUtensorMap *map, CUtensorMapDataType type, const void *base, int rank,
                              const cuuint64_t *dims, const cuuint64_t *stride_bytes, const cuuint32_t *box,
                              CUtensorMapSwizzle swizzle)
{
    // libcuda is not linked: a machine without a driver still loads the program. The runtime knows the function.
    static encode_tiled *encode;
    if (!encode) {
        void *function;
        enum cudaDriverEntryPointQueryResult found;
        cudaError_t error = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000,
                                                             cudaEnableDefault, &found);
        if (error != cudaSuccess) return error;
        if (found != cudaDriverEntryPointSuccess) return cudaErrorNotSupported;
        encode = (encode_tiled *)function;
    }
    const cuuint32_t every[] = {1, 1, 1, 1, 1};
    CUresult result = encode(map, type, (cuuint32_t)rank, (void *)base, dims, stride_bytes, box, every,
                             CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle, CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
                             CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    return result == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

static cudaError_t matrix(CUtensorMap *map, CUtensorMapDataType type, const void *base, int rows, int cols,
                          int box_rows, int box_cols, CUtensorMapSwizzle swizzle)
{
    const cuuint64_t dims[] = {(cuuint64_t)cols, (cuuint64_t)rows};
    const cuuint64_t stride_bytes[] = {(cuuint64_t)cols * type_bytes(type)};
    const cuuint32_t box[] = {(cuuint32_t)box_cols, (cuuint32_t)box_rows};
    return tensor_map(map, type, base, 2, dims, stride_bytes, box, swizzle);
}

cudaError_t tensor_map_matrix(CUtensorMap *map, CUtensorMapDataType type, const void *base, int rows,
                              int cols, int box_rows, int box_cols)
{
    return matrix(map, type, base, rows, cols, box_rows, box_cols, CU_TENSOR_MAP_SWIZZLE_128B);
}

cudaError_t tensor_map_vectors(CUtensorMap *map, CUtensorMapDataType type, const void *base, int rows,
                               int cols, int box_cols)
{
    return matrix(map, type, base, rows, cols, 1, box_cols, CU_TENSOR_MAP_SWIZZLE_NONE);
}

cudaError_t tensor_map_heads(CUtensorMap *map, CUtensorMapDataType type, const void *base, int batch, int len,
                             int heads, int head_dim, int box_rows, int box_cols)
{
    const cuuint64_t head_bytes = (cuuint64_t)head_dim * type_bytes(type), row_bytes = heads * head_bytes;
    const cuuint32_t cols = type_bytes(type) == 1 && head_dim > 64 ? 128 : 64; // in a row of 128 bytes
    const cuuint64_t dims[] = {cols, (cuuint64_t)heads, (cuuint64_t)len, (cuuint64_t)head_dim / cols,
                               (cuuint64_t)batch};
    const cuuint64_t stride_bytes[] = {head_bytes, row_bytes, cols * type_bytes(type), len * row_bytes};
    const cuuint32_t box[] = {cols, 1, (cuuint32_t)box_rows, (cuuint32_t)box_cols / cols, 1};
    return tensor_map(map, type, base, 5, dims, stride_bytes, box, CU_TENSOR_MAP_SWIZZLE_128B);
}

cudaError_t tensor_map_ragged(CUtensorMap *map, CUtensorMapDataType type, const void *base, int rows,
                              int heads, int head_dim, int box_rows, int box_cols)
{
    const cuuint64_t box_bytes = 64 * type_bytes(type),
                     row_bytes = (cuuint64_t)heads * head_dim / 64 * box_bytes;
    const cuuint64_t dims[] = {64, RAGGED, (cuuint64_t)heads * head_dim / 64, (cuuint64_t)rows + 1,
                               RAGGED + 1};
    const cuuint64_t stride_bytes[] = {row_bytes, box_bytes, row_bytes, ((cuuint64_t)1 << 34) - row_bytes};
    const cuuint32_t box[] = {64, (cuuint32_t)box_rows, (cuuint32_t)box_cols / 64, 1, 1};
    return tensor_map(map, type, base, 5, dims, stride_bytes, box, CU_TENSOR_MAP_SWIZZLE_128B);
}

cudaError_t tensor_map_ragged_heads(CUtensorMap *map, CUtensorMapDataType type, const void *base, int rows,
                                    int heads, int head_dim, int box_rows, int box_heads)
{
    const cuuint64_t head_bytes = (cuuint64_t)head_dim * type_bytes(type), row_bytes = heads * head_bytes;
    const cuuint64_t dims[] = {(cuuint64_t)head_dim, (cuuint64_t)heads, RAGGED, (cuuint64_t)rows + 1,
                               RAGGED + 1};
    const cuuint64_t stride_bytes[] = {head_bytes, row_bytes, row_bytes, ((cuuint64_t)1 << 34) - row_bytes};
    const cuuint32_t box[] = {64, (cuuint32_t)box_heads, (cuuint32_t)box_rows, 1, 1};
    return tensor_map(map, type, base, 5, dims, stride_bytes, box, CU_TENSOR_MAP_SWIZZLE_128B);
}

cudaError_t tensor_map_eights(CUtensorMap *map, CUtensorMapDataType type, const void *base, int rows,
                              int heads, int head_dim, int box_rows)
{
    const cuuint64_t box_bytes = 64 * type_bytes(type), columns = (cuuint64_t)heads * head_dim / 64,
                     row_bytes = columns * box_bytes;
    const cuuint64_t dims[] = {64, 8, columns, (cuuint64_t)rows / 8, 1};
    const cuuint64_t stride_bytes[] = {row_bytes, box_bytes, 8 * row_bytes, 8 * row_bytes};
    const cuuint32_t box[] = {64, 8, (cuuint32_t)head_dim / 64, (cuuint32_t)box_rows / 8, 1};
    return tensor_map(map, type, base, 5, dims, stride_bytes, box, CU_TENSOR_MAP_SWIZZLE_128B);
}
