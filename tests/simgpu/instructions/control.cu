// Control flow: predication, nested divergence, loops left early, switch, goto, calls with structures, recursion, function
// pointers, device printf, and the special registers. What a thread computes is a function compiled for the host as well;
// the host's compiler is the reference.
#include "../check.h"

#define BOTH __host__ __device__

// ---- Branches and loops -------------------------------------------------------------------------------------------

BOTH static u32 nested(u32 x)
{
    u32 r = 0;
    if (x & 1) {
        if (x & 2) {
            r = x & 4 ? x * 3 : x + 17;
            if (x & 8) r ^= 0x55;
        } else {
            r = x & 16 ? x << 3 : ~x;
        }
        r += 1000;
    } else if (x % 3 == 0) {
        for (u32 i = 0; i < x % 7; i++) r += i * x;
    } else {
        r = x / 3;
        if ((x & 4) || x % 5 == 2) r = r * 7 + (x & 32 && x & 64 ? 1 : 2);
    }
    return r;
}

// Loops with break, continue and a return from the middle, two deep.
BOTH static u32 loops(u32 x)
{
    u32 r = 0;
    for (u32 i = 0; i < 40; i++) {
        if (i % 5 == x % 5) continue;
        u32 j = x;
        while (true) {
            j = j * 5 + 1;
            if (j % 11 == 3) break;
            if (j % 97 == 7) return r + j;
            if (j % 13 == i % 13) {
                r ^= j;
                continue;
            }
            if (++r % 64 == 0) break;
        }
        if (r % 101 == 50) break;
        do {
            r += j & 3;
            j >>= 2;
        } while (j > x);
    }
    return r;
}

BOTH static u32 collatz(u32 x)
{
    u32 steps = 0;
    for (u64 n = x + 1; n != 1 && steps < 500; steps++) n = n & 1 ? 3 * n + 1 : n / 2;
    return steps;
}

// A dense switch becomes a jump table (brx.idx); with cases that fall through.
BOTH static u32 switches(u32 x)
{
    u32 r = x;
    for (u32 step = 0; step < 6; step++) {
        switch (r % 13) {
        case 0: r = r * 3 + 1; break;
        case 1: r ^= 0x1234;
        case 2: r += step; break;
        case 3: r = r / 2 + 7; break;
        case 4: return r ^ 0xdead;
        case 5: r = ~r;
        case 6: r -= 100;
        case 7: r <<= 1; break;
        case 8: r = r % 1000 * 17; break;
        case 9: r = (r >> 7) | (r << 25); break;
        case 10: continue;
        case 11: r *= r; break;
        default: r++;
        }
        r += 5;
    }
    return r;
}

// An irreducible loop: entered in two places.
BOTH static u32 irreducible(u32 x)
{
    u32 r = x, count = 0;
    if (x % 2) goto middle;
top:
    r = r * 3 + 1;
    if (++count > 20) goto out;
middle:
    r ^= r >> 3;
    if (r % 7 == 0) goto out;
    if (++count < 30) goto top;
out:
    return r + count;
}

BOTH static u32 logic(u32 x)
{
    const bool a = x & 1, b = x & 2, c = x & 4, d = x & 8;
    return (u32)(a && b || c && !d) | (u32)((a || c) && (b || d)) << 1 | (u32)(a != (b && c)) << 2 |
           (u32)(a   ? b ? c : d
                 : c ? b
                     : a)
               << 3;
}

// ---- Calls --------------------------------------------------------------------------------------------------------

struct pair {
    u32 first;
    u64 second;
};
struct wide {
    u8 tag;
    double values[3];
    u16 tail[5];
};

BOTH static __noinline__ pair make_pair(u32 a, u64 b)
{
    pair p = {a ^ (u32)b, b + a};
    return p;
}
BOTH static __noinline__ wide widen(wide w, pair p, u8 tag)
{
    w.values[p.first % 3] += (double)(p.second % 1000);
    w.tail[p.first % 5] = (u16)(w.tail[p.first % 5] + tag);
    w.tag = tag;
    return w;
}
BOTH static __noinline__ u32 consume(const wide *w)
{
    u32 r = w->tag;
    for (int i = 0; i < 3; i++) r = r * 31 + (u32)(s32)w->values[i];
    for (int i = 0; i < 5; i++) r = r * 31 + w->tail[i];
    return r;
}
BOTH static u32 structures(u32 x)
{
    wide w = {1, {1.5, -2.5, 3.5}, {1, 2, 3, 4, 5}};
    for (u32 i = 0; i <= x % 4; i++) w = widen(w, make_pair(x + i, (u64)x << 20 | i), (u8)(x + i));
    return consume(&w);
}

