/* graph_memory.c: memory that graphs allocate, and cudaFreeAsync. An allocation node has its address from when it is made; each launch
 * of the graph makes the memory fresh, whatever was there. A node that frees it, or the program, once the graph has run, ends its
 * life until the next launch. Before the first one it is live, too, as copies into it are checked when they become nodes: who uses
 * it then reads what nobody has written. */
#include <pthread.h>
#include <stdlib.h>

#include "../exec/footprint.h"
#include "heap.h"
#include "task.h"

struct memory_task {
    struct task task;
    u64 address, bytes;
    bool of_graph;
};

/* What graphs have allocated so far, and the most that was live at once, since that was last reset. */
static struct memory {
    struct memory *next;
    u64 address, bytes;
} * all;
static u64 high;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static u64 live_bytes(void)
{
    u64 bytes = 0;
    struct allocation a;
    for (const struct memory *m = all; m; m = m->next)
        if (heap_find(m->address, &a) && a.bytes == m->bytes) bytes += m->bytes;
    return bytes;
}

static void count(u64 address, u64 bytes)
{
    pthread_mutex_lock(&lock);
    struct memory *m = all;
    while (m && m->address != address) m = m->next;
    if (!m && (m = malloc(sizeof *m))) {
        *m = (struct memory){all, address, bytes};
        all = m;
    }
    u64 now = live_bytes();
    if (now > high) high = now;
    pthread_mutex_unlock(&lock);
}

static void run_allocation(struct task *task)
{
    const struct memory_task *t = (struct memory_task *)task;
    footprint_touch(TOUCH_WRITE, (void *)t->address, t->bytes);
    if (heap_revive(t->address, t->bytes))
        count(t->address, t->bytes);
    else
        device_fault(fail(cudaErrorMemoryAllocation,
                          "a graph's allocation of %llu bytes does not fit into the device's memory",
                          (unsigned long long)t->bytes));
}

static void run_free(struct task *task)
{
    const struct memory_task *t = (struct memory_task *)task;
    struct allocation a;
    if (heap_find(t->address, &a)) footprint_touch(TOUCH_WRITE, (void *)a.address, a.bytes);
    if (!(t->of_graph ? heap_retire(t->address) : heap_free(t->address)))
        device_fault(fail(cudaErrorInvalidValue, "%s frees 0x%llx, which has been freed before",
                          t->of_graph ? "a graph" : "cudaFreeAsync", (unsigned long long)t->address));
}

bool graph_may_free(u64 address)
{
    struct allocation a;
    return heap_nearest(address, &a) && a.address == address &&
           (a.kind == ALLOCATION_DEVICE || a.kind == ALLOCATION_MANAGED);
}

bool graph_memory_is_due(const void *pointer)
{
    struct allocation a;
    if (heap_find((u64)pointer, &a) || !streams_pending()) return false;
    pthread_mutex_lock(&lock);
    const struct memory *m = all;
    while (m && (u64)pointer - m->address >= m->bytes) m = m->next;
    pthread_mutex_unlock(&lock);
    return m;
}

static struct task *memory_task(enum cudaGraphNodeType type, void (*run)(struct task *), u64 address,
                                u64 bytes, bool of_graph)
{
    struct memory_task *t = task_new(sizeof *t, type, run, NULL);
    if (!t) return NULL;
    t->task.name = type == cudaGraphNodeTypeMemAlloc ? "an allocation"
                   : of_graph                        ? "a free"
                                                     : "cudaFreeAsync";
    t->address = address;
    t->bytes = bytes;
    t->of_graph = of_graph;
    return &t->task;
}

struct task *allocation_task(u64 address, u64 bytes)
{
    return memory_task(cudaGraphNodeTypeMemAlloc, run_allocation, address, bytes, true);
}

struct task *free_task(u64 address, bool of_graph)
{
    return memory_task(cudaGraphNodeTypeMemFree, run_free, address, 0, of_graph);
}

