/* task.h: what a program asks a stream to do. Each is an object that can be done now, kept for later or recorded in a graph:
 * kernels.c, memory_api.c and stream.c make them, stream.c decides when, graph.c keeps them as nodes. */
#ifndef TASK_H
#define TASK_H

#include "beside.h"
#include "cudart.h"

/* Bytes that a copy or fill touches; bytes 0: not known, or not in one piece. */
struct range {
    u8 *start;
    u64 bytes;
};

/* The head of every kind of task. It does not change once made, so that graphs share it; the last reference frees it. */
struct task {
    enum cudaGraphNodeType type;
    _Atomic u32 references;
    void (*run)(struct task *);
    void (*release)(struct task *); /* frees what it owns beside itself; may be NULL */
    struct range reads, writes;
    bool reads_host;  /* `reads` is page-locked or managed memory, which the host may write meanwhile */
    const char *name; /* for messages: the call that made it, or the kernel's symbol */
};

/* A task of `bytes` zeroed bytes, which begin with struct task; one reference. NULL when out of host memory, recorded. */
void *task_new(size_t bytes, enum cudaGraphNodeType type, void (*run)(struct task *),
               void (*release)(struct task *));
struct task *task_keep(struct task *task);
void task_drop(struct task *task);
/* Does it, unless the device has faulted. */
void task_run(struct task *task);
/* How many have been run. */
u64 tasks_run(void);

/* ---- When (stream.c) ---------------------------------------------------------------------------------------------- */

/* Takes over the task and does it when the stream's order allows: at once, unless it is behind a host function or calls one; with
 * --seed, when something waits for it; while the stream is captured, it becomes a node of the graph instead. A NULL task only passes its *error on. */
cudaError_t stream_do(cudaStream_t stream, struct task *task, cudaError_t error);
/* Everything in this stream, in all streams, has been done when it returns; then *error is the device's, as recorded. Fails
 * while it (any of them) is being captured. `caller` is for the message. */
cudaError_t stream_finish(cudaStream_t stream, const char *caller);
cudaError_t device_finish(const char *caller);
/* Whether any stream has put something off. */
bool streams_pending(void);

/* A place in a stream: what it has been asked for so far. */
struct mark {
    struct CUstream_st *stream; /* NULL: none */
    u64 place;
    struct clock knows;
};
void stream_mark(cudaStream_t stream, struct mark *mark);
/* What the stream is asked for from now on comes after that place. */
void stream_follow(cudaStream_t stream, const struct mark *mark);

/* ---- Kinds -------------------------------------------------------------------------------------------------------- */

struct configuration {
    dim3 grid, block;
    size_t dynamic_bytes;
    cudaStream_t stream;
    dim3 cluster; /* all 0: as the kernel says */
    bool cooperative;
    bool dependent; /* may start before the launch before it in its stream has ended */
};

/* Each returns NULL with *error recorded when what is asked for is wrong. */
struct task *launch_task(const char *caller, const void *function, const struct configuration *c, void **args,
                         cudaError_t *error);
struct task *copy_task(const char *caller, void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind,
                       cudaError_t *error);
struct task *copy_3d_task(const char *caller, const struct cudaMemcpy3DParms *parameters, cudaError_t *error);
struct task *fill_task(const char *caller, const struct cudaMemsetParams *parameters, cudaError_t *error);
struct task *host_task(cudaHostFn_t function, void *data, cudaError_t *error);
/* A graph's (graph_memory.c): each launch makes the memory fresh, or frees it until the next. */
struct task *allocation_task(u64 address, u64 bytes);
struct task *free_task(u64 address, bool of_graph);
/* Whether it is the start of what is allocated, or will be when the graph runs. */
bool graph_may_free(u64 address);
/* Whether nothing is there now, but a launch that a stream has put off may make it fresh: then it is looked at when it is used. */
bool graph_memory_is_due(const void *pointer);
/* What a kernel's launch was given; the arguments' values belong to the task. False: it is no kernel of the program's. */
bool launch_task_parameters(const struct task *task, struct cudaKernelNodeParams *parameters);
/* Whether the launch was given an address of memory that the host reaches as well. */
bool launch_task_reaches_host(const struct task *task);

/* Each task of a graph's. */
void graph_each(const struct task *graph, void (*visit)(struct task *, void *context), void *context);

/* ---- Nodes (graph.c) ------------------------------------------------------------------------------------------------- */

/* Adds a node, for the public call `caller`. Takes over the task; a NULL one with an error only passes that on. */
cudaError_t graph_add(const char *caller, cudaGraphNode_t *out, cudaGraph_t graph,
                      const cudaGraphNode_t *before, size_t count, struct task *task, cudaError_t error);
/* A node's task if it is of this type, else NULL, and *error is recorded. */
struct task *graph_task_of(const char *caller, cudaGraphNode_t node, enum cudaGraphNodeType type,
                           cudaError_t *error);

/* ---- Capture (graph.c) -------------------------------------------------------------------------------------------- */

/* The tasks after which a stream's next one comes, while it is captured. */
struct capture;
struct captured {
    struct capture *capture; /* NULL: it is not */
    struct CUgraphNode_st **after;
    u32 count;
    bool
        blocks; /* the default stream waits for the stream, and it for that: not created cudaStreamNonBlocking */
};
/* The stream's next task becomes a node. Takes over the task. */
cudaError_t capture_task(struct captured *at, struct task *task);
/* `to` goes on after what `from` has reached as well: an event of a captured stream is waited for. */
cudaError_t capture_join(struct captured *to, const struct captured *from, const char *caller);
void captured_copy(struct captured *to, const struct captured *from);
/* `caller` does `what`, which must not happen meanwhile: the capture is invalid from here on. */
cudaError_t capture_refuse(struct capture *capture, cudaError_t error, const char *caller, const char *what);
/* A capture that a call of this thread which waits or allocates would break: begun in global mode, or by this thread and not
 * in relaxed mode; with `blocking`, whatever its mode, one of a stream that the default stream waits for. NULL: none. */
struct capture *capture_in_progress(bool blocking);
/* Where a stream is in a capture (stream.c). */
struct captured *captured_of(cudaStream_t stream);

#endif
