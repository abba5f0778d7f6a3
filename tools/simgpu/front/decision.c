/* decision.c: strong loads of what is only data: a value that decides no branch and no address. Who polls a flag, or looks whether there
 * is something to do, compares what he has read: it may be old, then he looks again. Who computes with it and goes on takes it for
 * what another thread has left there; of such a load it can be said by name what does not order it (exec/race.c, exec/strong.c).
 *
 * Followed backwards from what decides, through registers and whatever the way there is: so a value that may decide does. */
#include "flow.h"

struct marks {
    u8 *decides; /* by register */
    bool more;   /* one has been marked */
    bool found;  /* one that was looked at decides */
};

static void mark(struct reg *r, void *context)
{
    struct marks *m = context;
    m->more |= !m->decides[r->id];
    m->decides[r->id] = 1;
}
static void look(struct reg *r, void *context)
{
    struct marks *m = context;
    m->found |= m->decides[r->id];
}

/* Whether what p reads may decide about more than numbers. Votes and branches read what setp has decided. */
static bool decides(const struct ptx_inst *p)
{
    static const char *const some[] = {"setp", "set", "testp", "slct", "match", "brx", "call", "mapa"};
    for (u32 k = 0; k < sizeof some / sizeof *some; k++)
        if (is_opcode(p, some[k])) return true;
    return has_mod(p, "cas") || has_mod(p, "param");
}

static bool is_strong_load(const struct ptx_inst *p)
{
    return is_opcode(p, "ld") && (has_mod(p, "volatile") || has_mod(p, "relaxed"));
}

void find_data(struct parsed_function *f)
{
    struct marks m = {0};
    u32 loads = 0;
    for (u32 i = 0; i < f->count; i++) loads += is_strong_load(&f->inst[i]);
    if (!loads) return;
    m.decides = keep(f->reg_count);
    for (m.more = true; m.more;) {
        m.more = false;
        for (u32 i = f->count; i-- > 0;) {
            const struct ptx_inst *p = &f->inst[i];
            for (u32 k = 0; k < p->op_count; k++)
                if (p->op[k].kind == OPERAND_ADDRESS) visit_operand(&p->op[k], mark, &m);
            m.found = decides(p);
            if (!m.found) visit_definitions(p, look, &m);
            if (m.found) visit_uses(p, mark, &m);
        }
    }
    for (u32 i = 0; i < f->count; i++) {
        struct ptx_inst *p = &f->inst[i];
        m.found = false;
        visit_definitions(p, look, &m);
        p->only_data = is_strong_load(p) && !m.found;
    }
}
