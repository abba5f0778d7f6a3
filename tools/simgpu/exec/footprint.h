/* footprint.h: which bytes of memory a task of a stream reads and writes (exec/footprint.c).
 *
 * Asked for only where another task may run beside this one (runtime/beside.h). What a kernel accesses is marked bit by bit, a bit a
 * byte, so that two kernels that write neighbouring bytes are told from two that write the same; what the host does itself, a copy
 * or a fill, is an extent at once. Of a kernel only the device's memory and what cudaMallocHost allocated are seen. Strong reads,
 * as of a flag that somebody else may set meanwhile, are none. */
#ifndef FOOTPRINT_H
#define FOOTPRINT_H

#include "race.h"

enum touch { TOUCH_READ, TOUCH_WRITE, TOUCH_ATOMIC, TOUCHES }; /* atomic: and other strong writes */

struct extent {
    u64 start, end;
};
/* In order of addresses, and none meets the next. */
struct extents {
    struct extent *at;
    u64 count, capacity;
};
struct footprint {
    struct extents of[TOUCHES];
};

/* Between footprint_begin() and footprint_end(): somebody wants to know. */
extern bool footprint_wanted;

void footprint_begin(void);
/* What has been touched since; footprint_free() frees it. */
void footprint_end(struct footprint *f);
void footprint_free(struct footprint *f);

/* The task touches these bytes, of whatever memory; while no kernel runs. */
void footprint_touch(enum touch how, const void *at, u64 bytes);
/* A kernel does, in the device's memory; any number of host threads. */
void footprint_mark(enum touch how, u64 at, u64 bytes);
void footprint_access(u32 mask, const u64 at[LANES], u32 bytes, enum access how);

/* The next bytes that are in both: false when there are none. A search begins with `m` zeros. */
struct meeting {
    u64 i, k; /* extents of a and b */
    struct extent both;
};
bool footprint_meet(const struct extents *a, const struct extents *b, struct meeting *m);

#endif
