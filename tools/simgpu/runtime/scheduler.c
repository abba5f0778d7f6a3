/* scheduler.c: runs a grid. Each worker (a host thread) takes clusters, most often of one block, in order of their index (with
 * a seed, nearly) and lets the warps of its blocks take turns, so that a block which spins on a lower one always gets what it
 * waits for. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "../exec/async.h"
#include "../exec/global.h"
#include "../exec/order.h"
#include "../exec/proxy.h"
#include "../exec/race.h"
#include "../exec/undefined.h"
#include "../exec/warp.h"
#include "../report/report.h"
#include "heap.h"

enum {
    QUANTUM = 20000, /* instructions before the next warp has its turn, unless the warp waits earlier */
    COOPERATIVE_QUANTUM = 500, /* the same where blocks spin until all of the grid have come to a barrier */
    PATIENCE = 64, /* turns after which a block that is not done shares its worker with a further block */
    /* When it is asked whether anything gets on: */
    POLL_COST = 256,  /* instructions that a turn lost by polling counts for */
    ONLY_POLLED = 256 /* times that a round counts for in which all that ran has only polled */
};

struct work;

struct grid {
    struct launch *launch;
    struct work *work; /* of each worker */
    u32 workers;
    u64 clusters;
    _Atomic u64 next;     /* first cluster that nobody has taken */
    _Atomic u32 resident; /* clusters on all workers */
    u32 resident_limit;
    u64 random;           /* drawn from the seed for this launch: the order in which clusters start */
    _Atomic u64 executed; /* when options.max_instructions asks for it */
};

/* ---- Blocks --------------------------------------------------------------------------------------------------------------- */

static u32 cluster_size(const struct launch *l)
{
    return l->cluster[0] * l->cluster[1] * l->cluster[2];
}

/* Starts the block with rank `rank` of cluster `index` in a used or new block structure. Shared memory starts as NaN in every
 * format, so that what nobody wrote does not pass for a result. */
static void block_start(struct block *b, struct worker *worker, struct cluster *c, u64 index, u32 rank)
{
    struct launch *l = worker->launch;
    struct warp *warps = b->warps;
    u8 *shared = b->shared;
    u32 *stamps = b->stamps;
    struct block_order *order = b->order;
    struct block_async *async = b->async;
    struct races *races = b->races;
    u32 threads = l->block[0] * l->block[1] * l->block[2];
    *b = (struct block){.launch = l,
                        .worker = worker,
                        .threads = threads,
                        .live_threads = threads,
                        .warp_count = (threads + LANES - 1) / LANES,
                        .shared_base = l->shared_base,
                        .shared_bytes = l->shared_bytes,
                        .cluster = c,
                        .cluster_rank = rank,
                        .warps = warps,
                        .shared = shared,
                        .stamps = stamps,
                        .clock = 1,
                        .order = order,
                        .races = races,
                        .async = async};
    b->live_warps = b->warp_count;
    for (u32 d = 0; d < 3; d++) { /* clusters tile the grid, x first; so do blocks their cluster */
        u32 clusters = l->grid[d] / l->cluster[d];
        b->ctaid[d] = (u32)(index % clusters) * l->cluster[d] + rank % l->cluster[d];
        index /= clusters;
        rank /= l->cluster[d];
    }
    b->index = (b->ctaid[2] * l->grid[1] + b->ctaid[1]) * l->grid[0] + b->ctaid[0];
    if (!warps) {
        b->warps = calloc(b->warp_count, sizeof *b->warps);
        b->shared = aligned_alloc(1024, (l->shared_bytes + 2047) / 1024 * 1024);
        if (!b->warps || !b->shared) abort();
    }
    undefined_fill(b->shared, l->shared_bytes);
    async_start_block(b);
    proxy_start_block(b);
    order_start_block(b);
    race_start_block(b);
    for (u32 k = 0; k < b->warp_count; k++) warp_start(&b->warps[k], b, k);
}

