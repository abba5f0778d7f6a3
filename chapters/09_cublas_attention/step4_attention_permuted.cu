// Chapter 9, step 4: attention from products that others wrote.
//
// Question: attention is two products and a softmax. With a library for the products and chapter 8 for the softmax, what
// is left?
//
// Grows from: step 2 (permute_packs).
// The order of calls. A batch of B * H products, Q K^T; softmax, which also scales, masks, and is done in place; another
// batch, att V; and what permutes before and after.
//
//      qkv --permute--> Q, K, V --cuBLAS--> Q K^T --causal--> att --cuBLAS--> heads --unpermute--> out
//
// att, B * H * T * T numbers, is written, half of it read, and all of it written and read again: 3.5 times 403 MB for 16
// sequences of GPT-2's smallest in bf16. The scores are rounded to the type in memory, as llm.c does. Chapters 12 and 15
// write none of them.
//
// Run: make chapter-9 OP=attention_forward STEP=attention_permuted
#include "../08_online_softmax/launchers.h"
#include "blas.h"
#include "launchers.h"

#include <cuda_runtime.h>
#include <math.h>

// Whether the sizes are what the steps take.
static bool fits(int B, int T, int H, int D)
{
    return B > 0 && T > 0 && H > 0 && D > 0 && (int64_t)B * H * T <= INT32_MAX && T <= 16384;
}

extern "C" cudaError_t attention_permuted(enum dtype dtype, const void *qkv, void *att, void *out,
                                          void *scratch, int B, int T, int H, int D, cudaStream_t stream)
{
    if (!qkv || !att || !out || !scratch || !fits(B, T, H, D)) return cudaErrorInvalidValue;
    const int64_t squares = (int64_t)T * T, rows = (int64_t)T * D;
    const size_t part_bytes = B * H * rows * (dtype == BF16 ? 2 : 4);
    char *Q = (char *)scratch, *K = Q + part_bytes, *V = K + part_bytes, *heads = V + part_bytes;
    const blas_matrix queries = {Q, dtype, D, rows, false}, keys = {K, dtype, D, rows, true},
                      values = {V, dtype, D, rows, false}, scores = {att, dtype, T, squares, false},
                      sums = {heads, dtype, D, rows, false};

    cudaError_t error = permute_packs(dtype, qkv, Q, B, T, 3, H, D, stream);
    if (error == cudaSuccess) error = blas_multiply(queries, keys, 1, 0, scores, T, T, D, B * H, stream);
    if (error == cudaSuccess) error = causal(dtype, att, att, 1 / sqrtf(D), B * H, T, stream);
    if (error == cudaSuccess) error = blas_multiply(scores, values, 1, 0, sums, T, D, T, B * H, stream);
    if (error == cudaSuccess) error = unpermute_packs(dtype, heads, out, B, T, 1, H, D, stream);
    return error;
}
