// Random programs of loads, stores, atomic operations, copies, barriers and flags on a few bytes, held to what orders them: vector
// clocks of every thread and of every byte, which is all that the simulator's own bookkeeping abbreviates.
//
//      random_accesses shared|global|blocks FIRST COUNT        the programs FIRST to FIRST + COUNT - 1, of which none has a race
//      random_accesses shared|global|blocks FIRST COUNT racy   the same, but for the last access, which races: it is printed
//
// One block, in shared memory, where cp.async copies too, or in global, where bulk stores and reductions write too; or three blocks,
// likewise in global memory, which hand on by flags.
#include <algorithm>
#include <random>
#include <vector>

#include "../hopper/hopper.cuh"
#include "expect.h"

enum { BLOCKS = 3, THREADS = BLOCKS * 64, BYTES = 256, OPERATIONS = 70, NAMED_BARRIERS = 15, FLAGS = 32 };
enum kind {
    LOAD,
    STORE,
    VOLATILE_STORE,
    ATOMIC,
    BULK_STORE,
    BULK_ADD,
    COPY,
    COPIES_WAIT,
    SYNCWARP,
    SYNCTHREADS,
    TWO_WARPS,
    PUBLISH,
    AWAIT
};
const int NOBODY = -1, EVERYBODY = -1;

struct operation {
    int kind, size;
    int at[THREADS];             // of an access: a thread's byte, or NOBODY
    uint32_t mask[THREADS / 32]; // SYNCWARP: the lanes that meet
    int block;                   // whose: of barriers and flags
    int first_warp, second_warp; // TWO_WARPS: which
    int number;                  // of the named barrier, or of the flag
    int thread, how; // PUBLISH, AWAIT: who does it, of a block, and in which of the ways there are
};

__device__ uint4 in_global[BYTES / 16];
__device__ uint32_t flags[FLAGS];

template <typename T>
__device__ static void store(unsigned char *to, uint32_t value, bool is_volatile)
{
    if (is_volatile)
        *(volatile T *)to = (T)value;
    else
        *(T *)to = (T)value;
}

__device__ static void publish(uint32_t *flag, int how)
{
    if (how == 1) asm volatile("st.release.gpu.global.u32 [%0], 1;" ::"l"(flag) : "memory");
    if (how == 2) asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(flag) : "memory");
    if (how % 3) return;
    __threadfence();
    if (how == 0) *(volatile uint32_t *)flag = 1;
    if (how == 3) atomicExch(flag, 1);
}

__device__ static void await(uint32_t *flag, int how)
{
    uint32_t seen = 0;
    while (!seen) {
        if (how == 0) seen = *(volatile uint32_t *)flag;
        if (how == 1) asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(seen) : "l"(flag) : "memory");
        if (how == 2) asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(seen) : "l"(flag) : "memory");
        if (how == 3) seen = atomicAdd(flag, 0);
    }
    if (how != 1) __threadfence();
}

__device__ static void copy(unsigned char *to, const void *from, int size)
{
    const uint32_t at = (uint32_t)__cvta_generic_to_shared(to);
    if (size == 4) asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(at), "l"(from) : "memory");
    if (size == 8) asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(at), "l"(from) : "memory");
    if (size == 16) asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(at), "l"(from) : "memory");
}

// A bulk store, or reduction, that has been waited for.
__device__ static void bulk(unsigned char *to, const uint4 *from, bool adds)
{
    asm volatile("fence.proxy.async;" ::: "memory"); // of both shared and global memory
    if (adds)
        add_out(to, from, sizeof *from);
    else
        copy_out(to, from, sizeof *from);
    WAIT_ALL;
    asm volatile("fence.proxy.async;" ::: "memory");
}

