/* bulk.c: the copies of the tensor memory accelerator (PTX ISA, "cp.async.bulk", "cp.async.bulk.tensor").
 *
 * One thread issues the copy of a whole box; the source is read at once, and the data lands when the wait that PTX asks
 * for finds it:
 *
 *      into shared memory      when somebody waits for the mbarrier's phase and nothing else is missing there; poison, 0xff
 *                              bytes, until then; the source must still hold what was read, the destination the poison
 *      into global memory      at wait_group, or when the thread ends; from issue to wait_group{.read} the source in shared
 *                              memory must not be written
 *
 * A box of a tensor, dimension 0 fastest, lies dense in shared memory, but its rows are as wide as the swizzle, and the
 * 16-byte pieces are exchanged by bits of the absolute address (measured on an H200):
 *
 *      address ^= (address >> 7 & mask) << 4        mask 1, 3, 7 for 32, 64, 128 bytes */
#include "bulk.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "../runtime/heap.h"
#include "async.h"
#include "atomic.h"
#include "footprint.h"
#include "global.h"
#include "memory.h"
#include "numeric.h"
#include "proxy.h"
#include "warp.h"

/* ---- Tensor maps -------------------------------------------------------------------------------------------------------- */

/* By CUtensorMapDataType: element size, and the type that a reduction takes it for. */
static const struct {
    u8 bytes;
    enum type type;
    const char *name;
} elements[] = {{1, T_U8, "UINT8"},        {2, T_U16, "UINT16"},      {4, T_U32, "UINT32"},
                {4, T_S32, "INT32"},       {8, T_U64, "UINT64"},      {8, T_S64, "INT64"},
                {2, T_F16, "FLOAT16"},     {4, T_F32, "FLOAT32"},     {8, T_F64, "FLOAT64"},
                {2, T_BF16, "BFLOAT16"},   {4, T_F32, "FLOAT32_FTZ"}, {4, T_F32, "TFLOAT32"},
                {4, T_F32, "TFLOAT32_FTZ"}};

/* Whether there is a reduction of such elements: PTX's table for cp.reduce.async.bulk, where and, or, xor are for b32 and b64.
 * An H200 takes s32 for the one and u64, but not s64, for the other. */
static bool reduces(enum atomic_op op, enum type t)
{
    switch (op) {
    case OP_ADD: return t != T_U8 && t != T_U16 && t != T_S64;
    case OP_MIN:
    case OP_MAX: return t != T_U8 && t != T_U16 && t != T_F32 && t != T_F64;
    case OP_INC:
    case OP_DEC: return t == T_U32;
    default: return t == T_U32 || t == T_S32 || t == T_U64;
    }
}

static u64 box_rows(const struct tensor_map *m)
{
    u64 rows = 1;
    for (u32 d = 1; d < m->rank; d++)
        rows *= (m->box_less_1[d] + m->element_stride[d]) / m->element_stride[d]; /* ceil(box / stride) */
    return rows;
}

/* Where in global memory row `row` of the box begins (at coordinate 0 of dimension 0); false: it is out of bounds. */
static bool row_address(const struct bulk *c, u32 row, u64 *address)
{
    const struct tensor_map *m = &c->map;
    u64 a = m->address;
    for (u32 d = 1; d < m->rank; d++) {
        u32 step = m->element_stride[d], count = (m->box_less_1[d] + step) / step;
        s64 at = (s64)c->corner[d] + (s64)(row % count * step);
        row /= count;
        if (at < 0 || (u64)at >= m->dim[d]) return false;
        a += (u64)at * m->stride[d - 1];
    }
    *address = a;
    return true;
}

/* f32 to tf32's 10 mantissa bits, to nearest even. */
static u32 tf32_of(u32 bits)
{
    if ((bits & 0x7fffffff) > 0x7f800000) return 0x7fffe000;
    return (bits + 0xfff + (bits >> 13 & 1)) & ~0x1fffu;
}

/* w's copy reads these bytes of global memory. */
static void read_global(struct warp *w, const struct inst *in, u32 lane, u64 at, u64 bytes)
{
    if (footprint_wanted) footprint_mark(TOUCH_READ, at, bytes);
    global_bulk_load(w, in, lane, at, bytes);
}

/* The box as it is in global memory now; `reads`: w reads it now. Of its rows only the first counts as read: a kernel may have no use
 * for those behind, which are then none of its part of the tensor. */
static void gather(struct warp *w, const struct inst *in, const struct bulk *c, u8 *to, bool reads)
{
    const struct tensor_map *m = &c->map;
    if (c->from_shared) return;
    if (!m->rank) {
        if (reads) read_global(w, in, c->lane, c->global, c->bytes);
        memcpy(to, global_pointer(w, in, c->lane, c->global, c->bytes, false), c->bytes);
        return;
    }
    u32 size = elements[m->type].bytes;
    s64 first = c->corner[0] < 0 ? -(s64)c->corner[0] : 0,
        end = (s64)m->dim[0] - c->corner[0] < (s64)m->box_less_1[0] + 1 ? (s64)m->dim[0] - c->corner[0]
                                                                        : (s64)m->box_less_1[0] + 1;
    for (u32 row = 0; row < c->rows; row++, to += c->row_bytes) {
        u64 a;
        bool inside = row_address(c, row, &a) && first < end;
        if (!inside || first > 0 || end * size < c->row_bytes) {
            u32 fill = m->nan_fill ? 0x7ff77ff7 : 0;
            for (u32 k = 0; k < c->row_bytes; k += 4) memcpy(to + k, &fill, 4);
        }
        if (!inside) continue;
        u32 bytes = (u32)(end - first) * size;
        a += (u64)((c->corner[0] + first) * (s64)size);
        if (reads) read_global(w, in, c->lane, a, bytes);
        reads = false;
        memcpy(to + first * size, global_pointer(w, in, c->lane, a, bytes, false), bytes);
        for (u32 k = 0; k < bytes && m->rounds; k += 4) {
            u32 v;
            memcpy(&v, to + first * size + k, 4);
            v = tf32_of(v);
            memcpy(to + first * size + k, &v, 4);
        }
    }
}

