/* ptx_parse.c: PTX text -> modules, variables, functions as lists of instructions (PTX ISA, "Syntax", "Directives"). */
#include <stdlib.h>
#include <string.h>

#include "../runtime/heap.h"
#include "flow.h"
#include "lower.h"

/* ---- Tokens ------------------------------------------------------------------------------------------------------ */

static _Noreturn void parse_error(struct parser *p, const char *expected)
{
    const char *unit = p->unit->name;
    fprintf(stderr, "simgpu: PTX%s%.80s line %u: expected %s, found '%.60s'\n", unit ? " of " : "",
            unit ? unit : "", lex_line(&p->lex), expected, p->lex.token.text);
    longjmp(p->on_error, 1);
}

static bool at_punct(struct parser *p, char c)
{
    return p->lex.token.kind == TOKEN_PUNCT && p->lex.token.text[0] == c;
}
static bool at_word(struct parser *p, const char *word)
{
    return (p->lex.token.kind == TOKEN_DOT_NAME || p->lex.token.kind == TOKEN_NAME) &&
           streq(p->lex.token.text, word);
}
static bool accept(struct parser *p, char c)
{
    if (!at_punct(p, c)) return false;
    lex_next(&p->lex);
    return true;
}
static bool accept_word(struct parser *p, const char *word)
{
    if (!at_word(p, word)) return false;
    lex_next(&p->lex);
    return true;
}
static void expect(struct parser *p, char c)
{
    char text[4] = {'\'', c, '\'', 0};
    if (!accept(p, c)) parse_error(p, text);
}
static const char *expect_name(struct parser *p)
{
    if (p->lex.token.kind != TOKEN_NAME) parse_error(p, "a name");
    const char *text = p->lex.token.text;
    lex_next(&p->lex);
    return text;
}
static u64 expect_integer(struct parser *p)
{
    bool minus = accept(p, '-');
    if (p->lex.token.kind != TOKEN_NUMBER) parse_error(p, "a number");
    u64 v = p->lex.token.value;
    lex_next(&p->lex);
    return minus ? -v : v;
}
/* A number from `least` to `most`; `what` is its name. */
static u32 expect_between(struct parser *p, u32 least, u32 most, const char *what)
{
    char text[96];
    const struct token *t = &p->lex.token;
    snprintf(text, sizeof text, "%s from %u to %u", what, least, most);
    if (t->kind != TOKEN_NUMBER || t->float_bytes || t->value < least || t->value > most)
        parse_error(p, text);
    return (u32)expect_integer(p);
}
static void skip_past(struct parser *p, char c)
{
    while (!at_punct(p, c)) {
        if (p->lex.token.kind == TOKEN_END) parse_error(p, "the end of a directive");
        lex_next(&p->lex);
    }
    lex_next(&p->lex);
}

/* ---- Names ------------------------------------------------------------------------------------------------------- */

/* Names are interned: their address is their hash. */
static struct name **bucket_of(const struct scope *s, const char *text)
{
    return &s->bucket[((uintptr_t)text >> 4 ^ (uintptr_t)text >> 12) & (s->buckets - 1)];
}

struct name *find_here(const struct scope *s, const char *text)
{
    struct name *n = s->buckets ? *bucket_of(s, text) : NULL;
    while (n && n->text != text) n = n->next;
    return n;
}

static struct name *find_name(struct scope *s, const char *text)
{
    for (; s; s = s->outer) {
        struct name *n = find_here(s, text);
        if (n) return n;
    }
    return NULL;
}

static void more_buckets(struct scope *s)
{
    struct scope larger = {.buckets = s->buckets ? 4 * s->buckets : 8};
    larger.bucket = keep(larger.buckets * sizeof *larger.bucket);
    for (u32 b = 0; b < s->buckets; b++)
        for (struct name *n = s->bucket[b], *next; n; n = next) {
            struct name **slot = bucket_of(&larger, n->text);
            next = n->next;
            n->next = *slot;
            *slot = n;
        }
    free(s->bucket);
    s->bucket = larger.bucket;
    s->buckets = larger.buckets;
}

struct name *define_name(struct scope *s, const char *text)
{
    if (s->count++ == s->buckets) more_buckets(s);
    struct name *n = keep(sizeof *n), **slot = bucket_of(s, text);
    *n = (struct name){.next = *slot, .text = text};
    *slot = n;
    return n;
}

static struct name *define_register(struct parsed_function *f, struct scope *s, const char *text,
                                    enum type type)
{
    struct reg *r = keep(sizeof *r);
    *r = (struct reg){.name = text, .type = type, .id = f->reg_count};
    GROW(f->regs, f->reg_count, f->reg_capacity);
    f->regs[f->reg_count++] = r;
    struct name *n = define_name(s, text);
    n->reg = r;
    return n;
}

