// cp.async, its groups and waits, and mbarrier: phases, tokens, parity, counts, drops, transaction bytes, and the two together
// as a ring of full and empty stages.
#include "../check.h"

__device__ static u32 shared_address(const void *p)
{
    return (u32)__cvta_generic_to_shared(p);
}

// ---- cp.async ----------------------------------------------------------------------------------------------------------

__device__ static void cp_async_16(u32 to, const void *from)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(__cvta_generic_to_global(from))
                 : "memory");
}
__device__ static void cp_async_commit()
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int LEFT>
__device__ static void cp_async_wait()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
}

// A pipeline of three stages over `steps` tiles of a row of 128 uint4; the sums of neighbours' elements show that
// what other threads have copied is there as well.
enum { STAGES = 3, THREADS = 128, STEPS = 17 };
__global__ void pipeline_kernel(u32 *d, const uint4 *source, int steps)
{
    __shared__ uint4 ring[STAGES][THREADS];
    const u32 t = threadIdx.x;
    source += blockIdx.x * STEPS * THREADS;
    for (int step = 0; step < STAGES - 1; step++) {
        if (step < steps) cp_async_16(shared_address(&ring[step][t]), source + step * THREADS + t);
        cp_async_commit();
    }
    u32 sum = 0;
    for (int step = 0; step < steps; step++) {
        cp_async_wait<STAGES - 2>();
        __syncthreads();
        const uint4 x = ring[step % STAGES][(t * 7 + 1) % THREADS];
        sum = sum * 31 + x.x + 3 * x.y + 5 * x.z + 7 * x.w;
        const int next = step + STAGES - 1;
        if (next < steps) cp_async_16(shared_address(&ring[next % STAGES][t]), source + next * THREADS + t);
        cp_async_commit();
    }
    d[blockIdx.x * THREADS + t] = sum;
}

// Groups of several copies, waited for out of step: wait_group N leaves the N youngest, and wait_all leaves none.
__global__ void groups_kernel(u32 *d, const u32 *source)
{
    __shared__ u32 tile[6][32];
    const u32 t = threadIdx.x;
    for (int k = 0; k < 6; k++) {
        asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(shared_address(&tile[k][t])),
                     "l"(source + k * 32 + t)
                     : "memory");
        if (k % 2) cp_async_commit(); // three groups of two
    }
    cp_async_wait<2>();
    d[t] = tile[0][t] + tile[1][t];
    cp_async_wait<1>();
    d[32 + t] = tile[2][t] + tile[3][t];
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(shared_address(&tile[0][t])),
                 "l"(source + 192 + t)
                 : "memory"); // in no group yet
    asm volatile("cp.async.wait_all;" ::: "memory");
    d[64 + t] = tile[4][t] + tile[5][t] + tile[0][t];
}

static void check_copies(void)
{
    enum { BLOCKS = 5 };
    static u32 source[BLOCKS * STEPS * THREADS][4], got[BLOCKS * THREADS];
    u32 *d;
    uint4 *source_gmem;
    for (auto &x : source)
        for (auto &word : x) word = (u32)random_u64();
    CUDA_CHECK(cudaMalloc((void **)&source_gmem, sizeof source));
    CUDA_CHECK(cudaMalloc((void **)&d, sizeof got));
    CUDA_CHECK(cudaMemcpy(source_gmem, source, sizeof source, cudaMemcpyHostToDevice));
    check_begin("a pipeline of cp.async groups");
    const int step_counts[] = {0, 1, 2, 3, STEPS};
    for (int steps : step_counts) {
        pipeline_kernel<<<BLOCKS, THREADS>>>(d, source_gmem, steps);
        if (!launched(check_name)) return;
        CUDA_CHECK(cudaMemcpy(got, d, sizeof got, cudaMemcpyDeviceToHost));
        for (u32 i = 0; i < BLOCKS * THREADS; i++) {
            u32 sum = 0;
            for (int step = 0; step < steps; step++) {
                const u32 *x =
                    source[(i / THREADS * STEPS + (u32)step) * THREADS + (i % THREADS * 7 + 1) % THREADS];
                sum = sum * 31 + x[0] + 3 * x[1] + 5 * x[2] + 7 * x[3];
            }
            check((u64)steps << 32 | i, got[i], sum);
        }
    }
    check_begin("cp.async.wait_group and wait_all");
    groups_kernel<<<1, 32>>>(d, (u32 *)source_gmem);
    if (!launched(check_name)) return;
    CUDA_CHECK(cudaMemcpy(got, d, sizeof got, cudaMemcpyDeviceToHost));
    const u32 *x = &source[0][0];
    for (u32 i = 0; i < 32; i++) {
        check(i, got[i], x[i] + x[32 + i]);
        check(32 + i, got[32 + i], x[64 + i] + x[96 + i]);
        check(64 + i, got[64 + i], x[128 + i] + x[160 + i] + x[192 + i]);
    }
}

