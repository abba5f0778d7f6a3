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
// which a second kernel does, a warp a row. It is launched before the first one has ended and waits inside (griddepcontrol), so
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
#include <type_traits>

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

// O and LSE of a query and a head from those of the parts: a warp, which is the block. It has 2 or 4 neighbouring columns a
// lane, and needs no shared memory and few registers: one such block has room beside attention_kernel's, and is there when that ends.
template <typename T, int DV>
static __global__ void __launch_bounds__(32)
    combine_kernel(const __grid_constant__ attention_variant v, const __grid_constant__ Plan plan)
{
    constexpr int VEC = DV == 64 ? 2 : 4; // columns that a lane loads at a time
    using Vec = typename std::conditional<VEC == 2, float2, float4>::type;
    const int lane = threadIdx.x;
    const unsigned row = blockIdx.x, query = row / v.heads, head = row % v.heads;
    const size_t rows = (size_t)plan.q_rows * v.heads;
    const float *LSE_parts = plan.LSE_parts + row, *O_parts = plan.O_parts + (size_t)row * DV + lane * VEC;
    T *dst = (T *)v.O + (size_t)row * DV + lane * VEC;
    float *LSE = v.LSE + (v.cu_q ? (size_t)head * v.q_total + query
                                 : ((size_t)(query / v.q_len) * v.heads + head) * v.q_len + query % v.q_len);
    wait_for_kernels_before(); // The parts are there.

    float O[DV / 32] = {}, sum = 0;
    // EXERCISE 16.2: the parts' largest LSE, the sum of their weights, and the weighted sum of O (about 16 lines)
    float top = -INFINITY;
#pragma unroll 1
    for (int i = lane; i < plan.splits; i += 32) top = fmaxf(top, LSE_parts[i * rows]);
    for (int mask = 16; mask > 0; mask /= 2) top = fmaxf(top, __shfl_xor_sync(0xffffffff, top, mask));
    const float finite_top = top > -INFINITY ? top : 0; // no part has seen a key
#pragma unroll 4
    for (int i = 0; i < plan.splits; i++) {
        const float weight = expf(LSE_parts[i * rows] - finite_top);
        sum += weight;
#pragma unroll
        for (int j = 0; j < DV / 32; j += VEC) {
            const Vec part = *reinterpret_cast<const Vec *>(O_parts + i * rows * DV + j * 32);
#pragma unroll
            for (int k = 0; k < VEC; k++) O[j + k] += weight * reinterpret_cast<const float *>(&part)[k];
        }
    }
    // STUB const float finite_top = LSE_parts[rows * (plan.splits - 1)];
    // STUB sum = 1;
    // STUB O[0] = O_parts[0];
    // END
    const float inverse = sum > 0 ? 1 / sum : 0;
#pragma unroll
    for (int j = 0; j < DV / 32; j += 2)
        store_pair(dst + j / VEC * VEC * 32 + j % VEC, O[j] * inverse, O[j + 1] * inverse);
    if (lane == 0) *LSE = finite_top + logf(sum); // -inf where sum is 0
}

template <typename T>
static cudaError_t launch_combine(const attention_variant &v, const Plan &plan, cudaStream_t stream)
{
    const int64_t rows = (int64_t)plan.q_rows * v.heads;
    if (rows > INT_MAX) return cudaErrorInvalidValue;
    const auto launch = [&](auto kernel) {
        return launch_early(kernel, (unsigned)rows, 32, 0, stream, v, plan);
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
