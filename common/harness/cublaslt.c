#include "cublaslt.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "library.h"

// The few declarations of cublasLt.h (CUDA 13) that are used here.
enum { CUBLAS_OP_T = 1, CUBLAS_STATUS_NOT_SUPPORTED = 15 };
enum { CUBLASLT_MATMUL_DESC_TRANSA = 3, CUBLASLT_MATMUL_DESC_TRANSB, CUBLASLT_MATMUL_DESC_EPILOGUE = 7 };
enum { CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT = 5, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET };
enum { CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES = 1, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK = 3 };
enum { CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES = 5, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES = 8 };
enum { CUBLASLT_REDUCTION_SCHEME_INPLACE = 1, CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE = 2 };
enum { WORKSPACE_BYTES = 32 << 20 }; // what the cuBLAS documentation recommends for Hopper

struct heuristic {
    uint64_t algorithm[8];
    size_t workspace_bytes;
    int state;
    float waves;
    int reserved[4];
};

// What cuBLASLt is told of a product.
struct description {
    void *desc, *A, *B, *D;
    float beta;
};

static struct {
    void *handle, *preference, *workspace;
    int (*create)(void **handle);
    size_t (*version)(void);
    int (*layout_create)(void **layout, cudaDataType, uint64_t rows, uint64_t cols, int64_t ld);
    int (*layout_set)(void *layout, int attribute, const void *value, size_t size);
    int (*layout_destroy)(void *layout);
    int (*desc_create)(void **desc, int compute_type, cudaDataType scale_type);
    int (*desc_set)(void *desc, int attribute, const void *value, size_t size);
    int (*desc_destroy)(void *desc);
    int (*preference_create)(void **preference);
    int (*preference_set)(void *preference, int attribute, const void *value, size_t size);
    int (*heuristic)(void *handle, void *desc, void *A, void *B, void *C, void *D, void *preference,
                     int wanted, struct heuristic *, int *found);
    int (*matmul)(void *handle, void *desc, const void *alpha, const void *A, void *, const void *B, void *,
                  const void *beta, const void *C, void *, void *D, void *, const uint64_t *algorithm,
                  void *workspace, size_t workspace_bytes, cudaStream_t);
} lt;

static bool open_lt(void)
{
    const size_t workspace_bytes = WORKSPACE_BYTES;
    if (lt.handle) return true;
    void *library = dlopen("libcublasLt.so.13", RTLD_NOW);
    if (!library) return fprintf(stderr, "cuBLASLt: %s\n", dlerror()), false;
    return library_find(library, "cublasLtCreate", &lt.create) &&
           library_find(library, "cublasLtGetVersion", &lt.version) &&
           library_find(library, "cublasLtMatrixLayoutCreate", &lt.layout_create) &&
           library_find(library, "cublasLtMatrixLayoutSetAttribute", &lt.layout_set) &&
           library_find(library, "cublasLtMatrixLayoutDestroy", &lt.layout_destroy) &&
           library_find(library, "cublasLtMatmulDescCreate", &lt.desc_create) &&
           library_find(library, "cublasLtMatmulDescSetAttribute", &lt.desc_set) &&
           library_find(library, "cublasLtMatmulDescDestroy", &lt.desc_destroy) &&
           library_find(library, "cublasLtMatmulPreferenceCreate", &lt.preference_create) &&
           library_find(library, "cublasLtMatmulPreferenceSetAttribute", &lt.preference_set) &&
           library_find(library, "cublasLtMatmulAlgoGetHeuristic", &lt.heuristic) &&
           library_find(library, "cublasLtMatmul", &lt.matmul) &&
           cudaMalloc(&lt.workspace, workspace_bytes) == cudaSuccess &&
           lt.preference_create(&lt.preference) == 0 &&
           lt.preference_set(lt.preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace_bytes,
                             sizeof workspace_bytes) == 0 &&
           lt.create(&lt.handle) == 0;
}

