/* cublas.c: the functions of cuBLAS that the cookbook uses, and a few that other programs do, on OpenBLAS. They compute in f32 (f64 for
 * Dgemm): f16 and bf16 matrices are widened, multiplied and rounded once at the end, as cuBLAS does up to the order of additions.
 *
 * cuBLAS is column-major, as BLAS is: an m x n matrix has n columns of m elements, ld apart. */
#include "blas.h"
#include "openblas.h"

#include <cuda_runtime_api.h>
#include <stdlib.h>
#include <string.h>

typedef enum { OP_N, OP_T, OP_C } operation;
enum { HANDLE_MAGIC = 0x63424c53, VERSION = 130000 };
struct context {
    u32 magic;
    void *stream;
    int math_mode;
    pointer_mode mode;
};

/* ---- Handles ------------------------------------------------------------------------------------------------------ */

static bool valid(const struct context *h)
{
    return h && h->magic == HANDLE_MAGIC;
}
#define REQUIRE(handle) \
    if (!valid(handle)) return CUBLAS_STATUS_NOT_INITIALIZED

EXPORT status cublasCreate_v2(struct context **handle)
{
    if (!handle) return CUBLAS_STATUS_INVALID_VALUE;
    if (!openblas_open()) return CUBLAS_STATUS_NOT_INITIALIZED;
    *handle = calloc(1, sizeof **handle);
    if (!*handle) return CUBLAS_STATUS_ALLOC_FAILED;
    (*handle)->magic = HANDLE_MAGIC;
    const char *threads = getenv("SIMGPU_THREADS");
    if (threads && atoi(threads) > 0) openblas_set_num_threads(atoi(threads));
    return CUBLAS_STATUS_SUCCESS;
}

EXPORT status cublasDestroy_v2(struct context *h)
{
    REQUIRE(h);
    h->magic = 0;
    free(h);
    return CUBLAS_STATUS_SUCCESS;
}

EXPORT status cublasGetVersion_v2(struct context *h, int *version)
{
    (void)h;
    if (!version) return CUBLAS_STATUS_INVALID_VALUE;
    *version = VERSION;
    return CUBLAS_STATUS_SUCCESS;
}

EXPORT status cublasSetStream_v2(struct context *h, void *stream)
{
    REQUIRE(h);
    h->stream = stream;
    return CUBLAS_STATUS_SUCCESS;
}

EXPORT status cublasGetStream_v2(struct context *h, void **stream)
{
    REQUIRE(h);
    if (!stream) return CUBLAS_STATUS_INVALID_VALUE;
    *stream = h->stream;
    return CUBLAS_STATUS_SUCCESS;
}

/* OpenBLAS has memory of its own. */
EXPORT status cublasSetWorkspace_v2(struct context *h, void *workspace, size_t bytes)
{
    REQUIRE(h);
    (void)workspace, (void)bytes;
    return CUBLAS_STATUS_SUCCESS;
}

EXPORT status cublasSetMathMode(struct context *h, int mode)
{
    REQUIRE(h);
    h->math_mode = mode;
    return CUBLAS_STATUS_SUCCESS;
}

EXPORT status cublasGetMathMode(struct context *h, int *mode)
{
    REQUIRE(h);
    if (!mode) return CUBLAS_STATUS_INVALID_VALUE;
    *mode = h->math_mode;
    return CUBLAS_STATUS_SUCCESS;
}

EXPORT status cublasSetPointerMode_v2(struct context *h, pointer_mode mode)
{
    REQUIRE(h);
    if (mode != POINTER_MODE_HOST && mode != POINTER_MODE_DEVICE) return CUBLAS_STATUS_INVALID_VALUE;
    h->mode = mode;
    return CUBLAS_STATUS_SUCCESS;
}

EXPORT status cublasGetPointerMode_v2(struct context *h, pointer_mode *mode)
{
    REQUIRE(h);
    if (!mode) return CUBLAS_STATUS_INVALID_VALUE;
    *mode = h->mode;
    return CUBLAS_STATUS_SUCCESS;
}

EXPORT const char *cublasGetStatusName(status s)
{
    return status_name(s);
}

EXPORT const char *cublasGetStatusString(status s)
{
    return status_text(s);
}

/* ---- Vectors and matrices from the host, and to it ----------------------------------------------------------------- */

