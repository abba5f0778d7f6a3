/* verify.c: whether every register's place keeps its value: a check on front/place.c, with which it shares no more than what
 * front/opcodes.def says of operands. A forward data flow finds whose value each place holds, on all ways to an instruction. Nobody's
 * is no mistake: PTX may read a register that it has not written. Any other register's is. */
#include <stdlib.h>
#include <string.h>

#include "flow.h"
#include "lower.h"

enum { NOBODY = UNPLACED, SEVERAL = UNPLACED - 1 };

struct walk {
    const u32 *place; /* register -> its place */
    u32 *holder;      /* place -> the register whose value it holds */
    const struct reg *lost;
};

static void read_place(struct reg *r, void *context)
{
    struct walk *walk = context;
    u32 holder = walk->holder[walk->place[r->id]];
    if (holder != NOBODY && holder != r->id) walk->lost = r;
}
static void write_place(struct reg *r, void *context)
{
    const struct walk *walk = context;
    walk->holder[walk->place[r->id]] = r->id;
}
/* With a guard: other lanes keep what they had. */
static void write_some_lanes(struct reg *r, void *context)
{
    const struct walk *walk = context;
    u32 *holder = &walk->holder[walk->place[r->id]];
    *holder = *holder == NOBODY || *holder == r->id ? r->id : SEVERAL;
}

static void step(const struct parsed_function *f, const struct ptx_inst *p, struct walk *walk)
{
    visit_uses(p, read_place, walk);
    for (u32 k = 0; ends_products(p) && k < f->async_reg_count; k++) read_place(f->async_regs[k], walk);
    visit_definitions(p, p->guard ? write_some_lanes : write_place, walk);
    if (p->written > 1) { /* an executor may write the first before it reads the last */
        visit_uses(p, read_place, walk);
        if (!p->guard) visit_definitions(p, read_place, walk);
    }
}

/* The place of a register that lies where registers of its width do, counted through all ranges; NOBODY: it does not. */
static u32 place_number(const struct function *fn, const struct reg *r)
{
    u32 first = 0, lane_bytes = r->type == T_PRED ? 0 : type_bytes(r->type) <= 4 ? 4 : type_bytes(r->type);
    for (u32 k = 0; k < fn->range_count; k++) {
        const struct register_range *range = &fn->ranges[k];
        u32 bytes = range->lane_bytes ? range->lane_bytes * LANES : 4, at = r->offset - range->offset;
        if (range->lane_bytes == lane_bytes && at % bytes == 0 && at / bytes < range->count)
            return first + at / bytes;
        first += range->count;
    }
    return NOBODY;
}

bool verify_places(struct lowering *lo, const struct flow *g)
{
    const struct parsed_function *f = lo->f;
    lo->at = f->inst;
    u32 places = 0, *place = keep(f->reg_count * sizeof *place);
    for (u32 k = 0; k < f->fn->range_count; k++) places += f->fn->ranges[k].count;
    size_t bytes = places * sizeof(u32);
    u32 *in = malloc(g->count * bytes + 1), *now = malloc(bytes + 1);
    u8 *reached = calloc(g->count, 1),
       *stale = calloc(g->count, 1); /* `in` has changed since the block was looked at */
    if (!in || !now || !reached || !stale) abort();
    memset(in, 0xff, g->count * bytes);
    reached[0] = stale[0] = 1;
    struct walk walk = {place, now, NULL};
    for (u32 k = 0; k < f->reg_count; k++) {
        place[k] = f->regs[k]->offset == UNPLACED ? NOBODY : place_number(f->fn, f->regs[k]);
        if (place[k] == NOBODY && f->regs[k]->offset != UNPLACED) walk.lost = f->regs[k];
    }
    for (bool changed = true; changed && !walk.lost;) {
        changed = false;
        for (u32 b = 0; b < g->count && !walk.lost; b++) {
            if (!stale[b]) continue;
            stale[b] = 0;
            memcpy(now, in + b * places, bytes);
            u32 end = b + 1 < g->count ? g->leader[b + 1] : f->count;
            for (u32 i = g->leader[b]; i < end && i < f->count && !walk.lost; i++)
                step(f, lo->at = &f->inst[i], &walk);
            for (u32 e = 0; e < g->next_count[b]; e++) {
                u32 to = g->next[b][e], *set = in + to * places, differs = !reached[to];
                reached[to] = 1;
                for (u32 k = 0; k < places; k++) {
                    u32 joined = set[k] == NOBODY || set[k] == now[k] ? now[k]
                                 : now[k] == NOBODY                   ? set[k]
                                                                      : SEVERAL;
                    differs |= joined ^ set[k];
                    set[k] = joined;
                }
                if (differs) stale[to] = changed = true;
            }
        }
    }
    free(in);
    free(now);
    free(reached);
    free(stale);
    return !walk.lost || refuse(lo, lo->at, "the place of %s holds another register", walk.lost->name);
}
