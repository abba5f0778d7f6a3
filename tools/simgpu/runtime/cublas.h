/* cublas.h: what libcublas.so.13 and libnccl.so.2 ask of libcudart.so.13, whose heap and error state they share. */
#ifndef CUBLAS_H
#define CUBLAS_H

#include "../sim.h"

/* True when `bytes` bytes at `pointer` lie inside one live device allocation. Otherwise says what was found, begins with
 * `caller`, and makes the context fail with cudaErrorIllegalAddress, as the kernel of a real cuBLAS would. */
bool simgpu_check_access(const char *caller, const char *verb, const void *pointer, u64 bytes);
/* Managed memory is both. */
bool simgpu_is_device_pointer(const void *pointer);
bool simgpu_is_host_pointer(const void *pointer);
/* True once a kernel has faulted: the device does no more work. */
bool simgpu_device_dead(void);
/* The device does no more work: what a library has found out ends the program as a kernel's fault does. */
void simgpu_fail_device(void);
/* The task of a stream that runs reads or writes these bytes: exec/footprint.h. */
void simgpu_touches(bool writes, const void *pointer, u64 bytes);
/* Has the stream do run(arguments) in its turn, with a copy of the arguments; `name`, which stays, is for messages. False when it does not take it. release(arguments),
 * if there is one, is called when it cannot be done any more: it has been, or was not taken, and no graph has it. */
bool simgpu_do(const char *name, void *stream, void (*run)(const void *arguments),
               void (*release)(const void *arguments), const void *arguments, size_t bytes);

#endif
