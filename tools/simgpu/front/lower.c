/* lower.c: a parsed function -> instructions ready to execute. Registers get places in the frame, immediates become
 * constants, labels become indices, and every branch learns where its lanes meet again: its immediate post-dominator. */
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "../exec/race.h"
#include "../report/report.h"
#include "flow.h"
#include "lower.h"

/* ---- Modifiers ------------------------------------------------------------------------------------------------------ */

bool has_mod(const struct ptx_inst *p, const char *mod)
{
    for (u32 i = 0; i < p->mod_count; i++)
        if (streq(p->mod[i], mod)) return true;
    return false;
}

enum type mod_type(const struct ptx_inst *p, u32 n)
{
    for (u32 i = 0; i < p->mod_count; i++) {
        enum type t = type_named(p->mod[i]);
        if (t != T_NONE && n-- == 0) return t;
    }
    return T_NONE;
}

bool refuse(struct lowering *lo, const struct ptx_inst *p, const char *format, ...)
{
    if (lo->f->fn->refused) return false; /* the first one is enough */
    char reason[512], *why = keep(1536);
    va_list args;
    va_start(args, format);
    vsnprintf(reason, sizeof reason, format, args);
    va_end(args);
    struct source_line at = source_line_of(lo->p, p->line.line);
    const char *unit = lo->f->unit->name;
    snprintf(why, 1536, "%s:%u: kernel code uses '%s': %s",
             at.file ? at.file
             : unit  ? unit
                     : "PTX",
             at.line, p->text, reason);
    lo->f->fn->refused = true;
    lo->f->fn->why = why;
    return false;
}

/* ---- Operands -------------------------------------------------------------------------------------------------------- */

static u32 reg_size(enum type t)
{
    return t == T_PRED ? 4 : type_bytes(t) <= 4 ? 4 * LANES : type_bytes(t) * LANES;
}

static u32 frame_space(struct lowering *lo, u32 bytes)
{
    u32 align = bytes >= 64 ? 64 : 4;
    lo->reg_bytes = (lo->reg_bytes + align - 1) / align * align;
    u32 at = lo->reg_bytes;
    lo->reg_bytes += bytes;
    add_range(lo->f->fn, at, 1, bytes >= 64 ? bytes / LANES : 0);
    return at;
}

static operand reg_operand(struct lowering *lo, struct reg *r)
{
    if (r->offset == UNPLACED) r->offset = frame_space(lo, reg_size(r->type));
    return (operand)r->offset;
}

/* The same for one that is read. */
static operand source_operand(struct lowering *lo, struct reg *r)
{
    r->read = true;
    return reg_operand(lo, r);
}

operand lower_temp(struct lowering *lo, u32 bytes)
{
    return (operand)frame_space(lo, bytes * LANES);
}

operand lower_carry(struct lowering *lo)
{
    if (lo->carry == NO_OPERAND) lo->carry = (operand)frame_space(lo, 4);
    return lo->carry;
}

operand *lower_more(struct lowering *lo, u32 count)
{
    (void)lo;
    return keep(count * sizeof(operand));
}

struct inst *lower_emit(struct lowering *lo)
{
    struct function *fn = lo->f->fn;
    u32 capacity = lo->capacity;
    GROW(fn->code, fn->code_count, lo->capacity);
    if (capacity != lo->capacity) {
        fn->lines = realloc(fn->lines, lo->capacity * sizeof *fn->lines);
        fn->text = realloc(fn->text, lo->capacity * sizeof *fn->text);
        fn->ptx = realloc(fn->ptx, lo->capacity * sizeof *fn->ptx);
    }
    struct inst *in = &fn->code[fn->code_count];
    *in = (struct inst){.d = NO_OPERAND,
                        .a = NO_OPERAND,
                        .b = NO_OPERAND,
                        .c = NO_OPERAND,
                        .guard = NO_OPERAND,
                        .target = -1,
                        .reconverge = -1};
    fn->lines[fn->code_count] = source_line_of(lo->p, lo->at->line.line);
    fn->ptx[fn->code_count] = lo->at;
    fn->text[fn->code_count++] = lo->at->text;
    return in;
}