/* Columns of so many elements, which begin from_ld and to_ld elements apart. Back when it is done. */
static status copy_columns(const char *caller, int rows, int columns, int element, const void *from,
                           int from_ld, void *to, int to_ld, enum cudaMemcpyKind kind)
{
    if (rows < 0 || columns < 0 || element <= 0 || from_ld < 1 || from_ld < rows || to_ld < 1 || to_ld < rows)
        return blas_fail(CUBLAS_STATUS_INVALID_VALUE,
                         "%s: %d x %d elements of %d bytes, columns %d and %d elements apart", caller, rows,
                         columns, element, from_ld, to_ld);
    if (rows == 0 || columns == 0) return CUBLAS_STATUS_SUCCESS;
    size_t bytes = (size_t)element;
    return cudaMemcpy2D(to, (size_t)to_ld * bytes, from, (size_t)from_ld * bytes, (size_t)rows * bytes,
                        (size_t)columns, kind)
               ? CUBLAS_STATUS_MAPPING_ERROR
               : CUBLAS_STATUS_SUCCESS;
}

EXPORT status cublasSetMatrix(int rows, int columns, int element, const void *a, int lda, void *b, int ldb)
{
    return copy_columns("cublasSetMatrix", rows, columns, element, a, lda, b, ldb, cudaMemcpyHostToDevice);
}

EXPORT status cublasGetMatrix(int rows, int columns, int element, const void *a, int lda, void *b, int ldb)
{
    return copy_columns("cublasGetMatrix", rows, columns, element, a, lda, b, ldb, cudaMemcpyDeviceToHost);
}

/* A vector is a row: columns of one element. */
EXPORT status cublasSetVector(int n, int element, const void *x, int step_x, void *y, int step_y)
{
    return copy_columns("cublasSetVector", 1, n, element, x, step_x, y, step_y, cudaMemcpyHostToDevice);
}

EXPORT status cublasGetVector(int n, int element, const void *x, int step_x, void *y, int step_y)
{
    return copy_columns("cublasGetVector", 1, n, element, x, step_x, y, step_y, cudaMemcpyDeviceToHost);
}

/* ---- Matrix products ---------------------------------------------------------------------------------------------- */

struct gemm {
    const char *caller;
    int transpose_a, transpose_b, m, n, k;
    struct matrix a, b, c;
    s64 stride_a, stride_b, stride_c; /* elements from one product of a batch to the next */
    /* Or NULL, or where those of each product are, on the device. */
    void *const *all_a, *const *all_b, *const *all_c;
    int batches;
    const void *alpha, *beta; /* f64 for f64 products, else f32 */
};

static status check_shape(const struct gemm *g)
{
    const struct matrix *matrices[] = {&g->a, &g->b, &g->c};
    if ((unsigned)g->transpose_a > OP_C || (unsigned)g->transpose_b > OP_C)
        return blas_fail(CUBLAS_STATUS_INVALID_VALUE,
                         "%s: operations %d and %d, expected CUBLAS_OP_N, _T or _C", g->caller,
                         g->transpose_a, g->transpose_b);
    if (g->m < 0 || g->n < 0 || g->k < 0 || g->batches < 0)
        return blas_fail(CUBLAS_STATUS_INVALID_VALUE, "%s: m=%d n=%d k=%d batches=%d, none may be negative",
                         g->caller, g->m, g->n, g->k, g->batches);
    for (int i = 0; i < 3; i++)
        if (matrices[i]->ld < 1 || matrices[i]->ld < matrices[i]->rows)
            return blas_fail(CUBLAS_STATUS_INVALID_VALUE,
                             "%s: ld of %s is %d, but its columns have %d elements (cuBLAS is column-major)",
                             g->caller, matrices[i]->name, matrices[i]->ld, matrices[i]->rows);
    return CUBLAS_STATUS_SUCCESS;
}

static status check_scalar(const struct context *h, const char *caller, const char *name, const void *scalar,
                           u64 bytes)
{
    if (!scalar) return blas_fail(CUBLAS_STATUS_INVALID_VALUE, "%s: %s is NULL", caller, name);
    bool device = h->mode == POINTER_MODE_DEVICE;
    if (device ? !simgpu_is_device_pointer(scalar) : !simgpu_is_host_pointer(scalar))
        return blas_fail(CUBLAS_STATUS_INVALID_VALUE, "%s: %s is a %s pointer, but the pointer mode says %s",
                         caller, name, device ? "host" : "device", device ? "device" : "host");
    if (device && !simgpu_check_access(caller, "reads", scalar, bytes)) return CUBLAS_STATUS_EXECUTION_FAILED;
    return CUBLAS_STATUS_SUCCESS;
}

