/* beside.c: tasks that may run beside each other, and what they do to each other's memory. */
#include "beside.h"

#include <stdlib.h>
#include <string.h>

#include "../exec/footprint.h"
#include "../report/report.h"
#include "heap.h"
#include "task.h"

#define MOST_LEFT (1ull << 30) /* bytes of what tasks have left */

/* A task that has been run, while one that does not know of it is still to come. */
struct past {
    struct past *next;
    struct turn turn;
    struct footprint touched;
    u8 *left; /* what lay where it has written when it was over; NULL: too much to keep */
    u64 left_bytes;
};
static struct past *pasts;
static u64 left_bytes; /* of all */

/* Of the host's memory that a copy still to come reads: what lay there when the host was last seen not to have written. */
struct source {
    struct source *next;
    struct task *task;
    u32 stream;
    u8 *seen;
};
static struct source *sources;

static __thread const struct turn *now; /* the task that this thread runs, the innermost graph's */

static void *room_for(void *p)
{
    if (p) return p;
    fprintf(stderr, "simgpu: out of host memory for what streams have done\n");
    exit(3);
}

/* ---- Order -------------------------------------------------------------------------------------------------------------- */

/* Whether t, which runs later here, comes after the earlier task. */
static bool comes_after(const struct turn *t, const struct turn *earlier)
{
    if (t->place != earlier->place || t->time != earlier->time)
        return t->knows->done[earlier->place] >= earlier->time;
    for (u32 d = 0; d < t->depth && d < earlier->depth; d++) /* of one launch of a graph */
        if (t->node[d].step != earlier->node[d].step)
            return t->node[d].before[earlier->node[d].step / 64] >> earlier->node[d].step % 64 & 1;
    return true;
}

/* ---- Messages ----------------------------------------------------------------------------------------------------------- */

static const char *stream_name(u32 stream, char text[32])
{
    if (!stream) return "the default stream";
    snprintf(text, 32, "stream %u", stream);
    return text;
}

static void describe(const struct turn *t, char *text, size_t room)
{
    struct cudaKernelNodeParams unused;
    char stream[32];
    int used = snprintf(text, room, "%s%s", launch_task_parameters(t->task, &unused) ? "kernel " : "",
                        readable_name(t->task->name));
    if (used < 0 || (size_t)used >= room) return;
    for (u32 d = 0; d < t->depth && (size_t)used < room; d++)
        used += snprintf(text + used, room - (size_t)used, "%s%u", d ? ", in it node " : " (node ",
                         t->node[d].step);
    if ((size_t)used < room)
        snprintf(text + used, room - (size_t)used, t->depth ? " of a graph in %s)" : " in %s",
                 stream_name(t->stream, stream));
}

static const char *verb(const struct turn *t, enum touch how)
{
    static const char *const verbs[] = {"reads", "writes", "changes by atomic operations"};
    if (t->task->type == cudaGraphNodeTypeMemFree) return "frees";
    return t->task->type == cudaGraphNodeTypeMemAlloc ? "allocates" : verbs[how];
}

static void describe_place(u64 at, char *text, size_t room)
{
    struct allocation a;
    char what[200] = "page-locked memory";
    *text = 0;
    if (!heap_find(at, &a) && !(heap_nearest(at, &a) && at - a.address < a.bytes)) return;
    if (a.name)
        snprintf(what, sizeof what, "%s", a.name);
    else if (a.kind != ALLOCATION_HOST)
        snprintf(what, sizeof what, "allocation %u", a.number);
    snprintf(text, room, " (%s + %llu)", what, (unsigned long long)(at - a.address));
}

/* Whether nothing has been said of tasks with these names: a loop has many of them. */
static bool is_news(const char *a, const char *b)
{
    static const char *(*told)[2];
    static u32 count;
    for (u32 k = 0; k < count; k++)
        if (told[k][0] == a && told[k][1] == b) return false;
    told = room_for(realloc(told, (count + 1) * sizeof *told));
    told[count][0] = a;
    told[count++][1] = b;
    return true;
}

static void stop(bool stops)
{
    if (stops) device_fault(cudaErrorLaunchFailure);
}