/* The number that ends a name, as `.reg` counts: without leading zeros, UINT64_MAX if there is none. */
static u64 name_number(const char *text, size_t *base)
{
    size_t length = strlen(text), at = length;
    while (at && text[at - 1] >= '0' && text[at - 1] <= '9') at--;
    *base = at;
    if (at == length || length - at > 18 || (text[at] == '0' && length - at > 1)) return UINT64_MAX;
    return strtoull(text + at, NULL, 10);
}

/* As find_name, in the function that is being parsed; the first use of a register of many defines it. */
static struct name *find_or_number(struct parser *p, const char *text)
{
    for (struct scope *s = p->scope; s; s = s->outer) {
        struct name *n = find_here(s, text);
        if (n) return n;
        size_t base;
        u64 number = s->numbered ? name_number(text, &base) : UINT64_MAX;
        for (const struct numbered *r = s->numbered; r; r = r->next)
            if (number < r->count && strlen(r->base) == base && memcmp(r->base, text, base) == 0)
                return define_register(p->fn, s, text, r->type);
    }
    return NULL;
}

static struct symbol *define_symbol(struct parser *p, const char *text, enum symbol_kind kind)
{
    struct symbol *s = keep(sizeof *s);
    s->name = text;
    s->kind = kind;
    define_name(p->scope, text)->symbol = s;
    return s;
}

/* Operands and initial values nest: the parser's own stack must hold them. */
static void enter(struct parser *p)
{
    enum { DEEPEST = 64 };
    if (++p->depth > DEEPEST) parse_error(p, "nothing nested more than 64 deep");
}

static void push_scope(struct parser *p)
{
    struct scope *s = keep(sizeof *s);
    s->outer = p->scope;
    p->scope = s;
}

/* ---- Types ------------------------------------------------------------------------------------------------------- */

static const struct {
    const char *name;
    u8 bytes;
    bool is_signed, is_float;
} types[] = {
    [T_NONE] = {"", 0, false, false},        [T_PRED] = {"pred", 0, false, false},
    [T_B8] = {"b8", 1, false, false},        [T_U8] = {"u8", 1, false, false},
    [T_S8] = {"s8", 1, true, false},         [T_B16] = {"b16", 2, false, false},
    [T_U16] = {"u16", 2, false, false},      [T_S16] = {"s16", 2, true, false},
    [T_B32] = {"b32", 4, false, false},      [T_U32] = {"u32", 4, false, false},
    [T_S32] = {"s32", 4, true, false},       [T_B64] = {"b64", 8, false, false},
    [T_U64] = {"u64", 8, false, false},      [T_S64] = {"s64", 8, true, false},
    [T_B128] = {"b128", 16, false, false},   [T_F16] = {"f16", 2, false, true},
    [T_F16X2] = {"f16x2", 4, false, true},   [T_BF16] = {"bf16", 2, false, true},
    [T_BF16X2] = {"bf16x2", 4, false, true}, [T_TF32] = {"tf32", 4, false, true},
    [T_F32] = {"f32", 4, false, true},       [T_F32X2] = {"f32x2", 8, false, true},
    [T_F64] = {"f64", 8, false, true},       [T_E4M3] = {"e4m3", 1, false, true},
    [T_E5M2] = {"e5m2", 1, false, true},     [T_E4M3X2] = {"e4m3x2", 2, false, true},
    [T_E5M2X2] = {"e5m2x2", 2, false, true}, [T_U16X2] = {"u16x2", 4, false, false},
    [T_S16X2] = {"s16x2", 4, true, false},
};

u32 type_bytes(enum type t)
{
    return types[t].bytes;
}
bool type_signed(enum type t)
{
    return types[t].is_signed;
}
bool type_float(enum type t)
{
    return types[t].is_float;
}
enum type type_named(const char *s)
{
    for (u32 t = T_PRED; t < sizeof types / sizeof *types; t++)
        if (streq(types[t].name, s)) return (enum type)t;
    return T_NONE;
}

/* ---- Variables ----------------------------------------------------------------------------------------------------- */

/* The most that a variable may have, and an alignment, and all variables of a thread, a block or a call. */
enum { MAX_ALIGN = 1 << 20, MAX_SPACE = 1 << 24 };
#define MAX_VARIABLE (1ull << 44)

/* What a declaration says: `.align 8 .b8 name[100]`. */
struct declaration {
    enum type type;
    const char *name;
    u64 bytes;
    u32 align, elements_per;
    bool open_array;
};

