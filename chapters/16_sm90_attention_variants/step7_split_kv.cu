// Chapter 16, step 7: the keys of one query are shared out over the GPU.
//
// Question: one sequence with 65,536 keys and 8 heads of K and V is 8 blocks on 132 SMs. Who reads the other 94 % of the
// bandwidth?
//
// Blocks that have a share of all tiles' keys each, all shares alike: an end of one tile, the beginning of the next (Part). Of a tile's
// parts each has an m, an l and an O of its own. They are merged as tiles are, by bringing all to one maximum; since each part
// has written O / l and LSE = m + log l, that is
//
//      LSE = log sum e^LSE_i,   O = sum e^(LSE_i - LSE) O_i
//
// which a second kernel does, a warp for 64 or 128 columns of a row. It is launched before the first one has ended and waits inside
// (griddepcontrol), so that nobody waits for its launch. The first one is launched early as well. Where no memory says what its
// first work is, a block finds it before the kernel ahead has ended; of few queries it has the L2 fetch the first tile, too. Of those
// no more of K and V is under way than keeps memory busy (BYTES_UNDER_WAY), and what no other block reads leaves the L2 first.
//
// shares_of_keys: a share is a tile where those nearly fill whole rounds of the SMs. Else each SM has one; or, where only memory knows
// how long a sequence is, all tiles have as many, the next for whoever is done first. An empty part has LSE = -inf and weighs
// nothing; the sink is in the first part.
//
// Grows from: step 6 (pack_gqa).
// New instructions: cp.async.bulk.prefetch.tensor, cp.async.bulk.tensor with .L2::cache_hint.
// Code: here, and kernel.cuh, Part, tile_after, the end of describe_work, LSE_place, store_part, prefetch_tile.
// Run: make chapter-16 OP=split_kv
#include <cfloat>
#include <climits>
#include <cmath>

#include "../../common/device/launch.cuh"
#include "../../common/device/ptx.cuh"
#include "../../common/device/types.cuh"
#include "launchers.h"
#include "plan.h"

constexpr int MAX_PARTS = 128; // of a tile
constexpr int MIN_KEYS = 256;  // of a part, on average: four tiles of few queries
constexpr int PART_KEYS = 256; // what an H200 gives an SM in the 4 us of a part's two ends
constexpr double FULL = 0.9;   // of the SMs have work: no more are sought

int shares_of_keys(const attention_variant &v, const Plan &plan)
{
    int device, sms;
    const int tiles = plan.num_tiles;
    if (cudaGetDevice(&device) != cudaSuccess) return tiles;
    if (cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device) != cudaSuccess) return tiles;
    if (tiles >= 4 * sms) return tiles; // the last round is a fifth of the time at most
    const int64_t seen = (int64_t)v.left + v.right + v.q_len, keys = seen < v.k_len ? seen : v.k_len;
    const int most = (int)(keys / MIN_KEYS < MAX_PARTS ? keys / MIN_KEYS : MAX_PARTS); // parts of a tile
    if (most < 2 || tiles >= FULL * ((tiles - 1) / sms + 1) * sms) return tiles;
    if (!v.cu_q && !v.used_k) {
        const int alike = tiles * (sms / tiles < most ? sms / tiles : most); // every tile has as many parts
        return alike >= FULL * sms || alike == tiles * most ? alike : sms;
    }
    int best = 1;
    double least = INFINITY; // what the busiest block has to read
    for (int parts = 1; parts <= most; parts++) {
        const double read = ((tiles * parts - 1) / sms + 1) * ((double)keys / parts + PART_KEYS);
        if (read < least) {
            least = read;
            best = parts;
        }
    }
    return tiles * best;
}