static void cluster_start(struct cluster *c, struct worker *worker, u64 index)
{
    if (c->block[0]) race_end_cluster(c);
    c->size = cluster_size(worker->launch);
    c->live_threads = c->arrived = 0;
    c->phase = 0;
    c->number = (u32)index;
    global_start_cluster(c);
    for (u32 r = 0; r < c->size; r++) {
        if (!c->block[r] && !(c->block[r] = calloc(1, sizeof **c->block))) abort();
        block_start(c->block[r], worker, c, index, r);
        c->live_threads += c->block[r]->live_threads;
    }
}

static void cluster_free(struct cluster *c)
{
    race_end_cluster(c);
    for (u32 r = 0; r < MAX_CLUSTER && c->block[r]; r++) {
        struct block *b = c->block[r];
        for (u32 k = 0; k < b->warp_count; k++) warp_free_frames(&b->warps[k]);
        async_free_block(b);
        proxy_free_block(b);
        order_free_block(b);
        race_free_block(b);
        free(b->unwritten); /* after a fault */
        free(b->warps);
        free(b->shared);
        free(b);
    }
    global_free_cluster(c);
    free(c);
}

/* One turn for every warp, but those that wait for memory which is as it was; these too after a round in which nothing
 * happened, and now and then. With a seed, in an order that changes every time. False when none could do anything. */
static bool block_turn(struct block *b, u64 *random)
{
    struct worker *worker = b->worker;
    u64 executed = 0;
    bool waits = false;
    u32 first = 0, step = 1, quantum = b->launch->cooperative ? COOPERATIVE_QUANTUM : QUANTUM;
    if (options.seed) {
        *random = *random * 6364136223846793005u + 1442695040888963407u;
        first = (u32)(*random >> 33) % b->warp_count;
        step = (*random >> 32 & 1) ? 1 : b->warp_count - 1;
    }
    for (u32 n = 0, k = first; n < b->warp_count;
         n++, k = k + step < b->warp_count ? k + step : k + step - b->warp_count) {
        struct warp *w = &b->warps[k];
        u64 start = w->executed, length;
        if (!w->live) continue;
        if (!worker->quiet && warp_waits(w) && ++w->lost_turns % PATIENCE) {
            waits = true;
            continue;
        }
        warp_run(w, (s32)(options.seed ? 1 + (*random >> 40) % quantum : quantum));
        executed += w->executed - start;
        length = w->executed - start + (w->waits ? POLL_COST : 0);
        if (length > worker->longest) worker->longest = length;
    }
    worker->executed += executed;
    return waits || executed;
}

/* One turn for every block. When all that is left waits, some lanes may still be let go alone; else it is a deadlock. */
static void cluster_turn(struct cluster *c, u64 *random)
{
    bool progress = false;
    for (u32 r = 0; r < c->size; r++) progress |= c->block[r]->live_warps && block_turn(c->block[r], random);
    if (progress || !c->live_threads) return;
    for (u32 r = 0; r < c->size; r++)
        for (u32 k = 0; k < c->block[r]->warp_count; k++) progress |= warp_release(&c->block[r]->warps[k]);
    if (!progress) fault_deadlock(c);
}

/* ---- Workers -------------------------------------------------------------------------------------------------------------- */

struct work {
    struct worker worker;
    struct grid *grid;
    struct cluster **spare; /* finished ones, kept for the next */
    u32 spare_count, spare_capacity;
    u64 random;
    _Atomic u64 moves; /* rounds in which something happened */
    bool suspicious;   /* all workers have long been idle; and how far each was when that was first seen: */
    u64 idle_then[MAX_WORKERS], moves_then[MAX_WORKERS];
};

/* Which cluster starts as number `n`: in order or, with a seed, in any order among as many as the device holds at once, then
 * among the next as many. No GPU promises that blocks with lower numbers start first; but one that waits for them all the
 * same has them beside it in the end. */
static u64 cluster_number(const struct grid *g, u64 n)
{
    u64 window = g->resident_limit ? g->resident_limit : 1, first = n / window * window, x = n - first,
        count = g->clusters - first < window ? g->clusters - first : window, mask = 1;
    if (!options.seed) return n;
    while (mask < count - 1) mask = 2 * mask + 1;
    do { /* both steps only reorder the numbers up to mask, so each one below count comes up once */
        x = (x * (g->random | 1) + (g->random >> 32)) & mask;
        x ^= x >> 1;
    } while (x >= count);
    return first + x;
}

