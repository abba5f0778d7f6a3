/* cudart.h: what the parts of the CUDA runtime library share. */
#ifndef CUDART_H
#define CUDART_H

#include <cuda_runtime_api.h>

#include "../sim.h"

#define EXPORT __attribute__((visibility("default")))
/* Programs compiled with --default-stream per-thread call f_ptsz or f_ptds instead of f. Here the two kinds of default
 * stream are one. */
#define PER_THREAD(f, suffix) extern __typeof__(f) f##suffix __attribute__((alias(#f), visibility("default")))

/* ---- Errors (errors.c) -------------------------------------------------------------------------------------------- */

/* Every public call starts with ENTER(): a context that a kernel fault has corrupted answers with that fault, for ever.
 * It ends with `return record(error)`, which cudaGetLastError sees. */
#define ENTER()                                \
    do {                                       \
        cudaError_t broken_ = context_error(); \
        if (broken_) return record(broken_);   \
    } while (0)
cudaError_t context_error(void);
cudaError_t record(cudaError_t error);
/* Says on stderr what was wrong with a call, in one line, and records the error: `return fail(code, "cudaMemcpy: ...")`. */
cudaError_t fail(cudaError_t error, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* A kernel met a fault: the error shows at the next call that waits for the device. */
void device_fault(cudaError_t error);
/* True once a kernel has faulted: the device does no more work. */
bool device_dead(void);
/* What a call that waits for the device returns. */
cudaError_t device_wait(void);

/* Marks a host function that a stream calls; the runtime refuses CUDA calls from within. */
void host_function_begin(void);
void host_function_end(void);

/* ---- Programs' kernels and variables (registration.c) ------------------------------------------------------------- */

struct kernel {
    struct binary *binary;
    const void *host_function;
    const char *name;
    struct function *function; /* NULL until the first use */
    u32 max_dynamic_bytes;     /* cudaFuncSetAttribute(cudaFuncAttributeMaxDynamicSharedMemorySize) */
    bool large_clusters;       /* cudaFuncAttributeNonPortableClusterSizeAllowed */
    bool told;                 /* has said why it is refused */
};

/* The kernel that a host function (or a cudaKernel_t) stands for, its module loaded. On failure NULL and *error is
 * recorded and said. `caller` is the public call's name. */
struct kernel *kernel_of(const void *function, const char *caller, cudaError_t *error);

struct device_symbol {
    const char *name;
    u64 address, bytes;
};
cudaError_t symbol_of(const void *host_variable, const char *caller, struct device_symbol *symbol);

/* ---- Streams (stream.c) ------------------------------------------------------------------------------------------- */

/* cudaErrorInvalidResourceHandle when it is no live stream. */
cudaError_t check_stream(cudaStream_t stream, const char *caller);

/* ---- The device (device.c) ---------------------------------------------------------------------------------------- */

enum {
    SHARED_PER_BLOCK = 48 << 10,        /* without opting in */
    SHARED_PER_BLOCK_OPTIN = 227 << 10, /* with */
    SHARED_PER_SM = 228 << 10,
    SHARED_RESERVED = 1 << 10, /* of each block, by the system */
    REGISTERS_PER_SM = 65536,
    THREADS_PER_BLOCK = 1024,
    THREADS_PER_SM = 2048,
    BLOCKS_PER_SM = 32,
    PORTABLE_CLUSTER = 8
};

/* cudaLimitStackSize: local memory that a thread's calls may use. */
u32 stack_limit(void);

/* ---- Launches (kernels.c) ----------------------------------------------------------------------------------------- */

/* Blocks of `threads` threads and `dynamic_bytes` of dynamic shared memory that one multiprocessor holds at a time. */
int blocks_per_sm(const struct function *f, int threads, size_t dynamic_bytes);

#endif
