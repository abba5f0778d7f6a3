#include "baseline.h"

#include <stdlib.h>
#include <string.h>

#include "../19_fp8_gemm/baseline.h"

static int64_t dim(const struct run *run, const char *name)
{
    return run_dim(run, name, 0);
}

void draw_row_group(const struct run *run, int32_t *values)
{
    const int64_t m = dim(run, "m"), tiles = (m + 127) / 128;
    for (int64_t row = 0; row < m; row++) values[row] = (int32_t)(row / 128 * dim(run, "g") / tiles);
}

// Whole numbers around `mean`, one larger and one smaller by the same up to `spread`, with the sum count * mean.
static void draw_around(int32_t *values, int64_t count, int64_t mean, int64_t spread)
{
    for (int64_t i = 0; i < count; i++) {
        const int64_t off = i / 2 * 611953 % (spread + 1); // 611953 is prime
        values[i] = (int32_t)(i == count - 1 && count % 2 ? mean : i % 2 ? mean - off : mean + off);
    }
}

void draw_counts(const struct run *run, int32_t *values)
{
    const int64_t g = dim(run, "g"), m = dim(run, "m");
    draw_around(values, g, m / g, m / g * 3 / 10);
    values[g - 1] += (int32_t)(m % g);
}

void draw_masked(const struct run *run, int32_t *values)
{
    draw_around(values, dim(run, "g"), dim(run, "e"), dim(run, "e") * 3 / 10);
}

void draw_columns(const struct run *run, int32_t *values)
{
    const int64_t g = dim(run, "g"), blocks = dim(run, "k") / 128;
    draw_around(values, g, blocks / g, blocks / g * 3 / 10);
    for (int64_t i = 0; i < g; i++) values[i] = values[i] > 0 ? values[i] * 128 - (int32_t)(i % 16) : 0;
}

// Columns: as a product of (m, count) and (n, count) without gaps, so of as many numbers, but others.
static cudaError_t multiply_columns(const struct run *run, const int32_t *counts, cudaStream_t stream)
{
    const int64_t m = dim(run, "m"), n = dim(run, "n");
    float *D = run_data(run, "D");
    cudaError_t error = cudaSuccess;
    for (int64_t i = 0; i < dim(run, "g") && error == cudaSuccess; i++)
        if (counts[i] > 0)
            error = fp8_cublaslt(F32, run_data(run, "A"), run_data(run, "B"), run_data(run, "scale_A"),
                                 run_data(run, "scale_B"), D + i * m * n, (int)m, (int)n,
                                 (counts[i] + 15) / 16 * 16, stream);
    return error;
}

// Rows, those of group i from first on: a multiple of 16 of them, begun a little earlier where the last ones are not there.
static cudaError_t multiply_rows(const struct run *run, const int32_t *counts, cudaStream_t stream)
{
    const int64_t n = dim(run, "n"), k = dim(run, "k"), capacity = dim(run, "c");
    const int64_t rows = capacity ? capacity * dim(run, "g") : dim(run, "m");
    const char *A = run_data(run, "A"), *B = run_data(run, "B");
    char *D = run_data(run, "D");
    cudaError_t error = cudaSuccess;
    for (int64_t i = 0, first = 0; i < dim(run, "g") && error == cudaSuccess; first += counts[i++]) {
        const int64_t count = (counts[i] + 15) / 16 * 16, begin = capacity ? i * capacity : first;
        const int64_t row = begin + count > rows ? rows - count : begin;
        if (row < 0) return cudaErrorNotSupported; // not 16 rows in all
        if (count > 0)
            error =
                fp8_cublaslt(BF16, A + row * k, B + i * n * k, run_data(run, "scale_A"),
                             run_data(run, "scale_B"), D + 2 * row * n, (int)count, (int)n, (int)k, stream);
    }
    return error;
}

cudaError_t launch_one_by_one(const struct run *run, cudaStream_t stream)
{
    const char *name = run->op->name;
    int32_t *counts = malloc((size_t)dim(run, "g") * sizeof *counts);
    if (!counts) return cudaErrorMemoryAllocation;
    if (strcmp(name, "k_groups") == 0)
        draw_columns(run, counts);
    else if (strcmp(name, "masked") == 0)
        draw_masked(run, counts);
    else
        draw_counts(run, counts);
    const cudaError_t error = strcmp(name, "k_groups") == 0 ? multiply_columns(run, counts, stream)
                                                            : multiply_rows(run, counts, stream);
    free(counts);
    return error;
}
