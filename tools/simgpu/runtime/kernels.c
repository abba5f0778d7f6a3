/* kernels.c: launching kernels, and what a program may ask about them. */
#include "cudart.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "../report/report.h"
#include "driver.h"
#include "heap.h"
#include "task.h"

static u32 round_up(u32 value, u32 unit)
{
    return (value + unit - 1) / unit * unit;
}
static u32 smaller(u32 a, u32 b)
{
    return a < b ? a : b;
}

/* Where dynamic shared memory ends, counted from the start of the block's shared memory. */
static u64 shared_bytes_of(const struct function *f, u64 dynamic_bytes)
{
    u32 align = f->shared_align > 16 ? f->shared_align : 16;
    return dynamic_bytes ? round_up(f->shared_bytes, align) + dynamic_bytes : f->shared_bytes;
}

int blocks_per_sm(const struct function *f, int threads, size_t dynamic_bytes)
{
    if (threads <= 0 || (u32)threads > f->max_threads) return 0;
    u64 shared = shared_bytes_of(f, dynamic_bytes);
    if (shared > SHARED_PER_BLOCK_OPTIN) return 0;
    u32 warps = ((u32)threads + LANES - 1) / LANES;
    u32 blocks = smaller(BLOCKS_PER_SM, THREADS_PER_SM / LANES / warps);
    blocks = smaller(blocks, SHARED_PER_SM / (round_up((u32)shared, 128) + SHARED_RESERVED));
    /* Registers go to warps in units of 256, from the file of one quarter of the multiprocessor. A kernel that its
     * launch bounds let run is taken to fit at least once, since its register count is an estimate. */
    u32 registers = round_up((f->regs_per_thread ? f->regs_per_thread : 1) * LANES, 256);
    u32 warps_by_registers = REGISTERS_PER_SM / 4 / registers * 4;
    u32 blocks_by_registers = warps_by_registers / warps;
    return (int)smaller(blocks, blocks_by_registers ? blocks_by_registers : 1);
}

/* ---- Launching ---------------------------------------------------------------------------------------------------- */

/* <<<...>>> pushes its configuration, and the stub that nvcc generates for the kernel pops it. */
enum { MAX_PENDING = 16 };
static __thread struct configuration pending[MAX_PENDING];
static __thread int pending_count;

EXPORT unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t dynamic_bytes, cudaStream_t stream)
{
    if (pending_count == MAX_PENDING) return 1;
    pending[pending_count++] = (struct configuration){
        .grid = grid, .block = block, .dynamic_bytes = dynamic_bytes, .stream = stream};
    return 0;
}

EXPORT cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *dynamic_bytes, void *stream)
{
    if (pending_count == 0) return record(cudaErrorMissingConfiguration);
    struct configuration *c = &pending[--pending_count];
    *grid = c->grid;
    *block = c->block;
    *dynamic_bytes = c->dynamic_bytes;
    *(cudaStream_t *)stream = c->stream;
    return cudaSuccess;
}

/* Device functions' .local variables live on a stack: room for each once (any chain of calls without recursion), and
 * the stack limit beyond. */
static u32 local_bytes_of(const struct function *f)
{
    if (!f->calls) return f->local_bytes;
    u32 bytes = round_up(f->local_bytes, 16) + stack_limit();
    for (u32 i = 0; i < f->module->function_count; i++)
        if (!f->module->functions[i]->is_kernel) bytes += round_up(f->module->functions[i]->local_bytes, 16);
    return bytes;
}

/* The cluster's size in blocks: the launch's, else the kernel's own, else 1. */
static dim3 cluster_of(const struct kernel *k, const struct configuration *c)
{
    const u32 *own = k->function->cluster;
    if (c->cluster.x) return c->cluster;
    return own[0] ? (dim3){own[0], own[1], own[2]} : (dim3){1, 1, 1};
}

