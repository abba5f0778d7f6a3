/* memory.h: from addresses in a state space to memory of this process, every access checked (exec/memory.c). */
#ifndef MEMORY_H
#define MEMORY_H

#include <string.h>

#include "race.h"

/* Generic addresses of shared and local memory lie beyond any address of this process. */
#define SHARED_WINDOW (1ull << 48)
#define LOCAL_WINDOW  (2ull << 48)
#define WINDOW_BYTES  (1ull << 32)

/* Reads the address operand in->a + in->imm of every lane; lanes that are off get the first active lane's. */
void memory_addresses(struct warp *w, const struct inst *in, u32 mask, u64 address[LANES]);

/* Turns addresses in in->space into host addresses of `bytes` bytes each, aligned to `align`, or faults. `how` is for the
 * checks and the message; a store calls race_settle when it has written. */
void memory_resolve(struct warp *w, const struct inst *in, u32 mask, u64 address[LANES], u32 bytes, u32 align,
                    enum access how);

/* One lane's generic address, likewise. */
u8 *host_pointer(struct warp *w, const struct inst *in, u32 lane, u64 address, u32 bytes, enum access how);

/* One lane's address of global memory, likewise; any alignment. */
u8 *global_pointer(struct warp *w, const struct inst *in, u32 lane, u64 address, u32 bytes, bool is_write);

/* Faults where an address that was made of `base` ran so far out of its allocation that it lies in another: hardware lets it pass. */
void memory_check_base(struct warp *w, const struct inst *in, const struct base *base, u32 lane, u64 a,
                       u32 bytes, bool is_write);

/* A lane's access of 8 or 16 bytes, aligned to its size, is done in one piece, as a GPU does it: programs pass a flag and its
 * data in one vector from block to block. (Vector registers of x86 with AVX and of Arm load and store 16 aligned bytes so.) */
typedef u64 whole16 __attribute__((vector_size(16), may_alias));
typedef u64 whole8 __attribute__((may_alias));
static inline void memory_copy(void *to, const void *from, u32 bytes)
{
    if (bytes % 16 == 0)
        for (u32 k = 0; k < bytes / 16; k++)
            ((volatile whole16 *)to)[k] = ((const volatile whole16 *)from)[k];
    else if (bytes == 8)
        *(volatile whole8 *)to = *(const volatile whole8 *)from;
    else
        memcpy(to, from, bytes);
}
enum { MAX_ACCESS = 32 }; /* bytes of a lane */

/* Where a lane's address leads, if that is memory of the block or of an allocation that may never have been written; else NULL. No
 * access, and no fault. */
const u8 *memory_peek(struct warp *w, const struct inst *in, u64 address, u32 bytes);

/* Allocations may have been freed since this warp last looked: forgets what it knows of them. */
void memory_refresh(struct warp *w);

/* The block of the cluster in whose shared memory address `a` lies, by its rank bits; faults when `in` may not reach it. */
struct block *shared_owner(struct warp *w, const struct inst *in, enum space space, u32 lane, u64 a);

/* Where the `bytes` bytes at `a` are in *owner's shared memory; `operand` is the address operand of `in`, to whose variable they are held.
 * With ACCESS_BULK it is for who copies to note what is written. The system's first KiB of shared addresses is none of it, so that neither
 * an mbarrier nor a bulk copy can lie there. */
u32 shared_offset(struct warp *w, const struct inst *in, const struct inst *operand, u32 lane, u64 a,
                  u32 bytes, enum access how, struct block **owner);

/* SPACE_SHARED or SPACE_CLUSTER for the modifiers that name them, SPACE_GENERIC for any other. */
enum space shared_space(const char *m);

/* How many passes through shared memory's banks these lanes' accesses take, and how few their bytes need. */
u32 shared_passes(u32 mask, const u64 address[LANES], u32 bytes, u32 *ideal);

/* With --profile: count an access to shared memory (addresses are shared addresses) or global memory. */
void count_shared(struct warp *w, const struct inst *in, u32 mask, const u64 address[LANES], u32 bytes);
void count_global(struct warp *w, const struct inst *in, u32 mask, const u64 address[LANES], u32 bytes);

#endif
