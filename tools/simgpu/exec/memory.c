/* memory.c: loads, stores and addresses (PTX ISA, "Data Movement and Conversion Instructions", "State Spaces"). */
#include "memory.h"

#include <string.h>

#include "../front/lower.h"
#include "../report/report.h"
#include "../runtime/heap.h"
#include "bulk.h"
#include "footprint.h"
#include "global.h"
#include "proxy.h"
#include "strong.h"
#include "undefined.h"
#include "warp.h"

/* ---- Addresses --------------------------------------------------------------------------------------------------------- */

/* Lanes that are off access what the first one that is on does. */
static inline void fill_off_lanes(u32 mask, u64 address[LANES])
{
    u64 first = address[first_lane(mask)];
    if (mask == ALL_LANES) return;
    for (int i = 0; i < LANES; i++) address[i] = mask >> i & 1 ? address[i] : first;
}

void memory_addresses(struct warp *w, const struct inst *in, u32 mask, u64 address[LANES])
{
    if (in->addr64) {
        const u64 *a = lanes_of(w, in->a);
        for (int i = 0; i < LANES; i++) address[i] = a[i] + (u64)in->imm;
    } else {
        const u32 *a = lanes_of(w, in->a);
        for (int i = 0; i < LANES; i++) address[i] = (u32)(a[i] + (u32)in->imm);
    }
    fill_off_lanes(mask, address);
}

static _Noreturn void misaligned(struct warp *w, const struct inst *in, u32 lane, const char *what, u64 a,
                                 u32 align)
{
    fault(w, in, 1u << lane, ERR_MISALIGNED, "misaligned %s address 0x%llx: must be a multiple of %u", what,
          (unsigned long long)a, align);
}

/* The allocation that the address was made for: of the variable, or of what the parameter points to, if it does. */
static bool find_own(const struct warp *w, const struct base *base, struct allocation *own)
{
    if (!base) return false;
    u64 at = base->variable;
    if (!at) memcpy(&at, w->block->launch->params + base->at, sizeof at);
    return heap_find(at, own);
}

static void name_allocation(const struct allocation *a, char what[160])
{
    const char *freed = a->freed ? "freed " : "";
    if (a->name)
        snprintf(what, 160, "variable %s of %llu bytes", a->name, (unsigned long long)a->bytes);
    else if (a->kind == ALLOCATION_HOST)
        snprintf(what, 160, "%spage-locked memory of %llu bytes", freed, (unsigned long long)a->bytes);
    else
        snprintf(what, 160, "%s%sallocation %u of %llu bytes", a->freed ? "the " : "", freed, a->number,
                 (unsigned long long)a->bytes);
}

static _Noreturn void illegal_global(struct warp *w, const struct inst *in, u32 lane, u64 a, u32 bytes,
                                     bool is_write)
{
    struct allocation near;
    const char *access = is_write ? "write" : "read";
    if (a < 4096)
        fault(w, in, 1u << lane, ERR_ILLEGAL_ADDRESS, "%s of %u bytes at 0x%llx: a null pointer", access,
              bytes, (unsigned long long)a);
    if (!heap_is_device(a))
        fault(w, in, 1u << lane, ERR_ILLEGAL_ADDRESS,
              "%s of %u bytes at 0x%llx, which is no device address%s", access, bytes, (unsigned long long)a,
              heap_is_host(a) ? " but one of the host's memory: a host pointer" : "");
    if (!find_own(w, in->base, &near) && !heap_nearest(a, &near))
        fault(w, in, 1u << lane, ERR_ILLEGAL_ADDRESS, "%s of %u bytes at 0x%llx: nothing is allocated",
              access, bytes, (unsigned long long)a);
    char what[160];
    name_allocation(&near, what);
    if (near.kind == ALLOCATION_CONST && is_write && a >= near.address && a < near.address + near.bytes)
        fault(w, in, 1u << lane, ERR_ILLEGAL_ADDRESS, "write of %u bytes to the constant %s", bytes, what);
    if (a >= near.address + near.bytes)
        fault(w, in, 1u << lane, ERR_ILLEGAL_ADDRESS,
              "out of bounds: %s of %u bytes at 0x%llx, %llu bytes past the end of %s (at 0x%llx)", access,
              bytes, (unsigned long long)a, (unsigned long long)(a - near.address - near.bytes), what,
              (unsigned long long)near.address);
    if (a < near.address)
        fault(w, in, 1u << lane, ERR_ILLEGAL_ADDRESS,
              "out of bounds: %s of %u bytes at 0x%llx, %llu bytes before %s (at 0x%llx)", access, bytes,
              (unsigned long long)a, (unsigned long long)(near.address - a), what,
              (unsigned long long)near.address);
    fault(w, in, 1u << lane, ERR_ILLEGAL_ADDRESS,
          near.freed ? "use after free: %s of %u bytes at 0x%llx, in %s (at 0x%llx)"
                     : "out of bounds: %s of %u bytes at 0x%llx crosses the end of %s (at 0x%llx)",
          access, bytes, (unsigned long long)a, what, (unsigned long long)near.address);
}

void memory_check_base(struct warp *w, const struct inst *in, const struct base *base, u32 lane, u64 a,
                       u32 bytes, bool is_write)
{
    struct allocation own, found;
    char what[160], there[160], by[32] = "";
    if (!find_own(w, base, &own) || !heap_find(a, &found) || own.address == found.address) return;
    name_allocation(&own, what);
    name_allocation(&found, there);
    bool is_before = a < own.address;
    u64 distance = is_before ? own.address - a : a - own.address - own.bytes;
    if (!base->variable) snprintf(by, sizeof by, ", where parameter %u points", base->number);
    breach(w, in, 1u << lane, ERR_ILLEGAL_ADDRESS,
           "out of bounds: %s of %u bytes at 0x%llx, %llu bytes %s %s (at 0x%llx)%s: there lies %s",
           is_write ? "write" : "read", bytes, (unsigned long long)a, (unsigned long long)distance,
           is_before ? "before" : "past the end of", what, (unsigned long long)own.address, by, there);
}

/* An instruction tends to touch the same allocation again. Only one HEAP_BOUNDS instructions further on has the same place: those
 * of a loop, unrolled though it may be, have each their own. What another has put there holds only if their addresses are made of
 * the same. */
static inline struct bounds *bounds_of(struct warp *w, const struct inst *in)
{
    return &w->heap[(uintptr_t)in / sizeof *in % HEAP_BOUNDS];
}

/* One lane in global memory, and the bounds of the allocation it is in for the lanes and instructions to come. */
static void check_global_lane(struct warp *w, const struct inst *in, u32 lane, u64 a, u32 bytes, u32 align,
                              bool is_write)
{
    const struct launch *l = w->block->launch;
    u64 params = (u64)(uintptr_t)l->params;
    if (a & (align - 1)) misaligned(w, in, lane, "global", a, align);
    if (!is_write && a >= params && a - params + bytes <= l->kernel->param_bytes) return;
    struct allocation found;
    if (!heap_find(a, &found) || bytes > found.address + found.bytes - a ||
        (is_write && found.kind == ALLOCATION_CONST))
        illegal_global(w, in, lane, a, bytes, is_write);
    memory_check_base(w, in, in->base, lane, a, bytes, is_write);
    if (found.kind == ALLOCATION_CONST) { /* not remembered: it may only be read */
        if (footprint_wanted) footprint_mark(TOUCH_READ, a, bytes);
        return;
    }
    *bounds_of(w, in) = (struct bounds){found.address, found.address + found.bytes, in->base};
}

/* Whether [a, a + bytes) lies in the allocation that this instruction touched last. */
static inline bool in_bounds(struct warp *w, const struct inst *in, u64 a, u64 bytes)
{
    const struct bounds *b = bounds_of(w, in);
    return a >= b->lo && a <= b->hi && bytes <= b->hi - a && b->base == in->base;
}

