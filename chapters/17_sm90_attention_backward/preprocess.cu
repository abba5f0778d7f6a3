// Before the products: what a row needs of the forward pass, and an empty sum for dQ or nothing counted for it.
//
// A block has a tile; D / 8 lanes have a row, 16 bytes of O and of dO each, of four rows in flight. dPsum is the row's sum of dO ∘ O, which
// equals that of dP ∘ P and costs a pass over D numbers instead of one over all keys.
//
// Heads come first in the grid: a row of O has all of them, and blocks that run together read whole rows.
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
    constexpr int LANES = D / 8;              // that share a row: 8, 16 or 32
    constexpr int ROWS = NUM_THREADS / LANES; // of the block at a time; a tile has a multiple of them
    constexpr int IN_FLIGHT = 4;              // rows of a thread
    const attention_variant &v = b.forward;
    const int head = blockIdx.x % v.heads, number = blockIdx.x / v.heads, lane = threadIdx.x % LANES;
    const size_t tile = (size_t)head * plan.q_tiles + number; // over all heads
    const int i = find_sequence(v.cu_q, v.batch, v.q_len, plan.q_tile, number);
    const Sequence rows(v.cu_q, i, v.q_len);
    const int first_query = (number - first_tile(v.cu_q, i, v.q_len, plan.q_tile)) * plan.q_tile;
    const float *LSE =
        v.LSE + (v.cu_q ? (size_t)head * v.q_total + rows.begin : ((size_t)i * v.heads + head) * v.q_len);

    for (int first = threadIdx.x / LANES; first < plan.q_tile; first += IN_FLIGHT * ROWS) {
        uint4 O[IN_FLIGHT], dO[IN_FLIGHT];
        float row_LSE[IN_FLIGHT];
#pragma unroll
        for (int j = 0; j < IN_FLIGHT; j++) {
            const int row = first + j * ROWS, query = first_query + row;
            O[j] = dO[j] = make_uint4(0, 0, 0, 0);
            row_LSE[j] = -INFINITY;
            if (row < plan.q_tile && query < rows.len) {
                const size_t pack =
                    (((size_t)rows.begin + query) * v.heads + head) * LANES + lane; // of 16 bytes
                O[j] = ((const uint4 *)v.O)[pack];
                dO[j] = ((const uint4 *)b.dO)[pack];
                row_LSE[j] = LSE[query];
            }
        }
#pragma unroll
        for (int j = 0; j < IN_FLIGHT; j++) {
            const int row = first + j * ROWS;
            float sum = dot<T>(O[j], dO[j]);
#pragma unroll
            for (int mask = LANES / 2; mask > 0; mask /= 2) sum += __shfl_xor_sync(0xffffffff, sum, mask);
            if (lane == 0 && row < plan.q_tile) {
                const size_t place = tile * plan.q_tile + (plan.by_columns ? column_place(row) : row);
                plan.LSE_log2[place] =
                    row_LSE[j] == -INFINITY ? INFINITY : row_LSE[j] * 1.44269504f; // log2(e)
                plan.dPsum[place] = sum;
            }
        }
    }
    float4 *dQ_sum = plan.dQ_sum + tile * plan.q_tile * (D / 4);
    for (int k = threadIdx.x; !plan.first_stores && k < plan.q_tile * (D / 4); k += NUM_THREADS)
        dQ_sum[k] = make_float4(0, 0, 0, 0);
    if (threadIdx.x < DQ_PARTS) plan.arrived[tile * DQ_PARTS + threadIdx.x] = 0;
    if (threadIdx.x == 0 && tile == 0) *plan.taken = 0;
}

template <typename T, int D>
static cudaError_t launch(const attention_variant_backward &b, const BackwardPlan &plan, cudaStream_t stream)
{
    const int64_t tiles = (int64_t)b.forward.heads * plan.q_tiles;
    if (tiles > INT_MAX) return cudaErrorInvalidValue;
    preprocess_kernel<T, D><<<(int)tiles, NUM_THREADS, 0, stream>>>(b, plan);
    return cudaGetLastError();
}

cudaError_t preprocess(const attention_variant_backward &b, const BackwardPlan &plan, cudaStream_t stream)
{
    return with_types(b.forward.dtype, b.forward.head_dim,
                      [&](auto t, auto d) { return launch<decltype(t), d.value>(b, plan, stream); });
}