static void tell_race(const struct turn *t, enum touch how, const struct turn *earlier, enum touch then,
                      u64 at)
{
    char what[300], other[300], place[256], first[32];
    if (!is_news(t->task->name, earlier->task->name)) return;
    describe(t, what, sizeof what);
    describe(earlier, other, sizeof other);
    describe_place(at, place, sizeof place);
    if (t->number == earlier->number)
        stop(breach_of_tasks(
            "race in a graph on memory at 0x%llx%s: %s %s what %s %s, and nothing orders these two: a path of edges must lead from "
            "the one that comes first to the other (cudaGraphAddDependencies; in captured streams, cudaEventRecord behind the one and "
            "cudaStreamWaitEvent ahead of the other). Nodes are numbered as they were added, from 0",
            (unsigned long long)at, place, what, verb(t, how), other, verb(earlier, then)));
    else
        stop(breach_of_tasks(
            "race between streams on memory at 0x%llx%s: %s %s what %s %s, and nothing orders these two; the one in %s was asked for "
            "first: cudaEventRecord behind the one that must come first and cudaStreamWaitEvent ahead of the other, or the host must "
            "wait in between, as by cudaStreamSynchronize. Streams are numbered as they were created%s",
            (unsigned long long)at, place, what, verb(t, how), other, verb(earlier, then),
            stream_name(earlier->number < t->number ? earlier->stream : t->stream, first),
            t->stream && earlier->stream
                ? ""
                : "; one that is cudaStreamNonBlocking does not wait for the default stream"));
}

static void remark_same(const struct turn *t, const struct turn *earlier, u64 at)
{
    char what[300], other[300], place[256];
    if (!is_news(t->task->name, earlier->task->name)) return;
    describe(t, what, sizeof what);
    describe(earlier, other, sizeof other);
    describe_place(at, place, sizeof place);
    remark_on_tasks(
        "the same value is written to memory at 0x%llx%s by %s and %s, and nothing orders these two",
        (unsigned long long)at, place, what, other);
}

/* ---- What tasks touch --------------------------------------------------------------------------------------------------- */

static bool accessible(struct extent e)
{
    struct allocation a;
    return heap_find(e.start, &a) && e.end <= a.address + a.bytes;
}

static void keep_left(struct past *p)
{
    const struct extents *written = &p->touched.of[TOUCH_WRITE];
    for (u64 k = 0; k < written->count; k++) p->left_bytes += written->at[k].end - written->at[k].start;
    left_bytes += p->left_bytes;
    if (left_bytes > MOST_LEFT) return;
    u8 *to = p->left = room_for(calloc(p->left_bytes + 1, 1));
    for (u64 k = 0; k < written->count; k++) {
        struct extent e = written->at[k];
        if (accessible(e)) memcpy(to, (const void *)(uintptr_t)e.start, e.end - e.start);
        to += e.end - e.start;
    }
}

/* Where both have written, and not the same, as far as is known; 0: nowhere. *same: a place where they have written the same. */
static u64 first_change(const struct past *p, const struct extents *writes, u64 *same)
{
    struct meeting m = {0};
    u64 k = 0;
    const u8 *left = p->left; /* in extent k */
    const struct extents *written = &p->touched.of[TOUCH_WRITE];
    while (left && footprint_meet(written, writes, &m)) {
        for (; written->at[k].end <= m.both.start; k++) left += written->at[k].end - written->at[k].start;
        if (!accessible(m.both) || memcmp(left + (m.both.start - written->at[k].start),
                                          (const void *)(uintptr_t)m.both.start, m.both.end - m.both.start))
            return m.both.start;
        *same = m.both.start;
    }
    return 0;
}

/* Whether there was a race to tell. */
static bool compare(const struct turn *t, const struct footprint *touched, const struct past *p)
{
    u64 same = 0, at = first_change(p, &touched->of[TOUCH_WRITE], &same);
    if (at) {
        tell_race(t, TOUCH_WRITE, &p->turn, TOUCH_WRITE, at);
        return true;
    }
    for (u32 how = 0; how < TOUCHES; how++)
        for (u32 then = 0; then < TOUCHES; then++) {
            struct meeting m = {0};
            if (how == then || !footprint_meet(&touched->of[how], &p->touched.of[then], &m)) continue;
            tell_race(t, how, &p->turn, then, m.both.start);
            return true;
        }
    if (same) remark_same(t, &p->turn, same);
    return false;
}

static void forget(struct past **link)
{
    struct past *p = *link;
    *link = p->next;
    task_drop(p->turn.task);
    footprint_free(&p->touched);
    left_bytes -= p->left_bytes;
    free(p->left);
    free(p);
}

static void keep(const struct turn *t, struct footprint touched)
{
    struct past *p = room_for(malloc(sizeof *p));
    *p = (struct past){.next = pasts, .turn = *t, .touched = touched};
    task_keep(t->task);
    keep_left(p);
    pasts = p;
}

