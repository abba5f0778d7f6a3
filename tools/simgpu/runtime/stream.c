/* stream.c: streams, events and host functions.
 *
 * Every operation is done before the call that asks for it returns, so all streams are always idle and every recorded
 * event has happened: the order in which the host asks is one of the orders that CUDA allows. What a handle needs is only
 * to be told from a handle that was destroyed. Destroyed ones are therefore kept, marked. */
#include "cudart.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { STREAM_MAGIC = 0x5354524d, EVENT_MAGIC = 0x45564e54 };

struct CUstream_st {
    u32 magic; /* 0 once destroyed */
    unsigned flags;
    int priority;
    unsigned long long id;
};

struct CUevent_st {
    u32 magic;
    unsigned flags;
    bool recorded;
    struct timespec when;
};

static bool is_default(cudaStream_t s)
{
    return !s || s == cudaStreamLegacy || s == cudaStreamPerThread;
}

cudaError_t check_stream(cudaStream_t stream, const char *caller)
{
    if (is_default(stream) || stream->magic == STREAM_MAGIC) return cudaSuccess;
    return fail(cudaErrorInvalidResourceHandle, "%s: %p is no stream, or was destroyed", caller,
                (void *)stream);
}

static cudaError_t check_event(cudaEvent_t event, const char *caller)
{
    if (event && event->magic == EVENT_MAGIC) return cudaSuccess;
    return fail(cudaErrorInvalidResourceHandle, "%s: %p is no event, or was destroyed", caller,
                (void *)event);
}

/* ---- Streams ------------------------------------------------------------------------------------------------------ */

enum { LOWEST_PRIORITY = 0, HIGHEST_PRIORITY = -5 };

EXPORT cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int priority)
{
    ENTER();
    static _Atomic unsigned long long streams = 2; /* the default streams have the first ids */
    if (!stream || flags & ~(unsigned)cudaStreamNonBlocking) return record(cudaErrorInvalidValue);
    *stream = calloc(1, sizeof **stream);
    if (!*stream) return record(cudaErrorMemoryAllocation);
    if (priority > LOWEST_PRIORITY) priority = LOWEST_PRIORITY;
    if (priority < HIGHEST_PRIORITY) priority = HIGHEST_PRIORITY;
    **stream = (struct CUstream_st){
        .magic = STREAM_MAGIC, .flags = flags, .priority = priority, .id = atomic_fetch_add(&streams, 1) + 1};
    return cudaSuccess;
}

EXPORT cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags)
{
    return cudaStreamCreateWithPriority(stream, flags, LOWEST_PRIORITY);
}

EXPORT cudaError_t cudaStreamCreate(cudaStream_t *stream)
{
    return cudaStreamCreateWithPriority(stream, cudaStreamDefault, LOWEST_PRIORITY);
}

EXPORT cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    ENTER();
    if (is_default(stream)) return record(cudaErrorInvalidResourceHandle);
    cudaError_t error = check_stream(stream, "cudaStreamDestroy");
    if (!error) stream->magic = 0;
    return error;
}

/* The calls that wait for a stream, or ask whether it has finished. */
static cudaError_t wait_for(cudaStream_t stream, const char *caller)
{
    ENTER();
    cudaError_t error = check_stream(stream, caller);
    return error ? error : record(device_wait());
}

EXPORT cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    return wait_for(stream, "cudaStreamSynchronize");
}
PER_THREAD(cudaStreamSynchronize, _ptsz);
EXPORT cudaError_t cudaStreamQuery(cudaStream_t stream)
{
    return wait_for(stream, "cudaStreamQuery");
}
PER_THREAD(cudaStreamQuery, _ptsz);

EXPORT cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags)
{
    ENTER();
    (void)flags;
    cudaError_t error = check_stream(stream, "cudaStreamWaitEvent");
    return error ? error : check_event(event, "cudaStreamWaitEvent");
}
PER_THREAD(cudaStreamWaitEvent, _ptsz);

