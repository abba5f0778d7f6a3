// Chapter 20, step 6: the layer's gradients.
//
// Question: every product of the forward has two in the backward: one along the weights' rows, one along the tokens. What must be
// quantised, and which way?
//
// Grows from: step 5 (moe).
// A product sums up along the rows of both of its matrices, and 128 neighbours along these rows share a scale. So the gradients, which
// take part in both, are quantised both ways, in one pass, from numbers that are in registers: chapter 18's step 5, but for segments.
//
//      g = weight * dy, a row a copy     along hidden -> ragged_segments, W2 transposed -> dh      along tokens -> dW2
//      h = SwiGLU(gate_up), again                                                                 along tokens -> dW2
//      a = SwiGLU's gradients with dh    along 2 inner -> ragged_segments, W1 transposed -> dx    along tokens -> dW1
//      x, a row a copy                                                                            along tokens -> dW1
//
// Along tokens each expert begins at a multiple of 128, and zeros are behind its last, as step 4 has it. The router's gradient is a dot
// product a copy, dy · out, through the softmax of a token's few weights. Everybody sums up in a fixed order.
//
// Registers: at most 128. Shared memory: 20,480 bytes.
// Run: make chapter-20 OP=moe_gradient STEP=moe_gradient
#include "../../common/device/ptx.cuh"
#include "../../common/device/scratch.h"
#include "../../common/device/fp8.cuh"
#include "moe.cuh"

constexpr int NUM_THREADS = 256;
constexpr int NUM_WARPS = NUM_THREADS / 32;
constexpr int ROWS = 8; // a thread has, eight columns of each
static_assert(NUM_THREADS / GROUP_LANES * ROWS == GROUP, "the threads have a square");
constexpr float LOG2_E = 1.44269504f;

static __device__ void load_eight(float (&values)[8], const __nv_bfloat16 *src)
{
    unpack(values, *(const uint4 *)src, __nv_bfloat16());
}

static __device__ float sigmoid(float x)
{
    return rcp_approx_ftz(1.0f + ex2_approx_ftz(-LOG2_E * x));
}

// What is quantised: eight neighbours of a row from `col` on.
struct Tokens { // x, (tokens, cols)
    const __nv_bfloat16 *x;
    const int *source;
    int top, cols;

    __device__ void operator()(float (&values)[8], int row, int col) const
    {
        load_eight(values, x + (size_t)(source[row] / top) * cols + col);
    }
};
struct Weighted { // dy, (tokens, cols), times the copy's weight
    Tokens dy;
    const float *weight;

    __device__ void operator()(float (&values)[8], int row, int col) const
    {
        dy(values, row, col);
        const float w = weight[dy.source[row]];
#pragma unroll
        for (int i = 0; i < 8; i++) values[i] *= w;
    }
};
struct Activations { // h = gate s(gate) up, (rows, inner)
    const __nv_bfloat16 *gate_up;
    int inner;

    __device__ void operator()(float (&values)[8], int row, int col) const
    {
        float up[8];
        load_eight(values, gate_up + (size_t)row * 2 * inner + col);
        load_eight(up, gate_up + (size_t)row * 2 * inner + inner + col);
#pragma unroll
        for (int i = 0; i < 8; i++) values[i] *= sigmoid(values[i]) * up[i];
    }
};
struct ActivationGradients { // of gate, then of up, (rows, 2 inner)
    const __nv_bfloat16 *gate_up, *dh;
    int inner;

    __device__ void operator()(float (&values)[8], int row, int col) const
    {
        const int c = col % inner;
        float gate[8], up[8];
        load_eight(values, dh + (size_t)row * inner + c);
        load_eight(gate, gate_up + (size_t)row * 2 * inner + c);
        load_eight(up, gate_up + (size_t)row * 2 * inner + inner + c);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const float s = sigmoid(gate[i]);
            values[i] *= s * (col < inner ? up[i] * (1.0f + gate[i] * (1.0f - s)) : gate[i]);
        }
    }
};

// Magnitudes as bits, in whose order a NaN is the largest.
static __device__ uint32_t magnitude(float x)
{
    return __float_as_uint(x) & 0x7fffffff;
}

