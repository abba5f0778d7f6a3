/* warpgroup.c: what only a look at the whole function tells about its wgmma instructions: whether a wgmma.fence may be missing,
 * and which registers every instruction touches.
 *
 * wgmma.fence must stand before the first wgmma, and between an access to a register and a wgmma that has it as accumulator
 * or as A (PTX ISA, "wgmma.fence"). ptxas mends what is missing where it can, and so hides it; here it is a forward data
 * flow, one bit for each register that was touched since the last fence on some way here, and one for "no fence yet".
 * A mov is no access: the compiler puts it where it likes, and its target takes over the source's bit.
 *
 * A way that the flow sees may be one that nobody goes, such as past a fence behind `if (k == 0)`. So where it finds a gap, the
 * function is only marked, and its warps keep the same book while they run (exec/wgmma.c). */
#include <stdlib.h>
#include <string.h>

#include "../exec/wgmma.h"
#include "flow.h"

static bool is_product(const struct ptx_inst *p)
{
    return is_opcode(p, "wgmma") && has_mod(p, "mma_async");
}
static bool is_copy(const struct ptx_inst *p)
{
    return is_opcode(p, "mov") && p->op_count == 2 && p->op[0].kind == OPERAND_REG;
}

/* ---- Fences -------------------------------------------------------------------------------------------------------------- */

struct walk {
    u64 *dirty; /* by register; the last bit: no fence yet */
    bool found;
};

static void put(u64 *set, u32 bit, bool on)
{
    set[bit / 64] = (set[bit / 64] & ~(1ull << bit % 64)) | (u64)on << bit % 64;
}
static bool get(const u64 *set, u32 bit)
{
    return set[bit / 64] >> bit % 64 & 1;
}
static void mark(struct reg *r, void *context)
{
    put(((struct walk *)context)->dirty, r->id, true);
}
static void look(struct reg *r, void *context)
{
    struct walk *walk = context;
    walk->found |= get(walk->dirty, r->id);
}

static void step(const struct ptx_inst *p, struct walk *walk, u32 words)
{
    if (is_opcode(p, "wgmma") && has_mod(p, "fence"))
        memset(walk->dirty, 0, words * sizeof *walk->dirty);
    else if (is_opcode(p, "wgmma"))
        return;
    else if (is_copy(p)) {
        bool on = p->op[1].kind == OPERAND_REG && get(walk->dirty, p->op[1].reg->id);
        put(walk->dirty, p->op[0].reg->id, on || (p->guard && get(walk->dirty, p->op[0].reg->id)));
    } else {
        visit_uses(p, mark, walk);
        visit_definitions(p, mark, walk);
    }
}

/* Whether some way leads to a wgmma that lacks a fence. */
static bool has_gaps(struct parsed_function *f, const struct flow *g)
{
    u32 no_fence = f->reg_count, words = no_fence / 64 + 1;
    u64 *in = calloc((size_t)g->count * words, sizeof *in), *now = calloc(words, sizeof *now);
    u8 *seen = calloc(g->count, 1);
    if (!in || !now || !seen) abort();
    put(in, no_fence, true);
    seen[0] = 1;
    struct walk walk = {.dirty = now};
    for (bool changed = true; changed && !walk.found;) {
        changed = false;
        for (u32 b = 0; b < g->count; b++) {
            if (!seen[b]) continue;
            memcpy(now, in + (size_t)b * words, words * sizeof *now);
            u32 end = b + 1 < g->count ? g->leader[b + 1] : f->count;
            for (u32 i = g->leader[b]; i < end && i < f->count; i++) {
                struct ptx_inst *p = &f->inst[i];
                if (is_product(p)) {
                    walk.found |= get(now, no_fence);
                    visit_operand(&p->op[0], look, &walk);
                    if (p->op[1].kind == OPERAND_VECTOR) visit_operand(&p->op[1], look, &walk);
                }
                step(p, &walk, words);
            }
            for (u32 e = 0; e < g->next_count[b]; e++) {
                u32 to = g->next[b][e];
                u64 *set = in + (size_t)to * words;
                changed |= !seen[to];
                seen[to] = 1;
                for (u32 k = 0; k < words; k++) {
                    changed |= (now[k] & ~set[k]) != 0;
                    set[k] |= now[k];
                }
            }
        }
    }
    free(in);
    free(now);
    free(seen);
    return walk.found;
}

/* ---- Registers ----------------------------------------------------------------------------------------------------------------- */

static void set_register(struct reg *r, void *context)
{
    (void)context;
    r->set = true;
}
static void add_register(struct reg *r, void *context)
{
    struct parsed_function *f = context;
    GROW(f->async_regs, f->async_reg_count, f->async_reg_capacity);
    f->async_regs[f->async_reg_count++] = r;
}

void warpgroup_prepare(struct parsed_function *f, const struct flow *g)
{
    for (u32 i = 0; i < f->count; i++) {
        if (!is_product(&f->inst[i]) || f->inst[i].op_count < 2) continue;
        visit_operand(&f->inst[i].op[0], add_register, f);
        if (f->inst[i].op[1].kind == OPERAND_VECTOR) visit_operand(&f->inst[i].op[1], add_register, f);
    }
    if (f->async_reg_count) f->fn->watches_fences = has_gaps(f, g);
    for (u32 i = 0; i < f->count && f->async_reg_count; i++)
        if (!is_product(&f->inst[i])) visit_definitions(&f->inst[i], set_register, NULL);
}

struct list {
    struct touched *t;
    bool writes;
};
static void count_register(struct reg *r, void *context)
{
    (void)r;
    ++*(u32 *)context;
}
static void list_register(struct reg *r, void *context)
{
    struct list *l = context;
    if (r->type == T_PRED) return;
    l->t->reg[l->t->count++] = (struct touched_register){r->name, r->offset / 64, l->writes};
}

const struct touched *warpgroup_touched(const struct ptx_inst *p)
{
    u32 n = p->written;
    if (is_opcode(p, "wgmma")) return NULL;
    visit_uses(p, count_register, &n);
    if (!n) return NULL;
    struct list l = {.t = keep(sizeof *l.t + n * sizeof *l.t->reg)};
    visit_uses(p, list_register, &l);
    u32 used = l.t->count;
    l.writes = true;
    visit_definitions(p, list_register, &l);
    l.t->moves = is_copy(p) && l.t->count == used + 1 && (used == 0 || p->op[1].kind == OPERAND_REG);
    l.t->copies = l.t->moves && !p->guard && used == 1;
    return l.t;
}
