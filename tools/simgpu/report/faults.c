/* faults.c: what is said when a kernel cannot go on. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../exec/async.h"
#include "report.h"

/* What stands in brackets is cut where a name is long, from the outside in: a kernel of a template library has 4,000
 * characters, of which nobody reads more than `gemm<...>(...)`. */
static void cut_brackets(char *name)
{
    enum { LONG_NAME = 120, LONG_GROUP = 40 };
    char *to = name;
    if (strlen(name) <= LONG_NAME) return;
    for (const char *from = name; *from;) {
        bool opens = *from == '<' || *from == '(';
        u32 depth = 0;
        const char *end = from;
        do {
            depth += *end == '<' || *end == '(';
            depth -= *end == '>' || *end == ')';
        } while (*end && depth && *++end);
        if (opens && *end && end - from > LONG_GROUP) {
            char close = *end;
            *to++ = *from;
            to = stpcpy(to, "...");
            *to++ = close;
            from = end + 1;
        } else {
            *to++ = *from++;
        }
    }
    *to = 0;
}

const char *readable_name(const char *symbol)
{
    char *(*demangle)(const char *, char *, size_t *, int *);
    *(void **)&demangle = dlsym(RTLD_DEFAULT, "__cxa_demangle");
    int status = 1;
    bool mangled = strncmp(symbol, "_Z", 2) == 0; /* "f" alone would be a type: float */
    char *name = mangled && demangle ? demangle(symbol, NULL, NULL, &status) : NULL;
    if (!name || status != 0) return symbol;
    cut_brackets(name);
    return strncmp(name, "void ", 5) == 0 ? name + 5 : name;
}

/* The first fault of a launch is the one that is told; workers that meet another meanwhile only stop. */
static pthread_mutex_t telling = PTHREAD_MUTEX_INITIALIZER;

static void print_place(const struct function *fn, const struct inst *in)
{
    const struct source_line *at = &fn->lines[in - fn->code];
    const struct inlined *inner = at->inlined;
    if (!at->file) return;
    fprintf(stderr, "  at %s:%u", at->file, at->line);
    if (inner) fprintf(stderr, " (in %s:%u", inner->file, inner->line);
    for (inner = inner ? inner->up : NULL; inner; inner = inner->up)
        fprintf(stderr, ", called at %s:%u", inner->file, inner->line);
    fprintf(stderr, "%s: %s\n", at->inlined ? ")" : "", fn->text[in - fn->code]);
}

/* The calls that led here, innermost first; of a deep recursion only the first and the last few. */
static void print_callers(const struct frame *frame)
{
    u32 depth = 0, at = 0;
    for (const struct frame *f = frame; f->up; f = f->up) depth++;
    for (const struct frame *f = frame; f->up; f = f->up, at++) {
        if (at == 3 && depth > 6) fprintf(stderr, "  (%u more calls)\n", depth - 6);
        if (at >= 3 && at + 3 < depth && depth > 6) continue;
        fprintf(stderr, "  called");
        print_place(f->up->fn, f->call);
    }
}

static void print_thread(const struct warp *w, u32 lane)
{
    const struct launch *l = w->block->launch;
    u32 t = w->id * LANES + lane;
    fprintf(stderr, "  block (%u,%u,%u), thread (%u,%u,%u)", w->block->ctaid[0], w->block->ctaid[1],
            w->block->ctaid[2], t % l->block[0], t / l->block[0] % l->block[1],
            t / l->block[0] / l->block[1]);
}

/* "  against FILE:LINE: text" */
static void print_other(const struct function *fn, const struct inst *in)
{
    if (!fn || !in || !fn->lines[in - fn->code].file) return;
    fprintf(stderr, "  against:\n");
    print_place(fn, in);
}

/* Who runs the program under several seeds is told. */
static void tell_seeds(void)
{
    if (options.faults >= 0 && write(options.faults, "!", 1) < 0) options.faults = -1;
}

/* The launch ends with this error. */
static void set_error(struct launch *l, int error)
{
    l->error = error;
    tell_seeds();
}

static _Noreturn void stop_worker(struct worker *worker)
{
    longjmp(worker->on_fault, 1);
}

/* Message, place, callers and thread. True when it is about shared memory. `frame`: whose calls led there, or NULL; `other`, `with`: the instruction that it
 * collides with, or NULL. */
static bool print_message(struct warp *w, const struct function *fn, const struct inst *in,
                          const struct frame *frame, const struct function *other, const struct inst *with,
                          u32 lanes, const char *format, va_list args)
{
    char message[1024];
    fflush(stdout);
    vsnprintf(message, sizeof message, format, args);
    fprintf(stderr, "simgpu: %s\n  in kernel %s\n", message, readable_name(w->block->launch->kernel->name));
    print_place(fn, in);
    if (frame) print_callers(frame);
    if (with) print_other(other, with);
    print_thread(w, lanes ? first_lane(lanes) : 0);
    if (lanes & (lanes - 1))
        fprintf(stderr, ", and %d more lanes of its warp", __builtin_popcount(lanes) - 1);
    fprintf(stderr, "\n");
    explain(message);
    return strstr(message, "shared") != NULL;
}