/* ---- Shared memory ------------------------------------------------------------------------------------------------------- */

/* The offset in shared memory of byte `k`, a multiple of 16, of a row. */
static u32 piece(const struct bulk *c, u32 row, u32 k)
{
    u32 a = c->block->shared_base + c->at + row * c->pitch + k;
    return (a ^ (a >> 7 & ((1u << c->swizzle) - 1)) << 4) - c->block->shared_base;
}

/* Bytes from offset k of a row that lie together. */
static u32 run_of(const struct bulk *c, u32 k)
{
    return c->swizzle ? 16 : c->row_bytes - k;
}

#define FOR_PIECES(c, row, k)                 \
    for (u32 row = 0; row < (c)->rows; row++) \
        for (u32 k = 0; k < (c)->row_bytes; k += run_of((c), k))

static u32 extent(const struct bulk *c)
{
    u32 last = (c->rows - 1) * c->pitch + c->row_bytes;
    return c->swizzle ? (last + c->pitch - 1) / c->pitch * c->pitch : last;
}

/* What to say when something happens during a copy. */
#define DURING "%s while the copy was in flight: '%s' at line %u, shared offset %u"
#define COPY_PLACE(c) \
    (c)->fn->text[(c)->in - (c)->fn->code], (c)->fn->lines[(c)->in - (c)->fn->code].line, (c)->at

/* `at`: what was written in shared memory, or UNKNOWN_PLACE. */
enum { UNKNOWN_PLACE = 0xffffffff };
static _Noreturn void copy_fault(struct warp *w, const struct inst *in, const struct bulk *c,
                                 const char *what, u32 at)
{
    const struct function *fn = c->fn;
    const struct inst *with = at == UNKNOWN_PLACE ? c->in : race_writer(c->block, at, &fn);
    fault_against(w, in, w->active ? w->active : 1, ERR_LAUNCH_FAILURE, fn, with, DURING, what,
                  COPY_PLACE(c));
}

static void poison(const struct bulk *c)
{
    FOR_PIECES(c, row, k)
    {
        u32 at = piece(c, row, k), n = run_of(c, k);
        memset(c->block->shared + at, 0xff, n);
        proxy_wrote(c->block, at, n, WRITER_IN_FLIGHT, 0);
    }
}

/* A part of c's data in its place, or combined with what is there. */
static void put(const struct bulk *c, u8 *to, const u8 *from, u32 bytes)
{
    enum type t = (enum type)c->type;
    bool keeps = t == T_F32 && c->map.type != MAP_FLOAT32_FTZ && c->map.type != MAP_TFLOAT32_FTZ;
    if (c->op < 0) {
        memcpy(to, from, bytes);
        record_wrote(to, NULL, bytes);
        return;
    }
    for (u32 k = 0; k < bytes; k += type_bytes(t)) {
        u64 v = 0;
        memcpy(&v, from + k, type_bytes(t));
        atomic_update(to + k, (enum atomic_op)c->op, t, keeps, v);
    }
}

bool bulk_covers(const struct bulk *c, u32 at)
{
    bool covers = false;
    FOR_PIECES(c, row, k)
    covers |= at - piece(c, row, k) < run_of(c, k);
    return covers;
}

void bulk_land(struct warp *w, const struct inst *in, struct bulk *c)
{
    static const u8 ff[256 * 8] = {[0 ... 256 * 8 - 1] = 0xff};
    u8 *now = malloc(c->bytes + 1), *shared = c->block->shared;
    if (!now) abort();
    gather(w, in, c, now, false);
    bool same = c->from_shared || memcmp(now, c->data, c->bytes) == 0;
    free(now);
    if (!same) copy_fault(w, in, c, "the source was changed", UNKNOWN_PLACE);
    FOR_PIECES(c, row, k)
    {
        u32 at = piece(c, row, k), n = run_of(c, k);
        for (u32 done = 0; done < n && c->op < 0; done += sizeof ff) {
            u32 part = n - done < sizeof ff ? n - done : (u32)sizeof ff;
            if (memcmp(shared + at + done, ff, part) == 0) continue;
            while (shared[at + done] == 0xff) done++;
            copy_fault(w, in, c, "the destination was written", at + done);
        }
        put(c, shared + at, c->data + row * c->row_bytes + k, n);
        proxy_wrote(c->block, at, n, WRITER_ASYNC, 0);
    }
    c->block->in_flight--;
    free(c);
}

