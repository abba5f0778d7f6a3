/* link.c: the files of a program as one module (PTX ISA, "Linking Directives"). A name means the same in all of them when it is
 * declared `.extern`, `.visible`, `.weak` or `.common`, else something of each file's own; nvcc makes the names of static
 * functions and variables such. Shared variables that several kernels may use are laid out here, too, for each kernel. */
#include <stdlib.h>
#include <string.h>

#include "../report/report.h"
#include "flow.h"
#include "lower.h"

static struct symbol *new_symbol(struct parser *p, const char *text, enum symbol_kind kind)
{
    struct symbol *s = keep(sizeof *s);
    *s = (struct symbol){.name = text, .kind = kind, .linkage = LINK_EXTERN, .unit = p->unit};
    if (kind == SYM_SHARED || kind == SYM_DYNAMIC_SHARED) {
        link_number_shared(p, s);
    } else if (kind != SYM_FUNCTION) {
        GROW(p->variables, p->variable_count, p->variable_capacity);
        p->variables[p->variable_count++] = s;
    }
    return s;
}

struct symbol *link_declare(struct parser *p, const char *text, enum symbol_kind kind, enum linkage linkage,
                            const char **wrong)
{
    bool linked = linkage != LINK_STATIC;
    struct name *here = find_here(p->unit->scope, text), *there = linked ? find_here(p->linked, text) : NULL;
    struct symbol *s = here ? here->symbol : there ? there->symbol : new_symbol(p, text, kind);
    if (!here) define_name(p->unit->scope, text)->symbol = s;
    if (linked && !there) define_name(p->linked, text)->symbol = s;
    if (s->kind != kind) {
        char *text_of_it = keep(512);
        snprintf(text_of_it, 512, "%.300s to be what it is in %.100s before", readable_name(text),
                 s->unit->name ? s->unit->name : "this text");
        *wrong = text_of_it;
    }
    return s;
}

bool link_define(struct parser *p, struct symbol *s, enum linkage linkage, u64 bytes, const char **wrong)
{
    if (s->linkage >= LINK_VISIBLE && linkage >= LINK_VISIBLE) {
        char *text = keep(512);
        snprintf(text, 512, "no second definition of %.300s, which %.100s has before", readable_name(s->name),
                 s->unit->name ? s->unit->name : "this text");
        *wrong = text;
    }
    bool larger = linkage == LINK_COMMON && s->linkage == LINK_COMMON && bytes > s->bytes;
    if (linkage <= s->linkage && !larger) return false;
    s->linkage = linkage;
    s->unit = p->unit;
    return true;
}

const char *link_units(const struct parser *p)
{
    enum { NAMED = 8, ROOM = 512 };
    char *list = keep(ROOM);
    int used = 0, unnamed = 0;
    for (u32 k = 0; k < p->unit_count; k++) {
        const char *path = p->units[k].name, *folder = path ? strrchr(path, '/') : NULL;
        const char *name = folder ? folder + 1 : path;
        if (!name || k >= NAMED || used + (int)strlen(name) + 32 > ROOM)
            unnamed++;
        else
            used += snprintf(list + used, ROOM - (size_t)used, "%s%s", used ? ", " : "", name);
    }
    if (!used) return "the program's PTX";
    if (unnamed) snprintf(list + used, ROOM - (size_t)used, " and %d more", unnamed);
    return list;
}

/* ---- Shared variables ------------------------------------------------------------------------------------------------- */

void link_number_shared(struct parser *p, struct symbol *s)
{
    GROW(p->shared, p->shared_count, p->shared_capacity);
    s->number = p->shared_count;
    p->shared[p->shared_count++] = s;
}

void link_use_shared(struct parsed_function *f, const struct symbol *s)
{
    if ((s->kind != SYM_SHARED && s->kind != SYM_DYNAMIC_SHARED) || s->number == SHARED_OWN) return;
    for (u32 k = 0; k < f->shared_count; k++)
        if (f->shared[k] == s->number) return;
    GROW(f->shared, f->shared_count, f->shared_capacity);
    f->shared[f->shared_count++] = s->number;
}

static void reach(struct parser *p, struct parsed_function *f, u8 *wanted);

/* What an operand lets a function call: one by its name or, called through a register, any. */
static void reach_through(struct parser *p, const struct ptx_operand *o, bool called, u8 *wanted)
{
    if (o->kind == OPERAND_SYMBOL && o->symbol->kind == SYM_FUNCTION) {
        struct parsed_function *callee = parsed_of(p, o->symbol->fn);
        if (callee) reach(p, callee, wanted);
    }
    for (u32 k = 0; called && o->kind == OPERAND_REG && k < p->function_count; k++)
        if (!p->functions[k]->fn->is_kernel) reach(p, p->functions[k], wanted);
}

static void reach(struct parser *p, struct parsed_function *f, u8 *wanted)
{
    if (f->reached) return;
    f->reached = true;
    for (u32 k = 0; k < f->shared_count; k++) wanted[f->shared[k]] = 1;
    for (u32 i = 0; i < f->count; i++)
        for (u32 k = 0; k < f->inst[i].op_count; k++)
            reach_through(p, &f->inst[i].op[k], is_opcode(&f->inst[i], "call"), wanted);
}

void link_place_shared(struct parser *p, struct parsed_function *kernel)
{
    struct function *fn = kernel->fn;
    u8 *wanted = keep(p->shared_count);
    fn->shared_at = keep(p->shared_count * sizeof *fn->shared_at);
    fn->shared_align = kernel->shared_align;
    for (u32 k = 0; k < p->function_count; k++) p->functions[k]->reached = false;
    if (p->shared_count) reach(p, kernel, wanted);
    for (u32 k = 0; k < p->shared_count; k++) {
        const struct symbol *s = p->shared[k];
        if (!wanted[k]) continue;
        if (s->align > fn->shared_align) fn->shared_align = s->align;
        if (s->kind == SYM_DYNAMIC_SHARED) continue;
        if (s->align > fn->static_align) fn->static_align = s->align;
        fn->shared_at[k] = (fn->shared_bytes + s->align - 1) / s->align * s->align;
        fn->shared_bytes = fn->shared_at[k] + (u32)s->bytes;
    }
}
