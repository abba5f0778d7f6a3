/* tensormap.c: tensor maps that a kernel edits (PTX ISA, "tensormap.replace", "tensormap.cp_fenceproxy", "membar / fence").
 *
 * A kernel may change fields of a map in shared or global memory, or make one from 128 bytes of zeros, and then copy with it.
 * Copies read maps through a proxy of their own, so that between the edit and the copy there must be
 *
 *      edit    fence.proxy.tensormap::generic.release, or cp_fenceproxy, which copies the map as well
 *      use     fence.proxy.tensormap::generic.acquire of the map's address
 *
 * A map remembers its last edit and how many releases the launch had seen then; an acquire after a further one makes it fit
 * for use. What an earlier launch edited is visible. */
#include <string.h>

#include "bulk.h"
#include "memory.h"
#include "race.h"
#include "proxy.h"

enum field {
    GLOBAL_ADDRESS,
    RANK,
    BOX_DIM,
    GLOBAL_DIM,
    GLOBAL_STRIDE,
    ELEMENT_STRIDE,
    ELEMTYPE,
    INTERLEAVE_LAYOUT,
    SWIZZLE_MODE,
    SWIZZLE_ATOMICITY,
    FILL_MODE,
    NUM_FIELDS
};
static const struct {
    const char *name;
    u32 most; /* that fits the field; 0: anything */
    bool per_dimension;
} fields[NUM_FIELDS] = {[GLOBAL_ADDRESS] = {"global_address", 0, false},
                        [RANK] = {"rank", MAX_RANK - 1, false}, /* less one */
                        [BOX_DIM] = {"box_dim", 256, true},
                        [GLOBAL_DIM] = {"global_dim", 0, true},
                        [GLOBAL_STRIDE] = {"global_stride", 0, true}, /* bytes */
                        [ELEMENT_STRIDE] = {"element_stride", 8, true},
                        [ELEMTYPE] = {"elemtype", 12, false},
                        [INTERLEAVE_LAYOUT] = {"interleave_layout", 0, false},
                        [SWIZZLE_MODE] = {"swizzle_mode", 3, false},
                        [SWIZZLE_ATOMICITY] = {"swizzle_atomicity", 0, false},
                        [FILL_MODE] = {"fill_mode", 1, false}};

/* CUtensorMapDataType by PTX's number of an element type. */
static const u8 data_types[] = {0, 1, 2, 3, 4, 5, 6, 7, 10, 8, 9, 11, 12};

static void set(struct tensor_map *m, enum field field, u32 d, u64 v)
{
    switch (field) {
    case GLOBAL_ADDRESS: m->address = v; break;
    case RANK: m->rank = (u8)(v + 1); break;
    case BOX_DIM: m->box_less_1[d] = (u8)(v - 1); break;
    case GLOBAL_DIM: m->dim[d] = v; break;
    case GLOBAL_STRIDE: m->stride[d] = v; break;
    case ELEMENT_STRIDE: m->element_stride[d] = (u8)v; break;
    case ELEMTYPE:
        m->type = data_types[v];
        m->rounds |= m->type >= MAP_TFLOAT32;
        break;
    case SWIZZLE_MODE: m->swizzle = (u8)v; break;
    case FILL_MODE: m->nan_fill = (u8)v; break;
    default: break; /* no interleaving, and Hopper knows one atomicity */
    }
}

/* The map at an address operand of `lane`, as host memory. */
static void *map_at(struct warp *w, const struct inst *in, const struct inst *address, u32 lane,
                    enum access how)
{
    u64 a[LANES];
    memory_addresses(w, address, 1u << lane, a);
    if (address->space == SPACE_SHARED) a[lane] += SHARED_WINDOW;
    if (a[lane] & 63)
        fault(w, in, 1u << lane, ERR_MISALIGNED, "misaligned tensor map at 0x%llx: must be a multiple of 64",
              (unsigned long long)a[lane]);
    return host_pointer(w, in, lane, a[lane], TENSOR_MAP_BYTES, how);
}

static void mark_edited(struct warp *w, struct tensor_map *m)
{
    m->edited_by = w->block->launch->grid_id;
    m->releases = __atomic_load_n(&w->block->launch->map_releases, __ATOMIC_ACQUIRE);
}

/* in: the address; b: the new value; imm: the dimension; aux: field */
static void exec_replace(struct warp *w, const struct inst *in, u32 mask)
{
    static const u8 zeros[TENSOR_MAP_BYTES];
    struct tensor_map m;
    for (u32 left = mask; left; left &= left - 1) {
        u32 lane = first_lane(left);
        void *at = map_at(w, in, in->data, lane, ACCESS_WRITE);
        u64 v = in->bytes == 8 ? ((u64 *)lanes_of(w, in->b))[lane] : ((u32 *)lanes_of(w, in->b))[lane];
        memcpy(&m, at, sizeof m);
        if (memcmp(at, zeros, sizeof zeros) == 0)
            m.magic = TENSOR_MAP_MAGIC;
        else if (m.magic != TENSOR_MAP_MAGIC)
            fault(w, in, 1u << lane, ERR_ILLEGAL_INSTRUCTION,
                  "neither a tensor map nor 128 bytes of zeros are there");
        if (fields[in->aux].most && v > fields[in->aux].most)
            fault(w, in, 1u << lane, ERR_ILLEGAL_INSTRUCTION, "a %s of %llu; it may be %u at the most",
                  fields[in->aux].name, (unsigned long long)v, fields[in->aux].most);
        set(&m, (enum field)in->aux, (u32)in->imm, v);
        mark_edited(w, &m);
        memcpy(at, &m, sizeof m);
        race_settle(w, in, 0, NULL); /* here, and not at the next store */
    }
}

