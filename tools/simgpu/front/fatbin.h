/* fatbin.h: what unpacking a fatbin (fatbin.c) takes. */
#ifndef FATBIN_H
#define FATBIN_H

#include "../sim.h"

/* Unpacks an LZ4 block into at most `room` bytes. Returns how many they are, or LZ4_DAMAGED. */
size_t lz4_unpack(u8 *to, size_t room, const u8 *from, size_t bytes);
#define LZ4_DAMAGED ((size_t)-1)

#endif
