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
// which a second kernel does, a warp for 64 columns of a row. It is launched before the first one has ended and waits inside
// (griddepcontrol), so that nobody waits for its launch. The first one is launched early as well. Where no memory says what its
// first work is, a block finds it before the kernel ahead has ended; of few queries it has the L2 fetch the first tiles, too.
//
// parts_of_keys: the fewest parts for which the blocks nearly fill whole rounds of the SMs. An empty part has LSE = -inf and
// weighs nothing; the sink is in the first part.
//
// Grows from: step 6 (pack_gqa).
// New instructions: cp.async.bulk.prefetch.tensor.
// Code: here, and kernel.cuh, the end of describe_work and of finish_rows, prefetch_tiles.
// Run: make chapter-16 OP=split_kv
#include <cfloat>
#include <climits>

#include "../../common/device/launch.cuh"
#include "../../common/device/ptx.cuh"
#include "../../common/device/types.cuh"
#include "launchers.h"
#include "plan.h"

constexpr int MAX_SPLITS = 128;
constexpr int MIN_KEYS = 256; // of a part: two tiles

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

// O and LSE of a query and a head from those of the parts: a warp, which is the block, for 64 columns. It needs no shared memory and few
// registers: several such blocks have room beside attention_kernel's, and are there when that ends. It asks for 16 parts before it
// looks at any: what it takes is mostly the time until memory answers.
template <typename T>
static __global__ void __launch_bounds__(32)
    combine_kernel(const __grid_constant__ attention_variant v, const __grid_constant__ Plan plan)
{
    const int lane = threadIdx.x, column = blockIdx.y * 64 + lane * 2;
    const unsigned row = blockIdx.x, query = row / v.heads, head = row % v.heads;
    const size_t rows = (size_t)plan.q_rows * v.heads, part_size = rows * v.v_head_dim;
    const float *LSE_parts = plan.LSE_parts + row,
                *O_parts = plan.O_parts + (size_t)row * v.v_head_dim + column;
    T *dst = (T *)v.O + (size_t)row * v.v_head_dim + column;
    float *LSE = v.LSE + (v.cu_q ? (size_t)head * v.q_total + query
                                 : ((size_t)(query / v.q_len) * v.heads + head) * v.q_len + query % v.q_len);
    wait_for_kernels_before(); // The parts are there.

    float top = -FLT_MAX, sum = 0; // m and l of a row; each lane has a part of the sum
    float2 O = make_float2(0, 0);
    // EXERCISE 16.2: the parts' largest LSE, the sum of their weights, and the weighted sum of O (about 20 lines)
    constexpr int BATCH = 16; // parts at a time
#pragma unroll 1
    for (int first = 0; first < plan.splits; first += BATCH) {
        const float LSE_part =
            first + lane < plan.splits && lane < BATCH ? LSE_parts[(first + lane) * rows] : -INFINITY;
        float2 part[BATCH];
#pragma unroll
        for (int i = 0; i < BATCH; i++)
            part[i] = first + i < plan.splits ? *(const float2 *)(O_parts + (first + i) * part_size)
                                              : make_float2(0, 0);
        float raised = fmaxf(top, LSE_part);
        for (int mask = 16; mask > 0; mask /= 2)
            raised = fmaxf(raised, __shfl_xor_sync(0xffffffff, raised, mask));
        const float rescale = expf(top - raised), weight = expf(LSE_part - raised);
        top = raised;
        sum = sum * rescale + weight;
        O = make_float2(O.x * rescale, O.y * rescale);
#pragma unroll
        for (int i = 0; i < BATCH; i++) {
            const float weight_i = __shfl_sync(0xffffffff, weight, i);
            O.x += weight_i * part[i].x;
            O.y += weight_i * part[i].y;
        }
    }
    for (int mask = 16; mask > 0; mask /= 2) sum += __shfl_xor_sync(0xffffffff, sum, mask);
    // STUB top = LSE_parts[rows * (plan.splits - 1)];
    // STUB sum = 1;
    // STUB O.x = O_parts[part_size * (plan.splits - 1)];
    // END
    const float inverse = sum > 0 ? 1 / sum : 0;
    store_pair(dst, O.x * inverse, O.y * inverse);
    if (lane == 0 && column == 0) *LSE = top + logf(sum); // -inf where sum is 0
}

template <typename T>
static cudaError_t launch_combine(const attention_variant &v, const Plan &plan, cudaStream_t stream)
{
    const int64_t rows = (int64_t)plan.q_rows * v.heads;
    if (rows > INT_MAX) return cudaErrorInvalidValue;
    return launch_early(combine_kernel<T>, dim3((unsigned)rows, v.v_head_dim / 64), 32, 0, stream, v, plan);
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