operand lower_const(struct lowering *lo, u64 value, u32 bytes)
{
    struct function *fn = lo->f->fn;
    u32 slot = (u32)(value * 0x9e3779b97f4a7c15u >> 52) ^ bytes;
    struct const_entry **chain = &lo->consts[slot % CONST_BUCKETS];
    for (struct const_entry *e = *chain; e; e = e->next)
        if (e->value == value && e->bytes == bytes) return e->at;
    struct const_entry *e = keep(sizeof *e);
    if (fn->consts_bytes + bytes * LANES > lo->consts_capacity) {
        u8 *old = fn->consts ? fn->consts - lo->consts_capacity : NULL;
        lo->consts_capacity = lo->consts_capacity ? 2 * lo->consts_capacity : 1 << 14;
        u8 *grown = malloc(lo->consts_capacity);
        if (!grown) exit(3);
        grown += lo->consts_capacity;
        if (fn->consts) memcpy(grown - fn->consts_bytes, fn->consts - fn->consts_bytes, fn->consts_bytes);
        free(old);
        fn->consts = grown;
    }
    fn->consts_bytes += bytes * LANES;
    *e = (struct const_entry){*chain, value, bytes, -(operand)(SPECIAL_BYTES + fn->consts_bytes)};
    *chain = e;
    for (u32 i = 0; i < LANES; i++) {
        u8 *at = fn->consts - fn->consts_bytes + i * bytes;
        u64 high = 0;
        memcpy(at, &value, bytes < 8 ? bytes : 8);
        if (bytes == 16) memcpy(at + 8, &high, 8);
    }
    return e->at;
}

/* The address of a shared variable depends on the block's rank in its cluster, and that of dynamic shared memory on the
 * kernel: a constant of its own that each launch sets. */
static operand shared_const(struct lowering *lo, u64 address, bool is64, u32 number)
{
    struct function *fn = lo->f->fn;
    const struct shared_ref ref = {.address = (s64)address, .is64 = is64, .number = number};
    for (u32 i = 0; i < fn->shared_ref_count; i++) {
        const struct shared_ref *r = &fn->shared_refs[i];
        if (r->address == ref.address && r->is64 == is64 && r->number == number) return r->at;
    }
    operand o = lower_const(lo, 0x5eedull << 48 | fn->shared_ref_count, is64 ? 8 : 4);
    fn->shared_refs = realloc(fn->shared_refs, (fn->shared_ref_count + 1) * sizeof *fn->shared_refs);
    if (!fn->shared_refs) exit(3);
    fn->shared_refs[fn->shared_ref_count] = ref;
    fn->shared_refs[fn->shared_ref_count++].at = o;
    return o;
}

bool lower_undefined(struct lowering *lo, const struct symbol *s)
{
    if (strncmp(s->name, "__cudaCDP2", 10) == 0)
        return refuse(lo, lo->at, "dynamic parallelism is not supported");
    return refuse(lo, lo->at, "%s is declared, but not defined in %s", readable_name(s->name),
                  link_units(lo->p));
}

