/* alu.c: finds the rule for an arithmetic instruction and lowers by it. */
#include "alu.h"
#include "../front/lower.h"

#include <fenv.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_PARTS = 12, SPELLING_BYTES = 96, SLOTS = 8192 };

/* PTX compilers take modifiers in any order, types excepted: here types come last and the others are sorted. */
static void spell(char out[SPELLING_BYTES], const char *const *part, u32 count)
{
    const char *sorted[MAX_PARTS];
    for (u32 n = 0; n < count; n++) {
        u32 at = n;
        bool is_type = n && type_named(part[n]) != T_NONE;
        for (; at > 1 && !is_type; at--) {
            if (type_named(sorted[at - 1]) == T_NONE && strcmp(sorted[at - 1], part[n]) <= 0) break;
            sorted[at] = sorted[at - 1];
        }
        sorted[at] = part[n];
    }
    size_t used = 0;
    for (u32 n = 0; n < count && used < SPELLING_BYTES; n++)
        used += (size_t)snprintf(out + used, SPELLING_BYTES - used, n ? ".%s" : "%s", sorted[n]);
}

static struct slot {
    char *spelling;
    const struct rule *rule;
} slots[SLOTS];

static struct slot *slot_of(const char *spelling)
{
    u32 hash = 2166136261u; /* FNV-1a */
    for (const char *c = spelling; *c; c++) hash = (hash ^ (u8)*c) * 16777619u;
    struct slot *s = &slots[hash % SLOTS];
    while (s->spelling && strcmp(s->spelling, spelling) != 0) s = s + 1 < slots + SLOTS ? s + 1 : slots;
    return s;
}

static void fill_slots(void)
{
    const struct rule *const lists[] = {integer_rules, float_rules, convert_rules, compare_rules};
    for (u32 k = 0; k < sizeof lists / sizeof *lists; k++)
        for (const struct rule *r = lists[k]; r->spelling; r++) {
            char *words = strdup(r->spelling), *rest = words;
            for (char *word; (word = strtok_r(rest, " ", &rest));) {
                const char *part[MAX_PARTS];
                char out[SPELLING_BYTES], *left = word;
                u32 count = 0;
                for (char *name; (name = strtok_r(left, ".", &left));) part[count++] = name;
                spell(out, part, count);
                struct slot *s = slot_of(out);
                if (!s->spelling) *s = (struct slot){strdup(out), r};
            }
            free(words);
        }
}

const struct rule *rule_named(const char *const *part, u32 count, enum rounding *rounding)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    static const char *const modes[] = {[TO_NEAREST] = "rn", [TO_ZERO] = "rz", [DOWN] = "rm", [UP] = "rp"};
    char spelling[SPELLING_BYTES];
    const char *general[MAX_PARTS];
    bool rounds = false;
    pthread_once(&once, fill_slots);
    if (count > MAX_PARTS) return NULL;
    spell(spelling, part, count);
    const struct rule *r = slot_of(spelling)->rule;
    if (r || !rounding) return r;
    for (u32 n = 0; n < count; n++) {
        general[n] = part[n];
        for (u32 m = TO_NEAREST; m <= UP; m++)
            if (streq(part[n], modes[m])) *rounding = m, general[n] = "rnd", rounds = true;
    }
    if (!rounds) return NULL;
    spell(spelling, general, count);
    return slot_of(spelling)->rule;
}

EXECUTOR(in_rounding_mode)
{
    static const int host_mode[] = {[TO_ZERO] = FE_TOWARDZERO, [DOWN] = FE_DOWNWARD, [UP] = FE_UPWARD};
    exec_fn exec = (exec_fn)in->data;
    const struct inst *end = w->plain_end;
    w->plain_end = NULL; /* this one only */
    fesetround(host_mode[in->aux]);
    exec(w, in, mask);
    fesetround(FE_TONEAREST);
    w->plain_end = end;
    GO_ON(w, in, mask);
}

void round_toward(struct inst *in, enum rounding mode)
{
    if (mode == TO_NEAREST) return;
    in->data = (const void *)in->exec;
    in->aux = mode;
    in->exec = in_rounding_mode;
}

bool lower_result(struct lowering *lo, const struct ptx_inst *p, const struct ptx_operand *o, enum type t,
                  operand *d)
{
    if (o->kind != OPERAND_REG) return refuse(lo, p, "the destination is not a register");
    *d = lower_dest(lo, o, t);
    return !lo->f->fn->refused;
}

operand lower_operand(struct lowering *lo, const struct ptx_operand *o, enum type t)
{
    bool wider =
        o->kind == OPERAND_REG && type_bytes(o->reg->type) <= 4 && type_bytes(o->reg->type) > type_bytes(t);
    return lower_source(lo, o, wider && t != T_PRED ? o->reg->type : t);
}

/* Lowers what a rule describes completely. */
bool lower_by_rule(struct lowering *lo, const struct ptx_inst *p, struct inst *in)
{
    const char *part[MAX_PARTS] = {p->opcode};
    enum rounding rounding = TO_NEAREST;
    u32 count = p->mod_count + 1;
    for (u32 n = 1; n < count && n < MAX_PARTS; n++) part[n] = p->mod[n - 1];
    const struct rule *r = rule_named(part, count, &rounding);
    if (!r) return refuse(lo, p, "these modifiers and types together are not supported");
    if (p->op_count != 1u + r->sources)
        return refuse(lo, p, "%u operands, not %u", p->op_count, 1 + r->sources);
    if (!lower_result(lo, p, &p->op[0], r->dest, &in->d)) return false;
    operand source[4] = {NO_OPERAND, NO_OPERAND, NO_OPERAND, NO_OPERAND};
    for (u32 n = 0; n < r->sources; n++) source[n] = lower_operand(lo, &p->op[1 + n], r->type[n]);
    in->a = source[0];
    in->b = r->sources > 1 ? source[1] : source[0];
    in->c = source[2];
    if (r->sources == 4 || r->carry) {
        operand *more = lower_more(lo, 1);
        *more = r->carry ? lower_carry(lo) : source[3];
        in->more = more;
    }
    if (r->carry) {
        in->flags = has_mod(p, "cc");
        if (r->sources == 2) in->c = in->b;
    }
    in->exec = r->exec;
    round_toward(in, rounding);
    return true;
}