static void tell(struct warp *w, const struct function *fn, const struct inst *in, const struct frame *frame,
                 const struct function *other, const struct inst *with, u32 lanes, int error,
                 const char *format, va_list args)
{
    struct launch *l = w->block->launch;
    pthread_mutex_lock(&telling);
    if (!l->error) {
        set_error(l, error);
        bool luck =
            print_message(w, fn, in, frame, other, with, lanes, format, args) && error == ERR_MISALIGNED;
        if (luck && l->displaced)
            fprintf(
                stderr,
                "  (dynamic shared memory begins at 0x%x: with a seed, no better aligned than the kernel declares, as in "
                "`extern __shared__ __align__(1024)`)\n",
                SHARED_BASE + l->shared_bytes - l->dynamic_bytes);
        if (luck && l->shared_base > SHARED_BASE)
            fprintf(
                stderr,
                "  (static shared memory begins at 0x%x: with a seed, no better aligned than its variables are "
                "declared, as in `__shared__ __align__(16)`)\n",
                l->shared_base);
    }
    pthread_mutex_unlock(&telling);
}

void fault(struct warp *w, const struct inst *in, u32 lanes, int error, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    tell(w, w->frame->fn, in, w->frame, NULL, NULL, lanes, error, format, args);
    va_end(args);
    stop_worker(w->block->worker);
}

void fault_against(struct warp *w, const struct inst *in, u32 lanes, int error, const struct function *other,
                   const struct inst *with, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    tell(w, w->frame->fn, in, w->frame, other, with, lanes, error, format, args);
    va_end(args);
    stop_worker(w->block->worker);
}

/* Instructions that a remark was made of. */
static const struct inst **remarked;
static u32 remarked_count;

static bool is_news(const struct inst *in)
{
    for (u32 i = 0; i < remarked_count; i++)
        if (remarked[i] == in) return false;
    const struct inst **more = realloc(remarked, (remarked_count + 1) * sizeof(*more));
    if (!more) return false;
    remarked = more;
    remarked[remarked_count++] = in;
    return true;
}

static void make_remark(struct warp *w, const struct inst *in, const struct function *other,
                        const struct inst *with, u32 lanes, const char *format, va_list args)
{
    pthread_mutex_lock(&telling);
    if (!w->block->launch->error && is_news(in))
        print_message(w, w->frame->fn, in, w->frame, other, with, lanes, format, args);
    pthread_mutex_unlock(&telling);
}

void remark(struct warp *w, const struct inst *in, u32 lanes, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    make_remark(w, in, NULL, NULL, lanes, format, args);
    va_end(args);
}

static void make_breach(struct warp *w, const struct inst *in, u32 lanes, int error,
                        const struct function *other, const struct inst *with, const char *format,
                        va_list args)
{
    if (options.faults_report)
        make_remark(w, in, other, with, lanes, format, args);
    else
        tell(w, w->frame->fn, in, w->frame, other, with, lanes, error, format, args);
}

void breach(struct warp *w, const struct inst *in, u32 lanes, int error, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    make_breach(w, in, lanes, error, NULL, NULL, format, args);
    va_end(args);
    if (!options.faults_report) stop_worker(w->block->worker);
}

void breach_against(struct warp *w, const struct inst *in, u32 lanes, int error, const struct function *other,
                    const struct inst *with, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    make_breach(w, in, lanes, error, other, with, format, args);
    va_end(args);
    if (!options.faults_report) stop_worker(w->block->worker);
}

void fault_elsewhere(struct warp *w, const struct function *fn, const struct inst *in, u32 lanes, int error,
                     const char *format, ...)
{
    va_list args;
    va_start(args, format);
    tell(w, fn, in, NULL, NULL, NULL, lanes, error, format, args);
    va_end(args);
    stop_worker(w->block->worker);
}

static void print_of_tasks(const char *format, va_list args)
{
    char message[1536];
    vsnprintf(message, sizeof message, format, args);
    pthread_mutex_lock(&telling);
    fflush(stdout);
    fprintf(stderr, "simgpu: %s\n", message);
    explain(message);
    pthread_mutex_unlock(&telling);
}

void remark_on_tasks(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    print_of_tasks(format, args);
    va_end(args);
}

bool breach_of_tasks(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    print_of_tasks(format, args);
    va_end(args);
    if (!options.faults_report) tell_seeds();
    return !options.faults_report;
}