/* These lanes' accesses are in the allocation that the instruction touched last, or in none that is ever written. */
static inline void race_global(struct warp *w, const struct inst *in, u32 mask, const u64 address[LANES],
                               u32 bytes, enum access how)
{
    const struct bounds *b = bounds_of(w, in);
    if (in_bounds(w, in, address[first_lane(mask)], bytes))
        global_access(w, in, mask, address, bytes, how, b->lo, b->hi);
}

/* The first read by this instruction in its block, most often. */
static void first_read(struct warp *w, const struct inst *in, u32 mask, const u64 address[LANES], u32 bytes,
                       enum access how)
{
    if (global_read_early(w, in, mask, address, bytes, how) && w->early_count < HEAP_BOUNDS)
        w->early[w->early_count++] = (u8)(bounds_of(w, in) - w->heap);
}

void memory_refresh(struct warp *w)
{
    u64 frees = heap_frees();
    if (frees != w->heap_frees) memset(w->heap, 0, sizeof w->heap);
    w->heap_frees = frees;
}

static void check_global(struct warp *w, const struct inst *in, u32 mask, const u64 address[LANES], u32 bytes,
                         u32 align, enum access how)
{
    bool is_write = how & ACCESS_WRITE;
    u32 lane = first_lane(mask);
    bool first = !in_bounds(w, in, address[lane], bytes);
    if (address[lane] & (align - 1) || first)
        check_global_lane(w, in, lane, address[lane], bytes, align, is_write);
    const struct bounds known = *bounds_of(w, in);
    u64 size = known.hi - known.lo, span = size >= bytes ? size - bytes : 0, bad = size < bytes;
    for (int i = 0; i < LANES; i++) bad |= (u64)(address[i] - known.lo > span) | (address[i] & (align - 1));
    for (u32 i = 0; i < LANES && bad; i++) {
        if (!(mask >> i & 1)) continue;
        if (address[i] & (align - 1) || !in_bounds(w, in, address[i], bytes))
            check_global_lane(w, in, i, address[i], bytes, align, is_write);
        race_global(w, in, 1u << i, address, bytes, how);
    }
    if (!bad && first && !is_write) first_read(w, in, mask, address, bytes, how);
    if (!bad) race_global(w, in, mask, address, bytes, how);
}

struct block *shared_owner(struct warp *w, const struct inst *in, enum space space, u32 lane, u64 a)
{
    struct block *own = w->block, *b;
    struct cluster *c = own->cluster;
    u64 rank = a >> 24;
    if (rank == own->cluster_rank) return own;
    if (space == SPACE_SHARED && rank < c->size)
        fault(
            w, in, 1u << lane, ERR_ILLEGAL_ADDRESS,
            "shared address 0x%08llx lies in block %llu of the cluster: .shared::cta reaches only the block's own (%u)",
            (unsigned long long)a, (unsigned long long)rank, own->cluster_rank);
    if (rank >= c->size)
        fault(w, in, 1u << lane, ERR_ILLEGAL_ADDRESS,
              "shared address 0x%08llx lies in block %llu of a cluster of %u: out of bounds",
              (unsigned long long)a, (unsigned long long)rank, c->size);
    b = c->block[rank];
    if (!b->live_threads)
        fault(
            w, in, 1u << lane, ERR_ILLEGAL_ADDRESS,
            "block %llu of the cluster, (%u,%u,%u), has exited: its shared memory is gone (a barrier.cluster at its end would keep it)",
            (unsigned long long)rank, b->ctaid[0], b->ctaid[1], b->ctaid[2]);
    if (!c->phase)
        fault(
            w, in, 1u << lane, ERR_ILLEGAL_ADDRESS,
            "shared memory of block %llu of the cluster before any barrier.cluster: it may not have started",
            (unsigned long long)rank);
    return b;
}

/* The bytes of a block's shared memory that an instruction may access: its variable's, or all. */
struct room {
    u32 at, bytes;
};
static inline struct room room_of(const struct block *b, const struct inst *in)
{
    const struct shared_variable *v = in->variable;
    return v ? (struct room){v->at, v->bytes} : (struct room){0, b->shared_bytes};
}

/* The memory behind a shared address, as shared_offset, the system's included. */
static u8 *shared_pointer(struct warp *w, const struct inst *in, const struct inst *operand, u32 lane, u64 a,
                          u32 bytes, enum access how)
{
    struct block *b = shared_owner(w, in, operand->space, lane, a);
    bool is_write = how & ACCESS_WRITE;
    u32 at = (u32)a & 0xffffff, offset = at - b->shared_base;
    if ((u64)at + bytes <= GROUPS_SCRATCH) return b->reserved + at;
    if (at < b->shared_base || (u64)offset + bytes > b->shared_bytes)
        fault(
            w, in, 1u << lane, ERR_ILLEGAL_ADDRESS,
            "out of bounds: %s of %u bytes at shared offset %lld; the block has %u bytes of shared memory (%u static, %u dynamic)",
            is_write ? "write" : "read", bytes, (long long)at - b->shared_base, b->shared_bytes,
            b->shared_bytes - b->launch->dynamic_bytes, b->launch->dynamic_bytes);
    struct room room = room_of(b, operand);
    if (offset < room.at || (u64)offset - room.at + bytes > room.bytes) {
        const char *name = readable_name(operand->variable->name);
        for (const char *inner; (inner = strstr(name, "::"));) name = inner + 2;
        fault(
            w, in, 1u << lane, ERR_ILLEGAL_ADDRESS,
            "out of bounds: %s of %u bytes at byte %lld of the shared variable %s, which has %u bytes: there is another's memory",
            is_write ? "write" : "read", bytes, (long long)offset - room.at, name, room.bytes);
    }
    if (b != w->block && !is_write) b->visitors |= 1u << w->block->cluster_rank;
    if (b->stamps && is_write && !(how & ACCESS_BULK)) {
        order_store(w, in, lane, b, offset, bytes);
        proxy_wrote(b, offset, bytes, b == w->block ? w->id : WRITER_REMOTE, 1u << lane);
    }
    return b->shared + offset;
}

u32 shared_offset(struct warp *w, const struct inst *in, const struct inst *operand, u32 lane, u64 a,
                  u32 bytes, enum access how, struct block **owner)
{
    u8 *p = shared_pointer(w, in, operand, lane, a, bytes, how);
    *owner = shared_owner(w, in, operand->space, lane, a);
    if ((a & 0xffffff) < SHARED_BASE)
        fault(
            w, in, 1u << lane, ERR_ILLEGAL_ADDRESS,
            "out of bounds: shared address 0x%llx: a block's shared memory begins at 0x%x, what lies before is "
            "the system's",
            (unsigned long long)a, SHARED_BASE);
    return (u32)(p - (*owner)->shared);
}

static u64 check_shared_lane(struct warp *w, const struct inst *in, u32 lane, u64 a, u32 bytes, u32 align,
                             enum access how)
{
    bool is_write = how & ACCESS_WRITE;
    if (a & (align - 1)) misaligned(w, in, lane, "shared", a, align);
    u8 *p = shared_pointer(w, in, in, lane, a, bytes, how);
    struct block *b = shared_owner(w, in, in->space, lane, a);
    if ((size_t)(p - b->shared) >= b->shared_bytes) return (u64)(uintptr_t)p; /* in b->reserved */
    u32 at[LANES];
    at[lane] = (u32)(p - b->shared);
    if (!is_write) proxy_loads(w, in, lane, b, at[lane], bytes);
    if (is_write && b != w->block) order_remote(w, in, lane, b, NULL);
    race_access(w, in, 1u << lane, b, at, bytes, how);
    return (u64)(uintptr_t)p;
}