/* The value of a variable's name (its address in its own state space), in 4 or 8 bytes. */
static operand symbol_value(struct lowering *lo, struct symbol *s, s64 offset, u32 bytes)
{
    switch (s->kind) {
    case SYM_FUNCTION:
        if (s->linkage == LINK_EXTERN) lower_undefined(lo, s);
        return lower_const(lo, (u64)(uintptr_t)s->fn, bytes);
    case SYM_DYNAMIC_SHARED: return shared_const(lo, (u64)offset, bytes == 8, SHARED_DYNAMIC);
    case SYM_SHARED: /* a kernel's own follow those that others have, too */
        if (s->number != SHARED_OWN && s->linkage == LINK_EXTERN) lower_undefined(lo, s);
        if (s->number != SHARED_OWN) return shared_const(lo, (u64)offset, bytes == 8, s->number);
        return shared_const(lo, lo->shared_before + s->address + (u64)offset, bytes == 8, SHARED_OWN);
    case SYM_LOCAL: return lower_runtime_value(lo, RUNTIME_LOCAL, s->address + (u64)offset, bytes);
    case SYM_PARAM: return lower_runtime_value(lo, RUNTIME_PARAM, s->address + (u64)offset, bytes);
    case SYM_ARG:
        refuse(lo, lo->at, "the address of a function's .param variable is taken");
        return lower_const(lo, 0, bytes);
    case SYM_GLOBAL:
    case SYM_CONST:
        if (!s->address) lower_undefined(lo, s);
        return lower_const(lo, s->address + (u64)offset, bytes);
    default: refuse(lo, lo->at, "a label is used as a value"); return lower_const(lo, 0, bytes);
    }
}

static u64 f64_bits_to_f32(u64 bits)
{
    double d;
    float f;
    u32 out;
    memcpy(&d, &bits, 8);
    f = (float)d;
    memcpy(&out, &f, 4);
    return out;
}

static u64 f32_bits_to_f64(u64 bits)
{
    u32 in = (u32)bits;
    float f;
    memcpy(&f, &in, 4);
    double d = f;
    memcpy(&bits, &d, 8);
    return bits;
}

const struct ptx_operand *lower_known(const struct ptx_operand *o, enum type t)
{
    const struct ptx_operand *value = o->kind == OPERAND_REG ? o->reg->value : NULL;
    return value && t != T_PRED && type_bytes(o->reg->type) >= type_bytes(t) ? value : o;
}

operand lower_source(struct lowering *lo, const struct ptx_operand *o, enum type t)
{
    if (!is_read(o)) refuse(lo, lo->at, "an operand is read that opcodes.def only has written");
    o = lower_known(o, t);
    u32 bytes = type_bytes(t) <= 4 ? 4 : type_bytes(t);
    u64 keep_bits = type_bytes(t) >= 8 ? ~0ull : (1ull << 8 * type_bytes(t)) - 1;
    switch (o->kind) {
    case OPERAND_REG: {
        operand reg = source_operand(lo, o->reg);
        u32 have = type_bytes(o->reg->type);
        if (t == T_PRED || o->reg->type == T_PRED) {
            if (t != o->reg->type)
                refuse(lo, lo->at, "%s is %s a predicate here", o->reg->name, t == T_PRED ? "not" : "only");
            return reg;
        }
        if (have < type_bytes(t))
            refuse(lo, lo->at, "register %s is narrower than the instruction's type", o->reg->name);
        return have > type_bytes(t) ? lower_narrowed(lo, reg, have, type_bytes(t)) : reg;
    }
    case OPERAND_IMM:
        if (t == T_PRED) return lower_const(lo, o->imm ? ALL_LANES : 0, 4);
        return lower_const(lo, o->imm & keep_bits, bytes);
    case OPERAND_F32:
        return lower_const(lo, t == T_F64 ? f32_bits_to_f64(o->imm) : o->imm & keep_bits, bytes);
    case OPERAND_F64: return lower_const(lo, t == T_F32 ? f64_bits_to_f32(o->imm) : o->imm, bytes);
    case OPERAND_SYMBOL:
    case OPERAND_SPECIAL:
        if (bytes > 8) {
            refuse(lo, lo->at, "an address or a special register of 128 bits");
            return lower_const(lo, 0, bytes);
        }
        return o->kind == OPERAND_SYMBOL ? symbol_value(lo, o->symbol, o->offset, bytes)
                                         : lower_special(lo, o->special, bytes);
    default: refuse(lo, lo->at, "an operand of this form"); return lower_const(lo, 0, bytes);
    }
}

