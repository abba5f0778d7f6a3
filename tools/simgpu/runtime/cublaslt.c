/* cublaslt.c: cuBLASLt's matmul, on OpenBLAS: D = epilogue(alpha op(A) op(B) + beta C) with f32, f16 or bf16 matrices, computed in
 * f32 and rounded once at the end. The numbers are those of cublasLt.h. */
#include "blas.h"
#include "openblas.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Descriptors lie in memory of the program's, of these sizes; algorithms too. */
struct layout {
    u32 type;
    s32 order; /* 0: columns, 1: rows */
    u64 rows, columns;
    s64 ld;
    s32 batches;
    s64 stride; /* elements from one matrix of a batch to the next */
};
struct operation {
    s32 compute, scale_type, pointer_mode, transpose_a, transpose_b, transpose_c, fill;
    u32 epilogue;
    const void *bias;
    s64 bias_stride;
    void *aux;
    s64 aux_ld, aux_stride;
    s32 sm_target;
    const void *scales[4]; /* of A, B, C, D: fp8's */
    s32 aux_type, bias_type;
    s8 fast_accumulation;
};
struct preference {
    u32 search_mode;
    u64 workspace;
};
struct algorithm {
    u64 magic, rest[7];
};
struct heuristic {
    struct algorithm algorithm;
    size_t workspace;
    status state;
    float waves;
    int reserved[4];
};
_Static_assert(sizeof(struct layout) <= 64 && sizeof(struct operation) <= 256 &&
                   sizeof(struct preference) <= 64,
               "the program's memory for descriptors");

enum { ALGORITHM_MAGIC = 0x6c74616c, HANDLE_MAGIC = 0x63424c74 };
enum {
    RELU = 2,
    BIAS = 4,
    GELU = 32,
    GELU_GRADIENT = 64,
    AUX = 128
}; /* bits of an epilogue; 1: none of them */

struct context {
    u32 magic;
};

/* ---- Descriptors -------------------------------------------------------------------------------------------------------- */

/* Where an attribute lies in its descriptor. */
struct attribute {
    u32 number, offset, bytes;
};
#define ATTRIBUTE(number, type, field)                                          \
    {                                                                           \
        number, offsetof(struct type, field), sizeof(((struct type *)0)->field) \
    }
static const struct attribute layout_attributes[] = {
    ATTRIBUTE(0, layout, type),   ATTRIBUTE(1, layout, order),
    ATTRIBUTE(2, layout, rows),   ATTRIBUTE(3, layout, columns),
    ATTRIBUTE(4, layout, ld),     ATTRIBUTE(5, layout, batches),
    ATTRIBUTE(6, layout, stride), {0, 0, 0}};
static const struct attribute operation_attributes[] = {
    ATTRIBUTE(0, operation, compute),      ATTRIBUTE(1, operation, scale_type),
    ATTRIBUTE(2, operation, pointer_mode), ATTRIBUTE(3, operation, transpose_a),
    ATTRIBUTE(4, operation, transpose_b),  ATTRIBUTE(5, operation, transpose_c),
    ATTRIBUTE(6, operation, fill),         ATTRIBUTE(7, operation, epilogue),
    ATTRIBUTE(8, operation, bias),         ATTRIBUTE(10, operation, bias_stride),
    ATTRIBUTE(11, operation, aux),         ATTRIBUTE(12, operation, aux_ld),
    ATTRIBUTE(13, operation, aux_stride),  ATTRIBUTE(15, operation, sm_target),
    ATTRIBUTE(17, operation, scales[0]),   ATTRIBUTE(18, operation, scales[1]),
    ATTRIBUTE(19, operation, scales[2]),   ATTRIBUTE(20, operation, scales[3]),
    ATTRIBUTE(22, operation, aux_type),    ATTRIBUTE(25, operation, fast_accumulation),
    ATTRIBUTE(26, operation, bias_type),   {0, 0, 0}};

static const struct attribute *find(const struct attribute *a, u32 number)
{
    while (a->bytes && a->number != number) a++;
    return a->bytes ? a : NULL;
}

