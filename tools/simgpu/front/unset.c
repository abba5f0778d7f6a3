/* unset.c: which instructions read registers that nothing has written before: variables that were never set. PTX lets them be
 * read, and what is read is anything. nvcc itself leaves such registers where it does not matter what they hold, so this only finds
 * them; exec/undefined.c follows what comes of them. What is written on some ways there is left out, since it may be on all that anybody
 * goes; but for accumulators of mma, of which a loop reads what it has itself left: these are followed from the start. (wgmma's:
 * front/warpgroup.c.) */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "flow.h"

struct cursor {
    u64 *set; /* registers that have been written */
    struct unset *found;
    u32 at;
};

static void mark(struct reg *r, void *context)
{
    const struct cursor *c = context;
    c->set[r->id / 64] |= 1ull << r->id % 64;
}
static void look(struct reg *r, void *context)
{
    struct cursor *c = context;
    struct unset *u = c->found;
    if (c->set[r->id / 64] >> r->id % 64 & 1) return;
    GROW(u->use, u->count, u->capacity);
    u->use[u->count++] = (struct unset_use){c->at, r};
}

static u32 block_end(const struct parsed_function *f, const struct flow *g, u32 b)
{
    u32 end = b + 1 < g->count ? g->leader[b + 1] : f->count;
    return end < f->count ? end : f->count;
}

/* The registers that may have been written where each block begins, on some way there; or on every one. Those that only some lanes
 * write count. */
static void flow_forward(const struct parsed_function *f, const struct flow *g, u32 words, u64 *in,
                         bool every)
{
    u64 *now = malloc(words * sizeof *now);
    if (!now) abort();
    memset(in, every ? 0xff : 0, (size_t)g->count * words * sizeof *in);
    memset(in, 0, words * sizeof *in);
    for (bool changed = true; changed;) {
        changed = false;
        for (u32 b = 0; b < g->count; b++) {
            struct cursor c = {.set = now};
            memcpy(now, in + (size_t)b * words, words * sizeof *now);
            for (u32 i = g->leader[b]; i < block_end(f, g, b); i++) visit_definitions(&f->inst[i], mark, &c);
            for (u32 e = 0; e < g->next_count[b]; e++)
                for (u32 k = 0; k < words; k++) {
                    u64 *to = &in[(size_t)g->next[b][e] * words + k],
                        joined = every ? *to & now[k] : *to | now[k];
                    changed |= joined != *to;
                    *to = joined;
                }
        }
    }
    free(now);
}

struct unset find_unset(const struct parsed_function *f, const struct flow *g)
{
    struct unset found = {0};
    u32 words = (f->reg_count + 63) / 64 + 1;
    u64 *in = malloc((size_t)g->count * words * sizeof *in);
    if (!in) abort();
    for (u32 every = 0; every < 2; every++) {
        flow_forward(f, g, words, in, every);
        for (u32 b = 0; b < g->count; b++) {
            struct cursor c = {.set = in + (size_t)b * words, .found = &found};
            for (u32 i = g->leader[b]; i < block_end(f, g, b); i++) {
                const struct ptx_inst *p = &f->inst[i];
                c.at = every ? UNSET_FROM_THE_START : i;
                if (!every && !is_opcode(p, "wgmma")) visit_uses(p, look, &c);
                if (every && is_opcode(p, "mma") && p->op_count > 3) visit_operand(&p->op[3], look, &c);
                visit_definitions(p, mark, &c);
            }
        }
    }
    free(in);
    return found;
}
