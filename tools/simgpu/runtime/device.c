/* device.c: what the simulated GPU says about itself: one Hopper-class device, cc 9.0. Sizes that programs reckon with (shared
 * memory, threads, registers, grids) are an H100's; the number of multiprocessors and the memory are options. What the
 * simulator does not have (textures, peers, ECC) is reported as absent. */
#include "cudart.h"

#include <dlfcn.h>
#include <stdatomic.h>
#include <string.h>

#include "heap.h"
#include "task.h"
#include "tensor_map.h"

enum { L2_BYTES = 50 << 20, VERSION = CUDART_VERSION };

static const struct {
    enum cudaDeviceAttr attribute;
    int value;
} attributes[] = {
    {cudaDevAttrMaxThreadsPerBlock, THREADS_PER_BLOCK},
    {cudaDevAttrMaxBlockDimX, 1024},
    {cudaDevAttrMaxBlockDimY, 1024},
    {cudaDevAttrMaxBlockDimZ, 64},
    {cudaDevAttrMaxGridDimX, 0x7fffffff},
    {cudaDevAttrMaxGridDimY, 65535},
    {cudaDevAttrMaxGridDimZ, 65535},
    {cudaDevAttrMaxSharedMemoryPerBlock, SHARED_PER_BLOCK},
    {cudaDevAttrTotalConstantMemory, 64 << 10},
    {cudaDevAttrWarpSize, LANES},
    {cudaDevAttrMaxPitch, 0x7fffffff},
    {cudaDevAttrMaxRegistersPerBlock, REGISTERS_PER_SM},
    {cudaDevAttrClockRate, 1980000},
    {cudaDevAttrTextureAlignment, 512},
    {cudaDevAttrGpuOverlap, 1},
    {cudaDevAttrComputeMode, cudaComputeModeDefault},
    {cudaDevAttrConcurrentKernels, 1},
    {cudaDevAttrMemoryClockRate, 2619000},
    {cudaDevAttrGlobalMemoryBusWidth, 5120},
    {cudaDevAttrL2CacheSize, L2_BYTES},
    {cudaDevAttrMaxThreadsPerMultiProcessor, THREADS_PER_SM},
    {cudaDevAttrAsyncEngineCount, 3},
    {cudaDevAttrUnifiedAddressing, 1},
    {cudaDevAttrTexturePitchAlignment, 32},
    {cudaDevAttrSurfaceAlignment, 512},
    {cudaDevAttrComputeCapabilityMajor, 9},
    {cudaDevAttrComputeCapabilityMinor, 0},
    {cudaDevAttrStreamPrioritiesSupported, 1},
    {cudaDevAttrGlobalL1CacheSupported, 1},
    {cudaDevAttrLocalL1CacheSupported, 1},
    {cudaDevAttrMaxSharedMemoryPerMultiprocessor, SHARED_PER_SM},
    {cudaDevAttrMaxRegistersPerMultiprocessor, REGISTERS_PER_SM},
    {cudaDevAttrSingleToDoublePrecisionPerfRatio, 2},
    {cudaDevAttrComputePreemptionSupported, 1},
    {cudaDevAttrCooperativeLaunch, 1},
    {cudaDevAttrMaxSharedMemoryPerBlockOptin, SHARED_PER_BLOCK_OPTIN},
    {cudaDevAttrHostRegisterSupported, 1},
    {cudaDevAttrCanMapHostMemory, 1},
    {cudaDevAttrCanUseHostPointerForRegisteredMem, 1},
    {cudaDevAttrManagedMemory, 1},
    {cudaDevAttrConcurrentManagedAccess, 1},
    {cudaDevAttrMaxBlocksPerMultiprocessor, BLOCKS_PER_SM},
    {cudaDevAttrMaxPersistingL2CacheSize, L2_BYTES / 16 * 10},
    {cudaDevAttrMaxAccessPolicyWindowSize, 128 << 20},
    {cudaDevAttrReservedSharedMemoryPerBlock, SHARED_RESERVED},
    {cudaDevAttrMemoryPoolsSupported, 1},
    {cudaDevAttrMemSyncDomainCount, 4},
    {cudaDevAttrNumaId, -1},
    {cudaDevAttrHostNumaId, -1},
};

