// Chapter 17's loop over the queries with nothing to load: how fast are five products and a softmax, by order?
//
// K, V, Q and dO lie in a block's shared memory from the beginning; nobody waits for a copy or gives a stage back. What is left is what
// an order decides: products, exponentials, dS from consumer to consumer, dQ on its way out. Products and all between them are kernel.cuh's.
//
//      waited     S | P | dP | dV | dS | dK | dQ                each product waited for
//      together   S, dP | P | dV | dS | dQ, dK                  S and dP in flight, then dV beside dS, dK beside dQ's way out (multiply)
//      dQ_last    S, dP | P | dV | dS | dK | dQ                 dK beside the storing of dS, and dQ behind it
//      ahead      dP, dV | dS | dK, S of the next | dQ | P of the next                                      (multiply_ahead)
//      split      one consumer has S, P, dV, the other dP, dS, dK, both the same 64 keys: D = 256 in one block
//      split_waited    the same, dV and dK waited for
//
// dV comes behind dS where registers are too few for P in 16 bits (Tile::EARLY_DV). dQ leaves by the copy engine (bulk) or by red, as in
// kernel.cuh, or not at all (kept): what sending it costs. Every order must compute what the first of its tile computes, bit for bit, in a
// block of three tiles; the simulated GPU does only that. Then, on a GPU, a block for each SM: the median of ROUNDS rounds in which each has
// its turn. Prints CSV, as results/trials/17_orders.csv has it of whole kernels. Exits with 1 if an order computes something else.
//
// Run: nvcc -std=c++17 -O3 -arch=sm_90a -o build/backward_orders tools/backward_orders.cu && build/backward_orders
#include <algorithm>
#include <vector>

extern "C" {
#include "../common/harness/error.h"
}
#pragma nv_diag_suppress declared_but_not_referenced // kernel.cuh has more than is needed here
#include "../chapters/17_sm90_attention_backward/kernel.cuh"

using T = __nv_bfloat16;
enum Order { WAITED, TOGETHER, DQ_LAST, AHEAD, SPLIT, SPLIT_WAITED };
enum Sent { BULK, RED, KEPT };
constexpr const char *ORDER_NAMES[] = {"waited", "together", "dQ_last", "ahead", "split", "split_waited"};
constexpr const char *SENT_NAMES[] = {"bulk", "red", "kept"};
constexpr int CHECKED_TILES = 3, TIMED_TILES = 2000, ROUNDS = 5;
constexpr int PLACES = 512;           // for tiles of dQ in memory, at most 32 MB: the L2 has room for them
constexpr double PEAK_TFLOPS = 989.4; // of H100 and H200, bf16

// A tile of 64 keys whose gradients are 128 registers each at D = 256: one consumer has dV, the other dK. In kernel_256.cuh a second
// block has the other half of the columns.
struct SplitTile : Tile<256, 64, false> {
    static constexpr int KV = 64;
    static constexpr int HANDED = Q / 8; // P, for the other consumer
};
template <class C>
constexpr bool SPLITS = std::is_same<C, SplitTile>::value;

// Where a block adds a consumer's part of dQ of its tile i.
template <class C>
static __device__ float4 *place_of_dQ(float4 *dQ_sum, int i, int consumer)
{
    return dQ_sum + ((i + blockIdx.x * 7) % PLACES * CONSUMERS + consumer) * (C::DQ_REGS / 4 * 128);
}

// What a consumer computes with; S becomes P. The first of its 64 keys of the block is `key`.
template <class C, Sent SENT>
struct Consumer {
    SharedStorage<T, C> &smem;
    float4 *dQ_sum;
    const int consumer, tid, key;
    float S[C::Q / 2], dP[C::Q / 2], dQ[C::DQ_REGS];
    uint32_t P[C::Q / MMA_K][4], dS[C::Q / MMA_K][4];