static status set(const char *caller, void *descriptor, const struct attribute *attributes, u32 number,
                  const void *value, size_t bytes)
{
    const struct attribute *a = find(attributes, number);
    if (!a)
        return blas_fail(CUBLAS_STATUS_NOT_SUPPORTED,
                         "%s: attribute %u is not supported by the simulated GPU", caller, number);
    if (!descriptor || !value || bytes != a->bytes)
        return blas_fail(CUBLAS_STATUS_INVALID_VALUE, "%s: attribute %u has %u bytes, not %zu", caller,
                         number, a->bytes, bytes);
    memcpy((u8 *)descriptor + a->offset, value, bytes);
    return CUBLAS_STATUS_SUCCESS;
}

static status get(const void *descriptor, const struct attribute *attributes, u32 number, void *value,
                  size_t bytes, size_t *written)
{
    const struct attribute *a = find(attributes, number);
    if (!a || !descriptor || (bytes ? !value || bytes != a->bytes : !written))
        return CUBLAS_STATUS_INVALID_VALUE;
    if (bytes) memcpy(value, (const u8 *)descriptor + a->offset, bytes);
    if (written) *written = a->bytes;
    return CUBLAS_STATUS_SUCCESS;
}

EXPORT status cublasLtMatrixLayoutInit_internal(struct layout *l, size_t room, u32 type, u64 rows,
                                                u64 columns, s64 ld)
{
    if (room < sizeof *l) return CUBLAS_STATUS_ALLOC_FAILED;
    *l = (struct layout){.type = type, .rows = rows, .columns = columns, .ld = ld, .batches = 1};
    return CUBLAS_STATUS_SUCCESS;
}

EXPORT status cublasLtMatmulDescInit_internal(struct operation *o, size_t room, s32 compute, s32 scale_type)
{
    if (room < sizeof *o) return CUBLAS_STATUS_ALLOC_FAILED;
    *o = (struct operation){
        .compute = compute, .scale_type = scale_type, .epilogue = 1, .aux_type = -1, .bias_type = -1};
    return CUBLAS_STATUS_SUCCESS;
}

EXPORT status cublasLtMatmulPreferenceInit_internal(struct preference *p, size_t room)
{
    if (room < sizeof *p) return CUBLAS_STATUS_ALLOC_FAILED;
    *p = (struct preference){.workspace = 0};
    return CUBLAS_STATUS_SUCCESS;
}

EXPORT status cublasLtMatrixLayoutCreate(struct layout **l, u32 type, u64 rows, u64 columns, s64 ld)
{
    *l = malloc(sizeof **l);
    return *l ? cublasLtMatrixLayoutInit_internal(*l, sizeof **l, type, rows, columns, ld)
              : CUBLAS_STATUS_ALLOC_FAILED;
}

EXPORT status cublasLtMatmulDescCreate(struct operation **o, s32 compute, s32 scale_type)
{
    *o = malloc(sizeof **o);
    return *o ? cublasLtMatmulDescInit_internal(*o, sizeof **o, compute, scale_type)
              : CUBLAS_STATUS_ALLOC_FAILED;
}

EXPORT status cublasLtMatmulPreferenceCreate(struct preference **p)
{
    *p = malloc(sizeof **p);
    return *p ? cublasLtMatmulPreferenceInit_internal(*p, sizeof **p) : CUBLAS_STATUS_ALLOC_FAILED;
}

#define DESTROY(name)                    \
    EXPORT status name(void *descriptor) \
    {                                    \
        free(descriptor);                \
        return CUBLAS_STATUS_SUCCESS;    \
    }
DESTROY(cublasLtMatrixLayoutDestroy)
DESTROY(cublasLtMatmulDescDestroy)
DESTROY(cublasLtMatmulPreferenceDestroy)

EXPORT status cublasLtMatrixLayoutSetAttribute(struct layout *l, u32 number, const void *value, size_t bytes)
{
    return set("cublasLtMatrixLayoutSetAttribute", l, layout_attributes, number, value, bytes);
}

EXPORT status cublasLtMatrixLayoutGetAttribute(const struct layout *l, u32 number, void *value, size_t bytes,
                                               size_t *written)
{
    return get(l, layout_attributes, number, value, bytes, written);
}

EXPORT status cublasLtMatmulDescSetAttribute(struct operation *o, u32 number, const void *value, size_t bytes)
{
    return set("cublasLtMatmulDescSetAttribute", o, operation_attributes, number, value, bytes);
}

