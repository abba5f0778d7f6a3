/* graph.c: CUDA graphs: recorded from streams or built node by node, instantiated, launched, updated.
 *
 * A node is a task (task.h) and the nodes that come before it. An executable graph is a plan: the tasks and those edges, as they
 * were when it was instantiated. A launch is a task as well, which does the plan's tasks one after the other, in the order in
 * which they were made; with --seed, in an order drawn anew for each launch from those that the edges allow, so that a missing
 * edge shows. */
#include "task.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { GRAPH_MAGIC = 0x47525048, EXEC_MAGIC = 0x45584543 };

struct CUgraphNode_st {
    struct CUgraph_st *graph;
    struct task *task; /* NULL: an empty node */
    u32 index;         /* in the graph */
    struct CUgraphNode_st **before;
    u32 before_count;
    const struct CUgraphNode_st *original; /* that it is a clone of */
};

struct CUgraph_st {
    u32 magic; /* 0 once destroyed */
    struct CUgraphNode_st **nodes;
    u32 count;
};

/* What a launch does. */
struct step {
    struct task *task;
    const struct CUgraphNode_st *node; /* that it was made from */
    u32 *before, before_count;         /* steps */
};
struct plan {
    struct step *steps;
    u32 count;
    bool forks; /* not all of its steps have an order */
};

struct CUgraphExec_st {
    u32 magic;
    unsigned long long flags;
    struct plan plan;
    struct mark launched; /* the last time: it does not run beside itself */
};

static void *resized(void *array, u64 count, size_t element)
{
    array = realloc(array, (count ? count : 1) * element);
    if (!array) {
        fprintf(stderr, "simgpu: out of host memory for a graph\n");
        exit(3);
    }
    return array;
}

static cudaError_t check_graph(const struct CUgraph_st *graph, const char *caller)
{
    if (graph && graph->magic == GRAPH_MAGIC) return cudaSuccess;
    return fail(cudaErrorInvalidValue, "%s: %p is no graph, or was destroyed", caller, (const void *)graph);
}

static cudaError_t check_exec(const struct CUgraphExec_st *exec, const char *caller)
{
    if (exec && exec->magic == EXEC_MAGIC) return cudaSuccess;
    return fail(cudaErrorInvalidValue, "%s: %p is no executable graph, or was destroyed", caller,
                (const void *)exec);
}

static cudaError_t check_node(const struct CUgraphNode_st *node, const char *caller)
{
    if (node && node->graph) return cudaSuccess;
    return fail(cudaErrorInvalidValue, "%s: %p is no node of a graph, or was destroyed", caller,
                (const void *)node);
}

/* ---- Nodes -------------------------------------------------------------------------------------------------------- */

static bool comes_before(const struct CUgraphNode_st *node, const struct CUgraphNode_st *other)
{
    for (u32 i = 0; i < other->before_count; i++)
        if (other->before[i] == node) return true;
    return false;
}

static void add_edge(struct CUgraphNode_st *from, struct CUgraphNode_st *to)
{
    if (comes_before(from, to)) return;
    to->before = resized(to->before, to->before_count + 1, sizeof(struct CUgraphNode_st *));
    to->before[to->before_count++] = from;
}

/* Takes over the task. */
static struct CUgraphNode_st *add_node(struct CUgraph_st *graph, struct task *task,
                                       struct CUgraphNode_st *const *before, size_t count)
{
    struct CUgraphNode_st *node = resized(NULL, 1, sizeof *node);
    *node = (struct CUgraphNode_st){.graph = graph, .task = task, .index = graph->count};
    for (size_t i = 0; i < count; i++) add_edge(before[i], node);
    graph->nodes = resized(graph->nodes, graph->count + 1, sizeof node);
    graph->nodes[graph->count++] = node;
    return node;
}

static enum cudaGraphNodeType type_of(const struct CUgraphNode_st *node)
{
    return node->task ? node->task->type : cudaGraphNodeTypeEmpty;
}

cudaError_t graph_add(const char *caller, cudaGraphNode_t *out, cudaGraph_t graph,
                      const cudaGraphNode_t *before, size_t count, struct task *task, cudaError_t error)
{
    if (!error) error = check_graph(graph, caller);
    if (!error && (!out || (count && !before))) error = record(cudaErrorInvalidValue);
    for (size_t i = 0; i < count && !error; i++) {
        error = check_node(before[i], caller);
        if (!error && before[i]->graph != graph)
            error = fail(cudaErrorInvalidValue, "%s: dependency %zu is a node of another graph", caller, i);
    }
    if (error) {
        if (task) task_drop(task);
        return error;
    }
    *out = add_node(graph, task, before, count);
    return cudaSuccess;
}

struct task *graph_task_of(const char *caller, cudaGraphNode_t node, enum cudaGraphNodeType type,
                           cudaError_t *error)
{
    *error = check_node(node, caller);
    if (!*error && type_of(node) != type) *error = record(cudaErrorInvalidValue);
    return *error ? NULL : node->task;
}

