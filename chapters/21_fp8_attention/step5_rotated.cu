// Chapter 21, step 5: Q and K are rotated before they have 8 bits.
//
// Question: in a model's Q and K some of the head's columns are 30 times the others, in every row. A group's scale does not help:
// every group has such a column. Is there another basis in which no column is large?
//
// The same orthogonal matrix for Q and K leaves Q Kᵀ as it is: (Q M)(K M)ᵀ = Q M Mᵀ Kᵀ. M = a random sign for each column, then
// a Hadamard matrix / sqrt(D): each number of the result is the sum of all of a row, each with + or -, and one large one is
// spread over all. It takes D log2(D) additions, not D²: log2(D) rounds, in which two numbers become sum and difference.
//
//      column        b7 b6 | b5 b4 b3 | b2 b1 b0        D = 256; 128 has two lanes' bits, 64 one
//      held by       pack  | lane     | place in it     of a row's D / 32 lanes, each with 4 packs of 8
//      rounds        in a  | shuffles | in a thread
//                    thread|          |
//
// A block has 128 rows of a head, all in registers: their largest magnitude is there when it is needed, and memory is read once.
// That of fp32 is taken as an integer, in which a NaN is above all: redux.sync and atomicMax know no others.
//
// Grows from: nothing.
// New instructions: redux.sync.max. Registers: 32 of a row a thread. 4 D threads.
// Run: make chapter-21 OP=rotation STEP=rotated
#include <climits>

#include "../../common/device/fp8.cuh"
#include "../../common/device/sm90_attention.cuh"
#include "launchers.h"

constexpr int PACK_COLS = PACK<__nv_bfloat16>; // 8
constexpr int PACKS = 4;                       // that a thread has of a row
constexpr int COLS = PACKS * PACK_COLS;        // 32

// Sum and difference of numbers that are `distance` apart, among a thread's own.
static __device__ void own_round(float (&x)[COLS], int distance)
{
    // EXERCISE 21.2: each pair becomes its sum and its difference (about 7 lines)
#pragma unroll
    for (int i = 0; i < COLS; i++) {
        if (i & distance) continue;
        const float sum = x[i] + x[i + distance];
        x[i + distance] = x[i] - x[i + distance];
        x[i] = sum;
    }
    // END
}

// The same of this lane's and the lane's that is `distance` further or before: the upper one keeps the differences.
static __device__ void lanes_round(float (&x)[COLS], int distance, int lane)
{
    // EXERCISE 21.3: the same with the other lane's numbers (about 3 lines)
    const float sign = lane & distance ? -1 : 1;
#pragma unroll
    for (int i = 0; i < COLS; i++) x[i] = fmaf(sign, x[i], __shfl_xor_sync(0xffffffff, x[i], distance));
    // END
}

template <int D, bool ROTATE>
__global__ void __launch_bounds__(4 * D) rotated_kernel(const __nv_bfloat16 *x, // (batch, len, heads, D)
                                                        const float *signs,     // (D)
                                                        uint8_t *out,           // (batch, len, heads, D)
                                                        float *scale, // (batch, heads, len / 128 rounded up)
                                                        int len)
{
    constexpr int LANES = D / COLS; // of a row
    __shared__ unsigned block_amax;
    if (threadIdx.x == 0) block_amax = 0;
    __syncthreads();

    const int head = blockIdx.y, heads = gridDim.y, batch = blockIdx.z;
    const int lane = threadIdx.x % LANES, row = blockIdx.x * GROUP + threadIdx.x / LANES;
    const size_t first = (((size_t)batch * len + row) * heads + head) * D; // of the row
    float values[COLS] = {};
    if (row < len) {
#pragma unroll
        for (int pack = 0; pack < PACKS; pack++)
            load_values(*reinterpret_cast<float(*)[PACK_COLS]>(&values[pack * PACK_COLS]),
                        x + first + (pack * LANES + lane) * PACK_COLS);
    }

    if constexpr (ROTATE) {
#pragma unroll
        for (int i = 0; i < COLS; i++)
            values[i] *= signs[(i / PACK_COLS * LANES + lane) * PACK_COLS + i % PACK_COLS];
#pragma unroll
        for (int distance = 1; distance < COLS; distance *= 2) own_round(values, distance);
#pragma unroll
        for (int distance = 1; distance < LANES; distance *= 2) lanes_round(values, distance, lane);
    }

    unsigned amax = 0;
#pragma unroll
    for (int i = 0; i < COLS; i++) amax = max(amax, __float_as_uint(fabsf(values[i])));
    amax = __reduce_max_sync(0xffffffff, amax);
    if (threadIdx.x % 32 == 0) atomicMax(&block_amax, amax);
    __syncthreads();

    const float root = ROTATE ? rsqrtf(D) : 1;
    const float group_scale = scale_of<E4m3>(__uint_as_float(block_amax) * root, false);
    const float inverse = root / group_scale;
    if (threadIdx.x == 0) scale[((size_t)batch * heads + head) * gridDim.x + blockIdx.x] = group_scale;
    if (row >= len) return;
#pragma unroll
    for (int pack = 0; pack < PACKS; pack++)
        *reinterpret_cast<uint2 *>(out + first + (pack * LANES + lane) * PACK_COLS) =
            quantise<E4m3>(*reinterpret_cast<const float(*)[PACK_COLS]>(&values[pack * PACK_COLS]), inverse);
}

extern "C" cudaError_t rotated(const struct rotation *r, cudaStream_t stream)
{
    if (!r->x || !r->out || !r->scale || (r->rotate && !r->signs) ||
        ((uintptr_t)r->x | (uintptr_t)r->out) % 16 || r->batch < 1 || r->len < 1 || r->heads < 1 ||
        r->batch > 65535 || r->heads > 65535 || r->len > INT_MAX - GROUP)
        return cudaErrorInvalidValue;
    const dim3 grid((r->len - 1) / GROUP + 1, r->heads, r->batch);
    const auto *x = (const __nv_bfloat16 *)r->x;
    auto *out = (uint8_t *)r->out;
    return with_types(BF16, r->head_dim, [&](auto, auto d) {
        constexpr int D = d.value;
        if (r->rotate)
            rotated_kernel<D, true><<<grid, 4 * D, 0, stream>>>(x, r->signs, out, r->scale, r->len);
        else
            rotated_kernel<D, false><<<grid, 4 * D, 0, stream>>>(x, r->signs, out, r->scale, r->len);
        return cudaGetLastError();
    });
}