EXPORT status cublasLtMatmulDescGetAttribute(const struct operation *o, u32 number, void *value, size_t bytes,
                                             size_t *written)
{
    return get(o, operation_attributes, number, value, bytes, written);
}

/* What would be preferred makes no difference here. */
EXPORT status cublasLtMatmulPreferenceSetAttribute(struct preference *p, u32 number, const void *value,
                                                   size_t bytes)
{
    (void)number, (void)bytes;
    return p && value ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE;
}

/* ---- Handles ------------------------------------------------------------------------------------------------------------ */

EXPORT status cublasLtCreate(struct context **handle)
{
    if (!handle) return CUBLAS_STATUS_INVALID_VALUE;
    if (!openblas_open()) return CUBLAS_STATUS_NOT_INITIALIZED;
    *handle = calloc(1, sizeof **handle);
    if (!*handle) return CUBLAS_STATUS_ALLOC_FAILED;
    (*handle)->magic = HANDLE_MAGIC;
    return CUBLAS_STATUS_SUCCESS;
}

EXPORT status cublasLtDestroy(struct context *handle)
{
    if (!handle || handle->magic != HANDLE_MAGIC) return CUBLAS_STATUS_NOT_INITIALIZED;
    handle->magic = 0;
    free(handle);
    return CUBLAS_STATUS_SUCCESS;
}

EXPORT size_t cublasLtGetVersion(void)
{
    return 130000;
}

EXPORT const char *cublasLtGetStatusName(status s)
{
    return status_name(s);
}

EXPORT const char *cublasLtGetStatusString(status s)
{
    return status_text(s);
}

/* ---- Products ----------------------------------------------------------------------------------------------------------- */

/* One call, as it waits for its turn in the stream. */
struct job {
    struct operation operation;
    struct matrix a, b, c, d; /* as they lie in memory */
    s64 stride_a, stride_b, stride_c, stride_d;
    int m, n, k, batches;
    const void *alpha, *beta; /* on the device, else their values: */
    float alpha_value, beta_value;
};

static float activated(u32 epilogue, float x)
{
    if (epilogue & RELU) return x > 0 ? x : 0;
    if (epilogue & GELU) return 0.5f * x * (1 + tanhf(0.79788456f * (x + 0.044715f * x * x * x)));
    return x;
}

/* The derivative of what activated() makes with GELU. */
static float gelu_slope(float x)
{
    float square = x * x, t = tanhf(0.79788456f * (x + 0.044715f * x * square));
    return 0.5f * (1 + t) + 0.5f * x * (1 - t * t) * 0.79788456f * (1 + 3 * 0.044715f * square);
}

/* With GELU_GRADIENT aux is read: d is what comes back through GELU of it. */
static void finish_gradient(const struct job *job, int batch, float *d)
{
    const struct operation *o = &job->operation;
    for (int column = 0; column < job->n; column++)
        for (int row = 0; row < job->m; row++)
            d[(size_t)column * (size_t)job->m + (size_t)row] *= gelu_slope(element_read(
                job->d.type, o->aux, (size_t)(batch * o->aux_stride + column * o->aux_ld + row)));
}

static void finish(const struct job *job, int batch, float *d)
{
    const struct operation *o = &job->operation;
    data_type bias_type = o->bias_type < 0 ? job->d.type : (data_type)o->bias_type;
    if (o->epilogue & GELU_GRADIENT) {
        finish_gradient(job, batch, d);
        return;
    }
    for (int column = 0; column < job->n; column++)
        for (int row = 0; row < job->m; row++) {
            float *x = &d[(size_t)column * (size_t)job->m + (size_t)row];
            if (o->epilogue & BIAS)
                *x += element_read(bias_type, o->bias, (size_t)(batch * o->bias_stride + row));
            if (o->epilogue & AUX)
                element_write(job->d.type, o->aux, (size_t)(batch * o->aux_stride + column * o->aux_ld + row),
                              *x);
            *x = activated(o->epilogue, *x);
        }
}

static struct matrix one_of(const struct matrix *m, s64 stride, int batch)
{
    struct matrix one = *m;
    one.data = (u8 *)m->data + stride * batch * (s64)element_bytes(m->type);
    return one;
}