EXPORT cudaError_t cudaGraphCreate(cudaGraph_t *graph, unsigned flags)
{
    ENTER();
    if (!graph || flags) return record(cudaErrorInvalidValue);
    *graph = resized(NULL, 1, sizeof **graph);
    **graph = (struct CUgraph_st){.magic = GRAPH_MAGIC};
    return cudaSuccess;
}

EXPORT cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
    ENTER();
    cudaError_t error = check_graph(graph, "cudaGraphDestroy");
    if (error) return error;
    for (u32 i = 0; i < graph->count; i++) {
        if (graph->nodes[i]->task) task_drop(graph->nodes[i]->task);
        free(graph->nodes[i]->before);
        *graph->nodes[i] = (struct CUgraphNode_st){.graph = NULL};
    }
    graph->magic = 0;
    return cudaSuccess;
}

EXPORT cudaError_t cudaGraphAddEmptyNode(cudaGraphNode_t *node, cudaGraph_t graph,
                                         const cudaGraphNode_t *before, size_t count)
{
    ENTER();
    return graph_add("cudaGraphAddEmptyNode", node, graph, before, count, NULL, cudaSuccess);
}

static struct task *kernel_task(const char *caller, const struct cudaKernelNodeParams *p, cudaError_t *error)
{
    if (!p || p->extra) {
        *error = fail(cudaErrorInvalidValue, "%s: %s", caller,
                      p ? "parameters as `extra` are not supported; use kernelParams" : "no parameters");
        return NULL;
    }
    struct configuration c = {.grid = p->gridDim, .block = p->blockDim, .dynamic_bytes = p->sharedMemBytes};
    return launch_task(caller, p->func, &c, p->kernelParams, error);
}

EXPORT cudaError_t cudaGraphAddKernelNode(cudaGraphNode_t *node, cudaGraph_t graph,
                                          const cudaGraphNode_t *before, size_t count,
                                          const struct cudaKernelNodeParams *parameters)
{
    ENTER();
    const char *caller = "cudaGraphAddKernelNode";
    cudaError_t error = cudaSuccess;
    struct task *task = kernel_task(caller, parameters, &error);
    return graph_add(caller, node, graph, before, count, task, error);
}

EXPORT cudaError_t cudaGraphAddMemcpyNode(cudaGraphNode_t *node, cudaGraph_t graph,
                                          const cudaGraphNode_t *before, size_t count,
                                          const struct cudaMemcpy3DParms *parameters)
{
    ENTER();
    const char *caller = "cudaGraphAddMemcpyNode";
    cudaError_t error = cudaSuccess;
    struct task *task = copy_3d_task(caller, parameters, &error);
    return graph_add(caller, node, graph, before, count, task, error);
}

EXPORT cudaError_t cudaGraphAddMemcpyNode1D(cudaGraphNode_t *node, cudaGraph_t graph,
                                            const cudaGraphNode_t *before, size_t count, void *to,
                                            const void *from, size_t bytes, enum cudaMemcpyKind kind)
{
    ENTER();
    const char *caller = "cudaGraphAddMemcpyNode1D";
    cudaError_t error = cudaSuccess;
    struct task *task = copy_task(caller, to, from, bytes, kind, &error);
    return graph_add(caller, node, graph, before, count, task, error);
}

EXPORT cudaError_t cudaGraphAddMemsetNode(cudaGraphNode_t *node, cudaGraph_t graph,
                                          const cudaGraphNode_t *before, size_t count,
                                          const struct cudaMemsetParams *parameters)
{
    ENTER();
    const char *caller = "cudaGraphAddMemsetNode";
    cudaError_t error = cudaSuccess;
    struct task *task = fill_task(caller, parameters, &error);
    return graph_add(caller, node, graph, before, count, task, error);
}

EXPORT cudaError_t cudaGraphAddHostNode(cudaGraphNode_t *node, cudaGraph_t graph,
                                        const cudaGraphNode_t *before, size_t count,
                                        const struct cudaHostNodeParams *parameters)
{
    ENTER();
    cudaError_t error = cudaSuccess;
    struct task *task =
        host_task(parameters ? parameters->fn : NULL, parameters ? parameters->userData : NULL, &error);
    return graph_add("cudaGraphAddHostNode", node, graph, before, count, task, error);
}

EXPORT cudaError_t cudaGraphAddDependencies(cudaGraph_t graph, const cudaGraphNode_t *from,
                                            const cudaGraphNode_t *to, const cudaGraphEdgeData *data,
                                            size_t count)
{
    ENTER();
    const char *caller = "cudaGraphAddDependencies";
    (void)data; /* ports and programmatic edges only let work start earlier */
    cudaError_t error = check_graph(graph, caller);
    for (size_t i = 0; i < count && !error; i++) {
        error = check_node(from[i], caller);
        if (!error) error = check_node(to[i], caller);
        if (!error && (from[i]->graph != graph || to[i]->graph != graph))
            error = record(cudaErrorInvalidValue);
        if (!error) add_edge(from[i], to[i]);
    }
    return error;
}