static cudaError_t check_cluster(const char *caller, const struct kernel *k, const struct configuration *c)
{
    const u32 *own = k->function->cluster;
    dim3 s = cluster_of(k, c), g = c->grid;
    u64 size = (u64)s.x * s.y * s.z;
    u32 most = k->large_clusters ? MAX_CLUSTER : PORTABLE_CLUSTER;
    const char *name = readable_name(k->name);
    if (own[0] && (s.x != own[0] || s.y != own[1] || s.z != own[2]))
        return fail(
            cudaErrorInvalidValue,
            "%s: kernel %s: a cluster of (%u, %u, %u) blocks, but the kernel is compiled for (%u, %u, %u)",
            caller, name, s.x, s.y, s.z, own[0], own[1], own[2]);
    if (!size || size > most)
        return fail(cudaErrorInvalidClusterSize,
                    "%s: kernel %s: a cluster of (%u, %u, %u) blocks; it must have 1 to %u%s", caller, name,
                    s.x, s.y, s.z, most,
                    k->large_clusters ? "" : " (16 with cudaFuncAttributeNonPortableClusterSizeAllowed)");
    if (g.x % s.x || g.y % s.y || g.z % s.z)
        return fail(cudaErrorInvalidConfiguration,
                    "%s: kernel %s: clusters of (%u, %u, %u) blocks do not divide the grid (%u, %u, %u)",
                    caller, name, s.x, s.y, s.z, g.x, g.y, g.z);
    return cudaSuccess;
}

/* The limits a launch must keep. They do not harm the context: the next launch may be right. */
static cudaError_t check(const char *caller, const struct kernel *k, const struct configuration *c)
{
    const struct function *f = k->function;
    dim3 g = c->grid, b = c->block;
    if (g.x == 0 || g.y == 0 || g.z == 0 || g.x > 0x7fffffff || g.y > 65535 || g.z > 65535)
        return fail(
            cudaErrorInvalidConfiguration,
            "%s: kernel %s: grid (%u, %u, %u); each size must be at least 1, and at most (2147483647, 65535, "
            "65535)",
            caller, readable_name(k->name), g.x, g.y, g.z);
    if (b.x == 0 || b.y == 0 || b.z == 0 || b.x > 1024 || b.y > 1024 || b.z > 64 ||
        (u64)b.x * b.y * b.z > THREADS_PER_BLOCK)
        return fail(
            cudaErrorInvalidConfiguration,
            "%s: kernel %s: block (%u, %u, %u); each size must be at least 1, and at most (1024, 1024, 64) with "
            "no more than 1024 threads in all",
            caller, readable_name(k->name), b.x, b.y, b.z);
    u32 threads = b.x * b.y * b.z;
    if (threads > f->max_threads)
        return fail(cudaErrorInvalidValue,
                    "%s: kernel %s: block of %u threads, but its launch bounds allow %u", caller,
                    readable_name(k->name), threads, f->max_threads);
    if (c->dynamic_bytes > k->max_dynamic_bytes)
        return fail(
            cudaErrorInvalidValue,
            "%s: kernel %s: %zu bytes of dynamic shared memory, but at most %u are allowed beside its %u static "
            "ones; cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes) allows up to "
            "%u",
            caller, readable_name(k->name), c->dynamic_bytes, k->max_dynamic_bytes, f->shared_bytes,
            f->shared_bytes < SHARED_PER_BLOCK_OPTIN ? SHARED_PER_BLOCK_OPTIN - f->shared_bytes : 0);
    cudaError_t error = check_cluster(caller, k, c);
    if (error) return error;
    if (c->cooperative) {
        u64 resident = (u64)blocks_per_sm(f, (int)threads, c->dynamic_bytes) * options.sms;
        if ((u64)g.x * g.y * g.z > resident)
            return fail(
                cudaErrorCooperativeLaunchTooLarge,
                "%s: kernel %s: a cooperative grid of %llu blocks, but only %llu can run at the same time",
                caller, readable_name(k->name), (unsigned long long)g.x * g.y * g.z,
                (unsigned long long)resident);
    }
    return cudaSuccess;
}

struct launch_task {
    struct task task;
    struct kernel *kernel;
    struct configuration configuration;
    u8 *params;       /* the parameter buffer */
    void **args;      /* where each parameter lies in it */
    const char *step; /* what it is counted for: report/counters.c */
};

