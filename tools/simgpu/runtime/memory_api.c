/* memory_api.c: device and host memory, copies, fills, symbols.
 *
 * Device memory is ordinary memory of this process inside the heap's reservation, so a copy is a memmove once every range
 * it touches has been found inside one live allocation. */
#include "cudart.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "../exec/footprint.h"
#include "../exec/record.h"
#include "cublas.h"
#include "heap.h"
#include "task.h"

/* ---- Checks ------------------------------------------------------------------------------------------------------- */

static const char *kind_name(enum cudaMemcpyKind kind)
{
    static const char *const names[] = {"cudaMemcpyHostToHost", "cudaMemcpyHostToDevice",
                                        "cudaMemcpyDeviceToHost", "cudaMemcpyDeviceToDevice",
                                        "cudaMemcpyDefault"};
    return (unsigned)kind < 5 ? names[kind] : "unknown cudaMemcpyKind";
}

/* Managed memory is both; page-locked memory, which kernels reach as well, counts as the host's. */
static bool is_device_pointer(const void *pointer)
{
    struct allocation a;
    return heap_is_device((u64)pointer) && !(heap_find((u64)pointer, &a) && a.kind == ALLOCATION_HOST);
}

static bool is_host_pointer(const void *pointer)
{
    struct allocation a;
    return !heap_is_device((u64)pointer) ||
           (heap_find((u64)pointer, &a) && (a.kind == ALLOCATION_HOST || a.kind == ALLOCATION_MANAGED));
}

/* "allocation 3 (4096 bytes at 0x...)": the third cudaMalloc; or "variable x (...)". */
static void describe(const struct allocation *a, char *text, size_t room)
{
    char what[200];
    if (a->name)
        snprintf(what, sizeof what, "variable %s", a->name);
    else if (a->kind == ALLOCATION_DEVICE_MALLOC)
        snprintf(what, sizeof what, "memory that a kernel allocated");
    else if (a->kind == ALLOCATION_HOST)
        snprintf(what, sizeof what, "page-locked memory");
    else
        snprintf(what, sizeof what, "allocation %u", a->number);
    snprintf(text, room, "%s (%llu bytes at 0x%llx)", what, (unsigned long long)a->bytes,
             (unsigned long long)a->address);
}

/* Whether the device range lies inside one live allocation; if not, says what is there. `verb` is what the call does with it:
 * "reads", "writes". */
static bool accessible(const char *caller, const char *verb, const void *pointer, u64 bytes)
{
    u64 address = (u64)pointer;
    struct allocation a;
    char where[300];
    if (!heap_find(address, &a) && !heap_nearest(address, &a)) {
        fprintf(stderr, "simgpu: %s: %s %llu bytes at %p, but nothing was ever allocated\n", caller, verb,
                (unsigned long long)bytes, pointer);
        return false;
    }
    describe(&a, where, sizeof where);
    u64 offset = address - a.address;
    if (offset >= a.bytes)
        fprintf(stderr, "simgpu: %s: %s %llu bytes at %p, which is in no allocation; the nearest is %s%s\n",
                caller, verb, (unsigned long long)bytes, pointer, where, a.freed ? ", freed" : "");
    else if (a.freed)
        fprintf(stderr, "simgpu: %s: %s %llu bytes at %p, which was freed: it was in %s\n", caller, verb,
                (unsigned long long)bytes, pointer, where);
    else if (bytes > a.bytes - offset)
        fprintf(stderr, "simgpu: %s: %s %llu bytes at %p, but only %llu are left there in %s\n", caller, verb,
                (unsigned long long)bytes, pointer, (unsigned long long)(a.bytes - offset), where);
    else
        return true;
    return false;
}

/* For libcublas.so.13 and libnccl.so.2: see cublas.h. */
EXPORT bool simgpu_check_access(const char *caller, const char *verb, const void *pointer, u64 bytes)
{
    if (!accessible(caller, verb, pointer, bytes)) {
        device_fault(cudaErrorIllegalAddress);
        return false;
    }
    if (strcmp(verb, "writes") == 0) record_will_be_written(pointer, bytes);
    return true;
}

EXPORT void simgpu_touches(bool writes, const void *pointer, u64 bytes)
{
    footprint_touch(writes ? TOUCH_WRITE : TOUCH_READ, pointer, bytes);
}

EXPORT bool simgpu_is_device_pointer(const void *pointer)
{
    return is_device_pointer(pointer);
}
EXPORT bool simgpu_is_host_pointer(const void *pointer)
{
    return is_host_pointer(pointer);
}
EXPORT bool simgpu_device_dead(void)
{
    return device_dead();
}
EXPORT void simgpu_fail_device(void)
{
    device_fault(cudaErrorLaunchFailure);
}