/* ---- What a graph has --------------------------------------------------------------------------------------------- */

/* Lists as these calls return them: with no room given, the number; else as many as there is room for, the rest NULL. */
struct list {
    cudaGraphNode_t *room;
    size_t most, count;
};

static void list_node(struct list *l, cudaGraphNode_t node)
{
    if (l->room && l->count < l->most) l->room[l->count] = node;
    l->count++;
}

static cudaError_t list_end(struct list *l, size_t *count)
{
    for (size_t i = l->count; l->room && i < l->most; i++) l->room[i] = NULL;
    *count = l->room && l->count > l->most ? l->most : l->count;
    return cudaSuccess;
}

EXPORT cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t *nodes, size_t *count)
{
    ENTER();
    cudaError_t error = check_graph(graph, "cudaGraphGetNodes");
    if (error || !count) return error ? error : record(cudaErrorInvalidValue);
    struct list l = {nodes, *count, 0};
    for (u32 i = 0; i < graph->count; i++) list_node(&l, graph->nodes[i]);
    return list_end(&l, count);
}

EXPORT cudaError_t cudaGraphGetRootNodes(cudaGraph_t graph, cudaGraphNode_t *nodes, size_t *count)
{
    ENTER();
    cudaError_t error = check_graph(graph, "cudaGraphGetRootNodes");
    if (error || !count) return error ? error : record(cudaErrorInvalidValue);
    struct list l = {nodes, *count, 0};
    for (u32 i = 0; i < graph->count; i++)
        if (!graph->nodes[i]->before_count) list_node(&l, graph->nodes[i]);
    return list_end(&l, count);
}

EXPORT cudaError_t cudaGraphNodeGetDependencies(cudaGraphNode_t node, cudaGraphNode_t *nodes,
                                                cudaGraphEdgeData *data, size_t *count)
{
    ENTER();
    cudaError_t error = check_node(node, "cudaGraphNodeGetDependencies");
    if (error || !count) return error ? error : record(cudaErrorInvalidValue);
    if (data) memset(data, 0, *count * sizeof *data);
    struct list l = {nodes, *count, 0};
    for (u32 i = 0; i < node->before_count; i++) list_node(&l, node->before[i]);
    return list_end(&l, count);
}

EXPORT cudaError_t cudaGraphNodeGetDependentNodes(cudaGraphNode_t node, cudaGraphNode_t *nodes,
                                                  cudaGraphEdgeData *data, size_t *count)
{
    ENTER();
    cudaError_t error = check_node(node, "cudaGraphNodeGetDependentNodes");
    if (error || !count) return error ? error : record(cudaErrorInvalidValue);
    if (data) memset(data, 0, *count * sizeof *data);
    struct list l = {nodes, *count, 0};
    for (u32 i = 0; i < node->graph->count; i++)
        if (comes_before(node, node->graph->nodes[i])) list_node(&l, node->graph->nodes[i]);
    return list_end(&l, count);
}

EXPORT cudaError_t cudaGraphNodeGetType(cudaGraphNode_t node, enum cudaGraphNodeType *type)
{
    ENTER();
    cudaError_t error = check_node(node, "cudaGraphNodeGetType");
    if (error || !type) return error ? error : record(cudaErrorInvalidValue);
    *type = type_of(node);
    return cudaSuccess;
}

static cudaError_t check_kernel_node(const struct CUgraphNode_st *node, const char *caller)
{
    struct cudaKernelNodeParams parameters;
    cudaError_t error = check_node(node, caller);
    if (error || launch_task_parameters(node->task, &parameters)) return error;
    return fail(cudaErrorInvalidValue, "%s: the node is no kernel of the program's", caller);
}

EXPORT cudaError_t cudaGraphKernelNodeGetParams(cudaGraphNode_t node, struct cudaKernelNodeParams *parameters)
{
    ENTER();
    cudaError_t error = check_kernel_node(node, "cudaGraphKernelNodeGetParams");
    if (error || !parameters) return error ? error : record(cudaErrorInvalidValue);
    launch_task_parameters(node->task, parameters);
    return cudaSuccess;
}

EXPORT cudaError_t cudaGraphKernelNodeSetParams(cudaGraphNode_t node,
                                                const struct cudaKernelNodeParams *parameters)
{
    ENTER();
    const char *caller = "cudaGraphKernelNodeSetParams";
    cudaError_t error = check_kernel_node(node, caller);
    if (error) return error;
    struct task *task = kernel_task(caller, parameters, &error);
    if (!task) return error;
    task_drop(node->task);
    node->task = task;
    return cudaSuccess;
}

