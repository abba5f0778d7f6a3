// Gives each file named on the command line to a reader: inputs on which it once went wrong, and what it says of them now.
#include <stdio.h>
#include <stdlib.h>

#include "fuzz.h"

int main(int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        FILE *file = fopen(argv[i], "rb");
        uint8_t *data = NULL;
        long size = -1;
        if (file && fseek(file, 0, SEEK_END) == 0 && (size = ftell(file)) >= 0)
            data = malloc((size_t)size + 1);
        if (!data || fseek(file, 0, SEEK_SET) != 0 || fread(data, 1, (size_t)size, file) != (size_t)size) {
            fprintf(stderr, "%s: cannot be read\n", argv[i]);
            return 2;
        }
        fclose(file);
        fprintf(stderr, "== %s\n", argv[i]);
        LLVMFuzzerTestOneInput(data, (size_t)size);
        free(data);
    }
    return argc > 1 ? 0 : 2;
}
