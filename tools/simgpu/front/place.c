/* place.c: where registers lie in the frame. PTX from nvcc uses thousands of virtual registers, each for a moment; giving
 * those that are never live together the same place keeps a warp's registers in the host's caches. Poletto and Sarkar,
 * "Linear Scan Register Allocation", on live intervals from the usual backward data flow.
 *
 * What is live is a matter of one thread. That is enough although a warp's lanes share a register's place: a lane's values
 * change only when an instruction executes for that lane. It would not be if places of different widths overlapped, so
 * each width has places of its own. */
#include <stdlib.h>
#include <string.h>

#include "flow.h"

enum { WIDTHS = 4 }; /* predicates, up to 32 bits, 64 bits, 128 bits */
static const u32 place_bytes[WIDTHS] = {4, 4 * LANES, 8 * LANES, 16 * LANES};

static u32 width_of(const struct reg *r)
{
    u32 bytes = type_bytes(r->type);
    return r->type == T_PRED ? 0 : bytes <= 4 ? 1 : bytes == 8 ? 2 : 3;
}

/* ---- Live registers -------------------------------------------------------------------------------------------------------------- */

bool ends_products(const struct ptx_inst *p)
{
    return p->row && p->row->lower == lower_product_wait;
}

struct live {
    u32 words;
    u64 *in, *out, *use, *def; /* bit sets, `words` words for each block */
    s64 *start,
        *end; /* live interval of each register, by id: instruction i reads at 2i and writes at 2i + 1 */
};
struct cursor {
    struct live *l;
    u64 *set, *unless;
    s64 at;
};

static void put(struct reg *r, void *context)
{
    struct cursor *c = context;
    if (!c->unless || !(c->unless[r->id / 64] >> r->id % 64 & 1)) c->set[r->id / 64] |= 1ull << r->id % 64;
}
static void touch(struct reg *r, void *context)
{
    struct cursor *c = context;
    if (c->l->start[r->id] < 0 || c->at < c->l->start[r->id]) c->l->start[r->id] = c->at;
    if (c->at > c->l->end[r->id]) c->l->end[r->id] = c->at;
}

static u32 block_end(const struct parsed_function *f, const struct flow *g, u32 b)
{
    u32 end = b + 1 < g->count ? g->leader[b + 1] : f->count;
    return end < f->count ? end : f->count;
}

static void block_sets(struct parsed_function *f, const struct flow *g, struct live *l)
{
    for (u32 b = 0; b < g->count; b++) {
        u64 *use = l->use + (size_t)b * l->words, *def = l->def + (size_t)b * l->words;
        for (u32 i = g->leader[b]; i < block_end(f, g, b); i++) {
            struct cursor uses = {l, use, def, 0}, defs = {l, def, NULL, 0};
            visit_uses(&f->inst[i], put, &uses);
            if (ends_products(&f->inst[i]))
                for (u32 k = 0; k < f->async_reg_count; k++) put(f->async_regs[k], &uses);
            if (!f->inst[i].guard) visit_definitions(&f->inst[i], put, &defs);
        }
    }
}

static void flow_backward(const struct flow *g, struct live *l)
{
    for (bool changed = true; changed;) {
        changed = false;
        for (u32 b = g->count; b-- > 0;)
            for (u32 k = 0; k < l->words; k++) {
                size_t at = (size_t)b * l->words + k;
                u64 out = 0;
                for (u32 e = 0; e < g->next_count[b]; e++) out |= l->in[(size_t)g->next[b][e] * l->words + k];
                u64 in = l->use[at] | (out & ~l->def[at]);
                changed |= in != l->in[at];
                l->in[at] = in;
                l->out[at] = out;
            }
    }
}

static void touch_set(struct parsed_function *f, struct live *l, const u64 *set, s64 at)
{
    struct cursor c = {.l = l, .at = at};
    for (u32 k = 0; k < l->words; k++)
        for (u64 left = set[k]; left; left &= left - 1)
            touch(f->regs[64 * k + (u32)__builtin_ctzll(left)], &c);
}