static u64 check_local_lane(struct warp *w, const struct inst *in, u32 lane, u64 a, u32 bytes, u32 align,
                            bool is_write)
{
    u32 size = w->block->launch->local_bytes;
    if (a & (align - 1)) misaligned(w, in, lane, "local", a, align);
    if (a >= size || a + bytes > size)
        fault(w, in, 1u << lane, ERR_ILLEGAL_ADDRESS,
              "out of bounds: %s of %u bytes at local offset %lld; a thread has %u bytes of local memory",
              is_write ? "write" : "read", bytes, (long long)a, size);
    if (is_write) undefined_local_written(w, lane, (u32)a, bytes);
    return (u64)(uintptr_t)(w->local + (size_t)lane * size + a);
}

static u64 resolve_generic_lane(struct warp *w, const struct inst *in, u32 lane, u64 a, u32 bytes, u32 align,
                                enum access how)
{
    bool is_write = how & ACCESS_WRITE;
    if (a - SHARED_WINDOW < WINDOW_BYTES)
        return check_shared_lane(w, in, lane, a - SHARED_WINDOW, bytes, align, how);
    if (a - LOCAL_WINDOW < WINDOW_BYTES)
        return check_local_lane(w, in, lane, a - LOCAL_WINDOW, bytes, align, is_write);
    check_global_lane(w, in, lane, a, bytes, align, is_write);
    u64 address[LANES];
    address[lane] = a;
    race_global(w, in, 1u << lane, address, bytes, how);
    return a;
}

u8 *global_pointer(struct warp *w, const struct inst *in, u32 lane, u64 address, u32 bytes, bool is_write)
{
    if (!in_bounds(w, in, address, bytes)) check_global_lane(w, in, lane, address, bytes, 1, is_write);
    return (u8 *)(uintptr_t)address;
}

u8 *host_pointer(struct warp *w, const struct inst *in, u32 lane, u64 address, u32 bytes, enum access how)
{
    return (u8 *)(uintptr_t)resolve_generic_lane(w, in, lane, address, bytes, 1, how);
}

const u8 *memory_peek(struct warp *w, const struct inst *in, u64 address, u32 bytes)
{
    const struct block *b = w->block;
    struct allocation found;
    bool window = in->space == SPACE_GENERIC && address - SHARED_WINDOW < WINDOW_BYTES;
    if (in->space == SPACE_SHARED || in->space == SPACE_CLUSTER || window) {
        u64 at = (u32)address - ((u64)b->cluster_rank << 24) - b->shared_base;
        return at < b->shared_bytes && bytes <= b->shared_bytes - at ? b->shared + at : NULL;
    }
    bool inside = record_never_written(address) && heap_find(address, &found) &&
                  bytes <= found.address + found.bytes - address;
    return inside ? (const u8 *)(uintptr_t)address : NULL;
}

static void resolve_shared(struct warp *w, const struct inst *in, u32 mask, u64 address[LANES], u32 bytes,
                           u32 align, enum access how)
{
    struct block *b = w->block;
    bool is_write = how & ACCESS_WRITE;
    struct room room = room_of(b, in);
    u64 own = ((u64)b->cluster_rank << 24) + b->shared_base, first = own + room.at,
        span = (u64)room.bytes - bytes, bad = room.bytes < bytes, host = (u64)(uintptr_t)b->shared;
    if (w->counters) count_shared(w, in, mask, address, bytes);
    for (int i = 0; i < LANES; i++) bad |= (u64)(address[i] - first > span) | (address[i] & (align - 1));
    if (!bad) {
        if (b->stamps && !is_write)
            for (u32 left = mask; left; left &= left - 1)
                proxy_loads(w, in, first_lane(left), b, (u32)(address[first_lane(left)] - own), bytes);
        for (u32 left = b->stamps && is_write ? mask : 0; left; left &= left - 1) {
            u32 at = (u32)(address[first_lane(left)] - own);
            order_store(w, in, first_lane(left), b, at, bytes);
            proxy_wrote(b, at, bytes, w->id, left & -left);
        }
        u32 at[LANES];
        for (int i = 0; i < LANES; i++) at[i] = (u32)(address[i] - own);
        race_access(w, in, mask, b, at, bytes, how);
        for (int i = 0; i < LANES; i++) address[i] += host - own;
        return;
    }
    for (u32 i = 0; i < LANES; i++)
        if (mask >> i & 1) address[i] = check_shared_lane(w, in, i, address[i], bytes, align, how);
}

void memory_resolve(struct warp *w, const struct inst *in, u32 mask, u64 address[LANES], u32 bytes, u32 align,
                    enum access how)
{
    enum space space = in->space;
    if (space == SPACE_GENERIC) { /* most often all lanes are in one space */
        u64 window = address[first_lane(mask)] & ~(WINDOW_BYTES - 1), same = 1, global = 1;
        for (int i = 0; i < LANES; i++) {
            same &= (address[i] & ~(WINDOW_BYTES - 1)) == window;
            global &= address[i] < SHARED_WINDOW;
        }
        if (global) {
            space = SPACE_GLOBAL;
        } else if (same && window == SHARED_WINDOW) {
            space = SPACE_CLUSTER;
            for (int i = 0; i < LANES; i++) address[i] -= SHARED_WINDOW;
        } else {
            for (u32 i = 0; i < LANES; i++)
                if (mask >> i & 1) address[i] = resolve_generic_lane(w, in, i, address[i], bytes, align, how);
            fill_off_lanes(mask, address);
            return;
        }
    }
    switch (space) {
    case SPACE_SHARED:
    case SPACE_CLUSTER: resolve_shared(w, in, mask, address, bytes, align, how); break;
    case SPACE_LOCAL:
        for (u32 i = 0; i < LANES; i++)
            if (mask >> i & 1)
                address[i] = check_local_lane(w, in, i, address[i], bytes, align, how & ACCESS_WRITE);
        break;
    case SPACE_PARAM: /* reached through a register: an address of the parameter buffer */
    case SPACE_CONST:
    case SPACE_GLOBAL:
    case SPACE_GENERIC:
        check_global(w, in, mask, address, bytes, align, how);
        if (w->counters && space == SPACE_GLOBAL) count_global(w, in, mask, address, bytes);
        break;
    }
    fill_off_lanes(mask, address);
}

/* ---- Loads and stores -------------------------------------------------------------------------------------------------- */

/* in->bytes an element, in->count elements; destinations or sources in in->more. aux: sign-extend to this many bytes (0:
 * zero-extend). flags: enum order, POLLS (a strong access: others may change what it reads, or read what it writes), CONSTANT
 * (.nc), DATA (ACCESS_DATA), and << 8 a lane's bytes in the registers. */
enum { POLLS = 8, CONSTANT = 16, DATA = 32, ORDERS = ORDER_ACQUIRE | ORDER_RELEASE | ORDER_CTA };
static inline enum access access_of(const struct inst *in)
{
    u32 how = in->flags & POLLS ? ACCESS_STRONG : 0;
    return how | (how && in->flags & ORDER_CTA ? ACCESS_CTA : 0) |
           (in->flags & CONSTANT ? ACCESS_CONSTANT : 0) | (in->flags & DATA ? ACCESS_DATA : 0);
}

/* Whether a bit of the lanes' differences is on. Of a loop over lanes gcc 12 makes vectors of the host, and ten instructions that
 * bring those together: with 512 bits the host has one for that. */
#ifdef __AVX512F__
typedef u64 wide_lanes __attribute__((vector_size(64), aligned(8), may_alias));
typedef u32 word_lanes __attribute__((vector_size(64), aligned(4), may_alias));
static inline bool any_bit(wide_lanes v)
{
    return _mm512_test_epi64_mask((__m512i)v, (__m512i)v) != 0;
}
#endif