void bulk_free(struct bulk *list)
{
    for (struct bulk *next; list; list = next) {
        next = list->next;
        free(list);
    }
}

/* ---- Counting --------------------------------------------------------------------------------------------------------------- */

/* The sectors of global memory that the copy touches, row by row; of a reduction too, though it reads and writes them. Its
 * way through shared memory is no access of a warp's: its bytes are counted, for each block that gets them. */
static void count_copy(struct warp *w, const struct inst *in, const struct bulk *c, u32 targets)
{
    struct counter *n = w->counters ? &w->counters[warp_index_of(w, in)] : NULL;
    u64 bytes = 0, size = c->map.rank ? elements[c->map.type].bytes : 1, width = c->map.dim[0] * size;
    s64 first = c->map.rank && c->corner[0] < 0 ? -(s64)c->corner[0] * (s64)size : 0, last = c->row_bytes;
    if (!n) return;
    n->copied += (u64)c->bytes * targets;
    if (c->from_shared) return;
    if (c->map.rank && (s64)width - c->corner[0] * (s64)size < last)
        last = (s64)width - c->corner[0] * (s64)size;
    for (u32 row = 0; row < c->rows && first < last; row++) {
        u64 a = c->global;
        if (c->map.rank && !row_address(c, row, &a)) continue;
        a += c->map.rank ? (u64)((s64)c->corner[0] * (s64)size + first) : 0;
        n->sectors += (a + (u64)(last - first) - 1) / 32 - a / 32 + 1;
        bytes += (u64)(last - first);
    }
    n->sectors_ideal += (bytes + 31) / 32;
}

/* ---- Issue ------------------------------------------------------------------------------------------------------------------ */

enum direction { LOAD, FROM_SHARED, STORE, PREFETCH };

struct form {
    enum direction direction;
    bool tensor;
    struct inst shared, source,
        mbarrier; /* address operands: shared memory, global (or the map, or shared), mbarrier */
    operand size, coordinate[MAX_RANK], multicast;
    operand value[4]; /* st.async, red.async: `count` registers of `type` */
    u32 count;
    u32 rank;
    s32 op;
    enum type type;
};

static u64 address_of(struct warp *w, const struct inst *address, u32 lane)
{
    u64 a[LANES];
    memory_addresses(w, address, 1u << lane, a);
    if (address->space != SPACE_GENERIC || a[lane] < SHARED_WINDOW) return a[lane];
    return a[lane] - SHARED_WINDOW < WINDOW_BYTES ? a[lane] - SHARED_WINDOW : a[lane];
}

/* An H200 faults on a map that begins where no memory is, wherever the box lies (measured: common/device/tensor_map.h). */
static void check_base(struct warp *w, const struct inst *in, u32 lane, const struct tensor_map *m)
{
    struct allocation found, near;
    char where[80] = "";
    if (heap_find(m->address, &found)) return;
    bool any = heap_nearest(m->address, &near);
    if (any && near.freed && m->address - near.address < near.bytes)
        fault(w, in, 1u << lane, ERR_ILLEGAL_ADDRESS,
              "use after free: the tensor map begins at 0x%llx, in allocation %u, which has been freed since",
              (unsigned long long)m->address, near.number);
    if (any && m->address < near.address)
        snprintf(where, sizeof where, ", %llu bytes before allocation %u",
                 (unsigned long long)(near.address - m->address), near.number);
    fault(
        w, in, 1u << lane, ERR_ILLEGAL_ADDRESS,
        "the tensor map begins where no memory is, at 0x%llx%s: its copies fault on a GPU, even those whose box lies in the "
        "tensor. Let it begin in the tensor, and choose the coordinates",
        (unsigned long long)m->address, where);
}