static void print_waiter(const struct warp *w, const struct split *s)
{
    const struct block *b = w->block;
    const struct function *fn = s->frame->fn;
    fprintf(stderr, "  warp %u, lanes 0x%08x: ", w->id, s->mask);
    const struct inst *in = &fn->code[s->pc];
    if (s->state == SPLIT_WAIT_BARRIER) {
        const struct barrier *bar = &b->barriers[s->barrier];
        in--;
        fprintf(stderr, "waits at barrier %u, where %u of %u threads have arrived\n  ", s->barrier,
                bar->arrived, bar->expected ? bar->expected : b->live_threads);
    } else if (s->state == SPLIT_WAIT_LANES) {
        u32 missing = s->wait_mask & ~s->mask, apart = 0;
        for (s32 i = 0; i < w->split_count; i++)
            if (w->splits[i].state == SPLIT_INNER) apart |= w->splits[i].arrived;
        fprintf(stderr, "waits for lanes 0x%08x to come to this instruction%s\n  ", missing,
                missing & ~apart ? "" : ", but these have gone another way and wait behind the branch");
    } else if (s->state == SPLIT_WAIT_REGISTERS) {
        fprintf(
            stderr,
            "waits for %lld registers a thread, where it has %u; the block's pool has %u for a warp's threads\n  ",
            (long long)in->imm, w->registers, b->register_pool / LANES);
    } else if (s->state == SPLIT_WAIT_GROUP) {
        fprintf(stderr,
                "waits for the other warps of its warpgroup to execute the same wgmma instructions\n  ");
    } else if (s->state == SPLIT_WAIT_CLUSTER) {
        fprintf(stderr, "waits at barrier.cluster, where %u of the cluster's %u threads have arrived\n  ",
                b->cluster->arrived, b->cluster->live_threads);
    } else {
        char what[320];
        async_describe_wait(w, s, what, sizeof what);
        fprintf(stderr, "%s\n  ", what);
    }
    print_place(fn, in);
}

static void print_waiters(const struct block *b)
{
    for (u32 k = 0; k < b->warp_count; k++) {
        const struct warp *w = &b->warps[k];
        if (!w->live) fprintf(stderr, "  warp %u: has exited\n", k);
        for (s32 i = 0; i < MAX_SPLITS; i++) {
            enum split_state state = w->splits[i].state;
            if (state >= SPLIT_WAIT_LANES && state <= SPLIT_WAIT_OTHER) print_waiter(w, &w->splits[i]);
        }
    }
}

/* Whether lanes of a warp wait for each other. */
static bool lanes_parted(const struct cluster *c)
{
    for (u32 r = 0; r < c->size; r++)
        for (u32 k = 0; k < c->block[r]->warp_count; k++)
            for (s32 i = 0; i < MAX_SPLITS; i++)
                if (c->block[r]->warps[k].splits[i].state == SPLIT_WAIT_LANES) return true;
    return false;
}

void fault_deadlock(struct cluster *c)
{
    struct block *b = c->block[0];
    struct launch *l = b->launch;
    pthread_mutex_lock(&telling);
    if (!l->error) {
        set_error(l, ERR_LAUNCH_TIMEOUT);
        fflush(stdout);
        fprintf(stderr, "simgpu: deadlock: no warp of %sblock (%u,%u,%u) can go on\n  in kernel %s\n",
                c->size > 1 ? "the cluster that begins with " : "", b->ctaid[0], b->ctaid[1], b->ctaid[2],
                readable_name(l->kernel->name));
        for (u32 r = 0; r < c->size; r++) {
            if (c->size > 1)
                fprintf(stderr, " block %u of the cluster, (%u,%u,%u)%s\n", r, c->block[r]->ctaid[0],
                        c->block[r]->ctaid[1], c->block[r]->ctaid[2],
                        c->block[r]->live_warps ? ":" : ": has exited");
            if (c->block[r]->live_warps) print_waiters(c->block[r]);
        }
        explain(lanes_parted(c) ? "divergent barrier" : "deadlock");
    }
    pthread_mutex_unlock(&telling);
    stop_worker(b->worker);
}

void fault_too_long(struct cluster *c, bool idle, u64 not_started)
{
    struct block *b = c->block[0];
    struct launch *l = b->launch;
    pthread_mutex_lock(&telling);
    if (!l->error) {
        set_error(l, ERR_LAUNCH_TIMEOUT);
        fflush(stdout);
        if (idle)
            fprintf(
                stderr,
                "simgpu: livelock: warps run on, but have long changed no memory (--max-idle 0 lets them)\n  in kernel %s\n",
                readable_name(l->kernel->name));
        else
            fprintf(stderr,
                    "simgpu: stopped after %llu warp instructions (--max-instructions)\n  in kernel %s\n",
                    (unsigned long long)options.max_instructions, readable_name(l->kernel->name));
        if (not_started)
            fprintf(
                stderr,
                "  %llu blocks have not started: the device's %u multiprocessors hold no more of them at once, and those "
                "they hold do not leave. If they wait for all of the grid, it must be no larger "
                "(cudaOccupancyMaxActiveBlocksPerMultiprocessor)\n",
                (unsigned long long)not_started, options.sms);
        for (u32 k = 0; k < b->warp_count; k++)
            for (s32 i = 0; i < MAX_SPLITS; i++)
                if (b->warps[k].splits[i].state == SPLIT_READY) {
                    const struct split *s = &b->warps[k].splits[i];
                    fprintf(stderr, "  block (%u,%u,%u), warp %u is", b->ctaid[0], b->ctaid[1], b->ctaid[2],
                            k);
                    print_place(s->frame->fn, &s->frame->fn->code[s->pc]);
                    break;
                }
    }
    pthread_mutex_unlock(&telling);
    stop_worker(b->worker);
}
