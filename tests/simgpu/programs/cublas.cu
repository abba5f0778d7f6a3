// The cuBLAS calls that the simulated GPU has, against sums in double: every operation, type and ragged leading dimension,
// batches with strides and of pointers, beta with poisoned and with real C, scalars on the device, copies of matrices and vectors,
// and what is refused. The library is opened by name, so that the program builds where the toolkit has no cuBLAS; the numbers are
// those of cublas_api.h.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <dlfcn.h>

#include "expect.h"

typedef void *Handle;
enum { R_32F = 0, R_64F = 1, R_16F = 2, R_8I = 3, R_16BF = 14, COMPUTE_32F = 68, COMPUTE_64F = 70 };
enum { SUCCESS = 0, NOT_INITIALIZED = 1, INVALID_VALUE = 7, EXECUTION_FAILED = 13, NOT_SUPPORTED = 15 };

static struct {
    int (*create)(Handle *), (*destroy)(Handle), (*set_stream)(Handle, cudaStream_t),
        (*set_pointer_mode)(Handle, int);
    int (*gemm)(Handle, int, int, int, int, int, const void *, const void *, int, int, long long,
                const void *, int, int, long long, const void *, void *, int, int, long long, int, int, int);
    int (*sgemm_batched)(Handle, int, int, int, int, int, const float *, const float *, int, long long,
                         const float *, int, long long, const float *, float *, int, long long, int);
    int (*dgemm)(Handle, int, int, int, int, int, const double *, const double *, int, const double *, int,
                 const double *, double *, int);
    int (*sgemv)(Handle, int, int, int, const float *, const float *, int, const float *, int, const float *,
                 float *, int);
    int (*sgemm_pointers)(Handle, int, int, int, int, int, const float *, float *const *, int, float *const *,
                          int, const float *, float *const *, int, int);
    int (*dgemm_pointers)(Handle, int, int, int, int, int, const double *, double *const *, int,
                          double *const *, int, const double *, double *const *, int, int);
    int (*set_matrix)(int, int, int, const void *, int, void *, int),
        (*get_matrix)(int, int, int, const void *, int, void *, int);
    int (*set_vector)(int, int, const void *, int, void *, int),
        (*get_vector)(int, int, const void *, int, void *, int);
    const char *(*status_name)(int);
} cublas;

template <typename F>
static void find(void *library, const char *name, F *function)
{
    *function = (F)dlsym(library, name);
    if (*function) return;
    printf("no %s\n", name);
    exit(1);
}

static int bytes_of(int type)
{
    return type == R_64F ? 8 : type == R_32F ? 4 : 2;
}

// Rounds to the type and stores element i; returns what was stored.
static double store(void *array, size_t i, int type, double value)
{
    if (type == R_64F) return ((double *)array)[i] = value;
    if (type == R_32F) return ((float *)array)[i] = (float)value;
    if (type == R_16F) return __half2float(((__half *)array)[i] = __float2half((float)value));
    return __bfloat162float(((__nv_bfloat16 *)array)[i] = __float2bfloat16((float)value));
}

static double load(const void *array, size_t i, int type)
{
    if (type == R_64F) return ((const double *)array)[i];
    if (type == R_32F) return ((const float *)array)[i];
    if (type == R_16F) return __half2float(((const __half *)array)[i]);
    return __bfloat162float(((const __nv_bfloat16 *)array)[i]);
}

static void *upload(const void *host, size_t bytes)
{
    void *device;
    CUDA(cudaMalloc(&device, bytes));
    CUDA(cudaMemcpy(device, host, bytes, cudaMemcpyHostToDevice));
    return device;
}

