/* runtime.h: what the pieces of runtime/ and the executors ask of one another. */
#ifndef RUNTIME_H
#define RUNTIME_H

#include "../sim.h"

/* printf on the device: prints `format` (a device address of a C string) with the packed argument buffer `args` that nvcc's
 * vprintf call passes (each argument at its natural alignment; a float arrives as a double). Whole lines from different
 * threads never mix. Returns the number of arguments, as CUDA's printf does, -1 for a NULL format, TOO_FEW_ARGUMENTS and
 * prints nothing when they do not lie in `room` bytes. */
enum { TOO_FEW_ARGUMENTS = -1000 };
int device_printf(u64 format, const u8 *args, size_t room);

/* Finds the PTX to run in a fatbin (front/fatbin.c), or in PTX text itself: of a fatbin's PTX entries the best for an sm_90a device. Returns malloc'ed
 * text and its length. On failure NULL, and *why says what the fatbin holds instead and how to compile. */
char *fatbin_ptx(const void *fatbin, size_t *length, const char **why);

#endif