static struct declaration parse_declaration(struct parser *p)
{
    struct declaration d = {.elements_per = 1};
    for (; p->lex.token.kind == TOKEN_DOT_NAME;) {
        const char *word = p->lex.token.text + 1;
        lex_next(&p->lex);
        enum type t = type_named(word);
        if (t != T_NONE)
            d.type = t;
        else if (streq(word, "align")) {
            d.align = expect_between(p, 1, MAX_ALIGN, "an alignment");
            if (d.align & (d.align - 1)) parse_error(p, "an alignment that is a power of 2 before");
        } else if (streq(word, "v2"))
            d.elements_per = 2;
        else if (streq(word, "v4"))
            d.elements_per = 4;
        else if (streq(word, "attribute")) {
            expect(p, '('); /* .managed: the host reaches every variable anyhow */
            skip_past(p, ')');
        }
        /* .ptr .global and the like on a parameter only say what it points to */
    }
    if (d.type == T_NONE) parse_error(p, "a type");
    d.bytes = type_bytes(d.type) * d.elements_per;
    if (!d.align) d.align = d.bytes ? (u32)d.bytes : 1;
    d.name = expect_name(p);
    while (accept(p, '[')) {
        if (at_punct(p, ']'))
            d.open_array = true;
        else if (__builtin_mul_overflow(d.bytes, expect_integer(p), &d.bytes) || d.bytes > MAX_VARIABLE)
            parse_error(p, "an array of at most 2^44 bytes before");
        expect(p, ']');
    }
    return d;
}

static u64 round_up(u64 v, u64 to)
{
    return (v + to - 1) / to * to;
}

/* Room for a variable after the *used bytes that its state space has: the variable's offset. */
static u32 make_room(struct parser *p, u32 *used, const struct declaration *d)
{
    u64 at = round_up(*used, d->align);
    if (at + d->bytes > MAX_SPACE) parse_error(p, "at most 16 MiB of variables in this state space");
    *used = (u32)(at + d->bytes);
    return (u32)at;
}

static _Noreturn void no_definition(struct parser *p, const struct symbol *s)
{
    char expected[512];
    snprintf(expected, sizeof expected, "a definition of %.200s in %.200s before", s->name, link_units(p));
    parse_error(p, expected);
}

/* One element of an initialiser, written at `at`: a number, an address, generic(address). */
static void initial_value(struct parser *p, u8 *at, u32 bytes)
{
    u64 v = 0, whole[2] = {0};
    bool minus = accept(p, '-');
    if (p->lex.token.kind == TOKEN_NUMBER) {
        v = p->lex.token.value;
        if (p->lex.token.float_bytes == 8 && bytes == 4) {
            double d;
            float f;
            memcpy(&d, &v, 8);
            f = (float)d;
            v = 0;
            memcpy(&v, &f, 4);
        }
        if (minus && !p->lex.token.float_bytes) v = -v;
        lex_next(&p->lex);
    } else {
        bool wrapped = accept_word(p, "generic");
        if (wrapped) expect(p, '(');
        const char *text = expect_name(p);
        struct name *n = find_name(p->scope, text);
        if (!n || !n->symbol) parse_error(p, "a variable declared before");
        v = n->symbol->kind == SYM_FUNCTION ? (u64)(uintptr_t)n->symbol->fn : n->symbol->address;
        if (!v || (n->symbol->kind == SYM_FUNCTION && n->symbol->linkage == LINK_EXTERN))
            no_definition(p, n->symbol);
        if (wrapped) expect(p, ')');
        if (accept(p, '+')) v += expect_integer(p);
    }
    whole[0] = v;
    memcpy(at, whole, bytes);
}

static u64 initializer(struct parser *p, u8 *base, u64 room, u32 element)
{
    u64 at = 0;
    enter(p);
    if (!at_punct(p, '{')) {
        if (element > room) parse_error(p, "no initial value of an array without elements");
        initial_value(p, base, element);
        p->depth--;
        return element;
    }
    expect(p, '{');
    while (!at_punct(p, '}')) {
        if (at_punct(p, '{')) {
            at += initializer(p, base + at, room - at, element);
        } else {
            if (at + element > room) parse_error(p, "no more initial values than the array has elements");
            initial_value(p, base + at, element);
            at += element;
        }
        if (!accept(p, ',')) break;
    }
    expect(p, '}');
    p->depth--;
    return at;
}

static void place_variable(struct parser *p, struct symbol *s)
{
    bool is_const = s->kind == SYM_CONST;
    s->address =
        heap_alloc(s->bytes ? s->bytes : 1, is_const ? ALLOCATION_CONST : ALLOCATION_VARIABLE, s->name);
    if (!s->address) parse_error(p, "a variable that fits into the device's memory");
    struct module *m = p->module;
    m->variables = realloc(m->variables, (m->variable_count + 1) * sizeof *m->variables);
    if (!m->variables) parse_error(p, "enough host memory");
    m->variables[m->variable_count++] = (struct variable){s->name, s->address, s->bytes, s->align, is_const};
}