    __device__ void multiply_scores(float (&acc)[C::Q / 2], const T *A_smem, const T *B_smem)
    {
        wgmma_fence();
        multiply_rows<T, C::D, C::Q, C::KV, C::Q>(acc, A_smem, B_smem);
        wgmma_commit_group();
    }
    __device__ void multiply_S(int i)
    {
        multiply_scores(S, smem.K_smem[0][0][key], smem.Q_smem[i % 2][0][0]);
    }
    __device__ void multiply_dP(int i)
    {
        multiply_scores(dP, smem.V_smem[0][0][key], smem.dO_smem[i % 2][0][0]);
    }
    __device__ void compute_P(int i)
    {
        wgmma_touch(S);
        exponentials<C::Q>(S, rsqrtf(C::D) * 1.44269504f, OfColumns<C>(smem.LSE_log2_smem[i % 2], tid));
    }
    __device__ void compute_dS(int i)
    {
        wgmma_touch(dP);
        softmax_gradient<T, C::Q>(dP, S, dS, OfColumns<C>(smem.dPsum_smem[i % 2], tid));
    }
    // dV or dK.
    __device__ void multiply(float (&acc)[C::D / 2], const uint32_t (&A)[C::Q / MMA_K][4],
                             const T (*B_smem)[C::Q][64])
    {
        wgmma_touch(acc);
        wgmma_touch(A);
        wgmma_fence();
        multiply_gradient<T, C>(acc, A, B_smem);
        wgmma_commit_group();
    }
    __device__ void store_dS(int i)
    {
        store_transposed<T, C::Q>(smem.dS_smem[i % 2][key / 64], dS, tid);
        fence_proxy_async();
        warp_arrive(&smem.dS_full[i % 2], tid % 32);
    }
    // Two places for dS: who stores the next has multiplied the one before, and so has, by this barrier, the other.
    __device__ void multiply_both_dS(int i)
    {
        mbarrier_wait(&smem.dS_full[i % 2], i / 2 % 2);
        wgmma_fence();
        multiply_dQ<T, C>(dQ, smem.dS_smem[i % 2], smem.K_smem[0], consumer);
        wgmma_commit_group();
    }
    __device__ void send_dQ(int i)
    {
        wgmma_touch(dQ);
        if (SENT == BULK) {
            mbarrier_wait(&smem.handed_empty[consumer], i % 2 ^ 1);
            if constexpr (!SPLITS<C>) hand_over_dQ<T, C>(smem, dQ, consumer, tid);
        }
        if (SENT == RED) add_dQ(place_of_dQ<C>(dQ_sum, i, consumer), dQ, tid);
    }
};

// A consumer with 64 keys of its own. Ahead, S is computed once more behind the last tile, for nobody.
template <Order ORDER, class C, Sent SENT>
static __device__ void run_tiles(Consumer<C, SENT> &c, float (&dK)[C::D / 2], float (&dV)[C::D / 2],
                                 int tiles)
{
    constexpr bool WAIT = ORDER == WAITED, NEXT = ORDER == AHEAD;
    if constexpr (NEXT) {
        c.multiply_S(0);
        wgmma_wait_group<0>();
        c.compute_P(0);
    }
    for (int i = 0; i < tiles; i++) {
        const auto multiply_dV = [&] {
            round_tile<T, C::Q>(c.S, c.P);
            c.multiply(dV, c.P, c.smem.dO_smem[i % 2]);
            if constexpr (WAIT) wgmma_wait_group<0>();
        };
        if constexpr (!NEXT) c.multiply_S(i);
        if constexpr (WAIT) wgmma_wait_group<0>();
        c.multiply_dP(i);
        if constexpr (!NEXT) {
            wgmma_wait_group<!WAIT>();
            c.compute_P(i);
        }
        if constexpr (C::EARLY_DV) multiply_dV();
        wgmma_wait_group<C::EARLY_DV && !WAIT>();
        c.compute_dS(i);
        if constexpr (!C::EARLY_DV) multiply_dV();
        if constexpr (ORDER == TOGETHER) {
            c.store_dS(i);
            c.multiply_both_dS(i);
        }
        c.multiply(dK, c.dS, c.smem.Q_smem[i % 2]);
        if constexpr (ORDER == TOGETHER) {
            wgmma_wait_group<1>();
            c.send_dQ(i);
        } else {
            if constexpr (WAIT) wgmma_wait_group<0>();
            c.store_dS(i);
            if constexpr (NEXT) {
                wgmma_wait_group<1>();
                wgmma_touch(dV);
                wgmma_touch(c.P);
                c.multiply_S(i + 1);
                wgmma_wait_group<1>();
                wgmma_touch(dK);
                wgmma_touch(c.dS);
            }
            c.multiply_both_dS(i);
            if constexpr (NEXT) {
                wgmma_wait_group<1>();
                c.compute_P(i + 1);
                wgmma_touch(c.S);
            }
        }
        wgmma_wait_group<0>();
        wgmma_touch(dV);
        wgmma_touch(c.P);
        wgmma_touch(dK);
        wgmma_touch(c.dS);
        if constexpr (ORDER != TOGETHER) c.send_dQ(i);
    }
}