static int attribute_value(enum cudaDeviceAttr attribute)
{
    if (attribute == cudaDevAttrMultiProcessorCount) return (int)options.sms;
    for (size_t i = 0; i < sizeof attributes / sizeof *attributes; i++)
        if (attributes[i].attribute == attribute) return attributes[i].value;
    return 0; /* the device does not have it */
}

static cudaError_t check_device_number(int device, const char *caller)
{
    if (device == 0) return cudaSuccess;
    return fail(cudaErrorInvalidDevice, "%s: device %d, but there is only device 0", caller, device);
}

EXPORT cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device)
{
    ENTER();
    cudaError_t error = check_device_number(device, "cudaDeviceGetAttribute");
    if (error) return error;
    if (!value || (int)attribute <= 0 || attribute >= cudaDevAttrMax) return record(cudaErrorInvalidValue);
    *value = attribute_value(attribute);
    return cudaSuccess;
}

EXPORT cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *p, int device)
{
    ENTER();
    cudaError_t error = check_device_number(device, "cudaGetDeviceProperties");
    if (error) return error;
    if (!p) return record(cudaErrorInvalidValue);
    *p = (struct cudaDeviceProp){
        .name = "Simulated GPU (SM90)",
        .uuid = {"simgpu sm90 dev0"},
        .totalGlobalMem = options.memory,
        .sharedMemPerBlock = SHARED_PER_BLOCK,
        .regsPerBlock = REGISTERS_PER_SM,
        .warpSize = LANES,
        .memPitch = (size_t)attribute_value(cudaDevAttrMaxPitch),
        .maxThreadsPerBlock = THREADS_PER_BLOCK,
        .maxThreadsDim = {1024, 1024, 64},
        .maxGridSize = {0x7fffffff, 65535, 65535},
        .totalConstMem = (size_t)attribute_value(cudaDevAttrTotalConstantMemory),
        .major = 9,
        .minor = 0,
        .textureAlignment = (size_t)attribute_value(cudaDevAttrTextureAlignment),
        .texturePitchAlignment = (size_t)attribute_value(cudaDevAttrTexturePitchAlignment),
        .surfaceAlignment = (size_t)attribute_value(cudaDevAttrSurfaceAlignment),
        .multiProcessorCount = (int)options.sms,
        .concurrentKernels = 1,
        .asyncEngineCount = attribute_value(cudaDevAttrAsyncEngineCount),
        .unifiedAddressing = 1,
        .memoryBusWidth = attribute_value(cudaDevAttrGlobalMemoryBusWidth),
        .l2CacheSize = L2_BYTES,
        .persistingL2CacheMaxSize = attribute_value(cudaDevAttrMaxPersistingL2CacheSize),
        .maxThreadsPerMultiProcessor = THREADS_PER_SM,
        .streamPrioritiesSupported = 1,
        .globalL1CacheSupported = 1,
        .localL1CacheSupported = 1,
        .sharedMemPerMultiprocessor = SHARED_PER_SM,
        .regsPerMultiprocessor = REGISTERS_PER_SM,
        .computePreemptionSupported = 1,
        .cooperativeLaunch = 1,
        .sharedMemPerBlockOptin = SHARED_PER_BLOCK_OPTIN,
        .maxBlocksPerMultiProcessor = BLOCKS_PER_SM,
        .accessPolicyMaxWindowSize = attribute_value(cudaDevAttrMaxAccessPolicyWindowSize),
        .reservedSharedMemPerBlock = SHARED_RESERVED,
        .hostRegisterSupported = 1,
        .canMapHostMemory = 1,
        .canUseHostPointerForRegisteredMem = 1,
        .managedMemory = 1,
        .concurrentManagedAccess = 1,
        .memoryPoolsSupported = 1,
        .deviceNumaId = -1,
        .hostNumaId = -1,
    };
    return cudaSuccess;
}

EXPORT cudaError_t cudaGetDeviceCount(int *count)
{
    ENTER();
    if (!count) return record(cudaErrorInvalidValue);
    *count = 1;
    return cudaSuccess;
}

