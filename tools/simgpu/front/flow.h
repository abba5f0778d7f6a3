/* flow.h: the control flow graph of a parsed function (front/flow.c). */
#ifndef FLOW_H
#define FLOW_H

#include "parse.h"

/* Instructions `count` and `count + 1` of a function do not exist: the first is the function's end, where every `ret` of a
 * device function goes; the second is where threads that exit go. */
struct flow {
    u32 count;     /* basic blocks; the last is the exit */
    u32 *leader;   /* first instruction of each */
    u32 *block_of; /* instruction -> block */
    u32 **next;    /* successors of each block */
    u32 *next_count;
    s32 *post; /* immediate post-dominator of each block, -1: none */
};

struct flow build_flow(struct parsed_function *f);
/* Where the lanes that instruction i sends different ways meet: an instruction index, or -1. */
s32 meeting_point(const struct parsed_function *f, const struct flow *g, u32 i);
bool is_opcode(const struct ptx_inst *p, const char *name);
bool ends_block(const struct ptx_inst *p);
bool is_label(const struct ptx_operand *o);

/* Notes that `count` registers of this many bytes a lane (0: predicates) lie at `offset` in the function's frame. */
void add_range(struct function *fn, u32 offset, u32 count, u32 lane_bytes);
/* Gives every register of the function a place in the frame, from `*bytes` on: registers that are never live at the same
 * time share one (front/place.c). Adds what it needs to *bytes, and to the function's register ranges. Returns the greatest number
 * of 32-bit registers live at a time. */
u32 place_registers(struct parsed_function *f, const struct flow *g, u32 *bytes);
/* Whether each place keeps the value of a register until it is read (front/verify.c). */
bool verify_places(struct lowering *lo, const struct flow *g);

/* Finds an instruction's row in front/opcodes.def, and gives its operands their roles (front/opcodes.c). */
void find_roles(struct ptx_inst *p);
/* Calls visit for every register of an operand; that an instruction reads; that it writes. */
typedef void visit_fn(struct reg *r, void *context);
void visit_operand(const struct ptx_operand *o, visit_fn *visit, void *context);
void visit_uses(const struct ptx_inst *p, visit_fn *visit, void *context);
void visit_definitions(const struct ptx_inst *p, visit_fn *visit, void *context);
/* wgmma reads and writes its registers until it is waited for: wgmma.wait_group uses them all, so that nothing else has
 * their places before. */
bool ends_products(const struct ptx_inst *p);

/* The reads of registers that nothing has written before, in the order of the instructions; to be freed (front/unset.c). */
enum { UNSET_FROM_THE_START = 0xffffffff };
struct unset {
    struct unset_use {
        u32 at;
        struct reg *reg;
    } * use;
    u32 count, capacity;
};
struct unset find_unset(const struct parsed_function *f, const struct flow *g);

/* Loads that only propose what an atomicCAS compares with become relaxed ones (front/proposal.c). */
void find_proposals(struct parsed_function *f);
/* Which strong loads read what is only data (front/decision.c). */
void find_data(struct parsed_function *f);
/* Which registers have a variable's address, or one that a parameter holds (front/origin.c). */
void find_origins(struct parsed_function *f);

/* Prints a lowered function, instruction by instruction, if --dump asks for it; at the program's end, says if it asked for none that
 * came (front/dump.c). */
void dump_function(const struct function *fn);

/* Notes the registers of wgmma instructions, and whether a wgmma.fence may be missing (front/warpgroup.c). */
void warpgroup_prepare(struct parsed_function *f, const struct flow *g);
/* What an instruction touches, once registers have places; NULL: nothing. */
const struct touched *warpgroup_touched(const struct ptx_inst *p);

#endif
