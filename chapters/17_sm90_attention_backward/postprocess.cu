// After the products: dQ is complete, gets its scale, is rounded, and goes where it belongs.
//
// A block has a tile, and each thread the accumulators of dQ that the thread of its number had: pairs of columns of two rows.
#include <climits>

#include "workspace.cuh"

constexpr int NUM_THREADS = 256; // two halves of 128

template <typename T, int D>
__global__ void __launch_bounds__(NUM_THREADS) postprocess_kernel(const attention_backward a)
{
    const attention &f = a.forward;
    const Workspace w(a);
    const int tiles = w.q_padded / TILE_Q, half = threadIdx.x / 128, tid = threadIdx.x % 128;
    const size_t head = blockIdx.x / tiles; // counts over the batch
    const int first_row = blockIdx.x % tiles * TILE_Q,
              row = first_row + tid / 32 * 16 + tid % 32 / 4; // and row + 8
    const float4 *sum = w.dQ_half<D>(head, first_row, half) + tid;
    const float scale = rsqrtf(D);
    T *dQ = (T *)a.dQ + ((head / f.heads * f.q_len + row) * f.heads + head % f.heads) * D + half * (D / 2) +
            tid % 4 * 2;
#pragma unroll
    for (int i = 0; i < D / 16; i++) {
        const float4 v = sum[i * 128];
        if (row < f.q_len) store_pair(dQ + i * 8, v.x * scale, v.y * scale);
        if (row + 8 < f.q_len) store_pair(dQ + (size_t)8 * f.heads * D + i * 8, v.z * scale, v.w * scale);
    }
}

template <typename T, int D>
static cudaError_t launch(const attention_backward &a, cudaStream_t stream)
{
    const Workspace w(a);
    const size_t tiles = w.rows(a.forward) / TILE_Q;
    if (tiles > INT_MAX) return cudaErrorInvalidValue;
    postprocess_kernel<T, D><<<(int)tiles, NUM_THREADS, 0, stream>>>(a);
    return cudaGetLastError();
}

extern "C" cudaError_t backward_postprocess(const attention_backward *a, cudaStream_t stream)
{
    return with_attention_types(a->forward,
                                [&](auto t, auto d) { return launch<decltype(t), d.value>(*a, stream); });
}
