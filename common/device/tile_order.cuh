// The order in which persistent blocks take the tiles of a matrix (chapter 14, step 3).
#pragma once

struct TilePlace {
    int m, n; // which tile of the rows, which of the columns
};

// Where tile number `tile` of (tiles_m, tiles_n) is. The numbers walk down GROUP_M tiles, then one to the right, and so on to the
// edge before the next GROUP_M: tiles that are taken at the same time share rows of A and of B in the L2.
template <int GROUP_M>
__device__ inline TilePlace tile_place(int tile, int tiles_m, int tiles_n)
{
    const int group = (unsigned)tile / (unsigned)(GROUP_M * tiles_n);
    const int rows = min(GROUP_M, tiles_m - group * GROUP_M);
    const int in_group = tile - group * GROUP_M * tiles_n;
    // A block waits for this before each tile: mostly it is a shift, not a division.
    const int n = rows == GROUP_M ? (unsigned)in_group / GROUP_M : (unsigned)in_group / (unsigned)rows;
    return {group * GROUP_M + in_group - n * rows, n};
}