static bool take_cluster(struct work *work)
{
    struct grid *g = work->grid;
    struct worker *w = &work->worker;
    u32 resident = atomic_fetch_add(&g->resident, 1);
    u64 index =
        resident < g->resident_limit || !w->cluster_count ? atomic_fetch_add(&g->next, 1) : g->clusters;
    if (index >= g->clusters) {
        atomic_fetch_sub(&g->resident, 1);
        return false;
    }
    struct cluster *c = work->spare_count ? work->spare[--work->spare_count] : calloc(1, sizeof *c);
    if (w->cluster_count == w->cluster_capacity) {
        w->cluster_capacity = w->cluster_capacity ? 2 * w->cluster_capacity : 16;
        w->clusters = realloc(w->clusters, w->cluster_capacity * sizeof *w->clusters);
        work->spare = realloc(work->spare, w->cluster_capacity * sizeof *work->spare);
    }
    if (!c || !w->clusters || !work->spare) abort();
    w->clusters[w->cluster_count++] = c;
    cluster_start(c, w, cluster_number(g, index));
    return true;
}

static void check_length(struct work *work)
{
    if (!options.max_instructions) return;
    u64 total = atomic_fetch_add(&work->grid->executed, work->worker.executed) + work->worker.executed;
    work->worker.executed = 0;
    if (total > options.max_instructions) fault_too_long(work->worker.clusters[0], false, 0);
}

/* Whether nothing gets on any more. A worker that the host has not let run for long is idle as of its last round, though what
 * it waits for may be there by now. So each must be idle for as long as CERTAIN says from when all were first seen to be, if it
 * has not ended by then: many rounds, of which one may be of very few instructions. */
static bool all_idle(struct work *work)
{
    const u64 CERTAIN = (u64)4 * ONLY_POLLED * QUANTUM;
    struct grid *g = work->grid;
    bool were = work->suspicious, now = true;
    work->suspicious = true;
    for (u32 k = 0; k < g->workers; k++) {
        struct work *other = &g->work[k];
        u64 moves = other->moves, idle = other->worker.idle;
        work->suspicious &= idle > options.max_idle && (!were || moves == work->moves_then[k]);
        now &= idle == UINT64_MAX || idle >= work->idle_then[k] + CERTAIN;
        if (were) continue;
        work->idle_then[k] = idle;
        work->moves_then[k] = moves;
    }
    return were && now && work->suspicious;
}

/* A round in which every warp of the worker had its turn is over. A warp that spins on memory is no deadlock as long as others
 * change memory, or run on and may come to it. So rounds without a change are counted, in instructions of a warp; and many
 * times when all that ran has only polled: then hardly anything can change any more. Blocks that have not started may bring
 * what the others wait for. */
static void check_idle(struct work *work, bool progress)
{
    const struct grid *g = work->grid;
    struct worker *w = &work->worker;
    progress |= w->changed;
    w->idle = progress ? 0 : w->idle + w->longest * (w->busy ? 1 : ONLY_POLLED);
    w->quiet = !progress && !w->busy;
    w->changed = w->busy = false;
    w->longest = 0;
    work->moves += progress;
    u64 started = g->next < g->clusters ? g->next : g->clusters;
    if (!options.max_idle || !w->cluster_count || (started < g->clusters && g->resident < g->resident_limit))
        return;
    if (all_idle(work)) fault_too_long(w->clusters[0], true, (g->clusters - started) * w->clusters[0]->size);
}

static void run_clusters(struct work *work)
{
    struct worker *w = &work->worker;
    u32 turns = 0;
    while (w->launch->cooperative && take_cluster(work)) {
    }
    while (!w->launch->error && (w->cluster_count || take_cluster(work))) {
        bool done = false;
        for (u32 k = 0; k < w->cluster_count; k++) {
            struct cluster *c = w->clusters[k];
            cluster_turn(c, &work->random);
            check_length(work);
            if (c->live_threads) continue;
            work->spare[work->spare_count++] = c;
            w->clusters[k--] = w->clusters[--w->cluster_count];
            atomic_fetch_sub(&work->grid->resident, 1);
            done = true;
        }
        check_idle(work, done);
        turns = done ? 0 : turns + 1;
        /* Blocks that are not done may be waiting for blocks that have not started; if they do nothing else, for many. */
        if (w->quiet || turns >= PATIENCE) {
            for (u32 more = w->quiet ? w->cluster_count : 1; more && take_cluster(work); more--)
                w->changed = true;
            turns = 0;
        }
    }
}

