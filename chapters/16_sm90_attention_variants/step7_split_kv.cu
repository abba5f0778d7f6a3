// Chapter 16, step 7: the keys of one query are shared out over the GPU.
//
// Question: one sequence with 65,536 keys and 8 heads of K and V is 8 blocks on 132 SMs. Who reads the other 94 % of the
// bandwidth?
//
// Blocks that take a part of the keys each, with an m, an l and an O of their own (describe_work). Parts are merged as tiles
// are, by bringing all to one maximum; since each part has written O / l and LSE = m + log l, that is
//
//      LSE = log sum e^LSE_i,   O = sum e^(LSE_i - LSE) O_i
//
// which a second kernel does, a block a row. It is launched before the first one has ended and waits inside (griddepcontrol), so
// that nobody waits for its launch.
//
// parts_of_keys: the fewest parts for which the blocks nearly fill whole rounds of the SMs. An empty part has LSE = -inf and
// weighs nothing; the sink is in the first part.
//
// Grows from: step 6 (pack_gqa).
// Code: here, and kernel.cuh, the end of describe_work and of finish_rows.
// Run: make chapter-16 OP=split_kv
#include <cfloat>
#include <climits>

#include "../../common/device/launch.cuh"
#include "../../common/device/ptx.cuh"
#include "../../common/device/types.cuh"
#include "launchers.h"
#include "plan.h"

constexpr int MAX_SPLITS = 128;
constexpr int MIN_KEYS = 256;    // of a part: two tiles
constexpr int COMBINE_WARPS = 4; // of a block

int parts_of_keys(const attention_variant &v, const Plan &plan)
{
    int device, sms;
    if (cudaGetDevice(&device) != cudaSuccess) return 1;
    if (cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device) != cudaSuccess) return 1;
    const int queries = (plan.few ? 1 : 2) * (64 / plan.pack);
    const int64_t tiles = (int64_t)v.batch * (v.heads / plan.pack) * ((v.q_len - 1) / queries + 1);
    const int64_t keys =
        (int64_t)v.left + v.right + v.q_len < v.k_len ? (int64_t)v.left + v.right + v.q_len : v.k_len;
    const int most = (int)(keys / MIN_KEYS < MAX_SPLITS ? keys / MIN_KEYS : MAX_SPLITS);
    if (tiles >= 4 * (int64_t)sms) return 1; // the last round is a fifth of the time at most
    int best = 1;
    double best_share = 0; // of the SMs that have work, over all rounds
    for (int splits = 1; splits <= most; splits++) {
        const int64_t parts = tiles * splits, rounds = (parts - 1) / sms + 1;
        const double share = (double)parts / (double)(rounds * sms);
        if (share > best_share + 0.05) {
            best_share = share;
            best = splits;
        }
    }
    return best;
}

// O and LSE of a query and a head from those of the parts: a block each. Every warp has all weights, and adds up every
// COMBINE_WARPS-th part, a lane two columns of every 64; the first warp adds up the warps.
template <typename T, int DV>
static __global__ void __launch_bounds__(COMBINE_WARPS * 32)
    combine_kernel(const __grid_constant__ attention_variant v, const __grid_constant__ Plan plan)
{
    __shared__ float2 sum_smem[COMBINE_WARPS][DV / 64][32];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const size_t rows = (size_t)plan.q_rows * v.heads, row = blockIdx.x;
    wait_for_kernels_before(); // The parts are there.

    const float *LSE_parts = plan.LSE_parts + row, *O_parts = plan.O_parts + row * DV + lane * 2;
    float2 O[DV / 64] = {};
    // EXERCISE 16.2: the parts' largest LSE, the sum of their weights, and this warp's weighted sum of O (about 16 lines)
    float top = -INFINITY, sum = 0;
    for (int i = lane; i < plan.splits; i += 32) top = fmaxf(top, LSE_parts[i * rows]);
    for (int mask = 16; mask > 0; mask /= 2) top = fmaxf(top, __shfl_xor_sync(0xffffffff, top, mask));
    const float finite_top = top > -INFINITY ? top : 0; // no part has seen a key
    for (int i = lane; i < plan.splits; i += 32) sum += expf(LSE_parts[i * rows] - finite_top);
    for (int mask = 16; mask > 0; mask /= 2) sum += __shfl_xor_sync(0xffffffff, sum, mask);
#pragma unroll 4
    for (int i = warp; i < plan.splits; i += COMBINE_WARPS) {
        const float weight = expf(LSE_parts[i * rows] - finite_top);
#pragma unroll
        for (int j = 0; j < DV / 64; j++) {
            const float2 part = *reinterpret_cast<const float2 *>(O_parts + i * rows * DV + j * 64);
            O[j].x += weight * part.x;
            O[j].y += weight * part.y;
        }
    }
    // STUB const float finite_top = LSE_parts[rows * (plan.splits - 1)], sum = 1;
    // STUB if (warp == 0) O[0] = *reinterpret_cast<const float2 *>(O_parts);
    // END
#pragma unroll
    for (int j = 0; j < DV / 64; j++) sum_smem[warp][j][lane] = O[j];
    __syncthreads();

    if (warp > 0) return;
    const float inverse = sum > 0 ? 1 / sum : 0;
    T *dst = (T *)v.O + row * DV + lane * 2;
#pragma unroll
    for (int j = 0; j < DV / 64; j++) {
        for (int other = 1; other < COMBINE_WARPS; other++) {
            O[j].x += sum_smem[other][j][lane].x;
            O[j].y += sum_smem[other][j][lane].y;
        }
        store_pair(dst + j * 64, O[j].x * inverse, O[j].y * inverse);
    }
    const size_t query = row / v.heads, head = row % v.heads;
    if (lane == 0)
        v.LSE[v.cu_q ? head * v.q_total + query
                     : (query / v.q_len * v.heads + head) * v.q_len + query % v.q_len] =
            finite_top + logf(sum); // -inf where sum is 0
}

template <typename T>
static cudaError_t launch_combine(const attention_variant &v, const Plan &plan, cudaStream_t stream)
{
    const int64_t rows = (int64_t)plan.q_rows * v.heads;
    if (rows > INT_MAX) return cudaErrorInvalidValue;
    const auto launch = [&](auto kernel) {
        return launch_early(kernel, (unsigned)rows, COMBINE_WARPS * 32, 0, stream, v, plan);
    };
    switch (v.v_head_dim) {
    case 64: return launch(combine_kernel<T, 64>);
    case 128: return launch(combine_kernel<T, 128>);
    default: return launch(combine_kernel<T, 256>);
    }
}

cudaError_t combine_parts(const attention_variant &v, const Plan &plan, cudaStream_t stream)
{
    return v.dtype == F16 ? launch_combine<__half>(v, plan, stream)
                          : launch_combine<__nv_bfloat16>(v, plan, stream);
}

extern "C" cudaError_t split_kv(const struct attention_variant *v, cudaStream_t stream)
{
    return launch_attention(*v, SPLIT_KV, stream);
}