/* A product when its turn in the stream has come: scalars on the host were read when it was asked for. */
struct job {
    struct gemm gemm;
    bool on_device;
    union scalar {
        float f32;
        double f64;
    } alpha, beta;
};

static void multiply_f32(const struct gemm *g, float alpha, float beta)
{
    float *a = g->a.data, *b = g->b.data, *c = g->c.data;
    int lda = g->a.ld, ldb = g->b.ld, ldc = g->c.ld;
    bool wide_a = g->a.type != R_32F, wide_b = g->b.type != R_32F, wide_c = g->c.type != R_32F;
    if (wide_a) a = matrix_dense(&g->a), lda = g->a.rows > 0 ? g->a.rows : 1;
    if (wide_b) b = matrix_dense(&g->b), ldb = g->b.rows > 0 ? g->b.rows : 1;
    if (wide_c) c = matrix_dense(&g->c), ldc = g->c.rows;
    cblas_sgemm(CblasColMajor, g->transpose_a ? CblasTrans : CblasNoTrans,
                g->transpose_b ? CblasTrans : CblasNoTrans, g->m, g->n, g->k, alpha, a, lda, b, ldb, beta, c,
                ldc);
    if (wide_c) matrix_store(&g->c, c);
    if (wide_a) free(a);
    if (wide_b) free(b);
    if (wide_c) free(c);
}

/* The product `i` of the batch. */
static struct gemm one_of(const struct gemm *g, int i)
{
    struct gemm one = *g;
    if (g->all_a) {
        one.a.data = g->all_a[i], one.b.data = g->all_b[i], one.c.data = g->all_c[i];
        return one;
    }
    one.a.data = (u8 *)g->a.data + g->stride_a * i * (s64)element_bytes(g->a.type);
    one.b.data = (u8 *)g->b.data + g->stride_b * i * (s64)element_bytes(g->b.type);
    one.c.data = (u8 *)g->c.data + g->stride_c * i * (s64)element_bytes(g->c.type);
    return one;
}

static bool product_in_bounds(const struct gemm *g)
{
    return matrix_in_bounds(g->caller, "reads", &g->a) && matrix_in_bounds(g->caller, "reads", &g->b) &&
           matrix_in_bounds(g->caller, "writes", &g->c);
}

/* Of a batch of pointers the arrays: where its matrices are is known when its turn in the stream has come. */
static bool in_bounds(const struct gemm *g)
{
    void *const *const all[] = {g->all_a, g->all_b, g->all_c};
    for (int i = 0; g->all_a && i < 3; i++)
        if (!simgpu_check_access(g->caller, "reads", all[i], (u64)g->batches * sizeof(void *))) return false;
    for (int i = 0; !g->all_a && i < g->batches; i++) {
        struct gemm one = one_of(g, i);
        if (!product_in_bounds(&one)) return false;
    }
    return true;
}

static void run_job(const void *arguments)
{
    const struct job *job = arguments;
    union scalar alpha = job->alpha, beta = job->beta;
    bool f64 = job->gemm.c.type == R_64F;
    if (job->on_device) {
        memcpy(&alpha, job->gemm.alpha, f64 ? sizeof(double) : sizeof(float));
        memcpy(&beta, job->gemm.beta, f64 ? sizeof(double) : sizeof(float));
    }
    for (int i = 0; i < job->gemm.batches; i++) {
        if (job->gemm.all_a) {
            simgpu_touches(false, &job->gemm.all_a[i], sizeof(void *));
            simgpu_touches(false, &job->gemm.all_b[i], sizeof(void *));
            simgpu_touches(false, &job->gemm.all_c[i], sizeof(void *));
        }
        struct gemm g = one_of(&job->gemm, i);
        if (job->gemm.all_a && !product_in_bounds(&g)) return;
        matrix_touch(&g.a, false);
        matrix_touch(&g.b, false);
        matrix_touch(&g.c, true);
        if (f64)
            cblas_dgemm(CblasColMajor, g.transpose_a ? CblasTrans : CblasNoTrans,
                        g.transpose_b ? CblasTrans : CblasNoTrans, g.m, g.n, g.k, alpha.f64, g.a.data, g.a.ld,
                        g.b.data, g.b.ld, beta.f64, g.c.data, g.c.ld);
        else
            multiply_f32(&g, alpha.f32, beta.f32);
    }
}

