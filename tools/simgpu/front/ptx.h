/* ptx.h: PTX as parsed (front/ptx_parse.c), and what a family's lowering function may ask for (front/lower.c). */
#ifndef PTX_H
#define PTX_H

#include "../sim.h"

enum type {
    T_NONE,
    T_PRED,
    T_B8,
    T_U8,
    T_S8,
    T_B16,
    T_U16,
    T_S16,
    T_B32,
    T_U32,
    T_S32,
    T_B64,
    T_U64,
    T_S64,
    T_B128,
    T_F16,
    T_F16X2,
    T_BF16,
    T_BF16X2,
    T_TF32,
    T_F32,
    T_F32X2,
    T_F64,
    T_E4M3,
    T_E5M2,
    T_E4M3X2,
    T_E5M2X2,
    T_U16X2,
    T_S16X2
};
u32 type_bytes(enum type t);         /* 1, 2, 4, 8, 16; T_PRED: 0 */
enum type type_named(const char *s); /* "u32" -> T_U32; T_NONE when it is no type */
bool type_signed(enum type t);       /* s8 .. s64 */
bool type_float(enum type t);

struct ptx_operand;
struct symbol;
struct reg {
    const char *name;
    enum type type;
    u32 id;       /* index among the function's registers */
    u32 offset;   /* byte offset in the frame, once allocated */
    bool defined; /* some instruction writes it */
    bool read;    /* some instruction, as lowered, reads it */
    bool set;     /* ... other than wgmma writes it, in a function that has these */
    const struct ptx_operand
        *value; /* what a mov, the only one that does, moves there: a constant; else NULL */
    const struct symbol
        *variable;   /* of which it always has an address, or the parameter, NULL: none (front/origin.c) */
    u64 variable_at; /* ... which the parameter holds at this byte */
};

/* PARAM is a kernel's parameter, the same for all threads; ARG a .param variable of a call or a device function, which
 * each thread has its own of. */
enum symbol_kind {
    SYM_GLOBAL,
    SYM_CONST,
    SYM_SHARED,
    SYM_DYNAMIC_SHARED,
    SYM_LOCAL,
    SYM_PARAM,
    SYM_ARG,
    SYM_FUNCTION,
    SYM_LABEL,
    SYM_TARGETS
};
/* What a definition counts for where files are linked, the weaker first: PTX ISA, "Linking Directives". */
enum linkage { LINK_EXTERN, LINK_COMMON, LINK_WEAK, LINK_VISIBLE, LINK_STATIC };
struct symbol {
    const char *name;
    enum symbol_kind kind;
    enum linkage linkage; /* of a module's: its definition's, EXTERN while there is none */
    u64 address; /* GLOBAL, CONST: address; LOCAL, PARAM, ARG: offset; LABEL: index; SHARED: offset among a kernel's own */
    u64 bytes;
    u32 align;
    enum type type;
    struct function *fn;
    struct unit *unit;     /* of a module's: where its definition is, or its first declaration */
    struct lexer *initial; /* GLOBAL, CONST: what it begins with, NULL: zeros */
    u32 number;            /* SHARED, DYNAMIC_SHARED: which of those that kernels share, or SHARED_OWN */
    struct ptx_operand *targets; /* TARGETS: the labels of a .branchtargets */
    u32 target_count;
};

enum operand_kind {
    OPERAND_NONE, /* there is none */
    OPERAND_REG,
    OPERAND_IMM,
    OPERAND_F32,
    OPERAND_F64,
    OPERAND_SYMBOL,
    OPERAND_ADDRESS,
    OPERAND_VECTOR,
    OPERAND_PAIR,
    OPERAND_LIST,
    OPERAND_SPECIAL,
    OPERAND_SINK
};
struct ptx_operand {
    enum operand_kind kind;
    struct reg *reg;       /* REG; base of ADDRESS */
    struct symbol *symbol; /* SYMBOL; base of ADDRESS */
    const char *special;   /* SPECIAL: "%tid.x" */
    u64 imm;               /* IMM: two's complement; F32, F64: bits */
    s64 offset;            /* ADDRESS, SYMBOL: added bytes */
    bool negated;          /* !p, -x */
    char role;             /* what is done with it: a letter of front/opcodes.def, 0 if that does not say */
    struct ptx_operand
        *element; /* VECTOR {a, b}, PAIR a|b, LIST (a, b); ADDRESS of a tensor copy: [map, {x, y}] */
    u32 count;
};

