/* heap.h: the simulated GPU's global memory. A device address is an address in one reserved range of this process, so
 * host code that dereferences a device pointer by mistake, and device code that is handed a host pointer, both miss the
 * other's memory. Allocations are 256-byte aligned, 512 bytes of unmapped-to-anyone red zone lie between them, and freed
 * ranges are not reused before the device runs out of fresh addresses, so that use after free is told from a wild pointer. */
#ifndef HEAP_H
#define HEAP_H

#include "../sim.h"

/* Managed and page-locked host memory are the host's as much as the device's; the latter does not count as the device's. */
enum allocation_kind {
    ALLOCATION_DEVICE,
    ALLOCATION_VARIABLE,
    ALLOCATION_CONST,
    ALLOCATION_DEVICE_MALLOC,
    ALLOCATION_MANAGED,
    ALLOCATION_HOST
};
struct allocation {
    u64 address, bytes;
    enum allocation_kind kind;
    bool freed;
    const char *name; /* variables: the symbol; else NULL */
    u32 number;       /* 1 for the first cudaMalloc of the program, and so on */
};

/* Fresh memory that nobody has written (exec/undefined.h: NaN, in every float format), except variables, which start as zeros. Returns 0
 * when the device (options: 16 GiB unless told) is full. */
u64 heap_alloc(u64 bytes, enum allocation_kind kind, const char *name);
/* False when `address` is not the start of a live allocation made by heap_alloc. */
bool heap_free(u64 address);
/* A graph's memory: freed, but its pages stay accessible, and the same address may be asked for again. heap_revive gives it back, as
 * fresh memory, whether it is live or not; false when the device is full, or the address has gone to someone else. */
bool heap_retire(u64 address);
bool heap_revive(u64 address, u64 bytes);
/* Memory of the host's own that kernels may reach from now on, at its own address (cudaHostRegister); and no longer. */
void heap_adopt(u64 address, u64 bytes);
void heap_disown(u64 address);
/* The same for what a kernel's malloc allocated, and only that. Its pages stay accessible, since kernels run meanwhile. */
bool heap_free_in_kernel(u64 address);
/* How many allocations have been freed so far: bounds that were looked up before the last one may be stale. */
u64 heap_frees(void);
/* The live allocation, or adopted memory, that contains `address`; false if there is none. Safe from any thread; a lookup that races with no
 * alloc/free takes no lock that other lookups wait for. */
bool heap_find(u64 address, struct allocation *found);
/* The allocation nearest to `address`, freed ones included, for fault messages; false when there never was one. */
bool heap_nearest(u64 address, struct allocation *found);
/* Where the device's reserved range is. */
void heap_range(u64 *start, u64 *bytes);
/* True when `address` lies in the device's reserved range at all. */
bool heap_is_device(u64 address);
/* True when the program's own memory is mapped there, for fault messages. */
bool heap_is_host(u64 address);
void heap_usage(u64 *free_bytes, u64 *total_bytes);
/* Frees every allocation that cudaMalloc made; variables stay. */
void heap_free_all(void);

#endif