// The consumer that has S, P and dV. Behind the last tile: S and P once more, for nobody.
template <Order ORDER, class C, Sent SENT>
static __device__ void run_scores(Consumer<C, SENT> &c, float (&dV)[C::D / 2], int tiles)
{
    const auto hand_over_P = [&](int i) {
        wgmma_wait_group<0>();
        c.compute_P(i);
        round_tile<T, C::Q>(c.S, c.P);
        mbarrier_wait(&c.smem.handed_empty[0], i % 2 ^ 1);
#pragma unroll
        for (int j = 0; j < C::Q / 2; j += 4)
            c.smem.handed_smem[j / 4][c.tid] = make_float4(c.S[j], c.S[j + 1], c.S[j + 2], c.S[j + 3]);
        warp_arrive(&c.smem.handed_full[0], c.tid % 32);
    };
    c.multiply_S(0);
    hand_over_P(0);
    for (int i = 0; i < tiles; i++) {
        c.multiply(dV, c.P, c.smem.dO_smem[i % 2]);
        if constexpr (ORDER == SPLIT_WAITED) wgmma_wait_group<0>();
        c.multiply_S(i + 1);
        wgmma_wait_group<0>();
        wgmma_touch(dV);
        wgmma_touch(c.P);
        hand_over_P(i + 1);
        c.multiply_both_dS(i);
        wgmma_wait_group<0>();
        c.send_dQ(i);
    }
}

// The consumer that has dP, dS and dK.
template <Order ORDER, class C, Sent SENT>
static __device__ void run_gradients(Consumer<C, SENT> &c, float (&dK)[C::D / 2], int tiles)
{
    for (int i = 0; i < tiles; i++) {
        c.multiply_dP(i);
        wgmma_wait_group<0>();
        mbarrier_wait(&c.smem.handed_full[0], i % 2);
#pragma unroll
        for (int j = 0; j < C::Q / 2; j += 4) {
            const float4 four = c.smem.handed_smem[j / 4][c.tid];
            c.S[j] = four.x, c.S[j + 1] = four.y, c.S[j + 2] = four.z, c.S[j + 3] = four.w;
        }
        c.compute_dS(i);
        warp_arrive(&c.smem.handed_empty[0], c.tid % 32);
        c.multiply(dK, c.dS, c.smem.Q_smem[i % 2]);
        if constexpr (ORDER == SPLIT_WAITED) wgmma_wait_group<0>();
        c.store_dS(i);
        c.multiply_both_dS(i);
        wgmma_wait_group<0>();
        wgmma_touch(dK);
        wgmma_touch(c.dS);
        c.send_dQ(i);
    }
}

