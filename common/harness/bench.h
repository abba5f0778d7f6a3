// Times a chapter's steps beside its baseline on a real GPU.
#pragma once

#include "chapter.h"
#include "results.h"

// The device that the program runs on.
struct device {
    char name[256];
    int major, minor, sms;
    bool simulated; // the simulated GPU: never timed
};

// The first GPU. Exits with EXIT_CUDA, and says what else would run the program, where there is none.
struct device device_open(void);

// The most that a GPU can reach of a limit, in TFLOP/s or GB/s; 0 when it is not known.
double device_limit(const struct device *device, enum limit limit);

// What a record has besides its result, as members of JSON: the GPU, driver, CUDA, commit, date, command. Returns text.
char *bench_circumstances(const struct device *device, const char *command, char *text, size_t size);

// Allocates `run` for these dimensions and fills its inputs with random numbers, the same every time. Exits on CUDA errors; the
// caller frees it with run_free.
void bench_inputs(const struct operation *op, enum dtype type, const int64_t *dim, struct run *run);

// Times the steps with selected[s] (index 0 is the baseline, which always runs), interleaved with the baselines, in one type
// on the given dimensions; prints a table and adds a record for each step to *results. A step whose output is not the
// baseline's is reported and not timed. `command` is the command line that the records quote. Returns how many steps were
// wrong.
int bench_run(const char *chapter, const struct operation *op, const struct device *device,
              const bool *selected, enum dtype type, const int64_t *dim, const char *command,
              struct results *results);