// A block takes a square of 128 rows of one expert, or what is left of them, and 128 columns. ALONG_ROWS: `out` and `scale` too.
template <bool ALONG_ROWS, typename SOURCE>
static __global__ void __launch_bounds__(NUM_THREADS, 2)
    both_ways_kernel(SOURCE values_of,
                     const int *counts, // (experts)
                     uint8_t *out,      // (rows, cols)
                     float *scale,      // (groups, scale_rows)
                     uint8_t *out_t,    // (cols, out_t_cols)
                     float *scale_t,    // (out_t_cols / 128, cols)
                     int experts, int rows, int cols, int groups, int scale_rows, int out_t_cols)
{
    __shared__ uint32_t
        warp_amax[NUM_WARPS][8][GROUP_LANES]; // of 16 rows, (warp, column of eight, eight columns)
    __shared__ __align__(1024) uint8_t square_t[GROUP * GROUP]; // (column, row), swizzled
    const int tile = blockIdx.x / groups, group = blockIdx.x % groups;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, pack = lane % GROUP_LANES;
    const int col = group * GROUP + pack * 8;
    int expert = 0, begin = 0, in_expert = tile; // the expert's first row, and which of its squares
    for (; expert < experts; expert++) {
        const int squares = (counts[expert] + GROUP - 1) / GROUP;
        if (in_expert < squares) break;
        in_expert -= squares;
        begin += counts[expert];
    }
    if (expert == experts) return; // There are fewer squares than there might be.
    const int end = begin + counts[expert];
    const int row0 = begin + in_expert * GROUP + threadIdx.x / GROUP_LANES * ROWS;

    float values[ROWS][8];
    uint32_t amax[8] = {};
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
#pragma unroll
        for (int c = 0; c < 8; c++) values[i][c] = 0.0f;
        if (row0 + i < end && col < cols) values_of(values[i], row0 + i, col);
#pragma unroll
        for (int c = 0; c < 8; c++) amax[c] = max(amax[c], magnitude(values[i][c]));
    }
#pragma unroll
    for (int c = 0; c < 8; c++) {
        amax[c] = max(amax[c], __shfl_xor_sync(0xffffffff, amax[c], 16)); // the warp's other eight rows
        if (lane < GROUP_LANES) warp_amax[warp][c][pack] = amax[c];
    }

    if (ALONG_ROWS) {
#pragma unroll
        for (int i = 0; i < ROWS; i++) {
            uint32_t row_amax = 0;
#pragma unroll
            for (int c = 0; c < 8; c++) row_amax = max(row_amax, magnitude(values[i][c]));
#pragma unroll
            for (int offset = GROUP_LANES / 2; offset > 0; offset /= 2)
                row_amax = max(row_amax, __shfl_xor_sync(0xffffffff, row_amax, offset));
            const float s = scale_of<E4m3>(__uint_as_float(row_amax), false);
            const int row = row0 + i;
            if (row >= end) continue;
            if (col < cols)
                *(uint2 *)(out + (size_t)row * cols + col) = quantise<E4m3>(values[i], __frcp_rn(s));
            if (pack == 0) scale[(size_t)group * scale_rows + row] = s;
            if (pack == 0 && row == rows - 1) // Behind the last row there is room up to a multiple of four.
                for (int r = rows; r < scale_rows; r++) scale[(size_t)group * scale_rows + r] = 0.0f;
        }
    }

    __syncthreads(); // Every warp's maxima of the columns are there.
#pragma unroll
    for (int c = 0; c < 8; c++) {
#pragma unroll
        for (int w = 0; w < NUM_WARPS; w++) amax[c] = max(amax[c], warp_amax[w][c][pack]);
        const float s = scale_of<E4m3>(__uint_as_float(amax[c]), false);
        float column[ROWS];
#pragma unroll
        for (int i = 0; i < ROWS; i++) column[i] = values[i][c];
        *(uint2 *)(square_t + swizzled(pack * 8 + c, threadIdx.x / GROUP_LANES)) =
            quantise<E4m3>(column, __frcp_rn(s));
        if (threadIdx.x < GROUP_LANES && col < cols) scale_t[(size_t)tile * cols + col + c] = s;
    }

    __syncthreads(); // The square is there.