static status multiply(const struct context *h, struct gemm *g)
{
    if (!valid(h)) return CUBLAS_STATUS_NOT_INITIALIZED;
    g->a.name = "A", g->b.name = "B", g->c.name = "C";
    g->a.rows = g->transpose_a ? g->k : g->m, g->a.columns = g->transpose_a ? g->m : g->k;
    g->b.rows = g->transpose_b ? g->n : g->k, g->b.columns = g->transpose_b ? g->k : g->n;
    g->c.rows = g->m, g->c.columns = g->n;
    bool f64 = g->c.type == R_64F;
    u64 scalar_bytes = f64 ? sizeof(double) : sizeof(float);
    status s = check_shape(g);
    if (!s) s = check_scalar(h, g->caller, "alpha", g->alpha, scalar_bytes);
    if (!s) s = check_scalar(h, g->caller, "beta", g->beta, scalar_bytes);
    if (s || simgpu_device_dead() || g->m == 0 || g->n == 0) return s;
    if (!in_bounds(g)) return CUBLAS_STATUS_EXECUTION_FAILED;
    struct job job = {.gemm = *g, .on_device = h->mode == POINTER_MODE_DEVICE};
    if (!job.on_device) {
        memcpy(&job.alpha, g->alpha, scalar_bytes);
        memcpy(&job.beta, g->beta, scalar_bytes);
    }
    return simgpu_do(g->caller, h->stream, run_job, NULL, &job, sizeof job) ? CUBLAS_STATUS_SUCCESS
                                                                            : CUBLAS_STATUS_EXECUTION_FAILED;
}

EXPORT status cublasSgemm_v2(struct context *h, operation transpose_a, operation transpose_b, int m, int n,
                             int k, const float *alpha, const float *a, int lda, const float *b, int ldb,
                             const float *beta, float *c, int ldc)
{
    struct gemm g = {.caller = "cublasSgemm",
                     .transpose_a = (int)transpose_a,
                     .transpose_b = (int)transpose_b,
                     .m = m,
                     .n = n,
                     .k = k,
                     .a = {.data = (void *)a, .type = R_32F, .ld = lda},
                     .b = {.data = (void *)b, .type = R_32F, .ld = ldb},
                     .c = {.data = c, .type = R_32F, .ld = ldc},
                     .batches = 1,
                     .alpha = alpha,
                     .beta = beta};
    return multiply(h, &g);
}

EXPORT status cublasDgemm_v2(struct context *h, operation transpose_a, operation transpose_b, int m, int n,
                             int k, const double *alpha, const double *a, int lda, const double *b, int ldb,
                             const double *beta, double *c, int ldc)
{
    struct gemm g = {.caller = "cublasDgemm",
                     .transpose_a = (int)transpose_a,
                     .transpose_b = (int)transpose_b,
                     .m = m,
                     .n = n,
                     .k = k,
                     .a = {.data = (void *)a, .type = R_64F, .ld = lda},
                     .b = {.data = (void *)b, .type = R_64F, .ld = ldb},
                     .c = {.data = c, .type = R_64F, .ld = ldc},
                     .batches = 1,
                     .alpha = alpha,
                     .beta = beta};
    return multiply(h, &g);
}

EXPORT status cublasSgemmStridedBatched(struct context *h, operation transpose_a, operation transpose_b,
                                        int m, int n, int k, const float *alpha, const float *a, int lda,
                                        long long stride_a, const float *b, int ldb, long long stride_b,
                                        const float *beta, float *c, int ldc, long long stride_c, int batches)
{
    struct gemm g = {.caller = "cublasSgemmStridedBatched",
                     .transpose_a = (int)transpose_a,
                     .transpose_b = (int)transpose_b,
                     .m = m,
                     .n = n,
                     .k = k,
                     .a = {.data = (void *)a, .type = R_32F, .ld = lda},
                     .b = {.data = (void *)b, .type = R_32F, .ld = ldb},
                     .c = {.data = c, .type = R_32F, .ld = ldc},
                     .stride_a = stride_a,
                     .stride_b = stride_b,
                     .stride_c = stride_c,
                     .batches = batches,
                     .alpha = alpha,
                     .beta = beta};
    return multiply(h, &g);
}

