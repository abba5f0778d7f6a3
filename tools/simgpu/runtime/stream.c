/* stream.c: streams, events and host functions: when what a program asks for is done.
 *
 * Without a seed, at once: the order in which the host asks is one of those that CUDA allows, and but for host functions and what
 * comes after them all streams are always idle, and every recorded event has happened. With --seed, as late as CUDA allows: a
 * stream keeps what it is asked for in a queue until something waits for it. What such a copy or fill will write is poison until
 * then, if nothing before it may look there. So a program that forgets to synchronise finds old data or NaN, every time; and tasks
 * that nothing orders are told so (beside.h).
 *
 *      a stream's queue    work, and places in other streams' queues that have to be reached first: cudaStreamWaitEvent, and
 *                          the order between the default stream and those that were not created cudaStreamNonBlocking
 *
 * A host function may wait for what the host does after it has asked for the function, as to unlock a mutex. So a thread of the
 * simulator's own calls these, one after the other; it starts with the first one. They, and what comes after them, have to wait in
 * queues without a seed as well, and there that thread does all that it finds ready, other work before the next function. With a
 * seed it does a function, and what comes before that, when something waits for it or KEPT_MS have passed: the host may wait for
 * it by other means than CUDA's.
 *
 * All other work is done by whoever waits. Each holds the lock of all queues meanwhile, but not while a host function runs: other
 * threads may ask for work then, or do that of other streams. The stream's own is `busy`. The simulator's thread waits for no
 * other one, so that these may wait for it.
 *
 * Destroyed handles are kept, marked, so that they are told from live ones. */
#define _GNU_SOURCE
#include "task.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cublas.h"
#include "heap.h"

enum { STREAM_MAGIC = 0x5354524d, EVENT_MAGIC = 0x45564e54 };

enum { KEPT_MS = 100 };
#define NS_PER_S 1000000000ull
#define NEVER    UINT64_MAX

/* One place in a stream's queue: a task, or another stream's place that must have been reached. */
struct entry {
    struct entry *next;
    struct task *task;
    u64 number;         /* of all entries, by when they were asked for */
    struct clock knows; /* what comes before the task, and itself */
    bool waits_for_host, calls_host;
    u64 due; /* in ns: when the simulator's thread does it without being waited for */
    struct CUstream_st *other;
    u64 until;
};

struct CUstream_st {
    u32 magic; /* 0 once destroyed */
    unsigned flags;
    int priority;
    unsigned long long id;
    struct captured captured;
    struct entry *first, **last; /* the queue; places asked for so far, and those reached */
    u64 asked, reached, queried; /* ... and that cudaStreamQuery has last been asked about */
    bool busy;                   /* a thread does the first entry */
    struct clock knows;          /* what comes before its next task */
    struct CUstream_st *next;    /* of all */
};

struct CUevent_st {
    u32 magic;
    unsigned flags;
    bool recorded;
    struct timespec when;
    struct mark last; /* where it was recorded */
    u64 queried;      /* the place that cudaEventQuery has last been asked about */
    bool in_graph; /* or by a graph's node, of whichever launch: after all that streams have been asked for */
    struct captured captured; /* recorded in a stream that was being captured */
};

/* The default stream is one for all threads. */
static struct CUstream_st default_stream = {
    .magic = STREAM_MAGIC, .id = 1, .captured = {.blocks = true}, .last = &default_stream.first};
static struct CUstream_st *streams = &default_stream;
static struct clock host_knows; /* what the host has waited for */
static pthread_mutex_t queues = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
static pthread_cond_t moved = PTHREAD_COND_INITIALIZER; /* something in the queues */

static bool is_default(cudaStream_t s)
{
    return !s || s == cudaStreamLegacy || s == cudaStreamPerThread;
}

static struct CUstream_st *stream_of(cudaStream_t s)
{
    return is_default(s) ? &default_stream : s;
}