// C = alpha op(A) op(B) + beta C for every product of a batch; beta 0 with a C full of NaN.
static void try_gemm(Handle h, int transpose_a, int transpose_b, int m, int n, int k, int in, int out,
                     int compute, int batches, double alpha_value, double beta_value)
{
    const int rows_a = transpose_a ? k : m, rows_b = transpose_b ? n : k;
    const int lda = rows_a + 3, ldb = rows_b + 1, ldc = m + 2;
    const size_t size_a = (size_t)lda * (m + k), size_b = (size_t)ldb * (n + k), size_c = (size_t)ldc * n;
    void *a = malloc(batches * size_a * 8), *b = malloc(batches * size_b * 8),
         *c = malloc(batches * size_c * 8);
    double *was = (double *)malloc(batches * size_c * 8);
    for (size_t i = 0; i < batches * size_a; i++) store(a, i, in, random_float());
    for (size_t i = 0; i < batches * size_b; i++) store(b, i, in, random_float());
    for (size_t i = 0; i < batches * size_c; i++)
        was[i] = store(c, i, out, beta_value ? random_float() : NAN);
    void *device_a = upload(a, batches * size_a * bytes_of(in)),
         *device_b = upload(b, batches * size_b * bytes_of(in)),
         *device_c = upload(c, batches * size_c * bytes_of(out));
    const float alpha32 = (float)alpha_value, beta32 = (float)beta_value;
    const bool f64 = compute == COMPUTE_64F;
    EXPECT(cublas.gemm(h, transpose_a, transpose_b, m, n, k, f64 ? (void *)&alpha_value : (void *)&alpha32,
                       device_a, in, lda, size_a, device_b, in, ldb, size_b,
                       f64 ? (void *)&beta_value : (void *)&beta32, device_c, out, ldc, size_c, batches,
                       compute, -1) == SUCCESS);
    CUDA(cudaMemcpy(c, device_c, batches * size_c * bytes_of(out), cudaMemcpyDeviceToHost));

    const double unit = out == R_64F ? 1e-13 : out == R_32F ? 1e-5 : out == R_16F ? 1e-3 : 8e-3;
    int wrong = 0;
    for (int p = 0; p < batches; p++)
        for (int col = 0; col < n; col++)
            for (int row = 0; row < ldc; row++) {
                const size_t at = p * size_c + (size_t)col * ldc + row;
                double want = was[at], got = load(c, at, out);
                if (row >= m) { // between the columns: not touched
                    wrong += !(got == want || (isnan(got) && isnan(want)));
                    continue;
                }
                double sum = 0, magnitude = 0;
                for (int i = 0; i < k; i++) {
                    double x = load(
                        a, p * size_a + (transpose_a ? (size_t)row * lda + i : (size_t)i * lda + row), in);
                    double y = load(
                        b, p * size_b + (transpose_b ? (size_t)i * ldb + col : (size_t)col * ldb + i), in);
                    sum += x * y;
                    magnitude += fabs(x * y);
                }
                want = alpha_value * sum + (beta_value ? beta_value * want : 0);
                wrong +=
                    !(fabs(got - want) <= unit * (fabs(want) + magnitude * (out == R_64F ? 1 : 0.1) + 0.01));
            }
    if (wrong)
        printf("op %d %d, %d x %d x %d, types %d to %d, %d products: %d wrong\n", transpose_a, transpose_b, m,
               n, k, in, out, batches, wrong);
    failures += wrong;
    CUDA(cudaFree(device_a));
    CUDA(cudaFree(device_b));
    CUDA(cudaFree(device_c));
    free(a), free(b), free(c), free(was);
}

static void try_gemv(Handle h, int transpose)
{
    const int m = 23, n = 31, lda = 25, step_x = 2, step_y = 3, count_x = transpose ? m : n,
              count_y = transpose ? n : m;
    float *a = random_floats(lda * n), *x = random_floats(count_x * step_x),
          *y = random_floats(count_y * step_y), *got;
    double want[31];
    for (int i = 0; i < count_y; i++) {
        want[i] = 0.5 * y[i * step_y];
        for (int j = 0; j < count_x; j++)
            want[i] += 2.0 * a[transpose ? i * lda + j : j * lda + i] * x[j * step_x];
    }
    const float alpha = 2, beta = 0.5f;
    float *device_y = to_device(y, count_y * step_y);
    EXPECT(cublas.sgemv(h, transpose, m, n, &alpha, to_device(a, lda * n), lda,
                        to_device(x, count_x * step_x), step_x, &beta, device_y, step_y) == SUCCESS);
    got = to_host(device_y, count_y * step_y);
    for (int i = 0; i < count_y; i++) EXPECT(fabs(got[i * step_y] - want[i]) < 1e-5);
}

static int gemm_pointers(Handle h, int m, int n, int k, const float *alpha, float *const *a, int lda,
                         float *const *b, int ldb, const float *beta, float *const *c, int ldc, int batches)
{
    return cublas.sgemm_pointers(h, 1, 0, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc, batches);
}
static int gemm_pointers(Handle h, int m, int n, int k, const double *alpha, double *const *a, int lda,
                         double *const *b, int ldb, const double *beta, double *const *c, int ldc,
                         int batches)
{
    return cublas.dgemm_pointers(h, 1, 0, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc, batches);
}

