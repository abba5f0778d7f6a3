// Chapter 20, step 5: a layer of a mixture of experts, forward.
//
// Question: what stands between a router's logits and two grouped products, and who waits for whom?
//
// Grows from: nothing.
// Seven launches, none of which waits for the host: how many rows there are is known, tokens * top, and whose they are only step 2
// must know, on the device.
//
//      route          logits            -> expert, weight      a warp a token: its `top` largest, softmax over them
//      place          expert            -> counts, place       a block an expert: which row each copy of a token gets
//      permute        x                 -> rows in e4m3        read once, quantised once, written to each of its rows
//      ragged_segments        W1        -> gate_up             step 2
//      fused                            -> rows in e4m3        chapter 18, step 6: SwiGLU and the cast
//      ragged_segments        W2        -> out                 step 2
//      unpermute      out, weight       -> y                   a token gathers its rows
//
// Rows are counted, not asked for with atomics, so that a token's copy is where it was in the run before, and sums are in the order
// of its experts: the same bits every time.
//
// Registers: at most 64 in the kernels here. Shared memory: 32 bytes.
// Run: make chapter-20 OP=moe STEP=moe
#include <math.h>

#include "../../common/device/scratch.h"
#include "../../common/device/fp8.cuh"
#include "../18_fp8_quantization/launchers.h"
#include "moe.cuh"

constexpr int NUM_THREADS = 256;
constexpr int NUM_WARPS = NUM_THREADS / 32;
constexpr int GROUPS = NUM_THREADS / GROUP_LANES; // of 128 neighbours a block has at a time

// Of two experts, whether the first comes first.
static __device__ bool comes_first(float logit, int expert, float other_logit, int other_expert)
{
    return logit > other_logit || (logit == other_logit && expert < other_expert);
}

// A warp takes a token: `top` times the first of the experts that come behind the last one taken.
static __global__ void __launch_bounds__(NUM_THREADS) route_kernel(const float *logits, // (tokens, experts)
                                                                   int *expert,         // (tokens, top)
                                                                   float *weight,       // (tokens, top)
                                                                   int tokens, int experts, int top)
{
    const int token = blockIdx.x * NUM_WARPS + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (token >= tokens) return;
    const float *row = logits + (size_t)token * experts;
    float last = INFINITY, largest = 0.0f, sum = 0.0f, my_share = 0.0f;
    int last_expert = -1, my_expert = 0; // lane s keeps what is taken as s-th
    for (int s = 0; s < top; s++) {
        float best = -INFINITY;
        int best_expert = INT32_MAX;
        for (int e = lane; e < experts; e += 32)
            if (comes_first(last, last_expert, row[e], e) && comes_first(row[e], e, best, best_expert)) {
                best = row[e];
                best_expert = e;
            }
#pragma unroll
        for (int offset = 16; offset > 0; offset /= 2) {
            const float other = __shfl_xor_sync(0xffffffff, best, offset);
            const int other_expert = __shfl_xor_sync(0xffffffff, best_expert, offset);
            if (comes_first(other, other_expert, best, best_expert)) {
                best = other;
                best_expert = other_expert;
            }
        }
        if (best_expert == INT32_MAX) __trap(); // NaN comes behind nobody.
        if (s == 0) largest = best;
        const float share = expf(best - largest);
        sum += share;
        if (lane == s) {
            my_share = share;
            my_expert = best_expert;
        }
        last = best;
        last_expert = best_expert;
    }
    if (lane >= top) return;
    expert[(size_t)token * top + lane] = my_expert;
    weight[(size_t)token * top + lane] = my_share / sum;
}

// Every thread of the block adds its number; all get the sum.
static __device__ int block_sum(int value, int (&warp_sum)[NUM_WARPS])
{
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) value += __shfl_xor_sync(0xffffffff, value, offset);
    if (threadIdx.x % 32 == 0) warp_sum[threadIdx.x / 32] = value;
    __syncthreads(); // Every warp's is there.
    int sum = 0;
#pragma unroll
    for (int w = 0; w < NUM_WARPS; w++) sum += warp_sum[w];
    return sum;
}

// A block gives its expert's copies their rows, in the order of the copies, behind those of the experts before.
static __global__ void __launch_bounds__(NUM_THREADS) place_kernel(const int *expert, // (copies)
                                                                   int *counts,       // (experts)
                                                                   int *place,        // (copies)
                                                                   int *source,       // (copies)
                                                                   int copies)
{
    __shared__ int warp_sum[NUM_WARPS];
    const int mine = blockIdx.x, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    int before = 0;
    for (int i = threadIdx.x; i < copies; i += NUM_THREADS) before += expert[i] < mine;
    const int first_row = block_sum(before, warp_sum);
    int row = first_row;
    for (int first = 0; first < copies; first += NUM_THREADS) {
        const int i = first + threadIdx.x;
        const bool is_mine = i < copies && expert[i] == mine;
        const unsigned lanes = __ballot_sync(0xffffffff, is_mine);
        __syncthreads(); // Everybody has read warp_sum.
        if (lane == 0) warp_sum[warp] = __popc(lanes);
        __syncthreads(); // Every warp's is there.
        // EXERCISE 20.2: the row of this thread's copy, and the first row of the next 256 copies' (about 6 lines)
        int at = row + __popc(lanes & ((1u << lane) - 1));
#pragma unroll
        for (int w = 0; w < NUM_WARPS; w++) {
            if (w < warp) at += warp_sum[w];
            row += warp_sum[w];
        }
        // STUB const int at = row;
        // END
        if (is_mine) {
            place[i] = at;
            source[at] = i;
        }
    }
    if (threadIdx.x == 0) counts[mine] = row - first_row;
}

