/* tensor.c: matrix fragments and the tensor cores. */
#include "../front/ptx.h"

const struct opcode tensor_opcodes[] = {{NULL, NULL}};