static void do_work(struct work *work)
{
    work->worker.idle = 0;
    if (!setjmp(work->worker.on_fault)) run_clusters(work);
    work->moves++;
    work->worker.idle = UINT64_MAX;
    for (u32 k = 0; k < work->worker.cluster_count; k++) cluster_free(work->worker.clusters[k]);
    for (u32 k = 0; k < work->spare_count; k++) cluster_free(work->spare[k]);
    global_free_worker(&work->worker);
    free(work->worker.clusters);
    free(work->spare);
}

/* ---- Helpers: host threads that wait for work from one launch to the next -------------------------------------------------- */

static struct {
    pthread_mutex_t lock;
    pthread_cond_t start, done;
    struct work *work; /* of the launch under way, if `next` is below `count`: what no helper has taken yet */
    u32 next, count, busy, threads;
    pid_t process;
} helpers = {
    .lock = PTHREAD_MUTEX_INITIALIZER, .start = PTHREAD_COND_INITIALIZER, .done = PTHREAD_COND_INITIALIZER};

static void *help(void *unused)
{
    (void)unused;
    pthread_mutex_lock(&helpers.lock);
    for (;;) {
        while (helpers.next >= helpers.count) pthread_cond_wait(&helpers.start, &helpers.lock);
        struct work *work = &helpers.work[helpers.next++];
        helpers.busy++;
        pthread_mutex_unlock(&helpers.lock);
        do_work(work);
        pthread_mutex_lock(&helpers.lock);
        if (--helpers.busy == 0) pthread_cond_signal(&helpers.done);
    }
    return NULL;
}

/* Does work[0] here and lets helpers do the rest; one that comes too late to find any left is not waited for. */
static void share(struct work *work, u32 count)
{
    pthread_mutex_lock(&helpers.lock);
    if (helpers.process != getpid()) helpers.threads = 0; /* a fork has none of its parent's threads */
    helpers.process = getpid();
    for (pthread_t t; helpers.threads + 1 < count && !pthread_create(&t, NULL, help, NULL); helpers.threads++)
        pthread_detach(t);
    helpers.work = work;
    helpers.next = 1;
    helpers.count = count;
    if (count > 1) pthread_cond_broadcast(&helpers.start);
    pthread_mutex_unlock(&helpers.lock);
    do_work(&work[0]);
    pthread_mutex_lock(&helpers.lock);
    helpers.count = 0;
    while (helpers.busy) pthread_cond_wait(&helpers.done, &helpers.lock);
    pthread_mutex_unlock(&helpers.lock);
}

/* ---- A launch --------------------------------------------------------------------------------------------------------------- */

/* Addresses of shared variables: dynamic memory begins after the kernel's own, and each contains the block's rank. */
static void place_shared_of(const struct launch *l, struct function *fn)
{
    u32 align = l->kernel->shared_align > 16 ? l->kernel->shared_align : 16;
    u64 dynamic = l->shared_base + (l->kernel->shared_bytes + align - 1) / align * align + l->displaced;
    fn->rank_consts[0] = fn->consts;
    for (u32 rank = 0; rank < cluster_size(l); rank++) {
        u8 **consts = &fn->rank_consts[rank];
        if (!*consts) {
            if (!(*consts = malloc(fn->consts_bytes + 1))) abort();
            *consts += fn->consts_bytes;
            if (fn->consts_bytes)
                memcpy(*consts - fn->consts_bytes, fn->consts - fn->consts_bytes, fn->consts_bytes);
        }
        for (u32 i = 0; i < fn->shared_ref_count; i++)
            for (u32 lane = 0; lane < LANES; lane++) {
                const struct shared_ref *r = &fn->shared_refs[i];
                u64 base = r->number == SHARED_OWN       ? l->shared_base
                           : r->number == SHARED_DYNAMIC ? dynamic
                                                         : l->shared_base + l->kernel->shared_at[r->number];
                u64 address = base + (u64)r->address + ((u64)rank << 24);
                u32 bytes = r->is64 ? 8 : 4;
                memcpy(*consts + SPECIAL_BYTES + r->at + lane * bytes, &address, bytes);
            }
    }
}