BOTH static __noinline__ u32 fibonacci(u32 n)
{
    return n < 2 ? n : fibonacci(n - 1) + fibonacci(n - 2);
}
BOTH static __noinline__ u32 ackermann(u32 m, u32 n)
{
    if (m == 0) return n + 1;
    if (n == 0) return ackermann(m - 1, 1);
    return ackermann(m - 1, ackermann(m, n - 1));
}
// Mutual recursion with a local array in each frame.
BOTH static __noinline__ u32 odd_step(u32 n, const u32 *up);
BOTH static __noinline__ u32 even_step(u32 n, const u32 *up)
{
    u32 own[4] = {n, n * 2, up[n % 4], up[(n + 1) % 4]};
    return n == 0 ? up[3] : odd_step(n - 1, own) + own[n % 4];
}
BOTH static __noinline__ u32 odd_step(u32 n, const u32 *up)
{
    u32 own[4] = {up[2], n ^ 5, n * n, up[n % 4]};
    return n == 0 ? up[1] : even_step(n - 1, own) * 3 + own[(n + 2) % 4];
}
BOTH static u32 recursion(u32 x)
{
    const u32 start[4] = {x, x + 1, x + 2, x + 3};
    return fibonacci(x % 14) + ackermann(x % 3, x % 4) * 1000 + even_step(x % 23, start) * 7;
}

typedef u32 (*operation)(u32, u32);
BOTH static u32 op_add_(u32 a, u32 b)
{
    return a + b;
}
BOTH static u32 op_mul(u32 a, u32 b)
{
    return a * b + 1;
}
BOTH static u32 op_loop(u32 a, u32 b)
{
    for (u32 i = 0; i < b % 9; i++) a = a * 5 + i;
    return a;
}
BOTH static u32 op_recurse(u32 a, u32 b)
{
    return fibonacci(a % 9) + b;
}
__device__ operation device_operations[4] = {op_add_, op_mul, op_loop, op_recurse};
BOTH static u32 pointers(u32 x)
{
#ifdef __CUDA_ARCH__
    const operation *operations = device_operations;
#else
    const operation operations[4] = {op_add_, op_mul, op_loop, op_recurse};
#endif
    u32 r = x;
    for (u32 i = 0; i < 5; i++) r = operations[(r >> 3) % 4](r, i + x);
    return r;
}

// Virtual functions: a table of addresses that the object points to.
struct shape {
    BOTH virtual u32 area(u32 x) const = 0;
    BOTH virtual u32 edges() const { return 1; }
};
struct square : shape {
    u32 side;
    BOTH square(u32 s) : side(s) {}
    BOTH u32 area(u32 x) const override { return side * side + x; }
    BOTH u32 edges() const override { return 4; }
};
struct disc : shape {
    u32 radius;
    BOTH disc(u32 r) : radius(r) {}
    BOTH u32 area(u32 x) const override { return 3 * radius * radius - x; }
};
BOTH static __noinline__ u32 describe(const shape &s, u32 x)
{
    return s.area(x) * 10 + s.edges();
}
BOTH static u32 virtuals(u32 x)
{
    const square a(x % 17);
    const disc b(x % 29);
    const shape *const shapes[2] = {&a, &b};
    u32 r = 0;
    for (u32 i = 0; i < 4; i++) r = r * 7 + describe(*shapes[(x >> i) % 2], i);
    return r;
}

// ---- Running them -------------------------------------------------------------------------------------------------

enum { COUNT = 4096 };
#define FUNCTIONS(MAKE) \
    MAKE(nested)        \
    MAKE(loops)         \
    MAKE(collatz)       \
    MAKE(switches)      \
    MAKE(irreducible)   \
    MAKE(logic)         \
    MAKE(structures)    \
    MAKE(recursion)     \
    MAKE(pointers)      \
    MAKE(virtuals)