template <bool SHARED>
__global__ void execute(const operation *operations, uint32_t *out)
{
    __shared__ uint4 in_shared[BYTES / 16], sources[THREADS];
    unsigned char *memory = (unsigned char *)(SHARED ? in_shared : in_global);
    const int t = blockIdx.x * blockDim.x + threadIdx.x, warp = threadIdx.x / 32, lane = t % 32,
              block = blockIdx.x;
    uint32_t sum = 0;
    sources[threadIdx.x] = make_uint4(t, t + 1, t + 2, t + 3);
    if (SHARED) {
        for (uint32_t k = threadIdx.x; k < BYTES / 4; k += blockDim.x) ((uint32_t *)memory)[k] = 0;
        __syncthreads();
    }
    for (int n = 0; n < OPERATIONS; n++) {
        const operation &o = operations[n];
        const uint32_t value = (t + 1) * 0x9e3779b1u + n * 0x85ebca6bu;
        const bool thread_does = o.thread == EVERYBODY || o.thread == (int)threadIdx.x;
        unsigned char *p = memory + o.at[t];
        if (o.kind == COPIES_WAIT) asm volatile("cp.async.wait_all;" ::: "memory");
        if (o.kind == SYNCWARP && o.mask[t / 32] >> lane & 1) __syncwarp(o.mask[t / 32]);
        if (o.kind == SYNCTHREADS && o.block == block) __syncthreads();
        if (o.kind == TWO_WARPS && (warp == o.first_warp || warp == o.second_warp))
            asm volatile("bar.sync %0, 64;" ::"r"(o.number) : "memory");
        if (o.kind == PUBLISH && o.block == block && thread_does) publish(&flags[o.number], o.how);
        if (o.kind == AWAIT && o.block == block && thread_does) await(&flags[o.number], o.how);
        if (o.kind > COPY || o.at[t] == NOBODY) continue;
        if (o.kind == COPY) {
            copy(p, operations, o.size);
        } else if (o.kind == ATOMIC) {
            atomicAdd((uint32_t *)p, value);
        } else if (!SHARED && (o.kind == BULK_STORE || o.kind == BULK_ADD)) {
            bulk(p, &sources[threadIdx.x], o.kind == BULK_ADD);
        } else if (o.kind == LOAD) {
            if (o.size == 1) sum += *p;
            if (o.size == 2) sum += *(uint16_t *)p;
            if (o.size == 4) sum += *(uint32_t *)p;
            if (o.size == 8) sum += ((uint2 *)p)->x + ((uint2 *)p)->y;
            if (o.size == 16) {
                const uint4 v = *(uint4 *)p;
                sum += v.x + v.y + v.z + v.w;
            }
        } else {
            if (o.size == 1) store<uint8_t>(p, value, o.kind == VOLATILE_STORE);
            if (o.size == 2) store<uint16_t>(p, value, o.kind == VOLATILE_STORE);
            if (o.size == 4) store<uint32_t>(p, value, o.kind == VOLATILE_STORE);
            if (o.size == 8) *(uint2 *)p = make_uint2(value, value + 1);
            if (o.size == 16) *(uint4 *)p = make_uint4(value, value + 1, value + 2, value + 3);
        }
    }
    out[t] = sum;
}

// ---- What orders them ------------------------------------------------------------------------------------------------------

// Two accesses to a byte by different threads, one of them a write, race unless the later thread knows of the earlier one's, or both
// are strong. A copy is a write when its thread has waited for it; until then nobody may touch the byte.
struct clocks {
    int knows[THREADS][THREADS];    // what a thread knows of each: until when
    int last[2][2][BYTES][THREADS]; // [write][strong]: when a thread has accessed a byte so
    int copies[BYTES];              // who copies there, or NOBODY
    int published[FLAGS][THREADS];  // what its thread knew
};

static bool is_copied(const clocks &c, int at, int size)
{
    return std::any_of(c.copies + at, c.copies + at + size, [](int thread) { return thread != NOBODY; });
}

static bool races(const clocks &c, int thread, int at, int size, bool write, bool strong)
{
    for (int b = at; b < at + size; b++)
        for (int wrote = !write; wrote < 2; wrote++)
            for (int was_strong = 0; was_strong < 2 - strong; was_strong++)
                for (int u = 0; u < THREADS; u++)
                    if (u != thread && c.last[wrote][was_strong][b][u] > c.knows[thread][u]) return true;
    return false;
}

static void learn(int *knows, const int *more)
{
    for (int u = 0; u < THREADS; u++) knows[u] = std::max(knows[u], more[u]);
}