struct captured *captured_of(cudaStream_t s)
{
    return &stream_of(s)->captured;
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

/* ---- Tasks -------------------------------------------------------------------------------------------------------- */

void *task_new(size_t bytes, enum cudaGraphNodeType type, void (*run)(struct task *),
               void (*release)(struct task *))
{
    struct task *task = calloc(1, bytes);
    if (!task) {
        record(cudaErrorMemoryAllocation);
        return NULL;
    }
    task->type = type;
    task->references = 1;
    task->run = run;
    task->release = release;
    return task;
}

struct task *task_keep(struct task *task)
{
    atomic_fetch_add(&task->references, 1);
    return task;
}

void task_drop(struct task *task)
{
    if (atomic_fetch_sub(&task->references, 1) > 1) return;
    if (task->release) task->release(task);
    free(task);
}

static _Atomic u64 tasks;

void task_run(struct task *task)
{
    tasks++;
    if (!device_dead() || task->type == cudaGraphNodeTypeHost) task->run(task);
}

u64 tasks_run(void)
{
    return tasks;
}

/* ---- Queues ------------------------------------------------------------------------------------------------------- */

static bool is_late(void)
{
    return options.seed != 0;
}

/* By the order in which they were created. */
static u32 number_of(const struct CUstream_st *s)
{
    return s == &default_stream ? 0 : (u32)s->id - 2;
}

static u32 place_of(const struct CUstream_st *s)
{
    u32 number = number_of(s);
    return number < CLOCK_STREAMS ? number : CLOCK_STREAMS - 1;
}

static u64 nanoseconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (u64)t.tv_sec * NS_PER_S + (u64)t.tv_nsec;
}

static u64 entries; /* so far, in all queues */

static void append(struct CUstream_st *s, struct entry e)
{
    struct entry *new = malloc(sizeof *new);
    if (!new) {
        fprintf(stderr, "simgpu: out of host memory for the queue of a stream\n");
        exit(3);
    }
    *new = e;
    new->number = entries++;
    if (is_late()) new->due = e.calls_host ? nanoseconds() + KEPT_MS *NS_PER_S / 1000 : NEVER;
    new->next = NULL;
    *s->last = new;
    s->last = &new->next;
    s->asked++;
    if (new->due != NEVER) pthread_cond_broadcast(&moved);
}

static void wait_for_all_of(struct CUstream_st *s, struct CUstream_st *other)
{
    clock_join(&s->knows, &other->knows);
    if (other != s && other->reached < other->asked)
        append(s, (struct entry){.other = other, .until = other->asked});
}

/* Of the tasks that are still to come: those that may let the host do something first. */
static u32 waiting_for_host;

static void find_wait(struct task *task, void *found)
{
    if (task->type == cudaGraphNodeTypeGraph) graph_each(task, find_wait, found);
    *(bool *)found |= task->type == cudaGraphNodeTypeHost || launch_task_reaches_host(task);
}

static void find_function(struct task *task, void *found)
{
    if (task->type == cudaGraphNodeTypeGraph) graph_each(task, find_function, found);
    *(bool *)found |= task->type == cudaGraphNodeTypeHost;
}

static void append_task(struct CUstream_st *s, struct task *task, bool calls_host)
{
    static u32 times[CLOCK_STREAMS];
    struct entry e = {.task = task, .calls_host = calls_host};
    clock_join(&s->knows, &host_knows);
    s->knows.done[place_of(s)] = ++times[place_of(s)];
    e.knows = s->knows;
    find_wait(task, &e.waits_for_host);
    waiting_for_host += e.waits_for_host;
    if (is_late()) turn_asked(task, number_of(s), waiting_for_host > 0);
    append(s, e);
}

bool known_to_all(u32 place, u32 time)
{
    for (const struct CUstream_st *s = streams; s; s = s->next) {
        const struct entry *e = s->first; /* those behind know no less */
        while (e && !e->task) e = e->next;
        if (e && e->knows.done[place] < time) return false;
    }
    return true;
}

static void run_entry(const struct CUstream_st *s, const struct entry *e)
{
    u32 place = place_of(s), time = e->knows.done[place];
    if (is_late())
        turn_run(&(struct turn){.task = e->task,
                                .stream = number_of(s),
                                .place = place,
                                .time = time,
                                .number = e->number,
                                .knows = &e->knows,
                                .alone = known_to_all(place, time)});
    else
        task_run(e->task);
    waiting_for_host -= e->waits_for_host; /* other threads may ask for more until here */
}