static void read_map(struct warp *w, const struct inst *in, u32 lane, const struct form *f, struct bulk *c)
{
    u64 a = address_of(w, &f->source, lane);
    if (a < WINDOW_BYTES || a - LOCAL_WINDOW < WINDOW_BYTES)
        fault(
            w, in, 1u << lane, ERR_INVALID_ADDRESS_SPACE,
            "the tensor map lies in %s memory, at 0x%llx: it must be in parameter, constant or global memory (a "
            "parameter of the kernel must be declared `const __grid_constant__ CUtensorMap`, or the compiler may make a "
            "copy of it)",
            a < WINDOW_BYTES ? "shared" : "local", (unsigned long long)a);
    if (a & 63)
        fault(w, in, 1u << lane, ERR_MISALIGNED, "misaligned tensor map at 0x%llx: must be a multiple of 64",
              (unsigned long long)a);
    memcpy(&c->map, host_pointer(w, in, lane, a, TENSOR_MAP_BYTES, ACCESS_READ), sizeof c->map);
    const struct tensor_map *m = &c->map;
    if (m->magic != TENSOR_MAP_MAGIC)
        fault(
            w, in, 1u << lane, ERR_ILLEGAL_INSTRUCTION,
            "no tensor map lies at 0x%llx: cuTensorMapEncodeTiled makes one, to be passed as a const __grid_constant__ parameter",
            (unsigned long long)a);
    tensormap_check(w, in, lane, m);
    check_base(w, in, lane, m);
    if (f->direction == LOAD && m->nan_fill && m->type < MAP_FLOAT16) /* an edited map may say so */
        fault(w, in, 1u << lane, ERR_ILLEGAL_INSTRUCTION,
              "the tensor map fills with NaN what is out of bounds, but its elements are %s",
              elements[m->type].name);
    if (f->direction == LOAD && m->rounds && m->type != MAP_FLOAT32 && m->type < MAP_FLOAT32_FTZ)
        fault(w, in, 1u << lane, ERR_ILLEGAL_INSTRUCTION,
              "the elements of the tensor map were tf32, which it still rounds them to: it cannot load %s",
              elements[m->type].name);
    if (m->rank != f->rank)
        fault(w, in, 1u << lane, ERR_ILLEGAL_INSTRUCTION, "%u coordinates for a tensor map of rank %u",
              f->rank, m->rank);
    for (u32 d = 0; d < m->rank; d++) c->corner[d] = ((s32 *)lanes_of(w, f->coordinate[d]))[lane];
    u32 size = elements[m->type].bytes;
    if ((s64)c->corner[0] * size % 16)
        fault(w, in, 1u << lane, ERR_ILLEGAL_INSTRUCTION,
              "coordinate 0 is %d elements of %u bytes: the box must begin on a multiple of 16 bytes",
              c->corner[0], size);
    for (u32 d = 0; d < m->rank && f->direction == STORE; d++)
        if (c->corner[d] < 0)
            fault(w, in, 1u << lane, ERR_ILLEGAL_INSTRUCTION,
                  "coordinate %u of a store is %d: it must not be negative", d, c->corner[d]);
    u64 rows = box_rows(m);
    c->row_bytes = (m->box_less_1[0] + 1) * size;
    if (rows * c->row_bytes > w->block->shared_bytes && f->direction != PREFETCH)
        fault(w, in, 1u << lane, ERR_ILLEGAL_ADDRESS,
              "the tensor map's box has %llu bytes: the block has %u of shared memory",
              (unsigned long long)rows * c->row_bytes, w->block->shared_bytes);
    c->rows = (u32)rows;
    if (c->row_bytes % 16 || (m->swizzle && c->row_bytes > 16u << m->swizzle)) /* an edited map may say so */
        fault(
            w, in, 1u << lane, ERR_ILLEGAL_INSTRUCTION,
            "the tensor map's box is %u bytes wide: it must be a multiple of 16, and no wider than the swizzle",
            c->row_bytes);
    c->swizzle = m->swizzle;
    c->pitch = m->swizzle ? 16u << m->swizzle : c->row_bytes;
    c->type = (u8)elements[m->type].type;
    if (f->op >= 0 && !reduces((enum atomic_op)f->op, elements[m->type].type))
        fault(w, in, 1u << lane, ERR_ILLEGAL_INSTRUCTION,
              "there is no such reduction of the tensor map's elements, which are %s",
              elements[m->type].name);
}

/* Everything but the data. Room for `bytes` bytes of it is made by the caller, who knows the box only now. */
static struct bulk describe(struct warp *w, const struct inst *in, u32 lane, const struct form *f)
{
    struct bulk c = {.fn = w->frame->fn,
                     .in = in,
                     .lane = lane,
                     .rows = 1,
                     .op = f->op,
                     .type = (u8)f->type,
                     .async_proxy = true};
    if (f->tensor) {
        read_map(w, in, lane, f, &c);
    } else {
        c.global = address_of(w, &f->source, lane);
        u32 bytes = ((u32 *)lanes_of(w, f->size))[lane];
        c.row_bytes = c.pitch = bytes & ~15u; /* as an H200 does; PTX leaves it undefined */
        c.cut = bytes & 15;
        if (c.global & 15)
            fault(w, in, 1u << lane, ERR_MISALIGNED,
                  "misaligned bulk copy at 0x%llx: must be a multiple of 16", (unsigned long long)c.global);
        if (f->direction == LOAD || f->direction == STORE)
            memory_check_base(w, in, f->source.base, lane, c.global, c.row_bytes, f->direction == STORE);
    }
    c.bytes = c.rows * c.row_bytes;
    return c;
}

/* Shared memory of the copy, in `space`. */
static void place(struct warp *w, const struct inst *in, u32 lane, const struct form *f, struct bulk *c)
{
    u64 a = address_of(w, &f->shared, lane);
    u32 align = f->count ? c->bytes : f->tensor ? 128 : 16;
    if (a >= WINDOW_BYTES)
        fault(w, in, 1u << lane, ERR_INVALID_ADDRESS_SPACE,
              "the generic address 0x%llx is not one of shared memory", (unsigned long long)a);
    if (a & (align - 1))
        fault(w, in, 1u << lane, ERR_MISALIGNED, "misaligned shared address 0x%llx: must be a multiple of %u",
              (unsigned long long)a, align);
    c->at = shared_offset(w, in, &f->shared, lane, a, extent(c),
                          f->direction == STORE ? ACCESS_READ : ACCESS_WRITE | ACCESS_BULK, &c->block);
    c->block->visitors &= ~(1u << w->block->cluster_rank);
}

static struct bulk *keep_copy(const struct bulk *c)
{
    struct bulk *k = malloc(sizeof *k + c->bytes);
    if (!k) abort();
    *k = *c;
    return k;
}