#pragma unroll
    for (int i = 0; i < GROUP * GROUP / 16 / NUM_THREADS; i++) {
        const int line = (threadIdx.x + i * NUM_THREADS) / 8, chunk = threadIdx.x % 8;
        const int column = group * GROUP + line;
        if (column >= cols) continue;
        const uint4 sixteen = *(const uint4 *)(square_t + (swizzled(line, 2 * chunk) & ~15));
        *(uint4 *)(out_t + (size_t)column * out_t_cols + tile * GROUP + chunk * 16) =
            line < GROUP / 2 ? sixteen : make_uint4(sixteen.z, sixteen.w, sixteen.x, sixteen.y);
    }
}

// A warp takes a token. With p = dy · out of each of its copies, the gradient of a chosen logit is weight (p - the weighted mean of p),
// and 0 of the others.
static __global__ void __launch_bounds__(NUM_THREADS)
    router_gradient_kernel(const __nv_bfloat16 *dy,  // (tokens, hidden)
                           const __nv_bfloat16 *out, // (rows, hidden)
                           const int *place,         // (tokens, top)
                           const int *expert,        // (tokens, top)
                           const float *weight,      // (tokens, top)
                           float *dlogits,           // (tokens, experts)
                           int tokens, int hidden, int experts, int top)
{
    const int token = blockIdx.x * NUM_WARPS + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (token >= tokens) return;
    const size_t first = (size_t)token * top;
    float my_product = 0.0f, mean = 0.0f; // lane s keeps copy s's
    for (int copy = 0; copy < top; copy++) {
        float product = 0.0f;
        for (int col = lane * 8; col < hidden; col += 256) {
            float a[8], b[8];
            load_eight(a, dy + (size_t)token * hidden + col);
            load_eight(b, out + (size_t)place[first + copy] * hidden + col);
#pragma unroll
            for (int i = 0; i < 8; i++) product += a[i] * b[i];
        }
#pragma unroll
        for (int offset = 16; offset > 0; offset /= 2)
            product += __shfl_xor_sync(0xffffffff, product, offset);
        mean += weight[first + copy] * product;
        if (lane == copy) my_product = product;
    }
    for (int e0 = 0; e0 < experts; e0 += 32) {
        float gradient = 0.0f;
        for (int copy = 0; copy < top; copy++) {
            const float product = __shfl_sync(0xffffffff, my_product, copy);
            if (expert[first + copy] == e0 + lane) gradient = weight[first + copy] * (product - mean);
        }
        if (e0 + lane < experts) dlogits[(size_t)token * experts + e0 + lane] = gradient;
    }
}

// A matrix of rows in e4m3, along its rows and along the tokens, as step 2 and step 4 take it.
struct Quantised {
    uint8_t *rows, *columns;
    float *scale, *scale_columns;
};

// The sizes of the whole layer that the launches share.
struct Sizes {
    int rows, scale_rows;
    int columns; // for the experts' rows, each expert's rounded up to a multiple of 128
};

static Quantised take(Arena &arena, const Sizes &sizes, int cols, bool along_rows)
{
    Quantised q = {};
    const size_t groups = (cols - 1) / GROUP + 1;
    if (along_rows) {
        q.rows = arena.take<uint8_t>((size_t)sizes.rows * cols);
        q.scale = arena.take<float>(groups * sizes.scale_rows);
    }
    q.columns = arena.take<uint8_t>((size_t)cols * sizes.columns);
    q.scale_columns = arena.take<float>((size_t)sizes.columns / GROUP * cols);
    return q;
}

template <bool ALONG_ROWS, typename SOURCE>
static cudaError_t both_ways(SOURCE source, const moe_layer &layer, const Sizes &sizes, const Quantised &q,
                             int cols, cudaStream_t stream)
{
    const int groups = (cols - 1) / GROUP + 1;
    const long long grid = (long long)groups * (sizes.columns / GROUP);
    if (grid > INT32_MAX) return cudaErrorInvalidConfiguration;
    both_ways_kernel<ALONG_ROWS><<<(int)grid, NUM_THREADS, 0, stream>>>(
        source, layer.counts, q.rows, q.scale, q.columns, q.scale_columns, layer.experts, sizes.rows, cols,
        groups, sizes.scale_rows, sizes.columns);
    return cudaGetLastError();
}