/* Tasks do not change once made: the clone's are the same ones. */
EXPORT cudaError_t cudaGraphClone(cudaGraph_t *clone, cudaGraph_t graph)
{
    ENTER();
    cudaError_t error = check_graph(graph, "cudaGraphClone");
    if (!error) error = cudaGraphCreate(clone, 0);
    if (error) return error;
    for (u32 i = 0; i < graph->count; i++) {
        struct task *task = graph->nodes[i]->task;
        add_node(*clone, task ? task_keep(task) : NULL, NULL, 0)->original = graph->nodes[i];
    }
    for (u32 i = 0; i < graph->count; i++)
        for (u32 k = 0; k < graph->nodes[i]->before_count; k++)
            add_edge((*clone)->nodes[graph->nodes[i]->before[k]->index], (*clone)->nodes[i]);
    return cudaSuccess;
}

EXPORT cudaError_t cudaGraphNodeFindInClone(cudaGraphNode_t *found, cudaGraphNode_t original,
                                            cudaGraph_t clone)
{
    ENTER();
    cudaError_t error = check_graph(clone, "cudaGraphNodeFindInClone");
    if (error || !found) return error ? error : record(cudaErrorInvalidValue);
    for (u32 i = 0; i < clone->count; i++)
        if (clone->nodes[i]->original == original) {
            *found = clone->nodes[i];
            return cudaSuccess;
        }
    return record(cudaErrorInvalidValue);
}

/* ---- Plans -------------------------------------------------------------------------------------------------------- */

static bool is_ready(const struct plan *plan, const bool *done, u32 step)
{
    if (done[step]) return false;
    for (u32 k = 0; k < plan->steps[step].before_count; k++)
        if (!done[plan->steps[step].before[k]]) return false;
    return true;
}

/* Whether two steps are ever ready at once. */
static bool has_forks(const struct plan *plan)
{
    bool *done = resized(NULL, plan->count, sizeof *done), forks = false;
    memset(done, 0, plan->count * sizeof *done);
    for (u32 left = plan->count, ready = 1; left && ready == 1; left--) {
        u32 next = 0;
        ready = 0;
        for (u32 i = 0; i < plan->count; i++)
            if (is_ready(plan, done, i)) ready++, next = i;
        forks |= ready > 1;
        done[next] = true;
    }
    free(done);
    return forks;
}

static void plan_of(const struct CUgraph_st *graph, struct plan *plan)
{
    *plan = (struct plan){.steps = resized(NULL, graph->count, sizeof *plan->steps), .count = graph->count};
    for (u32 i = 0; i < graph->count; i++) {
        const struct CUgraphNode_st *node = graph->nodes[i];
        struct step *s = &plan->steps[i];
        *s = (struct step){.task = node->task ? task_keep(node->task) : NULL,
                           .node = node,
                           .before = resized(NULL, node->before_count, sizeof(u32)),
                           .before_count = node->before_count};
        for (u32 k = 0; k < node->before_count; k++) s->before[k] = node->before[k]->index;
    }
    plan->forks = has_forks(plan);
}

static void plan_copy(struct plan *to, const struct plan *from)
{
    *to = (struct plan){
        .steps = resized(NULL, from->count, sizeof *to->steps), .count = from->count, .forks = from->forks};
    for (u32 i = 0; i < from->count; i++) {
        struct step *s = &to->steps[i];
        *s = from->steps[i];
        if (s->task) task_keep(s->task);
        s->before = resized(NULL, s->before_count, sizeof(u32));
        memcpy(s->before, from->steps[i].before, s->before_count * sizeof(u32));
    }
}

static void plan_free(struct plan *plan)
{
    for (u32 i = 0; i < plan->count; i++) {
        if (plan->steps[i].task) task_drop(plan->steps[i].task);
        free(plan->steps[i].before);
    }
    free(plan->steps);
    *plan = (struct plan){.count = 0};
}

/* Visits every step after those before it; false when a cycle keeps some from their turn. */
static bool walk(const struct plan *plan, void (*visit)(const struct plan *, u32 step, void *context),
                 void *context)
{
    static _Atomic u64 walks;
    u64 random = options.seed + walks++;
    bool *done = calloc(plan->count + 1, sizeof *done), moved = true;
    u32 left = plan->count;
    while (done && left && moved) {
        moved = false;
        u32 first = 0;
        if (options.seed) {
            random = random * 6364136223846793005u + 1442695040888963407u;
            first = (u32)(random >> 33) % plan->count;
        }
        for (u32 k = 0; k < plan->count; k++) {
            u32 i = (first + k) % plan->count;
            if (!is_ready(plan, done, i)) continue;
            if (visit) visit(plan, i, context);
            done[i] = moved = true;
            left--;
            if (options.seed) break;
        }
    }
    free(done);
    return left == 0;
}

struct graph_task {
    struct task task;
    struct plan plan;
};