/* Whether all lanes want the same element; whether their elements, of `step` bytes, lie one after the other. */
static inline bool all_same(const u64 address[LANES])
{
    const u64 first = address[0];
#ifdef __AVX512F__
    const wide_lanes *a = (const wide_lanes *)address;
    return !any_bit((a[0] ^ first) | (a[1] ^ first) | (a[2] ^ first) | (a[3] ^ first));
#else
    u64 off = 0;
    for (int i = 0; i < LANES; i++) off |= address[i] ^ first;
    return !off;
#endif
}
static inline bool in_a_row(const u64 address[LANES], u64 step)
{
#ifdef __AVX512F__
    const wide_lanes *a = (const wide_lanes *)address;
    wide_lanes off = a[0] ^ (address[0] + (wide_lanes){0, 1, 2, 3, 4, 5, 6, 7} * step);
    for (u32 k = 1; k < LANES / 8; k++) off |= (a[k] - a[k - 1]) ^ 8 * step;
    return !any_bit(off);
#else
    u64 off = 0;
    for (int i = 0; i < LANES; i++) off |= address[i] - address[0] - (u64)i * step;
    return !off;
#endif
}
static inline bool apart_32(const u32 address[LANES], u32 step)
{
#ifdef __AVX512F__
    const word_lanes *a = (const word_lanes *)address;
    const word_lanes order = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    return !any_bit((wide_lanes)((a[0] ^ (address[0] + order * step)) | ((a[1] - a[0]) ^ 16 * step)));
#else
    u32 off = 0;
    for (u32 i = 0; i < LANES; i++) off |= address[i] - address[0] - i * step;
    return !off;
#endif
}

/* Whether all lanes want one word of shared memory, or 32 in a row: then *step is 0 or 1. */
static inline bool regular(struct warp *w, const struct inst *in, u64 *first, u32 *step)
{
    if (in->addr64) {
        const u64 *a = lanes_of(w, in->a);
        u64 by = a[1] - a[0];
        *first = a[0] + (u64)in->imm;
        *step = by == 4;
        return by == 4 ? in_a_row(a, 4) : all_same(a);
    }
    const u32 *a = lanes_of(w, in->a);
    u32 by = (a[1] - a[0]) & 4;
    *first = (u32)(a[0] + (u32)in->imm);
    *step = by / 4;
    return apart_32(a, by);
}

/* The offsets into the block's shared memory when all lanes are on, in bounds and aligned: true. */
static inline bool shared_words(struct warp *w, const struct inst *in, u32 word[LANES])
{
    const struct block *b = w->block;
    struct room room = room_of(b, in);
    u32 base = (b->cluster_rank << 24) + b->shared_base - (u32)in->imm, span = room.bytes - 4,
        bad = room.bytes < 4;
    if (in->addr64) {
        const u64 *a = lanes_of(w, in->a);
        u64 high = 0;
        for (int i = 0; i < LANES; i++) high |= a[i];
        bad |= (u32)(high >> 32);
        for (int i = 0; i < LANES; i++) word[i] = (u32)a[i] - base;
    } else {
        const u32 *a = lanes_of(w, in->a);
        for (int i = 0; i < LANES; i++) word[i] = a[i] - base;
    }
    for (int i = 0; i < LANES; i++) bad |= (u32)(word[i] - room.at > span) | (word[i] & 3);
    for (int i = 0; i < LANES; i++) word[i] >>= 2;
    return !bad;
}

/* Copies 32 words, as vectors that the host has: of memcpy gcc 12 makes `rep movs` here, which takes several times as long. They
 * are as long as those that executors read, which the host hands on from a store only in one piece. */
static inline void copy_lanes(u32 *to, const u32 *from)
{
#ifdef __AVX512F__
    enum { BYTES = 64 };
#else
    enum { BYTES = 32 };
#endif
    typedef u32 host_lanes __attribute__((vector_size(BYTES), aligned(4), may_alias));
    for (u32 i = 0; i < LANES * sizeof *to / BYTES; i++)
        ((host_lanes *)to)[i] = ((const host_lanes *)from)[i];
}

/* Words that a load of all lanes finds at this host address go into its register: 32 in a row, or the same for all. False when
 * they may be what nobody has written. */
static inline bool load_line(u32 *d, const u32 *from)
{
    if (__builtin_expect(undefined_maybe(from), 0)) return false;
    copy_lanes(d, from);
    return true;
}
static inline bool load_same(u32 *d, const u32 *from)
{
    u32 v = *from;
    if (__builtin_expect(undefined_maybe_word(v), 0)) return false;
    for (int i = 0; i < LANES; i++) d[i] = v;
    return true;
}

/* A word of shared memory for all lanes, or 32 in a row: one look at the bounds will do. */
static inline bool load_regular(struct warp *w, const struct inst *in, u64 first, u32 step)
{
    const struct block *b = w->block;
    struct room room = room_of(b, in);
    u64 at = first - ((u64)b->cluster_rank << 24) - b->shared_base, within = at - room.at,
        bytes = 4 + 4 * (LANES - 1) * step;
    if (at & 3 || within > room.bytes || bytes > room.bytes - within) return false;
    const u32 *from = (const u32 *)(b->shared + at);
    u32 *d = lanes_of(w, in->d);
    if (!(step ? load_line(d, from) : load_same(d, from))) return false;
    race_read_regular(w, in, (u32)at / 4, step);
    return true;
}

/* Any words of shared memory. */
static bool load_scattered(struct warp *w, const struct inst *in, u32 *d)
{
    u32 word[LANES];
    const u32 *shared = (const u32 *)w->block->shared;
    if (!shared_words(w, in, word)) return false;
    if (w->block->stamps && !proxy_loads_words(w, word)) return false;
    race_access_words(w, in, word, ACCESS_READ);
    u32 v[LANES];
    for (int i = 0; i < LANES; i++) v[i] = shared[word[i]];
    if (undefined_maybe(v)) {
        u64 at[LANES];
        for (int i = 0; i < LANES; i++) at[i] = (u64)(uintptr_t)&shared[word[i]];
        undefined_load(w, in, ALL_LANES, at);
    }
    copy_lanes(d, v);
    return true;
}

/* Most loads from global memory: coalesced, or all lanes at one address. False: not one of these. */
static inline bool load_global(struct warp *w, const struct inst *in)
{
    const u64 *a = lanes_of(w, in->a);
    const struct bounds *b = bounds_of(w, in);
    u64 first = a[0] + (u64)in->imm, at = first - b->lo, size = b->hi - b->lo;
    const u32 *from = (const u32 *)(uintptr_t)first;
    if (first & 3 || at >= size) return false;
    if (b->lo < global_written.high && b->hi > global_written.low) return false; /* its reads are looked at */
    if (a[1] != a[0]) return size - at >= 4 * LANES && in_a_row(a, 4) && load_line(lanes_of(w, in->d), from);
    return size - at >= 4 && all_same(a) && load_same(lanes_of(w, in->d), from);
}

/* Four lanes' vectors of four words become four registers' words of these lanes, and back. */
typedef u32 words4 __attribute__((vector_size(16)));
static inline void transpose(words4 v[4])
{
#define LOW(x, y)  __builtin_shufflevector(x, y, 0, 4, 1, 5)
#define HIGH(x, y) __builtin_shufflevector(x, y, 2, 6, 3, 7)
    words4 a = LOW(v[0], v[2]), b = HIGH(v[0], v[2]), c = LOW(v[1], v[3]), d = HIGH(v[1], v[3]);
    v[0] = LOW(a, c);
    v[1] = HIGH(a, c);
    v[2] = LOW(b, d);
    v[3] = HIGH(b, d);
#undef LOW
#undef HIGH
}

/* A store has been executed, for these lanes, to these addresses: what may have been a race is decided. */
static inline void settle(struct warp *w, const struct inst *in, u32 mask, const u64 at[LANES])
{
    race_settle(w, in, mask, at);
    global_settle(w, in);
}

/* Whether other host threads may see the memory that `in` accesses. */
static inline bool is_common(const struct inst *in)
{
    return in->space == SPACE_GLOBAL || in->space == SPACE_GENERIC;
}

/* 4 bytes, all lanes on, nothing to count: what most loads are has an executor for each state space, which leaves to load_32
 * what is not so simple. */