operand lower_dest(struct lowering *lo, const struct ptx_operand *o, enum type t)
{
    if (!is_written(o)) refuse(lo, lo->at, "an operand is written that opcodes.def only has read");
    if (o->kind == OPERAND_SINK) return (operand)frame_space(lo, reg_size(t));
    if (o->kind != OPERAND_REG) {
        refuse(lo, lo->at, "the destination is not a register");
        return NO_OPERAND;
    }
    u32 have = type_bytes(o->reg->type), want = type_bytes(t);
    if ((t == T_PRED) != (o->reg->type == T_PRED))
        refuse(lo, lo->at, "the destination %s is %s a predicate", o->reg->name,
               t == T_PRED ? "not" : "only");
    else if (have != want)
        refuse(lo, lo->at, "the destination %s has %u bytes, the result %u", o->reg->name, have, want);
    lo->written++;
    return reg_operand(lo, o->reg);
}

operand lower_predicate(struct lowering *lo, const struct ptx_operand *o, u32 *flip)
{
    *flip = o->negated ? ~0u : 0;
    return lower_source(lo, o, T_PRED);
}

/* Where a shared variable lies in a block's shared memory. NULL in a device function, whose callers may have it in different places. */
static const struct shared_variable *place_of(struct lowering *lo, const struct symbol *s)
{
    const struct function *fn = lo->f->fn;
    if (!s || s->kind != SYM_SHARED || !fn->is_kernel) return NULL;
    struct shared_variable *v = keep(sizeof *v);
    *v = (struct shared_variable){
        s->name, s->number == SHARED_OWN ? lo->shared_before + (u32)s->address : fn->shared_at[s->number],
        (u32)s->bytes};
    return v;
}

/* What an address of global memory is made of. NULL: nobody knows. */
static const struct base *base_of(const struct lowering *lo, const struct ptx_operand *o)
{
    const struct function *fn = lo->f->fn;
    const struct symbol *s = o->reg ? o->reg->variable : o->symbol;
    if (!s || (s->kind != SYM_GLOBAL && !(s->kind == SYM_PARAM && o->reg))) return NULL;
    struct base *base = keep(sizeof *base);
    if (s->kind == SYM_GLOBAL) {
        *base = (struct base){.variable = s->address};
        return base;
    }
    *base = (struct base){.at = (u32)(s->address + o->reg->variable_at)};
    while (fn->params[base->number].offset != s->address) base->number++;
    return base;
}

bool lower_address(struct lowering *lo, const struct ptx_operand *o, struct inst *in)
{
    if (o->kind != OPERAND_ADDRESS) return refuse(lo, lo->at, "an address in brackets was expected");
    in->imm = o->offset;
    in->addr64 = true;
    in->variable = place_of(lo, o->reg ? o->reg->variable : o->symbol);
    in->base = base_of(lo, o);
    if (o->reg) {
        in->addr64 = type_bytes(o->reg->type) == 8;
        in->a = source_operand(lo, o->reg);
    } else if (o->symbol) {
        in->imm = 0;
        in->a = symbol_value(lo, o->symbol, o->offset, 8);
    } else {
        in->imm = 0;
        in->a = lower_const(lo, (u64)o->offset, 8);
    }
    return !lo->f->fn->refused;
}

/* ---- Registers that hold a copy --------------------------------------------------------------------------------------- */

/* Moves of which neither register has been written since, in a basic block. */
struct copies {
    struct copy {
        struct reg *to, *from;
    } latest[8]; /* the newest first; older ones are forgotten */
    u32 count;
};

static void forget_copies(struct reg *r, void *context)
{
    struct copies *c = context;
    u32 kept = 0;
    for (u32 k = 0; k < c->count; k++)
        if (c->latest[k].to != r && c->latest[k].from != r) c->latest[kept++] = c->latest[k];
    c->count = kept;
}

