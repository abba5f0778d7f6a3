/* registration.c: how a program tells the runtime which kernels and variables it has, before main().
 *
 * For each .cu file nvcc emits a constructor that hands over the fatbin (__cudaRegisterFatBinary; with -rdc=true one for all of the
 * program's files, when the last of them is heard) and then pairs each kernel's host stub and each variable's host shadow with its name in the PTX. Nothing is parsed here: a module is loaded
 * when one of its kernels or variables is first used. */
#include "cudart.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "driver.h"
#include "runtime.h"

struct binary {
    const void *fatbin;
    struct module *module;
    bool tried;
    cudaError_t error; /* why it could not be loaded */
    struct managed {
        void **host_variable; /* gets its address */
        const char *name;
    } * managed;
    u32 managed_count;
};

struct registered_variable {
    struct binary *binary;
    const void *host_variable; /* managed: a pointer to it */
    const char *name;
    bool managed;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct kernel **kernels; /* pointers: a cudaKernel_t stays valid when the array grows */
static struct registered_variable *variables;
static u32 kernel_count, variable_count;

static void *grown(void *array, u32 count, size_t element)
{
    if (count & (count - 1)) return array; /* full at 1, 2, 4, 8, ... only */
    array = realloc(array, (count ? count * 2 : 1) * element);
    if (!array) {
        fprintf(stderr, "simgpu: out of host memory while the program's kernels are registered\n");
        exit(3);
    }
    return array;
}

static void *zeroed(size_t bytes)
{
    void *p = calloc(1, bytes);
    if (!p) {
        fprintf(stderr, "simgpu: out of host memory while the program's kernels are registered\n");
        exit(3);
    }
    return p;
}

/* What nvcc's constructors call; crt/host_runtime.h declares these, for C++ only. */
EXPORT void **__cudaRegisterFatBinary(void *fatbin)
{
    struct binary *b = zeroed(sizeof *b);
    b->fatbin = fatbin;
    return (void **)b;
}

EXPORT void __cudaRegisterFatBinaryEnd(void **handle)
{
    (void)handle;
}
/* Modules stay until the process ends: a program may still hold device pointers to their variables. */
EXPORT void __cudaUnregisterFatBinary(void **handle)
{
    (void)handle;
}
static void register_kernel(struct kernel *k, struct binary *binary, const void *host_function,
                            const char *name)
{
    k->binary = binary;
    k->host_function = host_function;
    k->name = name;
    pthread_mutex_lock(&lock);
    kernels = grown(kernels, kernel_count, sizeof *kernels);
    kernels[kernel_count++] = k;
    pthread_mutex_unlock(&lock);
}

EXPORT void __cudaRegisterFunction(void **handle, const char *host_function, char *device_function,
                                   const char *device_name, int thread_limit, void *tid, void *bid,
                                   void *block_dim, void *grid_dim, int *warp_size)
{
    (void)device_function, (void)thread_limit, (void)tid, (void)bid, (void)block_dim, (void)grid_dim;
    (void)warp_size;
    register_kernel(zeroed(sizeof(struct kernel)), (struct binary *)handle, host_function, device_name);
}

static void register_variable(struct registered_variable v)
{
    pthread_mutex_lock(&lock);
    variables = grown(variables, variable_count, sizeof *variables);
    variables[variable_count++] = v;
    pthread_mutex_unlock(&lock);
}

EXPORT void __cudaRegisterVar(void **handle, char *host_variable, char *device_address,
                              const char *device_name, int external, size_t size, int constant, int global)
{
    (void)device_address, (void)external, (void)size, (void)constant, (void)global;
    register_variable((struct registered_variable){
        .binary = (struct binary *)handle, .host_variable = host_variable, .name = device_name});
}

EXPORT void __cudaRegisterManagedVar(void **handle, void **host_variable, char *device_address,
                                     const char *device_name, int external, size_t size, int constant,
                                     int global)
{
    (void)device_address, (void)external, (void)size, (void)constant, (void)global;
    struct binary *b = (struct binary *)handle;
    register_variable((struct registered_variable){
        .binary = b, .host_variable = host_variable, .name = device_name, .managed = true});
    b->managed = grown(b->managed, b->managed_count, sizeof *b->managed);
    b->managed[b->managed_count++] = (struct managed){host_variable, device_name};
}

static cudaError_t load(struct binary *b, const char *caller)
{
    const char *why;
    struct ptx_text *texts;
    u32 count = fatbin_ptx(b->fatbin, &texts, &why);
    if (!count)
        return fail(cudaErrorNoKernelImageForDevice, "%s: this program's device code cannot be run: %s",
                    caller, why);
    b->module = module_load(texts, count); /* the texts stay: messages quote them */
    return b->module ? cudaSuccess : record(cudaErrorInvalidPtx);
}

/* The binary's module, loaded at its first use; NULL with *error recorded when it cannot be. */
static struct module *module_of(struct binary *b, const char *caller, cudaError_t *error)
{
    pthread_mutex_lock(&lock);
    if (!b->tried) b->error = load(b, caller);
    b->tried = true;
    pthread_mutex_unlock(&lock);
    *error = record(b->error);
    return b->module;
}

/* A program is about to read or write a managed variable on the host, for the first time: from here on it finds the variable
 * where the kernels do. It would follow a null pointer otherwise. */
EXPORT char __cudaInitModule(void **handle)
{
    const struct binary *b = (struct binary *)handle;
    cudaError_t error;
    struct module *m = module_of((struct binary *)handle, "__managed__ variable", &error);
    for (u32 i = 0; i < b->managed_count; i++) {
        const struct variable *v = m ? module_variable(m, b->managed[i].name) : NULL;
        if (!v) {
            fprintf(stderr, "simgpu: __managed__ variable '%s' is not in the program's PTX\n",
                    b->managed[i].name);
            exit(3);
        }
        *b->managed[i].host_variable = (void *)v->address;
    }
    return 1;
}

static struct kernel *find_kernel(const void *function)
{
    struct kernel *found = NULL;
    pthread_mutex_lock(&lock);
    for (u32 i = 0; i < kernel_count && !found; i++)
        if (kernels[i]->host_function == function || kernels[i] == function) found = kernels[i];
    pthread_mutex_unlock(&lock);
    return found;
}

struct kernel *kernel_of(const void *function, const char *caller, cudaError_t *error)
{
    struct kernel *k = find_kernel(function);
    if (!k) {
        *error = fail(cudaErrorInvalidDeviceFunction, "%s: %p is not a __global__ function of this program",
                      caller, function);
        return NULL;
    }
    struct module *m = module_of(k->binary, caller, error);
    if (!m) return NULL;
    pthread_mutex_lock(&lock); /* the kernel is lowered now, if it never was */
    struct function *f = k->function ? k->function : module_function(m, k->name);
    if (f && f->is_kernel && !k->function) {
        k->max_dynamic_bytes = f->shared_bytes < SHARED_PER_BLOCK ? SHARED_PER_BLOCK - f->shared_bytes : 0;
        k->function = f;
    }
    pthread_mutex_unlock(&lock);
    if (!f || !f->is_kernel) {
        *error =
            fail(cudaErrorInvalidDeviceFunction, "%s: the program's PTX has no kernel '%s'", caller, k->name);
        return NULL;
    }
    *error = f->unreadable ? record(cudaErrorInvalidPtx) : cudaSuccess;
    return f->unreadable ? NULL : k;
}

/* ---- Modules that a program loads itself: see driver.h ------------------------------------------------------------- */

EXPORT cudaError_t simgpu_load_module(struct binary **module, const void *image, const char *caller)
{
    ENTER();
    if (!module || !image) return record(cudaErrorInvalidValue);
    struct binary *b = zeroed(sizeof *b);
    b->fatbin = image;
    cudaError_t error;
    if (module_of(b, caller, &error)) *module = b;
    return error;
}

EXPORT cudaError_t simgpu_module_kernel(struct binary *module, const char *name, cudaKernel_t *kernel,
                                        const char *caller)
{
    ENTER();
    if (!module || !name || !kernel) return record(cudaErrorInvalidValue);
    const struct function *f = module_function(module->module, name);
    if (!f || !f->is_kernel)
        return fail(cudaErrorSymbolNotFound, "%s: the module has no kernel '%s'", caller, name);
    struct kernel *k = NULL;
    pthread_mutex_lock(&lock);
    for (u32 i = 0; i < kernel_count && !k; i++)
        if (kernels[i]->binary == module && strcmp(kernels[i]->name, name) == 0) k = kernels[i];
    pthread_mutex_unlock(&lock);
    if (!k) {
        k = zeroed(sizeof *k);
        register_kernel(k, module, k, f->name);
    }
    *kernel = (cudaKernel_t)k;
    return cudaSuccess;
}

EXPORT cudaError_t simgpu_module_variable(struct binary *module, const char *name, void **address,
                                          size_t *bytes, const char *caller)
{
    ENTER();
    if (!module || !name) return record(cudaErrorInvalidValue);
    const struct variable *v = module_variable(module->module, name);
    if (!v) return fail(cudaErrorSymbolNotFound, "%s: the module has no variable '%s'", caller, name);
    if (address) *address = (void *)v->address;
    if (bytes) *bytes = v->bytes;
    return cudaSuccess;
}

/* The same by the runtime's own calls. Options are for the compiler to machine code. */
EXPORT cudaError_t cudaLibraryLoadData(cudaLibrary_t *library, const void *code, enum cudaJitOption *options,
                                       void **values, unsigned count, enum cudaLibraryOption *library_options,
                                       void **library_values, unsigned library_count)
{
    (void)options, (void)values, (void)count, (void)library_options, (void)library_values,
        (void)library_count;
    return simgpu_load_module((struct binary **)library, code, "cudaLibraryLoadData");
}

EXPORT cudaError_t cudaLibraryUnload(cudaLibrary_t library)
{
    ENTER();
    return library ? cudaSuccess : record(cudaErrorInvalidResourceHandle);
}

EXPORT cudaError_t cudaLibraryGetKernel(cudaKernel_t *kernel, cudaLibrary_t library, const char *name)
{
    return simgpu_module_kernel((struct binary *)library, name, kernel, "cudaLibraryGetKernel");
}

EXPORT cudaError_t cudaLibraryGetGlobal(void **address, size_t *bytes, cudaLibrary_t library,
                                        const char *name)
{
    return simgpu_module_variable((struct binary *)library, name, address, bytes, "cudaLibraryGetGlobal");
}

EXPORT cudaError_t cudaLibraryGetManaged(void **address, size_t *bytes, cudaLibrary_t library,
                                         const char *name)
{
    return simgpu_module_variable((struct binary *)library, name, address, bytes, "cudaLibraryGetManaged");
}

EXPORT cudaError_t __cudaGetKernel(cudaKernel_t *handle, const void *function)
{
    struct kernel *k = find_kernel(function);
    if (!k)
        return fail(cudaErrorInvalidDeviceFunction, "__cudaGetKernel: %p is not a __global__ function",
                    function);
    *handle = (cudaKernel_t)k;
    return cudaSuccess;
}

EXPORT cudaError_t cudaGetKernel(cudaKernel_t *handle, const void *function)
{
    ENTER();
    return __cudaGetKernel(handle, function);
}

EXPORT cudaError_t cudaFuncGetName(const char **name, const void *function)
{
    ENTER();
    if (!name) return record(cudaErrorInvalidValue);
    cudaError_t error;
    struct kernel *k = kernel_of(function, "cudaFuncGetName", &error);
    if (k) *name = k->name;
    return error;
}

cudaError_t symbol_of(const void *host_variable, const char *caller, struct device_symbol *symbol)
{
    const struct registered_variable *r = NULL;
    pthread_mutex_lock(&lock);
    for (u32 i = 0; i < variable_count && !r; i++)
        if (host_variable && (variables[i].managed ? *(void *const *)variables[i].host_variable
                                                   : variables[i].host_variable) == host_variable)
            r = &variables[i];
    struct binary *binary = r ? r->binary : NULL;
    const char *name = r ? r->name : NULL;
    pthread_mutex_unlock(&lock);
    if (!binary)
        return fail(cudaErrorInvalidSymbol,
                    "%s: %p is no __device__ or __constant__ variable of this program (pass the "
                    "variable itself, not a copy of its address or its name)",
                    caller, host_variable);
    cudaError_t error;
    struct module *m = module_of(binary, caller, &error);
    if (!m) return error;
    const struct variable *v = module_variable(m, name);
    if (!v) return fail(cudaErrorInvalidSymbol, "%s: the program's PTX has no variable '%s'", caller, name);
    *symbol = (struct device_symbol){.name = v->name, .address = v->address, .bytes = v->bytes};
    return cudaSuccess;
}
