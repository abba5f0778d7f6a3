/* scheduler.c: runs a grid. Each worker (a host thread) takes blocks in order of their index and lets the warps of its
 * blocks take turns, so that a block which spins on a lower one always gets what it waits for. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "../exec/async.h"
#include "../exec/warp.h"
#include "../report/report.h"
#include "heap.h"

enum {
    QUANTUM = 20000, /* instructions before the next warp has its turn, unless the warp waits earlier */
    COOPERATIVE_QUANTUM = 500, /* the same where blocks spin until all of the grid have come to a barrier */
    PATIENCE = 64, /* turns after which a block that is not done shares its worker with a further block */
};

struct grid {
    struct launch *launch;
    u64 blocks;
    _Atomic u64 next;     /* first block that nobody has taken */
    _Atomic u32 resident; /* blocks on all workers */
    u32 resident_limit;
    _Atomic u64 executed; /* when options.max_instructions asks for it */
};

/* ---- Blocks --------------------------------------------------------------------------------------------------------------- */

/* Starts the block with this index in a used or new block structure. Shared memory starts as NaN in every format, so that
 * what nobody wrote does not pass for a result. */
static void block_start(struct block *b, struct worker *worker, u64 index)
{
    struct launch *l = worker->launch;
    struct warp *warps = b->warps;
    u8 *shared = b->shared;
    struct block_async *async = b->async;
    u32 threads = l->block[0] * l->block[1] * l->block[2];
    *b = (struct block){.launch = l,
                        .worker = worker,
                        .index = (u32)index,
                        .threads = threads,
                        .live_threads = threads,
                        .warp_count = (threads + LANES - 1) / LANES,
                        .shared_bytes = l->shared_bytes,
                        .warps = warps,
                        .shared = shared,
                        .async = async};
    b->live_warps = b->warp_count;
    b->ctaid[0] = (u32)(index % l->grid[0]);
    b->ctaid[1] = (u32)(index / l->grid[0] % l->grid[1]);
    b->ctaid[2] = (u32)(index / l->grid[0] / l->grid[1]);
    if (!warps) {
        b->warps = calloc(b->warp_count, sizeof *b->warps);
        b->shared = aligned_alloc(1024, (l->shared_bytes + 2047) / 1024 * 1024);
        if (!b->warps || !b->shared) abort();
    }
    memset(b->shared, 0xff, l->shared_bytes);
    async_start_block(b);
    for (u32 k = 0; k < b->warp_count; k++) warp_start(&b->warps[k], b, k);
}

static void block_free(struct block *b)
{
    for (u32 k = 0; k < b->warp_count; k++) warp_free_frames(&b->warps[k]);
    async_free_block(b);
    free(b->warps);
    free(b->shared);
    free(b);
}

/* One turn for every warp. With a seed, in an order that changes every time. */
static void block_turn(struct block *b, u64 *random)
{
    u64 before = 0, after = 0;
    for (u32 k = 0; k < b->warp_count; k++) before += b->warps[k].executed;
    u32 first = 0, step = 1, quantum = b->launch->cooperative ? COOPERATIVE_QUANTUM : QUANTUM;
    if (options.seed) {
        *random = *random * 6364136223846793005u + 1442695040888963407u;
        first = (u32)(*random >> 33) % b->warp_count;
        step = (*random >> 32 & 1) ? 1 : b->warp_count - 1;
    }
    for (u32 n = 0; n < b->warp_count; n++) {
        struct warp *w = &b->warps[(first + n * step) % b->warp_count];
        if (w->live) warp_run(w, (s32)(options.seed ? 1 + (*random >> 40) % quantum : quantum));
    }
    for (u32 k = 0; k < b->warp_count; k++) after += b->warps[k].executed;
    b->worker->executed += after - before;
    if (after != before || !b->live_warps) return;
    bool released = false;
    for (u32 k = 0; k < b->warp_count; k++) released |= warp_release(&b->warps[k]);
    if (!released) fault_deadlock(b);
}

/* ---- Workers -------------------------------------------------------------------------------------------------------------- */

struct work {
    struct worker worker;
    struct grid *grid;
    struct block **spare; /* finished blocks, kept for the next */
    u32 spare_count, spare_capacity;
    u64 random;
};