// O and LSE of a query and a head from those of the parts: a warp, which is the block, COLUMNS a lane. It needs no shared memory and few
// registers: several such blocks have room beside attention_kernel's, and are there when that ends. It asks for BATCH parts before it
// looks at any: what it takes is mostly the time until memory answers.
template <typename T, int COLUMNS, int BATCH>
static __global__ void __launch_bounds__(32)
    combine_kernel(const __grid_constant__ attention_variant v, const __grid_constant__ Plan plan)
{
    struct Columns {
        alignas(COLUMNS * 4) float x[COLUMNS];
    };
    struct Rounded {
        alignas(COLUMNS * 2) uint32_t pair[COLUMNS / 2];
    } rounded;
    const int lane = threadIdx.x, column = blockIdx.y * COLUMNS * 32 + lane * COLUMNS, parts = plan.parts;
    const unsigned row = blockIdx.x, query = row / v.heads, head = row % v.heads;
    const float *LSE_parts = plan.LSE_parts + (size_t)row * parts,
                *O_parts = plan.O_parts + (size_t)row * parts * v.v_head_dim + column;
    T *dst = (T *)v.O + (size_t)row * v.v_head_dim + column;
    float *LSE = v.LSE + (v.cu_q ? (size_t)head * v.q_total + query
                                 : ((size_t)(query / v.q_len) * v.heads + head) * v.q_len + query % v.q_len);
    wait_for_kernels_before(); // The parts are there.

    float top = -FLT_MAX, sum = 0; // m and l of a row; each lane has a part of the sum
    Columns O = {};
    // EXERCISE 16.2: the parts' largest LSE, the sum of their weights, and the weighted sum of O (about 20 lines)
#pragma unroll 1
    for (int first = 0; first < parts; first += BATCH) {
        const float LSE_part = first + lane < parts && lane < BATCH ? LSE_parts[first + lane] : -INFINITY;
        Columns part[BATCH];
#pragma unroll
        for (int i = 0; i < BATCH; i++)
            if (first + i < parts) part[i] = *(const Columns *)(O_parts + (first + i) * v.v_head_dim);
        float raised = fmaxf(top, LSE_part);
        for (int mask = 16; mask > 0; mask /= 2)
            raised = fmaxf(raised, __shfl_xor_sync(0xffffffff, raised, mask));
        const float rescale = __expf(top - raised), weight = __expf(LSE_part - raised);
        top = raised;
        sum = sum * rescale + weight;
        for (float &x : O.x) x *= rescale;
#pragma unroll
        for (int i = 0; i < BATCH; i++) {
            const float weight_i = __shfl_sync(0xffffffff, weight, i);
            if (weight_i == 0) continue; // What is there may be no part's.
#pragma unroll
            for (int c = 0; c < COLUMNS; c++) O.x[c] += weight_i * part[i].x[c];
        }
    }
    for (int mask = 16; mask > 0; mask /= 2) sum += __shfl_xor_sync(0xffffffff, sum, mask);
    // STUB top = LSE_parts[0];
    // STUB sum = 1;
    // STUB O = *(const Columns *)O_parts;
    // END
    const float inverse = sum > 0 ? 1 / sum : 0;
#pragma unroll
    for (int c = 0; c < COLUMNS; c += 2)
        rounded.pair[c / 2] = pack_pair<T>(O.x[c] * inverse, O.x[c + 1] * inverse);
    *(Rounded *)dst = rounded;
    if (lane == 0 && column == 0) *LSE = top + logf(sum); // -inf where sum is 0
}

template <typename T>
static cudaError_t launch_combine(const attention_variant &v, const Plan &plan, cudaStream_t stream)
{
    const int64_t rows = (int64_t)plan.q_rows * v.heads;
    if (rows > INT_MAX) return cudaErrorInvalidValue;
    // Many rows have few parts, and each its registers.
    constexpr int FEW = 4, MANY = 16;
    const auto kernel = v.v_head_dim == 64
                            ? (plan.parts <= FEW ? combine_kernel<T, 2, FEW> : combine_kernel<T, 2, MANY>)
                            : (plan.parts <= FEW ? combine_kernel<T, 4, FEW> : combine_kernel<T, 4, MANY>);
    const int columns = v.v_head_dim == 64 ? 64 : 128;
    return launch_early(kernel, dim3((unsigned)rows, v.v_head_dim / columns), 32, 0, stream, v, plan);
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