static void run_launch(struct task *task)
{
    static _Atomic u64 grids, last_launch; /* and the task that it was */
    static _Atomic(cudaStream_t) last_stream;
    const struct launch_task *t = (struct launch_task *)task;
    const struct configuration *c = &t->configuration;
    const struct function *f = t->kernel->function;
    dim3 cluster = cluster_of(t->kernel, c);
    struct launch l = {
        .kernel = f,
        .grid = {c->grid.x, c->grid.y, c->grid.z},
        .block = {c->block.x, c->block.y, c->block.z},
        .cluster = {cluster.x, cluster.y, cluster.z},
        .clustered = c->cluster.x || f->cluster[0],
        .shared_bytes = (u32)shared_bytes_of(f, c->dynamic_bytes),
        .dynamic_bytes = (u32)c->dynamic_bytes,
        .local_bytes = local_bytes_of(f),
        .params = t->params,
        .step = t->step,
        .grid_id = atomic_fetch_add(&grids, 1) + 1,
        .cooperative = c->cooperative,
        .dependent = c->dependent && last_launch + 1 == tasks_run() && last_stream == c->stream,
    };
    last_launch = tasks_run();
    last_stream = c->stream;
    int error = launch_run(&l);
    if (error) device_fault((cudaError_t)error);
}

static void release_launch(struct task *task)
{
    struct launch_task *t = (struct launch_task *)task;
    free(t->params);
    free(t->args);
}

struct task *launch_task(const char *caller, const void *function, const struct configuration *c, void **args,
                         cudaError_t *error)
{
    struct kernel *k = kernel_of(function, caller, error);
    if (!k) return NULL;
    const struct function *f = k->function;
    if (f->refused) {
        if (!k->told)
            fprintf(stderr, "simgpu: %s: kernel %s cannot be run: %s\n", caller, readable_name(k->name),
                    f->why);
        k->told = true;
        *error = record(cudaErrorNotSupported);
        return NULL;
    }
    if ((*error = check(caller, k, c))) return NULL;
    if (!args && f->param_count) {
        *error = fail(cudaErrorInvalidValue, "%s: kernel %s has %u parameters, but the argument list is NULL",
                      caller, readable_name(k->name), f->param_count);
        return NULL;
    }
    struct launch_task *t = task_new(sizeof *t, cudaGraphNodeTypeKernel, run_launch, release_launch);
    /* A tensor map among the parameters must lie on 64 bytes. */
    u32 bytes = round_up(f->param_bytes + 1, 64);
    u8 *params = t ? aligned_alloc(64, bytes) : NULL;
    void **own = t ? calloc(f->param_count + 1, sizeof *own) : NULL;
    if (!params || !own) {
        free(params);
        free(own);
        if (t) task_drop(&t->task);
        *error = fail(cudaErrorMemoryAllocation, "%s: out of host memory", caller);
        return NULL;
    }
    memset(params, 0, bytes);
    for (u32 i = 0; i < f->param_count; i++) {
        own[i] = params + f->params[i].offset;
        memcpy(own[i], args[i], f->params[i].bytes);
    }
    t->task.name = k->name;
    t->kernel = k;
    t->configuration = *c;
    t->params = params;
    t->args = own;
    t->step = counters_step();
    return &t->task;
}

bool launch_task_reaches_host(const struct task *task)
{
    if (task->run != run_launch) return false;
    const struct launch_task *t = (const struct launch_task *)task;
    struct allocation a;
    for (u32 k = 0; k + sizeof(u64) <= t->kernel->function->param_bytes; k += sizeof(u64)) {
        u64 address;
        memcpy(&address, t->params + k, sizeof address);
        if (heap_find(address, &a) && (a.kind == ALLOCATION_HOST || a.kind == ALLOCATION_MANAGED))
            return true;
    }
    return false;
}

bool launch_task_parameters(const struct task *task, struct cudaKernelNodeParams *parameters)
{
    if (!task || task->run != run_launch) return false;
    const struct launch_task *t = (const struct launch_task *)task;
    *parameters = (struct cudaKernelNodeParams){.func = (void *)t->kernel->host_function,
                                                .gridDim = t->configuration.grid,
                                                .blockDim = t->configuration.block,
                                                .sharedMemBytes = (unsigned)t->configuration.dynamic_bytes,
                                                .kernelParams = t->args};
    return true;
}

