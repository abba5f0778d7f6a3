/* parse.h: a PTX module and its functions as parsed (front/ptx_parse.c), before lowering (front/lower.c). */
#ifndef PARSE_H
#define PARSE_H

#include <setjmp.h>

#include "lex.h"
#include "ptx.h"

/* Names declared in one { } block: registers, variables, labels. Blocks that inline assembly opens have their own, so a
 * label that nvcc copied together with such a block is a different label each time. */
struct name {
    struct name *next;
    const char *text;
    struct reg *reg; /* one of these three */
    struct symbol *symbol;
    const struct opcode *row;
};
/* `.reg .b32 %r<100>;` declares %r0 to %r99. Each becomes a register when it is first used: a count costs nothing. */
struct numbered {
    struct numbered *next;
    const char *base; /* "%r" */
    enum type type;
    u64 count;
};
struct scope {
    struct scope *outer;
    struct numbered *numbered;
    struct name **bucket;
    u32 buckets, count; /* a power of two, or 0; names */
};

/* What one source file became: a text whose names are its own, but for those that it shares with others (front/link.c). */
struct unit {
    const char *name; /* "a.cu" or, if nobody knows, "file 2"; NULL: there is only one */
    struct scope *scope;
    const char **files; /* by .file number */
    u32 file_count;
};

/* A use of a label: known at the end of the function only. */
struct label_use {
    struct scope *scope;
    struct ptx_operand *operand;
    const char *name;
};

struct parsed_function {
    struct unit *unit;
    struct function *fn;   /* name, params, limits; code comes from lowering */
    struct ptx_inst *inst; /* `ret` appended at the end */
    u32 count, capacity;
    struct reg **regs;
    u32 reg_count, reg_capacity;
    struct label_use *uses;
    u32 use_count, use_capacity;
    struct symbol **tables; /* its .branchtargets */
    u32 table_count, table_capacity;
    u32 local_bytes, shared_bytes, shared_align, param_bytes; /* shared: a kernel's own */
    u32 *shared;                                              /* the numbers of the others that it names */
    u32 shared_count, shared_capacity;
    struct reg **async_regs; /* accumulators and A registers of its wgmma instructions */
    u32 async_reg_count, async_reg_capacity;
    u32 home_file;           /* the .file that the function is written in */
    struct line_info *lines; /* every .loc, for resolving inlined_at */
    u32 line_count, line_capacity;
    u32 resolved_loc; /* the .loc asked for last, and where it is: instructions of a line follow each other */
    struct source_line resolved;
    struct lexer body;   /* where its body begins */
    struct scope *scope; /* ... and the names known there */
    bool lowered;
    bool reached; /* from the kernel whose shared variables are being placed */
};

struct parser {
    struct lexer lex;
    jmp_buf on_error;
    struct module *module;
    struct unit *units, *unit; /* all of the module; the one being parsed */
    u32 unit_count;
    struct scope *scope, *linked; /* the innermost; names that mean the same in all units */
    struct parsed_function **functions;
    u32 function_count, function_capacity;
    struct parsed_function *fn; /* the one being parsed */
    struct symbol **variables;  /* of global and constant memory */
    u32 variable_count, variable_capacity;
    struct symbol **shared; /* shared variables that are not one kernel's own, by number */
    u32 shared_count, shared_capacity;
    u32 shared_bytes; /* of all of them */
    u32 current_line; /* index + 1 into fn->lines */
    u32 depth;        /* of operands and initial values inside one another */
};

enum { CONST_BUCKETS = 1024 };
struct const_entry {
    struct const_entry *next;
    u64 value;
    u32 bytes;
    operand at;
};

struct line_info {
    u32 file, line, column;
    u32 at_file, at_line, at_column; /* inlined_at, 0: not inlined */
};

/* What a name means in a scope, NULL: nothing. */
struct name *find_here(const struct scope *s, const char *text);
struct name *define_name(struct scope *s, const char *text);
/* Parses a unit's text but for the bodies of its functions; false after printing what is wrong. */
bool parse_unit(struct parser *p, struct unit *unit, const char *text, size_t length);
/* Gives the variables of all units their memory and first values; false after printing what is wrong. */
bool parse_initial_values(struct parser *p);
/* Parses a function's body into p->fn; false after printing what is wrong. */
bool parse_function_body(struct parser *p, struct parsed_function *f);
/* Lowers a parsed function into p->fn's code; marks it refused when something is not supported. */
void lower_function(struct parser *p, struct parsed_function *f);

/* The meaning of a module's variable or function in the unit being parsed: that of all units, unless it is static. *wrong, if it is
 * of another kind there. */
struct symbol *link_declare(struct parser *p, const char *text, enum symbol_kind kind, enum linkage linkage,
                            const char **wrong);
/* Whether a definition of `bytes` that the unit has is the one that counts, as far as is known; *wrong, if it must not be. */
bool link_define(struct parser *p, struct symbol *s, enum linkage linkage, u64 bytes, const char **wrong);
/* The names of all units, for messages. */
const char *link_units(const struct parser *p);
/* A shared variable that is not one kernel's own gets its number; a function names it. */
void link_number_shared(struct parser *p, struct symbol *s);
void link_use_shared(struct parsed_function *f, const struct symbol *s);
/* Gives a kernel the shared variables that it can reach: its shared_at, shared_bytes and shared_align. */
void link_place_shared(struct parser *p, struct parsed_function *kernel);

#define GROW(array, count, capacity)                                  \
    do {                                                              \
        if ((count) == (capacity)) {                                  \
            (capacity) = (capacity) ? 2 * (capacity) : 16;            \
            (array) = realloc((array), (capacity) * sizeof *(array)); \
            if (!(array)) {                                           \
                fprintf(stderr, "simgpu: out of host memory\n");      \
                exit(3);                                              \
            }                                                         \
        }                                                             \
    } while (0)

#endif
