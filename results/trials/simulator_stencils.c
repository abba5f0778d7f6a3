/* Would the simulated GPU be faster if it made machine code of a run of plain instructions, by copying and patching what the compiler
 * made of their executors (stencils; Xu and Kjolstad, Copy-and-Patch Compilation, OOPSLA 2021)? The best that can come of it: the loop
 * of bench.cu's `arithmetic` as one function with all operands constants, beside the way the simulator has it (exec/alu.h), where
 * each executor reads its operands' places from the instruction and jumps to the next.
 *
 *     gcc -std=gnu11 -O3 -march=native -ffp-contract=off -mprefer-vector-width=512 -o /tmp/stencils simulator_stencils.c && /tmp/stencils
 *
 * With -DKEEP: as if results could stay in the host's registers from one instruction to the next.
 *
 * 24 runs, then six with -DKEEP, beside other work on the AMD EPYC of results/simulator.json, million warp instructions a second: simulator_stencils.csv. */
#include <stdint.h>
#include <stdio.h>
#include <time.h>

enum { LANES = 32, REGISTER = 4 * LANES, ROUNDS = 6, OPERATIONS = 4, RUNS = 400000, TURNS = 20 };
enum {
    HALF = 20,
    ONE,
    FIVE,
    INDEX,
    BITS = 30,
    SHIFTED
}; /* registers; 0 to 5 are x, INDEX to INDEX + 5 constants */

struct warp;
struct inst {
    void (*exec)(struct warp *, const struct inst *, uint32_t mask);
    uint32_t d, a, b, c; /* bytes from the first register on */
};
struct warp {
    const struct inst *plain_end;
    uint8_t *registers;
};

#define LANES_OF(type, place) ((type *)__builtin_assume_aligned(w->registers + (place), 64))
#define OPERATION(type, d, a_place, b_place, c_place, condition, ...)               \
    {                                                                               \
        type *to = LANES_OF(type, d);                                               \
        const type *pa = LANES_OF(type, a_place), *pb = LANES_OF(type, b_place),    \
                   *pc = LANES_OF(type, c_place);                                   \
        for (int i = 0; i < LANES; i++)                                             \
            if (condition) {                                                        \
                const type a = pa[i], b = pb[i], c __attribute__((unused)) = pc[i]; \
                to[i] = __VA_ARGS__;                                                \
            }                                                                       \
    }

#define EXECUTOR(name, type, ...)                                                   \
    static void name(struct warp *w, const struct inst *in, uint32_t mask)          \
    {                                                                               \
        if (mask == ~0u)                                                            \
            OPERATION(type, in->d, in->a, in->b, in->c, 1, __VA_ARGS__)             \
        else                                                                        \
            OPERATION(type, in->d, in->a, in->b, in->c, mask >> i & 1, __VA_ARGS__) \
        if (++in < w->plain_end) return in->exec(w, in, mask);                      \
        w->plain_end = 0;                                                           \
    }
EXECUTOR(multiply_add, float, __builtin_fmaf(a, b, c))
EXECUTOR(shift, uint32_t, a << (b & 31))
EXECUTOR(exclusive_or, uint32_t, a ^ b)
EXECUTOR(add, uint32_t, a + b)

/* Each result is in its register, in memory, before the next instruction, as a stencil has it; with -DKEEP only when all have been executed. */
#ifdef KEEP
#define STORED
#else
#define STORED __asm__ volatile("" ::: "memory");
#endif
#define STENCIL(type, d, a_register, b_register, c_register, ...)                                         \
    OPERATION(type, (d)*REGISTER, (a_register)*REGISTER, (b_register)*REGISTER, (c_register)*REGISTER, 1, \
              __VA_ARGS__)                                                                                \
    STORED
#define ROUND(k)                                                \
    STENCIL(float, k, k, HALF, ONE, __builtin_fmaf(a, b, c))    \
    STENCIL(uint32_t, SHIFTED, BITS, FIVE, FIVE, a << (b & 31)) \
    STENCIL(uint32_t, BITS, BITS, SHIFTED, SHIFTED, a ^ b)      \
    STENCIL(uint32_t, BITS, BITS, INDEX + k, INDEX, a + b)

static void stencils(struct warp *w)
{
    ROUND(0) ROUND(1) ROUND(2) ROUND(3) ROUND(4) ROUND(5)
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

int main(void)
{
    static _Alignas(64) uint8_t registers[(SHIFTED + 1) * REGISTER];
    struct warp warp = {0, registers};
    struct inst run[ROUNDS * OPERATIONS];
    volatile uint32_t mask = ~0u;
    double threaded = 1e9, copied = 1e9;
    for (int i = 0; i < LANES; i++) {
        ((float *)(registers + HALF * REGISTER))[i] = 0.5f;
        ((float *)(registers + ONE * REGISTER))[i] = 1.0f;
        ((uint32_t *)(registers + FIVE * REGISTER))[i] = 5;
        for (int k = 0; k < ROUNDS; k++) ((uint32_t *)(registers + (INDEX + k) * REGISTER))[i] = (uint32_t)k;
        ((uint32_t *)(registers + BITS * REGISTER))[i] = (uint32_t)i;
    }
#define AT(d, a, b, c) (d) * REGISTER, (a)*REGISTER, (b)*REGISTER, (c)*REGISTER
    for (uint32_t k = 0; k < ROUNDS; k++) {
        struct inst *in = run + OPERATIONS * k;
        in[0] = (struct inst){multiply_add, AT(k, k, HALF, ONE)};
        in[1] = (struct inst){shift, AT(SHIFTED, BITS, FIVE, FIVE)};
        in[2] = (struct inst){exclusive_or, AT(BITS, BITS, SHIFTED, SHIFTED)};
        in[3] = (struct inst){add, AT(BITS, BITS, INDEX + k, INDEX)};
    }
    for (int turn = 0; turn < TURNS; turn++) { /* by turns, the fastest of each counts */
        double began = now();
        for (int i = 0; i < RUNS; i++) {
            warp.plain_end = run + ROUNDS * OPERATIONS;
            run[0].exec(&warp, run, mask);
        }
        double middle = now();
        for (int i = 0; i < RUNS; i++) {
            stencils(&warp);
            __asm__ volatile("" ::: "memory");
        }
        double end = now();
        if (middle - began < threaded) threaded = middle - began;
        if (end - middle < copied) copied = end - middle;
    }
    const double millions = 1e-6 * RUNS * ROUNDS * OPERATIONS;
    printf("%.1f,%.1f,%.2f\n", millions / threaded, millions / copied, threaded / copied);
}
