// Chapter 21, step 5: Q and K are rotated before they have 8 bits.
//
// Question: in a model's Q and K some of the head's columns are 30 times the others, in every row. A group's scale does not help:
// every group has such a column. Is there another basis in which no column is large?
//
// The same orthogonal matrix for Q and K leaves Q Kᵀ as it is: (Q M)(K M)ᵀ = Q M Mᵀ Kᵀ. M = a random sign for each column, then
// a Hadamard matrix / sqrt(D): each number of the result is the sum of all of a row, each with + or -, and one large one is
// spread over all. It takes D log2(D) additions, not D²: log2(D) rounds, one for each bit of a column's number, in which two
// numbers become sum and difference. Four rounds are a matrix of 16 x 16, which mma multiplies: by 1 and -1, which is exact.
//
//      column's bit      b7 b6     b5       b4 b3    b2 b1     b0              D = 256; 128 has no b7, 64 no b6
//      tells, loaded     packs     packs    lanes    pairs     two in a pair   4 lanes a row, packs of 8 columns
//      round             thread    mma      mma      thread    mma
//      tells, stored     pieces    lanes    lanes    numbers   numbers         8 lanes a row, each of two rows
//
// x is mma's B, a column for each of a warp's 8 rows. So a thread has D / 4 numbers, all of them until the largest magnitude of 128
// rows is known, and memory is read once. The blocks of a cluster share the rows, two of them or, at D = 256, four: an SM then has five to
// eight blocks, not one to four, and one loads while another stores. max.NaN keeps a NaN; as an integer, which is what redux.sync knows, it
// is above all.
//
// Launched early (chapter 6, step 3).
//
// Grows from: nothing.
// New instructions: redux.sync.max. Registers: D / 4 of two rows a thread.
// Run: make chapter-21 OP=rotation STEP=rotated
#include <climits>

#include "../../common/device/exchange.cuh"
#include "../../common/device/fp8.cuh"
#include "../../common/device/launch.cuh"
#include "../../common/device/ptx.cuh"
#include "../../common/device/sm90_attention.cuh"
#include "launchers.h"

constexpr int PACK_COLS = PACK<__nv_bfloat16>; // 8
constexpr int ROWS = 8;                        // of a warp
constexpr int WARPS = GROUP / ROWS;            // of a group

template <int D>
constexpr int CLUSTER = D == 256 ? 4 : 2; // blocks that share a group's rows
template <int D>
constexpr int THREADS = 32 * WARPS / CLUSTER<D>;
template <int D> // that an SM has registers for
constexpr int BLOCKS = D == 64    ? 8
                       : D == 128 ? 5
                                  : 6;
template <int D>
constexpr bool HEADS_FIRST = D < 256; // neighbouring blocks have neighbouring heads, not groups
template <int D>
constexpr int PIECES = ROWS *D / 32 / PACK_COLS; // of 8 neighbours that a lane has of the warp's rows

// Sum and difference of numbers that are `distance` apart, among a thread's own.
template <int COLS>
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

// The Hadamard matrix of b0, b3, b4 and b5, 1 or -1 in bf16, as mma's A. Its row is b3, b4, b5 and b0 from the lowest bit on, its column,
// which is x's row in B, b0, b3, b4 and b5.
static __device__ void hadamard_fragment(uint32_t (&H_frag)[4], int lane)
{
    // EXERCISE 21.3: an even number of bits in common is a 1, an odd number a -1 (about 5 lines)
#pragma unroll
    for (int i = 0; i < 4; i++) { // a row of b0 = i % 2, two columns of b5 = i / 2, b0 = 0 and 1
        const int common = __popc(lane / 4 & lane % 4) + (i / 2 & lane / 16);
        H_frag[i] = 0x3f803f80 ^ (common % 2 ? 0x80008000 : 0) ^ (i % 2 ? 0x80000000 : 0);
    }
    // END
}

// x (of a row, as the lane loaded it) becomes its product with the Hadamard matrix (of two rows, a half of `values` each).
template <int D>
static __device__ void rotate(float (&values)[D / 4], const uint4 (&x)[PIECES<D>], int lane)
{
    uint32_t H_frag[4] = {};
    hadamard_fragment(H_frag, lane);
    float(&rows)[2][D / 8] = reinterpret_cast<float(&)[2][D / 8]>(values);
#pragma unroll
    for (int i = 0; i < PIECES<D>; i += 2) {
        const uint32_t x_frag[4][2] = {
            {x[i].x, x[i + 1].x}, {x[i].y, x[i + 1].y}, {x[i].z, x[i + 1].z}, {x[i].w, x[i + 1].w}};
#pragma unroll
        for (int pair = 0; pair < 4; pair++) {
            float acc[4] = {};
            mma_m16n8k16_bf16(acc, H_frag, x_frag[pair]);
#pragma unroll
            for (int j = 0; j < 4; j++) rows[j % 2][i / 2 * PACK_COLS + pair * 2 + j / 2] = acc[j];
        }
    }
#pragma unroll
    for (int distance = 2; distance < D / 8; distance *= 2) {
        own_round(rows[0], distance);
        own_round(rows[1], distance);
    }
}