#define KERNEL(NAME)                                               \
    __global__ void NAME##_kernel(u32 *d, const u32 *a, int count) \
    {                                                              \
        const int i = blockIdx.x * blockDim.x + threadIdx.x;       \
        if (i >= count) return;                                    \
        d[i] = NAME(a[i]);                                         \
    }
FUNCTIONS(KERNEL)

static void check_functions(void)
{
    static u32 a[COUNT], got[COUNT];
    u32 *a_gmem, *d;
    CUDA_CHECK(cudaMalloc((void **)&a_gmem, sizeof a));
    CUDA_CHECK(cudaMalloc((void **)&d, sizeof got));
    CUDA_CHECK(cudaDeviceSetLimit(cudaLimitStackSize, 16384)); // for the recursions
    for (u32 i = 0; i < COUNT; i++) a[i] = i < COUNT / 2 ? i : (u32)random_u64() >> random_u64() % 24;
    CUDA_CHECK(cudaMemcpy(a_gmem, a, sizeof a, cudaMemcpyHostToDevice));
#define RUN(NAME)                                                                                         \
    check_begin(#NAME);                                                                                   \
    NAME##_kernel<<<(COUNT + 95) / 96, 96>>>(d, a_gmem,                                                   \
                                             COUNT - 5); /* blocks of three warps, the last one ragged */ \
    if (launched(#NAME)) {                                                                                \
        CUDA_CHECK(cudaMemcpy(got, d, sizeof got, cudaMemcpyDeviceToHost));                               \
        for (u32 i = 0; i < COUNT - 5; i++) check(a[i], got[i], NAME(a[i]));                              \
    }
    FUNCTIONS(RUN)
}

// ---- Predicated instructions, as written --------------------------------------------------------------------------

OP(predicated, u32, u32, u32, u32, INT32, INT32, INT32, BITS,
   "{ .reg .pred p, q; setp.lt.s32 p, %1, %2; setp.eq.u32 q, %3, 0; mov.u32 %0, 1; @p mov.u32 %0, 2; "
   "@!p add.u32 %0, %0, %3; @q mul.lo.u32 %0, %0, 7; }",
   ((s32)a < (s32)b ? 2 : 1 + c) * (c == 0 ? 7 : 1))
OP(predicated_branch, u32, u32, u32, u32, INT32, INT32, INT32, BITS,
   "{ .reg .pred p; setp.gt.u32 p, %1, %2; mov.u32 %0, %3; @p bra skip; add.u32 %0, %0, 5; bra done; "
   "skip: xor.b32 %0, %0, 255; done: add.u32 %0, %0, 1; }",
   (a > b ? c ^ 255 : c + 5) + 1)
OP(jump_table, u32, u32, u32, u32, INT32, INT32, INT32, BITS,
   "{ .reg .b32 i; and.b32 i, %1, 3; table: .branchtargets L0, L1, L2, L3; brx.idx i, table; "
   "L0: mov.u32 %0, 10; bra end; L1: add.u32 %0, %2, 1; bra end; L2: sub.u32 %0, %3, %2; bra end; L3: mov.u32 %0, %3; "
   "end: }",
   (a & 3) == 0   ? 10
   : (a & 3) == 1 ? b + 1
   : (a & 3) == 2 ? c - b
                  : c)
OP(loop_in_asm, u32, u32, u32, u32, INT32, INT32, INT32, BITS,
   "{ .reg .pred p; .reg .b32 i; mov.u32 %0, 0; mov.u32 i, 0; "
   "again: add.u32 %0, %0, %1; add.u32 i, i, 1; and.b32 %0, %0, 65535; setp.lt.u32 p, i, 9; @p bra again; }",
   (9 * (u64)a) & 65535)

// ---- Special registers --------------------------------------------------------------------------------------------

enum { SPECIALS = 32 };
__global__ void special_kernel(u32 *d)
{
    u32 r[SPECIALS] = {};
#define READ(K, NAME) asm volatile("mov.u32 %0, %%" NAME ";" : "=r"(r[K]));
    READ(0, "tid.x")
    READ(1, "tid.y")
    READ(2, "tid.z")
    READ(3, "ntid.x")
    READ(4, "ntid.y")
    READ(5, "ntid.z")
    READ(6, "ctaid.x")
    READ(7, "ctaid.y")
    READ(8, "ctaid.z")
    READ(9, "nctaid.x")
    READ(10, "nctaid.y")
    READ(11, "nctaid.z")
    READ(12, "laneid")
    READ(13, "lanemask_eq")
    READ(14, "lanemask_lt")
    READ(15, "lanemask_le")
    READ(16, "lanemask_gt")
    READ(17, "lanemask_ge")
    READ(18, "dynamic_smem_size")
    READ(19, "cluster_nctarank")
    READ(20, "cluster_ctarank")
    u32 sm, sms, warp, warps;
    READ(28, "smid")
    READ(29, "nsmid")
    READ(30, "warpid")
    READ(31, "nwarpid")
    sm = r[28], sms = r[29], warp = r[30], warps = r[31];
    r[21] = sm < sms && warp < warps;
    u64 start, end, time0, time1;
    u32 clock0, clock1;
    asm volatile("mov.u64 %0, %%clock64;" : "=l"(start)::"memory");
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time0)::"memory");
    asm volatile("mov.u32 %0, %%clock;" : "=r"(clock0)::"memory");
    asm volatile("mov.u32 %0, %%clock;" : "=r"(clock1)::"memory");
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time1)::"memory");
    asm volatile("mov.u64 %0, %%clock64;" : "=l"(end)::"memory");
    r[22] = end > start && time1 >= time0 && (s32)(clock1 - clock0) > 0;
    r[23] = warpSize;
    const u32 thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
    const u32 block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
    const u32 threads = blockDim.x * blockDim.y * blockDim.z;
    for (int i = 0; i < 24; i++) d[(block * threads + thread) * SPECIALS + i] = r[i];
}
static void check_special(void)
{
    const dim3 grid(3, 2, 2), block(7, 5, 3);
    enum { THREADS = 7 * 5 * 3, TOTAL = THREADS * 12 };
    static u32 got[TOTAL][SPECIALS];
    u32 *d;
    CUDA_CHECK(cudaMalloc((void **)&d, sizeof got));
    special_kernel<<<grid, block, 256>>>(d);
    check_begin("special registers");
    if (!launched(check_name)) return;
    CUDA_CHECK(cudaMemcpy(got, d, sizeof got, cudaMemcpyDeviceToHost));
    for (u32 i = 0; i < TOTAL; i++) {
        const u32 t = i % THREADS, b = i / THREADS, lane = t % 32, bit = 1u << lane;
        const u32 want[24] = {
            t % 7, t / 7 % 5, t / 35, 7,    5,   3,       b % 3,           b / 3 % 2,          b / 6,
            3,     2,         2,      lane, bit, bit - 1, bit | (bit - 1), ~(bit | (bit - 1)), ~(bit - 1),
            256,   1,         0,      1,    1,   32};
        for (u32 k = 0; k < 24; k++) check((u64)i << 8 | k, got[i][k], want[k]);
    }
}

