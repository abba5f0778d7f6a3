// Writes what the book's explorers show of memory layouts, as JavaScript, from the kernels' own functions.
#include <stdint.h>
#include <stdio.h>

#include "../../common/device/swizzle.cuh"

int main(void)
{
    // swizzle[bits][n]: the place of chunk n, in chunks of 16 bytes; the pattern repeats after 1,024 bytes.
    printf("const LAYOUTS = {swizzle: [");
    for (int bits = 0; bits <= 3; bits++) {
        printf("[");
        for (uint32_t chunk = 0; chunk < 64; chunk++) printf("%u,", swizzle(chunk * 16, bits) / 16);
        printf("],");
    }
    printf("]};\n");
    return 0;
}