// C = 2 A^T B - C for three products whose matrices lie anywhere; B is the same for two of them.
template <typename T>
static void try_pointers(Handle h)
{
    constexpr int M = 5, N = 4, K = 6, LDA = 7, LDB = 6, LDC = 8, BATCHES = 3;
    T a[BATCHES][M * LDA], b[BATCHES][N * LDB], c[BATCHES][N * LDC];
    T *device_a[BATCHES], *device_b[BATCHES], *device_c[BATCHES];
    for (int p = 0; p < BATCHES; p++) {
        for (T &x : a[p]) x = (T)random_float();
        for (T &x : b[p]) x = (T)random_float();
        for (T &x : c[p]) x = (T)random_float();
        device_a[p] = (T *)upload(a[p], sizeof a[p]);
        device_b[p] = (T *)upload(b[p], sizeof b[p]);
        device_c[p] = (T *)upload(c[p], sizeof c[p]);
    }
    device_b[2] = device_b[0];
    const T alpha = 2, beta = -1;
    EXPECT(gemm_pointers(h, M, N, K, &alpha, (T **)upload(device_a, sizeof device_a), LDA,
                         (T **)upload(device_b, sizeof device_b), LDB, &beta,
                         (T **)upload(device_c, sizeof device_c), LDC, BATCHES) == SUCCESS);
    for (int p = 0; p < BATCHES; p++) {
        T got[N * LDC];
        CUDA(cudaMemcpy(got, device_c[p], sizeof got, cudaMemcpyDeviceToHost));
        for (int i = 0; i < N * LDC; i++) {
            double want = c[p][i];
            if (i % LDC < M) {
                want = -want;
                for (int k = 0; k < K; k++)
                    want += 2.0 * a[p][i % LDC * LDA + k] * b[p == 2 ? 0 : p][i / LDC * LDB + k];
            }
            EXPECT(fabs(got[i] - want) < 1e-5);
        }
    }
}

// A matrix and a vector there and back, whose columns and elements lie differently far apart on each of the three sides.
static void try_copies()
{
    constexpr int ROWS = 5, COLUMNS = 7, THERE = 6, BACK = 8;
    float *from = random_floats(9 * COLUMNS), *there = NULL, back[BACK * COLUMNS];
    CUDA(cudaMalloc(&there, THERE * COLUMNS * sizeof *there));
    CUDA(cudaMemset(there, 0, THERE * COLUMNS * sizeof *there));
    for (float &x : back) x = 77;
    EXPECT(cublas.set_matrix(ROWS, COLUMNS, sizeof *from, from, 9, there, THERE) == SUCCESS);
    EXPECT(cublas.get_matrix(ROWS, COLUMNS, sizeof *from, there, THERE, back, BACK) == SUCCESS);
    for (int i = 0; i < BACK * COLUMNS; i++)
        EXPECT(back[i] == (i % BACK < ROWS ? from[i / BACK * 9 + i % BACK] : 77));
    EXPECT(cublas.set_vector(10, sizeof *from, from, 3, there, 2) == SUCCESS);
    EXPECT(cublas.get_vector(10, sizeof *from, there, 2, back, 1) == SUCCESS);
    for (int i = 0; i < 10; i++) EXPECT(back[i] == from[3 * i]);
    EXPECT(cublas.set_matrix(ROWS, COLUMNS, sizeof *from, from, ROWS - 1, there, THERE) == INVALID_VALUE);
    EXPECT(cublas.get_vector(3, 0, there, 1, back, 1) == INVALID_VALUE);
}

