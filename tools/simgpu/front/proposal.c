/* proposal.c: loads that only propose what an atomicCAS compares with. The CUDA Programming Guide's way to any atomic operation reads
 * the word plainly before the loop, while other threads change it ("Atomic Functions"): a wrong value costs a turn of the loop, and
 * nothing else. In PTX that is a race; here such a load counts as a relaxed one, which races with ordinary stores only. */
#include <string.h>

#include "flow.h"

static bool weak_and_scalar(const struct ptx_inst *p)
{
    static const char *const others[] = {"nc", "volatile", "relaxed", "acquire", "mmio", "v2",
                                         "v4", "v8",       "local",   "const",   "param"};
    for (u32 k = 0; k < sizeof others / sizeof *others; k++)
        if (has_mod(p, others[k])) return false;
    return is_opcode(p, "ld") && p->op_count == 2 && p->op[0].kind == OPERAND_REG;
}

static void make_relaxed(struct ptx_inst *p)
{
    const char **mod = keep((p->mod_count + 2) * sizeof *mod);
    memcpy(mod, p->mod, p->mod_count * sizeof *mod);
    mod[p->mod_count] = "relaxed";
    mod[p->mod_count + 1] = "gpu";
    p->mod = mod;
    p->mod_count += 2;
}

void find_proposals(struct parsed_function *f)
{
    u8 *compared = NULL; /* register -> it, or a copy of it, is what an atomicCAS compares with */
    for (u32 i = 0; i < f->count; i++) {
        const struct ptx_inst *p = &f->inst[i];
        if (!is_opcode(p, "atom") || !has_mod(p, "cas") || p->op[2].kind != OPERAND_REG) continue;
        if (!compared) compared = keep(f->reg_count);
        compared[p->op[2].reg->id] = 1;
    }
    for (bool more = compared; more;) {
        more = false;
        for (u32 i = 0; i < f->count; i++) {
            const struct ptx_inst *p = &f->inst[i];
            if (!is_opcode(p, "mov") || p->op[0].kind != OPERAND_REG || p->op[1].kind != OPERAND_REG ||
                !compared[p->op[0].reg->id] || compared[p->op[1].reg->id])
                continue;
            compared[p->op[1].reg->id] = more = true;
        }
    }
    for (u32 i = 0; compared && i < f->count; i++)
        if (weak_and_scalar(&f->inst[i]) && compared[f->inst[i].op[0].reg->id]) make_relaxed(&f->inst[i]);
}