/* Its destination is written from now on. Rows as wide as the swizzle are exchanged only within themselves. Those of st.async
 * are less than the 16 bytes that order.h tells apart. */
static void announce(struct warp *w, const struct inst *in, const struct bulk *c, const struct mbarrier *m)
{
    if (c->row_bytes == c->pitch) {
        order_copy(w, in, c->lane, c->block, m, c->at, c->bytes);
        if (c->async_proxy) proxy_overwrites(w, in, c->lane, c->block, c->at, c->bytes);
        return;
    }
    FOR_PIECES(c, row, k)
    {
        order_copy(w, in, c->lane, c->block, m, piece(c, row, k), run_of(c, k));
        proxy_overwrites(w, in, c->lane, c->block, piece(c, row, k), run_of(c, k));
    }
}

/* Into `block`, completing at the mbarrier at offset `barrier` of it. */
static void send(struct warp *w, const struct inst *in, const struct bulk *c, struct block *block,
                 u32 barrier)
{
    struct mbarrier *m = async_mbarrier_of_copy(w, in, c->lane, block, barrier);
    struct bulk *k = keep_copy(c);
    memcpy(k->data, c->data, c->bytes);
    k->block = block;
    if (k->op < 0 && k->row_bytes % 16 == 0) announce(w, in, k, m);
    order_mbarrier_arrive(w, 1u << c->lane, m,
                          false); /* whoever waits for the copy knows what it waited for */
    if (k->op < 0) poison(k);     /* what it is combined with stays until then */
    block->in_flight++;
    async_attach(w, in, m, k);
}

/* The offset of the mbarrier at which the copy completes, in the block that it goes to (or in this one, for all of them). */
static u32 barrier_of(struct warp *w, const struct inst *in, u32 lane, const struct form *f,
                      const struct bulk *c)
{
    u64 a = address_of(w, &f->mbarrier, lane);
    if (a >= WINDOW_BYTES || a & 7)
        fault(w, in, 1u << lane, a & 7 ? ERR_MISALIGNED : ERR_INVALID_ADDRESS_SPACE,
              "no mbarrier can be at 0x%llx", (unsigned long long)a);
    struct block *at;
    u32 offset = shared_offset(w, in, &f->mbarrier, lane, a, 8, ACCESS_WRITE, &at);
    if (at != c->block && f->multicast == NO_OPERAND)
        fault(w, in, 1u << lane, ERR_LAUNCH_FAILURE,
              "the data goes to block %u of the cluster, but the mbarrier lies in block %u",
              c->block->cluster_rank, at->cluster_rank);
    return offset;
}

static void load(struct warp *w, const struct inst *in, u32 lane, const struct form *f)
{
    struct bulk about = describe(w, in, lane, f), *c;
    struct block *own = w->block;
    if (!about.bytes) return;
    place(w, in, lane, f, &about);
    u32 barrier = barrier_of(w, in, lane, f, &about);
    c = keep_copy(&about);
    c->from_shared = f->direction == FROM_SHARED;
    if (f->direction == FROM_SHARED) {
        u64 from = about.global;
        struct block *source;
        u32 offset = shared_offset(w, in, &f->source, lane, from, c->bytes, ACCESS_READ, &source);
        proxy_reads(w, in, 1u << lane, source, offset, c->bytes);
        memcpy(c->data, source->shared + offset, c->bytes);
    } else {
        gather(w, in, c, c->data, true);
    }
    if (f->multicast == NO_OPERAND) {
        count_copy(w, in, c, 1);
        send(w, in, c, about.block, barrier);
    } else { /* the same offsets in every block whose bit is on */
        u32 targets = ((u32 *)lanes_of(w, f->multicast))[lane] & 0xffff;
        if (!targets || targets >> own->cluster->size)
            fault(w, in, 1u << lane, ERR_ILLEGAL_INSTRUCTION, "multicast to blocks 0x%x of a cluster of %u",
                  targets, own->cluster->size);
        count_copy(w, in, c, (u32)__builtin_popcount(targets));
        for (u32 left = targets; left; left &= left - 1) {
            u64 rank = first_lane(left);
            send(w, in, c, shared_owner(w, in, f->shared.space, lane, rank << 24), barrier);
        }
    }
    free(c);
}

/* Where a row of a store goes; false where nothing of it does. */
static bool goes_to(const struct bulk *c, u32 row, u64 *at, u32 *bytes)
{
    const struct tensor_map *m = &c->map;
    *at = c->global;
    *bytes = c->bytes;
    if (!m->rank) return true;
    /* Dimension 0 ends only at the next multiple of 16 bytes: measured on an H200. */
    u64 size = elements[m->type].bytes, begin = (u64)c->corner[0] * size,
        end = (m->dim[0] * size + 15) / 16 * 16, a;
    if (end <= begin || !row_address(c, row, &a)) return false;
    *at = a + begin;
    *bytes = end - begin < c->row_bytes ? (u32)(end - begin) : c->row_bytes;
    return true;
}

enum { MOST_ROW_PAIRS = 1 << 16 }; /* of two stores: where there are more, they are not looked at */

/* Bulk copies have no order among themselves: of two stores of a warp to one place, the first must have been waited for, unless both bring
 * the same, as boxes do that overlap where a tile is no whole number of them, or both add. Those of other warps: exec/global.c. */