static cudaError_t launch(const char *caller, const void *function, const struct configuration *c,
                          void **args)
{
    cudaError_t error = check_stream(c->stream, caller);
    if (error) return error;
    struct task *task = launch_task(caller, function, c, args, &error);
    return stream_do(c->stream, task, error);
}

EXPORT cudaError_t cudaLaunchKernel(const void *function, dim3 grid, dim3 block, void **args,
                                    size_t dynamic_bytes, cudaStream_t stream)
{
    ENTER();
    struct configuration c = {.grid = grid, .block = block, .dynamic_bytes = dynamic_bytes, .stream = stream};
    return launch("cudaLaunchKernel", function, &c, args);
}
PER_THREAD(cudaLaunchKernel, _ptsz);

/* What <<<...>>> ends in. `kernel` is NULL when __cudaGetKernel failed. */
EXPORT cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void **args,
                                      size_t dynamic_bytes, cudaStream_t stream)
{
    ENTER();
    struct configuration c = {.grid = grid, .block = block, .dynamic_bytes = dynamic_bytes, .stream = stream};
    return launch("launch", kernel, &c, args);
}
PER_THREAD(__cudaLaunchKernel, _ptsz);

EXPORT cudaError_t cudaLaunchCooperativeKernel(const void *function, dim3 grid, dim3 block, void **args,
                                               size_t dynamic_bytes, cudaStream_t stream)
{
    ENTER();
    struct configuration c = {
        .grid = grid, .block = block, .dynamic_bytes = dynamic_bytes, .stream = stream, .cooperative = true};
    return launch("cudaLaunchCooperativeKernel", function, &c, args);
}
PER_THREAD(cudaLaunchCooperativeKernel, _ptsz);

/* For libcuda.so.1: see driver.h. */
EXPORT cudaError_t simgpu_launch_packed(cudaKernel_t kernel, dim3 grid, dim3 block, void *buffer,
                                        size_t bytes, size_t dynamic_bytes, cudaStream_t stream)
{
    ENTER();
    const char *caller = "cuLaunchKernel";
    cudaError_t error;
    const struct kernel *k = kernel_of(kernel, caller, &error);
    if (!k) return error;
    const struct function *f = k->function;
    void **args = calloc(f->param_count + 1, sizeof *args);
    if (!args) return record(cudaErrorMemoryAllocation);
    for (u32 i = 0; i < f->param_count && !error; i++) {
        args[i] = (u8 *)buffer + f->params[i].offset;
        if (f->params[i].offset + f->params[i].bytes > bytes)
            error = fail(cudaErrorInvalidValue,
                         "%s: kernel %s: a buffer of %zu bytes, but its parameters have %u", caller,
                         readable_name(k->name), bytes, f->param_bytes);
    }
    struct configuration c = {.grid = grid, .block = block, .dynamic_bytes = dynamic_bytes, .stream = stream};
    if (!error) error = launch(caller, kernel, &c, args);
    free(args);
    return error;
}