/* Checks one end of a copy or fill: a device pointer in bounds, or a host pointer, as the kind says. */
static cudaError_t check_end(const char *caller, enum cudaMemcpyKind kind, bool source, const void *pointer,
                             u64 bytes)
{
    const char *end = source ? "source" : "destination";
    if (!pointer) return fail(cudaErrorInvalidValue, "%s: the %s is NULL", caller, end);
    bool is_device = is_device_pointer(pointer), wants_device = is_device;
    if (kind == cudaMemcpyHostToHost) wants_device = false;
    if (kind == cudaMemcpyHostToDevice) wants_device = !source;
    if (kind == cudaMemcpyDeviceToHost) wants_device = source;
    if (kind == cudaMemcpyDeviceToDevice) wants_device = true;
    if (wants_device ? !is_device : !is_host_pointer(pointer))
        return fail(cudaErrorInvalidValue, "%s: with %s the %s must be a %s pointer, but %p is a %s pointer",
                    caller, kind_name(kind), end, wants_device ? "device" : "host", pointer,
                    is_device ? "device" : "host");
    if (heap_is_device((u64)pointer) && !graph_memory_is_due(pointer) &&
        !accessible(caller, source ? "reads" : "writes", pointer, bytes))
        return record(cudaErrorInvalidValue);
    return cudaSuccess;
}

/* ---- Device memory ------------------------------------------------------------------------------------------------ */

static cudaError_t allocate(const char *caller, void **pointer, u64 bytes, enum allocation_kind kind)
{
    if (!pointer) return record(cudaErrorInvalidValue);
    *pointer = NULL;
    if (bytes == 0) return cudaSuccess;
    *pointer = (void *)heap_alloc(bytes, kind, NULL);
    if (*pointer) return cudaSuccess;
    u64 free_bytes, total_bytes;
    heap_usage(&free_bytes, &total_bytes);
    return fail(cudaErrorMemoryAllocation,
                "%s: %llu bytes wanted, %llu of the device's %llu are free; simgpu --memory sets its size",
                caller, (unsigned long long)bytes, (unsigned long long)free_bytes,
                (unsigned long long)total_bytes);
}

/* Whether it is NULL, or may be freed. */
static cudaError_t check_release(const char *caller, void *pointer)
{
    struct allocation a;
    u64 address = (u64)pointer;
    if (!pointer) return cudaSuccess;
    bool live = heap_find(address, &a) && a.address == address;
    if (live && (a.kind == ALLOCATION_DEVICE || a.kind == ALLOCATION_MANAGED)) return cudaSuccess;
    if (!is_device_pointer(pointer))
        return fail(cudaErrorInvalidValue, "%s: %p is a host pointer", caller, pointer);
    if (!heap_nearest(address, &a))
        return fail(cudaErrorInvalidValue, "%s: nothing was ever allocated", caller);
    char where[300];
    describe(&a, where, sizeof where);
    if (a.address != address)
        return fail(cudaErrorInvalidValue, "%s: %p is not the start of an allocation; the nearest is %s",
                    caller, pointer, where);
    return fail(cudaErrorInvalidValue, "%s: %p %s: it %s %s", caller, pointer,
                a.freed ? "was freed before" : "was not allocated by cudaMalloc", a.freed ? "was" : "is",
                where);
}

static cudaError_t release(const char *caller, void *pointer)
{
    cudaError_t error = check_release(caller, pointer);
    if (!error && pointer) heap_free((u64)pointer);
    return error;
}

EXPORT cudaError_t cudaMalloc(void **pointer, size_t bytes)
{
    ENTER();
    struct capture *broken = capture_in_progress(false);
    if (broken)
        return capture_refuse(broken, cudaErrorStreamCaptureUnsupported, "cudaMalloc",
                              "while a stream is being captured (in relaxed mode it may)");
    return allocate("cudaMalloc", pointer, bytes, ALLOCATION_DEVICE);
}

EXPORT cudaError_t cudaFree(void *pointer)
{
    ENTER();
    cudaError_t error = device_finish("cudaFree");
    return error ? error : release("cudaFree", pointer);
}

EXPORT cudaError_t cudaMallocAsync(void **pointer, size_t bytes, cudaStream_t stream)
{
    ENTER();
    cudaError_t error = check_stream(stream, "cudaMallocAsync");
    if (!error) error = allocate("cudaMallocAsync", pointer, bytes, ALLOCATION_DEVICE);
    if (error || !bytes || !captured_of(stream)->capture) return error;
    struct task *task = allocation_task((u64)*pointer, bytes);
    return stream_do(stream, task, task ? cudaSuccess : cudaErrorMemoryAllocation);
}
PER_THREAD(cudaMallocAsync, _ptsz);

EXPORT cudaError_t cudaFreeAsync(void *pointer, cudaStream_t stream)
{
    ENTER();
    cudaError_t error = check_stream(stream, "cudaFreeAsync");
    bool of_graph = !error && captured_of(stream)->capture;
    if (!error && !((of_graph || graph_memory_is_due(pointer)) && graph_may_free((u64)pointer)))
        error = check_release("cudaFreeAsync", pointer);
    if (error || !pointer) return error;
    struct task *task = free_task((u64)pointer, of_graph);
    return stream_do(stream, task, task ? cudaSuccess : cudaErrorMemoryAllocation);
}
PER_THREAD(cudaFreeAsync, _ptsz);

