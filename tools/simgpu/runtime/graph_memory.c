/* graph_memory.c: memory that graphs allocate, and cudaFreeAsync. An allocation node has its address from when it is made; each launch
 * of the graph makes the memory fresh, whatever was there. A node that frees it, or the program, once the graph has run, ends its
 * life until the next launch. Before the first one it is live, too, as copies into it are checked when they become nodes: who uses
 * it then reads what nobody has written. */
#include "heap.h"
#include "task.h"

struct memory_task {
    struct task task;
    u64 address, bytes;
    bool of_graph;
};

static void run_allocation(struct task *task)
{
    const struct memory_task *t = (struct memory_task *)task;
    if (!heap_revive(t->address, t->bytes))
        device_fault(fail(cudaErrorMemoryAllocation,
                          "a graph's allocation of %llu bytes does not fit into the device's memory",
                          (unsigned long long)t->bytes));
}

static void run_free(struct task *task)
{
    const struct memory_task *t = (struct memory_task *)task;
    if (t->of_graph)
        heap_retire(t->address);
    else
        heap_free(t->address);
}

static struct task *memory_task(enum cudaGraphNodeType type, void (*run)(struct task *), u64 address,
                                u64 bytes, bool of_graph)
{
    struct memory_task *t = task_new(sizeof *t, type, run, NULL);
    if (!t) return NULL;
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
    struct allocation a;
    if (!heap_find((u64)pointer, &a) || a.address != (u64)pointer)
        return fail(cudaErrorInvalidValue, "%s: %p is not the start of a live allocation", caller, pointer);
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

/* What a graph frees goes back to the device at once. */
EXPORT cudaError_t cudaDeviceGraphMemTrim(int device)
{
    ENTER();
    return device ? record(cudaErrorInvalidDevice) : cudaSuccess;
}