static cudaError_t read_configuration(const char *caller, const cudaLaunchConfig_t *config,
                                      struct configuration *c)
{
    if (!config || (config->numAttrs && !config->attrs)) return record(cudaErrorInvalidValue);
    *c = (struct configuration){.grid = config->gridDim,
                                .block = config->blockDim,
                                .dynamic_bytes = config->dynamicSmemBytes,
                                .stream = config->stream};
    for (u32 i = 0; i < config->numAttrs; i++) {
        const cudaLaunchAttribute *a = &config->attrs[i];
        switch (a->id) {
        case cudaLaunchAttributeCooperative: c->cooperative = a->val.cooperative != 0; break;
        case cudaLaunchAttributeClusterDimension:
            c->cluster = (dim3){a->val.clusterDim.x, a->val.clusterDim.y, a->val.clusterDim.z};
            if (!c->cluster.x || !c->cluster.y || !c->cluster.z)
                return fail(cudaErrorInvalidValue, "%s: a cluster of (%u, %u, %u) blocks", caller,
                            c->cluster.x, c->cluster.y, c->cluster.z);
            break;
        case cudaLaunchAttributeProgrammaticStreamSerialization:
            c->dependent = a->val.programmaticStreamSerializationAllowed != 0;
            break;
        /* Hints, and orders that work done at once keeps anyway. */
        case cudaLaunchAttributeIgnore:
        case cudaLaunchAttributeAccessPolicyWindow:
        case cudaLaunchAttributeSynchronizationPolicy:
        case cudaLaunchAttributeClusterSchedulingPolicyPreference:
        case cudaLaunchAttributePriority:
        case cudaLaunchAttributeMemSyncDomainMap:
        case cudaLaunchAttributeMemSyncDomain:
        case cudaLaunchAttributePreferredSharedMemoryCarveout: break;
        default:
            return fail(cudaErrorNotSupported,
                        "%s: launch attribute %d is not supported by the simulated GPU", caller, (int)a->id);
        }
    }
    return cudaSuccess;
}

EXPORT cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *config, const void *function, void **args)
{
    ENTER();
    struct configuration c;
    cudaError_t error = read_configuration("cudaLaunchKernelEx", config, &c);
    return error ? error : launch("cudaLaunchKernelEx", function, &c, args);
}
PER_THREAD(cudaLaunchKernelExC, _ptsz);

/* ---- Attributes and occupancy ------------------------------------------------------------------------------------- */

/* 80 for sm_80, 90 for sm_90a. A library such as CUB asks, to learn for which of its architectures it was compiled. */
static int target_number(const struct module *m)
{
    return m->ptx_target && strncmp(m->ptx_target, "sm_", 3) == 0 ? atoi(m->ptx_target + 3) : 0;
}

EXPORT cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *attributes, const void *function)
{
    ENTER();
    if (!attributes) return record(cudaErrorInvalidValue);
    cudaError_t error;
    const struct kernel *k = kernel_of(function, "cudaFuncGetAttributes", &error);
    if (!k) return error;
    const struct function *f = k->function;
    u64 constants = 0;
    for (u32 i = 0; i < f->module->variable_count; i++)
        if (f->module->variables[i].is_const) constants += f->module->variables[i].bytes;
    *attributes = (struct cudaFuncAttributes){
        .sharedSizeBytes = f->shared_bytes,
        .constSizeBytes = constants,
        .localSizeBytes = f->local_bytes,
        .maxThreadsPerBlock = (int)f->max_threads,
        .numRegs = (int)f->regs_per_thread,
        .ptxVersion = target_number(f->module),
        .binaryVersion = 90,
        .maxDynamicSharedSizeBytes = (int)k->max_dynamic_bytes,
        .preferredShmemCarveout = -1,
        .clusterDimMustBeSet = f->cluster[0] != 0,
        .requiredClusterWidth = (int)f->cluster[0],
        .requiredClusterHeight = (int)f->cluster[1],
        .requiredClusterDepth = (int)f->cluster[2],
    };
    return cudaSuccess;
}

EXPORT cudaError_t cudaFuncSetAttribute(const void *function, enum cudaFuncAttribute attribute, int value)
{
    ENTER();
    const char *caller = "cudaFuncSetAttribute";
    cudaError_t error;
    struct kernel *k = kernel_of(function, caller, &error);
    if (!k) return error;
    switch (attribute) {
    case cudaFuncAttributeMaxDynamicSharedMemorySize:
        if (value < 0 || (u64)value + k->function->shared_bytes > SHARED_PER_BLOCK_OPTIN)
            return fail(
                cudaErrorInvalidValue,
                "%s: kernel %s: %d bytes of dynamic shared memory; with its %u static ones a block has at most %d",
                caller, readable_name(k->name), value, k->function->shared_bytes, SHARED_PER_BLOCK_OPTIN);
        k->max_dynamic_bytes = (u32)value;
        return cudaSuccess;
    case cudaFuncAttributePreferredSharedMemoryCarveout:
        return value >= -1 && value <= 100 ? cudaSuccess : record(cudaErrorInvalidValue);
    case cudaFuncAttributeNonPortableClusterSizeAllowed: k->large_clusters = value != 0; return cudaSuccess;
    case cudaFuncAttributeClusterSchedulingPolicyPreference: return cudaSuccess;
    default:
        return fail(cudaErrorNotSupported, "%s: attribute %d is not supported by the simulated GPU", caller,
                    (int)attribute);
    }
}