static void first_value(struct parser *p, const struct symbol *s)
{
    initializer(p, (u8 *)(uintptr_t)s->address, s->bytes, type_bytes(s->type));
}

bool parse_initial_values(struct parser *p)
{
    if (setjmp(p->on_error)) return false;
    for (u32 k = 0; k < p->variable_count; k++)
        if (p->variables[k]->linkage != LINK_EXTERN) place_variable(p, p->variables[k]);
    for (u32 k = 0; k < p->variable_count; k++) {
        const struct symbol *s = p->variables[k];
        if (!s->initial) continue;
        p->unit = s->unit;
        p->scope = s->unit->scope;
        p->lex = *s->initial;
        p->depth = 0;
        expect(p, '=');
        first_value(p, s);
        if (!at_punct(p, ';')) parse_error(p, "';'");
    }
    return true;
}

/* A variable in the text of a unit. What it begins with is read when all units are known: it may hold addresses. */
static void declare_variable(struct parser *p, enum space space, enum linkage linkage)
{
    struct declaration d = parse_declaration(p);
    bool shared = space == SPACE_SHARED, dynamic = shared && d.open_array;
    const char *wrong = NULL;
    struct symbol *s = link_declare(p, d.name,
                                    dynamic                ? SYM_DYNAMIC_SHARED
                                    : shared               ? SYM_SHARED
                                    : space == SPACE_CONST ? SYM_CONST
                                                           : SYM_GLOBAL,
                                    linkage, &wrong);
    if (wrong) parse_error(p, wrong);
    if (dynamic) {
        if (d.align > s->align) s->align = d.align;
    } else if (linkage == LINK_EXTERN ? s->linkage == LINK_EXTERN
                                      : link_define(p, s, linkage, d.bytes, &wrong)) {
        s->bytes = d.bytes;
        s->type = d.type;
        s->align = d.align;
        s->initial = NULL;
        if (shared) make_room(p, &p->shared_bytes, &d); /* all of them, together, are not too many */
        if (at_punct(p, '=')) {
            s->initial = keep(sizeof *s->initial);
            *s->initial = p->lex;
        }
    }
    if (wrong) parse_error(p, wrong);
    if (at_punct(p, '=') && linkage != LINK_EXTERN)
        skip_past(p, ';');
    else
        expect(p, ';');
}

/* One in the body of a function: as long-lived, but known only there. */
static void declare_inner_variable(struct parser *p, enum symbol_kind kind)
{
    struct declaration d = parse_declaration(p);
    struct symbol *s = define_symbol(p, d.name, kind);
    s->bytes = d.bytes;
    s->type = d.type;
    s->align = d.align;
    place_variable(p, s);
    if (accept(p, '=')) first_value(p, s);
    expect(p, ';');
}

/* ---- Operands ------------------------------------------------------------------------------------------------------- */

static void parse_operand(struct parser *p, struct ptx_operand *o);

static void parse_elements(struct parser *p, struct ptx_operand *o, char close)
{
    u32 capacity = 0;
    while (!at_punct(p, close)) {
        GROW(o->element, o->count, capacity);
        memset(&o->element[o->count], 0, sizeof *o->element);
        parse_operand(p, &o->element[o->count++]);
        if (!accept(p, ',')) break;
    }
    expect(p, close);
}

static void use_label(struct parser *p, struct ptx_operand *o, const char *text)
{
    struct parsed_function *f = p->fn;
    o->kind = OPERAND_SYMBOL;
    GROW(f->uses, f->use_count, f->use_capacity);
    f->uses[f->use_count++] = (struct label_use){p->scope, NULL, text};
    o->imm = f->use_count; /* which use; `symbol` is filled in at the end of the function */
}

/* A register, special register, variable, label or `_`. */
static void parse_named(struct parser *p, struct ptx_operand *o)
{
    const char *text = p->lex.token.text;
    lex_next(&p->lex);
    if (text[0] == '_' && !text[1]) {
        o->kind = OPERAND_SINK;
        return;
    }
    struct name *n = find_or_number(p, text);
    if (n && n->reg) {
        o->kind = OPERAND_REG;
        o->reg = n->reg;
    } else if (n) {
        o->kind = OPERAND_SYMBOL;
        o->symbol = n->symbol;
        link_use_shared(p->fn, n->symbol);
    } else if (streq(text, "WARP_SZ")) {
        o->kind = OPERAND_IMM;
        o->imm = LANES;
    } else if (text[0] == '%') {
        o->kind = OPERAND_SPECIAL;
        o->special = text;
        if (p->lex.token.kind == TOKEN_DOT_NAME && !p->lex.token.spaced) {
            char joined[128];
            snprintf(joined, sizeof joined, "%s%s", text, p->lex.token.text);
            o->special = intern(joined, strlen(joined));
            lex_next(&p->lex);
        }
    } else {
        use_label(p, o, text);
    }
}

