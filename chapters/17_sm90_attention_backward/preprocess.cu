// Before the products: what a row needs of the forward pass, and an empty sum for dQ.
//
// D / 8 lanes have a row, 16 bytes of O and of dO each. dPsum is the row's sum of dO ∘ O, which equals that of dP ∘ P and costs a
// pass over D numbers instead of one over all keys.
#include <climits>

#include "workspace.cuh"

constexpr int NUM_THREADS = 256;
static_assert(TILE_Q * 64 / 8 % NUM_THREADS == 0, "a tile's rows are whole blocks");

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
__global__ void __launch_bounds__(NUM_THREADS) preprocess_kernel(const attention_backward a)
{
    constexpr int LANES = D / 8; // that share a row: 8, 16 or 32
    const attention &f = a.forward;
    const Workspace w(a);
    const size_t row = (size_t)blockIdx.x * (NUM_THREADS / LANES) + threadIdx.x / LANES; // padded ones too
    const int lane = threadIdx.x % LANES, q = row % w.q_padded;
    const size_t head = row / w.q_padded; // counts over the batch

    float sum = 0;
    if (q < f.q_len) {
        const size_t i = (((head / f.heads * f.q_len + q) * f.heads + head % f.heads) * LANES) +
                         lane; // in packs of 16 bytes
        sum = dot<T>(((const uint4 *)f.O)[i], ((const uint4 *)a.dO)[i]);
    }
#pragma unroll
    for (int mask = LANES / 2; mask > 0; mask /= 2) sum += __shfl_xor_sync(0xffffffff, sum, mask);
    if (lane == 0) {
        const float LSE = q < f.q_len ? f.LSE[head * f.q_len + q] : -INFINITY;
        w.LSE_log2[row] = LSE == -INFINITY ? INFINITY : LSE * 1.44269504f; // log2(e)
        w.dPsum[row] = sum;
    }
    float4 *dQ_sum = w.dQ_sum + row * LANES * 2 + lane; // as many as the row has, whichever they are
    dQ_sum[0] = dQ_sum[LANES] = make_float4(0, 0, 0, 0);
}

template <typename T, int D>
static cudaError_t launch(const attention_backward &a, cudaStream_t stream)
{
    const size_t blocks = Workspace(a).rows(a.forward) * (D / 8) / NUM_THREADS; // rows are whole tiles
    if (blocks > INT_MAX) return cudaErrorInvalidValue;
    preprocess_kernel<T, D><<<(int)blocks, NUM_THREADS, 0, stream>>>(a);
    return cudaGetLastError();
}

extern "C" cudaError_t backward_preprocess(const attention_backward *a, cudaStream_t stream)
{
    return with_attention_types(a->forward,
                                [&](auto t, auto d) { return launch<decltype(t), d.value>(*a, stream); });
}

extern "C" size_t attention_backward_workspace_bytes(const attention *forward)
{
    attention_backward a = {};
    a.forward = *forward;
    const size_t rows = Workspace(a).rows(*forward);
    return rows * (2 + forward->head_dim) * sizeof(float);
}