static void read_through(struct ptx_operand *o, const struct copies *c)
{
    for (u32 k = 0; o->reg && k < c->count; k++)
        if (c->latest[k].to == o->reg) {
            o->reg = c->latest[k].from;
            break;
        }
    for (u32 k = 0; k < o->count; k++) read_through(&o->element[k], c);
}

/* nvcc moves values between registers of different types, for each shuffle one there and one back. What reads such a copy in the
 * same basic block reads the original, and need not wait for the copy; if nothing else reads it, the mov has nothing to do. */
static void read_through_copies(struct parsed_function *f, const struct flow *g)
{
    struct copies c = {.count = 0};
    for (u32 i = 0; i < f->count; i++) {
        struct ptx_inst *p = &f->inst[i];
        if (!i || g->block_of[i] != g->block_of[i - 1]) c.count = 0;
        for (u32 k = 0; k < p->op_count; k++)
            if (!is_written(&p->op[k])) read_through(&p->op[k], &c);
        visit_definitions(p, forget_copies, &c);
        if (!is_opcode(p, "mov") || p->mod_count != 1 || p->op_count != 2 || p->guard ||
            p->op[0].kind != OPERAND_REG || p->op[1].kind != OPERAND_REG)
            continue;
        struct reg *to = p->op[0].reg, *from = p->op[1].reg;
        if (to == from || to->type == T_PRED || from->type == T_PRED ||
            type_bytes(to->type) != type_bytes(from->type))
            continue;
        u32 most = sizeof c.latest / sizeof *c.latest;
        if (c.count < most) c.count++;
        memmove(c.latest + 1, c.latest, (c.count - 1) * sizeof *c.latest);
        c.latest[0] = (struct copy){to, from};
    }
}

/* ---- Registers that hold a constant ----------------------------------------------------------------------------------- */

static void note_definition(struct reg *r, void *value)
{
    r->value = r->defined ? NULL : value;
    r->defined = true;
}

/* nvcc moves a constant into a register and reads it from there, many instructions later. Of a register that one mov writes and
 * nothing else, the constant itself is read: an executor then sees that it is one. The mov counts all the same, but has nothing to do
 * when all that read the register do so. */
static void find_constants(struct parsed_function *f)
{
    for (u32 i = 0; i < f->count; i++) {
        struct ptx_inst *p = &f->inst[i];
        struct ptx_operand *from = is_opcode(p, "mov") && p->op_count == 2 && !p->guard ? &p->op[1] : NULL;
        bool constant = from && (from->kind == OPERAND_IMM || from->kind == OPERAND_F32);
        visit_definitions(p, note_definition, constant ? from : NULL);
    }
    for (u32 k = 0; k < f->async_reg_count; k++) f->async_regs[k]->value = NULL; /* wgmma wants registers */
}

static void drop_unread(struct parsed_function *f)
{
    struct function *fn = f->fn;
    for (u32 k = 0; k < fn->code_count; k++) {
        const struct ptx_inst *p = fn->ptx[k];
        const struct reg *r = is_opcode(p, "mov") && p->op_count == 2 ? p->op[0].reg : NULL;
        bool whole =
            r && (r->value || !f->async_reg_count) && !r->read && fn->code[k].d == (operand)r->offset;
        if (whole) fn->code[k].exec = lower_skip;
    }
}

/* A branch over a few instructions, as of `if (lane == 0) sum[warp] = v;`: says how many they are, if all are plain and none asks for
 * lanes that have branched. Where the lanes meet is then the very next instruction. */
static void find_skipped(struct function *fn, u32 k)
{
    struct inst *in = &fn->code[k];
    if (in->exec != lower_branch || in->guard == NO_OPERAND || in->target != in->reconverge) return;
    u32 end = (u32)in->target, count = end - k - 1;
    if (in->target <= (s32)k + 1 || count > UINT16_MAX || in[1].plain != count) return;
    for (u32 n = k + 1; n < end; n++)
        if (is_opcode(fn->ptx[n], "shfl")) return;
    in->aux = (u16)count;
}

