/* origin.c: which variable an address comes from, so that an access through it is held to that variable (exec/memory.c): a block's shared
 * memory is one piece, and what overruns one array of it reads or writes the next; in global memory what runs far enough lands in another
 * allocation. A register has a variable's address if all that is ever written to it has: the variable's name, or such a register and a
 * number. A kernel's parameter of 64 bits counts as the name of what it points to; whether it points anywhere is seen at the launch. What
 * could be something else (another variable's address on another way there, one shifted, or one loaded from memory) is held to nothing:
 * no right program is accused. */
#include "flow.h"

/* What a value is, from the least to the most: not known yet, a number, 64 bits from memory or of two halves (in shared memory a number:
 * its addresses are 32 bits, or made of its variables' names), the address of `variable` or what that parameter holds at byte `at`,
 * anything. */
struct value {
    enum kind { UNKNOWN, NUMBER, LOADED, ADDRESS, ANYTHING } kind;
    const struct symbol *variable;
    u64 at;
};

static const struct value number = {.kind = NUMBER}, loaded = {.kind = LOADED}, anything = {.kind = ANYTHING};

static bool is_same(struct value a, struct value b)
{
    return a.kind == b.kind && a.variable == b.variable && a.at == b.at;
}

static bool is_shared(struct value v)
{
    return v.kind == ADDRESS && v.variable->kind == SYM_SHARED;
}

/* What holds on two ways, one of which a program takes. */
static struct value either(struct value a, struct value b)
{
    if (a.kind == UNKNOWN || (a.kind == NUMBER && b.kind == LOADED)) return b;
    if (b.kind == UNKNOWN || (b.kind == NUMBER && a.kind == LOADED)) return a;
    return is_same(a, b) ? a : anything;
}

/* The sum of two, or what is like one: bits of a number put into an address. */
static struct value sum(struct value a, struct value b)
{
    if (a.kind == UNKNOWN || b.kind == UNKNOWN) return (struct value){0};
    if (b.kind == NUMBER || (b.kind == LOADED && (a.kind == LOADED || is_shared(a)))) return a;
    if (a.kind == NUMBER || (a.kind == LOADED && is_shared(b))) return b;
    return anything;
}

/* The product of two, or one shifted or divided: a number, of a parameter too, which then is none that points. By a negative number it
 * could be part of a difference of pointers. */
static struct value product(struct value a, struct value b, const struct ptx_operand *by)
{
    if (a.kind == UNKNOWN || b.kind == UNKNOWN) return (struct value){0};
    bool is_negative = by->kind == OPERAND_IMM && (s64)by->imm < 0 && a.kind != NUMBER;
    if (is_negative || a.kind == ANYTHING || b.kind == ANYTHING || is_shared(a) || is_shared(b))
        return anything;
    return number;
}

static struct value value_of(const struct ptx_operand *o, const struct value *of_reg)
{
    if (o->kind == OPERAND_REG) return o->reg->type == T_PRED ? number : of_reg[o->reg->id];
    if (o->kind == OPERAND_SYMBOL && (o->symbol->kind == SYM_SHARED || o->symbol->kind == SYM_GLOBAL))
        return (struct value){ADDRESS, o->symbol, 0};
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

/* Whether what an instruction writes there has room for an address of global memory. */
static bool is_wide(const struct ptx_operand *o)
{
    if (o->kind == OPERAND_VECTOR) return o->count && is_wide(&o->element[0]);
    return o->kind == OPERAND_REG && type_bytes(o->reg->type) == 8;
}

/* What an instruction computes. */
static struct value result(const struct ptx_inst *p, const struct value *of_reg)
{
    static const char *const from_memory[] = {"ld", "ldu", "atom", "ldmatrix", NULL};
    static const char *const same[] = {"mov", "cvt", "cvta", "mapa", NULL};
    static const char *const sums[] = {"add", "or", "xor", NULL};
    static const char *const products[] = {"mul", "shl", "shr", "div", "rem", NULL};
    static const char *const chooses[] = {"selp", "min", "max", NULL};
    struct value all = number, v[4];
    if (is_one_of(p, from_memory)) return is_wide(&p->op[0]) ? loaded : number;
    for (u32 k = 0; k < 4 || k < p->op_count; k++) { /* behind the last come some of kind NONE */
        struct value operand = is_read(&p->op[k]) ? value_of(&p->op[k], of_reg) : number;
        if (k < 4) v[k] = operand;
        all = sum(all, operand);
    }
    bool halves = is_opcode(p, "mov") && p->op[1].kind == OPERAND_VECTOR;
    if (all.kind <= NUMBER) return all.kind == NUMBER && halves && is_wide(&p->op[0]) ? loaded : all;
    if (!is_wide(&p->op[0]) && all.kind != ANYTHING && !is_shared(all))
        return number; /* too short to point */
    if (is_one_of(p, products)) return product(v[1], v[2], &p->op[2]);
    if (is_one_of(p, same) && !halves) return v[1];
    if (is_one_of(p, sums)) return all;
    if (is_one_of(p, chooses)) return either(v[1], v[2]);
    if (is_opcode(p, "sub")) return v[2].kind == NUMBER ? v[1] : anything;
    if (is_opcode(p, "mad")) return sum(product(v[1], v[2], &p->op[2]), v[3]);
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
    f->changed |= !is_same(joined, f->of_reg[r->id]);
    f->of_reg[r->id] = joined;
}

/* A load of parameters: what has 64 bits may point to something. */
static void set_parameters(const struct ptx_inst *p, struct found *f)
{
    const struct ptx_operand *to = &p->op[0], *from = &p->op[1];
    bool is_vector = to->kind == OPERAND_VECTOR, is_own = from->symbol->kind == SYM_PARAM,
         has_room = has_mod(p, "b64") || has_mod(p, "u64") || has_mod(p, "s64");
    for (u32 k = 0; k < (is_vector ? to->count : 1); k++) {
        const struct ptx_operand *o = is_vector ? &to->element[k] : to;
        if (o->kind != OPERAND_REG) continue;
        struct value address = {ADDRESS, from->symbol, (u64)from->offset + 8 * k};
        f->now = !has_room ? number : is_own ? address : loaded;
        set(o->reg, f);
    }
}

void find_origins(struct parsed_function *f)
{
    struct found all = {.of_reg = keep(f->reg_count * sizeof *all.of_reg)};
    for (all.changed = true; all.changed;) {
        all.changed = false;
        for (u32 i = 0; i < f->count; i++) {
            const struct ptx_inst *p = &f->inst[i];
            if (is_opcode(p, "ld") && has_mod(p, "param") && p->op[1].symbol) {
                set_parameters(p, &all);
                continue;
            }
            all.now = result(p, all.of_reg);
            visit_definitions(p, set, &all);
        }
    }
    for (u32 i = 0; i < f->reg_count; i++) {
        f->regs[i]->variable = all.of_reg[i].variable;
        f->regs[i]->variable_at = all.of_reg[i].at;
    }
}