static void check_own_stores(struct warp *w, const struct inst *in, const struct bulk *c)
{
    u64 at, to;
    u32 n, m;
    for (const struct bulk *o = warp_async(w)->stores; o; o = o->next) {
        if ((o->op >= 0 && c->op >= 0) || (u64)o->rows * c->rows > MOST_ROW_PAIRS) continue;
        for (u32 row = 0; row < c->rows; row++) {
            if (!goes_to(c, row, &to, &n)) continue;
            for (u32 other = 0; other < o->rows; other++) {
                if (!goes_to(o, other, &at, &m)) continue;
                u64 first = at > to ? at : to, end = at + m < to + n ? at + m : to + n;
                if (first >= end) continue;
                const u8 *is = o->data + other * o->row_bytes + (first - at),
                         *will_be = c->data + row * c->row_bytes + (first - to);
                if (o->op < 0 && c->op < 0 && memcmp(is, will_be, end - first) == 0) continue;
                breach_against(
                    w, in, 1u << c->lane, ERR_LAUNCH_FAILURE, o->fn, o->in,
                    "race on global memory at 0x%llx: this bulk store is not ordered after this warp's bulk store at line %u: the thread "
                    "that issued that must wait for it, by cp.async.bulk.wait_group without .read (with .read only its source is "
                    "free again): bulk copies have no order among themselves",
                    (unsigned long long)first, o->fn->lines[o->in - o->fn->code].line);
                return;
            }
        }
    }
}

static void store(struct warp *w, const struct inst *in, u32 lane, const struct form *f)
{
    struct bulk about = describe(w, in, lane, f), *c;
    struct async_state *a = warp_async(w);
    if (!about.bytes) return;
    place(w, in, lane, f, &about);
    c = keep_copy(&about);
    c->issued = ++w->block->clock;
    count_copy(w, in, c, 1);
    c->group = a->bulk_committed[lane];
    c->next = NULL;
    FOR_PIECES(c, row, k)
    {
        u32 at = piece(c, row, k), n = run_of(c, k);
        proxy_reads(w, in, 1u << lane, c->block, at, n);
        memcpy(c->data + row * c->row_bytes + k, c->block->shared + at, n);
    }
    check_own_stores(w, in, c);
    u64 to;
    u32 bytes;
    for (u32 row = 0; row < c->rows; row++) {
        if (!goes_to(c, row, &to, &bytes)) continue;
        global_pointer(w, in, lane, to, bytes, true);
        global_bulk_store(w, in, lane, to, bytes, c->op >= 0, &c->record);
    }
    struct bulk **last = &a->stores;
    while (*last) last = &(*last)->next;
    *last = c;
}

static void exec_bulk(struct warp *w, const struct inst *in, u32 mask)
{
    const struct form *f = in->data;
    note_change(w->block);
    for (u32 left = mask; left; left &= left - 1) {
        u32 lane = first_lane(left);
        if (f->direction == STORE)
            store(w, in, lane, f);
        else if (f->direction != PREFETCH)
            load(w, in, lane, f);
        else
            describe(w, in, lane, f);
    }
}

/* st.async, red.async: registers into shared memory of the cluster, or combined with what is there, completing at an mbarrier as a
 * copy does. */
static void exec_store_async(struct warp *w, const struct inst *in, u32 mask)
{
    const struct form *f = in->data;
    u32 size = type_bytes(f->type), bytes = size * f->count;
    note_change(w->block);
    for (u32 left = mask; left; left &= left - 1) {
        u32 lane = first_lane(left);
        struct bulk about = {.fn = w->frame->fn,
                             .in = in,
                             .lane = lane,
                             .rows = 1,
                             .row_bytes = bytes,
                             .pitch = bytes,
                             .bytes = bytes,
                             .from_shared = true, /* not from global memory */
                             .op = f->op,
                             .type = (u8)f->type};
        place(w, in, lane, f, &about);
        u32 barrier = barrier_of(w, in, lane, f, &about);
        struct bulk *c = keep_copy(&about);
        for (u32 k = 0; k < f->count; k++)
            memcpy(c->data + k * size, (u8 *)lanes_of(w, f->value[k]) + lane * size, size);
        send(w, in, c, c->block, barrier);
        free(c);
    }
}

/* ---- Groups ------------------------------------------------------------------------------------------------------------------ */

/* Until now the source of the store had to stay as it was. */
static void check_source(struct warp *w, const struct inst *in, struct bulk *c)
{
    if (!c->issued) return;
    FOR_PIECES(c, row, k)
    {
        u32 at = piece(c, row, k), n = run_of(c, k), begin[LANES];
        for (u32 p = at; p < at + n; p += 16)
            if (proxy_changed(c->block, p, 16, c->issued))
                copy_fault(w, in, c, "shared memory that a bulk store still reads was written", p);
        for (u32 p = at / 16; p < (at + n) / 16; p++)
            order_read(w, order_reader(c->block, w->id), p, 1u << c->lane);
        begin[c->lane] = at; /* for ordinary writes, it is this lane that has read it, until now */
        race_access(w, in, 1u << c->lane, c->block, begin, n, ACCESS_READ);
    }
    c->issued = 0;
}