static void meet(clocks &c, const std::vector<int> &threads)
{
    int all[THREADS] = {};
    for (int t : threads) learn(all, c.knows[t]);
    for (int t : threads) {
        std::copy(all, all + THREADS, c.knows[t]);
        c.knows[t][t]++;
    }
}

// A barrier or a flag has been passed, or copies been waited for.
static void pass(clocks &c, const operation &o, int per_block)
{
    std::vector<int> here, lanes[THREADS / 32];
    for (int t = 0; t < THREADS; t++) {
        const int warp = t % per_block / 32;
        const bool comes =
            o.kind == TWO_WARPS ? warp == o.first_warp || warp == o.second_warp : t / per_block == o.block;
        const bool does = o.thread == EVERYBODY || o.thread == t % per_block;
        if (comes) here.push_back(t);
        if (o.mask[t / 32] >> t % 32 & 1) lanes[t / 32].push_back(t);
        if (o.kind == PUBLISH && comes && does)
            std::copy(c.knows[t], c.knows[t] + THREADS, c.published[o.number]);
        if (o.kind == PUBLISH && comes && does) c.knows[t][t]++;
        if (o.kind == AWAIT && comes && does) learn(c.knows[t], c.published[o.number]);
    }
    if (o.kind == SYNCTHREADS || o.kind == TWO_WARPS) meet(c, here);
    for (int warp = 0; o.kind == SYNCWARP && warp < THREADS / 32; warp++) meet(c, lanes[warp]);
    for (int b = 0; o.kind == COPIES_WAIT && b < BYTES; b++) {
        const int t = c.copies[b];
        if (t != NOBODY) c.last[1][0][b][t] = c.knows[t][t];
        c.copies[b] = NOBODY;
    }
}

// ---- Programs --------------------------------------------------------------------------------------------------------------

// Draws a program: its few bytes, how its accesses lie and how many of its operations are barriers are its own.
struct drawing {
    std::mt19937 random;
    const int blocks, per_block, span, largest, barriers;
    const bool strong_too, bulk_too, copies_too, racy;
    int named_barriers = 0, flags_used = 0;
    bool done = false; // the access that races is there
    clocks &c;
    std::vector<operation> program;

    int below(int n) { return (int)(random() % n); }
    drawing(unsigned seed, bool shared, int blocks, bool racy, clocks &c)
        : random(seed), blocks(blocks), per_block(THREADS / blocks), span(16 << below(5)),
          largest(1 + below(5)), barriers(1 + below(8)), strong_too(below(3) == 0),
          bulk_too(!shared && below(2) == 0), copies_too(shared && below(2) == 0), racy(racy), c(c)
    {
    }

    void add(const operation &o)
    {
        if (o.kind > COPY) pass(c, o, per_block);
        program.push_back(o);
    }

    void barrier(operation o)
    {
        const int what = below(blocks > 1 ? 6 : copies_too ? 5 : 4);
        for (uint32_t &mask : o.mask) mask = below(2) ? 0xffffffff : random();
        if (what < 3) {
            o.kind = what < 2 ? SYNCWARP : SYNCTHREADS;
        } else if (blocks > 1) {
            if (flags_used < FLAGS) hand_over(o);
            return;
        } else if (what == 3) {
            if (named_barriers == NAMED_BARRIERS) return;
            o.kind = TWO_WARPS;
            o.number = ++named_barriers;
            o.first_warp = below(per_block / 32);
            o.second_warp = (o.first_warp + 1 + below(per_block / 32 - 1)) % (per_block / 32);
        } else {
            o.kind = COPIES_WAIT;
        }
        add(o);
    }

    // From a block to another: what all of its threads have done, or one, to all of the other's, or one.
    void hand_over(operation o)
    {
        operation all = o;
        all.kind = SYNCTHREADS;
        if (below(2)) add(all);
        o.number = flags_used++;
        for (int kind : {PUBLISH, AWAIT}) {
            o.kind = kind;
            o.how = below(4);
            o.thread = kind == AWAIT && below(3) == 0 ? EVERYBODY : below(per_block);
            add(o);
            if (kind == PUBLISH) all.block = o.block = (o.block + 1 + below(blocks - 1)) % blocks;
        }
        if (below(2)) add(all);
    }