static void place_shared(const struct launch *l)
{
    const struct module *m = l->kernel->module;
    for (u32 i = 0; i < m->function_count; i++)
        if (m->functions[i] == l->kernel || !m->functions[i]->is_kernel) place_shared_of(l, m->functions[i]);
}

/* With a seed, shared memory begins at an address that is no better aligned than the kernel declares, the dynamic one where there
 * is any: who needs more and does not say so has it by luck, as long as no other variables come before. */
static void displace(struct launch *l)
{
    enum { WORD = 4, VECTOR = 16, PERIOD = 1024 }; /* of the widest access, and of the widest swizzle */
    u32 align = l->kernel->shared_align > 16 ? l->kernel->shared_align : 16, fixed = l->kernel->static_align;
    l->shared_base = SHARED_BASE;
    if (!options.seed) return;
    if (!l->dynamic_bytes && fixed < VECTOR) l->shared_base += fixed < WORD ? WORD : fixed;
    if (!l->dynamic_bytes || align >= PERIOD) return;
    l->displaced = (l->shared_bytes - l->dynamic_bytes) / align % 2 ? 0 : align;
    l->shared_bytes += l->displaced;
}

static u32 resident_blocks(const struct launch *l)
{
    u32 threads = l->block[0] * l->block[1] * l->block[2], warps = (threads + LANES - 1) / LANES;
    u32 by_warps = 64 / warps, by_shared = (228 << 10) / (l->shared_bytes + 1024),
        each = by_warps < by_shared ? by_warps : by_shared;
    return options.sms * (each < 1 ? 1 : each > 32 ? 32 : each);
}

/* Processor time of all threads: what else runs on this computer does not count. */
static double processor_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

int launch_run(struct launch *l)
{
    static pthread_mutex_t one_at_a_time =
        PTHREAD_MUTEX_INITIALIZER; /* grids run one after the other, as in one stream */
    if (l->cooperative && (l->workspace = heap_alloc(8, ALLOCATION_VARIABLE, "(grid workspace)")) == 0)
        return ERR_OUT_OF_MEMORY;
    pthread_mutex_lock(&one_at_a_time);
    displace(l);
    struct grid grid = {.launch = l,
                        .clusters = (u64)l->grid[0] * l->grid[1] * l->grid[2] / cluster_size(l),
                        .resident_limit = resident_blocks(l) / cluster_size(l),
                        .random = (options.seed + l->grid_id) * 6364136223846793005u};
    u64 cores = (u64)sysconf(_SC_NPROCESSORS_ONLN);
    u64 count = options.threads ? options.threads : cores;
    if (count > MAX_WORKERS) count = MAX_WORKERS;
    if (count > grid.clusters) count = grid.clusters;
    double start = processor_ms();
    place_shared(l);
    if (options.profile || options.json) counters_prepare(l, (u32)count);
    struct work work[MAX_WORKERS] = {0};
    for (u32 k = 0; k < count; k++)
        work[k] = (struct work){.worker = {.index = k, .launch = l, .idle = UINT64_MAX},
                                .grid = &grid,
                                .random = options.seed + k};
    grid.work = work;
    grid.workers = (u32)count;
    global_start_launch(l);
    share(work, (u32)count);
    global_end_launch();
    u64 executed = grid.executed;
    for (u32 k = 0; k < count; k++) executed += work[k].worker.executed;
    if (options.profile || options.json) counters_launched(l, executed);
    if (options.verbose) {
        double ms = processor_ms() - start;
        fprintf(
            stderr,
            "simgpu: %s: %llu warp instructions, %.1f ms on this computer's processors: %.0f million a second\n",
            readable_name(l->kernel->name), (unsigned long long)executed, ms, (double)executed / ms * 1e-3);
    }
    if (l->workspace) heap_free(l->workspace);
    pthread_mutex_unlock(&one_at_a_time);
    return l->error;
}