static void parse_offset(struct parser *p, struct ptx_operand *o)
{
    while (at_punct(p, '+') || at_punct(p, '-')) {
        bool minus = at_punct(p, '-');
        lex_next(&p->lex);
        s64 v = (s64)expect_integer(p);
        o->offset += minus ? -v : v;
    }
}

static void parse_operand(struct parser *p, struct ptx_operand *o)
{
    enter(p);
    if (accept(p, '{')) {
        o->kind = OPERAND_VECTOR;
        parse_elements(p, o, '}');
    } else if (accept(p, '(')) {
        o->kind = OPERAND_LIST;
        parse_elements(p, o, ')');
    } else if (accept(p, '[')) {
        if (p->lex.token.kind == TOKEN_NUMBER)
            o->offset = (s64)expect_integer(p);
        else
            parse_named(p, o);
        if (o->kind != OPERAND_NONE && o->kind != OPERAND_REG && o->kind != OPERAND_SYMBOL)
            parse_error(p, "a register, a variable or a number as the address before");
        o->kind = OPERAND_ADDRESS;
        parse_offset(p, o);
        if (accept(p, ','))
            parse_elements(p, o, ']');
        else
            expect(p, ']');
    } else if (accept(p, '!')) {
        parse_operand(p, o);
        o->negated = true;
    } else if (at_punct(p, '-') || p->lex.token.kind == TOKEN_NUMBER) {
        bool minus = accept(p, '-');
        if (p->lex.token.kind != TOKEN_NUMBER) {
            parse_operand(p, o);
            o->negated = true;
        } else {
            o->kind = p->lex.token.float_bytes == 4   ? OPERAND_F32
                      : p->lex.token.float_bytes == 8 ? OPERAND_F64
                                                      : OPERAND_IMM;
            o->imm = p->lex.token.value;
            if (minus)
                o->imm = o->kind == OPERAND_IMM ? -o->imm
                                                : o->imm ^ (o->kind == OPERAND_F32 ? 1ull << 31 : 1ull << 63);
            lex_next(&p->lex);
        }
    } else if (p->lex.token.kind == TOKEN_NAME) {
        parse_named(p, o);
        if (o->kind == OPERAND_SYMBOL) parse_offset(p, o);
        if (accept(p, '|')) {
            struct ptx_operand *pair = keep(2 * sizeof *pair);
            pair[0] = *o;
            parse_operand(p, &pair[1]);
            *o = (struct ptx_operand){.kind = OPERAND_PAIR, .element = pair, .count = 2};
        }
    } else {
        parse_error(p, "an operand");
    }
    p->depth--;
}

/* ---- Function bodies ---------------------------------------------------------------------------------------------- */

static void parse_loc(struct parser *p)
{
    struct line_info li = {0};
    li.file = (u32)expect_integer(p);
    li.line = (u32)expect_integer(p);
    li.column = (u32)expect_integer(p);
    while (accept(p, ',')) {
        if (accept_word(p, "function_name")) {
            expect_name(p);
            if (accept(p, '+')) expect_integer(p);
        } else if (accept_word(p, "inlined_at")) {
            li.at_file = (u32)expect_integer(p);
            li.at_line = (u32)expect_integer(p);
            li.at_column = (u32)expect_integer(p);
        } else {
            parse_error(p, "function_name or inlined_at");
        }
    }
    struct parsed_function *f = p->fn;
    GROW(f->lines, f->line_count, f->line_capacity);
    f->lines[f->line_count++] = li;
    p->current_line = f->line_count;
    if (!f->home_file) f->home_file = li.file;
}

static void declare_registers(struct parser *p)
{
    enum type type = T_NONE;
    while (p->lex.token.kind == TOKEN_DOT_NAME) {
        type = type_named(p->lex.token.text + 1);
        if (type == T_NONE) parse_error(p, "a register type");
        lex_next(&p->lex);
    }
    do {
        const char *base = expect_name(p);
        if (!accept(p, '<')) {
            define_register(p->fn, p->scope, base, type);
            continue;
        }
        struct numbered *r = keep(sizeof *r);
        *r = (struct numbered){p->scope->numbered, base, type, expect_integer(p)};
        p->scope->numbered = r;
        expect(p, '>');
    } while (accept(p, ','));
    expect(p, ';');
}