static void write_out(struct warp *w, const struct inst *in, const struct bulk *c)
{
    u64 at;
    u32 bytes;
    for (u32 row = 0; row < c->rows; row++)
        if (goes_to(c, row, &at, &bytes))
            put(c, global_pointer(w, in, c->lane, at, bytes, true), c->data + row * c->row_bytes, bytes);
}

/* Ends the groups of these lanes but for the latest `pending`; with `reads_only`, only their sources are free again. */
static void finish(struct warp *w, const struct inst *in, u32 lanes, s32 pending, bool reads_only)
{
    struct async_state *a = warp_async(w);
    for (struct bulk **at = &a->stores, *c; (c = *at);) {
        if (!(lanes >> c->lane & 1) || (s32)(a->bulk_committed[c->lane] - c->group) <= pending) {
            at = &c->next;
            continue;
        }
        check_source(w, in, c);
        if (reads_only) {
            at = &c->next;
            continue;
        }
        write_out(w, in, c);
        global_bulk_waited(w, c->record);
        *at = c->next;
        free(c);
    }
}

static void exec_commit(struct warp *w, const struct inst *in, u32 mask)
{
    (void)in;
    struct async_state *a = warp_async(w);
    FOR_LANES(mask, { a->bulk_committed[i]++; });
}

/* imm: groups that may stay; flags: .read */
static void exec_wait_group(struct warp *w, const struct inst *in, u32 mask)
{
    finish(w, in, mask, (s32)in->imm, in->flags);
}

void bulk_leave(struct warp *w, u32 lanes)
{
    const struct inst *in = w->pc - 1;
    struct block *b = w->block;
    for (struct bulk *c = w->async ? w->async->stores : NULL; c; c = c->next) {
        if (!(lanes >> c->lane & 1)) continue;
        c->record = 0; /* over only when the launch is */
        if (c->issued)
            breach_against(w, in, lanes, ERR_LAUNCH_FAILURE, c->fn, c->in, DURING,
                           "the thread leaves, without cp.async.bulk.wait_group.read,", COPY_PLACE(c));
    }
    if (w->async && w->async->stores) finish(w, in, lanes, -1, false);
    if (b->live_threads) return;
    const struct bulk *open = async_open_load(b, ANYWHERE_IN_BLOCK);
    if (open)
        copy_fault(w, in, open, "the block leaves, and nobody has waited for the mbarrier,", UNKNOWN_PLACE);
}

/* ---- Lowering ---------------------------------------------------------------------------------------------------------------- */

static bool read_address(struct lowering *lo, const struct ptx_operand *o, enum space space, struct inst *out)
{
    *out = (struct inst){.space = (u8)space};
    return lower_address(lo, o, out);
}

bool lower_bulk_commit(struct lowering *lo, const struct ptx_inst *p, struct inst *in)
{
    (void)lo, (void)p;
    in->exec = exec_commit;
    return true;
}

bool lower_bulk_wait(struct lowering *lo, const struct ptx_inst *p, struct inst *in)
{
    (void)lo;
    in->exec = exec_wait_group;
    in->flags = has_mod(p, "read");
    in->imm = (s64)p->op[0].imm;
    return true;
}

static bool lower_coordinates(struct lowering *lo, const struct ptx_inst *p, const struct ptx_operand *map,
                              struct form *f)
{
    if (map->kind != OPERAND_ADDRESS || map->count != 1 || map->element[0].kind != OPERAND_VECTOR ||
        map->element[0].count != f->rank)
        return refuse(lo, p, "a tensor map needs %u coordinates", f->rank);
    for (u32 d = 0; d < f->rank; d++) f->coordinate[d] = lower_source(lo, &map->element[0].element[d], T_S32);
    return true;
}

/* Reads the modifiers; `spaces` are the state spaces in order: destination, source. */
static bool read_bulk_modifiers(struct lowering *lo, const struct ptx_inst *p, struct form *f,
                                const char *spaces[2], bool *hint, bool *multicast)
{
    static const char *const plain[] = {"async",       "bulk",       "reduce",
                                        "tile",        "bulk_group", "prefetch",
                                        "L2",          "noftz",      "mbarrier::complete_tx::bytes",
                                        "cta_group::1"};
    u32 n = 0;
    for (u32 k = 0; k < p->mod_count; k++) {
        const char *m = p->mod[k];
        bool known = false;
        for (u32 q = 0; q < sizeof plain / sizeof *plain; q++) known |= streq(plain[q], m);
        if (streq(m, "global") || shared_space(m) != SPACE_GENERIC) {
            if (n < 2) spaces[n++] = m;
        } else if (m[0] >= '1' && m[0] <= '5' && streq(m + 1, "d"))
            f->rank = (u32)(m[0] - '0');
        else if (streq(m, "tensor"))
            f->tensor = true;
        else if (streq(m, "L2::cache_hint"))
            *hint = true;
        else if (streq(m, "multicast::cluster"))
            *multicast = true;
        else if (atomic_op_named(m) >= 0 && has_mod(p, "reduce"))
            f->op = atomic_op_named(m);
        else if (type_named(m) != T_NONE && f->op >= 0)
            f->type = type_named(m);
        else if (!known)
            return refuse(lo, p, "the modifier .%s is not supported", m);
    }
    return true;
}

