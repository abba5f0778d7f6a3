// Before the products: what a row needs of the forward pass, and an empty sum for dQ.
//
// D / 8 lanes have a row, 16 bytes of O and of dO each. dPsum is the row's sum of dO ∘ O, which equals that of dP ∘ P and costs a
// pass over D numbers instead of one over all keys.
#include <climits>

#include "../../common/device/sm90_attention.cuh"
#include "plan.h"

constexpr int NUM_THREADS = 256;

// Sum of the products of eight pairs.
template <typename T>
static __device__ float dot(uint4 x, uint4 y)
{
    using T2 = typename std::conditional<std::is_same<T, __half>::value, __half2, __nv_bfloat162>::type;
    const T2 *x_pairs = reinterpret_cast<const T2 *>(&x), *y_pairs = reinterpret_cast<const T2 *>(&y);
    float sum = 0;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const float2 a = to_float2(x_pairs[i]), b = to_float2(y_pairs[i]);
        sum += a.x * b.x + a.y * b.y;
    }
    return sum;
}

template <typename T, int D>
__global__ void __launch_bounds__(NUM_THREADS)
    preprocess_kernel(const __grid_constant__ attention_variant_backward b,
                      const __grid_constant__ BackwardPlan plan)
{
    constexpr int LANES = D / 8; // that share a row: 8, 16 or 32
    const attention_variant &v = b.forward;
    const size_t row = (size_t)blockIdx.x * (NUM_THREADS / LANES) + threadIdx.x / LANES; // padded ones too
    const size_t tile = row / plan.q_tile;                                               // over all heads
    const int lane = threadIdx.x % LANES, head = tile / plan.q_tiles, number = tile % plan.q_tiles;
    if (head >= v.heads) return;
    const int i = find_sequence(v.cu_q, v.batch, v.q_len, plan.q_tile, number);
    const Sequence rows(v.cu_q, i, v.q_len);
    const int query =
        (number - first_tile(v.cu_q, i, v.q_len, plan.q_tile)) * plan.q_tile + (int)(row % plan.q_tile);

    float sum = 0;
    if (query < rows.len) {
        const size_t pack = (((size_t)rows.begin + query) * v.heads + head) * LANES + lane; // of 16 bytes
        sum = dot<T>(((const uint4 *)v.O)[pack], ((const uint4 *)b.dO)[pack]);
    }
#pragma unroll
    for (int mask = LANES / 2; mask > 0; mask /= 2) sum += __shfl_xor_sync(0xffffffff, sum, mask);
    if (lane == 0) {
        const float *LSE =
            v.LSE + (v.cu_q ? (size_t)head * v.q_total + rows.begin : ((size_t)i * v.heads + head) * v.q_len);
        const float row_LSE = query < rows.len ? LSE[query] : -INFINITY;
        const size_t place =
            tile * plan.q_tile + (plan.by_columns ? column_place(row % plan.q_tile) : row % plan.q_tile);
        plan.LSE_log2[place] = row_LSE == -INFINITY ? INFINITY : row_LSE * 1.44269504f; // log2(e)
        plan.dPsum[place] = sum;
        if (row % plan.q_tile == 0) plan.arrived[tile * 2] = plan.arrived[tile * 2 + 1] = 0;
        if (row == 0) *plan.blocks = 0;
    }
    float4 *dQ_sum = plan.dQ_sum + row * LANES * 2 + lane; // as many as the row has, whichever they are
    dQ_sum[0] = dQ_sum[LANES] = make_float4(0, 0, 0, 0);
}

template <typename T, int D>
static cudaError_t launch(const attention_variant_backward &b, const BackwardPlan &plan, cudaStream_t stream)
{
    const int64_t rows = (int64_t)b.forward.heads * plan.q_tiles * plan.q_tile;
    const int64_t blocks = (rows * (D / 8) - 1) / NUM_THREADS + 1;
    if (blocks > INT_MAX) return cudaErrorInvalidValue;
    preprocess_kernel<T, D><<<(int)blocks, NUM_THREADS, 0, stream>>>(b, plan);
    return cudaGetLastError();
}

cudaError_t preprocess(const attention_variant_backward &b, const BackwardPlan &plan, cudaStream_t stream)
{
    return with_types(b.forward.dtype, b.forward.head_dim,
                      [&](auto t, auto d) { return launch<decltype(t), d.value>(b, plan, stream); });
}
