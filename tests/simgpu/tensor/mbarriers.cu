// mbarriers: random sequences of operations by one thread against the state machine of the PTX ISA, with the words that an
// H200 returns and leaves behind; then barriers that threads of a block share.
#include "../check.h"

enum {
    ARRIVE,
    ARRIVE_COUNT,
    ARRIVE_NO_COMPLETE,
    ARRIVE_EXPECT,
    DROP,
    EXPECT,
    COMPLETE,
    TEST_PARITY,
    TEST_STATE,
    TRY_PARITY,
    PENDING,
    OPS
};
enum { STEPS = 200, SEQUENCES = 64 };
struct step {
    int op;
    u32 argument;
};

__device__ static u32 smem_addr(const void *p)
{
    return (u32)__cvta_generic_to_shared(p);
}
#define WAIT_PARITY(INSTRUCTION, P)                                        \
    asm volatile("{ .reg .pred p; mbarrier." INSTRUCTION                   \
                 ".parity.shared.b64 p, [%1], %2; selp.u64 %0, 1, 0, p; }" \
                 : "=l"(r)                                                 \
                 : "r"(bar), "r"(P)                                        \
                 : "memory")

// out[i]: what step i returned; out[STEPS]: the word that inval leaves.
__global__ void sequence_kernel(const struct step *steps, u64 *out, const u32 *counts)
{
    __shared__ __align__(8) u64 word;
    const u32 bar = smem_addr(&word);
    u64 r = 0, state = 0;
    steps += blockIdx.x * STEPS, out += blockIdx.x * (STEPS + 1);
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(counts[blockIdx.x]) : "memory");
    for (int i = 0; i < STEPS; i++) {
        const u32 x = steps[i].argument;
        r = 0;
        switch (steps[i].op) {
        case ARRIVE:
            asm volatile("mbarrier.arrive.shared.b64 %0, [%1];" : "=l"(state) : "r"(bar) : "memory");
            break;
        case ARRIVE_COUNT:
            asm volatile("mbarrier.arrive.release.cta.shared::cta.b64 %0, [%1], %2;"
                         : "=l"(state)
                         : "r"(bar), "r"(x)
                         : "memory");
            break;
        case ARRIVE_NO_COMPLETE:
            asm volatile("mbarrier.arrive.noComplete.b64 %0, [%1], %2;"
                         : "=l"(state)
                         : "l"(&word), "r"(x)
                         : "memory");
            break;
        case ARRIVE_EXPECT:
            asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 %0, [%1], %2;"
                         : "=l"(state)
                         : "r"(bar), "r"(x)
                         : "memory");
            break;
        case DROP:
            asm volatile("mbarrier.arrive_drop.shared.b64 %0, [%1], %2;"
                         : "=l"(state)
                         : "r"(bar), "r"(x)
                         : "memory");
            break;
        case EXPECT:
            asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(x)
                         : "memory");
            break;
        case COMPLETE:
            asm volatile("mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(x)
                         : "memory");
            break;
        case TEST_PARITY: WAIT_PARITY("test_wait", x); break;
        case TRY_PARITY: WAIT_PARITY("try_wait", x); break;
        case TEST_STATE:
            asm volatile("{ .reg .pred p; mbarrier.test_wait.shared.b64 p, [%1], %2; selp.u64 %0, 1, 0, p; }"
                         : "=l"(r)
                         : "r"(bar), "l"(state)
                         : "memory");
            break;
        default: {
            u32 pending;
            asm volatile("mbarrier.pending_count.b64 %0, %1;" : "=r"(pending) : "l"(state));
            r = pending;
        }
        }
        out[i] = steps[i].op <= DROP ? state : r;
    }
    asm volatile("mbarrier.inval.shared.b64 [%0];" ::"r"(bar) : "memory");
    out[STEPS] = *(volatile u64 *)&word;
}

// ---- The state machine -------------------------------------------------------------------------------------------------

struct barrier {
    u64 phase;
    s64 pending, expected, tx;
};

static u64 word_of(const struct barrier *b)
{
    return (b->phase & 1) << 63 | ((u64)-b->pending & 0xfffff) << 43 | ((u64)-b->tx & 0x1fffff) << 21 |
           ((u64)-b->expected & 0xfffff) << 1;
}

static void settle(struct barrier *b)
{
    if (b->pending || b->tx) return;
    b->phase++;
    b->pending = b->expected;
}

// One legal step: chooses it, applies it to b and returns what it must give.
static u64 take_step(struct barrier *b, struct step *s, u64 *state)
{
    for (;;) {
        const u32 r = (u32)random_u64();
        const u64 before = word_of(b) & ~0xffffffffull;
        s->op = (int)(random_u64() % OPS);
        s->argument = r % 3 + 1;
        switch (s->op) {
        case ARRIVE: s->argument = 1; // fall through
        case ARRIVE_COUNT:
        case ARRIVE_NO_COMPLETE:
        case DROP:
            if (s->argument > b->pending) continue;
            if (s->op == ARRIVE_NO_COMPLETE && s->argument == b->pending) continue;
            if (s->op == DROP && (random_u64() % 8 || s->argument >= b->expected)) continue;
            if (s->op == DROP) b->expected -= s->argument;
            b->pending -= s->argument;
            settle(b);
            return *state = before | s->argument;
        case ARRIVE_EXPECT:
            s->argument = r % 4096;
            if (b->pending < 2 || b->tx + s->argument == 0) continue;
            b->tx += s->argument;
            b->pending--;
            settle(b);
            return *state = before | s->argument;
        case EXPECT:
        case COMPLETE:
            s->argument = b->tx && r % 2 ? (u32)llabs(b->tx) : r % 100000;
            if (llabs(b->tx) + s->argument > 1 << 19) continue;
            b->tx += s->op == EXPECT ? (s64)s->argument : -(s64)s->argument;
            settle(b);
            return 0;
        case TRY_PARITY: s->argument = (u32)(~b->phase & 1); return 1; // the other parity would block
        case TEST_PARITY: s->argument = r & 1; return (b->phase & 1) != s->argument;
        case TEST_STATE: return (b->phase & 1) != *state >> 63;
        default: return -(*state >> 43) & 0xfffff;
        }
    }
}

