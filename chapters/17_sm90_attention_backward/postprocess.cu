// After the products: dQ is complete, gets its scale, is rounded, and goes where it belongs.
//
// A block has a tile, and each thread the accumulators of dQ that the thread of its number had. They are put in order in shared
// memory, and rows leave it 16 bytes at a time. Heads come first in the grid, as in preprocess.cu.
#include <climits>

#include "../../common/device/sm90_attention.cuh"
#include "plan.h"

constexpr int NUM_THREADS = 256; // two consumers' 128

template <typename T, int D>
__global__ void __launch_bounds__(NUM_THREADS)
    postprocess_kernel(const __grid_constant__ attention_variant_backward b,
                       const __grid_constant__ BackwardPlan plan)
{
    constexpr int PITCH =
        D + 8; // of a row in shared memory: the rows that a warp writes begin in other banks
    constexpr int IN_FLIGHT = 4; // loads of a thread
    extern __shared__ __align__(16) char smem_bytes[];
    T *const tile_smem = reinterpret_cast<T *>(smem_bytes); // (q_tile, PITCH)
    const attention_variant &v = b.forward;
    const DQ split = split_of_dQ(plan.q_tile);
    const int head = blockIdx.x % v.heads, number = blockIdx.x / v.heads;
    const size_t tile = (size_t)head * plan.q_tiles + number; // over all heads
    const int i = find_sequence(v.cu_q, v.batch, v.q_len, plan.q_tile, number);
    const Sequence rows(v.cu_q, i, v.q_len);
    const int first_row = (number - first_tile(v.cu_q, i, v.q_len, plan.q_tile)) * plan.q_tile;
    if (first_row >= rows.len) return;

    const int half = threadIdx.x / 128, tid = threadIdx.x % 128;
    const int count = plan.q_tile * D / 1024; // of a thread
    const int row = tid / 32 * 16 + tid % 32 / 4,
              col = tid % 4 * 2; // and row + 8, col + 1, in columns 8 k on
    const float4 *sum = plan.dQ_sum + (tile * 2 + half) * count * 128 + tid;
    const float scale = rsqrtf(D);
    const bool none = plan.first_stores && plan.arrived[tile * 2 + half] == 0; // No block had keys for it.
    for (int first = 0; first < count; first += IN_FLIGHT) {
        float4 sums[IN_FLIGHT];
#pragma unroll
        for (int j = 0; j < IN_FLIGHT; j++)
            if (first + j < count) sums[j] = none ? make_float4(0, 0, 0, 0) : sum[(first + j) * 128];
#pragma unroll
        for (int j = 0; j < IN_FLIGHT; j++) {
            const int k = first + j;
            if (k >= count) break;
            const float4 s = sums[j];
            if (split == TRANSPOSED) {
                T *at = tile_smem + (k * 8 + col) * PITCH + half * (D / 2) + row;
                at[0] = T(s.x * scale), at[PITCH] = T(s.y * scale);
                at[8] = T(s.z * scale), at[PITCH + 8] = T(s.w * scale);
            } else {
                T *at = tile_smem + (split == ROWS ? half * 64 + row : row) * PITCH +
                        (split == COLUMNS ? half * (D / 2) : 0) + k * 8 + col;
                store_pair(at, s.x * scale, s.y * scale);
                store_pair(at + 8 * PITCH, s.z * scale, s.w * scale);
            }
        }
    }
    __syncthreads();
    for (int pack = threadIdx.x; pack < plan.q_tile * (D / 8); pack += NUM_THREADS) {
        const int query = first_row + pack / (D / 8), in_row = pack % (D / 8);
        if (query < rows.len)
            ((uint4 *)b.dQ)[(((size_t)rows.begin + query) * v.heads + head) * (D / 8) + in_row] =
                *reinterpret_cast<const uint4 *>(tile_smem + pack / (D / 8) * PITCH + in_row * 8);
    }
}

template <typename T, int D>
static cudaError_t launch(const attention_variant_backward &b, const BackwardPlan &plan, cudaStream_t stream)
{
    const int64_t tiles = (int64_t)b.forward.heads * plan.q_tiles;
    if (tiles > INT_MAX) return cudaErrorInvalidValue;
    postprocess_kernel<T, D><<<(int)tiles, NUM_THREADS, plan.q_tile *(D + 8) * sizeof(T), stream>>>(b, plan);
    return cudaGetLastError();
}

cudaError_t postprocess(const attention_variant_backward &b, const BackwardPlan &plan, cudaStream_t stream)
{
    return with_types(b.forward.dtype, b.forward.head_dim,
                      [&](auto t, auto d) { return launch<decltype(t), d.value>(b, plan, stream); });
}
