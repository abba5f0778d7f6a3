/* compare.c: setp and set in all their forms. compare.def has the comparisons themselves. */
#include "alu.h"

#define OP(shape, ...) EXECUTOR_##shape(__VA_ARGS__)
#include "compare.def"
#undef OP
#define OP(shape, ...) ROW_##shape(__VA_ARGS__)
const struct rule compare_rules[] = {
#include "compare.def"
    {NULL, NULL, NULL, 0, 0, {0}, false}};
#undef OP

/* inst.aux: the BoolOp; inst.flags: two 16-bit halves a lane; inst.data: the comparison. inst.c is the predicate that
 * BoolOp combines with, flipped by the high word of inst.imm. */
enum combine { COMBINE_NONE, COMBINE_AND, COMBINE_OR, COMBINE_XOR };

struct truths {
    u32 low, high;
};
static struct truths compare(struct warp *w, const struct inst *in)
{
    u64 bits = ((compare_fn)in->data)(lanes_of(w, in->a), lanes_of(w, in->b));
    struct truths t = {(u32)bits, (u32)(bits >> 32)};
    if (!in->flags) t.high = ~t.low; /* the second destination of setp is the comparison's opposite */
    if (in->aux == COMBINE_NONE) return t;
    u32 c = predicate_of(w, in->c) ^ (u32)((u64)in->imm >> 32);
    if (in->aux == COMBINE_AND) return (struct truths){t.low & c, t.high & c};
    if (in->aux == COMBINE_OR) return (struct truths){t.low | c, t.high | c};
    return (struct truths){t.low ^ c, t.high ^ c};
}

EXECUTOR(setp_general)
{
    struct truths t = compare(w, in);
    if (in->d != NO_OPERAND) set_predicate(w, in->d, mask, t.low);
    if (in->more[0] != NO_OPERAND) set_predicate(w, in->more[0], mask, t.high);
    GO_ON(w, in, mask);
}
/* set: the low word of inst.imm where true, 0 where false; of 16-bit pairs, each half has its own. */
EXECUTOR(set_general)
{
    struct truths t = compare(w, in);
    LANES_OF(u32, d, in->d);
    const u32 value = (u32)in->imm, low = in->flags ? value & 0xffff : value,
              high = in->flags ? value & 0xffff0000 : 0;
    FOR_LANES(mask, { d[i] = (t.low >> i & 1 ? low : 0) | (t.high >> i & 1 ? high : 0); });
    GO_ON(w, in, mask);
}

/* Finds the comparison and lowers the sources a, b and c, which follow the destination. */
static const struct rule *lower_comparison(struct lowering *lo, const struct ptx_inst *p, struct inst *in,
                                           enum type source)
{
    static const char *const combine[] = {[COMBINE_AND] = "and", [COMBINE_OR] = "or", [COMBINE_XOR] = "xor"};
    const char *part[8] = {"setp"};
    u32 count = 1;
    for (u32 n = 0; n < p->mod_count && count < 8; n++) {
        enum combine op = COMBINE_NONE;
        for (u32 k = COMBINE_AND; k <= COMBINE_XOR; k++)
            if (streq(p->mod[n], combine[k])) op = k;
        if (op)
            in->aux = (u16)op;
        else if (type_named(p->mod[n]) == T_NONE ||
                 (type_named(p->mod[n]) == source && n + 1 == p->mod_count))
            part[count++] = p->mod[n];
        else if (n + 2 != p->mod_count)
            refuse(lo, p, "the type .%s is out of place", p->mod[n]);
    }
    const struct rule *r = rule_named(part, count, NULL);
    if (!r) {
        refuse(lo, p, "this comparison of these types is not supported");
        return NULL;
    }
    u32 flip = 0, operands = in->aux ? 4 : 3;
    if (p->op_count != operands) {
        refuse(lo, p, "%u operands, not %u", p->op_count, operands);
        return NULL;
    }
    in->a = lower_source(lo, &p->op[1], r->type[0]);
    in->b = lower_source(lo, &p->op[2], r->type[1]);
    if (in->aux) in->c = lower_predicate(lo, &p->op[3], &flip);
    in->imm = (s64)((u64)flip << 32);
    in->flags = r->exec == NULL;
    in->data = (const void *)r->compare;
    return r;
}

bool lower_setp(struct lowering *lo, const struct ptx_inst *p, struct inst *in)
{
    if (mod_type(p, 1) != T_NONE) return refuse(lo, p, "setp has one type");
    const struct rule *r = lower_comparison(lo, p, in, mod_type(p, 0));
    if (!r) return false;
    const struct ptx_operand *d = &p->op[0], *second = NULL;
    if (d->kind == OPERAND_PAIR) second = &d->element[1], d = &d->element[0];
    if (second || in->aux || in->flags) {
        operand *more = lower_more(lo, 1);
        *more = NO_OPERAND;
        if (second && second->kind != OPERAND_SINK && !lower_result(lo, p, second, T_PRED, more))
            return false;
        in->more = more;
        in->exec = setp_general;
    } else {
        in->exec = r->exec;
    }
    return (second && d->kind == OPERAND_SINK) || lower_result(lo, p, d, T_PRED, &in->d);
}

bool lower_set(struct lowering *lo, const struct ptx_inst *p, struct inst *in)
{
    enum type result = mod_type(p, 0), source = mod_type(p, 1);
    if (source == T_NONE) return refuse(lo, p, "set has two types");
    if (!lower_comparison(lo, p, in, source)) return false;
    u32 value;
    switch (result) {
    case T_U32:
    case T_S32: value = ~0u; break;
    case T_F32: value = 0x3f800000; break;
    case T_U16:
    case T_S16: value = 0xffff; break;
    case T_F16: value = 0x3c00; break;
    case T_BF16: value = 0x3f80; break;
    case T_F16X2: value = 0x3c003c00; break;
    case T_BF16X2: value = 0x3f803f80; break;
    default: return refuse(lo, p, "set has no such result type");
    }
    if ((result == T_F16X2 || result == T_BF16X2) && !in->flags)
        return refuse(lo, p, "a packed result of one comparison");
    in->imm = (s64)((u64)in->imm | value);
    in->exec = set_general;
    return lower_result(lo, p, &p->op[0], result, &in->d);
}
