// The bits of wgmma's matrix descriptor. Plain C: kernels use it, and so does whatever draws or checks it.
#pragma once
#include <stdint.h>

#ifdef __CUDACC__
#define DESCRIPTOR_FUNCTION __host__ __device__ static inline
#else
#define DESCRIPTOR_FUNCTION static inline
#endif

// Asynchronous warpgroup level matrix shared memory layout, matrix descriptor: a tile with rows of 128 bytes (64 k of 16
// bits) that begins at shared address tile_addr, a multiple of 1024 bytes, swizzled by 128 bytes, as TMA writes it. The next
// 16 k begin 32 bytes, + 2 in the descriptor, further: the swizzle is applied to the address of each element, not to the
// tile. tools/descriptor.c draws it.
//
//      bit   63 62 | 61 .. 52 | 51 .. 49    | 45 .. 32        | 29 .. 16       | 13 .. 0
//            1     |          | 0           | 64              | 1              | start / 16
//            128 B |          | base offset | 8 rows on, / 16 | unused, by     |
//            swizzle                        | (1024 bytes)    | convention 1   |
DESCRIPTOR_FUNCTION uint64_t wgmma_descriptor_bits(uint32_t tile_addr)
{
    return (uint64_t)1 << 62 | (uint64_t)(1024 / 16) << 32 | (uint64_t)1 << 16 | (tile_addr & 0x3ffff) >> 4;
}

// The same for a matrix whose rows in shared memory run along m or n instead of k (V of attention: a row is a key, and k
// counts keys): boxes of 64 m or n, each with a row of 128 bytes for every k, box_bytes apart. The next 16 k begin 2048
// bytes further. wgmma has to be told with its transpose flag.
//
//      bit   45 .. 32        | 29 .. 16
//            8 k on, / 16    | the next 64 m or n, / 16
//            (1024 bytes)    | (box_bytes)
DESCRIPTOR_FUNCTION uint64_t wgmma_descriptor_bits_mn(uint32_t tile_addr, uint32_t box_bytes)
{
    return wgmma_descriptor_bits(tile_addr) + ((uint64_t)(box_bytes / 16 - 1) << 16); // in the place of the 1
}

#undef DESCRIPTOR_FUNCTION