enum { PITCH_ALIGNMENT = 512 };

static cudaError_t allocate_rows(const char *caller, void **pointer, size_t *pitch, size_t width, size_t rows)
{
    if (!pointer || !pitch) return record(cudaErrorInvalidValue);
    size_t bytes;
    *pitch = (width + PITCH_ALIGNMENT - 1) / PITCH_ALIGNMENT * PITCH_ALIGNMENT;
    if (__builtin_mul_overflow(*pitch, rows, &bytes)) return record(cudaErrorMemoryAllocation);
    return allocate(caller, pointer, bytes, ALLOCATION_DEVICE);
}

EXPORT cudaError_t cudaMallocPitch(void **pointer, size_t *pitch, size_t width, size_t height)
{
    ENTER();
    return allocate_rows("cudaMallocPitch", pointer, pitch, width, height);
}

EXPORT cudaError_t cudaMalloc3D(struct cudaPitchedPtr *pointer, struct cudaExtent extent)
{
    ENTER();
    if (!pointer) return record(cudaErrorInvalidValue);
    pointer->xsize = extent.width;
    pointer->ysize = extent.height;
    return allocate_rows("cudaMalloc3D", &pointer->ptr, &pointer->pitch, extent.width,
                         extent.height * extent.depth);
}

EXPORT cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes)
{
    ENTER();
    if (!free_bytes || !total_bytes) return record(cudaErrorInvalidValue);
    u64 left, all;
    heap_usage(&left, &all);
    *free_bytes = left;
    *total_bytes = all;
    return cudaSuccess;
}

/* ---- Managed memory: device memory that the host reaches too, as it can here anyhow ---------------------------------- */

EXPORT cudaError_t cudaMallocManaged(void **pointer, size_t bytes, unsigned flags)
{
    ENTER();
    if ((flags != cudaMemAttachGlobal && flags != cudaMemAttachHost) || !bytes)
        return record(cudaErrorInvalidValue);
    return allocate("cudaMallocManaged", pointer, bytes, ALLOCATION_MANAGED);
}

static cudaError_t check_managed(const char *caller, const void *pointer, size_t bytes)
{
    struct allocation a;
    if (heap_find((u64)pointer, &a) && (a.kind == ALLOCATION_MANAGED || a.kind == ALLOCATION_VARIABLE) &&
        bytes <= a.bytes - ((u64)pointer - a.address))
        return cudaSuccess;
    return fail(cudaErrorInvalidValue, "%s: the %zu bytes at %p are not managed memory", caller, bytes,
                pointer);
}

/* Where managed memory lies best is the driver's business. */
EXPORT cudaError_t cudaMemPrefetchAsync(const void *pointer, size_t bytes, struct cudaMemLocation location,
                                        unsigned flags, cudaStream_t stream)
{
    ENTER();
    (void)location;
    cudaError_t error = check_stream(stream, "cudaMemPrefetchAsync");
    if (!error) error = check_managed("cudaMemPrefetchAsync", pointer, bytes);
    return error || !flags ? error : record(cudaErrorInvalidValue);
}
PER_THREAD(cudaMemPrefetchAsync, _ptsz);

EXPORT cudaError_t cudaMemAdvise(const void *pointer, size_t bytes, enum cudaMemoryAdvise advice,
                                 struct cudaMemLocation location)
{
    ENTER();
    (void)advice, (void)location;
    return check_managed("cudaMemAdvise", pointer, bytes);
}

EXPORT cudaError_t cudaStreamAttachMemAsync(cudaStream_t stream, void *pointer, size_t bytes, unsigned flags)
{
    ENTER();
    (void)flags;
    cudaError_t error = check_stream(stream, "cudaStreamAttachMemAsync");
    return error ? error : check_managed("cudaStreamAttachMemAsync", pointer, bytes);
}
PER_THREAD(cudaStreamAttachMemAsync, _ptsz);

/* ---- Host memory -------------------------------------------------------------------------------------------------- */

/* Page-locked memory comes from the heap, so that kernels reach it, under the address that the host uses. */
struct host_range {
    struct host_range *next;
    u8 *start;
    size_t bytes;
    unsigned flags;
    bool registered; /* by cudaHostRegister, else allocated */
};
static struct host_range *host_ranges;
static pthread_mutex_t host_lock = PTHREAD_MUTEX_INITIALIZER;

static bool find_host_range(const void *pointer, struct host_range *found)
{
    pthread_mutex_lock(&host_lock);
    struct host_range *r = host_ranges;
    while (r && (size_t)((const u8 *)pointer - r->start) >= r->bytes) r = r->next;
    if (r) *found = *r;
    pthread_mutex_unlock(&host_lock);
    return r != NULL;
}