static inline bool is_simple(const struct warp *w, u32 mask)
{
    return mask == ALL_LANES && !w->counters;
}
static __attribute__((noinline)) void load_words(struct warp *w, const struct inst *in, u32 mask)
{
    u64 at[LANES];
    u32 v[LANES], *d = lanes_of(w, in->d);
    if (in->space == SPACE_SHARED && is_simple(w, mask) && load_scattered(w, in, d)) return;
    memory_addresses(w, in, mask, at);
    memory_resolve(w, in, mask, at, 4, 4, access_of(in));
    for (int i = 0; i < LANES; i++) v[i] = *(const u32 *)(uintptr_t)at[i];
    if (undefined_maybe(v)) undefined_load(w, in, mask, at);
    FOR_LANES(mask, { d[i] = v[i]; });
}
EXECUTOR_GOES_ON(load_32, load_words)

static void load_global_32(struct warp *w, const struct inst *in, u32 mask)
{
    if (is_simple(w, mask) && load_global(w, in))
        GO_ON(w, in, mask);
    else
        load_32(w, in, mask);
}
static void load_shared_32(struct warp *w, const struct inst *in, u32 mask)
{
    u32 step;
    u64 first;
    if (is_simple(w, mask) && !w->block->stamps && regular(w, in, &first, &step) &&
        load_regular(w, in, first, step))
        GO_ON(w, in, mask);
    else
        load_32(w, in, mask);
}
/* From an address that is written in the program, and so the same in all lanes: a[0]. */
static void load_shared_known_32(struct warp *w, const struct inst *in, u32 mask)
{
    u64 first = *(const u64 *)lanes_of(w, in->a) + (u64)in->imm;
    if (is_simple(w, mask) && !w->block->stamps && load_regular(w, in, first, 0))
        GO_ON(w, in, mask);
    else
        load_32(w, in, mask);
}

/* A load of so many bytes a lane from these host addresses may find what nobody has written. Lanes that are off have an address
 * of another's. */
typedef u16 halves8 __attribute__((vector_size(16), aligned(2), may_alias));
static inline bool any_half(halves8 found)
{
    u16 any = 0;
    for (u32 k = 0; k < 8; k++) any |= found[k];
    return any;
}
static inline void look_for_undefined(struct warp *w, const struct inst *in, u32 mask, const u64 at[LANES],
                                      u32 bytes)
{
    typedef u16 half __attribute__((may_alias));
    halves8 found8 = {0};
    u16 found = 0;
    for (u32 i = 0; i < LANES; i++) {
        const half *h = (const half *)(uintptr_t)(at[i] & ~1ull);
        for (u32 k = 0; k < bytes / 16; k++)
            found8 |= (halves8)(((const halves8 *)h)[k] == (u16)UNWRITTEN_HALF);
        for (u32 k = bytes / 16 * 8; 2 * k < bytes; k++) found |= (u16)(h[k] == UNWRITTEN_HALF);
    }
    if (__builtin_expect(found || any_half(found8), 0)) undefined_load(w, in, mask, at);
}

/* Four words a lane, all lanes: each lane's in one piece. */
static void load_fours(struct warp *w, const struct inst *in, const u64 at[LANES])
{
    words4 v[LANES];
    halves8 found = {0};
    for (u32 i = 0; i < LANES; i++) {
        memory_copy(&v[i], (const void *)(uintptr_t)at[i], 16);
        found |= (halves8)((halves8)v[i] == (u16)UNWRITTEN_HALF);
    }
    if (__builtin_expect(any_half(found), 0)) undefined_load(w, in, ALL_LANES, at);
    for (u32 i = 0; i < LANES; i += 4) {
        transpose(&v[i]);
        for (u32 k = 0; k < 4; k++)
            if (in->more[k] != NO_OPERAND) memcpy((u32 *)lanes_of(w, in->more[k]) + i, &v[i + k], 16);
    }
}

static __attribute__((noinline)) void load_vector(struct warp *w, const struct inst *in, u32 mask)
{
    u64 at[LANES];
    memory_addresses(w, in, mask, at);
    memory_resolve(w, in, mask, at, 4u * in->count, 4u * in->count, access_of(in));
    bool shared = in->space == SPACE_SHARED || in->space == SPACE_CLUSTER;
    if ((shared || is_common(in)) && in->count == 4 && mask == ALL_LANES) {
        load_fours(w, in, at);
        return;
    }
    look_for_undefined(w, in, mask, at, 4u * in->count);
    _Alignas(16) u32 vector[LANES][MAX_ACCESS / 4];
    if (is_common(in))
        for (u32 i = 0; i < LANES; i++) {
            memory_copy(vector[i], (const void *)(uintptr_t)at[i], 4u * in->count);
            at[i] = (u64)(uintptr_t)vector[i];
        }
    for (u32 k = 0; k < in->count; k++) {
        if (in->more[k] == NO_OPERAND) continue;
        u32 *d = lanes_of(w, in->more[k]);
        FOR_LANES(mask, { d[i] = ((const u32 *)(uintptr_t)at[i])[k]; });
    }
}
EXECUTOR_GOES_ON(load_vector_32, load_vector)

static __attribute__((noinline)) void load_64_lanes(struct warp *w, const struct inst *in, u32 mask)
{
    u64 at[LANES];
    memory_addresses(w, in, mask, at);
    memory_resolve(w, in, mask, at, 8, 8, access_of(in));
    look_for_undefined(w, in, mask, at, 8);
    u64 *d = lanes_of(w, in->d);
    FOR_LANES(mask, { d[i] = *(const u64 *)(uintptr_t)at[i]; });
}
EXECUTOR_GOES_ON(load_64, load_64_lanes)

/* 16-bit elements, one a lane: bf16, f16. aux 4: sign-extended. */
static __attribute__((noinline)) void load_halves(struct warp *w, const struct inst *in, u32 mask)
{
    typedef u16 half __attribute__((may_alias));
    u64 at[LANES];
    memory_addresses(w, in, mask, at);
    memory_resolve(w, in, mask, at, 2, 2, access_of(in));
    look_for_undefined(w, in, mask, at, 2);
    u32 v[LANES], *d = lanes_of(w, in->d);
    for (int i = 0; i < LANES; i++) v[i] = *(const half *)(uintptr_t)at[i];
    if (in->aux == 4)
        for (int i = 0; i < LANES; i++) v[i] = (u32)(s32)(s16)v[i];
    FOR_LANES(mask, { d[i] = v[i]; });
}
EXECUTOR_GOES_ON(load_16, load_halves)

/* One element as it goes into a register: zero-extended, or sign-extended to in->aux bytes. */
static void read_element(const struct inst *in, const void *from, u64 v[2])
{
    u32 sign = 8u * in->bytes - 1;
    v[0] = v[1] = 0;
    memcpy(v, from, in->bytes);
    if (in->aux && v[0] >> sign & 1) v[0] |= ~0ull << sign;
    if (in->aux == 2) v[0] &= 0xffff;
}

/* Any element size, any count, any register width. */
static __attribute__((noinline)) void load_elements(struct warp *w, const struct inst *in, u32 mask)
{
    u64 at[LANES];
    u32 bytes = in->bytes, whole = bytes * in->count;
    u64 saw = 0;
    memory_addresses(w, in, mask, at);
    memory_resolve(w, in, mask, at, whole, whole, access_of(in));
    look_for_undefined(w, in, mask, at, whole);
    _Alignas(16) u8 vector[LANES][MAX_ACCESS];
    for (u32 left = mask; left; left &= left - 1)
        memory_copy(vector[first_lane(left)], (const void *)(uintptr_t)at[first_lane(left)], whole);
    if (in->flags & POLLS && is_common(in))
        strong_load(w, in, mask, at, whole, access_of(in), in->flags & ORDERS, vector);
    for (u32 i = 0; i < LANES; i++) {
        if (!(mask >> i & 1)) continue;
        if (in->flags & POLLS) saw = warp_saw(saw, vector[i], whole);
        for (u32 k = 0; k < in->count; k++) {
            if (in->more[k] == NO_OPERAND) continue;
            u64 v[2];
            read_element(in, vector[i] + k * bytes, v);
            memcpy((u8 *)lanes_of(w, in->more[k]) + i * (in->flags >> 8), v, in->flags >> 8);
        }
    }
    if (in->flags & ORDER_ACQUIRE) {
        order_observe(w);
        __atomic_thread_fence(__ATOMIC_ACQUIRE);
    }
    if (in->flags & POLLS) {
        global_observe(w, in, mask, at, whole, access_of(in), in->flags & ORDERS);
        warp_poll(w, in, mask, at, whole, saw);
    }
}
EXECUTOR_GOES_ON(load_any, load_elements)