/* How a thread comes to do what is in the queues: it waits until that is done, or only asks whether it is, and does what it can
 * without waiting; or it is the simulator's, which does that as well, and host functions. */
enum manner { WAITS, ASKS, SERVES };

/* An entry is in its queue until it is over. Where another thread is at one, or has a host function to call first, waits for that;
 * or says that the place is not reached. Recursion ends, and threads never wait for each other here, since every entry waits for
 * places that were asked for before it. */
static bool run_until(struct CUstream_st *s, u64 place, enum manner manner)
{
    while (s->reached < place) {
        struct entry *e = s->first;
        bool for_server = !s->busy && e->calls_host && manner != SERVES;
        if (for_server && e->due) {
            e->due = 0;
            pthread_cond_broadcast(&moved);
        }
        if (s->busy || for_server) {
            if (manner != WAITS) return false;
            pthread_cond_wait(&moved, &queues);
            continue;
        }
        s->busy = true;
        bool ready = !e->other || run_until(e->other, e->until, manner);
        if (ready && e->task) run_entry(s, e);
        s->busy = false;
        pthread_cond_broadcast(&moved);
        if (!ready) return false;
        s->first = e->next;
        if (!s->first) s->last = &s->first;
        s->reached++;
        if (e->task) task_drop(e->task);
        free(e);
    }
    return true;
}

/* The place of its last entry ahead of the one with this number. */
static u64 place_before(const struct CUstream_st *s, u64 number)
{
    u64 place = s->reached;
    for (const struct entry *e = s->first; e && e->number < number; e = e->next) place++;
    return place;
}

/* All that streams have been asked for so far, in an order drawn from the seed. */
static void run_all(enum manner manner)
{
    static u64 random;
    if (!random) random = options.seed;
    struct clock waited = host_knows;
    u64 end = entries;
    bool reached = true;
    for (const struct CUstream_st *s = streams; s; s = s->next) clock_join(&waited, &s->knows);
    turns_begin();
    while (reached) {
        u32 left = 0;
        for (struct CUstream_st *s = streams; s; s = s->next) left += s->reached < place_before(s, end);
        if (!left) break;
        random = random * 6364136223846793005u + 1442695040888963407u;
        u32 chosen = (u32)(random >> 33) % left;
        for (struct CUstream_st *s = streams; s; s = s->next)
            if (s->reached < place_before(s, end) && chosen-- == 0) {
                reached = run_until(s, place_before(s, end), manner);
                break;
            }
    }
    for (struct CUstream_st *s = streams; !reached && s; s = s->next)
        run_until(s, place_before(s, end), manner);
    turns_end();
    if (reached) clock_join(&host_knows, &waited);
}

/* Does not wait for host functions: one of them may have called exit. */
static void run_at_exit(void)
{
    pthread_mutex_lock(&queues);
    run_all(ASKS);
    pthread_mutex_unlock(&queues);
}

/* The place behind its last entry that is due, and *next is lowered to when one that is not will be. */
static u64 place_due(const struct CUstream_st *s, u64 now, u64 *next)
{
    u64 place = s->reached, due = place;
    for (const struct entry *e = s->first; e; e = e->next) {
        place++;
        if (e->due <= now)
            due = place;
        else if (e->due < *next)
            *next = e->due;
    }
    return due;
}

/* The stream whose next entry is the host function that was asked for first, of those that are due; NULL: none. */
static struct CUstream_st *next_to_serve(u64 now)
{
    struct CUstream_st *chosen = NULL;
    for (struct CUstream_st *s = streams; s; s = s->next) {
        const struct entry *e = s->first;
        if (!e || s->busy || !e->calls_host || e->due > now) continue;
        if (!chosen || e->number < chosen->first->number) chosen = s;
    }
    return chosen;
}

