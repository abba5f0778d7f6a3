/* pool.c: memory pools, the device's default one and a program's own. Memory that is freed goes back to the device at once, so that
 * a pool's settings have no effect; they are only remembered. */
#include "cudart.h"

#include <stdatomic.h>
#include <stdlib.h>

#include "heap.h"

enum { POOL_MAGIC = 0x504f4f4c };

struct CUmemPoolHandle_st {
    u32 magic; /* 0 once destroyed */
    _Atomic u64 release_threshold;
    _Atomic int reuse
        [3]; /* cudaMemPoolReuseFollowEventDependencies, ...AllowOpportunistic, ...AllowInternalDependencies */
};
static struct CUmemPoolHandle_st default_pool = {.magic = POOL_MAGIC, .reuse = {1, 1, 1}};

static cudaError_t check_pool(cudaMemPool_t pool, const char *caller)
{
    if (pool && pool->magic == POOL_MAGIC) return cudaSuccess;
    return fail(cudaErrorInvalidValue, "%s: %p is no memory pool, or was destroyed", caller, (void *)pool);
}

EXPORT cudaError_t cudaMemPoolCreate(cudaMemPool_t *pool, const struct cudaMemPoolProps *properties)
{
    ENTER();
    if (!pool || !properties) return record(cudaErrorInvalidValue);
    if (properties->allocType != cudaMemAllocationTypePinned || properties->handleTypes ||
        properties->location.type != cudaMemLocationTypeDevice || properties->location.id)
        return fail(cudaErrorNotSupported,
                    "cudaMemPoolCreate: a pool of anything but device 0's own memory is not supported");
    struct CUmemPoolHandle_st *p = calloc(1, sizeof *p);
    if (!p) return record(cudaErrorMemoryAllocation);
    p->magic = POOL_MAGIC;
    for (u32 i = 0; i < sizeof p->reuse / sizeof *p->reuse; i++) p->reuse[i] = 1;
    *pool = p;
    return cudaSuccess;
}

/* What was allocated from it stays until it is freed, and the handle, to be told from others, for ever. */
EXPORT cudaError_t cudaMemPoolDestroy(cudaMemPool_t pool)
{
    ENTER();
    cudaError_t error = check_pool(pool, "cudaMemPoolDestroy");
    if (!error && pool == &default_pool) error = record(cudaErrorInvalidValue);
    if (!error) pool->magic = 0;
    return error;
}

/* The device's own access cannot be taken away, and there is no other device. */
EXPORT cudaError_t cudaMemPoolSetAccess(cudaMemPool_t pool, const struct cudaMemAccessDesc *access,
                                        size_t count)
{
    ENTER();
    cudaError_t error = check_pool(pool, "cudaMemPoolSetAccess");
    for (size_t i = 0; i < count && !error; i++)
        if (access[i].location.id || access[i].flags != cudaMemAccessFlagsProtReadWrite)
            error = record(cudaErrorInvalidDevice);
    return error;
}

EXPORT cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t *pool, int device)
{
    ENTER();
    if (!pool) return record(cudaErrorInvalidValue);
    if (device != 0) return record(cudaErrorInvalidDevice);
    *pool = &default_pool;
    return cudaSuccess;
}

EXPORT cudaError_t cudaDeviceGetMemPool(cudaMemPool_t *pool, int device)
{
    return cudaDeviceGetDefaultMemPool(pool, device);
}

EXPORT cudaError_t cudaDeviceSetMemPool(int device, cudaMemPool_t pool)
{
    ENTER();
    if (device != 0) return record(cudaErrorInvalidDevice);
    return check_pool(pool, "cudaDeviceSetMemPool");
}

EXPORT cudaError_t cudaMemPoolTrimTo(cudaMemPool_t pool, size_t keep)
{
    ENTER();
    (void)keep;
    return check_pool(pool, "cudaMemPoolTrimTo");
}

EXPORT cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t pool, enum cudaMemPoolAttr attribute, void *value)
{
    ENTER();
    cudaError_t error = check_pool(pool, "cudaMemPoolSetAttribute");
    if (error) return error;
    if (!value) return record(cudaErrorInvalidValue);
    switch (attribute) {
    case cudaMemPoolReuseFollowEventDependencies:
    case cudaMemPoolReuseAllowOpportunistic:
    case cudaMemPoolReuseAllowInternalDependencies:
        pool->reuse[attribute - cudaMemPoolReuseFollowEventDependencies] = *(int *)value;
        return cudaSuccess;
    case cudaMemPoolAttrReleaseThreshold: pool->release_threshold = *(u64 *)value; return cudaSuccess;
    case cudaMemPoolAttrReservedMemHigh:
    case cudaMemPoolAttrUsedMemHigh: return *(u64 *)value == 0 ? cudaSuccess : record(cudaErrorInvalidValue);
    default: return record(cudaErrorInvalidValue);
    }
}

EXPORT cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t pool, enum cudaMemPoolAttr attribute, void *value)
{
    ENTER();
    cudaError_t error = check_pool(pool, "cudaMemPoolGetAttribute");
    if (error) return error;
    if (!value) return record(cudaErrorInvalidValue);
    u64 free_bytes, total_bytes;
    heap_usage(&free_bytes, &total_bytes);
    switch (attribute) {
    case cudaMemPoolReuseFollowEventDependencies:
    case cudaMemPoolReuseAllowOpportunistic:
    case cudaMemPoolReuseAllowInternalDependencies:
        *(int *)value = pool->reuse[attribute - cudaMemPoolReuseFollowEventDependencies];
        return cudaSuccess;
    case cudaMemPoolAttrReleaseThreshold: *(u64 *)value = pool->release_threshold; return cudaSuccess;
    case cudaMemPoolAttrReservedMemCurrent:
    case cudaMemPoolAttrUsedMemCurrent:
        if (pool != &default_pool)
            return fail(cudaErrorNotSupported,
                        "cudaMemPoolGetAttribute: what a pool of the program's own uses is not counted");
        *(u64 *)value = total_bytes - free_bytes;
        return cudaSuccess;
    default:
        return fail(cudaErrorNotSupported,
                    "cudaMemPoolGetAttribute: attribute %d is not supported by the simulated GPU",
                    (int)attribute);
    }
}

EXPORT cudaError_t cudaMallocFromPoolAsync(void **pointer, size_t bytes, cudaMemPool_t pool,
                                           cudaStream_t stream)
{
    ENTER();
    cudaError_t error = check_pool(pool, "cudaMallocFromPoolAsync");
    return error ? error : cudaMallocAsync(pointer, bytes, stream);
}
PER_THREAD(cudaMallocFromPoolAsync, _ptsz);