// ---- mbarrier ------------------------------------------------------------------------------------------------------------

__device__ static void barrier_init(u32 barrier, u32 count)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}
__device__ static u64 barrier_arrive(u32 barrier)
{
    u64 token;
    asm volatile("mbarrier.arrive.shared::cta.b64 %0, [%1];" : "=l"(token) : "r"(barrier) : "memory");
    return token;
}
__device__ static bool barrier_test(u32 barrier, u64 token)
{
    u32 done;
    asm volatile("{ .reg .pred p; mbarrier.test_wait.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                 : "=r"(done)
                 : "r"(barrier), "l"(token)
                 : "memory");
    return done;
}
__device__ static bool barrier_test_parity(u32 barrier, u32 parity)
{
    u32 done;
    asm volatile(
        "{ .reg .pred p; mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
        : "=r"(done)
        : "r"(barrier), "r"(parity)
        : "memory");
    return done;
}
__device__ static void barrier_wait_parity(u32 barrier, u32 parity)
{
    u32 done;
    do {
        asm volatile(
            "{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
            : "=r"(done)
            : "r"(barrier), "r"(parity)
            : "memory");
    } while (!done);
}

// One thread walks a barrier through its states; bit i of the result is the i-th observation.
__global__ void states_kernel(u32 *d)
{
    __shared__ u64 memory;
    const u32 barrier = shared_address(&memory);
    u32 bits = 0, count = 0, pending;
    auto observe = [&](bool what) { bits |= (u32)what << count++; };
    barrier_init(barrier, 3);
    observe(barrier_test_parity(barrier, 0)); // 0: the first phase is not complete
    observe(barrier_test_parity(barrier, 1)); // 1: the one before counts as complete
    u64 token = barrier_arrive(barrier);
    asm volatile("mbarrier.pending_count.b64 %0, %1;" : "=r"(pending) : "l"(token));
    d[1] = pending;                        // before the arrival
    observe(barrier_test(barrier, token)); // 2: two are missing
    asm volatile("mbarrier.arrive.noComplete.shared::cta.b64 %0, [%1], 1;"
                 : "=l"(token)
                 : "r"(barrier)
                 : "memory");
    barrier_arrive(barrier);
    observe(barrier_test(barrier, token));    // 3: complete
    observe(barrier_test_parity(barrier, 0)); // 4: phase 0 is complete
    observe(barrier_test_parity(barrier, 1)); // 5: phase 1 is not
    token = barrier_arrive(barrier);
    asm volatile("mbarrier.arrive_drop.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
    observe(barrier_test(barrier, token)); // 6: one is missing
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0], 1;" ::"r"(barrier) : "memory");
    observe(barrier_test_parity(barrier, 1)); // 7: complete
    barrier_arrive(barrier);
    token = barrier_arrive(barrier);          // from here on two are expected
    observe(barrier_test(barrier, token));    // 8
    observe(barrier_test_parity(barrier, 0)); // 9
    // Bytes: the phase waits for them as well, whichever comes first.
    asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], 64;" ::"r"(barrier) : "memory");
    barrier_arrive(barrier);
    barrier_arrive(barrier);
    observe(barrier_test_parity(barrier, 1)); // 10: 64 bytes are missing
    asm volatile("mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%0], 48;" ::"r"(barrier) : "memory");
    observe(barrier_test_parity(barrier, 1)); // 11: 16 bytes are
    asm volatile("mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%0], 16;" ::"r"(barrier) : "memory");
    observe(barrier_test_parity(barrier, 1)); // 12: complete
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], 32;" ::"r"(barrier) : "memory");
    barrier_arrive(barrier);
    observe(barrier_test_parity(barrier, 0)); // 13
    asm volatile("mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%0], 32;" ::"r"(barrier) : "memory");
    observe(barrier_test_parity(barrier, 0)); // 14
    asm volatile("mbarrier.inval.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
    barrier_init(barrier, 1);
    observe(barrier_test_parity(barrier, 0)); // 15
    token = barrier_arrive(barrier);
    observe(barrier_test(barrier, token)); // 16
    d[0] = bits;
}

// All threads meet at an mbarrier again and again, as __syncthreads would have them.
__global__ void meeting_kernel(u32 *d, int rounds)
{
    __shared__ u64 memory;
    __shared__ volatile u32 box[THREADS];
    const u32 barrier = shared_address(&memory), t = threadIdx.x;
    if (t == 0) barrier_init(barrier, blockDim.x);
    __syncthreads();
    u32 x = t + 1;
    for (int round = 0; round < rounds; round++) {
        box[t] = x;
        u64 token = barrier_arrive(barrier);
        while (!barrier_test(barrier, token)) continue;
        x = x * 3 + box[(t + 5) % blockDim.x];
        token = barrier_arrive(barrier);
        while (!barrier_test(barrier, token)) continue;
    }
    d[t] = x;
}