/* Who may reach it beside the device itself does not matter: there is one. */
EXPORT cudaError_t cudaGraphAddMemAllocNode(cudaGraphNode_t *node, cudaGraph_t graph,
                                            const cudaGraphNode_t *before, size_t count,
                                            struct cudaMemAllocNodeParams *parameters)
{
    ENTER();
    const char *caller = "cudaGraphAddMemAllocNode";
    if (!parameters || !parameters->bytesize) return record(cudaErrorInvalidValue);
    const struct cudaMemPoolProps *p = &parameters->poolProps;
    if (p->allocType != cudaMemAllocationTypePinned || p->handleTypes || p->location.id ||
        p->location.type != cudaMemLocationTypeDevice)
        return fail(cudaErrorNotSupported, "%s: memory other than device 0's own is not supported", caller);
    parameters->dptr = (void *)heap_alloc(parameters->bytesize, ALLOCATION_DEVICE, NULL);
    struct task *task =
        parameters->dptr ? allocation_task((u64)parameters->dptr, parameters->bytesize) : NULL;
    return graph_add(caller, node, graph, before, count, task,
                     task ? cudaSuccess : record(cudaErrorMemoryAllocation));
}

EXPORT cudaError_t cudaGraphAddMemFreeNode(cudaGraphNode_t *node, cudaGraph_t graph,
                                           const cudaGraphNode_t *before, size_t count, void *pointer)
{
    ENTER();
    const char *caller = "cudaGraphAddMemFreeNode";
    if (!graph_may_free((u64)pointer))
        return fail(cudaErrorInvalidValue, "%s: %p is not the start of an allocation", caller, pointer);
    struct task *task = free_task((u64)pointer, true);
    return graph_add(caller, node, graph, before, count, task,
                     task ? cudaSuccess : cudaErrorMemoryAllocation);
}

EXPORT cudaError_t cudaGraphMemAllocNodeGetParams(cudaGraphNode_t node,
                                                  struct cudaMemAllocNodeParams *parameters)
{
    ENTER();
    cudaError_t error;
    const struct memory_task *t = (struct memory_task *)graph_task_of("cudaGraphMemAllocNodeGetParams", node,
                                                                      cudaGraphNodeTypeMemAlloc, &error);
    if (!t || !parameters) return t ? record(cudaErrorInvalidValue) : error;
    *parameters = (struct cudaMemAllocNodeParams){
        .poolProps = {.allocType = cudaMemAllocationTypePinned,
                      .location = {.type = cudaMemLocationTypeDevice, .id = 0}},
        .bytesize = t->bytes,
        .dptr = (void *)t->address};
    return cudaSuccess;
}

EXPORT cudaError_t cudaGraphMemFreeNodeGetParams(cudaGraphNode_t node, void *pointer)
{
    ENTER();
    cudaError_t error;
    const struct memory_task *t = (struct memory_task *)graph_task_of("cudaGraphMemFreeNodeGetParams", node,
                                                                      cudaGraphNodeTypeMemFree, &error);
    if (!t || !pointer) return t ? record(cudaErrorInvalidValue) : error;
    *(void **)pointer = (void *)t->address;
    return cudaSuccess;
}

/* Nothing is reserved beyond what is allocated. */
EXPORT cudaError_t cudaDeviceGetGraphMemAttribute(int device, enum cudaGraphMemAttributeType attribute,
                                                  void *value)
{
    ENTER();
    if (device) return record(cudaErrorInvalidDevice);
    if (!value || (unsigned)attribute > cudaGraphMemAttrReservedMemHigh) return record(cudaErrorInvalidValue);
    bool highest = attribute == cudaGraphMemAttrUsedMemHigh || attribute == cudaGraphMemAttrReservedMemHigh;
    pthread_mutex_lock(&lock);
    *(u64 *)value = highest ? high : live_bytes();
    pthread_mutex_unlock(&lock);
    return cudaSuccess;
}

EXPORT cudaError_t cudaDeviceSetGraphMemAttribute(int device, enum cudaGraphMemAttributeType attribute,
                                                  void *value)
{
    ENTER();
    if (device) return record(cudaErrorInvalidDevice);
    if (!value || *(u64 *)value ||
        (attribute != cudaGraphMemAttrUsedMemHigh && attribute != cudaGraphMemAttrReservedMemHigh))
        return record(cudaErrorInvalidValue);
    pthread_mutex_lock(&lock);
    high = 0;
    pthread_mutex_unlock(&lock);
    return cudaSuccess;
}

/* What a graph frees goes back to the device at once. */
EXPORT cudaError_t cudaDeviceGraphMemTrim(int device)
{
    ENTER();
    return device ? record(cudaErrorInvalidDevice) : cudaSuccess;
}