/* The vector and the matrix of the epilogue, if it has them. */
static struct matrix bias_of(const struct job *job, int batch)
{
    const struct operation *o = &job->operation;
    data_type type = o->bias_type < 0 ? job->d.type : (data_type)o->bias_type;
    struct matrix bias = {.name = "the bias",
                          .data = (void *)o->bias,
                          .type = type,
                          .rows = job->m,
                          .columns = 1,
                          .ld = job->m};
    return one_of(&bias, o->bias_stride, batch);
}
static struct matrix aux_of(const struct job *job, int batch)
{
    struct matrix aux = {.name = "the auxiliary matrix",
                         .data = job->operation.aux,
                         .type = job->d.type,
                         .rows = job->m,
                         .columns = job->n,
                         .ld = (int)job->operation.aux_ld};
    return one_of(&aux, job->operation.aux_stride, batch);
}

static void run_job(const void *arguments)
{
    const struct job *job = arguments;
    const u32 epilogue = job->operation.epilogue;
    float alpha = job->operation.pointer_mode ? *(const float *)job->alpha : job->alpha_value,
          beta = job->operation.pointer_mode ? *(const float *)job->beta : job->beta_value;
    for (int i = 0; i < 2; i++)
        if (job->operation.scales[i]) alpha *= *(const float *)job->operation.scales[i];
    for (int i = 0; i < job->batches; i++) {
        struct matrix A = one_of(&job->a, job->stride_a, i), B = one_of(&job->b, job->stride_b, i),
                      C = one_of(&job->c, job->stride_c, i), D = one_of(&job->d, job->stride_d, i);
        matrix_touch(&A, false);
        matrix_touch(&B, false);
        if (beta != 0) matrix_touch(&C, false);
        matrix_touch(&D, true);
        const struct matrix bias = bias_of(job, i), aux = aux_of(job, i);
        if (epilogue & BIAS) matrix_touch(&bias, false);
        if (epilogue & AUX) matrix_touch(&aux, !(epilogue & GELU_GRADIENT));
        float *a = matrix_dense(&A), *b = matrix_dense(&B), *d = matrix_dense(beta != 0 ? &C : &D);
        cblas_sgemm(CblasColMajor, job->operation.transpose_a ? CblasTrans : CblasNoTrans,
                    job->operation.transpose_b ? CblasTrans : CblasNoTrans, job->m, job->n, job->k, alpha, a,
                    A.rows, b, B.rows, beta, d, job->m);
        finish(job, i, d);
        matrix_store(&D, d);
        free(a), free(b), free(d);
    }
}

static bool is_known(u32 type)
{
    return type == R_32F || type == R_16F || type == R_16BF;
}

/* The combinations that are computed here; NULL: this is one. */
static const char *unsupported(const struct operation *o, const struct layout *a, const struct layout *b,
                               const struct layout *c, const struct layout *d)
{
    const struct layout *const all[] = {a, b, c, d};
    if (o->compute != COMPUTE_32F && o->compute != COMPUTE_32F_PEDANTIC &&
        o->compute != COMPUTE_32F_FAST_16F && o->compute != COMPUTE_32F_FAST_16BF &&
        o->compute != COMPUTE_32F_FAST_TF32)
        return "a compute type other than 32F";
    if (o->scale_type != R_32F) return "scalars other than f32";
    if (o->pointer_mode != POINTER_MODE_HOST && o->pointer_mode != POINTER_MODE_DEVICE)
        return "vectors of scalars";
    if ((o->epilogue & ~(u32)(RELU | BIAS | GELU)) > 1 && (o->epilogue & ~(u32)(BIAS)) != (GELU | AUX) &&
        o->epilogue != (GELU_GRADIENT | AUX))
        return "an epilogue other than bias, ReLU, GELU and the gradient of GELU";
    if (o->transpose_c || o->fill) return "a transposed C or a triangle";
    for (u32 i = 0; i < 4; i++) {
        if (!is_known(all[i]->type) && !(i < 2 && all[i]->type == R_8F_E4M3))
            return "element types other than f32, f16, bf16, and e4m3 of A and B";
        if (all[i]->order != 0 && all[i]->order != 1) return "a layout neither by columns nor by rows";
        if (all[i]->batches != d->batches) return "batches of different sizes";
        if (all[i]->rows > INT32_MAX || all[i]->columns > INT32_MAX || all[i]->ld > INT32_MAX)
            return "matrices of 2^31 rows or columns";
        if (o->scales[i] && all[i]->type != R_8F_E4M3) return "scales of matrices that are not e4m3";
    }
    if (a->type != b->type) return "A and B of different types";
    if (a->type == R_8F_E4M3 &&
        (!o->transpose_a || o->transpose_b || (a->rows | a->columns | b->columns) % 16))
        return "e4m3 but of A transposed and B as it is, of multiples of 16 rows and columns";
    return NULL;
}