static cudaError_t remember_host_range(void *start, size_t bytes, unsigned flags, bool registered)
{
    struct host_range *r = malloc(sizeof *r);
    if (!r) return record(cudaErrorMemoryAllocation);
    pthread_mutex_lock(&host_lock);
    *r = (struct host_range){
        .next = host_ranges, .start = start, .bytes = bytes, .flags = flags, .registered = registered};
    host_ranges = r;
    pthread_mutex_unlock(&host_lock);
    return cudaSuccess;
}

static bool forget_host_range(void *start, bool registered)
{
    pthread_mutex_lock(&host_lock);
    struct host_range **link = &host_ranges;
    while (*link && ((*link)->start != start || (*link)->registered != registered)) link = &(*link)->next;
    struct host_range *r = *link;
    if (r) *link = r->next;
    pthread_mutex_unlock(&host_lock);
    free(r);
    return r != NULL;
}

EXPORT cudaError_t cudaHostAlloc(void **pointer, size_t bytes, unsigned flags)
{
    ENTER();
    if (!pointer) return record(cudaErrorInvalidValue);
    *pointer = NULL;
    if (bytes == 0) return cudaSuccess;
    cudaError_t error = allocate("cudaHostAlloc", pointer, bytes, ALLOCATION_HOST);
    if (error) return error;
    return remember_host_range(*pointer, bytes, flags, false);
}

EXPORT cudaError_t cudaMallocHost(void **pointer, size_t bytes)
{
    return cudaHostAlloc(pointer, bytes, cudaHostAllocDefault);
}

EXPORT cudaError_t cudaFreeHost(void *pointer)
{
    ENTER();
    cudaError_t error = device_finish("cudaFreeHost");
    if (error) return error;
    if (!pointer) return cudaSuccess;
    if (!forget_host_range(pointer, false))
        return fail(cudaErrorInvalidValue,
                    "cudaFreeHost: %p was not allocated by cudaMallocHost or cudaHostAlloc", pointer);
    heap_free((u64)pointer);
    return cudaSuccess;
}

EXPORT cudaError_t cudaHostRegister(void *pointer, size_t bytes, unsigned flags)
{
    ENTER();
    if (!pointer || !bytes) return record(cudaErrorInvalidValue);
    if (flags & cudaHostRegisterIoMemory)
        return fail(cudaErrorNotSupported, "cudaHostRegister: there is no I/O memory to be registered");
    struct host_range r;
    if (find_host_range(pointer, &r)) return record(cudaErrorHostMemoryAlreadyRegistered);
    heap_adopt((u64)pointer, bytes);
    return remember_host_range(pointer, bytes, flags, true);
}

EXPORT cudaError_t cudaHostUnregister(void *pointer)
{
    ENTER();
    cudaError_t error = device_finish("cudaHostUnregister");
    if (error) return error;
    if (!forget_host_range(pointer, true)) return record(cudaErrorHostMemoryNotRegistered);
    heap_disown((u64)pointer);
    return cudaSuccess;
}

EXPORT cudaError_t cudaHostGetFlags(unsigned *flags, void *pointer)
{
    ENTER();
    struct host_range r;
    if (!flags || !find_host_range(pointer, &r)) return record(cudaErrorInvalidValue);
    *flags = r.flags;
    return cudaSuccess;
}

EXPORT cudaError_t cudaHostGetDevicePointer(void **device, void *host, unsigned flags)
{
    ENTER();
    struct host_range r;
    if (!device || flags) return record(cudaErrorInvalidValue);
    if (!find_host_range(host, &r))
        return fail(cudaErrorInvalidValue, "cudaHostGetDevicePointer: %p is not page-locked memory", host);
    *device = host;
    return cudaSuccess;
}

EXPORT cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *attributes, const void *pointer)
{
    ENTER();
    if (!attributes) return record(cudaErrorInvalidValue);
    struct allocation a;
    struct host_range r;
    *attributes =
        (struct cudaPointerAttributes){.type = cudaMemoryTypeUnregistered, .device = cudaInvalidDeviceId};
    if (find_host_range(pointer, &r))
        attributes->type = cudaMemoryTypeHost;
    else if (heap_find((u64)pointer, &a))
        attributes->type = a.kind == ALLOCATION_MANAGED ? cudaMemoryTypeManaged : cudaMemoryTypeDevice;
    if (attributes->type == cudaMemoryTypeUnregistered) return cudaSuccess;
    attributes->device = 0;
    attributes->devicePointer = (void *)pointer;
    if (attributes->type != cudaMemoryTypeDevice) attributes->hostPointer = (void *)pointer;
    return cudaSuccess;
}

/* ---- Copies ------------------------------------------------------------------------------------------------------- */

/* A box of `slices` x `rows` rows of `width` bytes, with the steps from row to row and from slice to slice at both ends. */
struct box {
    u8 *to;
    const u8 *from;
    size_t width, rows, slices;
    size_t to_pitch, from_pitch, to_slice, from_slice;
};