// ---- Many threads ------------------------------------------------------------------------------------------------------

// Every thread arrives and waits, with its own state or by parity; what all wrote before must be visible.
__global__ void rounds_kernel(u32 *out, int rounds)
{
    __shared__ __align__(8) u64 word;
    __shared__ u32 value[256];
    const u32 bar = smem_addr(&word), t = threadIdx.x;
    if (t == 0) asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(bar), "r"(blockDim.x) : "memory");
    __syncthreads();
    value[t] = t;
    for (int k = 0; k < rounds; k++) {
        u32 sum = 0;
        for (int half = 0; half < 2; half++) {
            u64 state;
            asm volatile("mbarrier.arrive.shared.b64 %0, [%1];" : "=l"(state) : "r"(bar) : "memory");
            if (t % 3 == 0)
                asm volatile(
                    "{ .reg .pred p; again: mbarrier.test_wait.shared.b64 p, [%0], %1; @!p bra again; }" ::
                        "r"(bar),
                    "l"(state)
                    : "memory");
            else if (t % 3 == 1)
                asm volatile(
                    "{ .reg .pred p; again: mbarrier.try_wait.shared.b64 p, [%0], %1, 1000; @!p bra again; }" ::
                        "r"(bar),
                    "l"(state)
                    : "memory");
            else
                asm volatile(
                    "{ .reg .pred p; again: mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 p, [%0], %1; @!p bra again; }" ::
                        "r"(bar),
                    "r"(half)
                    : "memory");
            if (half)
                value[t] = sum;
            else
                sum = value[(t + 1) % blockDim.x] + value[(t + 7) % blockDim.x];
        }
    }
    out[t] = value[t];
}

// Lane 0 waits for what the other lanes of its warp do after the branch.
__global__ void lanes_kernel(u32 *out)
{
    __shared__ __align__(8) u64 word;
    const u32 bar = smem_addr(&word), t = threadIdx.x;
    if (t == 0) asm volatile("mbarrier.init.shared.b64 [%0], 31;" ::"r"(bar) : "memory");
    __syncwarp();
    if (t == 0)
        asm volatile(
            "{ .reg .pred p; again: mbarrier.try_wait.parity.shared.b64 p, [%0], 0; @!p bra again; }" ::"r"(
                bar)
            : "memory");
    out[t] = t;
    if (t != 0) asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(bar) : "memory");
}

int main(void)
{
    static struct step steps[SEQUENCES * STEPS];
    static u64 want[SEQUENCES * (STEPS + 1)], got[SEQUENCES * (STEPS + 1)];
    static u32 counts[SEQUENCES], values[2][256], out[256];
    for (int q = 0; q < SEQUENCES; q++) {
        counts[q] = q % 8 ? 1 + (u32)(random_u64() % 40) : (1 << 20) - 1;
        struct barrier b = {0, counts[q], counts[q], 0};
        u64 state = 0;
        for (int i = 0; i < STEPS; i++)
            want[q * (STEPS + 1) + i] = take_step(&b, &steps[q * STEPS + i], &state);
        want[q * (STEPS + 1) + STEPS] = word_of(&b);
    }
    u8 *device;
    CUDA_CHECK(cudaMalloc((void **)&device, sizeof steps + sizeof got + sizeof counts));
    CUDA_CHECK(cudaMemcpy(device, steps, sizeof steps, cudaMemcpyHostToDevice));
    CUDA_CHECK(cudaMemcpy(device + sizeof steps + sizeof got, counts, sizeof counts, cudaMemcpyHostToDevice));
    check_begin("sequences");
    sequence_kernel<<<SEQUENCES, 1>>>((const struct step *)device, (u64 *)(device + sizeof steps),
                                      (const u32 *)(device + sizeof steps + sizeof got));
    if (!launched("sequences")) return 1;
    CUDA_CHECK(cudaMemcpy(got, device + sizeof steps, sizeof got, cudaMemcpyDeviceToHost));
    for (int i = 0; i < SEQUENCES * (STEPS + 1); i++) check(i, got[i], want[i]);

    check_begin("rounds");
    for (u32 t = 0; t < 256; t++) values[0][t] = t;
    for (int k = 0; k < 20; k++)
        for (u32 t = 0; t < 256; t++)
            values[(k + 1) % 2][t] = values[k % 2][(t + 1) % 256] + values[k % 2][(t + 7) % 256];
    rounds_kernel<<<2, 256>>>((u32 *)device, 20);
    if (!launched("rounds")) return 1;
    CUDA_CHECK(cudaMemcpy(out, device, sizeof out, cudaMemcpyDeviceToHost));
    for (u32 t = 0; t < 256; t++) check(t, out[t], values[0][t]);

    check_begin("lanes of one warp");
    lanes_kernel<<<1, 32>>>((u32 *)device);
    if (!launched("lanes")) return 1;
    CUDA_CHECK(cudaMemcpy(out, device, 128, cudaMemcpyDeviceToHost));
    for (u32 t = 0; t < 32; t++) check(t, out[t], t);
    return check_end("mbarriers");
}
