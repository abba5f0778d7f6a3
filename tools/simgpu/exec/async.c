/* async.c: asynchronous copies and mbarriers. */
#include "../front/ptx.h"

const struct opcode async_opcodes[] = {{NULL, NULL}};