static void forget(struct description *d)
{
    if (d->D) lt.layout_destroy(d->D);
    if (d->A) lt.layout_destroy(d->A);
    if (d->B) lt.layout_destroy(d->B);
    if (d->desc) lt.desc_destroy(d->desc);
    *d = (struct description){0};
}

// A matrix as it lies there, row-major (rows, cols), of a batch: to cuBLASLt a column-major one, (cols, rows).
static int layout(void **made, cudaDataType type, int rows, int cols, int batches, int64_t stride)
{
    int status = lt.layout_create(made, type, (uint64_t)cols, (uint64_t)rows, cols);
    if (batches <= 1) return status;
    if (!status) status = lt.layout_set(*made, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &batches, sizeof batches);
    if (!status)
        status = lt.layout_set(*made, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &stride, sizeof stride);
    return status;
}

// Row-major D (M, N) is its D^T (N, M) = op(B)^T op(A)^T: so B comes first, and a matrix that we do not transpose it need not either.
static int describe(struct description *d, const struct cublaslt_product *p)
{
    const int turned = CUBLAS_OP_T;
    d->beta = p->beta;
    int status = lt.desc_create(&d->desc, p->compute_type, CUDA_R_32F);
    if (!status && p->B_transposed)
        status = lt.desc_set(d->desc, CUBLASLT_MATMUL_DESC_TRANSA, &turned, sizeof turned);
    if (!status && p->A_transposed)
        status = lt.desc_set(d->desc, CUBLASLT_MATMUL_DESC_TRANSB, &turned, sizeof turned);
    if (!status && p->epilogue)
        status = lt.desc_set(d->desc, CUBLASLT_MATMUL_DESC_EPILOGUE, &p->epilogue, sizeof p->epilogue);
    for (int i = 0; i < p->attribute_count && !status; i++)
        status = lt.desc_set(d->desc, p->attributes[i].name, p->attributes[i].value, p->attributes[i].bytes);
    const int B_rows = p->B_transposed ? p->N : p->K, A_rows = p->A_transposed ? p->K : p->M;
    if (!status) status = layout(&d->B, p->type, B_rows, p->N + p->K - B_rows, p->batches, p->B_stride);
    if (!status) status = layout(&d->A, p->type, A_rows, p->M + p->K - A_rows, p->batches, p->A_stride);
    if (!status) status = layout(&d->D, p->D_type, p->M, p->N, p->batches, p->D_stride);
    return status;
}

// The algorithms that cuBLASLt names first, at most so many, that take arrays that begin at multiples of so many bytes and add
// parts of k up in fp32: it would do so in D's own type, too.
static int propose(const struct description *d, const struct cublaslt_product *p, uint32_t alignment,
                   int wanted, struct heuristic *list, int *found)
{
    const int reductions = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE |
                           (p->D_type == CUDA_R_32F ? CUBLASLT_REDUCTION_SCHEME_INPLACE : 0);
    int status = lt.preference_set(lt.preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &reductions,
                                   sizeof reductions);
    for (int which = CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES;
         which <= CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES && !status; which++)
        status = lt.preference_set(lt.preference, which, &alignment, sizeof alignment);
    if (!status)
        status = lt.heuristic(lt.handle, d->desc, d->B, d->A, d->D, d->D, lt.preference, wanted, list, found);
    return !status && !*found ? CUBLAS_STATUS_NOT_SUPPORTED : status;
}

static int multiply(const struct description *d, const uint64_t *algorithm, const void *A, const void *B,
                    void *D, cudaStream_t stream)
{
    const float one = 1;
    return lt.matmul(lt.handle, d->desc, &one, B, d->B, A, d->A, &d->beta, D, d->D, D, d->D, algorithm,
                     lt.workspace, WORKSPACE_BYTES, stream);
}

static cudaError_t error_of(int status)
{
    if (status == CUBLAS_STATUS_NOT_SUPPORTED) return cudaErrorNotSupported;
    if (status) fprintf(stderr, "cuBLASLt: cublasLtMatmul: status %d\n", status);
    return status ? cudaErrorUnknown : cudaSuccess;
}

// --- Candidates -------------------------------------------------------------------------------------------------------

