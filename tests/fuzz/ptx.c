// The PTX reader on any bytes at all: it loads them as a module or says why not, and nothing else.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fuzz.h"
#include "../../tools/simgpu/sim.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *text = malloc(size + 1); // the reader is given text that ends with a zero, as fatbin_ptx does
    if (!text) abort();
    memcpy(text, data, size);
    text[size] = 0;
    const char *second = memchr(text, '\f', size); // a form feed: a second file begins, and both are linked
    size_t first = second ? (size_t)(second - text) : size;
    const struct ptx_text texts[] = {{NULL, text, first}, {NULL, text + first, size - first}};
    struct module *m = module_load(texts, second ? 2 : 1);
    for (u32 i = 0; m && i < m->function_count; i++) { // a kernel is read when it is asked for
        const struct function *f = module_function(m, m->functions[i]->name);
        if (f->refused) fprintf(stderr, "%s\n", f->why);
    }
    free(text);
    return 0;
}