// 16 lanes quantise 128 neighbours of a token, as chapter 18's step 3, and write them to each of its rows.
static __global__ void __launch_bounds__(NUM_THREADS)
    permute_kernel(const __nv_bfloat16 *x, // (tokens, hidden)
                   const int *place,       // (tokens, top)
                   uint8_t *out,           // (tokens * top, hidden)
                   float *scale,           // (groups, scale_rows)
                   int tokens, int hidden, int top, int groups, int scale_rows)
{
    const size_t index = (size_t)blockIdx.x * GROUPS + threadIdx.x / GROUP_LANES;
    const size_t token = index / groups;
    const int group = index % groups, pack = threadIdx.x % GROUP_LANES;
    const int col = group * GROUP + pack * PACK<__nv_bfloat16>;
    const bool inside = token < (size_t)tokens && col < hidden;
    const uint4 frag = inside ? *(const uint4 *)(x + token * hidden + col) : make_uint4(0, 0, 0, 0);
    const float s = scale_of<E4m3>(lanes_amax<GROUP_LANES>(pack_amax(frag)), false);
    if (token >= (size_t)tokens) return;
    float values[8];
    unpack(values, frag, __nv_bfloat16());
    // EXERCISE 20.3: quantised once, eight numbers and their scale go to each of the token's rows (about 6 lines)
    const uint2 eight = quantise<E4m3>(values, __frcp_rn(s));
    for (int copy = 0; copy < top; copy++) {
        const size_t row = place[token * top + copy];
        if (inside) *(uint2 *)(out + row * hidden + col) = eight;
        if (pack == 0) scale[(size_t)group * scale_rows + row] = s;
    }
    // STUB if (pack == 0) scale[(size_t)group * scale_rows + place[token * top]] = s; // of one of its rows
    // END
    if (token == (size_t)tokens - 1 && pack == 0)
        for (int row = tokens * top; row < scale_rows; row++) scale[(size_t)group * scale_rows + row] = 0.0f;
}

extern "C" cudaError_t moe(const struct moe_layer *layer, cudaStream_t stream)
{
    const moe_layer &l = *layer;
    if (!moe_sizes_fit(l) || !l.x || !l.logits || !l.W1 || !l.W2 || !l.scale_W1 || !l.scale_W2 || !l.y ||
        !l.expert || !l.weight || !l.counts || !l.place || !l.source || !l.gate_up || !l.out)
        return cudaErrorInvalidValue;
    const int rows = l.tokens * l.top, scale_rows = (rows + 3) / 4 * 4;
    const int groups = (l.hidden - 1) / GROUP + 1, inner_groups = (l.inner - 1) / GROUP + 1;
    uint8_t *x_rows, *h_rows;
    float *x_scale, *h_scale;
    Arena arena = {};
    cudaError_t error = cudaSuccess;
    for (int pass = 0; pass < 2; pass++) { // counted, then there
        void *memory = NULL;
        if (pass == 1) error = get_scratch(arena.used, &memory);
        if (error != cudaSuccess) return error;
        arena = {(char *)memory};
        x_rows = arena.take<uint8_t>((size_t)rows * l.hidden);
        x_scale = arena.take<float>((size_t)groups * scale_rows);
        h_rows = arena.take<uint8_t>((size_t)rows * l.inner);
        h_scale = arena.take<float>((size_t)inner_groups * scale_rows);
    }

    route_kernel<<<(l.tokens - 1) / NUM_WARPS + 1, NUM_THREADS, 0, stream>>>(l.logits, l.expert, l.weight,
                                                                             l.tokens, l.experts, l.top);
    place_kernel<<<l.experts, NUM_THREADS, 0, stream>>>(l.expert, l.counts, l.place, l.source, rows);
    const long long pieces = (long long)l.tokens * groups;
    permute_kernel<<<(unsigned)((pieces - 1) / GROUPS + 1), NUM_THREADS, 0, stream>>>(
        (const __nv_bfloat16 *)l.x, l.place, x_rows, x_scale, l.tokens, l.hidden, l.top, groups, scale_rows);
    error = cudaGetLastError();
    if (error == cudaSuccess)
        error = ragged_segments(x_rows, l.W1, x_scale, l.scale_W1, l.counts, l.gate_up, rows, 2 * l.inner,
                                l.hidden, l.experts, stream);
    if (error == cudaSuccess)
        error = fused(E4M3, l.gate_up, h_rows, h_scale, rows, l.inner, true, false, stream);
    if (error == cudaSuccess)
        error = ragged_segments(h_rows, l.W2, h_scale, l.scale_W2, l.counts, l.out, rows, l.hidden, l.inner,
                                l.experts, stream);
    if (error == cudaSuccess) error = unpermute(l, l.out, l.weight, l.y, stream);
    return error;
}