static void wait_until(u64 time)
{
    struct timespec t = {(time_t)(time / NS_PER_S), (long)(time % NS_PER_S)};
    if (time == NEVER)
        pthread_cond_wait(&moved, &queues);
    else
        pthread_cond_clockwait(&moved, &queues, CLOCK_MONOTONIC, &t);
}

/* The simulator's thread. */
static void *serve(void *unused)
{
    pthread_mutex_lock(&queues);
    for (;;) {
        u64 now = nanoseconds(), next = NEVER;
        bool due = false;
        for (const struct CUstream_st *s = streams; s; s = s->next)
            due |= place_due(s, now, &next) > s->reached;
        struct CUstream_st *served = NULL;
        if (due) {
            turns_begin();
            for (struct CUstream_st *s = streams; s; s = s->next)
                run_until(s, place_due(s, now, &next), ASKS);
            served = next_to_serve(now);
            if (served) run_until(served, served->reached + 1, SERVES);
            turns_end();
        }
        if (!served) wait_until(next);
    }
    return unused;
}

static void start_server(void)
{
    pthread_t thread;
    int error = pthread_create(&thread, NULL, serve, NULL);
    if (error) {
        fprintf(stderr, "simgpu: no thread for host functions: %s\n", strerror(error));
        exit(3);
    }
    pthread_detach(thread);
}

static bool overlap(struct range a, struct range b)
{
    return a.start < b.start + b.bytes && b.start < a.start + a.bytes;
}

/* Whether the task may touch these bytes, for all that is known. */
static bool may_touch(const struct task *task, struct range bytes)
{
    switch (task->type) {
    case cudaGraphNodeTypeEventRecord:
    case cudaGraphNodeTypeMemFree: return false;
    case cudaGraphNodeTypeMemset: return !task->writes.bytes || overlap(task->writes, bytes);
    case cudaGraphNodeTypeMemcpy:
        return !task->writes.bytes || overlap(task->writes, bytes) || overlap(task->reads, bytes);
    case cudaGraphNodeTypeKernel: return heap_is_device((u64)bytes.start);
    default: return true;
    }
}

static void poison_destination(const struct task *task)
{
    for (struct CUstream_st *s = streams; s; s = s->next)
        for (const struct entry *e = s->first; e; e = e->next)
            if (e->task && may_touch(e->task, task->writes)) return;
    struct allocation a; /* or there is nothing until a graph has run */
    if (heap_is_device((u64)task->writes.start) && !heap_find((u64)task->writes.start, &a)) return;
    if (!overlap(task->reads, task->writes) && !device_dead())
        memset(task->writes.start, 0xff, task->writes.bytes);
}

static void queue(struct CUstream_st *s, struct task *task, bool calls_host)
{
    static bool at_exit, served;
    if (!at_exit) atexit(run_at_exit);
    at_exit = true;
    if (calls_host && !served) start_server();
    served |= calls_host;
    if (is_late() && task->writes.bytes) poison_destination(task);
    append_task(s, task, calls_host);
}

cudaError_t stream_do(cudaStream_t stream, struct task *task, cudaError_t error)
{
    struct CUstream_st *s = stream_of(stream);
    if (!task) return error;
    if (s->captured.capture) return capture_task(&s->captured, task);
    struct capture *broken = s == &default_stream ? capture_in_progress(true) : NULL;
    if (broken) {
        task_drop(task);
        return capture_refuse(broken, cudaErrorStreamCaptureImplicit, "the default stream's work",
                              "waits for a stream that is being captured");
    }
    bool calls_host = false;
    find_function(task, &calls_host);
    pthread_mutex_lock(&queues);
    if (s == &default_stream) {
        for (struct CUstream_st *other = streams; other; other = other->next)
            if (other->captured.blocks) wait_for_all_of(s, other);
    } else if (s->captured.blocks) {
        wait_for_all_of(s, &default_stream);
    }
    bool at_once = !is_late() && !calls_host && !s->first;
    if (!at_once) queue(s, task, calls_host);
    pthread_mutex_unlock(&queues);
    if (!at_once) return cudaSuccess;
    task_run(task);
    task_drop(task);
    return cudaSuccess;
}