/* Bytes from the first to the last that one end of the box touches; ~0 when that overflows. */
static u64 span(const struct box *b, size_t pitch, size_t slice)
{
    u64 rows, slices, bytes;
    if (__builtin_mul_overflow(b->rows - 1, pitch, &rows) ||
        __builtin_mul_overflow(b->slices - 1, slice, &slices) ||
        __builtin_add_overflow(rows, slices, &bytes) || __builtin_add_overflow(bytes, b->width, &bytes))
        return ~0ull;
    return bytes;
}

struct copy_task {
    struct task task;
    struct box box;
};

/* Whether it has not been freed since the task was asked for: a stream may have. */
static bool is_left(const struct task *task, const char *verb, const void *pointer, u64 bytes)
{
    if (!heap_is_device((u64)pointer) || accessible(task->name, verb, pointer, bytes)) return true;
    device_fault(cudaErrorIllegalAddress);
    return false;
}

static void run_copy(struct task *task)
{
    const struct box *b = &((struct copy_task *)task)->box;
    if (!is_left(task, "reads", b->from, span(b, b->from_pitch, b->from_slice)) ||
        !is_left(task, "writes", b->to, span(b, b->to_pitch, b->to_slice)))
        return;
    for (size_t s = 0; s < b->slices; s++)
        for (size_t r = 0; r < b->rows; r++) {
            u8 *to = b->to + s * b->to_slice + r * b->to_pitch;
            const u8 *from = b->from + s * b->from_slice + r * b->from_pitch;
            memmove(to, from, b->width);
            record_wrote(to, from, b->width);
            footprint_touch(TOUCH_READ, from, b->width);
            footprint_touch(TOUCH_WRITE, to, b->width);
        }
}

static bool is_pageable(const void *pointer)
{
    struct host_range r;
    return !heap_is_device((u64)pointer) && !find_host_range(pointer, &r);
}

static void run_nothing(struct task *task)
{
    (void)task;
}

static struct task *box_task(const char *caller, enum cudaMemcpyKind kind, const struct box *b,
                             cudaError_t *error)
{
    bool empty = b->width == 0 || b->rows == 0 || b->slices == 0;
    *error = cudaSuccess;
    if ((unsigned)kind > cudaMemcpyDefault)
        *error = fail(cudaErrorInvalidMemcpyDirection, "%s: kind %d", caller, (int)kind);
    else if (!empty && (b->rows > 1 || b->slices > 1) && (b->to_pitch < b->width || b->from_pitch < b->width))
        *error = fail(cudaErrorInvalidPitchValue, "%s: rows of %zu bytes, but a pitch of %zu", caller,
                      b->width, b->to_pitch < b->width ? b->to_pitch : b->from_pitch);
    else if (!empty) {
        *error = check_end(caller, kind, true, b->from, span(b, b->from_pitch, b->from_slice));
        if (!*error) *error = check_end(caller, kind, false, b->to, span(b, b->to_pitch, b->to_slice));
    }
    if (*error) return NULL;
    struct copy_task *t = task_new(sizeof *t, cudaGraphNodeTypeMemcpy, empty ? run_nothing : run_copy, NULL);
    if (!t) {
        *error = cudaErrorMemoryAllocation;
        return NULL;
    }
    t->box = *b;
    t->task.name = caller;
    if (!empty && b->rows == 1 && b->slices == 1) {
        t->task.reads = (struct range){(u8 *)b->from, b->width};
        t->task.writes = (struct range){b->to, b->width};
        t->task.reads_host = is_host_pointer(b->from) && !is_pageable(b->from);
    }
    return &t->task;
}

struct task *copy_task(const char *caller, void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind,
                       cudaError_t *error)
{
    struct box b = {.to = to, .from = from, .width = bytes, .rows = 1, .slices = 1};
    return box_task(caller, kind, &b, error);
}

/* A stream for the calls that return when their copy in the default stream is done. */
#define WAITING cudaStreamLegacy

/* A copy in a stream. One to or from pageable host memory is done when the call returns, even if it is called asynchronous: CUDA
 * waits for the stream before it stages such a copy. One within the device is not, even if it is called synchronous. */
static cudaError_t copy_box(const char *caller, enum cudaMemcpyKind kind, const struct box *b,
                            cudaStream_t stream)
{
    struct capture *broken = stream == WAITING ? capture_in_progress(false) : NULL;
    if (broken)
        return capture_refuse(broken, cudaErrorStreamCaptureUnsupported, caller,
                              "waits while a stream is being captured");
    cudaError_t error;
    struct task *task = box_task(caller, kind, b, &error);
    error = stream_do(stream, task, error);
    if (error || captured_of(stream)->capture) return error;
    bool within_device = !is_host_pointer(b->to) && !is_host_pointer(b->from);
    bool waits = stream == WAITING ? !within_device : is_pageable(b->to) || is_pageable(b->from);
    return waits ? stream_finish(stream, caller) : cudaSuccess;
}

static cudaError_t copy(const char *caller, void *to, const void *from, size_t bytes,
                        enum cudaMemcpyKind kind, cudaStream_t stream)
{
    struct box b = {.to = to, .from = from, .width = bytes, .rows = 1, .slices = 1};
    return copy_box(caller, kind, &b, stream);
}