enum { MAX_OPERANDS = 8 };
struct ptx_inst {
    const char *opcode;       /* "ld" */
    const struct opcode *row; /* in front/opcodes.def, NULL: it is not supported */
    const char **mod;         /* "global", "v4", "f32" */
    u32 mod_count;
    struct ptx_operand *op; /* after the op_count that are written come MAX_OPERANDS of kind NONE */
    u32 op_count;
    u32 written; /* registers that it writes */
    struct reg *guard;
    bool guard_negated;
    bool only_data;   /* a strong load whose value decides nothing: front/decision.c */
    const char *text; /* as written, on one line */
    struct source_line line;
};

static inline bool streq(const char *a, const char *b)
{
    return __builtin_strcmp(a, b) == 0;
}
bool has_mod(const struct ptx_inst *p, const char *mod);
enum type mod_type(const struct ptx_inst *p,
                   u32 n); /* the n-th modifier that is a type, counted from 0; T_NONE if none */

/* ---- Lowering ---------------------------------------------------------------------------------------------------- */

/* A family's lowering function fills `in` (exec, operands, whatever its executor reads) and returns true, or calls
 * `return refuse(...)`. Guard and line are already done, and the operands are as many and of the forms that its row in
 * front/opcodes.def says. */
typedef bool lower_fn(struct lowering *lo, const struct ptx_inst *p, struct inst *in);
struct opcode {
    const char *spelling, *operands;
    lower_fn *lower;
    bool plain; /* it computes or accesses memory: which instruction is next does not depend on it */
};
#define PLAIN(spelling, operands, lower)  lower_fn lower;
#define OPCODE(spelling, operands, lower) lower_fn lower;
#include "opcodes.def"

static inline bool is_written(const struct ptx_operand *o)
{
    return o->role == '=' || o->role == '+';
}
static inline bool is_read(const struct ptx_operand *o)
{
    return o->role != '=';
}

/* The source operand's lanes, seen as `t`: an immediate becomes a constant of that type (an integer immediate for an f32
 * operand keeps its bits; a float literal for an f16 operand is converted), a register is taken as it is: the front end
 * has checked that it is wide enough. */
operand lower_source(struct lowering *lo, const struct ptx_operand *o, enum type t);
/* The operand itself or, of a register that always holds a constant, that constant. */
const struct ptx_operand *lower_known(const struct ptx_operand *o, enum type t);
/* A destination register for a result of type t, which must have just its width; for `_` a scratch
 * register. */
operand lower_dest(struct lowering *lo, const struct ptx_operand *o, enum type t);
/* A constant of `bytes` (4, 8 or 16) that holds `value` in all lanes (16: low half value, high half 0). */
operand lower_const(struct lowering *lo, u64 value, u32 bytes);
/* A predicate source; *flip becomes ~0 when it is written !p. */
operand lower_predicate(struct lowering *lo, const struct ptx_operand *o, u32 *flip);
/* A scratch register of `bytes`. */
operand lower_temp(struct lowering *lo, u32 bytes);
/* An address operand: sets in->a (a register or constant), in->imm (offset) and in->addr64. */
bool lower_address(struct lowering *lo, const struct ptx_operand *o, struct inst *in);
/* The function's carry flag (add.cc and the like), as a predicate. */
operand lower_carry(struct lowering *lo);
/* Room for `count` further operands, for inst.more. */
operand *lower_more(struct lowering *lo, u32 count);
/* Says that this instruction is not supported and why; returns false. */
bool refuse(struct lowering *lo, const struct ptx_inst *p, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#endif
