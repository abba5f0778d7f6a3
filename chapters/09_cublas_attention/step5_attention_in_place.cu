// Chapter 9, step 5: no permutation.
//
// Question: step 4 copies queries, keys and values only for cuBLAS to find them. What does it need to know to find them
// where they are?
//
// Grows from: step 4 (attention_permuted).
// Where a row begins and where the next matrix. A head of one sequence is a matrix already: T rows of D, 3 H D elements
// apart, and the next head begins D further on. One call takes the H heads of a sequence; from sequence to sequence the
// distance is another, so there are B calls.
//
//      qkv, sequence b:   t = 0   Q0 Q1 … K0 K1 … V0 V1 …       Q1:  data + D,  ld = 3 H D,  stride = D
//                         t = 1   Q0 Q1 … K0 K1 … V0 V1 …
//
// The output's heads lie side by side just so, and the last product writes them there. Two thirds of what step 4 moved
// besides att are gone, and with them the scratch memory.
//
// Run: make chapter-9 OP=attention_forward STEP=attention_in_place
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

extern "C" cudaError_t attention_in_place(enum dtype dtype, const void *qkv, void *att, void *out, void *,
                                          int B, int T, int H, int D, cudaStream_t stream)
{
    if (!qkv || !att || !out || !fits(B, T, H, D)) return cudaErrorInvalidValue;
    const int64_t squares = (int64_t)T * T;
    const int width = H * D; // of a position's queries, and of its output
    const size_t element = dtype == BF16 ? 2 : 4;
    cudaError_t error = cudaSuccess;
    for (int b = 0; b < B && error == cudaSuccess; b++) {
        const char *Q = (const char *)qkv + (size_t)b * T * 3 * width * element, *K = Q + width * element;
        const blas_matrix queries = {Q, dtype, 3 * width, D, false}, keys = {K, dtype, 3 * width, D, true},
                          scores = {(char *)att + b * H * squares * element, dtype, T, squares, false};
        error = blas_multiply(queries, keys, 1, 0, scores, T, T, D, H, stream);
    }
    if (error == cudaSuccess) error = causal(dtype, att, att, 1 / sqrtf(D), B * H, T, stream);
    for (int b = 0; b < B && error == cudaSuccess; b++) {
        const char *V = (const char *)qkv + ((size_t)b * T * 3 + 2) * width * element;
        const blas_matrix values = {V, dtype, 3 * width, D, false},
                          scores = {(char *)att + b * H * squares * element, dtype, T, squares, false},
                          sums = {(char *)out + (size_t)b * T * width * element, dtype, width, D, false};
        error = blas_multiply(scores, values, 1, 0, sums, T, D, T, H, stream);
    }
    return error;
}
