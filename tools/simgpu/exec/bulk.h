/* bulk.h: bulk and tensor copies (exec/bulk.c), and what a tensor map holds (runtime/tensor_map.c writes it). */
#ifndef BULK_H
#define BULK_H

#include "../front/lower.h"

enum { MAX_RANK = 5, TENSOR_MAP_BYTES = 128 };

/* Of CUtensorMapDataType: integers come before MAP_FLOAT16. */
enum { MAP_FLOAT16 = 6, MAP_FLOAT32 = 7, MAP_FLOAT32_FTZ = 10, MAP_TFLOAT32 = 11, MAP_TFLOAT32_FTZ = 12 };

/* The 128 bytes of a CUtensorMap. NVIDIA's are not documented; these are the simulated GPU's own, but for one bit: CUTLASS
 * from 4.3 on clears bit 21 of the second 64-bit word in maps of tensors under 128 KiB (a remedy for drivers up to 13.1, in
 * include/cute/atom/copy_traits_sm90_tma.hpp). So that word holds what leaves the bit 0 anyhow: a stride up to 8. */
struct tensor_map {
    u32 magic;
    u8 rank, type; /* type: CUtensorMapDataType */
    u8 swizzle;    /* 0: none, 1, 2, 3: 32, 64, 128 bytes */
    u8 nan_fill;   /* out of bounds: NaN instead of zero */
    u8 element_stride[MAX_RANK];
    u8 rounds; /* its elements are tf32, or were: an edit of the type alone leaves this as it is on an H200 */
    u64 address;
    u64 dim[MAX_RANK];
    u64 stride[MAX_RANK - 1]; /* bytes */
    u64 edited_by,
        releases; /* the launch that edited it, and how many fences it had executed: exec/tensormap.c */
    u8 box_less_1[MAX_RANK]; /* elements - 1 */
};
_Static_assert(offsetof(struct tensor_map, element_stride[2]) == 8 + 21 / 8, "bit 21 of the second word");
_Static_assert(sizeof(struct tensor_map) <= TENSOR_MAP_BYTES, "a CUtensorMap");
enum { TENSOR_MAP_MAGIC = 0x70616d74 };

/* A bulk copy that was issued and has not landed. In shared memory it is `rows` rows of `row_bytes`, `pitch` apart, the
 * 16-byte pieces swizzled as the map says. */
struct bulk {
    struct bulk *next;
    const struct function *fn; /* where it was issued */
    const struct inst *in;
    struct block *block; /* shared memory: destination of a load, source of a store */
    u32 at;              /* offset in it */
    u32 bytes, rows, row_bytes, pitch, swizzle;
    u32 cut;          /* so many bytes more were asked for, and are not copied */
    bool async_proxy; /* writes through it; st.async does not */
    bool from_shared; /* load: from another place in shared memory, or from registers, not global */
    u64 global;       /* without a map: the address in global memory */
    struct tensor_map map;
    s32 corner[MAX_RANK];
    s32 op;          /* reduction, or -1 */
    u8 type;         /* of the elements of a reduction */
    u32 lane, group; /* store: whose, and in which group */
    u32 record;      /* store: its number in record.c */
    u32 issued;      /* store: when it read its source, by the block's clock; 0: the source is free again */
    u8 data[];
};

/* Puts a load's data in its place, for `in` of w, which waits. Frees it. */
void bulk_land(struct warp *w, const struct inst *in, struct bulk *load);
void bulk_free(struct bulk *list);
/* Whether it brings the byte at this shared offset. */
bool bulk_covers(const struct bulk *load, u32 at);

/* A thread or a block leaves: what it still has in flight lands, or is a fault. */
void bulk_leave(struct warp *w, u32 lanes);

/* Faults when a kernel has edited the map and not made that visible, or it is not complete. */
void tensormap_check(struct warp *w, const struct inst *in, u32 lane, const struct tensor_map *m);

#endif