static cudaError_t copy_rows(const char *caller, void *to, size_t to_pitch, const void *from,
                             size_t from_pitch, size_t width, size_t height, enum cudaMemcpyKind kind,
                             cudaStream_t stream)
{
    struct box b = {.to = to,
                    .from = from,
                    .width = width,
                    .rows = height,
                    .slices = 1,
                    .to_pitch = to_pitch,
                    .from_pitch = from_pitch};
    return copy_box(caller, kind, &b, stream);
}

#define ENTER_STREAM(stream, caller)                     \
    do {                                                 \
        ENTER();                                         \
        cudaError_t bad_ = check_stream(stream, caller); \
        if (bad_) return bad_;                           \
    } while (0)

EXPORT cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind)
{
    ENTER();
    return copy("cudaMemcpy", to, from, bytes, kind, WAITING);
}
PER_THREAD(cudaMemcpy, _ptds);

EXPORT cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind,
                                   cudaStream_t stream)
{
    ENTER_STREAM(stream, "cudaMemcpyAsync");
    return copy("cudaMemcpyAsync", to, from, bytes, kind, stream);
}
PER_THREAD(cudaMemcpyAsync, _ptsz);

EXPORT cudaError_t cudaMemcpy2D(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width,
                                size_t height, enum cudaMemcpyKind kind)
{
    ENTER();
    return copy_rows("cudaMemcpy2D", to, to_pitch, from, from_pitch, width, height, kind, WAITING);
}
PER_THREAD(cudaMemcpy2D, _ptds);

EXPORT cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch,
                                     size_t width, size_t height, enum cudaMemcpyKind kind,
                                     cudaStream_t stream)
{
    ENTER_STREAM(stream, "cudaMemcpy2DAsync");
    return copy_rows("cudaMemcpy2DAsync", to, to_pitch, from, from_pitch, width, height, kind, stream);
}
PER_THREAD(cudaMemcpy2DAsync, _ptsz);

/* False, recorded: not a box in linear memory. */
static bool box_of_3d(const char *caller, const struct cudaMemcpy3DParms *p, struct box *b,
                      cudaError_t *error)
{
    *error =
        !p ? record(cudaErrorInvalidValue)
        : p->srcArray || p->dstArray
            ? fail(cudaErrorNotSupported, "%s: CUDA arrays are not supported by the simulated GPU", caller)
            : cudaSuccess;
    if (*error) return false;
    const struct cudaPitchedPtr *to = &p->dstPtr, *from = &p->srcPtr;
    *b = (struct box){.width = p->extent.width,
                      .rows = p->extent.height,
                      .slices = p->extent.depth,
                      .to_pitch = to->pitch,
                      .from_pitch = from->pitch,
                      .to_slice = to->pitch * to->ysize,
                      .from_slice = from->pitch * from->ysize};
    b->to = (u8 *)to->ptr + p->dstPos.z * b->to_slice + p->dstPos.y * to->pitch + p->dstPos.x;
    b->from = (const u8 *)from->ptr + p->srcPos.z * b->from_slice + p->srcPos.y * from->pitch + p->srcPos.x;
    return true;
}

static cudaError_t copy_3d(const char *caller, const struct cudaMemcpy3DParms *p, cudaStream_t stream)
{
    struct box b;
    cudaError_t error;
    return box_of_3d(caller, p, &b, &error) ? copy_box(caller, p->kind, &b, stream) : error;
}

struct task *copy_3d_task(const char *caller, const struct cudaMemcpy3DParms *p, cudaError_t *error)
{
    struct box b;
    return box_of_3d(caller, p, &b, error) ? box_task(caller, p->kind, &b, error) : NULL;
}

EXPORT cudaError_t cudaMemcpy3D(const struct cudaMemcpy3DParms *parameters)
{
    ENTER();
    return copy_3d("cudaMemcpy3D", parameters, WAITING);
}
PER_THREAD(cudaMemcpy3D, _ptds);

EXPORT cudaError_t cudaMemcpy3DAsync(const struct cudaMemcpy3DParms *parameters, cudaStream_t stream)
{
    ENTER_STREAM(stream, "cudaMemcpy3DAsync");
    return copy_3d("cudaMemcpy3DAsync", parameters, stream);
}
PER_THREAD(cudaMemcpy3DAsync, _ptsz);

static cudaError_t copy_peer(const char *caller, void *to, int to_device, const void *from, int from_device,
                             size_t bytes, cudaStream_t stream)
{
    if (to_device != 0 || from_device != 0)
        return fail(cudaErrorInvalidDevice, "%s: from device %d to device %d, but there is only device 0",
                    caller, from_device, to_device);
    return copy(caller, to, from, bytes, cudaMemcpyDeviceToDevice, stream);
}

EXPORT cudaError_t cudaMemcpyPeer(void *to, int to_device, const void *from, int from_device, size_t bytes)
{
    ENTER();
    return copy_peer("cudaMemcpyPeer", to, to_device, from, from_device, bytes, WAITING);
}