EXPORT cudaError_t cudaStreamGetPriority(cudaStream_t stream, int *priority)
{
    ENTER();
    cudaError_t error = check_stream(stream, "cudaStreamGetPriority");
    if (error) return error;
    if (!priority) return record(cudaErrorInvalidValue);
    *priority = is_default(stream) ? LOWEST_PRIORITY : stream->priority;
    return cudaSuccess;
}
PER_THREAD(cudaStreamGetPriority, _ptsz);

EXPORT cudaError_t cudaStreamGetFlags(cudaStream_t stream, unsigned *flags)
{
    ENTER();
    cudaError_t error = check_stream(stream, "cudaStreamGetFlags");
    if (error) return error;
    if (!flags) return record(cudaErrorInvalidValue);
    *flags = is_default(stream) ? cudaStreamDefault : stream->flags;
    return cudaSuccess;
}
PER_THREAD(cudaStreamGetFlags, _ptsz);

EXPORT cudaError_t cudaStreamGetId(cudaStream_t stream, unsigned long long *id)
{
    ENTER();
    cudaError_t error = check_stream(stream, "cudaStreamGetId");
    if (error) return error;
    if (!id) return record(cudaErrorInvalidValue);
    *id = is_default(stream) ? (stream == cudaStreamPerThread ? 2 : 1) : stream->id;
    return cudaSuccess;
}
PER_THREAD(cudaStreamGetId, _ptsz);

EXPORT cudaError_t cudaStreamGetDevice(cudaStream_t stream, int *device)
{
    ENTER();
    cudaError_t error = check_stream(stream, "cudaStreamGetDevice");
    if (error) return error;
    if (!device) return record(cudaErrorInvalidValue);
    *device = 0;
    return cudaSuccess;
}
PER_THREAD(cudaStreamGetDevice, _ptsz);

EXPORT cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
    ENTER();
    if (least) *least = LOWEST_PRIORITY;
    if (greatest) *greatest = HIGHEST_PRIORITY;
    return cudaSuccess;
}

/* Attributes are hints: access policies, priorities, synchronisation. */
EXPORT cudaError_t cudaStreamSetAttribute(cudaStream_t stream, cudaStreamAttrID attribute,
                                          const cudaStreamAttrValue *value)
{
    ENTER();
    (void)attribute;
    return value ? check_stream(stream, "cudaStreamSetAttribute") : record(cudaErrorInvalidValue);
}
PER_THREAD(cudaStreamSetAttribute, _ptsz);

/* ---- Capture: refused, but programs may ask whether one is going on ------------------------------------------------ */

EXPORT cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus *status)
{
    ENTER();
    cudaError_t error = check_stream(stream, "cudaStreamIsCapturing");
    if (error) return error;
    if (!status) return record(cudaErrorInvalidValue);
    *status = cudaStreamCaptureStatusNone;
    return cudaSuccess;
}
PER_THREAD(cudaStreamIsCapturing, _ptsz);

EXPORT cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode)
{
    ENTER();
    (void)stream, (void)mode;
    return fail(cudaErrorNotSupported,
                "cudaStreamBeginCapture: CUDA graphs are not supported: the simulated GPU does each "
                "operation when it is asked for; launch without capturing");
}
PER_THREAD(cudaStreamBeginCapture, _ptsz);

/* ---- Host functions ----------------------------------------------------------------------------------------------- */

EXPORT cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void *data)
{
    ENTER();
    cudaError_t error = check_stream(stream, "cudaLaunchHostFunc");
    if (error) return error;
    if (!function) return record(cudaErrorInvalidValue);
    if (device_dead()) return cudaSuccess; /* CUDA does not call host functions of a broken context */
    host_function_begin();
    function(data);
    host_function_end();
    return cudaSuccess;
}
PER_THREAD(cudaLaunchHostFunc, _ptsz);