static void intervals(struct parsed_function *f, const struct flow *g, struct live *l)
{
    for (u32 b = 0; b < g->count; b++) {
        u32 first = g->leader[b], last = block_end(f, g, b);
        touch_set(f, l, l->in + (size_t)b * l->words, 2 * (s64)first);
        touch_set(f, l, l->out + (size_t)b * l->words, 2 * (s64)last);
        for (u32 i = first; i < last; i++) {
            /* With several destinations, none may take the place of a source that is still to be read. */
            struct cursor uses = {l, NULL, NULL, 2 * (s64)i + (f->inst[i].written > 1)},
                          defs = {l, NULL, NULL, 2 * (s64)i + 1};
            visit_uses(&f->inst[i], touch, &uses);
            if (ends_products(&f->inst[i]))
                for (u32 k = 0; k < f->async_reg_count; k++) touch(f->async_regs[k], &uses);
            visit_definitions(&f->inst[i], touch, &defs);
        }
    }
}

/* ---- Places ------------------------------------------------------------------------------------------------------------------------ */

static const struct live *sorting;
static int by_start(const void *a, const void *b)
{
    const struct reg *x = *(struct reg *const *)a, *y = *(struct reg *const *)b;
    s64 d = sorting->start[x->id] - sorting->start[y->id];
    return d ? (d < 0 ? -1 : 1) : x->id < y->id ? -1 : x->id > y->id;
}
static int by_end(const void *a, const void *b)
{
    const struct reg *x = *(struct reg *const *)a, *y = *(struct reg *const *)b;
    s64 d = sorting->end[x->id] - sorting->end[y->id];
    return d ? (d < 0 ? -1 : 1) : x->id < y->id ? -1 : x->id > y->id;
}

void add_range(struct function *fn, u32 offset, u32 count, u32 lane_bytes)
{
    fn->ranges = realloc(fn->ranges, (fn->range_count + 1) * sizeof *fn->ranges);
    if (!fn->ranges) abort();
    fn->ranges[fn->range_count++] = (struct register_range){offset, count, lane_bytes};
}

u32 place_registers(struct parsed_function *f, const struct flow *g, u32 *bytes)
{
    u32 words = (f->reg_count + 63) / 64 + 1, n = 0, live_now = 0, most = 0;
    size_t set = (size_t)g->count * words;
    u64 *sets = calloc(4 * set, sizeof *sets);
    s64 *ends = calloc(2 * (f->reg_count + 1), sizeof *ends);
    struct reg **starting = calloc(f->reg_count + 1, sizeof *starting),
               **ending = calloc(f->reg_count + 1, sizeof *ending);
    u32 *spare[WIDTHS], spare_count[WIDTHS] = {0};
    if (!sets || !ends || !starting || !ending) abort();
    struct live l = {words, sets, sets + set, sets + 2 * set, sets + 3 * set, ends, ends + f->reg_count + 1};
    memset(ends, 0xff, 2 * (f->reg_count + 1) * sizeof *ends);
    block_sets(f, g, &l);
    flow_backward(g, &l);
    intervals(f, g, &l);
    for (u32 r = 0; r < f->reg_count; r++)
        if (l.start[r] >= 0) starting[n] = ending[n] = f->regs[r], n++;
    for (u32 wd = 0; wd < WIDTHS; wd++)
        if (!(spare[wd] = calloc(n + 1, sizeof **spare))) abort();
    sorting = &l;
    qsort(starting, n, sizeof *starting, by_start);
    qsort(ending, n, sizeof *ending, by_end);
    u32 next_offset[WIDTHS], done = 0;
    for (u32 wd = 0; wd < WIDTHS; wd++) next_offset[wd] = 0;
    for (u32 k = 0; k < n; k++) { /* offsets within each width first, as numbers of places */
        struct reg *r = starting[k];
        for (; done < n && l.end[ending[done]->id] < l.start[r->id]; done++) {
            u32 wd = width_of(ending[done]);
            spare[wd][spare_count[wd]++] = ending[done]->offset;
            live_now -= place_bytes[wd] / (4 * LANES);
        }
        u32 wd = width_of(r);
        r->offset = spare_count[wd] ? spare[wd][--spare_count[wd]] : next_offset[wd]++;
        live_now += place_bytes[wd] / (4 * LANES);
        if (live_now > most) most = live_now;
    }
    for (u32 wd = 0; wd < WIDTHS; wd++) {
        u32 start = (*bytes + 63) / 64 * 64;
        for (u32 k = 0; k < n; k++)
            if (width_of(starting[k]) == wd)
                starting[k]->offset = start + starting[k]->offset * place_bytes[wd];
        *bytes = start + next_offset[wd] * place_bytes[wd];
        add_range(f->fn, start, next_offset[wd], wd ? place_bytes[wd] / LANES : 0);
        free(spare[wd]);
    }
    free(sets);
    free(ends);
    free(starting);
    free(ending);
    return most;
}