static void emit_unset(struct lowering *lo, const struct reg *r)
{
    struct inst *in = lower_emit(lo);
    in->exec = lower_unset;
    in->data = r;
}

/* ---- A function ---------------------------------------------------------------------------------------------------------- */

static void lower_instruction(struct lowering *lo, const struct ptx_inst *p)
{
    struct inst in = {.d = NO_OPERAND,
                      .a = NO_OPERAND,
                      .b = NO_OPERAND,
                      .c = NO_OPERAND,
                      .guard = NO_OPERAND,
                      .plain = p->row && p->row->plain && !p->guard,
                      .target = -1,
                      .reconverge = -1};
    if (p->guard) {
        in.guard = source_operand(lo, p->guard);
        in.guard_flip = p->guard_negated ? ~0u : 0;
    }
    lo->written = 0;
    if (!p->row)
        refuse(lo, p, "this instruction is not supported");
    else if (has_its_operands(lo, p) && p->row->lower(lo, p, &in))
        *lower_emit(lo) = in;
    else
        refuse(lo, p, "this form is not supported");
    if (lo->written != p->written)
        refuse(lo, p, "%u registers are written, but opcodes.def says %u", lo->written, p->written);
    if (lo->f->fn->refused) { /* keep the code well formed; the kernel is never launched */
        *lower_emit(lo) = (struct inst){.exec = lower_refused, .guard = NO_OPERAND};
    }
}