static void declare_local_variable(struct parser *p, enum space space)
{
    struct parsed_function *f = p->fn;
    struct declaration d = parse_declaration(p);
    enum symbol_kind kind = space == SPACE_LOCAL ? SYM_LOCAL : space == SPACE_PARAM ? SYM_ARG : SYM_SHARED;
    if (kind == SYM_SHARED && d.open_array) kind = SYM_DYNAMIC_SHARED;
    struct symbol *s = define_symbol(p, d.name, kind);
    bool shared = space == SPACE_SHARED, own = shared && f->fn->is_kernel;
    u32 *bytes = space == SPACE_LOCAL   ? &f->local_bytes
                 : space == SPACE_PARAM ? &f->fn->arg_bytes
                 : own                  ? &f->shared_bytes
                                        : &p->shared_bytes;
    u32 at = make_room(p, bytes, &d);
    s->bytes = d.bytes;
    s->align = d.align;
    s->type = d.type;
    if (!shared || own) s->address = at;
    if (own) {
        s->number = SHARED_OWN;
        if (d.align > f->shared_align) f->shared_align = d.align;
        if (d.align > f->fn->static_align) f->fn->static_align = d.align;
    } else if (shared) {
        s->linkage = LINK_STATIC;
        link_number_shared(p, s);
    }
    expect(p, ';');
}

static const char *copy_text(const char *start, const char *end)
{
    char *s = keep((size_t)(end - start) + 1), *to = s;
    for (const char *from = start; from < end; from++) {
        char c = *from == '\t' || *from == '\n' ? ' ' : *from;
        if (c != ' ' || (to > s && to[-1] != ' ')) *to++ = c;
    }
    return s;
}

static void parse_instruction(struct parser *p)
{
    struct parsed_function *f = p->fn;
    struct ptx_inst in = {0};
    if (accept(p, '@')) {
        in.guard_negated = accept(p, '!');
        struct name *n = find_or_number(p, expect_name(p));
        if (!n || !n->reg || n->reg->type != T_PRED) parse_error(p, "a predicate register");
        in.guard = n->reg;
    }
    const char *start = p->lex.token.start, *end = start;
    in.opcode = expect_name(p);
    u32 mods = 0, ops = 0;
    while (p->lex.token.kind == TOKEN_DOT_NAME) {
        GROW(in.mod, in.mod_count, mods);
        in.mod[in.mod_count++] = p->lex.token.text + 1;
        lex_next(&p->lex);
    }
    while (!at_punct(p, ';')) {
        GROW(in.op, in.op_count, ops);
        memset(&in.op[in.op_count], 0, sizeof *in.op);
        parse_operand(p, &in.op[in.op_count++]);
        if (!accept(p, ',')) break;
    }
    struct ptx_operand *padded = keep((in.op_count + MAX_OPERANDS) * sizeof *padded);
    if (in.op_count) memcpy(padded, in.op, in.op_count * sizeof *padded);
    free(in.op);
    in.op = padded;
    end = p->lex.token.start;
    expect(p, ';');
    find_roles(&in);
    in.text = copy_text(start, end);
    in.line.line = p->current_line; /* resolved to file and line once all .file directives are known */
    GROW(f->inst, f->count, f->capacity);
    f->inst[f->count++] = in;
}

static void define_label(struct parser *p, const char *text)
{
    if (accept_word(p, ".branchtargets")) {
        struct parsed_function *f = p->fn;
        struct symbol *s = define_symbol(p, text, SYM_TARGETS);
        struct ptx_operand list = {0};
        parse_elements(p, &list, ';');
        s->targets = list.element;
        s->target_count = list.count;
        GROW(f->tables, f->table_count, f->table_capacity);
        f->tables[f->table_count++] = s;
    } else if (at_word(p, ".callprototype")) {
        define_symbol(p, text, SYM_LABEL);
        skip_past(p, ';');
    } else {
        define_symbol(p, text, SYM_LABEL)->address = p->fn->count;
    }
}

static void parse_body(struct parser *p)
{
    for (u32 depth = 1; depth > 0;) {
        struct token t = p->lex.token;
        if (accept(p, '{')) {
            push_scope(p);
            depth++;
        } else if (accept(p, '}')) {
            if (--depth) p->scope = p->scope->outer;
        } else if (accept(p, ';')) {
            /* an empty statement, as hand-written inline assembly leaves them */
        } else if (accept_word(p, ".reg")) {
            declare_registers(p);
        } else if (accept_word(p, ".local")) {
            declare_local_variable(p, SPACE_LOCAL);
        } else if (accept_word(p, ".shared")) {
            declare_local_variable(p, SPACE_SHARED);
        } else if (accept_word(p, ".param")) {
            declare_local_variable(p, SPACE_PARAM);
        } else if (accept_word(p, ".global")) {
            declare_inner_variable(p, SYM_GLOBAL);
        } else if (accept_word(p, ".const")) {
            declare_inner_variable(p, SYM_CONST);
        } else if (accept_word(p, ".loc")) {
            parse_loc(p);
        } else if (accept_word(p, ".pragma")) {
            skip_past(p, ';');
        } else if (t.kind == TOKEN_NAME) {
            const char *after = p->lex.at;
            while (after < p->lex.limit && (*after == ' ' || *after == '\t')) after++;
            if (after < p->lex.limit && *after == ':') {
                lex_next(&p->lex);
                lex_next(&p->lex);
                define_label(p, t.text);
            } else {
                parse_instruction(p);
            }
        } else if (at_punct(p, '@')) {
            parse_instruction(p);
        } else {
            parse_error(p, "an instruction");
        }
    }
}