static inline bool store_32_fast(struct warp *w, const struct inst *in, const u32 *v)
{
    if (in->space == SPACE_SHARED) {
        u32 word[LANES], *shared = (u32 *)w->block->shared;
        if (!shared_words(w, in, word)) return false;
        if (w->block->stamps) {
            for (u32 i = 0; i < LANES; i++) {
                order_store(w, in, i, w->block, 4 * word[i], 4);
                proxy_wrote(w->block, 4 * word[i], 4, w->id, 1u << i);
            }
        }
        race_access_words(w, in, word, ACCESS_WRITE);
        for (int i = 0; i < LANES; i++) shared[word[i]] = v[i];
        if (w->suspects) {
            u64 at[LANES];
            for (int i = 0; i < LANES; i++) at[i] = (u64)(uintptr_t)&shared[word[i]];
            race_settle(w, in, ALL_LANES, at);
        }
        return true;
    }
    if (in->space != SPACE_GLOBAL) return false;
    const u64 *a = lanes_of(w, in->a);
    u64 first = a[0] + (u64)in->imm;
    if (first & 3 || !in_bounds(w, in, first, 4 * LANES) || !in_a_row(a, 4)) return false;
    const struct bounds *b = bounds_of(w, in);
    global_write_line(w, in, first, 4 * LANES, b->lo, b->hi);
    memcpy((void *)(uintptr_t)first, v, 4 * LANES);
    global_settle(w, in);
    return true;
}

static __attribute__((noinline)) void store_words(struct warp *w, const struct inst *in, u32 mask)
{
    const u32 *v = lanes_of(w, in->d);
    note_change(w->block);
    if (mask == ALL_LANES && !w->counters && store_32_fast(w, in, v)) return;
    u64 at[LANES];
    if (!(mask & (mask - 1)) && in->space == SPACE_SHARED && !w->counters) { /* one thread writes a sum */
        struct block *b = w->block;
        u32 i = first_lane(mask);
        u64 a = in->addr64 ? ((u64 *)lanes_of(w, in->a))[i] + (u64)in->imm
                           : (u32)(((u32 *)lanes_of(w, in->a))[i] + (u32)in->imm);
        struct room room = room_of(b, in);
        u64 offset = a - ((u64)b->cluster_rank << 24) - b->shared_base, within = offset - room.at;
        if (!(offset & 3) && within < room.bytes && room.bytes - within >= 4 && !b->stamps) {
            race_write_word(w, in, i, (u32)offset / 4);
            at[i] = (u64)(uintptr_t)b->shared + offset;
        } else {
            at[i] = check_shared_lane(w, in, i, a, 4, 4, ACCESS_WRITE);
        }
        *(u32 *)(uintptr_t)at[i] = v[i];
        race_settle(w, in, mask, at);
        return;
    }
    memory_addresses(w, in, mask, at);
    memory_resolve(w, in, mask, at, 4, 4, ACCESS_WRITE);
    FOR_LANES(mask, { *(u32 *)(uintptr_t)at[i] = v[i]; });
    settle(w, in, mask, at);
}
EXECUTOR_GOES_ON(store_32, store_words)

static __attribute__((noinline)) void store_vector(struct warp *w, const struct inst *in, u32 mask)
{
    u64 at[LANES];
    note_change(w->block);
    memory_addresses(w, in, mask, at);
    memory_resolve(w, in, mask, at, 4u * in->count, 4u * in->count, ACCESS_WRITE);
    if (is_common(in) && in->count == 4 && mask == ALL_LANES) {
        for (u32 i = 0; i < LANES; i += 4) {
            words4 v[4];
            for (u32 k = 0; k < 4; k++) memcpy(&v[k], (const u32 *)lanes_of(w, in->more[k]) + i, 16);
            transpose(v);
            for (u32 k = 0; k < 4; k++) memory_copy((void *)(uintptr_t)at[i + k], &v[k], 16);
        }
        settle(w, in, mask, at);
        return;
    }
    _Alignas(16) u32 vector[LANES][MAX_ACCESS / 4];
    bool common = is_common(in);
    for (u32 k = 0; k < in->count; k++) {
        const u32 *v = lanes_of(w, in->more[k]);
        if (common)
            for (u32 i = 0; i < LANES; i++) vector[i][k] = v[i];
        else
            FOR_LANES(mask, { ((u32 *)(uintptr_t)at[i])[k] = v[i]; });
    }
    for (u32 left = common ? mask : 0; left; left &= left - 1) {
        u32 i = first_lane(left);
        memory_copy((void *)(uintptr_t)at[i], vector[i], 4u * in->count);
    }
    settle(w, in, mask, at);
}
EXECUTOR_GOES_ON(store_vector_32, store_vector)

static __attribute__((noinline)) void store_halves(struct warp *w, const struct inst *in, u32 mask)
{
    typedef u16 half __attribute__((may_alias));
    u64 at[LANES];
    const u32 *v = lanes_of(w, in->d);
    note_change(w->block);
    memory_addresses(w, in, mask, at);
    memory_resolve(w, in, mask, at, 2, 2, ACCESS_WRITE);
    for (u32 left = mask; left; left &= left - 1) {
        u32 i = first_lane(left);
        *(half *)(uintptr_t)at[i] = (u16)v[i];
    }
    settle(w, in, mask, at);
}
EXECUTOR_GOES_ON(store_16, store_halves)

static __attribute__((noinline)) void store_elements(struct warp *w, const struct inst *in, u32 mask)
{
    u64 at[LANES];
    u32 bytes = in->bytes, whole = bytes * in->count;
    note_change(w->block);
    memory_addresses(w, in, mask, at);
    memory_resolve(w, in, mask, at, whole, whole, ACCESS_WRITE | access_of(in));
    if (in->flags & ORDER_RELEASE) { /* itself included */
        order_publish(w, mask);
        __atomic_thread_fence(__ATOMIC_RELEASE);
    }
    if (in->flags & POLLS) known_publish(w, mask, at, in->flags & ORDERS);
    if (in->flags & POLLS && is_common(in)) strong_store(w, mask, at, whole, in->flags & ORDERS);
    for (u32 left = mask; left; left &= left - 1) {
        u32 i = first_lane(left);
        _Alignas(16) u8 vector[MAX_ACCESS];
        for (u32 k = 0; k < in->count; k++)
            memcpy(vector + k * bytes, (const u8 *)lanes_of(w, in->more[k]) + i * (u32)(in->flags >> 8),
                   bytes);
        memory_copy((void *)(uintptr_t)at[i], vector, whole);
    }
    settle(w, in, mask, at);
    if (in->flags & POLLS) warp_published(w);
}
EXECUTOR_GOES_ON(store_any, store_elements)

/* ld.param in a kernel with a constant address: the same bytes for all lanes. */
static __attribute__((noinline)) void read_param(struct warp *w, const struct inst *in, u32 mask)
{
    const u8 *from = w->block->launch->params + in->imm;
    for (u32 k = 0; k < in->count; k++) {
        if (in->more[k] == NO_OPERAND) continue;
        u8 *d = lanes_of(w, in->more[k]);
        u64 v[2];
        read_element(in, from + k * in->bytes, v);
        for (u32 i = 0; i < LANES; i++)
            if (mask >> i & 1) memcpy(d + i * (in->flags >> 8), v, in->flags >> 8);
    }
}
EXECUTOR_GOES_ON(load_param, read_param)