/* A batch whose matrices lie where arrays of pointers on the device say. */
static status multiply_pointers(const struct context *h, const char *caller, data_type type,
                                operation transpose_a, operation transpose_b, int m, int n, int k,
                                const void *alpha, void *const *a, int lda, void *const *b, int ldb,
                                const void *beta, void *const *c, int ldc, int batches)
{
    struct gemm g = {.caller = caller,
                     .transpose_a = (int)transpose_a,
                     .transpose_b = (int)transpose_b,
                     .m = m,
                     .n = n,
                     .k = k,
                     .a = {.type = type, .ld = lda},
                     .b = {.type = type, .ld = ldb},
                     .c = {.type = type, .ld = ldc},
                     .all_a = a,
                     .all_b = b,
                     .all_c = c,
                     .batches = batches,
                     .alpha = alpha,
                     .beta = beta};
    return multiply(h, &g);
}

EXPORT status cublasSgemmBatched(struct context *h, operation transpose_a, operation transpose_b, int m,
                                 int n, int k, const float *alpha, void *const *a, int lda, void *const *b,
                                 int ldb, const float *beta, void *const *c, int ldc, int batches)
{
    return multiply_pointers(h, "cublasSgemmBatched", R_32F, transpose_a, transpose_b, m, n, k, alpha, a, lda,
                             b, ldb, beta, c, ldc, batches);
}

EXPORT status cublasDgemmBatched(struct context *h, operation transpose_a, operation transpose_b, int m,
                                 int n, int k, const double *alpha, void *const *a, int lda, void *const *b,
                                 int ldb, const double *beta, void *const *c, int ldc, int batches)
{
    return multiply_pointers(h, "cublasDgemmBatched", R_64F, transpose_a, transpose_b, m, n, k, alpha, a, lda,
                             b, ldb, beta, c, ldc, batches);
}

/* The combinations of cublasGemmEx's table that are computed here. */
static status check_types(const struct gemm *g, compute_type compute)
{
    data_type a = g->a.type, b = g->b.type, c = g->c.type;
    bool f64 = compute == COMPUTE_64F || compute == COMPUTE_64F_PEDANTIC;
    bool f32 = compute == COMPUTE_32F || compute == COMPUTE_32F_PEDANTIC || compute == COMPUTE_32F_FAST_16F ||
               compute == COMPUTE_32F_FAST_16BF || compute == COMPUTE_32F_FAST_TF32;
    bool half = a == R_16F || a == R_16BF;
    if (f64 && a == R_64F && b == R_64F && c == R_64F) return CUBLAS_STATUS_SUCCESS;
    if (f32 && a == R_32F && b == R_32F && c == R_32F) return CUBLAS_STATUS_SUCCESS;
    if (f32 && half && a == b && (c == a || c == R_32F)) return CUBLAS_STATUS_SUCCESS;
    return blas_fail(
        CUBLAS_STATUS_NOT_SUPPORTED,
        "%s: A %s (%d), B %s (%d), C %s (%d) with compute type %d is not supported by the simulated GPU: "
        "f32, f16 or bf16 in, the same or f32 out, computed in f32; or all f64",
        g->caller, type_name(a), (int)a, type_name(b), (int)b, type_name(c), (int)c, (int)compute);
}

EXPORT status cublasGemmStridedBatchedEx(struct context *h, operation transpose_a, operation transpose_b,
                                         int m, int n, int k, const void *alpha, const void *a,
                                         data_type type_a, int lda, long long stride_a, const void *b,
                                         data_type type_b, int ldb, long long stride_b, const void *beta,
                                         void *c, data_type type_c, int ldc, long long stride_c, int batches,
                                         compute_type compute, int algorithm)
{
    (void)algorithm;
    struct gemm g = {.caller = "cublasGemmStridedBatchedEx",
                     .transpose_a = (int)transpose_a,
                     .transpose_b = (int)transpose_b,
                     .m = m,
                     .n = n,
                     .k = k,
                     .a = {.data = (void *)a, .type = type_a, .ld = lda},
                     .b = {.data = (void *)b, .type = type_b, .ld = ldb},
                     .c = {.data = c, .type = type_c, .ld = ldc},
                     .stride_a = stride_a,
                     .stride_b = stride_b,
                     .stride_c = stride_c,
                     .batches = batches,
                     .alpha = alpha,
                     .beta = beta};
    status s = check_types(&g, compute);
    return s ? s : multiply(h, &g);
}