void lower_function(struct parser *p, struct parsed_function *f)
{
    struct function *fn = f->fn;
    struct lowering lo = {
        .p = p, .f = f, .carry = NO_OPERAND, .consts = keep(CONST_BUCKETS * sizeof *lo.consts)};
    fn->local_bytes = f->local_bytes;
    if (fn->is_kernel) link_place_shared(p, f);
    lo.shared_before = (fn->shared_bytes + f->shared_align - 1) / f->shared_align * f->shared_align;
    fn->shared_bytes = lo.shared_before + f->shared_bytes;
    for (u32 i = 0; i < f->reg_count; i++) f->regs[i]->offset = UNPLACED;
    find_proposals(f);
    find_data(f);
    find_origins(f);
    struct flow g = build_flow(f);
    warpgroup_prepare(f, &g);
    if (!f->async_reg_count) read_through_copies(f, &g); /* what wgmma writes changes when it is waited for */
    find_constants(f);
    struct unset unset = find_unset(f, &g);
    u32 live = place_registers(f, &g, &lo.reg_bytes), next_unset = 0;
    verify_places(&lo, &g);
    const struct touched **touched = NULL;
    u32 touched_capacity = 0;
    u32 *place = keep((f->count + 2) * sizeof *place); /* PTX index -> index of the instruction (its join) */
    u8 *joins = keep(f->count + 2);
    for (u32 i = 0; i < f->count; i++) {
        u32 n = is_opcode(&f->inst[i], "brx") || (ends_block(&f->inst[i]) && f->inst[i].guard);
        s32 meet = n ? meeting_point(f, &g, i) : -1;
        if (meet >= 0) joins[meet] = 1;
        if (is_opcode(&f->inst[i], "call")) joins[i + 1] = 1; /* guarded and indirect calls part lanes */
    }
    struct ptx_inst *start = keep(sizeof *start);
    *start = (struct ptx_inst){.opcode = "mov", .text = "(start)"};
    lo.at = start;
    for (u32 k = 0; k < unset.count; k++)
        if (unset.use[k].at == UNSET_FROM_THE_START) emit_unset(&lo, unset.use[k].reg);
    struct ptx_inst *end = keep(sizeof *end);
    *end = (struct ptx_inst){.opcode = "ret",
                             .text = "(end)",
                             .line = f->count ? f->inst[f->count - 1].line : (struct source_line){0}};
    for (u32 i = 0; i <= f->count; i++) {
        const struct ptx_inst *at = i < f->count ? &f->inst[i] : end;
        lo.at = at;
        place[i] = fn->code_count;
        if (joins[i]) lower_emit(&lo)->exec = lower_join;
        if (i == f->count) {
            lower_emit(&lo)->exec = fn->is_kernel ? lower_exit : lower_return;
        } else {
            if (is_opcode(at, "call")) {
                fn->calls = true;
                if (at->guard) { /* lanes that do not call wait behind it */
                    operand guard = source_operand(&lo, at->guard);
                    struct inst *skip = lower_emit(&lo);
                    skip->exec = lower_branch;
                    skip->guard = guard;
                    skip->guard_flip = at->guard_negated ? 0 : ~0u;
                    skip->target = skip->reconverge = (s32)i + 1;
                }
            }
            for (; next_unset < unset.count && unset.use[next_unset].at == i; next_unset++)
                emit_unset(&lo, unset.use[next_unset].reg);
            u32 first = fn->code_count;
            lower_instruction(&lo, at);
            if (is_opcode(at, "call") && at->guard) fn->code[fn->code_count - 1].guard = NO_OPERAND;
            if (f->async_reg_count) {
                const struct touched *t = warpgroup_touched(at);
                while (touched_capacity < fn->code_count) {
                    u32 n = touched_capacity;
                    GROW(touched, n, touched_capacity);
                    memset(touched + n, 0, (touched_capacity - n) * sizeof *touched);
                }
                touched[fn->code_count - 1] = t;
            }
            for (u32 k = first; k < fn->code_count; k++)
                if (fn->code[k].target >= 0) fn->code[k].reconverge = meeting_point(f, &g, i);
        }
    }
    free(unset.use);
    place[f->count + 1] = fn->code_count;
    fn->first_site = fn->module->sites;
    fn->module->sites += fn->code_count;
    if (f->async_reg_count) { /* what follows the last instruction touches nothing */
        fn->touched = keep(fn->code_count * sizeof *fn->touched);
        u32 n = touched_capacity < fn->code_count ? touched_capacity : fn->code_count;
        memcpy(fn->touched, touched, n * sizeof *fn->touched);
        free(touched);
    }
    for (u32 k = 0; k < fn->code_count; k++) {
        struct inst *in = &fn->code[k];
        in->site = (fn->first_site + k) >> SITE_BITS ? 0 : fn->first_site + k;
        if (in->target >= 0 && in->target <= (s32)f->count) in->target = (s32)place[in->target];
        if (in->reconverge >= 0) in->reconverge = (s32)place[in->reconverge];
        if (in->exec == lower_branch_table)
            for (s64 t = 0; t < in->imm; t++) ((u32 *)in->data)[t] = place[((u32 *)in->data)[t]];
    }
    drop_unread(f);
    for (u32 k = fn->code_count; k-- > 1;)
        if (fn->code[k - 1].plain) fn->code[k - 1].plain += fn->code[k].plain;
    for (u32 k = 0; k < fn->code_count; k++) find_skipped(fn, k);
    fn->reg_bytes = (lo.reg_bytes + 63) / 64 * 64;
    fn->regs_per_thread =
        live + 8 > 255 ? 255 : live + 8; /* an estimate: the hardware's registers are ptxas's choice */
}

/* ---- A module ---------------------------------------------------------------------------------------------------------- */

