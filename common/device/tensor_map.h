// TMA descriptors: what a tensor in global memory looks like and which box of it one copy moves.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif

// Describes the row-major matrix `base` (rows, cols) and a box (box_rows, box_cols) of it for cp.async.bulk.tensor.2d,
// coordinates {column, row}. In shared memory a row of the box takes 128 bytes, swizzled in chunks of 16 (swizzle.cuh
// with 3 bits), so box_cols * the type's size must be at most 128 and the box start at a multiple of 1024 bytes.
// Elements past an edge are read as zeros and not written. `base` and the bytes of a row must be multiples of 16.
// Returns cudaErrorInvalidValue when the driver refuses the description, cudaErrorNotSupported when it has no TMA.
// Source: CUDA driver API, cuTensorMapEncodeTiled.
cudaError_t tensor_map_matrix(CUtensorMap *map, CUtensorMapDataType type, const void *base, int rows,
                              int cols, int box_rows, int box_cols);

// The same of a matrix whose rows are fetched piece by piece, box_cols at a time, at most 256: in shared memory they are what they
// are in global memory, and begin at a multiple of 128 bytes. A piece may begin at any column.
cudaError_t tensor_map_vectors(CUtensorMap *map, CUtensorMapDataType type, const void *base, int rows,
                               int cols, int box_cols);

// Describes the tensor `base` (batch, len, heads, head_dim) and a box of box_rows rows and box_cols columns of one head for
// cp.async.bulk.tensor.5d, coordinates {0, head, row, column / 64, batch}. In shared memory the box is (box_cols / 64,
// box_rows, 64): rows of 128 bytes, swizzled as above. head_dim and box_cols are multiples of 64 for a type of 16 bits. One
// of 8 bits has 128 columns in a row for 64, of which they are multiples; or both are 64, and the other half of the 128
// bytes is not written. Errors as above.
cudaError_t tensor_map_heads(CUtensorMap *map, CUtensorMapDataType type, const void *base, int batch, int len,
                             int heads, int head_dim, int box_rows, int box_cols);

// Describes the rows of `base` (rows, heads, head_dim), in which sequences stand one behind the other, and a box of box_rows rows
// of one head for cp.async.bulk.tensor.5d. At {0, RAGGED + first - end, head * head_dim / 64 + column / 64, end, RAGGED} the
// box's row i is row first + i, and from row `end` of `base` on, where the sequence ends, zeros are read and nothing is written. In
// shared memory the box is (box_cols / 64, box_rows, 64): rows of 128 bytes, swizzled as above. Types and errors as above.
//
// How one map has an end for every sequence: the second and the fourth coordinate both count rows, and only the second is bounded,
// by RAGGED: it gets there where first + i gets to `end`. Together they are RAGGED + first rows on; the fifth, RAGGED steps of
// 2^34 bytes less a row, takes RAGGED rows back and adds 2^64, which an address does not see. A map that began RAGGED rows
// before `base` would do without the fifth; on an H200 its copies faulted where no memory was. Source: Triton's ragged tensor
// descriptors (triton/tools/ragged_tma.py).
enum { RAGGED = 1 << 30 };
cudaError_t tensor_map_ragged(CUtensorMap *map, CUtensorMapDataType type, const void *base, int rows,
                              int heads, int head_dim, int box_rows, int box_cols);

// The same with a box of 64 columns, box_heads heads and box_rows rows, at {column, head, RAGGED + first - end, end, RAGGED};
// in shared memory (box_rows, box_heads, 64).
cudaError_t tensor_map_ragged_heads(CUtensorMap *map, CUtensorMapDataType type, const void *base, int rows,
                                    int heads, int head_dim, int box_rows, int box_heads);

// Describes the same rows, as many as a multiple of 8, and a box of box_rows of them, a multiple of 8 too, and all columns of one head,
// for cp.async.bulk.tensor.5d at {0, 0, head * head_dim / 64, first row / 8, 0}: with no end but that of `base`, and only from a multiple
// of 8 on. In shared memory it is (box_rows / 8, head_dim / 64, 8, 64), so that boxes one behind the other are one tile.
cudaError_t tensor_map_eights(CUtensorMap *map, CUtensorMapDataType type, const void *base, int rows,
                              int heads, int head_dim, int box_rows);

#ifdef __cplusplus
}
#endif