/* Whether the shapes fit together; the job's matrices and sizes are set. */
static status read_layouts(const char *caller, struct job *job, const struct layout *const layouts[4])
{
    struct matrix *const matrices[] = {&job->a, &job->b, &job->c, &job->d};
    static const char *const names[] = {"A", "B", "C", "D"};
    for (u32 i = 0; i < 4; i++) {
        const struct layout *l = layouts[i];
        struct matrix *m = matrices[i];
        m->name = names[i], m->type = (data_type)l->type, m->by_rows = l->order == 1;
        m->rows = (int)l->rows, m->columns = (int)l->columns, m->ld = (int)l->ld;
        if (m->ld < (m->by_rows ? m->columns : m->rows))
            return blas_fail(CUBLAS_STATUS_INVALID_VALUE, "%s: ld of %s is %d, but its %s have %d elements",
                             caller, names[i], m->ld, m->by_rows ? "rows" : "columns",
                             m->by_rows ? m->columns : m->rows);
    }
    bool ta = job->operation.transpose_a, tb = job->operation.transpose_b;
    job->m = job->d.rows, job->n = job->d.columns, job->k = ta ? job->a.rows : job->a.columns;
    if ((ta ? job->a.columns : job->a.rows) != job->m || (tb ? job->b.rows : job->b.columns) != job->n ||
        (tb ? job->b.columns : job->b.rows) != job->k || job->c.rows != job->m || job->c.columns != job->n)
        return blas_fail(CUBLAS_STATUS_INVALID_VALUE,
                         "%s: D is %d x %d, but op(A) is %d x %d, op(B) %d x %d and C %d x %d", caller,
                         job->m, job->n, ta ? job->a.columns : job->a.rows, job->k,
                         tb ? job->b.columns : job->b.rows, tb ? job->b.rows : job->b.columns, job->c.rows,
                         job->c.columns);
    job->batches = layouts[3]->batches;
    job->stride_a = layouts[0]->stride, job->stride_b = layouts[1]->stride;
    job->stride_c = layouts[2]->stride, job->stride_d = layouts[3]->stride;
    return CUBLAS_STATUS_SUCCESS;
}

/* Up to three algorithms, which need no workspace. They compute the same: a program that chooses can be tried. */
EXPORT status cublasLtMatmulAlgoGetHeuristic(struct context *handle, const struct operation *o,
                                             const struct layout *a, const struct layout *b,
                                             const struct layout *c, const struct layout *d,
                                             const struct preference *preference, int wanted,
                                             struct heuristic *results, int *found)
{
    const char *caller = "cublasLtMatmulAlgoGetHeuristic";
    if (!handle) return CUBLAS_STATUS_NOT_INITIALIZED;
    if (!o || !a || !b || !c || !d || !preference || !results || !found || wanted < 1)
        return CUBLAS_STATUS_INVALID_VALUE;
    *found = 0;
    const char *why = unsupported(o, a, b, c, d);
    if (why)
        return blas_fail(CUBLAS_STATUS_NOT_SUPPORTED, "%s: %s: not supported by the simulated GPU", caller,
                         why);
    struct job job = {.operation = *o};
    status s = read_layouts(caller, &job, (const struct layout *const[]){a, b, c, d});
    if (s) return s;
    for (; *found < wanted && *found < 3; ++*found)
        results[*found] = (struct heuristic){.algorithm = {ALGORITHM_MAGIC, {(u64)*found}}, .waves = 1};
    return CUBLAS_STATUS_SUCCESS;
}

