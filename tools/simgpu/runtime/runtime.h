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

/* Finds the PTX to run in what a program's device code became (front/fatbin.c): a fatbin, one for each source file, or PTX text. Of a
 * fatbin's PTX entries it is the best for an sm_90a device. Returns how many there are, and *texts, which fatbin_free frees. On
 * failure 0, and *why says what there is instead and how to compile. */
u32 fatbin_ptx(const void *image, struct ptx_text **texts, const char **why);
void fatbin_free(struct ptx_text *texts, u32 count);

#endif
