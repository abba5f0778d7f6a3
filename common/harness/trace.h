// Timelines: what the warps of a launch did when, from the marks of its kernel (common/device/trace.cuh), as a Chrome trace.
#pragma once

#include "bench.h"

// What is traced, for the file's head.
struct traced {
    const char *chapter, *step, *shape, *type;
    const struct device *device;
};

// A kernel file compiled with -DTRACE says so when the program starts: where its trace_log is.
void trace_register(const void *log_symbol);

// Whether any of the program's kernels makes marks.
bool trace_compiled_in(void);

// Launches step s and waits for it; writes its timeline to file `path`, and a summary to stdout: each role's share of time in each
// event. On a GPU it is launched several times, with and without marks, and the last is shown. Returns the launch's error; exits
// when there is nothing to show or the file cannot be written, which is found out before the launch. The file is in Chrome's
// "Trace Event Format": a process is a block, a thread a role, and another its products in flight; times are in microseconds, on the
// simulated GPU in executed warp instructions, which are no time.
cudaError_t trace_run(const struct traced *traced, const struct operation *op, int s, const struct run *run,
                      cudaStream_t stream, const char *path);