int main(int argc, char **)
{
    void *library = dlopen("libcublas.so.13", RTLD_NOW);
    if (!library) {
        printf("no cuBLAS: %s\n", dlerror());
        return 1;
    }
    find(library, "cublasCreate_v2", &cublas.create);
    find(library, "cublasDestroy_v2", &cublas.destroy);
    find(library, "cublasSetStream_v2", &cublas.set_stream);
    find(library, "cublasSetPointerMode_v2", &cublas.set_pointer_mode);
    find(library, "cublasGemmStridedBatchedEx", &cublas.gemm);
    find(library, "cublasSgemmStridedBatched", &cublas.sgemm_batched);
    find(library, "cublasDgemm_v2", &cublas.dgemm);
    find(library, "cublasSgemv_v2", &cublas.sgemv);
    find(library, "cublasSgemmBatched", &cublas.sgemm_pointers);
    find(library, "cublasDgemmBatched", &cublas.dgemm_pointers);
    find(library, "cublasSetMatrix", &cublas.set_matrix);
    find(library, "cublasGetMatrix", &cublas.get_matrix);
    find(library, "cublasSetVector", &cublas.set_vector);
    find(library, "cublasGetVector", &cublas.get_vector);
    find(library, "cublasGetStatusName", &cublas.status_name);
    Handle h;
    cudaStream_t stream;
    EXPECT(cublas.create(&h) == SUCCESS);
    CUDA(cudaStreamCreate(&stream));
    EXPECT(cublas.set_stream(h, stream) == SUCCESS);

    for (int op = 0; op < 4; op++) {
        const int ta = op & 1, tb = op >> 1;
        try_gemm(h, ta, tb, 37, 29, 53, R_32F, R_32F, COMPUTE_32F, 1, 1, 0);
        try_gemm(h, ta, tb, 17, 40, 9, R_32F, R_32F, COMPUTE_32F, 3, 2, -0.5);
        try_gemm(h, ta, tb, 37, 29, 53, R_16BF, R_16BF, COMPUTE_32F, 1, 1, 0);
        try_gemm(h, ta, tb, 16, 8, 32, R_16BF, R_32F, COMPUTE_32F, 2, 0.5, 1);
        try_gemm(h, ta, tb, 5, 66, 31, R_16F, R_16F, COMPUTE_32F, 2, 1, 1);
        try_gemm(h, ta, tb, 37, 29, 53, R_16F, R_32F, COMPUTE_32F, 1, 1, 0);
        try_gemm(h, ta, tb, 12, 13, 14, R_64F, R_64F, COMPUTE_64F, 2, 1.5, 0.25);
        try_gemm(h, ta, tb, 1, 1, 1, R_32F, R_32F, COMPUTE_32F, 1, 1, 0);
    }
    try_gemm(h, 0, 0, 4, 4, 0, R_32F, R_32F, COMPUTE_32F, 1, 1, 2); // k = 0: C is scaled
    try_gemv(h, 0);
    try_gemv(h, 1);
    try_pointers<float>(h);
    try_pointers<double>(h);
    try_copies();

    // Scalars: on the device when the pointer mode says so, and only then.
    const float one = 1, zero = 0, three = 3;
    float *x = random_floats(64), *a = to_device(x, 64), *c = to_device(x, 64),
          *on_device = to_device(&three, 1);
    EXPECT(cublas.set_pointer_mode(h, 1) == SUCCESS);
    EXPECT(cublas.sgemm_batched(h, 0, 0, 8, 8, 8, &one, a, 8, 0, a, 8, 0, &zero, c, 8, 0, 1) ==
           INVALID_VALUE);
    EXPECT(cublas.sgemv(h, 0, 8, 8, on_device, a, 8, a, 1, on_device, c, 1) == SUCCESS);
    double want[8];
    for (int i = 0; i < 8; i++) {
        want[i] = 3.0 * x[i];
        for (int j = 0; j < 8; j++) want[i] += 3.0 * x[j * 8 + i] * x[j];
    }
    expect_close("scalars on the device", to_host(c, 8), want, 8, 1e-5);
    EXPECT(cublas.set_pointer_mode(h, 0) == SUCCESS);

    // Refused.
    EXPECT(cublas.gemm(h, 0, 0, 8, 8, 8, &one, a, R_8I, 8, 0, a, R_8I, 8, 0, &zero, c, R_32F, 8, 0, 1,
                       COMPUTE_32F, -1) == NOT_SUPPORTED);
    EXPECT(cublas.sgemm_batched(h, 0, 0, 8, 8, 8, &one, a, 7, 0, a, 8, 0, &zero, c, 8, 0, 1) ==
           INVALID_VALUE);
    EXPECT(cublas.sgemm_batched(h, 0, 0, -1, 8, 8, &one, a, 8, 0, a, 8, 0, &zero, c, 8, 0, 1) ==
           INVALID_VALUE);
    EXPECT(cublas.sgemm_batched(h, 7, 0, 8, 8, 8, &one, a, 8, 0, a, 8, 0, &zero, c, 8, 0, 1) ==
           INVALID_VALUE);
    EXPECT(cublas.sgemm_batched(NULL, 0, 0, 8, 8, 8, &one, a, 8, 0, a, 8, 0, &zero, c, 8, 0, 1) ==
           NOT_INITIALIZED);
    EXPECT(strcmp(cublas.status_name(NOT_SUPPORTED), "CUBLAS_STATUS_NOT_SUPPORTED") == 0);
    EXPECT(cudaDeviceSynchronize() == cudaSuccess);

    // With two arguments: the second of a batch's pointers to B leads into the allocation, but not to a matrix of that size.
    if (argc > 2) {
        float *all_a[] = {a, a}, *all_b[] = {a, a + 8}, *all_c[] = {c, c};
        EXPECT(cublas.sgemm_pointers(h, 0, 0, 8, 8, 8, &one, (float **)upload(all_a, sizeof all_a), 8,
                                     (float **)upload(all_b, sizeof all_b), 8, &zero,
                                     (float **)upload(all_c, sizeof all_c), 8, 2) == SUCCESS);
        EXPECT(cudaDeviceSynchronize() == cudaErrorIllegalAddress);
        return verdict();
    }
    // With one: the second product of a batch lies outside the allocation of B.
    if (argc > 1) {
        EXPECT(cublas.sgemm_batched(h, 0, 0, 8, 8, 8, &one, a, 8, 0, a, 8, 8, &zero, c, 8, 0, 2) ==
               EXECUTION_FAILED);
        EXPECT(cudaGetLastError() == cudaSuccess);
        EXPECT(cudaDeviceSynchronize() == cudaErrorIllegalAddress);
        return verdict();
    }
    EXPECT(cublas.destroy(h) == SUCCESS);
    return verdict();
}
