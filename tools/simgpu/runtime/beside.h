/* beside.h: tasks that touch the same memory and that nothing orders (runtime/beside.c). With --seed only.
 *
 * Streams run late here, and then one after the other; which task is before which on a GPU is what the program has asked for. As
 * in exec/order.h, each stream has a clock: how far the others have come when its next task begins, as far as is sure.
 *
 *      in a stream                     each task comes after those before it
 *      cudaEventRecord, cudaStreamWaitEvent
 *                                      what the stream knew when the event was recorded, the other one knows from here on
 *      the default stream              knows of those that were not created cudaStreamNonBlocking, and they of it
 *      waiting on the host             what has been waited for is known to all that is asked for later, by whichever thread
 *      a graph's launch                comes after the last one of the same executable graph
 *      in a graph                      its edges: each node knows those from which a path leads to it
 *
 * Two tasks of which the later one, here, does not know the earlier one may run at the same time. If both touch a byte, and not
 * both only read it, or both by atomic operations, that is a race: the report names both and what is missing. What a task touches
 * is exec/footprint.h's, and looked at only while something that does not know of the task is still to come.
 *
 *      what is seen            kernels, copies, fills, what a stream frees, cuBLAS, NCCL
 *      what is not             host functions, the host's own reads; memory that cudaHostRegister has registered, by kernels; of
 *                              a tensor copy's box, rows behind the first, which may be beyond a kernel's part of a tensor
 *
 * The host's own writes are seen in one place: memory of the host's that an asynchronous copy reads has other contents when the
 * host next waits for something than when the copy was asked for. What may wait for the host itself, a host function or a kernel
 * that can reach the host's memory, may be there to let it write first: no copy is looked at that was asked for while one is waiting. */
#ifndef BESIDE_H
#define BESIDE_H

#include "../sim.h"

struct task;

/* Streams beyond the first so many share the last place, and are told apart no more. */
enum { CLOCK_STREAMS = 64 };

/* By stream: how many of its tasks are over. */
struct clock {
    u32 done[CLOCK_STREAMS];
};

static inline void clock_join(struct clock *to, const struct clock *from)
{
    for (u32 k = 0; k < CLOCK_STREAMS; k++)
        if (from->done[k] > to->done[k]) to->done[k] = from->done[k];
}

/* A graph in a graph in a graph, and so on: what is deeper is not looked at. */
enum { DEEPEST_GRAPH = 4 };

/* A task in its turn. */
struct turn {
    struct task *task;
    u32 stream; /* 0: the default stream; else by the order in which they were created */
    u32 place;  /* in the clocks */
    u32 time;   /* there, when it is over */
    u64 number; /* of all that streams have been asked for */
    const struct clock *knows;
    bool alone; /* all that is still to come, outside its graphs, knows of it */
    u32 depth;
    struct node {
        u32 step;
        const u64 *before; /* a bit for each step of the graph that comes before it */
    } node[DEEPEST_GRAPH];
};

/* Runs the task, and looks at what it touches where that is needed. */
void turn_run(const struct turn *t);
/* The same for a step of the graph whose turn it is. `forks`: some of its steps have no order. */
void turn_run_step(struct task *task, u32 step, const u64 *before, bool forks);

/* A stream has been asked for a task which is still to come. `gated`: it, or one before it, may wait for the host. */
void turn_asked(struct task *task, u32 stream, bool gated);
/* Before and after tasks are run; and in between, before other threads may run theirs. */
void turns_begin(void);
void turns_end(void);
void turns_pause(void);

/* Whether all that is still to come knows of this task: stream.c. */
bool known_to_all(u32 place, u32 time);

#endif