/* What this stream has been asked for so far; false: a host function ahead of that is not over. */
static bool finish(struct CUstream_st *s, enum manner manner)
{
    struct clock waited = host_knows;
    u64 end = entries;
    bool reached = true;
    turns_begin();
    for (struct CUstream_st *other = streams; other; other = other->next)
        if (other == s || (s == &default_stream && other->captured.blocks)) {
            struct clock knows = other->knows;
            reached &= run_until(other, place_before(other, end), manner);
            clock_join(&waited, &knows);
        }
    turns_end();
    if (reached) clock_join(&host_knows, &waited);
    return reached;
}

bool streams_pending(void)
{
    bool pending = false;
    pthread_mutex_lock(&queues);
    for (const struct CUstream_st *s = streams; s; s = s->next) pending |= s->first != NULL;
    pthread_mutex_unlock(&queues);
    return pending;
}

void stream_mark(cudaStream_t stream, struct mark *mark)
{
    struct CUstream_st *s = stream_of(stream);
    pthread_mutex_lock(&queues);
    *mark = (struct mark){s, s->asked, s->knows};
    pthread_mutex_unlock(&queues);
}

void stream_follow(cudaStream_t stream, const struct mark *mark)
{
    struct CUstream_st *s = stream_of(stream);
    pthread_mutex_lock(&queues);
    clock_join(&s->knows, &mark->knows);
    if (mark->stream && mark->stream != s && mark->stream->reached < mark->place)
        append(s, (struct entry){.other = mark->stream, .until = mark->place});
    pthread_mutex_unlock(&queues);
}

/* Does what is left of the stream; or only says that there is some, if nobody has asked before. */
static cudaError_t reach_end(cudaStream_t stream, const char *caller, bool only_asks)
{
    struct CUstream_st *s = stream_of(stream);
    struct capture *broken = s == &default_stream ? capture_in_progress(true) : s->captured.capture;
    if (broken)
        return capture_refuse(broken, cudaErrorStreamCaptureUnsupported, caller,
                              "waits for a stream that is being captured");
    pthread_mutex_lock(&queues);
    bool first = only_asks && s->reached < s->asked && s->queried != s->asked;
    s->queried = s->asked;
    bool reached = !first && finish(s, only_asks ? ASKS : WAITS);
    pthread_mutex_unlock(&queues);
    return record(reached ? device_wait() : cudaErrorNotReady);
}

cudaError_t stream_finish(cudaStream_t stream, const char *caller)
{
    return reach_end(stream, caller, false);
}

cudaError_t device_finish(const char *caller)
{
    struct capture *broken = capture_in_progress(false);
    if (broken)
        return capture_refuse(broken, cudaErrorStreamCaptureUnsupported, caller,
                              "waits for the device while a stream is being captured");
    pthread_mutex_lock(&queues);
    run_all(WAITS);
    pthread_mutex_unlock(&queues);
    return record(device_wait());
}

/* ---- Streams ------------------------------------------------------------------------------------------------------ */

enum { LOWEST_PRIORITY = 0, HIGHEST_PRIORITY = -5 };

EXPORT cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int priority)
{
    ENTER();
    static _Atomic unsigned long long ids = 2; /* the default streams have the first ids */
    if (!stream || flags & ~(unsigned)cudaStreamNonBlocking) return record(cudaErrorInvalidValue);
    *stream = calloc(1, sizeof **stream);
    if (!*stream) return record(cudaErrorMemoryAllocation);
    if (priority > LOWEST_PRIORITY) priority = LOWEST_PRIORITY;
    if (priority < HIGHEST_PRIORITY) priority = HIGHEST_PRIORITY;
    struct CUstream_st *s = *stream;
    *s = (struct CUstream_st){.magic = STREAM_MAGIC,
                              .flags = flags,
                              .priority = priority,
                              .id = atomic_fetch_add(&ids, 1) + 1,
                              .captured = {.blocks = !(flags & cudaStreamNonBlocking)},
                              .last = &s->first};
    pthread_mutex_lock(&queues);
    s->next = streams;
    streams = s;
    pthread_mutex_unlock(&queues);
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

EXPORT cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    ENTER();
    cudaError_t error = check_stream(stream, "cudaStreamSynchronize");
    return error ? error : stream_finish(stream, "cudaStreamSynchronize");
}
PER_THREAD(cudaStreamSynchronize, _ptsz);