// ---- printf -------------------------------------------------------------------------------------------------------

// Prints what the test of that name looks for, and returns printf's count of arguments.
__global__ void printf_kernel(int *d)
{
    if (threadIdx.x != 33) return;
    d[0] = printf("integers %d %5u %#x %lld %c%%\n", -7, 42u, 255, -5000000000ll, 'k');
    d[1] = printf("floats %.3f %e %g\n", 1.5f, -0.00025, 1e100);
    d[2] = printf("text %s|%8s|%-8s|\n", "one", "two", "three");
    d[3] = printf("nothing\n");
    printf("thread %d of block %d\n", (int)threadIdx.x, (int)blockIdx.x);
}
static void check_printf(void)
{
    int *d, got[4];
    CUDA_CHECK(cudaMalloc((void **)&d, sizeof got));
    fflush(stdout);
    printf_kernel<<<1, 64>>>(d);
    check_begin("printf");
    if (!launched(check_name)) return;
    CUDA_CHECK(cudaMemcpy(got, d, sizeof got, cudaMemcpyDeviceToHost));
    const int want[4] = {5, 3, 3, 0};
    for (u64 i = 0; i < 4; i++) check(i, (u64)got[i], (u64)want[i]);
}

int main(int argc, char **argv)
{
    run_ops(argc, argv);
    if (argc < 2) {
        check_functions();
        check_special();
        check_printf();
    }
    return check_end("control");
}
