// Draws the descriptor with which wgmma finds a tile in shared memory, bit by bit, and the core matrices of the tile: where
// TMA has put its chunks of 16 bytes, and which of them each slice of 16 k reads. Both from the kernels' own functions.
//
//      cc -o build/descriptor tools/descriptor.c && build/descriptor           or with the tile's address
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "../common/device/swizzle.cuh"
#include "../common/device/wgmma_descriptor.cuh"

enum {
    ROWS = 256,
    CHUNKS = 8,
    CHUNK_BYTES = 16,
    ROW_BYTES = 128,
    CORE_ROWS = 8,
    SLICES = 4,
    SLICE_CHUNKS = 2
};

// Bits low and up of the descriptor, so many.
static uint32_t field(uint64_t desc, int low, int bits)
{
    return (uint32_t)(desc >> low & ((1u << bits) - 1));
}

// Where TMA puts a chunk of the tile: the box's rows are 128 bytes apart, and the address is swizzled.
static uint32_t written(uint32_t tile, uint32_t row, uint32_t chunk)
{
    return swizzle(tile + row * ROW_BYTES + chunk * CHUNK_BYTES, 3);
}

// Where wgmma looks for a chunk, 0 or 1, of a slice's 16 k: rows in eights, SBO apart, and the address is swizzled.
static uint32_t read(uint64_t desc, uint32_t row, uint32_t chunk)
{
    const uint32_t start = field(desc, 0, 14) * 16, sbo = field(desc, 32, 14) * 16;
    return swizzle(start + row / CORE_ROWS * sbo + row % CORE_ROWS * ROW_BYTES + chunk * CHUNK_BYTES, 3);
}

static void draw_bits(uint64_t desc)
{
    static const char used[] = "ss__________ooo___SSSSSSSSSSSSSS__LLLLLLLLLLLLLL__aaaaaaaaaaaaaa";
    printf("descriptor 0x%016llx\n", (unsigned long long)desc);
    printf("  63 62       51  49    45         32    29         16    13          0\n  ");
    for (int bit = 63; bit >= 0; bit--) {
        const char kind = used[63 - bit];
        putchar(kind == '_' ? '.' : '0' + (char)(desc >> bit & 1));
        if (bit > 0 && kind != used[64 - bit]) putchar(' ');
    }
    printf("\n  63-62  swizzle      %4u  128 bytes\n", field(desc, 62, 2));
    printf("  51-49  base offset  %4u  the tile begins at a multiple of 1024\n", field(desc, 49, 3));
    printf("  45-32  SBO          %4u  x 16 = %u bytes from eight rows to the next eight\n",
           field(desc, 32, 14), field(desc, 32, 14) * 16);
    printf("  29-16  LBO          %4u  not used with this swizzle\n", field(desc, 16, 14));
    printf("  13-0   start        %4u  x 16 = 0x%05x\n\n", field(desc, 0, 14), field(desc, 0, 14) * 16);
}

// A row of the tile in the order of its addresses: the chunk that lies there, in brackets if this slice reads it.
static void draw_row(uint32_t tile, uint64_t desc, uint32_t row)
{
    char place[CHUNKS][4];
    const uint32_t line = tile + row * ROW_BYTES;
    for (uint32_t chunk = 0; chunk < CHUNKS; chunk++)
        snprintf(place[(written(tile, row, chunk) - line) / CHUNK_BYTES], sizeof *place, " %u ", chunk);
    for (uint32_t chunk = 0; chunk < SLICE_CHUNKS; chunk++) {
        char *found = place[(read(desc, row, chunk) - line) / CHUNK_BYTES];
        found[0] = '[', found[2] = ']';
    }
    for (uint32_t at = 0; at < CHUNKS; at++) printf(" %s", place[at]);
}

int main(int argc, char **argv)
{
    char *end = "";
    const unsigned long tile = argc > 1 ? strtoul(argv[1], &end, 0) : 0x4400;
    if (argc > 2 || *end || tile % 1024 != 0 || tile + ROWS * ROW_BYTES > 1 << 18) {
        fprintf(stderr, "usage: descriptor [shared address of a tile, a multiple of 1024, below 0x38000]\n");
        return 2;
    }
    const uint64_t desc = wgmma_descriptor_bits((uint32_t)tile);
    draw_bits(desc);

    const uint64_t next = desc + SLICE_CHUNKS * CHUNK_BYTES / 16;
    printf("address  k slice 0: start 0x%05x         k slice 1: start 0x%05x, descriptor + %d\n",
           field(desc, 0, 14) * 16, field(next, 0, 14) * 16, (int)(next - desc));
    for (uint32_t row = 0; row <= CORE_ROWS; row++) {
        if (row == CORE_ROWS) printf("         SBO further, the next eight rows\n");
        printf("0x%05x", (uint32_t)tile + row * ROW_BYTES);
        draw_row((uint32_t)tile, desc, row);
        printf("  |");
        draw_row((uint32_t)tile, next, row);
        printf("   row %u\n", row);
    }

    for (uint32_t slice = 0; slice < SLICES; slice++)
        for (uint32_t row = 0; row < ROWS; row++)
            for (uint32_t chunk = 0; chunk < SLICE_CHUNKS; chunk++)
                if (read(desc + slice * SLICE_CHUNKS * CHUNK_BYTES / 16, row, chunk) !=
                    written((uint32_t)tile, row, slice * SLICE_CHUNKS + chunk)) {
                    fprintf(stderr, "row %u, slice %u: wgmma does not read what TMA wrote\n", row, slice);
                    return 1;
                }
    printf("%d rows, %d slices: wgmma looks for every chunk where TMA has put it\n", ROWS, SLICES);
    return 0;
}
