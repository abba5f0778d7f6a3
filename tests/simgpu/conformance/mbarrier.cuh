// mbarrier: random scripts of operations, each legal (one arrival too many traps), by one thread; and arrivals of many
// threads, and of copies. After every operation both parities are tested, and the state of the last arrival while PTX lets
// one ask for it. A script ends with inval, which puts the barrier's word where a load can see it.

enum { SCRIPTS = 32, SCRIPT_LENGTH = 24, MBARRIER_LIMIT = (1 << 20) - 1 };

enum mbarrier_code {
    MB_NOTHING,
    MB_ARRIVE,
    MB_ARRIVE_COUNT,
    MB_ARRIVE_RELEASE_CLUSTER,
    MB_ARRIVE_RELAXED,
    MB_ARRIVE_GENERIC,
    MB_ARRIVE_SINK,
    MB_ARRIVE_NO_COMPLETE,
    MB_DROP,
    MB_DROP_NO_COMPLETE,
    MB_ARRIVE_EXPECT,
    MB_ARRIVE_EXPECT_SINK,
    MB_DROP_EXPECT,
    MB_EXPECT,
    MB_COMPLETE,
    MB_COMPLETE_CLUSTER,
    MB_CODES
};
struct mbarrier_op {
    u32 code, value;
    u32 tests_state; // the last state may still be asked for
};
struct mbarrier_script {
    u32 count, unused;
    struct mbarrier_op op[SCRIPT_LENGTH];
};
struct mbarrier_log {
    u32 state; // that the operation returned: its high word, since ptxas leaves in the low one what it likes
    u32 done; // bits 0, 1: test_wait.parity; 2: test_wait of the last state; 3 to 5: try_wait of what is done
    u32 pending; // mbarrier.pending_count of a state that .noComplete returned
};

// Keeps account of the barrier, and draws an operation that it permits.
static struct mbarrier_op draw_mbarrier_op(s64 *pending, s64 *expected, s64 *tx, u32 *phase, u32 *state_phase)
{
    const u32 amounts[] = {16, 1, 128, 4096, 7, 65536, 48};
    for (;;) {
        const u32 r = (u32)random_u64();
        struct mbarrier_op op = {1 + r % (MB_CODES - 1), 1, 0};
        const bool transfers = op.code >= MB_ARRIVE_EXPECT, arrives = op.code < MB_EXPECT,
                   drops = op.code == MB_DROP || op.code == MB_DROP_NO_COMPLETE || op.code == MB_DROP_EXPECT;
        s64 count = arrives, bytes = 0;
        if (transfers) {
            bytes = op.value = amounts[r >> 8 & 3 ? (r >> 10) % 7 : 0];
            if ((r >> 16) % 3 == 0 && *tx) bytes = op.value = (u32)llabs(*tx); // what is missing, quite often
            if (op.code >= MB_COMPLETE) bytes = -bytes;
        } else if (op.code != MB_ARRIVE) {
            count = op.value = (r >> 20) % 4 == 0 && *pending ? (u32)*pending : 1 + (r >> 22) % 3;
        }
        if (arrives && (count > *pending || *pending == 0)) continue;
        if (llabs(*tx + bytes) > MBARRIER_LIMIT) continue;
        if (drops && *expected - count < 1) continue;
        *tx += bytes;
        *pending -= count;
        if (drops) *expected -= count;
        if (arrives && op.code != MB_ARRIVE_SINK && op.code != MB_ARRIVE_EXPECT_SINK) *state_phase = *phase;
        if (!*pending && !*tx) ++*phase, *pending = *expected;
        op.tests_state = *phase - *state_phase <= 1;
        return op;
    }
}

static void draw_mbarrier(const struct variant *v, u8 **inputs)
{
    (void)v;
    struct mbarrier_script *script = (struct mbarrier_script *)inputs[0];
    for (int s = 0; s < SCRIPTS; s++, script++) {
        const u32 counts[] = {1, 2, 3, 4, 5, 8, 1000, MBARRIER_LIMIT};
        u32 phase = 0, state_phase = ~0u - 8, length = 1 + (u32)random_u64() % SCRIPT_LENGTH;
        s64 pending = script->count = counts[s % 8], expected = pending, tx = 0;
        for (u32 i = 0; i < length; i++)
            script->op[i] = draw_mbarrier_op(&pending, &expected, &tx, &phase, &state_phase);
    }
}

#define MB_RETURNS(PTX) asm volatile(PTX : "=l"(state) : "r"(bar), "r"(op.value) : "memory")
#define MB_SILENT(PTX)  asm volatile(PTX ::"r"(bar), "r"(op.value) : "memory")

