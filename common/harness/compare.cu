#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <math.h>

extern "C" {
#include "compare.h"
}

constexpr int NUM_THREADS = 256;
constexpr int MAX_GRID = 4096;
constexpr int64_t PIECE = 4096; // elements of a row that a warp takes at a time

// Element i as a double, exactly: dtype_get on the device.
static __device__ double element(enum dtype dtype, const void *data, int64_t i)
{
    switch (dtype) {
    case F32: return ((const float *)data)[i];
    case F64: return ((const double *)data)[i];
    case I32: return ((const int32_t *)data)[i];
    case I64: return (double)((const int64_t *)data)[i];
    case U8: return ((const uint8_t *)data)[i];
    case E4M3: return (float)((const __nv_fp8_e4m3 *)data)[i];
    case E5M2: return (float)((const __nv_fp8_e5m2 *)data)[i];
    case F16: return __half2float(((const __half *)data)[i]);
    case BF16: return __bfloat162float(((const __nv_bfloat16 *)data)[i]);
    }
    return NAN;
}

// Calls `visit(row, begin, end)` of every piece of every row, each by one warp.
template <typename Visit>
static __device__ void for_pieces(int64_t count, int64_t row, Visit visit)
{
    const int64_t pieces = (row - 1) / PIECE + 1; // of a row
    const int64_t warps = (int64_t)gridDim.x * (NUM_THREADS / 32);
    for (int64_t i = (blockIdx.x * NUM_THREADS + threadIdx.x) / 32; i < count / row * pieces; i += warps) {
        const int64_t begin = i / pieces * row + i % pieces * PIECE;
        const int64_t row_end = (i / pieces + 1) * row;
        visit(i / pieces, begin, begin + PIECE < row_end ? begin + PIECE : row_end);
    }
}

// squares[r] += the sum of the squares of row r, *square_of_all += that of all.
static __global__ void add_squares(enum dtype dtype, const void *data, int64_t count, int64_t row,
                                   double *squares, double *square_of_all)
{
    const int lane = threadIdx.x % 32;
    double sum_of_all = 0;
    for_pieces(count, row, [&](int64_t r, int64_t begin, int64_t end) {
        double sum = 0;
        for (int64_t i = begin + lane; i < end; i += 32) {
            const double value = element(dtype, data, i);
            sum += value * value;
        }
        for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(0xffffffff, sum, offset);
        if (lane == 0) atomicAdd(&squares[r], sum);
        sum_of_all += sum;
    });
    if (lane == 0) atomicAdd(square_of_all, sum_of_all);
}

// By how much two numbers may differ that were rounded to the same type, half a spacing each. Below the smallest normal number the
// spacing is the least number, however small the value.
struct rounding {
    double epsilon, least; // dtype_epsilon, dtype_least

    __host__ __device__ double of(double value) const { return fmax(epsilon * fabs(value), least); }
};

static __global__ void find_first(enum dtype dtype, const void *got, const void *expected, int64_t count,
                                  int64_t row, double share, double from_all, rounding rounded,
                                  const double *squares, unsigned long long *first)
{
    const int lane = threadIdx.x % 32;
    for_pieces(count, row, [=](int64_t r, int64_t begin, int64_t end) {
        const double from_row = share * sqrt(squares[r] / (double)row);
        for (int64_t i = begin + lane; i < end; i += 32) {
            const double value = element(dtype, expected, i);
            if (!(fabs(element(dtype, got, i) - value) <= from_row + from_all + rounded.of(value)))
                atomicMin(first, (unsigned long long)i);
        }
    });
}

static double element_on_host(enum dtype dtype, const void *data, int64_t i, cudaError_t *error)
{
    double bits = 0; // room for any type
    const char *address = (const char *)data + (size_t)i * dtype_bytes(dtype);
    if (*error == cudaSuccess)
        *error = cudaMemcpy(&bits, address, dtype_bytes(dtype), cudaMemcpyDeviceToHost);
    return dtype_get(dtype, &bits, 0);
}

extern "C" cudaError_t compare_arrays(enum dtype dtype, const void *got, const void *expected, int64_t count,
                                      int64_t row, double share, double share_of_all,
                                      struct difference *first)
{
    if (!got || !expected || count <= 0 || row <= 0 || count % row) return cudaErrorInvalidValue;
    const int64_t rows = count / row;
    const rounding rounded = {dtype_epsilon(dtype), dtype_least(dtype)};
    double *squares = NULL, square = 0, from_all = 0;
    unsigned long long index = ULLONG_MAX;
    cudaError_t error = cudaMalloc(&squares, ((size_t)rows + 2) * sizeof *squares);
    if (error != cudaSuccess) return error;
    double *square_of_all = &squares[rows];
    unsigned long long *first_index = (unsigned long long *)&squares[rows + 1];
    error = cudaMemset(squares, 0, ((size_t)rows + 1) * sizeof *squares);
    if (error == cudaSuccess) error = cudaMemset(first_index, 0xff, sizeof *first_index);
    if (error == cudaSuccess) {
        const int64_t blocks = (rows * ((row - 1) / PIECE + 1) - 1) / (NUM_THREADS / 32) + 1;
        const int grid = blocks < MAX_GRID ? (int)blocks : MAX_GRID;
        add_squares<<<grid, NUM_THREADS>>>(dtype, expected, count, row, squares, square_of_all);
        error = cudaMemcpy(&square, square_of_all, sizeof square, cudaMemcpyDeviceToHost);
        if (share_of_all > 0) from_all = share_of_all * sqrt(square / (double)count);
        find_first<<<grid, NUM_THREADS>>>(dtype, got, expected, count, row, share, from_all, rounded, squares,
                                          first_index);
        if (error == cudaSuccess) error = cudaGetLastError();
    }
    if (error == cudaSuccess) error = cudaMemcpy(&index, first_index, sizeof index, cudaMemcpyDeviceToHost);
    *first = {-1, 0, 0, 0};
    if (error == cudaSuccess && index != ULLONG_MAX) {
        first->index = (int64_t)index;
        first->value = element_on_host(dtype, got, first->index, &error);
        first->expected = element_on_host(dtype, expected, first->index, &error);
        if (error == cudaSuccess)
            error = cudaMemcpy(&square, &squares[first->index / row], sizeof square, cudaMemcpyDeviceToHost);
        first->allowed = share * sqrt(square / (double)row) + from_all + rounded.of(first->expected);
    }
    const cudaError_t freed = cudaFree(squares);
    return error != cudaSuccess ? error : freed;
}