/* cp.async.bulk..., cp.reduce.async.bulk... */
bool lower_bulk(struct lowering *lo, const struct ptx_inst *p, struct inst *in)
{
    struct form *f = keep(sizeof *f);
    const char *spaces[2] = {"", ""};
    bool hint = false, multicast = false;
    *f = (struct form){.size = NO_OPERAND, .multicast = NO_OPERAND, .op = -1};
    if (!read_bulk_modifiers(lo, p, f, spaces, &hint, &multicast)) return false;
    in->exec = exec_bulk;
    in->data = f;
    if (has_mod(p, "prefetch")) {
        f->direction = PREFETCH;
        if (p->op_count < 1 + (u32)!f->tensor) return refuse(lo, p, "operands missing");
        if (!f->tensor) f->size = lower_source(lo, &p->op[1], T_U32);
        return read_address(lo, &p->op[0], SPACE_GENERIC, &f->source) &&
               (!f->tensor || lower_coordinates(lo, p, &p->op[0], f));
    }
    enum space to = shared_space(spaces[0]), from = shared_space(spaces[1]);
    f->direction = to == SPACE_GENERIC ? STORE : from == SPACE_GENERIC ? LOAD : FROM_SHARED;
    if (f->op >= 0 && (f->direction == LOAD || (f->tensor && f->direction != STORE)))
        return refuse(lo, p, "a reduction from global memory");
    if (f->direction == STORE && from == SPACE_GENERIC) return refuse(lo, p, "this form of cp.async.bulk");
    if (f->op >= 0 && f->type == T_NONE && !f->tensor) return refuse(lo, p, "it has no type");
    const struct ptx_operand *shared = &p->op[f->direction == STORE], *other = &p->op[f->direction != STORE];
    u32 used = 2u + !f->tensor + (f->direction != STORE) + multicast + hint;
    if (p->op_count != used) return refuse(lo, p, "%u operands; it has %u", used, p->op_count);
    if (!read_address(lo, shared, f->direction == STORE ? SPACE_SHARED : to, &f->shared) ||
        !read_address(lo, other, f->direction == FROM_SHARED ? SPACE_SHARED : SPACE_GENERIC, &f->source))
        return false;
    if (f->tensor && !lower_coordinates(lo, p, other, f)) return false;
    u32 at = 2;
    if (!f->tensor) f->size = lower_source(lo, &p->op[at++], T_U32);
    if (f->direction != STORE && !read_address(lo, &p->op[at++], to, &f->mbarrier)) return false;
    if (multicast) f->multicast = lower_source(lo, &p->op[at++], T_U16);
    lo->f->fn->uses_async_proxy = true;
    return !lo->f->fn->refused;
}

static bool red_async_has(enum atomic_op op, enum type t)
{
    switch (op) {
    case OP_ADD: return t == T_U32 || t == T_S32 || t == T_U64;
    case OP_MIN:
    case OP_MAX: return t == T_U32 || t == T_S32;
    case OP_INC:
    case OP_DEC: return t == T_U32;
    default: return t == T_B32;
    }
}

/* st.async, red.async */
bool lower_store_async(struct lowering *lo, const struct ptx_inst *p, struct inst *in)
{
    const bool reduces = streq(p->opcode, "red");
    struct form *f = keep(sizeof *f);
    enum space space = SPACE_GENERIC;
    u32 count = 1;
    *f = (struct form){.size = NO_OPERAND, .multicast = NO_OPERAND, .op = -1, .type = T_NONE};
    for (u32 k = 0; k < p->mod_count; k++) {
        const char *m = p->mod[k];
        if (m[0] == 'v' && (m[1] == '2' || m[1] == '4') && !m[2])
            count = (u32)(m[1] - '0');
        else if (type_named(m) != T_NONE)
            f->type = type_named(m);
        else if (streq(m, "shared::cluster"))
            space = SPACE_CLUSTER;
        else if (reduces && atomic_op_named(m) >= 0)
            f->op = atomic_op_named(m);
        else if (!streq(m, "async") && !streq(m, "mbarrier::complete_tx::bytes") &&
                 !(reduces ? streq(m, "relaxed") || streq(m, "cluster") : streq(m, "weak")))
            return refuse(lo, p, "the modifier .%s is not supported", m);
    }
    if (reduces && (f->op < 0 || count > 1 || !red_async_has((enum atomic_op)f->op, f->type)))
        return refuse(lo, p, "this operation on this type");
    if (f->type == T_NONE || type_bytes(f->type) < 4)
        return refuse(lo, p, "its type must have 32 or 64 bits");
    if (count * type_bytes(f->type) > 16) return refuse(lo, p, "a vector of more than 128 bits");
    const struct ptx_operand *value = &p->op[1];
    if (count > 1 && (value->kind != OPERAND_VECTOR || value->count != count))
        return refuse(lo, p, "a vector of %u registers", count);
    for (u32 k = 0; k < count; k++)
        f->value[k] = lower_source(lo, count > 1 ? &value->element[k] : value, f->type);
    f->count = count;
    in->exec = exec_store_async;
    in->data = f;
    lo->f->fn->uses_async_proxy = true;
    return read_address(lo, &p->op[0], space, &f->shared) &&
           read_address(lo, &p->op[2], space, &f->mbarrier) && !lo->f->fn->refused;
}