__device__ static u64 mbarrier_execute(u64 *barrier, struct mbarrier_op op)
{
    const u32 bar = (u32)__cvta_generic_to_shared(barrier);
    u64 state = 0;
    switch (op.code) {
    case MB_ARRIVE: MB_RETURNS("mbarrier.arrive.shared.b64 %0, [%1];"); break;
    case MB_ARRIVE_COUNT: MB_RETURNS("mbarrier.arrive.release.cta.shared::cta.b64 %0, [%1], %2;"); break;
    case MB_ARRIVE_RELEASE_CLUSTER:
        MB_RETURNS("mbarrier.arrive.release.cluster.shared::cta.b64 %0, [%1], %2;");
        break;
    case MB_ARRIVE_RELAXED: MB_RETURNS("mbarrier.arrive.relaxed.cta.shared::cta.b64 %0, [%1], %2;"); break;
    case MB_ARRIVE_GENERIC:
        asm volatile("mbarrier.arrive.b64 %0, [%1], %2;"
                     : "=l"(state)
                     : "l"(barrier), "r"(op.value)
                     : "memory");
        break;
    case MB_ARRIVE_SINK: MB_SILENT("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0], %1;"); break;
    case MB_ARRIVE_NO_COMPLETE:
        MB_RETURNS("mbarrier.arrive.noComplete.release.cta.shared.b64 %0, [%1], %2;");
        break;
    case MB_DROP: MB_RETURNS("mbarrier.arrive_drop.shared::cta.b64 %0, [%1], %2;"); break;
    case MB_DROP_NO_COMPLETE:
        MB_RETURNS("mbarrier.arrive_drop.noComplete.shared::cta.b64 %0, [%1], %2;");
        break;
    case MB_ARRIVE_EXPECT: MB_RETURNS("mbarrier.arrive.expect_tx.shared::cta.b64 %0, [%1], %2;"); break;
    case MB_ARRIVE_EXPECT_SINK:
        MB_SILENT("mbarrier.arrive.expect_tx.relaxed.cluster.shared::cluster.b64 _, [%0], %1;");
        break;
    case MB_DROP_EXPECT:
        MB_RETURNS("mbarrier.arrive_drop.expect_tx.release.cta.shared::cta.b64 %0, [%1], %2;");
        break;
    case MB_EXPECT: MB_SILENT("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;"); break;
    case MB_COMPLETE: MB_SILENT("mbarrier.complete_tx.shared::cta.b64 [%0], %1;"); break;
    case MB_COMPLETE_CLUSTER:
        MB_SILENT("mbarrier.complete_tx.relaxed.cluster.shared::cluster.b64 [%0], %1;");
        break;
    }
    return state;
}

// One of the waits, as 0 or 1; %1 is the barrier, %2 the parity or the state.
#define MB_WAIT(PTX, TYPE, WHAT) MB_WAIT_FOR(PTX, "", TYPE, WHAT)
#define MB_WAIT_FOR(PTX, LIMIT, TYPE, WHAT)                                                  \
    [&] {                                                                                    \
        u32 done;                                                                            \
        asm volatile("{ .reg .pred p; " PTX " p, [%1], %2" LIMIT "; selp.u32 %0, 1, 0, p; }" \
                     : "=r"(done)                                                            \
                     : "r"(bar), TYPE(WHAT)                                                  \
                     : "memory");                                                            \
        return done;                                                                         \
    }()

__global__ void mbarrier_script_kernel(struct mbarrier_log *log, u64 *words,
                                       const struct mbarrier_script *scripts)
{
    __shared__ __align__(8) u64 barrier;
    const struct mbarrier_script *const script = &scripts[blockIdx.x];
    const u32 bar = (u32)__cvta_generic_to_shared(&barrier);
    u64 last = 0;
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(script->count) : "memory");
    for (int i = 0; i < SCRIPT_LENGTH; i++) {
        const struct mbarrier_op op = script->op[i];
        struct mbarrier_log *const l = &log[blockIdx.x * SCRIPT_LENGTH + i];
        *l = {};
        if (op.code == MB_NOTHING) continue;
        const u64 state = mbarrier_execute(&barrier, op);
        if (state) last = state;
        l->state = (u32)(state >> 32);
        if (op.code == MB_ARRIVE_NO_COMPLETE || op.code == MB_DROP_NO_COMPLETE)
            asm("mbarrier.pending_count.b64 %0, %1;" : "=r"(l->pending) : "l"(last));
        l->done |= MB_WAIT("mbarrier.test_wait.parity.shared::cta.b64", "r", 0);
        l->done |= MB_WAIT("mbarrier.test_wait.parity.acquire.cluster.shared::cta.b64", "r", 1) << 1;
        if (op.tests_state) l->done |= MB_WAIT("mbarrier.test_wait.shared::cta.b64", "l", last) << 2;
        // try_wait, where it need not wait
        if (l->done & 1)
            l->done |= MB_WAIT("mbarrier.try_wait.parity.acquire.cta.shared::cta.b64", "r", 0) << 3;
        if (l->done & 2) // with a time limit
            l->done |= MB_WAIT_FOR("mbarrier.try_wait.parity.shared::cta.b64", ", 1000", "r", 1) << 4;
        if (l->done & 4)
            l->done |= MB_WAIT("mbarrier.try_wait.relaxed.cluster.shared::cta.b64", "l", last) << 5;
    }
    asm volatile("mbarrier.inval.shared::cta.b64 [%0];" ::"r"(bar) : "memory");
    words[blockIdx.x] = *(volatile u64 *)&barrier;
}