/* Which steps come before one: a bit for each, in rows by step. */
static u64 *row_of(u64 *rows, const struct plan *plan, u32 step)
{
    return rows + (size_t)step * (plan->count / 64 + 1);
}

static void run_step(const struct plan *plan, u32 step, void *rows)
{
    const struct step *s = &plan->steps[step];
    u64 *row = row_of(rows, plan, step);
    for (u32 k = 0; k < s->before_count; k++) {
        const u64 *other = row_of(rows, plan, s->before[k]);
        for (u32 n = 0; n <= plan->count / 64; n++) row[n] |= other[n];
        row[s->before[k] / 64] |= 1ull << s->before[k] % 64;
    }
    if (s->task) turn_run_step(s->task, step, row, plan->forks);
}

static void run_graph(struct task *task)
{
    const struct plan *plan = &((struct graph_task *)task)->plan;
    size_t bytes = (size_t)plan->count * (plan->count / 64 + 1) * sizeof(u64);
    u64 *rows = resized(NULL, bytes, 1);
    memset(rows, 0, bytes);
    walk(plan, run_step, rows);
    free(rows);
}

void graph_each(const struct task *graph, void (*visit)(struct task *, void *context), void *context)
{
    const struct plan *plan = &((const struct graph_task *)graph)->plan;
    for (u32 i = 0; i < plan->count; i++)
        if (plan->steps[i].task) visit(plan->steps[i].task, context);
}

static void release_graph(struct task *task)
{
    plan_free(&((struct graph_task *)task)->plan);
}

EXPORT cudaError_t cudaGraphAddChildGraphNode(cudaGraphNode_t *node, cudaGraph_t graph,
                                              const cudaGraphNode_t *before, size_t count, cudaGraph_t child)
{
    ENTER();
    const char *caller = "cudaGraphAddChildGraphNode";
    cudaError_t error = check_graph(child, caller);
    if (error) return error;
    struct graph_task *task = task_new(sizeof *task, cudaGraphNodeTypeGraph, run_graph, release_graph);
    if (!task) return cudaErrorMemoryAllocation;
    plan_of(child, &task->plan);
    return graph_add(caller, node, graph, before, count, &task->task, cudaSuccess);
}

/* ---- Executable graphs -------------------------------------------------------------------------------------------- */

EXPORT cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t *exec, cudaGraph_t graph,
                                                 unsigned long long flags)
{
    ENTER();
    const char *caller = "cudaGraphInstantiate";
    cudaError_t error = check_graph(graph, caller);
    if (error) return error;
    if (!exec) return record(cudaErrorInvalidValue);
    if (flags & cudaGraphInstantiateFlagDeviceLaunch)
        return fail(cudaErrorNotSupported, "%s: graphs that a kernel launches are not supported", caller);
    struct CUgraphExec_st *e = resized(NULL, 1, sizeof *e);
    *e = (struct CUgraphExec_st){.magic = EXEC_MAGIC, .flags = flags};
    plan_of(graph, &e->plan);
    if (!walk(&e->plan, NULL, NULL)) {
        plan_free(&e->plan);
        free(e);
        return fail(cudaErrorInvalidValue, "%s: the graph's dependencies form a cycle", caller);
    }
    *exec = e;
    return cudaSuccess;
}

EXPORT cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t graph, unsigned long long flags)
{
    return cudaGraphInstantiateWithFlags(exec, graph, flags);
}

EXPORT cudaError_t cudaGraphInstantiateWithParams(cudaGraphExec_t *exec, cudaGraph_t graph,
                                                  cudaGraphInstantiateParams *parameters)
{
    if (!parameters) return record(cudaErrorInvalidValue);
    cudaError_t error = cudaGraphInstantiateWithFlags(exec, graph, parameters->flags);
    parameters->result_out = error ? cudaGraphInstantiateError : cudaGraphInstantiateSuccess;
    parameters->errNode_out = NULL;
    return error;
}
PER_THREAD(cudaGraphInstantiateWithParams, _ptsz);

EXPORT cudaError_t cudaGraphExecGetFlags(cudaGraphExec_t exec, unsigned long long *flags)
{
    ENTER();
    cudaError_t error = check_exec(exec, "cudaGraphExecGetFlags");
    if (error || !flags) return error ? error : record(cudaErrorInvalidValue);
    *flags = exec->flags;
    return cudaSuccess;
}

EXPORT cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec)
{
    ENTER();
    cudaError_t error = check_exec(exec, "cudaGraphExecDestroy");
    if (error) return error;
    plan_free(&exec->plan);
    exec->magic = 0;
    return cudaSuccess;
}

EXPORT cudaError_t cudaGraphUpload(cudaGraphExec_t exec, cudaStream_t stream)
{
    ENTER();
    cudaError_t error = check_exec(exec, "cudaGraphUpload");
    return error ? error : check_stream(stream, "cudaGraphUpload");
}
PER_THREAD(cudaGraphUpload, _ptsz);

