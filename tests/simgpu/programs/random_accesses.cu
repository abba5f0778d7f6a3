// Random programs of loads, stores, atomic operations and barriers on a few bytes, held to what orders them: vector clocks of every
// thread and of every byte, which is all that the simulator's own bookkeeping abbreviates.
//
//      random_accesses shared|global FIRST COUNT      the programs FIRST to FIRST + COUNT - 1, of which none has a race
//      random_accesses shared|global FIRST COUNT racy the same, but for the last access, which races: it is printed
#include <algorithm>
#include <random>
#include <vector>

#include "expect.h"

enum { THREADS = 96, WARPS = THREADS / 32, BYTES = 256, OPERATIONS = 60, NAMED_BARRIERS = 15 };
enum kind { LOAD, STORE, VOLATILE_STORE, ATOMIC, SYNCWARP, SYNCTHREADS, TWO_WARPS };

struct operation {
    int kind, size;
    int at[THREADS];      // of an access, a thread's byte, or -1
    uint32_t mask[WARPS]; // SYNCWARP: the lanes that meet
    int barrier, alone;   // TWO_WARPS: a named barrier, and the warp that does not come
};

__device__ uint4 in_global[BYTES / 16];

template <typename T>
__device__ static void store(unsigned char *to, uint32_t value, bool is_volatile)
{
    if (is_volatile)
        *(volatile T *)to = (T)value;
    else
        *(T *)to = (T)value;
}