EXPORT status cublasGemmEx(struct context *h, operation transpose_a, operation transpose_b, int m, int n,
                           int k, const void *alpha, const void *a, data_type type_a, int lda, const void *b,
                           data_type type_b, int ldb, const void *beta, void *c, data_type type_c, int ldc,
                           compute_type compute, int algorithm)
{
    (void)algorithm;
    struct gemm g = {.caller = "cublasGemmEx",
                     .transpose_a = (int)transpose_a,
                     .transpose_b = (int)transpose_b,
                     .m = m,
                     .n = n,
                     .k = k,
                     .a = {.data = (void *)a, .type = type_a, .ld = lda},
                     .b = {.data = (void *)b, .type = type_b, .ld = ldb},
                     .c = {.data = c, .type = type_c, .ld = ldc},
                     .batches = 1,
                     .alpha = alpha,
                     .beta = beta};
    status s = check_types(&g, compute);
    return s ? s : multiply(h, &g);
}

/* ---- Matrix times vector ------------------------------------------------------------------------------------------ */

static bool vector_in_bounds(const char *caller, const char *verb, const char *name, const float *v,
                             int count, int step)
{
    if (count == 0) return true;
    char who[64];
    snprintf(who, sizeof who, "%s: %s (%d elements, step %d)", caller, name, count, step);
    return simgpu_check_access(who, verb, v, ((u64)(count - 1) * (u64)llabs((s64)step) + 1) * sizeof *v);
}

struct gemv {
    bool transpose, on_device;
    int m, n, lda, step_x, step_y;
    const float *alpha, *a, *x, *beta; /* scalars on the device; else their values: */
    float alpha_value, beta_value, *y;
};

static void run_gemv(const void *arguments)
{
    const struct gemv *g = arguments;
    float alpha = g->on_device ? *g->alpha : g->alpha_value, beta = g->on_device ? *g->beta : g->beta_value;
    int length = g->transpose ? g->n : g->m, width = g->transpose ? g->m : g->n;
    matrix_touch(
        &(struct matrix){.data = (void *)g->a, .type = R_32F, .rows = g->m, .columns = g->n, .ld = g->lda},
        false);
    for (int i = 0; i < width; i++)
        simgpu_touches(false, g->x + (s64)i * llabs((s64)g->step_x), sizeof *g->x);
    for (int i = 0; i < length; i++)
        simgpu_touches(true, g->y + (s64)i * llabs((s64)g->step_y), sizeof *g->y);
    if (beta == 0) /* y is not read then: it may hold NaN */
        for (int i = 0; i < length; i++) g->y[(s64)i * llabs((s64)g->step_y)] = 0;
    cblas_sgemv(CblasColMajor, g->transpose ? CblasTrans : CblasNoTrans, g->m, g->n, alpha, g->a, g->lda,
                g->x, g->step_x, beta, g->y, g->step_y);
}

EXPORT status cublasSgemv_v2(struct context *h, operation transpose, int m, int n, const float *alpha,
                             const float *a, int lda, const float *x, int step_x, const float *beta, float *y,
                             int step_y)
{
    REQUIRE(h);
    const char *caller = "cublasSgemv";
    if ((unsigned)transpose > OP_C || m < 0 || n < 0 || step_x == 0 || step_y == 0 || lda < 1 || lda < m)
        return blas_fail(CUBLAS_STATUS_INVALID_VALUE, "%s: op=%d m=%d n=%d lda=%d incx=%d incy=%d", caller,
                         (int)transpose, m, n, lda, step_x, step_y);
    status s = check_scalar(h, caller, "alpha", alpha, sizeof *alpha);
    if (!s) s = check_scalar(h, caller, "beta", beta, sizeof *beta);
    if (s || simgpu_device_dead() || m == 0 || n == 0) return s;
    struct matrix matrix = {
        .name = "A", .data = (void *)a, .type = R_32F, .rows = m, .columns = n, .ld = lda};
    if (!matrix_in_bounds(caller, "reads", &matrix) ||
        !vector_in_bounds(caller, "reads", "x", x, transpose ? m : n, step_x) ||
        !vector_in_bounds(caller, "writes", "y", y, transpose ? n : m, step_y))
        return CUBLAS_STATUS_EXECUTION_FAILED;
    struct gemv g = {.transpose = transpose != OP_N,
                     .on_device = h->mode == POINTER_MODE_DEVICE,
                     .m = m,
                     .n = n,
                     .lda = lda,
                     .step_x = step_x,
                     .step_y = step_y,
                     .alpha = alpha,
                     .a = a,
                     .x = x,
                     .beta = beta,
                     .y = y};
    if (!g.on_device) g.alpha_value = *alpha, g.beta_value = *beta;
    return simgpu_do(caller, h->stream, run_gemv, NULL, &g, sizeof g) ? CUBLAS_STATUS_SUCCESS
                                                                      : CUBLAS_STATUS_EXECUTION_FAILED;
}
