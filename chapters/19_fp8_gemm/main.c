// Chapter 19: products of 8-bit numbers and their scales.
#include "../../common/harness/chapter.h"
#include "baseline.h"
#include "launchers.h"

enum { M, N, K };
enum { A, B, SCALE_A, SCALE_B, D };

static cudaError_t launch_fp8_gemm(any_launcher *launcher, const struct run *run, cudaStream_t stream)
{
    return ((fp8_gemm *)launcher)(run->dtype[D], run->data[A], run->data[B], run->data[SCALE_A],
                                  run->data[SCALE_B], run->data[D], (int)run->dim[M], (int)run->dim[N],
                                  (int)run->dim[K], stream);
}

static cudaError_t launch_cublaslt(const struct run *run, cudaStream_t stream)
{
    return fp8_cublaslt(run->dtype[D], run->data[A], run->data[B], run->data[SCALE_A], run->data[SCALE_B],
                        run->data[D], (int)run->dim[M], (int)run->dim[N], (int)run->dim[K], stream);
}

static const char *check_rows(const int64_t *dim)
{
    enum { MOST = INT32_MAX - 511 }; // the last tile may go beyond the matrix
    if (dim[M] > MOST || dim[N] > MOST || dim[K] > MOST)
        return "m, n and k must be at most 2147483136, so that every row and column of a tile is an int";
    if (dim[K] % 16)
        return "k must be a multiple of 16, so that every row of A and B begins at a multiple of 16 bytes";
    return NULL;
}

static const struct step steps[] = {
    STEP(2, fp8_gemm, promoted),
    STEP(3, fp8_gemm, two_math_warpgroups),
    STEP(4, fp8_gemm, persistent_multicast),
    STEP(6, fp8_gemm, few_rows),
    {0},
};

// The same product with one scale each, the first of scale_A and of scale_B: what cuBLASLt has no more to do than.
#define ONE_SCALE .baseline = {.name = "cuBLASLt e4m3", .launch = launch_cublaslt, .other_work = true}

// DeepSeek-V3's layers, with many rows (prefill) and few (decode).
#define SHAPES                                                                                              \
    {                                                                                                       \
        "m=4096,n=4096,k=4096", "m=4096,n=2112,k=7168", "m=4096,n=24576,k=1536", "m=4096,n=32768,k=512",    \
            "m=4096,n=7168,k=16384", "m=4096,n=4096,k=7168", "m=4096,n=7168,k=2048", "m=128,n=2112,k=7168", \
            "m=128,n=24576,k=1536", "m=128,n=32768,k=512", "m=128,n=7168,k=16384", "m=128,n=4096,k=7168",   \
            "m=128,n=7168,k=2048", "m=64,n=2112,k=7168", "m=64,n=24576,k=1536", "m=64,n=32768,k=512",       \
            "m=64,n=7168,k=16384", "m=64,n=4096,k=7168", "m=64,n=7168,k=2048",                              \
    }
#define GEMM                                                                                        \
    .types = {E4M3}, .dims = {"m", "n", "k"}, .launch = launch_fp8_gemm, .check_shape = check_rows, \
    .flops = "2*m*n*k", .bytes = "m*k+n*k+2*m*n", .limit = LIMIT_FP8_TENSOR, .bench = SHAPES
#define MATRICES [A] = {"A", RUN_TYPE, IN, "m,k"}, [B] = {"B", RUN_TYPE, IN, "n,k"}
#define ROW_SCALES(name, rows)                                          \
    {                                                                   \
        name, F32, IN, "(k+127)/128,(" rows "+3)/4*4", .positive = true \
    }

static const struct operation operations[] = {
    {
        .name = "per_tensor",
        .title = "D = scale_A scale_B (A · Bᵀ) in fp32, A and B in e4m3 with one scale each",
        GEMM,
        .tensors = {MATRICES, [SCALE_A] = {"scale_A", F32, IN, "1", .positive = true},
                    [SCALE_B] = {"scale_B", F32, IN, "1", .positive = true}, [D] = {"D", F32, OUT, "m,n"}},
        .baseline = {.name = "cuBLASLt e4m3", .launch = launch_cublaslt},
        .bench_difference = 0.05, // the cuts of another order of sums (notes/19_fp8_gemm.md, section 4)
        .steps = STEPS(STEP(1, fp8_gemm, plain_sums)),
    },
    {
        .name = "gemm",
        .title =
            "D = A · Bᵀ in bf16, A and B in e4m3: a scale for each 128 of a row of A, for each square of B",
        GEMM,
        .tensors = {MATRICES, [SCALE_A] = ROW_SCALES("scale_A", "m"),
                    [SCALE_B] = {"scale_B", F32, IN, "(n+127)/128,(k+127)/128", .positive = true},
                    [D] = {"D", BF16, OUT, "m,n"}},
        ONE_SCALE,
        .steps = steps,
    },
    {
        .name = "gemm_f32",
        .title = "the same with D in fp32",
        GEMM,
        .tensors = {MATRICES, [SCALE_A] = ROW_SCALES("scale_A", "m"),
                    [SCALE_B] = {"scale_B", F32, IN, "(n+127)/128,(k+127)/128", .positive = true},
                    [D] = {"D", F32, OUT, "m,n"}},
        ONE_SCALE,
        .steps = steps,
    },
    {
        .name = "weight_gradient",
        .title = "D += A · Bᵀ in fp32, A and B in e4m3: a scale for each 128 of a row of either",
        GEMM,
        .tensors = {MATRICES, [SCALE_A] = ROW_SCALES("scale_A", "m"), [SCALE_B] = ROW_SCALES("scale_B", "n"),
                    [D] = {"D", F32, INOUT, "m,n"}},
        .steps = STEPS(STEP(5, fp8_gemm, weight_gradient)),
    },
};

CHAPTER(operations)
