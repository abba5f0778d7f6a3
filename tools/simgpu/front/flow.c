/* flow.c: a function's control flow graph, and its immediate post-dominators: where lanes that part meet again. */
#include <stdlib.h>

#include "flow.h"

bool is_opcode(const struct ptx_inst *p, const char *name)
{
    return *p->opcode == *name && streq(p->opcode, name);
}
bool is_label(const struct ptx_operand *o)
{
    return o->symbol && o->symbol->kind == SYM_LABEL;
}
static bool ends_thread(const struct parsed_function *f, const struct ptx_inst *p)
{
    return is_opcode(p, "exit") || is_opcode(p, "trap") || (is_opcode(p, "ret") && f->fn->is_kernel);
}
bool ends_block(const struct ptx_inst *p)
{
    return is_opcode(p, "bra") || is_opcode(p, "brx") || is_opcode(p, "ret") || is_opcode(p, "exit") ||
           is_opcode(p, "trap");
}

/* Successors of instruction i that ends a block, as instruction indices; f->count + 1 for the exit. */
static u32 successors(const struct parsed_function *f, u32 i, u32 *out)
{
    const struct ptx_inst *p = &f->inst[i];
    u32 n = 0, end = f->count, gone = f->count + 1;
    bool falls = p->guard || !ends_block(p);
    if (is_opcode(p, "bra") && is_label(&p->op[0]))
        out[n++] = (u32)p->op[0].symbol->address;
    else if (is_opcode(p, "brx") && p->op[1].symbol)
        for (u32 k = 0; k < p->op[1].symbol->target_count; k++) {
            const struct ptx_operand *target = &p->op[1].symbol->targets[k];
            if (is_label(target)) out[n++] = (u32)target->symbol->address;
        }
    else if (ends_thread(f, p))
        out[n++] = gone;
    else if (is_opcode(p, "ret"))
        out[n++] = end;
    for (u32 k = 0; k < n; k++) /* a jump to a kernel's `ret` is a thread's end, not a place to meet */
        if (out[k] < end && !f->inst[out[k]].guard && ends_thread(f, &f->inst[out[k]]))
            out[k] = gone;
        else if (out[k] == end && f->fn->is_kernel)
            out[k] = gone;
    if (falls) out[n++] = i + 1 == end && f->fn->is_kernel ? gone : i + 1;
    return n;
}

/* Immediate post-dominators: Cooper, Harvey, Kennedy, "A Simple, Fast Dominance Algorithm", on the reversed graph. */
static void post_dominators(struct flow *g)
{
    u32 **next = g->next;
    const u32 *next_count = g->next_count;
    u32 n = g->count, top = 0, *order = keep(n * sizeof *order), *stack = keep(2 * n * sizeof *stack);
    s32 *rank = keep(n * sizeof *rank);
    u32 *pred_count = keep(n * sizeof *pred_count), **pred = keep(n * sizeof *pred),
        *seen = keep(n * sizeof *seen);
    for (u32 b = 0; b < n; b++)
        for (u32 k = 0; k < next_count[b]; k++) pred_count[next[b][k]]++;
    for (u32 b = 0; b < n; b++) pred[b] = keep(pred_count[b] * sizeof **pred), pred_count[b] = 0;
    for (u32 b = 0; b < n; b++)
        for (u32 k = 0; k < next_count[b]; k++) pred[next[b][k]][pred_count[next[b][k]]++] = b;
    for (u32 b = 0; b < n; b++) rank[b] = -1;
    /* post-order of the reversed graph from the exit, without recursion */
    u32 depth = 0, *edge = keep(n * sizeof *edge);
    stack[depth++] = n - 1;
    seen[n - 1] = 1;
    while (depth) {
        u32 b = stack[depth - 1];
        if (edge[b] < pred_count[b]) {
            u32 q = pred[b][edge[b]++];
            if (!seen[q]) seen[q] = 1, stack[depth++] = q;
        } else {
            rank[b] = (s32)top;
            order[top++] = b;
            depth--;
        }
    }
    for (u32 b = 0; b < n; b++) g->post[b] = -1;
    g->post[n - 1] = (s32)n - 1;
    for (bool changed = true; changed;) {
        changed = false;
        for (u32 k = top - 1; k-- > 0;) { /* reverse post-order, the exit left out */
            u32 b = order[k];
            s32 best = -1;
            for (u32 e = 0; e < next_count[b]; e++) {
                s32 s = (s32)next[b][e];
                if (g->post[s] < 0) continue;
                if (best < 0) best = s;
                while (best != s) {
                    while (rank[best] < rank[s]) best = g->post[best];
                    while (rank[s] < rank[best]) s = g->post[s];
                }
            }
            if (best != g->post[b]) g->post[b] = best, changed = true;
        }
    }
}

struct flow build_flow(struct parsed_function *f)
{
    u32 n = f->count + 2; /* the end and the exit */
    u8 *leads = keep(n + 1);
    u32 most = 0;
    for (u32 i = 0; i < f->count; i++)
        for (u32 k = 0; k < f->inst[i].op_count; k++) {
            const struct symbol *s = f->inst[i].op[k].symbol;
            if (s && s->target_count > most) most = s->target_count;
        }
    u32 *out = keep((most + 2) * sizeof *out); /* of one instruction: every target and what follows */
    leads[0] = leads[f->count] = leads[f->count + 1] = 1;
    for (u32 i = 0; i < f->count; i++) {
        if (!ends_block(&f->inst[i])) continue;
        leads[i + 1] = 1;
        for (u32 k = successors(f, i, out); k-- > 0;) leads[out[k]] = 1;
    }
    struct flow g = {
        .leader = keep(n * sizeof(u32)), .block_of = keep(n * sizeof(u32)), .post = keep(n * sizeof(s32))};
    for (u32 i = 0; i < n; i++) {
        if (leads[i]) g.leader[g.count++] = i;
        g.block_of[i] = g.count - 1;
    }
    u32 **next = g.next = keep(g.count * sizeof *next),
        *next_count = g.next_count = keep(g.count * sizeof *next_count);
    for (u32 b = 0; b < g.count; b++) {
        u32 last = b + 1 < g.count ? g.leader[b + 1] - 1 : f->count + 1;
        if (last < f->count)
            next_count[b] = successors(f, last, out);
        else if (last == f->count)
            next_count[b] = 1, out[0] = f->count + 1;
        next[b] = keep(next_count[b] * sizeof **next);
        for (u32 k = 0; k < next_count[b]; k++) next[b][k] = g.block_of[out[k]];
    }
    post_dominators(&g);
    free(out);
    return g;
}

/* Where the lanes that instruction i sends different ways meet: an instruction index, or -1. */
s32 meeting_point(const struct parsed_function *f, const struct flow *g, u32 i)
{
    s32 post = g->post[g->block_of[i]];
    return post < 0 || g->leader[post] > f->count ? -1 : (s32)g->leader[post];
}