/* Who asks finds it busy the first time, and nothing done, if it has a queue; asking again is waiting for it, but not for a host
 * function. */
EXPORT cudaError_t cudaStreamQuery(cudaStream_t stream)
{
    ENTER();
    cudaError_t error = check_stream(stream, "cudaStreamQuery");
    return error ? error : reach_end(stream, "cudaStreamQuery", true);
}
PER_THREAD(cudaStreamQuery, _ptsz);

EXPORT cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags)
{
    ENTER();
    const char *caller = "cudaStreamWaitEvent";
    cudaError_t error = check_stream(stream, caller);
    if (!error) error = check_event(event, caller);
    if (error) return error;
    if (flags & ~(unsigned)cudaEventWaitExternal) return record(cudaErrorInvalidValue);
    struct CUstream_st *s = stream_of(stream);
    if (event->captured.capture || s->captured.capture)
        return capture_join(&s->captured, &event->captured, caller);
    pthread_mutex_lock(&queues);
    stream_follow(stream, &event->last);
    for (struct CUstream_st *other = streams; event->in_graph && other; other = other->next)
        wait_for_all_of(s, other);
    pthread_mutex_unlock(&queues);
    return cudaSuccess;
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

/* ---- Host functions ----------------------------------------------------------------------------------------------- */

struct host_task {
    struct task task;
    cudaHostFn_t function;
    cudaStreamCallback_t callback; /* instead, for this stream */
    cudaStream_t stream;
    void *data;
};

/* On the simulator's thread, which has the queues' lock. */
static void run_host(struct task *task)
{
    const struct host_task *t = (struct host_task *)task;
    bool dead = device_dead();
    cudaError_t status = dead && t->callback ? device_wait() : cudaSuccess;
    turns_pause();
    pthread_mutex_unlock(&queues);
    host_function_begin();
    if (t->callback)
        t->callback(t->stream, status, t->data); /* it is told of a fault */
    else if (!dead)
        t->function(t->data); /* CUDA does not call host functions of a broken context */
    host_function_end();
    pthread_mutex_lock(&queues);
}

struct task *host_task(cudaHostFn_t function, void *data, cudaError_t *error)
{
    struct host_task *t = function ? task_new(sizeof *t, cudaGraphNodeTypeHost, run_host, NULL) : NULL;
    if (!t) {
        *error = record(function ? cudaErrorMemoryAllocation : cudaErrorInvalidValue);
        return NULL;
    }
    t->function = function;
    t->data = data;
    t->task.name = "cudaLaunchHostFunc";
    return &t->task;
}

EXPORT cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void *data)
{
    ENTER();
    cudaError_t error = check_stream(stream, "cudaLaunchHostFunc");
    return error ? error : stream_do(stream, host_task(function, data, &error), error);
}
PER_THREAD(cudaLaunchHostFunc, _ptsz);

EXPORT cudaError_t cudaStreamAddCallback(cudaStream_t stream, cudaStreamCallback_t callback, void *data,
                                         unsigned flags)
{
    ENTER();
    cudaError_t error = check_stream(stream, "cudaStreamAddCallback");
    if (error) return error;
    if (!callback || flags) return record(cudaErrorInvalidValue);
    struct host_task *t = task_new(sizeof *t, cudaGraphNodeTypeHost, run_host, NULL);
    if (!t) return cudaErrorMemoryAllocation;
    t->callback = callback;
    t->stream = stream;
    t->data = data;
    t->task.name = "cudaStreamAddCallback";
    return stream_do(stream, &t->task, cudaSuccess);
}
PER_THREAD(cudaStreamAddCallback, _ptsz);

/* ---- Libraries ---------------------------------------------------------------------------------------------------- */

struct library_task {
    struct task task;
    void (*run)(const void *arguments), (*release)(const void *arguments);
    _Alignas(16) u8 arguments[];
};