// dQ_sum is (PLACES, CONSUMERS, DQ_REGS / 4, 128); gradients of block 0: (CONSUMERS, 2, D / 2, 128), dK and dV as threads have them.
template <class C, Order ORDER, Sent SENT>
__global__ void __launch_bounds__(NUM_THREADS, 1) order_kernel(float4 *dQ_sum, float *gradients, int tiles)
{
    extern __shared__ __align__(1024) char smem_bytes[];
    SharedStorage<T, C> &smem = *reinterpret_cast<SharedStorage<T, C> *>(smem_bytes);

    // Setup. K, V, Q and dO: numbers of either sign from 2^-4 to 2^-3.
    uint32_t *const words = reinterpret_cast<uint32_t *>(smem.K_smem);
    for (uint32_t i = threadIdx.x; words + i < reinterpret_cast<uint32_t *>(smem.dS_smem); i += NUM_THREADS)
        words[i] = 0x3d803d80 ^ (i * 2654435761u >> 3 & 0x807f807f);
    for (int i = threadIdx.x; i < 2 * C::Q; i += NUM_THREADS) {
        smem.LSE_log2_smem[i / C::Q][i % C::Q] = 2 + i / C::Q;
        smem.dPsum_smem[i / C::Q][i % C::Q] = 0.125f;
    }
    if (threadIdx.x == 0)
        for (int i = 0; i < 2; i++) { // of stages and of consumers
            mbarrier_init(&smem.dS_full[i], SPLITS<C> ? 4 : CONSUMERS * 4);
            mbarrier_init(&smem.handed_full[i], 4);
            mbarrier_init(&smem.handed_empty[i], SPLITS<C> ? 4 : 1);
        }
    fence_proxy_async();
    __syncthreads();

    const int warpgroup = __shfl_sync(0xffffffff, threadIdx.x / 128, 0), tid = threadIdx.x % 128;
    if (warpgroup == 0) {
        setmaxnreg_dec<PRODUCER_REGS>();
        const int consumer = tid / 32 - 1;
        for (int i = 0; i < tiles && SENT == BULK && (tid == 32 || tid == 64); i++) {
            mbarrier_wait(&smem.handed_full[consumer], i % 2);
            cp_reduce_async_bulk_add(place_of_dQ<C>(dQ_sum, i, consumer),
                                     smem.handed_smem[consumer * (C::DQ_REGS / 4)], C::DQ_REGS * 512);
            cp_async_bulk_commit_group();
            cp_async_bulk_wait_group_read<0>();
            mbarrier_arrive(&smem.handed_empty[consumer]);
        }
    } else {
        setmaxnreg_inc<CONSUMER_REGS>();
        const int consumer = warpgroup - 1;
        Consumer<C, SENT> c{smem, dQ_sum, consumer, tid, SPLITS<C> ? 0 : consumer * 64};
        float dK[C::D / 2] = {}, dV[C::D / 2] = {};
        const auto keep = [&](const float(&acc)[C::D / 2], int which) {
#pragma unroll
            for (int i = 0; i < C::D / 2; i++)
                if (blockIdx.x == 0)
                    gradients[((consumer * 2 + which) * (C::D / 2) + i) * 128 + tid] = acc[i];
        };
        if constexpr (!SPLITS<C>) {
            run_tiles<ORDER>(c, dK, dV, tiles);
            keep(dK, 0);
            keep(dV, 1);
        } else if (consumer == 0) {
            run_scores<ORDER>(c, dV, tiles);
            keep(dV, 1);
        } else {
            run_gradients<ORDER>(c, dK, tiles);
            keep(dK, 0);
        }
    }
}

// A row of the table.
struct Trial {
    int D, Q, KV;
    Order order;
    Sent sent;
    void (*kernel)(float4 *, float *, int);
    int smem_bytes;
    std::vector<float> ms;
};
template <class C, Order ORDER, Sent SENT>
static Trial trial()
{
    return {C::D, C::Q, C::KV, ORDER, SENT, order_kernel<C, ORDER, SENT>, sizeof(SharedStorage<T, C>), {}};
}
template <class C>
static void add_orders(std::vector<Trial> &trials)
{
    trials.insert(trials.end(),
                  {trial<C, WAITED, BULK>(), trial<C, TOGETHER, BULK>(), trial<C, AHEAD, BULK>(),
                   trial<C, TOGETHER, KEPT>(), trial<C, AHEAD, KEPT>()});
    if constexpr (C::Q != 80)
        trials.push_back(trial<C, DQ_LAST, BULK>()); // ptxas has too few registers for it.
}

