// The .npy reader on any bytes: an array whose shape and data agree, or one line that says why not.
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "../../common/harness/npy.h"
#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    int file = memfd_create("npy", MFD_CLOEXEC);
    if (file < 0 || write(file, data, size) != (ssize_t)size) abort();
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", file);
    struct npy array;
    struct error error = {{0}};
    if (npy_load(path, ~0u, &array, &error)) {
        int64_t count = 1;
        for (int i = 0; i < array.rank; i++) count *= array.shape[i];
        if (count != array.count || !array.data) abort();
        volatile double last = dtype_get(array.dtype, array.data, array.count - 1);
        (void)last;
        npy_free(&array);
    } else if (!error.text[0]) {
        abort();
    } else {
        fprintf(stderr, "%s\n", error.text);
    }
    close(file);
    return 0;
}