/* .param variables of functions and calls: each thread has its own. */
static __attribute__((noinline)) void read_arg(struct warp *w, const struct inst *in, u32 mask)
{
    for (u32 i = 0; i < LANES; i++) {
        if (!(mask >> i & 1)) continue;
        const u8 *from = w->frame->args + i * w->frame->fn->arg_bytes + in->imm;
        for (u32 k = 0; k < in->count; k++) {
            if (in->more[k] == NO_OPERAND) continue;
            u64 v[2];
            read_element(in, from + k * in->bytes, v);
            memcpy((u8 *)lanes_of(w, in->more[k]) + i * (in->flags >> 8), v, in->flags >> 8);
        }
    }
}
EXECUTOR_GOES_ON(load_arg, read_arg)
static __attribute__((noinline)) void write_arg(struct warp *w, const struct inst *in, u32 mask)
{
    for (u32 i = 0; i < LANES; i++)
        for (u32 k = 0; k < in->count && mask >> i & 1; k++)
            memcpy(w->frame->args + i * w->frame->fn->arg_bytes + in->imm + k * in->bytes,
                   (const u8 *)lanes_of(w, in->more[k]) + i * (u32)(in->flags >> 8), in->bytes);
}
EXECUTOR_GOES_ON(store_arg, write_arg)

enum space shared_space(const char *m)
{
    if (streq(m, "shared") || streq(m, "shared::cta")) return SPACE_SHARED;
    return streq(m, "shared::cluster") ? SPACE_CLUSTER : SPACE_GENERIC;
}

/* Modifiers that say how the hardware should cache or order the access; each access here is already visible to all. */
static bool is_hint(const char *m)
{
    static const char *const hints[] = {"ca",   "cg",      "cs",  "lu",  "cv",      "wb", "wt",
                                        "weak", "cluster", "gpu", "sys", "unified", "uni"};
    for (u32 k = 0; k < sizeof hints / sizeof *hints; k++)
        if (streq(hints[k], m)) return true;
    return strncmp(m, "L1::", 4) == 0 || strncmp(m, "L2::", 4) == 0;
}

static bool read_modifiers(struct lowering *lo, const struct ptx_inst *p, struct inst *in, enum type *type)
{
    in->space = SPACE_GENERIC;
    in->count = 1;
    in->flags = 0;
    *type = T_NONE;
    for (u32 k = 0; k < p->mod_count; k++) {
        const char *m = p->mod[k];
        enum type t = type_named(m);
        if (t != T_NONE)
            *type = t;
        else if (streq(m, "global"))
            in->space = SPACE_GLOBAL;
        else if (shared_space(m) != SPACE_GENERIC)
            in->space = shared_space(m);
        else if (streq(m, "local"))
            in->space = SPACE_LOCAL;
        else if (streq(m, "const"))
            in->space = SPACE_CONST;
        else if (strncmp(m, "param", 5) == 0)
            in->space = SPACE_PARAM;
        else if (streq(m, "v2"))
            in->count = 2;
        else if (streq(m, "v4"))
            in->count = 4;
        else if (streq(m, "v8"))
            in->count = 8;
        else if (streq(m, "acquire"))
            in->flags |= ORDER_ACQUIRE | POLLS;
        else if (streq(m, "release"))
            in->flags |= ORDER_RELEASE | POLLS;
        else if (streq(m, "cta"))
            in->flags |= ORDER_CTA;
        else if (streq(m, "nc"))
            in->flags |= CONSTANT;
        else if (streq(m, "volatile") || streq(m, "relaxed") || streq(m, "mmio"))
            in->flags |= POLLS;
        else if (!is_hint(m))
            return refuse(lo, p, "the modifier .%s is not supported", m);
    }
    if (*type == T_NONE || *type == T_PRED) return refuse(lo, p, "it has no type");
    in->bytes = (u8)type_bytes(*type);
    if (in->bytes * in->count > MAX_ACCESS) return refuse(lo, p, "a lane accesses 32 bytes at the most");
    return true;
}

/* The registers of a load or store, all of one width; that width in bytes a lane goes to flags >> 8. */
static bool read_registers(struct lowering *lo, const struct ptx_inst *p, const struct ptx_operand *o,
                           struct inst *in, enum type type)
{
    const bool is_load = is_written(o);
    const struct ptx_operand *e = o->kind == OPERAND_VECTOR ? o->element : o;
    u32 n = o->kind == OPERAND_VECTOR ? o->count : 1, width = 0;
    if (n != in->count) return refuse(lo, p, "%u registers for %u elements", n, in->count);
    operand *more = lower_more(lo, n);
    for (u32 k = 0; k < n; k++) {
        u32 lane_bytes;
        if (e[k].kind == OPERAND_REG) {
            u32 reg = type_bytes(e[k].reg->type);
            if (reg < in->bytes || !reg)
                return refuse(lo, p, "register %s is narrower than the data", e[k].reg->name);
            if (is_load) in->aux = type_signed(type) && reg > in->bytes ? (u16)reg : 0;
            lane_bytes = reg <= 4 ? 4 : reg;
            more[k] = (is_load ? lower_dest : lower_source)(lo, &e[k], e[k].reg->type);
        } else if (e[k].kind == OPERAND_SINK && is_load) {
            more[k] = NO_OPERAND;
            continue;
        } else if (!is_load) {
            lane_bytes = in->bytes <= 4 ? 4 : in->bytes;
            more[k] = lower_source(lo, &e[k], type);
        } else {
            return refuse(lo, p, "an operand of this form");
        }
        if (width && width != lane_bytes) return refuse(lo, p, "registers of different widths");
        width = lane_bytes;
    }
    in->more = more;
    in->flags |= (u16)(width << 8);
    return true;
}

bool lower_ld(struct lowering *lo, const struct ptx_inst *p, struct inst *in)
{
    enum type type;
    if (!read_modifiers(lo, p, in, &type) || !read_registers(lo, p, &p->op[0], in, type)) return false;
    const struct ptx_operand *address = &p->op[1];
    if (in->space == SPACE_PARAM && address->symbol) {
        u64 at = address->symbol->address + (u64)address->offset;
        u64 room = address->symbol->kind == SYM_PARAM ? lo->f->fn->param_bytes : lo->f->fn->arg_bytes;
        if (at + (u64)in->bytes * in->count > room)
            return refuse(lo, p, "it reads past the end of the parameters");
        in->imm = (s64)at;
        in->exec = address->symbol->kind == SYM_PARAM ? load_param : load_arg;
        return true;
    }
    if (!lower_address(lo, address, in)) return false;
    bool plain = in->flags >> 8 == in->bytes && !(in->flags & POLLS);
    if (in->flags & POLLS) in->plain = 0; /* the warp may lose its turn */
    if (p->only_data) in->flags |= DATA;
    in->exec = load_any;
    if (plain && in->count == 1 && in->more[0] != NO_OPERAND) {
        in->d = in->more[0];
        if (in->bytes == 4)
            in->exec = in->space == SPACE_GLOBAL          ? load_global_32
                       : in->space != SPACE_SHARED        ? load_32
                       : is_constant(in->a) && in->addr64 ? load_shared_known_32
                                                          : load_shared_32;
        if (in->bytes == 8) in->exec = load_64;
    } else if (in->bytes == 2 && in->flags >> 8 == 4 && in->count == 1 && in->more[0] != NO_OPERAND &&
               !(in->flags & POLLS)) {
        in->d = in->more[0];
        in->exec = load_16;
    } else if (plain && in->bytes == 4) {
        in->exec = load_vector_32;
    }
    return true;
}

