/* tensor_map.h: tensor maps, made on the host (runtime/tensor_map.c). */
#ifndef TENSOR_MAP_H
#define TENSOR_MAP_H

#include "../sim.h"

/* cuTensorMapEncodeTiled, with its enums as int. Returns a CUresult. */
int tensor_map_encode_tiled(void *out, int type, u32 rank, void *address, const u64 *dims, const u64 *strides,
                            const u32 *box, const u32 *element_strides, int interleave, int swizzle, int l2,
                            int fill);

#endif