static bool take_block(struct work *work)
{
    struct grid *g = work->grid;
    struct worker *w = &work->worker;
    u32 resident = atomic_fetch_add(&g->resident, 1);
    u64 index = resident < g->resident_limit || !w->block_count ? atomic_fetch_add(&g->next, 1) : g->blocks;
    if (index >= g->blocks) {
        atomic_fetch_sub(&g->resident, 1);
        return false;
    }
    struct block *b = work->spare_count ? work->spare[--work->spare_count] : calloc(1, sizeof *b);
    if (w->block_count == w->block_capacity) {
        w->block_capacity = w->block_capacity ? 2 * w->block_capacity : 16;
        w->blocks = realloc(w->blocks, w->block_capacity * sizeof *w->blocks);
        work->spare = realloc(work->spare, w->block_capacity * sizeof *work->spare);
    }
    if (!b || !w->blocks || !work->spare) abort();
    w->blocks[w->block_count++] = b;
    block_start(b, w, index);
    return true;
}

static void check_length(struct work *work)
{
    if (!options.max_instructions) return;
    u64 total = atomic_fetch_add(&work->grid->executed, work->worker.executed) + work->worker.executed;
    work->worker.executed = 0;
    if (total > options.max_instructions) fault_too_long(work->worker.blocks[0]);
}

static void run_blocks(struct work *work)
{
    struct worker *w = &work->worker;
    u32 turns = 0;
    while (w->launch->cooperative && take_block(work)) {
    }
    while (!w->launch->error && (w->block_count || take_block(work))) {
        bool done = false;
        for (u32 k = 0; k < w->block_count; k++) {
            struct block *b = w->blocks[k];
            block_turn(b, &work->random);
            check_length(work);
            if (b->live_warps) continue;
            work->spare[work->spare_count++] = b;
            w->blocks[k--] = w->blocks[--w->block_count];
            atomic_fetch_sub(&work->grid->resident, 1);
            done = true;
        }
        turns = done ? 0 : turns + 1;
        /* Blocks that are not done may be waiting for blocks that have not started. */
        if (turns >= PATIENCE) {
            take_block(work);
            turns = 0;
        }
    }
}

static void *worker_main(void *argument)
{
    struct work *work = argument;
    if (!setjmp(work->worker.on_fault)) run_blocks(work);
    for (u32 k = 0; k < work->worker.block_count; k++) block_free(work->worker.blocks[k]);
    for (u32 k = 0; k < work->spare_count; k++) block_free(work->spare[k]);
    free(work->worker.blocks);
    free(work->spare);
    return NULL;
}

/* ---- A launch --------------------------------------------------------------------------------------------------------------- */

/* The address of dynamic shared memory, after the kernel's own variables. */
static void place_dynamic_shared(const struct launch *l)
{
    const struct module *m = l->kernel->module;
    u32 align = l->kernel->shared_align > 16 ? l->kernel->shared_align : 16;
    u64 base = SHARED_BASE + (l->kernel->shared_bytes + align - 1) / align * align;
    for (u32 i = 0; i < m->dynamic_ref_count; i++)
        for (u32 lane = 0; lane < LANES; lane++) {
            u64 address = base + (u64)m->dynamic_refs[i].addend;
            u32 bytes = m->dynamic_refs[i].is64 ? 8 : 4;
            memcpy(m->consts + m->dynamic_refs[i].offset + lane * bytes, &address, bytes);
        }
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
    struct grid grid = {.launch = l,
                        .blocks = (u64)l->grid[0] * l->grid[1] * l->grid[2],
                        .resident_limit = resident_blocks(l)};
    u64 cores = (u64)sysconf(_SC_NPROCESSORS_ONLN);
    u64 count = options.threads ? options.threads : cores;
    if (count > MAX_WORKERS) count = MAX_WORKERS;
    if (count > grid.blocks) count = grid.blocks;
    double start = processor_ms();
    place_dynamic_shared(l);
    if (options.profile || options.json) counters_prepare(l->kernel->module, (u32)count);
    struct work work[MAX_WORKERS] = {0};
    pthread_t thread[MAX_WORKERS];
    for (u32 k = 0; k < count; k++)
        work[k] =
            (struct work){.worker = {.index = k, .launch = l}, .grid = &grid, .random = options.seed + k};
    u32 started = 1;
    while (started < count && pthread_create(&thread[started], NULL, worker_main, &work[started]) == 0)
        started++;
    worker_main(&work[0]);
    u64 executed = work[0].worker.executed + grid.executed;
    for (u32 k = 1; k < started; k++) {
        pthread_join(thread[k], NULL);
        executed += work[k].worker.executed;
    }
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
