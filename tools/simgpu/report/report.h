/* report.h: what --profile prints, and how a kernel that cannot go on is described. */
#ifndef REPORT_H
#define REPORT_H

#include "../sim.h"

/* Room for the counters of a module's functions, for `workers` workers; safe to call again. */
void counters_prepare(const struct module *m, u32 workers);
/* Notes that a launch of `kernel` is over; the table of all kernels is printed when the program ends. */
void counters_launched(const struct launch *l, u64 instructions);

/* Ends the launch because no warp of the cluster can go on: says who waits for what. */
_Noreturn void fault_deadlock(struct cluster *c);
/* Ends the launch because it has executed options.max_instructions. */
_Noreturn void fault_too_long(struct cluster *c);

/* "_Z4axpyifPfS_" -> "axpy(int, float, float*, float*)" when the program has a C++ library to ask, else as it is. */
const char *readable_name(const char *symbol);

#endif