static void look_at(const struct turn *t)
{
    struct footprint touched;
    bool told = false;
    footprint_begin();
    task_run(t->task);
    footprint_end(&touched);
    for (const struct past *p = pasts; p && !told; p = p->next)
        if (!comes_after(t, &p->turn)) told = compare(t, &touched, p);
    if (t->alone)
        footprint_free(&touched);
    else
        keep(t, touched);
}

/* Whether it matters what the task touches, and can be seen. */
static bool matters(const struct turn *t)
{
    enum cudaGraphNodeType type = t->task->type;
    if (device_dead() || type == cudaGraphNodeTypeGraph || type == cudaGraphNodeTypeHost ||
        type == cudaGraphNodeTypeEventRecord)
        return false;
    bool unknown = !t->alone;
    for (const struct past *p = pasts; p && !unknown; p = p->next) unknown = !comes_after(t, &p->turn);
    return unknown;
}

/* ---- Turns -------------------------------------------------------------------------------------------------------------- */

static void source_read(const struct task *task)
{
    struct source **link = &sources, *s;
    while (*link && (*link)->task != task) link = &(*link)->next;
    if (!(s = *link)) return;
    *link = s->next;
    task_drop(s->task);
    free(s->seen);
    free(s);
}

void turn_run(const struct turn *t)
{
    const struct turn *outer = now;
    now = t;
    if (t->task->reads_host) source_read(t->task);
    if (matters(t))
        look_at(t);
    else
        task_run(t->task);
    now = outer;
    for (struct past **link = &pasts; !outer && t->alone && *link;) /* the graph is over */
        if ((*link)->turn.number == t->number)
            forget(link);
        else
            link = &(*link)->next;
}

void turn_run_step(struct task *task, u32 step, const u64 *before, bool forks)
{
    if (!now || now->depth == DEEPEST_GRAPH) { /* without a seed */
        task_run(task);
        return;
    }
    struct turn t = *now;
    t.task = task;
    t.alone &= !forks;
    t.node[t.depth++] = (struct node){step, before};
    turn_run(&t);
}

/* Another stream may have freed it. */
static bool has_source(const struct task *task)
{
    struct extent e = {(u64)(uintptr_t)task->reads.start,
                       (u64)(uintptr_t)task->reads.start + task->reads.bytes};
    return task->reads_host && accessible(e);
}

static void ask(struct task *task, void *stream)
{
    if (task->type == cudaGraphNodeTypeGraph) graph_each(task, ask, stream);
    if (!has_source(task)) return;
    struct source *s = room_for(malloc(sizeof *s));
    *s = (struct source){.next = sources,
                         .task = task_keep(task),
                         .stream = *(const u32 *)stream,
                         .seen = room_for(malloc(task->reads.bytes))};
    memcpy(s->seen, task->reads.start, task->reads.bytes);
    sources = s;
}

void turn_asked(struct task *task, u32 stream, bool gated)
{
    if (!gated) ask(task, &stream);
}

static void check_source(const struct source *s)
{
    const u8 *start = s->task->reads.start;
    u64 k = 0;
    if (device_dead() || !has_source(s->task) || !memcmp(s->seen, start, s->task->reads.bytes)) return;
    while (s->seen[k] == start[k]) k++;
    char place[256], stream[32];
    describe_place((u64)(uintptr_t)start + k, place, sizeof place);
    if (!is_news(s->task->name, NULL)) return;
    stop(breach_of_tasks(
        "the host has written at 0x%llx%s since %s in %s was asked to read it, which may not be over: the host must "
        "wait for it first, as by cudaStreamSynchronize, or cudaEventSynchronize of an event recorded behind it",
        (unsigned long long)(uintptr_t)start + k, place, s->task->name, stream_name(s->stream, stream)));
}

void turns_begin(void)
{
    for (const struct source *s = sources; s; s = s->next) check_source(s);
}

/* Tasks may have written what others will read. */
void turns_pause(void)
{
    for (struct source *s = sources; s; s = s->next)
        if (has_source(s->task)) memcpy(s->seen, s->task->reads.start, s->task->reads.bytes);
}

void turns_end(void)
{
    turns_pause();
    for (struct past **link = &pasts; *link;)
        if (known_to_all((*link)->turn.place, (*link)->turn.time))
            forget(link);
        else
            link = &(*link)->next;
}
