/* lower.h: what lower.c and the executors' lowering functions share beyond ptx.h. */
#ifndef LOWER_H
#define LOWER_H

#include "parse.h"

#define UNPLACED 0xffffffffu

/* The state of lowering one function. */
struct lowering {
    struct parser *p;
    struct parsed_function *f;
    const struct ptx_inst *at; /* being lowered */
    u32 reg_bytes, capacity, shared_before;
    operand carry;
    u32 written;                 /* registers that `at` has as destinations */
    struct const_entry **consts; /* constants made so far, for reuse */
    u32 consts_capacity;
};

/* Appends an instruction before the one being lowered, unguarded: for values that need computing first. */
struct inst *lower_emit(struct lowering *lo);

/* Says that a name has no definition; returns false. */
bool lower_undefined(struct lowering *lo, const struct symbol *s);
/* Whether p has as many operands as its row in front/opcodes.def, of the forms that it says (front/opcodes.c). */
bool has_its_operands(struct lowering *lo, const struct ptx_inst *p);
struct source_line source_line_of(struct parser *p, u32 loc);
struct parsed_function *parsed_of(struct parser *p, const struct function *fn);

/* From exec/control.c: the executors that lowering itself places, and the values only known when a warp runs. */
void lower_join(struct warp *w, const struct inst *in, u32 mask);
void lower_exit(struct warp *w, const struct inst *in, u32 mask);
void lower_return(struct warp *w, const struct inst *in, u32 mask);
void lower_branch(struct warp *w, const struct inst *in, u32 mask);
void lower_branch_table(struct warp *w, const struct inst *in, u32 mask);
void lower_skip(struct warp *w, const struct inst *in, u32 mask);
void lower_unset(struct warp *w, const struct inst *in, u32 mask); /* exec/undefined.c */
void lower_refused(struct warp *w, const struct inst *in, u32 mask);
enum runtime_value { RUNTIME_LOCAL, RUNTIME_PARAM };
operand lower_runtime_value(struct lowering *lo, enum runtime_value kind, u64 offset, u32 bytes);
operand lower_narrowed(struct lowering *lo, operand wide, u32 have_bytes, u32 want_bytes);
operand lower_special(struct lowering *lo, const char *name, u32 bytes);

#endif