static void mbarrier_launch(u8 *out, u8 *const *in)
{
    u64 *const words = (u64 *)(out + SCRIPTS * SCRIPT_LENGTH * sizeof(struct mbarrier_log));
    mbarrier_script_kernel<<<SCRIPTS, 1>>>((struct mbarrier_log *)out, words,
                                           (struct mbarrier_script *)in[0]);
}

#define MBARRIER(NAME)                                                             \
    VARIANT(NAME, draw_mbarrier, mbarrier_launch, NULL,                            \
            SCRIPTS *SCRIPT_LENGTH * sizeof(struct mbarrier_log) + SCRIPTS * 8, 4, \
            SCRIPTS * sizeof(struct mbarrier_script))
MBARRIER(mbarrier_script_1)
MBARRIER(mbarrier_script_2)
MBARRIER(mbarrier_script_3)
MBARRIER(mbarrier_script_4)
MBARRIER(mbarrier_script_5)
MBARRIER(mbarrier_script_6)

// ---- Many threads -----------------------------------------------------------------------------------------------------

static void draw_nothing(const struct variant *v, u8 **inputs)
{
    for (int k = 0; k < MAX_INPUTS; k++)
        for (size_t i = 0; i < v->input_bytes[k]; i++) inputs[k][i] = (u8)random_u64();
}

// 128 threads meet at a barrier eight times, and hand their numbers on in between.
__global__ void mbarrier_threads_kernel(u32 *out)
{
    __shared__ __align__(8) u64 barrier;
    __shared__ u32 box[2][128];
    const u32 bar = (u32)__cvta_generic_to_shared(&barrier), t = threadIdx.x;
    u32 value = t * 7 + blockIdx.x;
    if (t == 0) asm volatile("mbarrier.init.shared::cta.b64 [%0], 128;" ::"r"(bar) : "memory");
    __syncthreads();
    for (u32 turn = 0; turn < 8; turn++) {
        u64 state;
        box[turn & 1][t] = value;
        asm volatile("mbarrier.arrive.shared::cta.b64 %0, [%1];" : "=l"(state) : "r"(bar) : "memory");
        if (turn & 1)
            while (!MB_WAIT("mbarrier.try_wait.shared::cta.b64", "l", state)) {
            }
        else
            while (!MB_WAIT("mbarrier.test_wait.parity.shared::cta.b64", "r", turn & 1)) {
            }
        value = value * 3 + box[turn & 1][(t + 33 * turn + 1) % 128];
    }
    out[blockIdx.x * 128 + t] = value;
}

// Copies of every thread, and an arrival each when they have landed; `.noinc` counts it as one of those expected.
template <bool NOINC>
__global__ void mbarrier_copies_kernel(u32 *out, const u32 *in)
{
    __shared__ __align__(8) u64 barrier;
    __shared__ __align__(16) u32 box[128 * 4];
    const u32 bar = (u32)__cvta_generic_to_shared(&barrier), t = threadIdx.x;
    if (t == 0)
        asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(NOINC ? 128 : 1) : "memory");
    __syncthreads();
    asm volatile(
        "cp.async.cg.shared.global [%0], [%1], 16;" ::"r"((u32)__cvta_generic_to_shared(box + 4 * t)),
        "l"(__cvta_generic_to_global(in + 4 * (127 - t)))
        : "memory");
    if (NOINC)
        asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(bar) : "memory");
    else
        asm volatile("cp.async.mbarrier.arrive.shared::cta.b64 [%0];" ::"r"(bar) : "memory");
    __syncthreads();
    if (!NOINC && t == 0) {
        u64 state;
        asm volatile("mbarrier.arrive.shared::cta.b64 %0, [%1];" : "=l"(state) : "r"(bar) : "memory");
    }
    while (!MB_WAIT("mbarrier.try_wait.parity.shared::cta.b64", "r", 0)) {
    }
    for (int i = 0; i < 4; i++) out[t * 4 + i] = box[(t ^ 1) * 4 + i];
}

// PLAIN(name, bytes of input 0, of the output, launch)
#define PLAIN(NAME, IN_BYTES, OUT_BYTES, ...)         \
    static void NAME##_launch(u8 *out, u8 *const *in) \
    {                                                 \
        (void)in;                                     \
        __VA_ARGS__;                                  \
    }                                                 \
    VARIANT(NAME, draw_nothing, NAME##_launch, NULL, OUT_BYTES, 4, IN_BYTES)
PLAIN(mbarrier_threads, 0, 4 * 128 * 4, mbarrier_threads_kernel<<<4, 128>>>((u32 *)out))
PLAIN(mbarrier_cp_async, 2048, 2048, mbarrier_copies_kernel<false><<<1, 128>>>((u32 *)out, (u32 *)in[0]))
PLAIN(mbarrier_cp_async_noinc, 2048, 2048, mbarrier_copies_kernel<true><<<1, 128>>>((u32 *)out, (u32 *)in[0]))
