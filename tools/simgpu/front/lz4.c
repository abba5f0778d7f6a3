/* lz4.c: unpacks what `nvcc -compress-mode=speed`, and older toolkits always, write into a fatbin.
 *
 * A block is a sequence of: a token, literals, and a match, that is bytes repeated from what is unpacked already. The token's
 * high half counts the literals, its low half the match's bytes beyond 4; a half of 15 is continued by bytes that add to it, the
 * last of which is below 255. Two bytes, the lower first, say how far back the match begins. The last sequence has literals
 * only. (LZ4 Block Format Description, lz4/doc.) */
#include <string.h>

#include "fatbin.h"

/* A half of a token, with the bytes that continue it; false when the input ends. */
static bool read_length(const u8 **at, const u8 *end, size_t half, size_t *length)
{
    *length = half;
    for (u8 more = half == 15 ? 255 : 0; more == 255; *length += more) {
        if (*at == end) return false;
        more = *(*at)++;
    }
    return true;
}

size_t lz4_unpack(u8 *to, size_t room, const u8 *from, size_t bytes)
{
    const u8 *end = from + bytes;
    size_t used = 0, length, back;
    while (from < end) {
        u8 token = *from++;
        if (!read_length(&from, end, token >> 4, &length) || length > (size_t)(end - from) ||
            length > room - used)
            return LZ4_DAMAGED;
        memcpy(to + used, from, length);
        from += length;
        used += length;
        if (from == end) return used;
        if (end - from < 2) return LZ4_DAMAGED;
        back = from[0] | (size_t)from[1] << 8;
        from += 2;
        if (!read_length(&from, end, token & 15, &length) || length + 4 > room - used || !back || back > used)
            return LZ4_DAMAGED;
        for (length += 4; length; length--, used++) to[used] = to[used - back];
    }
    return LZ4_DAMAGED;
}