EXPORT cudaError_t cudaStreamAddCallback(cudaStream_t stream, cudaStreamCallback_t callback, void *data,
                                         unsigned flags)
{
    ENTER();
    cudaError_t error = check_stream(stream, "cudaStreamAddCallback");
    if (error) return error;
    if (!callback || flags) return record(cudaErrorInvalidValue);
    cudaError_t status = device_dead() ? device_wait() : cudaSuccess; /* a callback is told of a fault */
    host_function_begin();
    callback(stream, status, data);
    host_function_end();
    return cudaSuccess;
}
PER_THREAD(cudaStreamAddCallback, _ptsz);

/* ---- Events ------------------------------------------------------------------------------------------------------- */

EXPORT cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags)
{
    ENTER();
    if (!event || flags & ~(unsigned)(cudaEventBlockingSync | cudaEventDisableTiming | cudaEventInterprocess))
        return record(cudaErrorInvalidValue);
    if (flags & cudaEventInterprocess)
        return fail(cudaErrorNotSupported,
                    "cudaEventCreateWithFlags: cudaEventInterprocess is not supported: each process "
                    "has a simulated GPU of its own");
    *event = calloc(1, sizeof **event);
    if (!*event) return record(cudaErrorMemoryAllocation);
    **event = (struct CUevent_st){.magic = EVENT_MAGIC, .flags = flags};
    return cudaSuccess;
}

EXPORT cudaError_t cudaEventCreate(cudaEvent_t *event)
{
    return cudaEventCreateWithFlags(event, cudaEventDefault);
}

EXPORT cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    ENTER();
    cudaError_t error = check_event(event, "cudaEventDestroy");
    if (!error) event->magic = 0;
    return error;
}

EXPORT cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned flags)
{
    ENTER();
    cudaError_t error = check_event(event, "cudaEventRecord");
    if (!error) error = check_stream(stream, "cudaEventRecord");
    if (error) return error;
    if (flags & ~(unsigned)cudaEventRecordExternal) return record(cudaErrorInvalidValue);
    clock_gettime(CLOCK_MONOTONIC, &event->when);
    event->recorded = true;
    return cudaSuccess;
}
PER_THREAD(cudaEventRecordWithFlags, _ptsz);

EXPORT cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    return cudaEventRecordWithFlags(event, stream, cudaEventRecordDefault);
}
PER_THREAD(cudaEventRecord, _ptsz);

static cudaError_t wait_for_event(cudaEvent_t event, const char *caller)
{
    ENTER();
    cudaError_t error = check_event(event, caller);
    if (error || !event->recorded) return error;
    return record(device_wait());
}

EXPORT cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    return wait_for_event(event, "cudaEventSynchronize");
}
EXPORT cudaError_t cudaEventQuery(cudaEvent_t event)
{
    return wait_for_event(event, "cudaEventQuery");
}

/* The time that this computer took, which says nothing about a GPU; the program is told so, once. Never 0, since programs
 * divide by it. */
EXPORT cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t start, cudaEvent_t end)
{
    static atomic_flag told = ATOMIC_FLAG_INIT;
    ENTER();
    cudaError_t error = check_event(start, "cudaEventElapsedTime");
    if (!error) error = check_event(end, "cudaEventElapsedTime");
    if (error) return error;
    if (!milliseconds) return record(cudaErrorInvalidValue);
    if (!start->recorded || !end->recorded || (start->flags | end->flags) & cudaEventDisableTiming)
        return fail(cudaErrorInvalidResourceHandle, "cudaEventElapsedTime: an event %s",
                    start->recorded && end->recorded ? "was created with cudaEventDisableTiming"
                                                     : "was never recorded");
    if (!atomic_flag_test_and_set(&told))
        fprintf(
            stderr,
            "simgpu: times between events are this computer's, simulating; they say nothing about a GPU\n");
    double seconds = (double)(end->when.tv_sec - start->when.tv_sec) +
                     1e-9 * (double)(end->when.tv_nsec - start->when.tv_nsec);
    *milliseconds = (float)(seconds * 1e3);
    if (*milliseconds == 0) *milliseconds = 1e-6f;
    return cudaSuccess;
}