// dK and dV of one block, and dQ unless it is kept.
static std::vector<float> compute(const Trial &t, float4 *dQ_sum, float *gradients)
{
    const size_t count = CONSUMERS * t.D * 128, dQ_count = t.sent == KEPT ? 0 : CHECKED_TILES * t.Q * t.D;
    std::vector<float> result(count + dQ_count);
    CUDA_CHECK(cudaMemset(gradients, 0, count * 4));
    CUDA_CHECK(cudaMemset(dQ_sum, 0, dQ_count * 4));
    t.kernel<<<1, NUM_THREADS, t.smem_bytes>>>(dQ_sum, gradients, CHECKED_TILES);
    CUDA_CHECK(cudaGetLastError());
    CUDA_CHECK(cudaMemcpy(result.data(), gradients, count * 4, cudaMemcpyDeviceToHost));
    CUDA_CHECK(cudaMemcpy(result.data() + count, dQ_sum, dQ_count * 4, cudaMemcpyDeviceToHost));
    return result;
}

int main(void)
{
    std::vector<Trial> trials;
    add_orders<Tile<64, 64, false>>(trials);
    add_orders<Tile<64, 128, false>>(trials);
    trials.push_back(trial<Tile<64, 128, false>, TOGETHER, RED>());
    add_orders<Tile<128, 64, false>>(trials);
    trials.push_back(trial<Tile<128, 64, false>, AHEAD, RED>());
    add_orders<Tile<128, 80, false>>(trials);
    trials.insert(trials.end(), {trial<SplitTile, SPLIT_WAITED, RED>(), trial<SplitTile, SPLIT, RED>(),
                                 trial<SplitTile, SPLIT, KEPT>()});

    cudaDeviceProp device;
    float4 *dQ_sum;
    float *gradients;
    CUDA_CHECK(cudaGetDeviceProperties(&device, 0));
    CUDA_CHECK(cudaMalloc(&dQ_sum, (size_t)PLACES * 64 * 256 * 4));
    CUDA_CHECK(cudaMalloc(&gradients, CONSUMERS * 256 * 128 * 4));
    std::vector<float> first;
    int wrong = 0;
    for (size_t i = 0; i < trials.size(); i++) {
        const Trial &t = trials[i];
        CUDA_CHECK(cudaFuncSetAttribute(t.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, t.smem_bytes));
        const std::vector<float> result = compute(t, dQ_sum, gradients);
        if (i == 0 || t.D != trials[i - 1].D || t.Q != trials[i - 1].Q) first = result;
        if (std::equal(result.begin(), result.end(), first.begin())) continue;
        wrong++;
        printf("D=%d, %d queries, %s, %s: WRONG, not what the first order computes\n", t.D, t.Q,
               ORDER_NAMES[t.order], SENT_NAMES[t.sent]);
    }
    if (wrong > 0) return EXIT_WRONG;
    printf("# %s: %d orders compute the same\n", device.name, (int)trials.size());
    if (strncmp(device.name, "Simulated GPU", 13) == 0) return EXIT_RIGHT; // It has no speed to measure.

    cudaEvent_t begin, end;
    CUDA_CHECK(cudaEventCreate(&begin));
    CUDA_CHECK(cudaEventCreate(&end));
    for (int round = 0; round < ROUNDS + 1; round++) // the first to get warm
        for (Trial &t : trials) {
            float ms;
            CUDA_CHECK(cudaEventRecord(begin));
            t.kernel<<<device.multiProcessorCount, NUM_THREADS, t.smem_bytes>>>(dQ_sum, gradients,
                                                                                TIMED_TILES);
            CUDA_CHECK(cudaGetLastError());
            CUDA_CHECK(cudaEventRecord(end));
            CUDA_CHECK(cudaEventSynchronize(end));
            CUDA_CHECK(cudaEventElapsedTime(&ms, begin, end));
            if (round > 0) t.ms.push_back(ms);
        }
    printf("D,queries,keys,order,dQ,TFLOPs,of %.1f\n", PEAK_TFLOPS);
    for (Trial &t : trials) {
        std::sort(t.ms.begin(), t.ms.end());
        const double flops = 10.0 * t.Q * t.KV * t.D * TIMED_TILES * device.multiProcessorCount;
        const double tflops = flops / t.ms[ROUNDS / 2] / 1e9;
        printf("%d,%d,%d,%s,%s,%.1f,%.3f\n", t.D, t.Q, t.KV, ORDER_NAMES[t.order], SENT_NAMES[t.sent], tflops,
               tflops / PEAK_TFLOPS);
    }
    return EXIT_RIGHT;
}