static void run_library(struct task *task)
{
    const struct library_task *t = (struct library_task *)task;
    t->run(t->arguments);
}

static void release_library(struct task *task)
{
    const struct library_task *t = (struct library_task *)task;
    if (t->release) t->release(t->arguments);
}

/* For libcublas.so.13 and libnccl.so.2: see cublas.h. To a graph it is a kernel, as on a GPU. */
EXPORT bool simgpu_do(const char *name, void *stream, void (*run)(const void *arguments),
                      void (*release)(const void *arguments), const void *arguments, size_t bytes)
{
    struct library_task *t =
        check_stream(stream, "a library's call")
            ? NULL
            : task_new(sizeof *t + bytes, cudaGraphNodeTypeKernel, run_library, release_library);
    if (!t) {
        if (release) release(arguments);
        return false;
    }
    t->task.name = name;
    t->run = run;
    t->release = release;
    memcpy(t->arguments, arguments, bytes);
    return stream_do(stream, &t->task, cudaSuccess) == cudaSuccess;
}

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

struct event_task {
    struct task task;
    cudaEvent_t event;
};

static void run_record(struct task *task)
{
    clock_gettime(CLOCK_MONOTONIC, &((struct event_task *)task)->event->when);
}

EXPORT cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned flags)
{
    ENTER();
    cudaError_t error = check_event(event, "cudaEventRecord");
    if (!error) error = check_stream(stream, "cudaEventRecord");
    if (error) return error;
    if (flags & ~(unsigned)cudaEventRecordExternal) return record(cudaErrorInvalidValue);
    struct CUstream_st *s = stream_of(stream);
    captured_copy(&event->captured, flags ? &(struct captured){.capture = NULL} : &s->captured);
    event->recorded = !event->captured.capture;
    if (!event->recorded) return cudaSuccess;
    struct event_task *t = task_new(sizeof *t, cudaGraphNodeTypeEventRecord, run_record, NULL);
    if (!t) return cudaErrorMemoryAllocation;
    t->event = event;
    pthread_mutex_lock(&queues);
    error = stream_do(stream, &t->task, cudaSuccess);
    stream_mark(stream, &event->last);
    event->in_graph = s->captured.capture;
    pthread_mutex_unlock(&queues);
    return error;
}
PER_THREAD(cudaEventRecordWithFlags, _ptsz);

EXPORT cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    return cudaEventRecordWithFlags(event, stream, cudaEventRecordDefault);
}
PER_THREAD(cudaEventRecord, _ptsz);

/* Does what comes before the event; or only says that this has not happened, if nobody has asked before. */
static cudaError_t reach(cudaEvent_t event, const char *caller, bool only_asks)
{
    cudaError_t error = check_event(event, caller);
    if (error) return error;
    if (event->captured.capture)
        return capture_refuse(event->captured.capture, cudaErrorCapturedEvent, caller,
                              "waits for an event that was recorded in a stream while it was captured");
    if (!event->recorded) return cudaSuccess;
    pthread_mutex_lock(&queues);
    const struct mark last = event->last; /* another thread may record it again meanwhile */
    const enum manner manner = only_asks ? ASKS : WAITS;
    bool first = only_asks && last.stream->reached < last.place && event->queried != last.place;
    event->queried = last.place;
    bool reached = !first;
    if (!first) {
        if (event->in_graph) run_all(manner);
        turns_begin();
        reached = run_until(last.stream, last.place, manner);
        turns_end();
        if (reached) clock_join(&host_knows, &last.knows);
    }
    pthread_mutex_unlock(&queues);
    return record(reached ? device_wait() : cudaErrorNotReady);
}

EXPORT cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    ENTER();
    return reach(event, "cudaEventSynchronize", false);
}

EXPORT cudaError_t cudaEventQuery(cudaEvent_t event)
{
    ENTER();
    return reach(event, "cudaEventQuery", true);
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
    pthread_mutex_lock(&queues);
    bool over =
        start->last.stream->reached >= start->last.place && end->last.stream->reached >= end->last.place;
    pthread_mutex_unlock(&queues);
    if (!over) return record(cudaErrorNotReady);
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