EXPORT cudaError_t cudaGetDevice(int *device)
{
    ENTER();
    if (!device) return record(cudaErrorInvalidValue);
    *device = 0;
    return cudaSuccess;
}

EXPORT cudaError_t cudaSetDevice(int device)
{
    ENTER();
    return check_device_number(device, "cudaSetDevice");
}

EXPORT cudaError_t cudaInitDevice(int device, unsigned device_flags, unsigned flags)
{
    ENTER();
    (void)device_flags, (void)flags;
    return check_device_number(device, "cudaInitDevice");
}

EXPORT cudaError_t cudaChooseDevice(int *device, const struct cudaDeviceProp *properties)
{
    ENTER();
    if (!device || !properties) return record(cudaErrorInvalidValue);
    *device = 0;
    return cudaSuccess;
}

static _Atomic unsigned device_flags;

EXPORT cudaError_t cudaSetDeviceFlags(unsigned flags)
{
    ENTER();
    if (flags & ~(unsigned)cudaDeviceMask) return record(cudaErrorInvalidValue);
    device_flags = flags;
    return cudaSuccess;
}

EXPORT cudaError_t cudaGetDeviceFlags(unsigned *flags)
{
    ENTER();
    if (!flags) return record(cudaErrorInvalidValue);
    *flags = device_flags;
    return cudaSuccess;
}

EXPORT cudaError_t cudaDeviceSynchronize(void)
{
    ENTER();
    return device_finish("cudaDeviceSynchronize");
}

/* Frees what cudaMalloc gave out. A context that a fault has corrupted stays so, as CUDA says. */
EXPORT cudaError_t cudaDeviceReset(void)
{
    ENTER();
    cudaError_t error = device_finish("cudaDeviceReset");
    if (error) return error;
    heap_free_all();
    return cudaSuccess;
}

EXPORT cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer)
{
    ENTER();
    cudaError_t error = check_device_number(device, "cudaDeviceCanAccessPeer");
    if (!error) error = check_device_number(peer, "cudaDeviceCanAccessPeer");
    if (error) return error;
    if (!can) return record(cudaErrorInvalidValue);
    *can = 0;
    return cudaSuccess;
}

EXPORT cudaError_t cudaDeviceSetCacheConfig(enum cudaFuncCache config)
{
    ENTER();
    (void)config;
    return cudaSuccess;
}

EXPORT cudaError_t cudaDeviceGetCacheConfig(enum cudaFuncCache *config)
{
    ENTER();
    if (!config) return record(cudaErrorInvalidValue);
    *config = cudaFuncCachePreferNone;
    return cudaSuccess;
}

EXPORT cudaError_t cudaDeviceGetPCIBusId(char *text, int room, int device)
{
    ENTER();
    cudaError_t error = check_device_number(device, "cudaDeviceGetPCIBusId");
    if (error) return error;
    static const char id[] = "0000:00:00.0";
    if (!text || room < (int)sizeof id) return record(cudaErrorInvalidValue);
    memcpy(text, id, sizeof id);
    return cudaSuccess;
}

/* ---- Limits ------------------------------------------------------------------------------------------------------- */

static struct limit {
    enum cudaLimit limit;
    _Atomic size_t value;
    size_t most;
} limits[] = {
    {cudaLimitStackSize, 1024, 512 << 10},
    {cudaLimitPrintfFifoSize, 7 << 20, 1ull << 40}, /* printf prints at once: any size will do */
    {cudaLimitMallocHeapSize, 8 << 20, 1ull << 40},
    {cudaLimitMaxL2FetchGranularity, 64, 128},
    {cudaLimitPersistingL2CacheSize, 0, L2_BYTES},
};

static struct limit *find_limit(enum cudaLimit limit)
{
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++)
        if (limits[i].limit == limit) return &limits[i];
    return NULL;
}

u32 stack_limit(void)
{
    return (u32)find_limit(cudaLimitStackSize)->value;
}