EXPORT cudaError_t cudaMemcpyPeerAsync(void *to, int to_device, const void *from, int from_device,
                                       size_t bytes, cudaStream_t stream)
{
    ENTER_STREAM(stream, "cudaMemcpyPeerAsync");
    return copy_peer("cudaMemcpyPeerAsync", to, to_device, from, from_device, bytes, stream);
}

/* ---- Fills -------------------------------------------------------------------------------------------------------- */

struct fill_task {
    struct task task;
    u8 *to;
    size_t pitch, slice, width, rows, slices;
    u32 value, unit; /* bytes of a unit: 1, 2, 4 */
};

static void run_fill(struct task *task)
{
    const struct fill_task *t = (struct fill_task *)task;
    const struct box b = {.width = t->width, .rows = t->rows, .slices = t->slices};
    if (!is_left(task, "writes", t->to, span(&b, t->pitch, t->slice))) return;
    for (size_t s = 0; s < t->slices; s++)
        for (size_t r = 0; r < t->rows; r++) {
            u8 *row = t->to + s * t->slice + r * t->pitch;
            if (t->unit == 1) memset(row, (int)t->value, t->width);
            for (size_t i = 0; t->unit > 1 && i < t->width; i += t->unit) memcpy(row + i, &t->value, t->unit);
            record_wrote(row, NULL, t->width);
            footprint_touch(TOUCH_WRITE, row, t->width);
        }
}

/* Rows of `width` bytes. */
static struct task *box_fill_task(const char *caller, void *to, size_t pitch, size_t slice, u32 value,
                                  u32 unit, size_t width, size_t rows, size_t slices, cudaError_t *error)
{
    struct box b = {.to = to, .width = width, .rows = rows, .slices = slices};
    bool empty = width == 0 || rows == 0 || slices == 0;
    *error = cudaSuccess;
    if (!empty && (rows > 1 || slices > 1) && pitch < width)
        *error = fail(cudaErrorInvalidPitchValue, "%s: rows of %zu bytes, but a pitch of %zu", caller, width,
                      pitch);
    else if (!empty && !heap_is_device((u64)to))
        *error = fail(cudaErrorInvalidValue, "%s: %p is a host pointer; it fills device memory", caller, to);
    else if (!empty && !graph_memory_is_due(to) && !accessible(caller, "writes", to, span(&b, pitch, slice)))
        *error = record(cudaErrorInvalidValue);
    if (*error) return NULL;
    struct fill_task *t = task_new(sizeof *t, cudaGraphNodeTypeMemset, empty ? run_nothing : run_fill, NULL);
    if (!t) {
        *error = cudaErrorMemoryAllocation;
        return NULL;
    }
    t->to = to, t->pitch = pitch, t->slice = slice;
    t->width = width, t->rows = rows, t->slices = slices;
    t->value = value, t->unit = unit;
    t->task.name = caller;
    if (!empty && rows == 1 && slices == 1) t->task.writes = (struct range){to, width};
    return &t->task;
}

struct task *fill_task(const char *caller, const struct cudaMemsetParams *p, cudaError_t *error)
{
    if (p && (p->elementSize == 1 || p->elementSize == 2 || p->elementSize == 4))
        return box_fill_task(caller, p->dst, p->pitch, 0, p->value, p->elementSize, p->width * p->elementSize,
                             p->height, 1, error);
    *error = fail(cudaErrorInvalidValue, "%s: elements of %u bytes; they must have 1, 2 or 4", caller,
                  p ? p->elementSize : 0);
    return NULL;
}

static cudaError_t fill(const char *caller, void *to, size_t pitch, size_t slice, int value, size_t width,
                        size_t rows, size_t slices, cudaStream_t stream)
{
    cudaError_t error;
    struct task *task =
        box_fill_task(caller, to, pitch, slice, (u32)value & 0xff, 1, width, rows, slices, &error);
    return stream_do(stream, task, error);
}

EXPORT cudaError_t cudaMemset(void *to, int value, size_t bytes)
{
    ENTER();
    return fill("cudaMemset", to, 0, 0, value, bytes, 1, 1, NULL);
}
PER_THREAD(cudaMemset, _ptds);

EXPORT cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t stream)
{
    ENTER_STREAM(stream, "cudaMemsetAsync");
    return fill("cudaMemsetAsync", to, 0, 0, value, bytes, 1, 1, stream);
}
PER_THREAD(cudaMemsetAsync, _ptsz);

EXPORT cudaError_t cudaMemset2D(void *to, size_t pitch, int value, size_t width, size_t height)
{
    ENTER();
    return fill("cudaMemset2D", to, pitch, 0, value, width, height, 1, NULL);
}
PER_THREAD(cudaMemset2D, _ptds);