struct source_line source_line_of(struct parser *p, u32 loc)
{
    struct source_line out = {0};
    struct parsed_function *f = p->fn;
    if (!loc || loc > f->line_count) return out;
    const struct line_info *at = &f->lines[loc - 1];
    if (loc == f->resolved_loc) return f->resolved;
    /* Climb from the innermost position out of every inlined function, and blame the place in the kernel's own file: what is
     * written in headers is `inlined` there. */
    const struct inlined **inlined = &out.inlined;
    for (int depth = 0; depth < 64; depth++) {
        out.file = at->file < f->unit->file_count ? f->unit->files[at->file] : NULL;
        out.line = at->line;
        if (at->file == f->home_file || !at->at_line) break;
        struct inlined *inner = keep(sizeof *inner);
        *inner = (struct inlined){.file = out.file ? out.file : "?", .line = out.line};
        *inlined = inner;
        inlined = &inner->up;
        const struct line_info *caller = NULL;
        for (u32 k = loc; k-- > 0 && !caller;)
            if (f->lines[k].file == at->at_file && f->lines[k].line == at->at_line &&
                f->lines[k].column == at->at_column)
                caller = &f->lines[k];
        static _Thread_local struct line_info stand_in;
        stand_in = (struct line_info){at->at_file, at->at_line, at->at_column, 0, 0, 0};
        at = caller ? caller : &stand_in;
    }
    f->resolved = out;
    f->resolved_loc = loc;
    return out;
}

/* A refused callee makes its caller refused, so that the launch is refused with the callee's reason. */
static bool inherit_refusal(struct parsed_function *f)
{
    for (u32 k = 0; k < f->count && !f->fn->refused; k++)
        for (u32 o = 0; o < f->inst[k].op_count; o++) {
            const struct symbol *s = f->inst[k].op[o].kind == OPERAND_SYMBOL ? f->inst[k].op[o].symbol : NULL;
            if (!s || s->kind != SYM_FUNCTION || !s->fn->refused) continue;
            f->fn->refused = true;
            f->fn->why = s->fn->why;
            return true;
        }
    return false;
}

/* Parses and lowers a function's body when it is first asked for. False when it is not PTX. */
static bool lower_once(struct parser *p, struct parsed_function *f)
{
    if (!f->lowered) {
        f->lowered = true;
        f->fn->unreadable = !parse_function_body(p, f);
        if (!f->fn->unreadable) lower_function(p, f);
        if (!f->fn->unreadable) dump_function(f->fn);
    }
    return !f->fn->unreadable;
}

/* Any kernel may call any device function, be it through a pointer: these are all lowered here. */
struct module *module_load(const struct ptx_text *texts, u32 count)
{
    struct module *m = keep(sizeof *m);
    struct parser *p = m->parser = keep(sizeof *p);
    p->module = m;
    p->units = keep(count * sizeof *p->units);
    p->unit_count = count;
    p->linked = keep(sizeof *p->linked);
    for (u32 i = 0; i < count; i++) {
        char number[32];
        int length = snprintf(number, sizeof number, "file %u", i + 1);
        p->units[i].name = texts[i].name || count == 1 ? texts[i].name : intern(number, (size_t)length);
    }
    for (u32 i = 0; i < count; i++)
        if (!parse_unit(p, &p->units[i], texts[i].text, texts[i].length)) return NULL;
    if (!parse_initial_values(p)) return NULL;
    m->functions = keep(p->function_count * sizeof *m->functions);
    for (u32 i = 0; i < p->function_count; i++) {
        m->functions[m->function_count++] = p->functions[i]->fn;
        if (!p->functions[i]->fn->is_kernel && !lower_once(p, p->functions[i])) return NULL;
    }
    for (bool changed = true; changed;) {
        changed = false;
        for (u32 i = 0; i < p->function_count; i++)
            changed |= p->functions[i]->lowered && inherit_refusal(p->functions[i]);
    }
    return m;
}

struct function *module_function(struct module *m, const char *name)
{
    for (u32 i = 0; i < m->function_count; i++)
        if (streq(m->functions[i]->name, name)) {
            if (lower_once(m->parser, m->parser->functions[i])) inherit_refusal(m->parser->functions[i]);
            return m->functions[i];
        }
    return NULL;
}

struct variable *module_variable(struct module *m, const char *name)
{
    for (u32 i = 0; i < m->variable_count; i++)
        if (streq(m->variables[i].name, name)) return &m->variables[i];
    return NULL;
}
