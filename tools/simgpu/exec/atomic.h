/* atomic.h: read-modify-write of memory, for bulk reductions too (exec/atomic.c). */
#ifndef ATOMIC_H
#define ATOMIC_H

#include "../front/ptx.h"

enum atomic_op { OP_ADD, OP_MIN, OP_MAX, OP_INC, OP_DEC, OP_AND, OP_OR, OP_XOR, OP_EXCH, OP_CAS };

/* The operation that PTX calls so, -1: none. */
s32 atomic_op_named(const char *name);

/* *at = *at op v, atomically. in_shared: f32 keeps subnormals, which red.global does not. */
void atomic_update(u8 *at, enum atomic_op op, enum type t, bool in_shared, u64 v);

#endif
