/* opcodes.c: which row of front/opcodes.def an instruction has, and so what it does with each operand. */
#include <string.h>

#include "flow.h"

static const struct opcode rows[] = {
#define PLAIN(...)  {__VA_ARGS__, true},
#define OPCODE(...) {__VA_ARGS__, false},
#include "opcodes.def"
    {"", "", NULL, false}};

/* Whether p has the modifiers that `.async.bulk` names, in this order. */
static bool has_mods(const struct ptx_inst *p, const char *named)
{
    for (u32 k = 0; *named; k++) {
        size_t length = strcspn(named + 1, ".");
        if (k == p->mod_count) return false;
        if (strncmp(p->mod[k], named + 1, length) == 0 && !p->mod[k][length]) named += 1 + length;
    }
    return true;
}

static const struct opcode *find_row(const struct ptx_inst *p)
{
    static bool filled;
    static struct scope opcodes; /* the first row of each */
    for (const struct opcode *r = rows; r->lower && !filled; r++) {
        const char *opcode = intern(r->spelling, strcspn(r->spelling, "."));
        if (!find_here(&opcodes, opcode)) define_name(&opcodes, opcode)->row = r;
    }
    filled = true;
    const struct name *n = find_here(&opcodes, p->opcode);
    size_t length = strlen(p->opcode);
    for (const struct opcode *r = n ? n->row : NULL; r; r++) {
        if (strcspn(r->spelling, ".") != length || strncmp(r->spelling, p->opcode, length) != 0) break;
        if (has_mods(p, r->spelling + length)) return r;
    }
    return NULL;
}

static void set_role(struct ptx_inst *p, struct ptx_operand *o, char role)
{
    o->role = role;
    if (o->reg && is_written(o)) p->written++;
    for (u32 k = 0; k < o->count; k++) set_role(p, &o->element[k], role);
}

void find_roles(struct ptx_inst *p)
{
    p->row = find_row(p);
    const char *role = p->row ? p->row->operands : "";
    for (u32 k = 0; k < p->op_count; k++) {
        set_role(p, &p->op[k], *role == '*' ? 'r' : *role);
        if (*role && *role != '*') role++;
    }
}

bool has_its_operands(struct lowering *lo, const struct ptx_inst *p)
{
    u32 least = (u32)strcspn(p->row->operands, "*");
    bool more = p->row->operands[least] == '*';
    if (p->op_count < least || (p->op_count > least && !more))
        return refuse(lo, p, "%u operands, not %u%s", p->op_count, least, more ? " or more" : "");
    for (u32 k = 0; k < p->op_count; k++) {
        const struct ptx_operand *o = &p->op[k];
        enum operand_kind kind = o->kind;
        if (is_written(o) && kind != OPERAND_REG && kind != OPERAND_SINK && kind != OPERAND_PAIR &&
            kind != OPERAND_VECTOR)
            return refuse(lo, p, "the destination is not a register");
        if (o->role == 'a' && kind != OPERAND_ADDRESS)
            return refuse(lo, p, "operand %u is not an address in brackets", k + 1);
        if (o->role == 'i' && kind != OPERAND_IMM)
            return refuse(lo, p, "operand %u is not an immediate", k + 1);
        if (o->role == 'l' &&
            (kind != OPERAND_SYMBOL || (o->symbol->kind != SYM_LABEL && o->symbol->kind != SYM_TARGETS)))
            return refuse(lo, p, "a branch needs a label");
    }
    return true;
}

void visit_operand(const struct ptx_operand *o, visit_fn *visit, void *context)
{
    if (o->reg) visit(o->reg, context);
    for (u32 k = 0; k < o->count; k++) visit_operand(&o->element[k], visit, context);
}
void visit_uses(const struct ptx_inst *p, visit_fn *visit, void *context)
{
    if (p->guard) visit(p->guard, context);
    for (u32 k = 0; k < p->op_count; k++)
        if (is_read(&p->op[k])) visit_operand(&p->op[k], visit, context);
}
void visit_definitions(const struct ptx_inst *p, visit_fn *visit, void *context)
{
    for (u32 k = 0; k < p->op_count; k++)
        if (is_written(&p->op[k])) visit_operand(&p->op[k], visit, context);
}