EXPORT cudaError_t cudaFuncSetCacheConfig(const void *function, enum cudaFuncCache config)
{
    ENTER();
    (void)config;
    cudaError_t error;
    kernel_of(function, "cudaFuncSetCacheConfig", &error);
    return error;
}

EXPORT cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, const void *function,
                                                                          int threads, size_t dynamic_bytes,
                                                                          unsigned flags)
{
    ENTER();
    cudaError_t error;
    const struct kernel *k = kernel_of(function, "cudaOccupancyMaxActiveBlocksPerMultiprocessor", &error);
    if (!k) return error;
    if (!blocks || threads <= 0 || flags > cudaOccupancyDisableCachingOverride)
        return record(cudaErrorInvalidValue);
    *blocks = blocks_per_sm(k->function, threads, dynamic_bytes);
    return cudaSuccess;
}

EXPORT cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, const void *function,
                                                                 int threads, size_t dynamic_bytes)
{
    return cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, function, threads, dynamic_bytes,
                                                                  cudaOccupancyDefault);
}

EXPORT cudaError_t cudaOccupancyAvailableDynamicSMemPerBlock(size_t *dynamic_bytes, const void *function,
                                                             int blocks, int threads)
{
    ENTER();
    cudaError_t error;
    const struct kernel *k = kernel_of(function, "cudaOccupancyAvailableDynamicSMemPerBlock", &error);
    if (!k) return error;
    if (!dynamic_bytes || blocks <= 0 || blocks_per_sm(k->function, threads, 0) < blocks)
        return record(cudaErrorInvalidValue);
    u32 each = SHARED_PER_SM / (u32)blocks / 128 * 128 - SHARED_RESERVED;
    if (each > SHARED_PER_BLOCK_OPTIN) each = SHARED_PER_BLOCK_OPTIN;
    u64 used = shared_bytes_of(k->function, 1) - 1;
    *dynamic_bytes = each > used ? each - used : 0;
    return cudaSuccess;
}

/* Clusters that the whole device holds at a time. A GPU of an H200 has clusters of its own size, 16 or 18 multiprocessors,
 * and a cluster lies within one; here all of them count as one. */
EXPORT cudaError_t cudaOccupancyMaxActiveClusters(int *clusters, const void *function,
                                                  const cudaLaunchConfig_t *config)
{
    ENTER();
    const char *caller = "cudaOccupancyMaxActiveClusters";
    cudaError_t error;
    struct configuration c;
    const struct kernel *k = kernel_of(function, caller, &error);
    if (!k || !clusters) return k ? record(cudaErrorInvalidValue) : error;
    if ((error = read_configuration(caller, config, &c)) || (error = check_cluster(caller, k, &c)))
        return error;
    dim3 size = cluster_of(k, &c);
    u32 blocks = options.sms *
                 (u32)blocks_per_sm(k->function, (int)(c.block.x * c.block.y * c.block.z), c.dynamic_bytes);
    *clusters = (int)(blocks / (size.x * size.y * size.z));
    return cudaSuccess;
}

EXPORT cudaError_t cudaOccupancyMaxPotentialClusterSize(int *size, const void *function,
                                                        const cudaLaunchConfig_t *config)
{
    ENTER();
    const char *caller = "cudaOccupancyMaxPotentialClusterSize";
    cudaError_t error;
    struct configuration c;
    const struct kernel *k = kernel_of(function, caller, &error);
    if (!k || !size) return k ? record(cudaErrorInvalidValue) : error;
    if ((error = read_configuration(caller, config, &c))) return error;
    *size = k->large_clusters ? MAX_CLUSTER : PORTABLE_CLUSTER;
    return cudaSuccess;
}