static void fix_labels_in(struct parser *p, struct ptx_operand *o)
{
    for (u32 i = 0; i < o->count; i++) fix_labels_in(p, &o->element[i]);
    if ((o->kind != OPERAND_SYMBOL && o->kind != OPERAND_ADDRESS) || o->symbol || !o->imm) return;
    struct label_use *use = &p->fn->uses[o->imm - 1];
    struct name *n = find_name(use->scope, use->name);
    if (!n || !n->symbol) {
        fprintf(stderr, "simgpu: PTX function %s: '%s' is not declared\n", p->fn->fn->name, use->name);
        longjmp(p->on_error, 1);
    }
    o->symbol = n->symbol;
    o->imm = 0;
}

static void fix_labels(struct parser *p)
{
    struct parsed_function *f = p->fn;
    for (u32 i = 0; i < f->count; i++)
        for (u32 k = 0; k < f->inst[i].op_count; k++) fix_labels_in(p, &f->inst[i].op[k]);
    for (u32 t = 0; t < f->table_count; t++)
        for (u32 i = 0; i < f->tables[t]->target_count; i++) fix_labels_in(p, &f->tables[t]->targets[i]);
}

/* ---- Functions -------------------------------------------------------------------------------------------------------- */

/* `(.param .b32 a, .param .align 8 .b8 b[16])`. A kernel's lie in its parameter buffer, a function's among its .param
 * variables. */
static struct param *parse_params(struct parser *p, bool kernel, u32 *count)
{
    struct param *list = NULL;
    u32 capacity = 0;
    *count = 0;
    expect(p, '(');
    while (!at_punct(p, ')')) {
        if (!accept_word(p, ".param")) parse_error(p, ".param");
        struct declaration d = parse_declaration(p);
        u32 *bytes = kernel ? &p->fn->fn->param_bytes : &p->fn->fn->arg_bytes;
        struct symbol *s = define_symbol(p, d.name, kernel ? SYM_PARAM : SYM_ARG);
        s->address = make_room(p, bytes, &d);
        s->bytes = d.bytes;
        s->align = d.align;
        s->type = d.type;
        GROW(list, *count, capacity);
        list[(*count)++] = (struct param){d.name, (u32)s->address, (u32)d.bytes};
        if (!accept(p, ',')) break;
    }
    expect(p, ')');
    return list;
}

/* Three sizes, those that are not written 1; returns their product. */
static u32 parse_extent(struct parser *p, u32 extent[3])
{
    for (int i = 0; i < 3; i++) {
        extent[i] = 1;
        if (i == 0 || accept(p, ',')) extent[i] = expect_between(p, 1, 1024, "a size");
    }
    return extent[0] * extent[1] * extent[2];
}

struct parsed_function *parsed_of(struct parser *p, const struct function *fn)
{
    for (u32 i = 0; i < p->function_count; i++)
        if (p->functions[i]->fn == fn) return p->functions[i];
    return NULL;
}