EXPORT cudaError_t cudaDeviceGetLimit(size_t *value, enum cudaLimit limit)
{
    ENTER();
    const struct limit *l = find_limit(limit);
    if (!value) return record(cudaErrorInvalidValue);
    if (!l)
        return fail(cudaErrorUnsupportedLimit, "cudaDeviceGetLimit: the simulated GPU has no limit %d",
                    (int)limit);
    *value = l->value;
    return cudaSuccess;
}

EXPORT cudaError_t cudaDeviceSetLimit(enum cudaLimit limit, size_t value)
{
    ENTER();
    struct limit *l = find_limit(limit);
    if (!l)
        return fail(cudaErrorUnsupportedLimit, "cudaDeviceSetLimit: the simulated GPU has no limit %d",
                    (int)limit);
    if (value > l->most)
        return fail(cudaErrorInvalidValue, "cudaDeviceSetLimit: limit %d: %zu, at most %zu is possible",
                    (int)limit, value, l->most);
    l->value = value;
    return cudaSuccess;
}

EXPORT cudaError_t cudaCtxResetPersistingL2Cache(void)
{
    ENTER();
    return cudaSuccess;
}

/* ---- Versions, the profiler, the driver ---------------------------------------------------------------------------- */

EXPORT cudaError_t cudaDriverGetVersion(int *version)
{
    if (!version) return record(cudaErrorInvalidValue);
    *version = VERSION;
    return cudaSuccess;
}

EXPORT cudaError_t cudaRuntimeGetVersion(int *version)
{
    return cudaDriverGetVersion(version);
}

EXPORT cudaError_t cudaProfilerStart(void)
{
    ENTER();
    return cudaSuccess;
}

EXPORT cudaError_t cudaProfilerStop(void)
{
    ENTER();
    return cudaSuccess;
}

static int driver_get_version(int *version)
{
    return (int)cudaDriverGetVersion(version);
}

/* Driver functions that a program may ask for by name: these, and what libcuda.so.1 has, in its latest version. */
static const struct driver_function {
    const char *name;
    void *function;
} driver_functions[] = {
    {"cuDriverGetVersion", (void *)driver_get_version},
    {"cuTensorMapEncodeTiled", (void *)tensor_map_encode_tiled},
};

static void *find_in_driver(const char *name)
{
    static const char *const versions[] = {"_v4", "_v3", "_v2", ""};
    void *driver = dlopen("libcuda.so.1", RTLD_LAZY), *found = NULL;
    char versioned[128];
    for (u32 k = 0; driver && !found && k < sizeof versions / sizeof *versions; k++) {
        snprintf(versioned, sizeof versioned, "%s%s", name, versions[k]);
        found = dlsym(driver, versioned);
    }
    return found;
}

static cudaError_t driver_entry(const char *name, void **function,
                                enum cudaDriverEntryPointQueryResult *status)
{
    if (!name || !function) return record(cudaErrorInvalidValue);
    *function = NULL;
    for (size_t i = 0; i < sizeof driver_functions / sizeof *driver_functions; i++)
        if (strcmp(driver_functions[i].name, name) == 0) *function = driver_functions[i].function;
    if (!*function) *function = find_in_driver(name);
    if (!*function)
        fprintf(stderr, "simgpu: cudaGetDriverEntryPoint: %s is not supported by the simulated GPU\n", name);
    if (status) *status = *function ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
    return *function || status ? cudaSuccess : record(cudaErrorSymbolNotFound);
}

EXPORT cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **function, unsigned version,
                                                    unsigned long long flags,
                                                    enum cudaDriverEntryPointQueryResult *status)
{
    ENTER();
    (void)version, (void)flags;
    return driver_entry(name, function, status);
}
PER_THREAD(cudaGetDriverEntryPointByVersion, _ptsz);

/* Deprecated, but in the library still. */
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
EXPORT cudaError_t cudaGetDriverEntryPoint(const char *name, void **function, unsigned long long flags,
                                           enum cudaDriverEntryPointQueryResult *status)
{
    ENTER();
    (void)flags;
    return driver_entry(name, function, status);
}
PER_THREAD(cudaGetDriverEntryPoint, _ptsz);