    // Of all threads whose bytes nothing forbids them; of a racy program, at last, of one whose does.
    void access(operation o)
    {
        o.kind = copies_too && below(5) == 0   ? COPY
                 : bulk_too && below(4) == 0   ? BULK_STORE + below(2)
                 : strong_too && below(4) == 0 ? VOLATILE_STORE + below(2)
                                               : below(2);
        const bool write = o.kind != LOAD,
                   strong = o.kind == ATOMIC || o.kind == VOLATILE_STORE || o.kind == BULK_ADD;
        o.size = o.kind == ATOMIC                             ? 4
                 : o.kind == BULK_STORE || o.kind == BULK_ADD ? 16
                 : o.kind == COPY                             ? 4 << below(3)
                                                              : 1 << below(strong ? 3 : largest);
        const int pattern = below(4), first = below(span), shift = below(THREADS);
        for (int t = 0; t < THREADS; t++) {
            const int place = (t + shift) % THREADS;
            int at = first; // all at one
            if (pattern == 1) at = below(span);
            if (pattern == 2) at = first + place * o.size;
            if (pattern == 3) at = 5 * place * o.size;
            at = at % BYTES / o.size * o.size;
            if (pattern < 2 && below(4)) continue;
            if (is_copied(c, at, o.size) || races(c, t, at, o.size, write, strong)) {
                if (!racy || done || o.kind == COPY || (int)program.size() < OPERATIONS / 3) continue;
                done = true;
                printf("operation %zu, %s of %d bytes at %d by thread %d, races\n", program.size(),
                       write ? "write" : "read", o.size, at, t);
            }
            o.at[t] = at;
            for (int b = at; b < at + o.size; b++)
                if (o.kind == COPY)
                    c.copies[b] = t;
                else
                    c.last[write][strong][b][t] = c.knows[t][t];
        }
        add(o);
    }
};

static std::vector<operation> make_program(unsigned seed, bool shared, int blocks, bool racy)
{
    static clocks c;
    memset(&c, 0, sizeof c);
    std::fill(c.copies, c.copies + BYTES, NOBODY);
    for (int t = 0; t < THREADS; t++) c.knows[t][t] = 1;
    drawing d(seed, shared, blocks, racy, c);
    operation nothing = {};
    std::fill(nothing.at, nothing.at + THREADS, NOBODY);
    while (d.program.size() < OPERATIONS - 5 && !d.done) { // a hand-over has four
        operation o = nothing;
        o.block = d.below(blocks);
        if (d.below(20) < d.barriers)
            d.barrier(o);
        else
            d.access(o);
    }
    nothing.kind = COPIES_WAIT;
    d.program.resize(OPERATIONS, nothing);
    return d.program;
}

int main(int argc, char **argv)
{
    if (argc < 4) return 2;
    const bool shared = strcmp(argv[1], "shared") == 0, racy = argc > 4;
    const int blocks = strcmp(argv[1], "blocks") == 0 ? BLOCKS : 1;
    static const char zeros[BYTES + sizeof flags] = {};
    operation *operations;
    uint32_t *out;
    CUDA(cudaMalloc(&operations, OPERATIONS * sizeof *operations));
    CUDA(cudaMalloc(&out, THREADS * sizeof *out));
    for (unsigned seed = atoi(argv[2]), last = seed + atoi(argv[3]); seed < last; seed++) {
        const std::vector<operation> program = make_program(seed, shared, blocks, racy);
        CUDA(cudaMemcpy(operations, program.data(), OPERATIONS * sizeof *operations, cudaMemcpyDefault));
        CUDA(cudaMemcpyToSymbol(in_global, zeros, sizeof in_global));
        CUDA(cudaMemcpyToSymbol(flags, zeros, sizeof flags));
        if (shared)
            execute<true><<<blocks, THREADS / blocks>>>(operations, out);
        else
            execute<false><<<blocks, THREADS / blocks>>>(operations, out);
        const cudaError_t status = cudaDeviceSynchronize();
        if (status != cudaSuccess) printf("program %u: %s\n", seed, cudaGetErrorString(status));
        if (status != cudaSuccess) return 1;
    }
    return verdict();
}