EXPORT cudaError_t cudaMemset2DAsync(void *to, size_t pitch, int value, size_t width, size_t height,
                                     cudaStream_t stream)
{
    ENTER_STREAM(stream, "cudaMemset2DAsync");
    return fill("cudaMemset2DAsync", to, pitch, 0, value, width, height, 1, stream);
}
PER_THREAD(cudaMemset2DAsync, _ptsz);

EXPORT cudaError_t cudaMemset3D(struct cudaPitchedPtr to, int value, struct cudaExtent extent)
{
    ENTER();
    return fill("cudaMemset3D", to.ptr, to.pitch, to.pitch * to.ysize, value, extent.width, extent.height,
                extent.depth, NULL);
}
PER_THREAD(cudaMemset3D, _ptds);

EXPORT cudaError_t cudaMemset3DAsync(struct cudaPitchedPtr to, int value, struct cudaExtent extent,
                                     cudaStream_t stream)
{
    ENTER_STREAM(stream, "cudaMemset3DAsync");
    return fill("cudaMemset3DAsync", to.ptr, to.pitch, to.pitch * to.ysize, value, extent.width,
                extent.height, extent.depth, stream);
}
PER_THREAD(cudaMemset3DAsync, _ptsz);

/* ---- Symbols ------------------------------------------------------------------------------------------------------ */

/* The address of `bytes` bytes at `offset` in a variable. */
static cudaError_t symbol_range(const char *caller, const void *host_variable, size_t bytes, size_t offset,
                                void **address)
{
    struct device_symbol s;
    cudaError_t error = symbol_of(host_variable, caller, &s);
    if (error) return error;
    if (offset > s.bytes || bytes > s.bytes - offset)
        return fail(cudaErrorInvalidValue, "%s: %zu bytes at offset %zu of %s, which has %llu", caller, bytes,
                    offset, s.name, (unsigned long long)s.bytes);
    *address = (void *)(s.address + offset);
    return cudaSuccess;
}

static cudaError_t copy_to_symbol(const char *caller, const void *symbol, const void *from, size_t bytes,
                                  size_t offset, enum cudaMemcpyKind kind, cudaStream_t stream)
{
    void *to = NULL;
    cudaError_t error = symbol_range(caller, symbol, bytes, offset, &to);
    return error ? error : copy(caller, to, from, bytes, kind, stream);
}

static cudaError_t copy_from_symbol(const char *caller, void *to, const void *symbol, size_t bytes,
                                    size_t offset, enum cudaMemcpyKind kind, cudaStream_t stream)
{
    void *from = NULL;
    cudaError_t error = symbol_range(caller, symbol, bytes, offset, &from);
    return error ? error : copy(caller, to, from, bytes, kind, stream);
}

EXPORT cudaError_t cudaMemcpyToSymbol(const void *symbol, const void *from, size_t bytes, size_t offset,
                                      enum cudaMemcpyKind kind)
{
    ENTER();
    return copy_to_symbol("cudaMemcpyToSymbol", symbol, from, bytes, offset, kind, WAITING);
}
PER_THREAD(cudaMemcpyToSymbol, _ptds);

EXPORT cudaError_t cudaMemcpyToSymbolAsync(const void *symbol, const void *from, size_t bytes, size_t offset,
                                           enum cudaMemcpyKind kind, cudaStream_t stream)
{
    ENTER_STREAM(stream, "cudaMemcpyToSymbolAsync");
    return copy_to_symbol("cudaMemcpyToSymbolAsync", symbol, from, bytes, offset, kind, stream);
}
PER_THREAD(cudaMemcpyToSymbolAsync, _ptsz);

EXPORT cudaError_t cudaMemcpyFromSymbol(void *to, const void *symbol, size_t bytes, size_t offset,
                                        enum cudaMemcpyKind kind)
{
    ENTER();
    return copy_from_symbol("cudaMemcpyFromSymbol", to, symbol, bytes, offset, kind, WAITING);
}
PER_THREAD(cudaMemcpyFromSymbol, _ptds);

EXPORT cudaError_t cudaMemcpyFromSymbolAsync(void *to, const void *symbol, size_t bytes, size_t offset,
                                             enum cudaMemcpyKind kind, cudaStream_t stream)
{
    ENTER_STREAM(stream, "cudaMemcpyFromSymbolAsync");
    return copy_from_symbol("cudaMemcpyFromSymbolAsync", to, symbol, bytes, offset, kind, stream);
}
PER_THREAD(cudaMemcpyFromSymbolAsync, _ptsz);

EXPORT cudaError_t cudaGetSymbolAddress(void **address, const void *symbol)
{
    ENTER();
    return address ? symbol_range("cudaGetSymbolAddress", symbol, 0, 0, address)
                   : record(cudaErrorInvalidValue);
}

EXPORT cudaError_t cudaGetSymbolSize(size_t *bytes, const void *symbol)
{
    ENTER();
    if (!bytes) return record(cudaErrorInvalidValue);
    struct device_symbol s;
    cudaError_t error = symbol_of(symbol, "cudaGetSymbolSize", &s);
    if (!error) *bytes = s.bytes;
    return error;
}
