/* unsupported.c: the rest of the CUDA runtime's functions. A program that links to one still starts, and the call says that it
 * is not supported, instead of a message from the dynamic linker about a missing symbol. */
#include "cudart.h"

#include <stdatomic.h>

static int refuse_call(atomic_flag *told, const char *name)
{
    cudaError_t broken = context_error();
    if (broken) return (int)record(broken);
    if (!atomic_flag_test_and_set(told))
        fprintf(stderr, "simgpu: %s is not supported by the simulated GPU\n", name);
    return (int)record(cudaErrorNotSupported);
}

/* Their parameters do not matter; the name after SIM_ keeps the compiler from comparing them with the header's. */
#define UNSUPPORTED(name)                           \
    EXPORT int SIM_##name(void) __asm__(#name);     \
    EXPORT int SIM_##name(void)                     \
    {                                               \
        static atomic_flag told = ATOMIC_FLAG_INIT; \
        return refuse_call(&told, #name);           \
    }
#include "unsupported.def"

/* Only a description; the calls that would use it are refused. */
EXPORT struct cudaChannelFormatDesc cudaCreateChannelDesc(int x, int y, int z, int w,
                                                          enum cudaChannelFormatKind kind)
{
    return (struct cudaChannelFormatDesc){.x = x, .y = y, .z = z, .w = w, .f = kind};
}