/* Captured into another graph, it becomes a child graph. */
EXPORT cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream)
{
    ENTER();
    cudaError_t error = check_exec(exec, "cudaGraphLaunch");
    if (!error) error = check_stream(stream, "cudaGraphLaunch");
    if (error) return error;
    struct graph_task *task = task_new(sizeof *task, cudaGraphNodeTypeGraph, run_graph, release_graph);
    if (!task) return cudaErrorMemoryAllocation;
    plan_copy(&task->plan, &exec->plan);
    if (captured_of(stream)->capture) return stream_do(stream, &task->task, cudaSuccess);
    stream_follow(stream, &exec->launched);
    error = stream_do(stream, &task->task, cudaSuccess);
    stream_mark(stream, &exec->launched);
    return error;
}
PER_THREAD(cudaGraphLaunch, _ptsz);

/* The executable graph's node does something else from now on, of the same type. Takes over the task; a NULL one with an error only
 * passes that on. */
static cudaError_t set_task(const char *caller, struct CUgraphExec_st *exec,
                            const struct CUgraphNode_st *node, struct task *task, cudaError_t error)
{
    struct step *step = NULL;
    if (!error) error = check_exec(exec, caller);
    for (u32 i = 0; !error && i < exec->plan.count; i++)
        if (exec->plan.steps[i].node == node) step = &exec->plan.steps[i];
    if (!error && (!step || !step->task || step->task->type != task->type))
        error =
            fail(cudaErrorInvalidValue,
                 "%s: the executable graph was not made from this node, or that is of another type", caller);
    if (error) {
        if (task) task_drop(task);
        return error;
    }
    task_drop(step->task);
    step->task = task;
    return cudaSuccess;
}

EXPORT cudaError_t cudaGraphExecKernelNodeSetParams(cudaGraphExec_t exec, cudaGraphNode_t node,
                                                    const struct cudaKernelNodeParams *parameters)
{
    ENTER();
    const char *caller = "cudaGraphExecKernelNodeSetParams";
    cudaError_t error = check_kernel_node(node, caller);
    struct task *task = error ? NULL : kernel_task(caller, parameters, &error);
    return set_task(caller, exec, node, task, error);
}

EXPORT cudaError_t cudaGraphExecMemcpyNodeSetParams(cudaGraphExec_t exec, cudaGraphNode_t node,
                                                    const struct cudaMemcpy3DParms *parameters)
{
    ENTER();
    const char *caller = "cudaGraphExecMemcpyNodeSetParams";
    cudaError_t error = cudaSuccess;
    struct task *task = copy_3d_task(caller, parameters, &error);
    return set_task(caller, exec, node, task, error);
}

EXPORT cudaError_t cudaGraphExecMemcpyNodeSetParams1D(cudaGraphExec_t exec, cudaGraphNode_t node, void *to,
                                                      const void *from, size_t bytes,
                                                      enum cudaMemcpyKind kind)
{
    ENTER();
    const char *caller = "cudaGraphExecMemcpyNodeSetParams1D";
    cudaError_t error = cudaSuccess;
    struct task *task = copy_task(caller, to, from, bytes, kind, &error);
    return set_task(caller, exec, node, task, error);
}

EXPORT cudaError_t cudaGraphExecMemsetNodeSetParams(cudaGraphExec_t exec, cudaGraphNode_t node,
                                                    const struct cudaMemsetParams *parameters)
{
    ENTER();
    const char *caller = "cudaGraphExecMemsetNodeSetParams";
    cudaError_t error = cudaSuccess;
    struct task *task = fill_task(caller, parameters, &error);
    return set_task(caller, exec, node, task, error);
}

EXPORT cudaError_t cudaGraphExecHostNodeSetParams(cudaGraphExec_t exec, cudaGraphNode_t node,
                                                  const struct cudaHostNodeParams *parameters)
{
    ENTER();
    cudaError_t error = cudaSuccess;
    struct task *task =
        host_task(parameters ? parameters->fn : NULL, parameters ? parameters->userData : NULL, &error);
    return set_task("cudaGraphExecHostNodeSetParams", exec, node, task, error);
}

static bool same_shape(const struct plan *a, const struct plan *b)
{
    for (u32 i = 0; i < a->count && i < b->count; i++) {
        const struct step *x = &a->steps[i], *y = &b->steps[i];
        if (!x->task != !y->task || (x->task && x->task->type != y->task->type)) return false;
        if (x->before_count != y->before_count ||
            memcmp(x->before, y->before, x->before_count * sizeof *x->before))
            return false;
    }
    return a->count == b->count;
}

