/* tensor_map.c: cuTensorMapEncodeTiled, which a program reaches through cudaGetDriverEntryPoint. The checks are those of an
 * H200's driver, measured; each says what was wrong. */
#include <cuda.h>
#include <stdarg.h>
#include <string.h>

#include "../exec/bulk.h"
#include "cudart.h"
#include "tensor_map.h"

static CUresult invalid(const char *format, ...) __attribute__((format(printf, 1, 2)));
static CUresult invalid(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fprintf(stderr, "simgpu: cuTensorMapEncodeTiled: ");
    vfprintf(stderr, format, args);
    fprintf(stderr, "\n");
    va_end(args);
    return CUDA_ERROR_INVALID_VALUE;
}

int tensor_map_encode_tiled(void *out, int type, u32 rank, void *address, const u64 *dims, const u64 *strides,
                            const u32 *box, const u32 *element_strides, int interleave, int swizzle, int l2,
                            int fill)
{
    static const u8 sizes[] = {1, 2, 4, 4, 8, 8, 2, 4, 8, 2, 4, 4, 4};
    struct tensor_map m = {.magic = TENSOR_MAP_MAGIC, .address = (u64)(uintptr_t)address};
    if (!out || !dims || !strides || !box ||
        !element_strides) /* strides: of rank 1 as well, which has none */
        return invalid("a NULL argument");
    if (rank < 1 || rank > MAX_RANK) return invalid("rank %u; it must be 1 to 5", rank);
    if (type < 0 || type >= (int)sizeof sizes) return invalid("data type %d", type);
    if (interleave != CU_TENSOR_MAP_INTERLEAVE_NONE) {
        fprintf(
            stderr,
            "simgpu: cuTensorMapEncodeTiled: interleaved layouts are not supported by the simulated GPU\n");
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    if (swizzle < 0 || swizzle > CU_TENSOR_MAP_SWIZZLE_128B) return invalid("swizzle %d", swizzle);
    bool is_float = type >= CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
    if (fill < 0 || fill > 1 || (fill && !is_float))
        return invalid("out-of-bounds fill %d for data type %d", fill, type);
    if (l2 < 0 || l2 > CU_TENSOR_MAP_L2_PROMOTION_L2_256B) return invalid("L2 promotion %d", l2);
    if (m.address % 16) return invalid("global address %p; it must be a multiple of 16", address);
    u64 all = sizes[type];
    for (u32 d = 0; d < rank; d++) {
        if (!dims[d] || dims[d] > 1ull << 32)
            return invalid("dimension %u is %llu; it must be 1 to 2^32", d, (unsigned long long)dims[d]);
        if (!box[d] || box[d] > 256) return invalid("box dimension %u is %u; it must be 1 to 256", d, box[d]);
        if (!element_strides[d] || element_strides[d] > 8)
            return invalid("element stride %u is %u; it must be 1 to 8", d, element_strides[d]);
        if (d && (strides[d - 1] % 16 || strides[d - 1] >= 1ull << 40))
            return invalid("the stride of dimension %u is %llu bytes; it must be a multiple of 16 below 2^40",
                           d, (unsigned long long)strides[d - 1]);
        m.dim[d] = dims[d];
        if (d) m.stride[d - 1] = strides[d - 1];
        m.box_less_1[d] = (u8)(box[d] - 1);
        m.element_stride[d] = (u8)element_strides[d];
        all *= box[d] / element_strides[d]; /* rounded down, unlike what a copy loads */
    }
    u32 inner = box[0] * sizes[type], width = 16u << swizzle;
    if (inner % 16) return invalid("the box is %u bytes wide; it must be a multiple of 16", inner);
    if (swizzle && inner > width)
        return invalid("the box is %u bytes wide; with this swizzle it may have at most %u", inner, width);
    if (all > 228 << 10)
        return invalid("the box has %llu bytes; it may have at most 228 KB", (unsigned long long)all);
    m.rank = (u8)rank;
    m.type = (u8)type;
    m.rounds = type >= MAP_TFLOAT32;
    m.swizzle = (u8)swizzle;
    m.nan_fill = (u8)fill;
    memset(out, 0, TENSOR_MAP_BYTES);
    memcpy(out, &m, sizeof m);
    return CUDA_SUCCESS;
}