enum {
    ANY_ALIGNMENT = 256,
    PACK_ALIGNMENT = 16
}; // cuBLASLt's own default; what every launcher's arrays have

static struct {
    struct description description;
    struct heuristic list[CUBLASLT_CANDIDATES];
} candidates;

int cublaslt_candidates(const struct cublaslt_product *product)
{
    int found = 0;
    if (!open_lt()) return 0;
    forget(&candidates.description);
    int status = describe(&candidates.description, product);
    if (!status)
        status = propose(&candidates.description, product, ANY_ALIGNMENT, CUBLASLT_CANDIDATES,
                         candidates.list, &found);
    return error_of(status) == cudaSuccess ? found : 0;
}

cudaError_t cublaslt_candidate(int i, const void *A, const void *B, void *D, cudaStream_t stream)
{
    return error_of(multiply(&candidates.description, candidates.list[i].algorithm, A, B, D, stream));
}

// --- Choices, remembered ----------------------------------------------------------------------------------------------

enum { KEY = 11, WORDS = 8, LAUNCHES = 5, ROUNDS = 5 };

// A kind of products and its algorithm, which is a line of the file.
struct choice {
    int key[KEY];
    uint64_t algorithm[WORDS];
};

static struct {
    FILE *file; // NULL: cublaslt_matmul takes what the heuristic names first
    struct choice *list;
    int count;
} choices;

static bool read_choice(const char *line, struct choice *choice)
{
    int used = 0;
    for (int i = 0; i < KEY; i++, line += used)
        if (sscanf(line, "%d%n", &choice->key[i], &used) != 1) return false;
    for (int i = 0; i < WORDS; i++, line += used)
        if (sscanf(line, "%" SCNx64 "%n", &choice->algorithm[i], &used) != 1) return false;
    return strcmp(line, "\n") == 0;
}

static void write_choice(FILE *file, const struct choice *choice)
{
    for (int i = 0; i < KEY; i++) fprintf(file, "%d ", choice->key[i]);
    for (int i = 0; i < WORDS; i++)
        fprintf(file, "%" PRIx64 "%s", choice->algorithm[i], i + 1 < WORDS ? " " : "\n");
    fflush(file);
}

static void add_choice(const struct choice *choice)
{
    choices.list = realloc(choices.list, (size_t)(choices.count + 1) * sizeof *choices.list);
    if (!choices.list) die_input("no memory for %d algorithms", choices.count + 1);
    choices.list[choices.count++] = *choice;
}

bool cublaslt_remember(const char *path, struct error *error)
{
    struct cudaDeviceProp gpu;
    struct choice choice;
    char wanted[400], found[400] = "", line[400];
    int device;
    if (!open_lt()) return error_set(error, "%s: without cuBLASLt there is nothing to choose from", path);
    CUDA_CHECK(cudaGetDevice(&device));
    CUDA_CHECK(cudaGetDeviceProperties(&gpu, device));
    snprintf(wanted, sizeof wanted, "algorithms of cuBLASLt %zu, %s\n", lt.version(), gpu.name);
    choices.file = fopen(path, "a+");
    if (!choices.file) return error_set(error, "%s: %s", path, strerror(errno));
    rewind(choices.file);
    if (!fgets(found, sizeof found, choices.file)) {
        rewind(choices.file); // between reading and writing
        fputs(wanted, choices.file);
        return fflush(choices.file) == 0 || error_set(error, "%s: %s", path, strerror(errno));
    }
    if (strcmp(found, wanted) != 0)
        return error_set(error, "%s: found '%.*s', expected '%.*s'", path, (int)strcspn(found, "\n"), found,
                         (int)strlen(wanted) - 1, wanted);
    while (fgets(line, sizeof line, choices.file)) {
        if (!read_choice(line, &choice))
            return error_set(error, "%s: line %d is no algorithm", path, choices.count + 2);
        add_choice(&choice);
    }
    return true;
}