EXPORT cudaError_t cudaGraphExecUpdate(cudaGraphExec_t exec, cudaGraph_t graph,
                                       cudaGraphExecUpdateResultInfo *result)
{
    ENTER();
    const char *caller = "cudaGraphExecUpdate";
    cudaError_t error = check_exec(exec, caller);
    if (!error) error = check_graph(graph, caller);
    if (error) return error;
    struct plan plan;
    plan_of(graph, &plan);
    bool same = same_shape(&plan, &exec->plan);
    if (result)
        *result = (cudaGraphExecUpdateResultInfo){.result = same ? cudaGraphExecUpdateSuccess
                                                                 : cudaGraphExecUpdateErrorTopologyChanged};
    struct plan old = same ? exec->plan : plan;
    if (same) exec->plan = plan;
    plan_free(&old);
    return same ? cudaSuccess : record(cudaErrorGraphExecUpdateFailure);
}

/* ---- Capture ------------------------------------------------------------------------------------------------------ */

/* Kept for ever: events may refer to it long after. */
struct capture {
    struct CUgraph_st *graph;
    enum cudaStreamCaptureMode mode;
    pthread_t thread;
    unsigned long long id;
    bool active, invalid;
    struct captured *origin, **streams; /* the stream where it began, and all that have joined */
    u32 stream_count;
    struct capture *next;
};
static struct capture *captures; /* all there ever were */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static _Atomic u32 active_captures;
static __thread enum cudaStreamCaptureMode thread_mode = cudaStreamCaptureModeGlobal;

static void set_after(struct captured *at, struct CUgraphNode_st *const *nodes, u32 count)
{
    struct CUgraphNode_st **after = resized(NULL, count, sizeof(struct CUgraphNode_st *));
    if (count) memcpy(after, nodes, count * sizeof *after);
    free(at->after);
    at->after = after;
    at->count = count;
}

void captured_copy(struct captured *to, const struct captured *from)
{
    to->capture = from->capture;
    set_after(to, from->after, from->count);
}

cudaError_t capture_refuse(struct capture *capture, cudaError_t error, const char *caller, const char *what)
{
    if (!capture->active) return fail(error, "%s %s", caller, what);
    capture->invalid = true;
    return fail(error, "%s %s; the capture is invalid now", caller, what);
}

struct capture *capture_in_progress(bool blocking)
{
    if (!active_captures) return NULL;
    struct capture *found = NULL;
    pthread_mutex_lock(&lock);
    for (struct capture *c = captures; c && !found; c = c->next) {
        if (!c->active) continue;
        bool mine = pthread_equal(c->thread, pthread_self());
        bool harmed = c->mode == cudaStreamCaptureModeGlobal
                          ? mine || thread_mode == cudaStreamCaptureModeGlobal
                          : c->mode == cudaStreamCaptureModeThreadLocal && mine;
        if (!blocking && harmed && thread_mode != cudaStreamCaptureModeRelaxed) found = c;
        for (u32 i = 0; blocking && i < c->stream_count; i++)
            if (c->streams[i]->blocks) found = c;
    }
    pthread_mutex_unlock(&lock);
    return found;
}

static void join(struct capture *capture, struct captured *at)
{
    capture->streams = resized(capture->streams, capture->stream_count + 1, sizeof at);
    capture->streams[capture->stream_count++] = at;
    at->capture = capture;
}

EXPORT cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode)
{
    ENTER();
    static _Atomic unsigned long long ids;
    const char *caller = "cudaStreamBeginCapture";
    cudaError_t error = check_stream(stream, caller);
    if (error) return error;
    if (!stream || stream == cudaStreamLegacy)
        return fail(cudaErrorStreamCaptureUnsupported,
                    "%s: the default stream cannot be captured; create one", caller);
    struct captured *at = captured_of(stream);
    if (at->capture) return fail(cudaErrorIllegalState, "%s: the stream is being captured already", caller);
    if ((unsigned)mode > cudaStreamCaptureModeRelaxed) return record(cudaErrorInvalidValue);
    struct capture *c = resized(NULL, 1, sizeof *c);
    *c = (struct capture){
        .mode = mode, .thread = pthread_self(), .id = ++ids, .active = true, .origin = at, .next = captures};
    cudaGraphCreate(&c->graph, 0);
    set_after(at, NULL, 0);
    join(c, at);
    pthread_mutex_lock(&lock);
    c->next = captures;
    captures = c;
    pthread_mutex_unlock(&lock);
    active_captures++;
    return cudaSuccess;
}
PER_THREAD(cudaStreamBeginCapture, _ptsz);

cudaError_t capture_task(struct captured *at, struct task *task)
{
    struct capture *c = at->capture;
    if (c->invalid) {
        task_drop(task);
        return record(cudaErrorStreamCaptureInvalidated);
    }
    struct CUgraphNode_st *node = add_node(c->graph, task, at->after, at->count);
    set_after(at, &node, 1);
    return cudaSuccess;
}

