/* pool.c: memory pools, as far as programs that use cudaMallocAsync ask about the device's default one. Memory that is freed
 * goes back to the device at once, so the pool's settings have no effect; they are only remembered. */
#include "cudart.h"

#include <stdatomic.h>

#include "heap.h"

struct CUmemPoolHandle_st {
    _Atomic u64 release_threshold;
    _Atomic int reuse
        [3]; /* cudaMemPoolReuseFollowEventDependencies, ...AllowOpportunistic, ...AllowInternalDependencies */
};
static struct CUmemPoolHandle_st default_pool = {.reuse = {1, 1, 1}};

static cudaError_t check_pool(cudaMemPool_t pool, const char *caller)
{
    if (pool == &default_pool) return cudaSuccess;
    return fail(cudaErrorInvalidValue,
                "%s: %p is not the device's default pool, the only one that is supported", caller,
                (void *)pool);
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
    case cudaMemPoolAttrUsedMemCurrent: *(u64 *)value = total_bytes - free_bytes; return cudaSuccess;
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