template <bool SHARED>
__global__ void execute(const operation *operations, uint32_t *out)
{
    __shared__ uint4 in_shared[BYTES / 16];
    unsigned char *memory = (unsigned char *)(SHARED ? in_shared : in_global);
    const uint32_t t = threadIdx.x, warp = t / 32, lane = t % 32;
    uint32_t sum = 0;
    for (uint32_t k = t; k < BYTES / 4; k += THREADS) ((uint32_t *)memory)[k] = 0;
    __syncthreads();
    for (int n = 0; n < OPERATIONS; n++) {
        const operation &o = operations[n];
        const uint32_t value = (t + 1) * 0x9e3779b1u + n * 0x85ebca6bu;
        unsigned char *p = memory + o.at[t];
        if (o.kind == SYNCTHREADS) __syncthreads();
        if (o.kind == SYNCWARP && o.mask[warp] >> lane & 1) __syncwarp(o.mask[warp]);
        if (o.kind == TWO_WARPS && warp != o.alone)
            asm volatile("bar.sync %0, 64;" ::"r"(o.barrier) : "memory");
        if (o.kind > ATOMIC || o.at[t] < 0) continue;
        if (o.kind == ATOMIC) {
            atomicAdd((uint32_t *)p, value);
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

// Two accesses to a byte by different threads, one of them a write, race unless one thread knows of the other's, or both are strong.
struct clocks {
    int knows[THREADS][THREADS];    // what a thread knows of each: until when
    int last[2][2][BYTES][THREADS]; // [write][strong]: when a thread has accessed a byte so
};

static bool races(const clocks &c, int thread, int at, int size, bool write, bool strong)
{
    for (int b = at; b < at + size; b++)
        for (int u = 0; u < THREADS; u++)
            for (int wrote = !write; wrote < 2; wrote++)
                for (int was_strong = 0; was_strong < 2 - strong; was_strong++)
                    if (u != thread && c.last[wrote][was_strong][b][u] > c.knows[thread][u]) return true;
    return false;
}

static void meet(clocks &c, const std::vector<int> &threads)
{
    int all[THREADS] = {};
    for (int t : threads)
        for (int u = 0; u < THREADS; u++) all[u] = std::max(all[u], c.knows[t][u]);
    for (int t : threads) {
        std::copy(all, all + THREADS, c.knows[t]);
        c.knows[t][t]++;
    }
}

// The threads that meet at a barrier, in groups that meet by themselves.
static std::vector<std::vector<int>> groups_of(const operation &o)
{
    std::vector<std::vector<int>> groups(o.kind == SYNCWARP ? WARPS : 1);
    for (int t = 0; t < THREADS; t++) {
        const bool comes =
            o.kind == SYNCWARP ? o.mask[t / 32] >> t % 32 & 1 : o.kind == SYNCTHREADS || t / 32 != o.alone;
        if (comes) groups[o.kind == SYNCWARP ? t / 32 : 0].push_back(t);
    }
    return groups;
}

// The few bytes of a program, how its accesses lie and how many of its operations are barriers are its own.
static std::vector<operation> make_program(unsigned seed, bool racy)
{
    std::mt19937 random(seed);
    std::vector<operation> program;
    static clocks c;
    memset(&c, 0, sizeof c);
    for (int t = 0; t < THREADS; t++) c.knows[t][t] = 1;
    const int span = 16 << random() % 5, largest = 1 + random() % 5, barriers = 1 + random() % 6;
    const bool strong_too = random() % 3 == 0;
    int barrier = 0;
    bool done = false;
    while (program.size() < OPERATIONS && !done) {
        operation o = {};
        if ((int)(random() % 20) < barriers) {
            o.kind = SYNCWARP + random() % 3;
            o.alone = random() % WARPS;
            if (o.kind == TWO_WARPS && barrier == NAMED_BARRIERS) continue;
            if (o.kind == TWO_WARPS) o.barrier = ++barrier;
            for (uint32_t &mask : o.mask) mask = random() % 2 ? 0xffffffff : random();
            for (const std::vector<int> &group : groups_of(o)) meet(c, group);
            program.push_back(o);
            continue;
        }
        o.kind = strong_too && random() % 4 == 0 ? VOLATILE_STORE + random() % 2 : random() % 2;
        o.size = o.kind == ATOMIC ? 4 : 1 << random() % (o.kind == VOLATILE_STORE ? 3 : largest);
        const int pattern = random() % 4, first = random() % span, shift = random() % THREADS;
        for (int t = 0; t < THREADS; t++) {
            const int place = (t + shift) % THREADS;
            const bool strong = o.kind == ATOMIC || o.kind == VOLATILE_STORE;
            int at = first; // all at one
            if (pattern == 1) at = random() % span;
            if (pattern == 2) at = first + place * o.size;
            if (pattern == 3) at = 5 * place * o.size;
            at = at % BYTES / o.size * o.size;
            o.at[t] = pattern < 2 && random() % 4 ? -1 : at;
            if (o.at[t] < 0) continue;
            if (races(c, t, at, o.size, o.kind != LOAD, strong)) {
                if (!racy || done || program.size() < OPERATIONS / 3) {
                    o.at[t] = -1;
                    continue;
                }
                done = true;
                printf("operation %zu, %s of %d bytes at %d by thread %d, races\n", program.size(),
                       o.kind == LOAD ? "read" : "write", o.size, at, t);
            }
            for (int b = at; b < at + o.size; b++) c.last[o.kind != LOAD][strong][b][t] = c.knows[t][t];
        }
        program.push_back(o);
    }
    operation nothing = {};
    std::fill(nothing.at, nothing.at + THREADS, -1);
    program.resize(OPERATIONS, nothing);
    return program;
}

int main(int argc, char **argv)
{
    if (argc < 4) return 2;
    const bool shared = strcmp(argv[1], "shared") == 0, racy = argc > 4;
    operation *operations;
    uint32_t *out;
    CUDA(cudaMalloc(&operations, OPERATIONS * sizeof *operations));
    CUDA(cudaMalloc(&out, THREADS * sizeof *out));
    for (unsigned seed = atoi(argv[2]), last = seed + atoi(argv[3]); seed < last; seed++) {
        const std::vector<operation> program = make_program(seed, racy);
        CUDA(cudaMemcpy(operations, program.data(), OPERATIONS * sizeof *operations, cudaMemcpyDefault));
        if (shared)
            execute<true><<<1, THREADS>>>(operations, out);
        else
            execute<false><<<1, THREADS>>>(operations, out);
        const cudaError_t status = cudaDeviceSynchronize();
        if (status != cudaSuccess) printf("program %u: %s\n", seed, cudaGetErrorString(status));
        if (status != cudaSuccess) return 1;
    }
    return verdict();
}