template <int D, bool ROTATE>
__global__ void __cluster_dims__(CLUSTER<D>) __launch_bounds__(THREADS<D>, BLOCKS<D>)
    rotated_kernel(const __nv_bfloat16 *x, // (batch, len, heads, D)
                   const float *signs,     // (D)
                   uint8_t *out,           // (batch, len, heads, D)
                   float *scale,           // (batch, heads, len / 128 rounded up)
                   int len, int heads)
{
    constexpr int PIECES = ::PIECES<D>, BLOCK_WARPS = WARPS / CLUSTER<D>;
    __shared__ uint4 sign_bits[D / PACK_COLS];                     // of a pack of x
    __shared__ Exchange<float, CLUSTER<D>, BLOCK_WARPS> warp_amax; // of the whole group, in each block
    warp_amax.begin();
    wait_for_kernels_before();

    const unsigned tile = blockIdx.x / CLUSTER<D>;
    const int batch = blockIdx.y, groups = (len - 1) / GROUP + 1;
    const int group = HEADS_FIRST<D> ? tile / heads : tile % groups;
    const int head = HEADS_FIRST<D> ? tile % heads : tile / groups;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int warp_row = ((group * CLUSTER<D> + blockIdx.x % CLUSTER<D>)*BLOCK_WARPS + warp) * ROWS;
    // Of a row that is loaded or stored, the first number.
    const auto first = [&](int row) { return (((size_t)batch * len + row) * heads + head) * D; };

    uint4 packs[PIECES] = {};
    if (warp_row + lane / 4 < len) {
#pragma unroll
        for (int i = 0; i < PIECES; i++)
            packs[i] = load_piece<PACK_COLS>(x + first(warp_row + lane / 4) + i * 32 + lane % 4 * PACK_COLS);
    }
    float values[D / 4];
    if constexpr (ROTATE) {
        if (threadIdx.x < D / 2) { // two columns
            const float2 pair = reinterpret_cast<const float2 *>(signs)[threadIdx.x];
            reinterpret_cast<uint32_t *>(sign_bits)[threadIdx.x] =
                __byte_perm(__float_as_uint(pair.x), __float_as_uint(pair.y), 0x7632) & 0x80008000;
        }
        __syncthreads();
#pragma unroll
        for (int i = 0; i < PIECES; i++) {
            const uint4 bits = sign_bits[i * 4 + lane % 4];
            packs[i] = make_uint4(packs[i].x ^ bits.x, packs[i].y ^ bits.y, packs[i].z ^ bits.z,
                                  packs[i].w ^ bits.w);
        }
        rotate<D>(values, packs, lane);
    } else {
#pragma unroll
        for (int i = 0; i < PIECES; i++)
            unpack(reinterpret_cast<float(&)[PACK_COLS]>(values[i * PACK_COLS]), packs[i], __nv_bfloat16());
    }

    float amax = 0;
#pragma unroll
    for (int i = 0; i < D / 4; i++) amax = larger(amax, fabsf(values[i]));
    amax = __uint_as_float(__reduce_max_sync(0xffffffff, __float_as_uint(amax)));
    warp_amax.tell(amax);
    amax = __uint_as_float(__reduce_max_sync(0xffffffff, __float_as_uint(warp_amax.told[lane % WARPS])));

    const float root = ROTATE ? rsqrtf(D) : 1;
    const float group_scale = scale_of<E4m3>(amax * root, false);
    const float inverse = root / group_scale;
    if (blockIdx.x % CLUSTER<D> == 0 && threadIdx.x == 0)
        scale[((size_t)batch * heads + head) * groups + group] = group_scale;
#pragma unroll
    for (int i = 0; i < PIECES; i++) {
        const int row = warp_row + (ROTATE ? lane % 4 * 2 + i / (PIECES / 2) : lane / 4);
        const int col = ROTATE ? i % (PIECES / 2) * 64 + lane / 4 * 8 : i * 32 + lane % 4 * 8;
        if (row < len)
            *reinterpret_cast<uint2 *>(out + first(row) + col) =
                quantise<E4m3>(reinterpret_cast<float(&)[PACK_COLS]>(values[i * PACK_COLS]), inverse);
    }
}

extern "C" cudaError_t rotated(const struct rotation *r, cudaStream_t stream)
{
    if (!r->x || !r->out || !r->scale || (r->rotate && !r->signs) ||
        ((uintptr_t)r->x | (uintptr_t)r->signs | (uintptr_t)r->out) % 16 || r->batch < 1 || r->len < 1 ||
        r->heads < 1 || r->batch > 65535 || r->len > INT_MAX - GROUP)
        return cudaErrorInvalidValue;
    const auto *x = (const __nv_bfloat16 *)r->x;
    auto *out = (uint8_t *)r->out;
    return with_types(BF16, r->head_dim, [&](auto, auto d) {
        constexpr int D = d.value;
        const int64_t blocks = ((int64_t)(r->len - 1) / GROUP + 1) * r->heads * CLUSTER<D>;
        if (blocks > INT_MAX) return cudaErrorInvalidValue;
        const auto kernel = r->rotate ? rotated_kernel<D, true> : rotated_kernel<D, false>;
        return launch_early(kernel, dim3(blocks, r->batch), THREADS<D>, 0, stream, x, r->signs, out, r->scale,
                            r->len, r->heads);
    });
}
