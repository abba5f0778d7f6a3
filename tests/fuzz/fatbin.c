// The fatbin reader on any bytes: it finds PTX or says why not. Only the sizes in the outermost header are made true, since
// a program hands over an address and nobody knows more of the whole; and no address is followed (a wrapper holds one).
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../tools/simgpu/runtime/runtime.h"
#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    enum { HEADER = 16, SIZE_AT = 8, HEADER_SIZE_AT = 6 };
    const uint32_t wrapper = 0x466243b1;
    if (size < HEADER || memcmp(data, &wrapper, sizeof wrapper) == 0) return 0;
    uint8_t *fatbin = malloc(size); // no byte more: reading past the end is found out
    if (!fatbin) abort();
    memcpy(fatbin, data, size);
    const uint16_t header_bytes = HEADER;
    const uint64_t rest = size - HEADER;
    memcpy(fatbin + HEADER_SIZE_AT, &header_bytes, sizeof header_bytes);
    memcpy(fatbin + SIZE_AT, &rest, sizeof rest);
    const char *why = NULL;
    struct ptx_text *texts = NULL;
    uint32_t count = fatbin_ptx(fatbin, &texts, &why);
    if (count > 1 || (count ? strlen(texts->text) != texts->length : !why || !*why)) abort();
    if (count)
        fatbin_free(texts, count);
    else
        fprintf(stderr, "%s\n", why);
    free(fatbin);
    return 0;
}