// The candidate that is fastest on these operands. Its timing is this machine's, now: another time it may be another.
static int fastest(const struct description *d, const struct cublaslt_product *p, const void *A,
                   const void *B, cudaStream_t stream, uint64_t *algorithm)
{
    struct heuristic list[CUBLASLT_CANDIDATES];
    float best[CUBLASLT_CANDIDATES], ms;
    cudaEvent_t begin, end;
    void *D;
    int found = 0, first = 0;
    int status = propose(d, p, PACK_ALIGNMENT, CUBLASLT_CANDIDATES, list, &found);
    if (status) return status;
    CUDA_CHECK(cudaMalloc(&D, (size_t)(p->batches > 1 ? p->batches : 1) * (size_t)p->M * (size_t)p->N *
                                  (p->D_type == CUDA_R_32F ? 4 : 2)));
    CUDA_CHECK(cudaEventCreate(&begin));
    CUDA_CHECK(cudaEventCreate(&end));
    for (int c = 0; c < found; c++) best[c] = multiply(d, list[c].algorithm, A, B, D, stream) ? -1 : INFINITY;
    for (int round = 0; round < ROUNDS; round++)
        for (int c = 0; c < found; c++) {
            if (best[c] < 0) continue; // It was refused after all.
            CUDA_CHECK(cudaEventRecord(begin, stream));
            for (int i = 0; i < LAUNCHES; i++) multiply(d, list[c].algorithm, A, B, D, stream);
            CUDA_CHECK(cudaEventRecord(end, stream));
            CUDA_CHECK(cudaEventSynchronize(end));
            CUDA_CHECK(cudaEventElapsedTime(&ms, begin, end));
            best[c] = fminf(best[c], ms);
        }
    while (first < found && best[first] < 0) first++;
    for (int c = first; c < found; c++)
        if (best[c] >= 0 && best[c] < best[first]) first = c;
    CUDA_CHECK(cudaEventDestroy(begin));
    CUDA_CHECK(cudaEventDestroy(end));
    CUDA_CHECK(cudaFree(D));
    if (first == found) return CUBLAS_STATUS_NOT_SUPPORTED;
    memcpy(algorithm, list[first].algorithm, sizeof list[first].algorithm);
    return 0;
}

// The algorithm for this product: remembered, or the fastest, or while a graph is recorded, and nothing can be timed, the first.
static int choose(const struct description *d, const struct cublaslt_product *p, const void *A, const void *B,
                  cudaStream_t stream, uint64_t *algorithm)
{
    enum cudaStreamCaptureStatus capturing = cudaStreamCaptureStatusNone;
    struct heuristic first;
    struct choice choice = {{p->compute_type, p->type, p->D_type, p->M, p->N, p->K, p->A_transposed,
                             p->B_transposed, p->batches, p->beta != 0, p->epilogue},
                            {0}};
    int status, found = 0;
    for (int i = 0; i < choices.count; i++)
        if (memcmp(choices.list[i].key, choice.key, sizeof choice.key) == 0)
            return memcpy(algorithm, choices.list[i].algorithm, sizeof choice.algorithm), 0;
    if (choices.file) CUDA_CHECK(cudaStreamIsCapturing(stream, &capturing));
    if (!choices.file || capturing != cudaStreamCaptureStatusNone) {
        status = propose(d, p, ANY_ALIGNMENT, 1, &first, &found);
        if (!status) memcpy(algorithm, first.algorithm, sizeof first.algorithm);
        return status;
    }
    if ((status = fastest(d, p, A, B, stream, choice.algorithm)) != 0) return status;
    add_choice(&choice);
    write_choice(choices.file, &choice);
    memcpy(algorithm, choice.algorithm, sizeof choice.algorithm);
    return 0;
}

cudaError_t cublaslt_matmul(const struct cublaslt_product *product, const void *A, const void *B, void *D,
                            cudaStream_t stream)
{
    struct description description = {0};
    uint64_t algorithm[WORDS];
    if (!open_lt()) return cudaErrorSharedObjectInitFailed;
    int status = describe(&description, product);
    if (!status) status = choose(&description, product, A, B, stream, algorithm);
    if (!status) status = multiply(&description, algorithm, A, B, D, stream);
    forget(&description);
    return error_of(status);
}