static void parse_function(struct parser *p, bool kernel, enum linkage linkage)
{
    struct parsed_function *f = keep(sizeof *f);
    struct scope *saved = p->scope;
    p->fn = f;
    f->unit = p->unit;
    f->fn = keep(sizeof *f->fn);
    f->fn->module = p->module;
    f->fn->is_kernel = kernel;
    f->fn->max_threads = 1024;
    f->shared_align = 16;
    push_scope(p);
    struct scope *inner = p->scope;
    if (!kernel && at_punct(p, '(')) f->fn->results = parse_params(p, false, &f->fn->result_count);
    f->fn->name = expect_name(p);
    if (at_punct(p, '(')) f->fn->params = parse_params(p, kernel, &f->fn->param_count);
    u32 ignored[3];
    bool bounded = false;
    while (p->lex.token.kind == TOKEN_DOT_NAME) {
        if (accept_word(p, ".maxntid") || accept_word(p, ".reqntid")) {
            u32 threads = parse_extent(p, ignored);
            if (threads < f->fn->max_threads) f->fn->max_threads = threads;
            bounded = true;
        } else if (accept_word(p, ".reqnctapercluster"))
            parse_extent(p, f->fn->cluster);
        else if (accept_word(p, ".minnctapersm"))
            f->fn->min_blocks = expect_between(p, 0, 1024, "a number of blocks");
        else if (accept_word(p, ".maxnreg"))
            f->fn->max_registers = expect_between(p, 1, 65536, "a number of registers");
        else if (accept_word(p, ".maxclusterrank") || accept_word(p, ".minnctapercluster") ||
                 accept_word(p, ".abi_preserve") || accept_word(p, ".abi_preserve_control"))
            expect_integer(p);
        else if (accept_word(p, ".pragma"))
            skip_past(p, ';');
        else if (accept_word(p, ".noreturn") || accept_word(p, ".explicitcluster") ||
                 accept_word(p, ".blocksareclusters"))
            continue;
        else
            parse_error(p, "a kernel directive");
    }
    if (!bounded) f->fn->min_blocks = 0; /* as ptxas says */
    p->scope = saved;
    const char *wrong = NULL;
    struct symbol *s = link_declare(p, f->fn->name, SYM_FUNCTION, linkage, &wrong);
    if (wrong) parse_error(p, wrong);
    if (!s->fn) s->fn = f->fn;
    if (accept(p, ';')) return; /* a prototype */
    bool counts = link_define(p, s, linkage == LINK_EXTERN ? LINK_VISIBLE : linkage, 0, &wrong);
    if (wrong) parse_error(p, wrong);
    expect(p, '{');
    f->body = p->lex;
    f->scope = inner;
    lex_skip_block(&p->lex);
    expect(p, '}');
    if (!counts) return;
    u32 k = 0;
    while (k < p->function_count && p->functions[k]->fn != s->fn) k++;
    if (k == p->function_count) {
        GROW(p->functions, p->function_count, p->function_capacity);
        p->function_count++;
    }
    p->functions[k] = f;
    *s->fn = *f->fn; /* calls refer to the struct of the prototype or the weaker definition that came first */
    f->fn = s->fn;
}

bool parse_function_body(struct parser *p, struct parsed_function *f)
{
    if (setjmp(p->on_error)) return false;
    p->fn = f;
    p->unit = f->unit;
    p->lex = f->body;
    p->scope = f->scope;
    p->current_line = p->depth = 0;
    parse_body(p);
    fix_labels(p);
    return true;
}

static void parse_file(struct parser *p)
{
    u32 number = expect_between(p, 0, 1 << 20, "a file's number");
    if (p->lex.token.kind != TOKEN_STRING) parse_error(p, "a file name");
    struct unit *u = p->unit;
    if (number >= u->file_count) {
        u->files = realloc(u->files, (number + 1) * sizeof *u->files);
        if (!u->files) parse_error(p, "enough host memory");
        for (u32 i = u->file_count; i <= number; i++) u->files[i] = NULL;
        u->file_count = number + 1;
    }
    u->files[number] = p->lex.token.text;
    lex_next(&p->lex);
    while (accept(p, ',')) expect_integer(p); /* time stamp, size */
}

bool parse_unit(struct parser *p, struct unit *unit, const char *text, size_t length)
{
    p->unit = unit;
    if (setjmp(p->on_error)) return false;
    lex_start(&p->lex, text, length);
    p->scope = NULL;
    push_scope(p);
    unit->scope = p->scope;
    while (p->lex.token.kind != TOKEN_END) {
        enum linkage linkage = accept_word(p, ".visible")  ? LINK_VISIBLE
                               : accept_word(p, ".weak")   ? LINK_WEAK
                               : accept_word(p, ".common") ? LINK_COMMON
                               : accept_word(p, ".extern") ? LINK_EXTERN
                                                           : LINK_STATIC;
        if (accept_word(p, ".version")) {
            lex_next(&p->lex); /* 9.0 */
        } else if (accept_word(p, ".target")) {
            p->module->ptx_target = expect_name(p);
            while (accept(p, ',')) expect_name(p);
        } else if (accept_word(p, ".address_size")) {
            if (expect_integer(p) != 64) parse_error(p, "64-bit addresses");
        } else if (accept_word(p, ".file")) {
            parse_file(p);
        } else if (accept_word(p, ".section")) {
            skip_past(p, '}');
        } else if (accept_word(p, ".pragma") || accept_word(p, ".alias")) {
            skip_past(p, ';');
        } else if (accept_word(p, ".entry")) {
            parse_function(p, true, linkage);
        } else if (accept_word(p, ".func")) {
            accept_word(p, ".attribute");
            parse_function(p, false, linkage);
        } else if (accept_word(p, ".global") || accept_word(p, ".texref") || accept_word(p, ".surfref")) {
            declare_variable(p, SPACE_GLOBAL, linkage);
        } else if (accept_word(p, ".const")) {
            declare_variable(p, SPACE_CONST, linkage);
        } else if (accept_word(p, ".shared")) {
            declare_variable(p, SPACE_SHARED, linkage);
        } else if (!accept(p, ';')) {
            parse_error(p, "a module directive");
        }
    }
    return true;
}
