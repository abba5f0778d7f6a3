// The XOR swizzle of shared-memory tiles. Plain C: kernels use it, and so does whatever draws or checks it.
#pragma once
#include <stdint.h>

#ifdef __CUDACC__
#define SWIZZLE_FUNCTION __host__ __device__ static inline
#else
#define SWIZZLE_FUNCTION static inline
#endif

// Where the byte at `offset` of a tile is kept, for tiles whose rows have 16 << bits bytes (bits 3: 128, 2:
// 64, 1: 32) and which start at a multiple of 128 << bits bytes. Lines of 128 bytes, all 32 banks, stay where
// they are; in line n, chunk c of 16 bytes moves to chunk c ^ (n mod 2^bits).
//
//      offset   ... 10 9 8 7 | 6 5 4 | 3 2 1 0
//               line number  | chunk | byte in it          bits 4 .. 3 + bits ^= bits 7 .. 6 + bits
//
// XOR with a fixed number is its own inverse, and the line number does not change: this is a permutation.
SWIZZLE_FUNCTION uint32_t swizzle(uint32_t offset, int bits)
{
    return offset ^ ((offset >> 7 & ((1u << bits) - 1)) << 4);
}

#undef SWIZZLE_FUNCTION
