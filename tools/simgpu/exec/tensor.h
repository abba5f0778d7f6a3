/* tensor.h: what the executors of warp-wide matrix instructions share (exec/tensor.c). */
#ifndef TENSOR_H
#define TENSOR_H

#include "../front/lower.h"

/* True when all 32 lanes are here; false when the split now waits for the others. */
bool tensor_whole_warp(struct warp *w, const struct inst *in, u32 mask);
/* Appends the registers of an operand, a vector or a single one, to `out`; returns how many, 0 after refusing. */
u32 tensor_fragment(struct lowering *lo, const struct ptx_inst *p, const struct ptx_operand *o,
                    enum type type, operand *out);

#endif