// One warp produces with cp.async into a ring, three consume. A stage is full when the producer's copies have landed
// (cp.async.mbarrier.arrive.noinc) and empty when every consumer has arrived.
__global__ void ring_kernel(u32 *d, const u32 *source)
{
    __shared__ u32 ring[STAGES][32];
    __shared__ u64 full[STAGES], empty[STAGES];
    const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (threadIdx.x == 0)
        for (int s = 0; s < STAGES; s++) {
            barrier_init(shared_address(&full[s]), 32);
            barrier_init(shared_address(&empty[s]), 96);
        }
    __syncthreads();
    if (warp == 0) {
        for (u32 step = 0; step < STEPS; step++) {
            const u32 stage = step % STAGES, phase = step / STAGES % 2;
            barrier_wait_parity(shared_address(&empty[stage]), phase ^ 1);
            asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(shared_address(&ring[stage][lane])),
                         "l"(source + step * 32 + lane)
                         : "memory");
            asm volatile(
                "cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(shared_address(&full[stage]))
                : "memory");
        }
        return;
    }
    u32 sum = 0;
    for (u32 step = 0; step < STEPS; step++) {
        const u32 stage = step % STAGES, phase = step / STAGES % 2;
        barrier_wait_parity(shared_address(&full[stage]), phase);
        sum = sum * 7 + ring[stage][(lane + warp) % 32];
        barrier_arrive(shared_address(&empty[stage]));
    }
    d[threadIdx.x - 32] = sum;
}

// cp.async.mbarrier.arrive without .noinc adds its own arrival to the phase, so that only the explicit ones are counted at
// init.
__global__ void increment_kernel(u32 *d, const u32 *source)
{
    __shared__ u32 tile[64];
    __shared__ u64 memory;
    const u32 barrier = shared_address(&memory), t = threadIdx.x;
    if (t == 0) barrier_init(barrier, 64);
    __syncthreads();
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(shared_address(&tile[t])), "l"(source + t)
                 : "memory");
    asm volatile("cp.async.mbarrier.arrive.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
    barrier_arrive(barrier);
    barrier_wait_parity(barrier, 0);
    d[t] = tile[63 - t];
}

static void check_mbarriers(void)
{
    static u32 source[STEPS * 32], got[THREADS];
    u32 *d, *source_gmem;
    for (auto &x : source) x = (u32)random_u64();
    CUDA_CHECK(cudaMalloc((void **)&source_gmem, sizeof source));
    CUDA_CHECK(cudaMalloc((void **)&d, sizeof got));
    CUDA_CHECK(cudaMemcpy(source_gmem, source, sizeof source, cudaMemcpyHostToDevice));
    states_kernel<<<1, 1>>>(d);
    check_begin("the states of an mbarrier");
    if (launched(check_name)) {
        CUDA_CHECK(cudaMemcpy(got, d, sizeof got, cudaMemcpyDeviceToHost));
        const int want[17] = {0, 1, 0, 1, 1, 0, 0, 1, 1, 1, 0, 0, 1, 0, 1, 0, 1};
        for (u64 i = 0; i < 17; i++) check(i, got[0] >> i & 1, (u64)want[i]);
        check(100, got[1], 3);
    }
    check_begin("threads that meet at an mbarrier");
    for (u32 threads : {1u, 33u, 128u}) {
        meeting_kernel<<<1, threads>>>(d, 9);
        if (!launched(check_name)) return;
        CUDA_CHECK(cudaMemcpy(got, d, sizeof got, cudaMemcpyDeviceToHost));
        u32 x[THREADS], next[THREADS];
        for (u32 t = 0; t < threads; t++) x[t] = t + 1;
        for (int round = 0; round < 9; round++) {
            for (u32 t = 0; t < threads; t++) next[t] = x[t] * 3 + x[(t + 5) % threads];
            memcpy(x, next, sizeof x);
        }
        for (u32 t = 0; t < threads; t++) check((u64)threads << 32 | t, got[t], x[t]);
    }
    check_begin("cp.async.mbarrier.arrive.noinc in a ring");
    ring_kernel<<<1, THREADS>>>(d, source_gmem);
    if (!launched(check_name)) return;
    CUDA_CHECK(cudaMemcpy(got, d, sizeof got, cudaMemcpyDeviceToHost));
    for (u32 t = 0; t < 96; t++) {
        u32 sum = 0;
        for (u32 step = 0; step < STEPS; step++)
            sum = sum * 7 + source[step * 32 + (t % 32 + t / 32 + 1) % 32];
        check(t, got[t], sum);
    }
    check_begin("cp.async.mbarrier.arrive");
    increment_kernel<<<1, 64>>>(d, source_gmem);
    if (!launched(check_name)) return;
    CUDA_CHECK(cudaMemcpy(got, d, sizeof got, cudaMemcpyDeviceToHost));
    for (u32 t = 0; t < 64; t++) check(t, got[t], source[63 - t]);
}

int main(void)
{
    check_copies();
    check_mbarriers();
    return check_end("async");
}
