/* origin.c: which shared variable an address comes from, so that an access through it is held to that variable (exec/memory.c): a block's
 * shared memory is one piece, and what overruns one array of it reads or writes the next. A register has a variable's address if all that
 * is ever written to it has: the variable's name, or such a register and a number. What could be something else (another variable's
 * address on another way there, one shifted, or one loaded from memory) is held to nothing: no right program is accused. */
#include "flow.h"

/* What a value is, from the least to the most: not known yet, a number, the address of `variable`, anything. */
struct value {
    enum kind { UNKNOWN, NUMBER, ADDRESS, ANYTHING } kind;
    const struct symbol *variable;
};

static const struct value number = {NUMBER, NULL}, anything = {ANYTHING, NULL};

/* What holds on two ways, one of which a program takes. */
static struct value either(struct value a, struct value b)
{
    if (a.kind == UNKNOWN) return b;
    if (b.kind == UNKNOWN) return a;
    return a.kind == b.kind && a.variable == b.variable ? a : anything;
}

/* The sum of two, or what is like one: bits of a number put into an address. */
static struct value sum(struct value a, struct value b)
{
    if (a.kind == UNKNOWN || b.kind == UNKNOWN) return (struct value){0};
    if (b.kind == NUMBER) return a;
    return a.kind == NUMBER ? b : anything;
}

static struct value value_of(const struct ptx_operand *o, const struct value *of_reg)
{
    if (o->kind == OPERAND_REG) return o->reg->type == T_PRED ? number : of_reg[o->reg->id];
    if (o->kind == OPERAND_SYMBOL && o->symbol->kind == SYM_SHARED) return (struct value){ADDRESS, o->symbol};
    if (o->kind == OPERAND_SYMBOL && o->symbol->kind == SYM_DYNAMIC_SHARED) return anything;
    struct value v = number;
    for (u32 k = 0; k < o->count; k++) v = either(v, value_of(&o->element[k], of_reg));
    return v;
}

static bool is_one_of(const struct ptx_inst *p, const char *const *names)
{
    while (*names && !is_opcode(p, *names)) names++;
    return *names;
}

/* What an instruction computes. */
static struct value result(const struct ptx_inst *p, const struct value *of_reg)
{
    static const char *const from_memory[] = {"ld", "ldu", "atom", "ldmatrix", NULL},
                             *const same[] = {"mov", "cvt", "cvta", "mapa", NULL},
                             *const sums[] = {"add", "or", "xor", NULL},
                             *const chooses[] = {"selp", "min", "max", NULL};
    struct value all = number, v[4];
    if (is_one_of(p, from_memory)) return number;
    for (u32 k = 0; k < 4 || k < p->op_count; k++) { /* behind the last come some of kind NONE */
        struct value operand = is_read(&p->op[k]) ? value_of(&p->op[k], of_reg) : number;
        if (k < 4) v[k] = operand;
        all = sum(all, operand);
    }
    if (all.kind <= NUMBER) return all;
    if (is_one_of(p, same) && p->op[1].kind != OPERAND_VECTOR) return v[1];
    if (is_one_of(p, sums)) return all;
    if (is_one_of(p, chooses)) return either(v[1], v[2]);
    if (is_opcode(p, "sub")) return v[2].kind == NUMBER ? v[1] : anything;
    if (is_opcode(p, "mad")) return v[1].kind == NUMBER && v[2].kind == NUMBER ? v[3] : anything;
    if (is_opcode(p, "and") && p->op[2].kind == OPERAND_IMM && (s32)p->op[2].imm < 0)
        return v[1]; /* rounds down */
    return anything;
}

struct found {
    struct value *of_reg, now;
    bool changed;
};

static void set(struct reg *r, void *context)
{
    struct found *f = context;
    struct value joined = either(f->of_reg[r->id], f->now);
    f->changed |= joined.kind != f->of_reg[r->id].kind || joined.variable != f->of_reg[r->id].variable;
    f->of_reg[r->id] = joined;
}

void find_origins(struct parsed_function *f)
{
    struct found all = {.of_reg = keep(f->reg_count * sizeof *all.of_reg)};
    for (all.changed = true; all.changed;) {
        all.changed = false;
        for (u32 i = 0; i < f->count; i++) {
            all.now = result(&f->inst[i], all.of_reg);
            visit_definitions(&f->inst[i], set, &all);
        }
    }
    for (u32 i = 0; i < f->reg_count; i++) f->regs[i]->variable = all.of_reg[i].variable;
}
