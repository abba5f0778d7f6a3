// Draws where the first 8 rows of a bf16 tile lie in the 32 banks of shared memory, plain, padded and
// swizzled, from the kernels' own swizzle function, and counts the wavefronts ldmatrix needs for an 8 x 8 piece.
//
//      cc -o build/banks tools/banks.c && build/banks
#include <stdint.h>
#include <stdio.h>

#include "../common/device/swizzle.cuh"

enum { ROWS = 8, CHUNKS = 8, CHUNK_BYTES = 16, ROW_BYTES = CHUNKS * CHUNK_BYTES, LINE_BYTES = 128 };

static uint32_t plain(uint32_t row, uint32_t chunk)
{
    return row * ROW_BYTES + chunk * CHUNK_BYTES;
}

static uint32_t padded(uint32_t row, uint32_t chunk)
{
    return row * (ROW_BYTES + CHUNK_BYTES) + chunk * CHUNK_BYTES;
}

static uint32_t swizzled(uint32_t row, uint32_t chunk)
{
    return swizzle(plain(row, chunk), 3);
}

// The chunk that each row keeps in each group of four banks, and the wavefronts to read chunk 0 of all rows.
static void draw(const char *name, uint32_t (*offset)(uint32_t row, uint32_t chunk))
{
    printf("%s\n  banks ", name);
    for (int group = 0; group < CHUNKS; group++) printf(" %2d-%-2d", group * 4, group * 4 + 3);
    printf("\n");

    int used[CHUNKS] = {0}, wavefronts = 0;
    for (uint32_t row = 0; row < ROWS; row++) {
        int kept[CHUNKS];
        for (uint32_t chunk = 0; chunk < CHUNKS; chunk++)
            kept[offset(row, chunk) % LINE_BYTES / CHUNK_BYTES] = (int)chunk;
        printf("  row %u ", row);
        for (int group = 0; group < CHUNKS; group++)
            printf(kept[group] == 0 ? "   [0]" : "    %d ", kept[group]);
        printf("\n");
        const int here = ++used[offset(row, 0) % LINE_BYTES / CHUNK_BYTES];
        if (here > wavefronts) wavefronts = here;
    }
    printf("  ldmatrix reads chunk 0 of the 8 rows in %d wavefront%s\n\n", wavefronts,
           wavefronts == 1 ? "" : "s");
}

int main(void)
{
    draw("plain: rows of 128 bytes", plain);
    draw("padded: rows of 144 bytes", padded);
    draw("swizzled: rows of 128 bytes, chunk c of row r in place c ^ r % 8", swizzled);
    return 0;
}
