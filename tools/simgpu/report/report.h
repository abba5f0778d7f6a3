/* report.h: what --profile prints, and how a kernel that cannot go on is described. */
#ifndef REPORT_H
#define REPORT_H

#include "../sim.h"

/* What is launched now is counted for: simgpu_step's last name, or NULL. */
const char *counters_step(void);
/* Before a launch: room for the counters of its module's functions, for `workers` workers. */
void counters_prepare(const struct launch *l, u32 workers);
/* Notes that a launch is over; the table of all kernels is printed when the program ends. */
void counters_launched(const struct launch *l, u64 instructions);

/* Exported, for programs: report/counters.c. */
__attribute__((visibility("default"))) void simgpu_step(const char *name);

/* With --explain, names the section of a note that teaches what the report is about: report/explain.c. */
void explain(const char *report);

/* As fault(), for an instruction that w, a warp of the same cluster, executed some time ago. */
_Noreturn void fault_elsewhere(struct warp *w, const struct function *fn, const struct inst *in, u32 lanes,
                               int error, const char *format, ...) __attribute__((format(printf, 6, 7)));

/* Ends the launch because no warp of the cluster can go on: says who waits for what. */
_Noreturn void fault_deadlock(struct cluster *c);
/* Ends the launch because it has executed options.max_instructions or, if `idle`, options.max_idle that change nothing, while
 * so many blocks have not started. */
_Noreturn void fault_too_long(struct cluster *c, bool idle, u64 not_started);

/* As remark() and breach(), of what no kernel has done but the program by what it asked streams for. Whether that ends it. */
void remark_on_tasks(const char *format, ...) __attribute__((format(printf, 1, 2)));
bool breach_of_tasks(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* "_Z4axpyifPfS_" -> "axpy(int, float, float*, float*)" when the program has a C++ library to ask, else as it is. */
const char *readable_name(const char *symbol);

#endif