bool lower_st(struct lowering *lo, const struct ptx_inst *p, struct inst *in)
{
    enum type type;
    if (!read_modifiers(lo, p, in, &type) || !read_registers(lo, p, &p->op[1], in, type)) return false;
    if (in->space == SPACE_CONST) return refuse(lo, p, "constant memory cannot be written");
    const struct ptx_operand *address = &p->op[0];
    if (in->space == SPACE_PARAM) {
        if (!address->symbol || address->symbol->kind != SYM_ARG)
            return refuse(lo, p, "kernel parameters cannot be written");
        in->imm = (s64)address->symbol->address + address->offset;
        if ((u64)in->imm + (u64)in->bytes * in->count > lo->f->fn->arg_bytes)
            return refuse(lo, p, "it writes past the end of the parameters");
        in->exec = store_arg;
        return true;
    }
    if (!lower_address(lo, address, in)) return false;
    bool plain = in->flags >> 8 == in->bytes && in->bytes == 4 && !(in->flags & POLLS);
    if (in->flags & POLLS) in->plain = 0; /* the warp may lose its turn */
    in->exec = plain && in->count == 1 ? store_32 : plain ? store_vector_32 : store_any;
    if (in->bytes == 2 && in->flags >> 8 == 4 && in->count == 1 && !(in->flags & POLLS)) in->exec = store_16;
    if (in->count == 1) in->d = in->more[0];
    return true;
}

/* ---- Generic addresses --------------------------------------------------------------------------------------------------- */

static void exec_cvta(struct warp *w, const struct inst *in, u32 mask)
{
    const u64 *a = lanes_of(w, in->a);
    u64 *d = lanes_of(w, in->d), window = (u64)in->imm;
    FOR_LANES(mask, { d[i] = a[i] + window; });
    GO_ON(w, in, mask);
}

bool lower_cvta(struct lowering *lo, const struct ptx_inst *p, struct inst *in)
{
    bool to = p->mod_count > 0 && streq(p->mod[0], "to");
    const char *space = p->mod_count > (u32)to ? p->mod[to] : "";
    u64 window = strncmp(space, "shared", 6) == 0 ? SHARED_WINDOW : streq(space, "local") ? LOCAL_WINDOW : 0;
    if (!window && !streq(space, "global") && !streq(space, "const") && strncmp(space, "param", 5) != 0)
        return refuse(lo, p, "the state space .%s", space);
    if (mod_type(p, 0) != T_U64) return refuse(lo, p, "only .u64 addresses");
    in->exec = exec_cvta;
    in->d = lower_dest(lo, &p->op[0], T_U64);
    in->a = lower_source(lo, &p->op[1], T_U64);
    in->imm = (s64)(to ? -window : window);
    return true;
}

static void exec_isspacep(struct warp *w, const struct inst *in, u32 mask)
{
    const u64 *a = lanes_of(w, in->a);
    u32 yes = 0;
    for (u32 i = 0; i < LANES; i++) {
        bool shared = a[i] - SHARED_WINDOW < WINDOW_BYTES,
             own = shared && (u32)a[i] >> 24 == w->block->cluster_rank;
        enum space s = shared                               ? SPACE_CLUSTER
                       : a[i] - LOCAL_WINDOW < WINDOW_BYTES ? SPACE_LOCAL
                                                            : SPACE_GLOBAL;
        u64 params = (u64)(uintptr_t)w->block->launch->params;
        struct allocation found;
        if (s == SPACE_GLOBAL && a[i] - params < w->block->launch->kernel->param_bytes)
            s = SPACE_PARAM;
        else if (s == SPACE_GLOBAL && heap_find(a[i], &found) && found.kind == ALLOCATION_CONST)
            s = SPACE_CONST;
        yes |= (u32)(s == in->space || (own && in->space == SPACE_SHARED)) << i;
    }
    set_predicate(w, in->d, mask, yes);
    GO_ON(w, in, mask);
}

bool lower_isspacep(struct lowering *lo, const struct ptx_inst *p, struct inst *in)
{
    static const struct {
        const char *name;
        enum space space;
    } spaces[] = {{"global", SPACE_GLOBAL},      {"shared", SPACE_SHARED},
                  {"shared::cta", SPACE_SHARED}, {"shared::cluster", SPACE_CLUSTER},
                  {"local", SPACE_LOCAL},        {"const", SPACE_CONST},
                  {"param", SPACE_PARAM}};
    for (u32 k = 0; k < sizeof spaces / sizeof *spaces; k++)
        if (p->mod_count && streq(p->mod[0], spaces[k].name)) {
            in->space = spaces[k].space;
            in->exec = exec_isspacep;
            in->d = lower_dest(lo, &p->op[0], T_PRED);
            in->a = lower_source(lo, &p->op[1], T_U64);
            return true;
        }
    return refuse(lo, p, "this state space");
}

/* ---- Addresses in a cluster --------------------------------------------------------------------------------------------- */

/* A shared address holds the rank of its block in bits 24 and up (as on an H200): mapa replaces it, getctarank reads it. */
static void exec_mapa(struct warp *w, const struct inst *in, u32 mask)
{
    const u32 *rank = lanes_of(w, in->b), size = w->block->cluster->size;
    const u64 *wide = lanes_of(w, in->a);
    const u32 *narrow = lanes_of(w, in->a);
    for (u32 i = 0; i < LANES; i++) {
        if (!(mask >> i & 1)) continue;
        u64 from = in->bytes == 8 ? wide[i] : narrow[i];
        if (rank[i] >= size)
            fault(w, in, 1u << i, ERR_ILLEGAL_ADDRESS, "block %u of a cluster of %u", rank[i], size);
        if (in->space == SPACE_GENERIC && from - SHARED_WINDOW >= WINDOW_BYTES)
            fault(w, in, 1u << i, ERR_INVALID_ADDRESS_SPACE,
                  "the generic address 0x%llx is not one of shared memory", (unsigned long long)from);
        u64 to = (from & ~0xff000000ull) | (u64)rank[i] << 24;
        if (in->bytes == 8)
            ((u64 *)lanes_of(w, in->d))[i] = to;
        else
            ((u32 *)lanes_of(w, in->d))[i] = (u32)to;
    }
    GO_ON(w, in, mask);
}

static void exec_getctarank(struct warp *w, const struct inst *in, u32 mask)
{
    const u64 *wide = lanes_of(w, in->a);
    const u32 *narrow = lanes_of(w, in->a);
    u32 *d = lanes_of(w, in->d);
    for (u32 i = 0; i < LANES; i++)
        if (mask >> i & 1) d[i] = (u32)(in->bytes == 8 ? wide[i] : narrow[i]) >> 24;
    GO_ON(w, in, mask);
}

/* mapa{.shared::cluster}.u32/.u64 d, a, rank;  getctarank likewise d, a */
bool lower_cluster_address(struct lowering *lo, const struct ptx_inst *p, struct inst *in)
{
    bool maps = streq(p->opcode, "mapa");
    enum type type = mod_type(p, 0);
    if (type != T_U32 && type != T_U64) return refuse(lo, p, "this form of %s", p->opcode);
    in->space = p->mod_count > 1 ? shared_space(p->mod[0]) : SPACE_GENERIC;
    in->bytes = (u8)type_bytes(type);
    in->exec = maps ? exec_mapa : exec_getctarank;
    in->d = lower_dest(lo, &p->op[0], maps ? type : T_U32);
    in->a = lower_source(lo, &p->op[1], type);
    if (maps) in->b = lower_source(lo, &p->op[2], T_U32);
    return true;
}

/* ---- Caching hints --------------------------------------------------------------------------------------------------------- */

static void exec_policy(struct warp *w, const struct inst *in, u32 mask)
{
    u64 *d = lanes_of(w, in->d);
    FOR_LANES(mask, { d[i] = 0; });
    GO_ON(w, in, mask);
}

bool lower_hint(struct lowering *lo, const struct ptx_inst *p, struct inst *in)
{
    (void)lo, (void)p;
    in->exec = lower_skip;
    return true;
}
bool lower_policy(struct lowering *lo, const struct ptx_inst *p, struct inst *in)
{
    in->exec = exec_policy;
    in->d = lower_dest(lo, &p->op[0], T_B64);
    return true;
}