extern "C" cudaError_t moe_gradient(const struct moe_layer *layer, cudaStream_t stream)
{
    const moe_layer &l = *layer;
    if (!moe_sizes_fit(l) || !l.x || !l.dy || !l.W1_t || !l.W2_t || !l.scale_W1_t || !l.scale_W2_t || !l.dx ||
        !l.dlogits || !l.dW1 || !l.dW2 || !l.expert || !l.weight || !l.counts || !l.place || !l.source ||
        !l.gate_up || !l.out)
        return cudaErrorInvalidValue;
    const int rows = l.tokens * l.top;
    const Sizes sizes = {rows, (rows + 3) / 4 * 4, (rows / GROUP + l.experts) * GROUP};
    const __nv_bfloat16 *gate_up = (const __nv_bfloat16 *)l.gate_up, *dy = (const __nv_bfloat16 *)l.dy;
    Quantised g, h, a, x;
    __nv_bfloat16 *dh, *dx_rows;
    Arena arena = {};
    cudaError_t error = cudaSuccess;
    for (int pass = 0; pass < 2; pass++) { // counted, then there
        void *memory = NULL;
        if (pass == 1) error = get_scratch(arena.used, &memory);
        if (error != cudaSuccess) return error;
        arena = {(char *)memory};
        g = take(arena, sizes, l.hidden, true);
        h = take(arena, sizes, l.inner, false);
        a = take(arena, sizes, 2 * l.inner, true);
        x = take(arena, sizes, l.hidden, false);
        dh = arena.take<__nv_bfloat16>((size_t)rows * l.inner);
        dx_rows = arena.take<__nv_bfloat16>((size_t)rows * l.hidden);
    }

    router_gradient_kernel<<<(l.tokens - 1) / NUM_WARPS + 1, NUM_THREADS, 0, stream>>>(
        dy, (const __nv_bfloat16 *)l.out, l.place, l.expert, l.weight, l.dlogits, l.tokens, l.hidden,
        l.experts, l.top);
    const Tokens dy_rows = {dy, l.source, l.top, l.hidden};
    const Tokens x_rows = {(const __nv_bfloat16 *)l.x, l.source, l.top, l.hidden};
    error = both_ways<true>(Weighted{dy_rows, l.weight}, l, sizes, g, l.hidden, stream);
    if (error == cudaSuccess)
        error = ragged_segments(g.rows, l.W2_t, g.scale, l.scale_W2_t, l.counts, dh, rows, l.inner, l.hidden,
                                l.experts, stream);
    if (error == cudaSuccess)
        error = both_ways<false>(Activations{gate_up, l.inner}, l, sizes, h, l.inner, stream);
    if (error == cudaSuccess)
        error = k_groups(g.columns, h.columns, g.scale_columns, h.scale_columns, l.counts, l.dW2, l.hidden,
                         l.inner, sizes.columns, l.experts, stream);
    if (error == cudaSuccess)
        error = both_ways<true>(ActivationGradients{gate_up, dh, l.inner}, l, sizes, a, 2 * l.inner, stream);
    if (error == cudaSuccess) error = both_ways<false>(x_rows, l, sizes, x, l.hidden, stream);
    if (error == cudaSuccess)
        error = k_groups(a.columns, x.columns, a.scale_columns, x.scale_columns, l.counts, l.dW1, 2 * l.inner,
                         l.hidden, sizes.columns, l.experts, stream);
    if (error == cudaSuccess)
        error = ragged_segments(a.rows, l.W1_t, a.scale, l.scale_W1_t, l.counts, dx_rows, rows, l.hidden,
                                2 * l.inner, l.experts, stream);
    if (error == cudaSuccess) error = unpermute(l, dx_rows, NULL, l.dx, stream);
    return error;
}