/* A copy of the map in shared memory, for the whole warp: .sync.aligned. more: operands; data: two addresses. */
static void exec_copy(struct warp *w, const struct inst *in, u32 mask)
{
    const struct inst *address = in->data;
    u32 lane = first_lane(mask);
    struct tensor_map m;
    u8 *from = map_at(w, in, &address[1], lane, ACCESS_READ),
       *to = map_at(w, in, &address[0], lane, ACCESS_WRITE | ACCESS_TOGETHER);
    memcpy(to, from, TENSOR_MAP_BYTES);
    memcpy(&m, to, sizeof m);
    mark_edited(w, &m);
    memcpy(to, &m, sizeof m);
    __atomic_fetch_add(&w->block->launch->map_releases, 1, __ATOMIC_ACQ_REL);
}

static void exec_release(struct warp *w, const struct inst *in, u32 mask)
{
    (void)in, (void)mask;
    __atomic_fetch_add(&w->block->launch->map_releases, 1, __ATOMIC_ACQ_REL);
}

static void exec_acquire(struct warp *w, const struct inst *in, u32 mask)
{
    for (u32 left = mask; left; left &= left - 1) {
        struct tensor_map m;
        void *at = map_at(w, in, in->data, first_lane(left), ACCESS_READ);
        memcpy(&m, at, sizeof m);
        if (m.magic != TENSOR_MAP_MAGIC || m.edited_by != w->block->launch->grid_id) continue;
        if (__atomic_load_n(&w->block->launch->map_releases, __ATOMIC_ACQUIRE) == m.releases) continue;
        m.edited_by = 0;
        memcpy(at, &m, sizeof m);
    }
}

void tensormap_check(struct warp *w, const struct inst *in, u32 lane, const struct tensor_map *m)
{
    if (m->edited_by && m->edited_by == w->block->launch->grid_id)
        fault(
            w, in, 1u << lane, ERR_LAUNCH_FAILURE,
            "the tensor map was edited, and no fence.proxy.tensormap::generic.%s has made that visible to this copy",
            __atomic_load_n(&w->block->launch->map_releases, __ATOMIC_ACQUIRE) == m->releases
                ? "release (or tensormap.cp_fenceproxy)"
                : "acquire of its address");
    bool complete = m->rank >= 1 && m->rank <= MAX_RANK && m->address && m->address % 16 == 0;
    for (u32 d = 0; complete && d < m->rank; d++)
        complete = m->dim[d] && m->element_stride[d] && (!d || m->stride[d - 1] % 16 == 0);
    if (!complete)
        fault(
            w, in, 1u << lane, ERR_ILLEGAL_INSTRUCTION,
            "the tensor map is not complete: its rank, its address (a multiple of 16), and dimensions, strides (multiples "
            "of 16) and element strides of that many dimensions must be set");
}

/* ---- Lowering ------------------------------------------------------------------------------------------------------------- */

/* tensormap.replace.tile.field{.global, .shared::cta}.b1024.type [address]{, dimension}, value */
bool lower_replace(struct lowering *lo, const struct ptx_inst *p, struct inst *in)
{
    struct inst *address = keep(sizeof *address);
    u32 field = 0, at = 1;
    while (p->mod_count < 3 || (field < NUM_FIELDS && !streq(fields[field].name, p->mod[2])))
        if (p->mod_count < 3 || ++field == NUM_FIELDS)
            return refuse(lo, p, "this field of tensormap.replace");
    if (p->op_count != 2 + (u32)fields[field].per_dimension) return refuse(lo, p, "this form of tensormap");
    if (fields[field].per_dimension) {
        if (p->op[at].kind != OPERAND_IMM || p->op[at].imm >= MAX_RANK)
            return refuse(lo, p, "a dimension that is not 0 to 4");
        in->imm = (s64)p->op[at++].imm;
    }
    if ((field == INTERLEAVE_LAYOUT || field == SWIZZLE_ATOMICITY) &&
        (p->op[at].kind != OPERAND_IMM || p->op[at].imm))
        return refuse(lo, p, "a %s other than 0", fields[field].name);
    *address = (struct inst){.space = SPACE_GENERIC};
    for (u32 k = 3; k < p->mod_count; k++)
        if (shared_space(p->mod[k]) == SPACE_SHARED) address->space = SPACE_SHARED;
    in->exec = exec_replace;
    in->aux = (u16)field;
    in->bytes = has_mod(p, "b64") ? 8 : 4;
    in->data = address;
    in->b = lower_source(lo, &p->op[at], in->bytes == 8 ? T_B64 : T_B32);
    return lower_address(lo, &p->op[0], address);
}

/* tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.scope.sync.aligned [to], [from], 128 */
bool lower_copy_map(struct lowering *lo, const struct ptx_inst *p, struct inst *in)
{
    struct inst *address = keep(2 * sizeof *address);
    address[0] = (struct inst){.space = SPACE_GENERIC};
    address[1] = (struct inst){.space = SPACE_SHARED};
    in->exec = exec_copy;
    in->data = address;
    return lower_address(lo, &p->op[0], &address[0]) && lower_address(lo, &p->op[1], &address[1]);
}

/* fence.proxy.tensormap::generic.release.scope */
bool lower_tensormap_release(struct lowering *lo, const struct ptx_inst *p, struct inst *in)
{
    (void)lo, (void)p;
    in->exec = exec_release;
    return true;
}

/* fence.proxy.tensormap::generic.acquire.scope [address], 128 */
bool lower_tensormap_acquire(struct lowering *lo, const struct ptx_inst *p, struct inst *in)
{
    struct inst *address = keep(sizeof *address);
    *address = (struct inst){.space = SPACE_GENERIC};
    in->exec = exec_acquire;
    in->data = address;
    return lower_address(lo, &p->op[0], address);
}