static bool vectors_in_bounds(const char *caller, const struct job *job)
{
    const struct operation *o = &job->operation;
    for (int i = 0; i < 2; i++) {
        struct matrix scale = {.name = i ? "the scale of B" : "the scale of A",
                               .data = (void *)o->scales[i],
                               .type = R_32F,
                               .rows = 1,
                               .columns = 1,
                               .ld = 1};
        if (scale.data && !matrix_in_bounds(caller, "reads", &scale)) return false;
    }
    for (int i = 0; i < job->batches; i++) {
        struct matrix bias = bias_of(job, i), aux = aux_of(job, i);
        const char *verb = o->epilogue & GELU_GRADIENT ? "reads" : "writes";
        if ((o->epilogue & BIAS && !matrix_in_bounds(caller, "reads", &bias)) ||
            (o->epilogue & AUX && !matrix_in_bounds(caller, verb, &aux)))
            return false;
    }
    return true;
}

EXPORT status cublasLtMatmul(struct context *handle, const struct operation *o, const void *alpha,
                             const void *a, const struct layout *layout_a, const void *b,
                             const struct layout *layout_b, const void *beta, const void *c,
                             const struct layout *layout_c, void *d, const struct layout *layout_d,
                             const struct algorithm *algorithm, void *workspace, size_t workspace_bytes,
                             void *stream)
{
    const char *caller = "cublasLtMatmul";
    (void)workspace, (void)workspace_bytes;
    if (!handle) return CUBLAS_STATUS_NOT_INITIALIZED;
    if (!o || !alpha || !beta || !layout_a || !layout_b || !layout_c || !layout_d)
        return blas_fail(CUBLAS_STATUS_INVALID_VALUE, "%s: a NULL descriptor or scalar", caller);
    if (algorithm && algorithm->magic != ALGORITHM_MAGIC)
        return blas_fail(CUBLAS_STATUS_INVALID_VALUE,
                         "%s: the algorithm does not come from cublasLtMatmulAlgoGetHeuristic", caller);
    const char *why = unsupported(o, layout_a, layout_b, layout_c, layout_d);
    if (why)
        return blas_fail(CUBLAS_STATUS_NOT_SUPPORTED, "%s: %s: not supported by the simulated GPU", caller,
                         why);
    struct job job = {.operation = *o,
                      .a.data = (void *)a,
                      .b.data = (void *)b,
                      .c.data = (void *)c,
                      .d.data = d,
                      .alpha = alpha,
                      .beta = beta};
    status s =
        read_layouts(caller, &job, (const struct layout *const[]){layout_a, layout_b, layout_c, layout_d});
    if (s || simgpu_device_dead()) return s;
    bool on_device = o->pointer_mode == POINTER_MODE_DEVICE;
    if (on_device ? !simgpu_is_device_pointer(alpha) || !simgpu_is_device_pointer(beta)
                  : !simgpu_is_host_pointer(alpha) || !simgpu_is_host_pointer(beta))
        return blas_fail(CUBLAS_STATUS_INVALID_VALUE,
                         "%s: alpha and beta must be %s pointers, as the pointer mode says", caller,
                         on_device ? "device" : "host");
    if (!on_device) job.alpha_value = *(const float *)alpha, job.beta_value = *(const float *)beta;
    for (int i = 0; i < job.batches; i++) {
        struct matrix A = one_of(&job.a, job.stride_a, i), B = one_of(&job.b, job.stride_b, i),
                      C = one_of(&job.c, job.stride_c, i), D = one_of(&job.d, job.stride_d, i);
        bool reads_c = on_device || job.beta_value != 0;
        if (!matrix_in_bounds(caller, "reads", &A) || !matrix_in_bounds(caller, "reads", &B) ||
            (reads_c && !matrix_in_bounds(caller, "reads", &C)) || !matrix_in_bounds(caller, "writes", &D))
            return CUBLAS_STATUS_EXECUTION_FAILED;
    }
    if (!vectors_in_bounds(caller, &job)) return CUBLAS_STATUS_EXECUTION_FAILED;
    return simgpu_do(caller, stream, run_job, NULL, &job, sizeof job) ? CUBLAS_STATUS_SUCCESS
                                                                      : CUBLAS_STATUS_EXECUTION_FAILED;
}