cudaError_t capture_join(struct captured *to, const struct captured *from, const char *caller)
{
    if (!from->capture)
        return capture_refuse(
            to->capture, cudaErrorStreamCaptureIsolation, caller,
            "waits, in a captured stream, for an event that was recorded outside the capture");
    if (!from->capture->active)
        return fail(cudaErrorCapturedEvent, "%s: the event was recorded in a capture that has ended", caller);
    if (to->capture && to->capture != from->capture)
        return capture_refuse(to->capture, cudaErrorStreamCaptureMerge, caller,
                              "waits, in a captured stream, for an event of another capture");
    if (!to->capture) {
        if (to == captured_of(NULL))
            return capture_refuse(from->capture, cudaErrorStreamCaptureImplicit, caller,
                                  "makes the default stream wait for a captured one");
        join(from->capture, to);
        set_after(to, from->after, from->count);
        return cudaSuccess;
    }
    for (u32 i = 0; i < from->count; i++) {
        bool known = false;
        for (u32 k = 0; k < to->count; k++) known |= to->after[k] == from->after[i];
        if (known) continue;
        to->after = resized(to->after, to->count + 1, sizeof *to->after);
        to->after[to->count++] = from->after[i];
    }
    return cudaSuccess;
}

/* Whether every node comes before where the origin has got to. A captured node is made after those before it. */
static bool all_joined(const struct capture *c)
{
    bool *marked = calloc(c->graph->count + 1, sizeof *marked), all = marked != NULL;
    for (u32 i = 0; all && i < c->origin->count; i++) marked[c->origin->after[i]->index] = true;
    for (u32 i = c->graph->count; all && i-- > 0;) {
        const struct CUgraphNode_st *node = c->graph->nodes[i];
        all = marked[i];
        for (u32 k = 0; k < node->before_count; k++) marked[node->before[k]->index] = true;
    }
    free(marked);
    return all;
}

EXPORT cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph)
{
    ENTER();
    const char *caller = "cudaStreamEndCapture";
    cudaError_t error = check_stream(stream, caller);
    if (error) return error;
    if (!graph) return record(cudaErrorInvalidValue);
    *graph = NULL;
    struct captured *at = captured_of(stream);
    struct capture *c = at->capture;
    if (!c) return fail(cudaErrorIllegalState, "%s: the stream is not being captured", caller);
    if (c->origin != at)
        return capture_refuse(c, cudaErrorStreamCaptureUnmatched, caller,
                              "of a stream that only joined the capture: it ends where it began");
    if (c->mode != cudaStreamCaptureModeRelaxed && !pthread_equal(c->thread, pthread_self()))
        return capture_refuse(c, cudaErrorStreamCaptureWrongThread, caller,
                              "by another thread than the one that began the capture");
    if (c->invalid)
        error = record(cudaErrorStreamCaptureInvalidated);
    else if (!all_joined(c))
        error =
            fail(cudaErrorStreamCaptureUnjoined,
                 "%s: work in another captured stream was never joined: record an event there and let this "
                 "stream wait for it",
                 caller);
    for (u32 i = 0; i < c->stream_count; i++) {
        c->streams[i]->capture = NULL;
        set_after(c->streams[i], NULL, 0);
    }
    c->active = false;
    active_captures--;
    if (error)
        cudaGraphDestroy(c->graph);
    else
        *graph = c->graph;
    return error;
}
PER_THREAD(cudaStreamEndCapture, _ptsz);

EXPORT cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, enum cudaStreamCaptureStatus *status,
                                            unsigned long long *id, cudaGraph_t *graph,
                                            const cudaGraphNode_t **dependencies,
                                            const cudaGraphEdgeData **data, size_t *count)
{
    ENTER();
    cudaError_t error = check_stream(stream, "cudaStreamGetCaptureInfo");
    if (error) return error;
    if (!status) return record(cudaErrorInvalidValue);
    const struct captured *at = captured_of(stream);
    const struct capture *c = at->capture;
    *status = !c           ? cudaStreamCaptureStatusNone
              : c->invalid ? cudaStreamCaptureStatusInvalidated
                           : cudaStreamCaptureStatusActive;
    if (c && id) *id = c->id;
    if (c && graph) *graph = c->graph;
    if (c && dependencies) *dependencies = at->after;
    if (c && data) *data = NULL;
    if (c && count) *count = at->count;
    return cudaSuccess;
}
PER_THREAD(cudaStreamGetCaptureInfo, _ptsz);

EXPORT cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus *status)
{
    return cudaStreamGetCaptureInfo(stream, status, NULL, NULL, NULL, NULL, NULL);
}
PER_THREAD(cudaStreamIsCapturing, _ptsz);

EXPORT cudaError_t cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode *mode)
{
    ENTER();
    if (!mode || (unsigned)*mode > cudaStreamCaptureModeRelaxed) return record(cudaErrorInvalidValue);
    enum cudaStreamCaptureMode old = thread_mode;
    thread_mode = *mode;
    *mode = old;
    return cudaSuccess;
}
