#include "case.h"

#include <dirent.h>
#include <limits.h>
#include <math.h>
#include <sys/stat.h>

enum { POISON = 0xff }; // all ones: a NaN in every floating-point type, -1 in every integer

static void join(char *path, size_t size, const char *dir, const char *name, const char *suffix)
{
    if ((size_t)snprintf(path, size, "%s/%s%s", dir, name, suffix) >= size)
        die_input("%s/%s%s: the path is too long, expected less than %zu bytes", dir, name, suffix, size);
}

static bool exists(const char *path)
{
    struct stat info;
    return stat(path, &info) == 0;
}

static bool is_folder(const char *path)
{
    struct stat info;
    return stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

static bool ends_with(const char *text, const char *suffix)
{
    size_t length = strlen(text), n = strlen(suffix);
    return length >= n && strcmp(text + length - n, suffix) == 0;
}

int case_list(const char *dir, char ***names, struct error *error)
{
    struct dirent **entries;
    int count = scandir(dir, &entries, NULL, alphasort), cases = 0, files = 0;
    if (count < 0) return error_set(error, "%s: cannot read the golden folder: %s", dir, strerror(errno)), -1;
    *names = calloc((size_t)count + 1, sizeof **names);
    for (int i = 0; i < count; i++) {
        char path[PATH_MAX];
        join(path, sizeof path, dir, entries[i]->d_name, "");
        bool npy = ends_with(entries[i]->d_name, ".npy");
        files += npy;
        if (!npy && entries[i]->d_name[0] != '.' && is_folder(path))
            (*names)[cases++] = strdup(entries[i]->d_name);
        free(entries[i]);
    }
    free(entries);
    if (cases == 0 && files > 0) (*names)[cases++] = strdup(".");
    if (cases == 0) return error_set(error, "%s: no cases, expected folders of .npy files", dir), -1;
    return cases;
}

// Whether a tensor of this type has a file whose name goes on with `ending` after the tensor's.
static bool has_file(const struct tensor *tensor, enum dtype dtype, const char *ending)
{
    const char *suffix = dtype_suffix(dtype);
    if (tensor->role != OUT && strcmp(ending, suffix) == 0) return true;
    if (tensor->role != OUT && tensor->role != INOUT) return false;
    if (tensor->role == INOUT && strncmp(ending, ".after", 6) != 0) return false;
    if (tensor->role == INOUT) ending += 6;
    return strcmp(ending, suffix) == 0 || strcmp(ending, ".npy") == 0 || strcmp(ending, ".tol.npy") == 0;
}

// Refuses a file that no tensor of the chapter explains: most likely a name typed wrongly.
static bool check_names(const struct chapter *chapter, const char *dir, bool f16, struct error *error)
{
    DIR *folder = opendir(dir);
    if (!folder) return error_set(error, "%s: cannot read: %s", dir, strerror(errno));
    struct dirent *entry;
    bool ok = true;
    while (ok && (entry = readdir(folder))) {
        bool known = !ends_with(entry->d_name, ".npy");
        for (int t = 0; t < chapter_tensors(chapter) && !known; t++) {
            const struct tensor *tensor = &chapter->tensors[t];
            size_t length = strlen(tensor->name);
            known = strncmp(entry->d_name, tensor->name, length) == 0 &&
                    has_file(tensor, chapter_tensor_dtype(chapter, t, f16), entry->d_name + length);
        }
        if (!known)
            ok = error_set(error, "%s/%s: no tensor of %s has this file; --help lists them", dir,
                           entry->d_name, chapter->name);
    }
    closedir(folder);
    return ok;
}

static unsigned float_types(enum dtype dtype)
{
    return dtype_epsilon(dtype) ? 1u << F32 | 1u << F64 : 0;
}

// Reads the input files, the expected outputs and the tolerances of tensor t.
static bool load_tensor(const struct chapter *chapter, const char *dir, int t, struct golden *golden,
                        struct error *error)
{
    const struct tensor *tensor = &chapter->tensors[t];
    enum dtype dtype = chapter_tensor_dtype(chapter, t, golden->f16);
    const char *suffix = dtype_suffix(dtype);
    unsigned own = 1u << dtype;
    char path[PATH_MAX], base[64];
    if (tensor->role != OUT) {
        join(path, sizeof path, dir, tensor->name, suffix);
        if (tensor->role == IN_OPTIONAL && !exists(path)) return true;
        if (!npy_load(path, own, &golden->input[t], error)) return false;
    }
    if (tensor->role != OUT && tensor->role != INOUT) return true;

    snprintf(base, sizeof base, "%s%s", tensor->name, tensor->role == INOUT ? ".after" : "");
    join(path, sizeof path, dir, base, ".npy");
    unsigned accepted = float_types(dtype) | (strcmp(suffix, ".npy") == 0 ? own : 0);
    if (!exists(path) && strcmp(suffix, ".npy") != 0) {
        join(path, sizeof path, dir, base, suffix);
        accepted = own;
    }
    if (!npy_load(path, accepted, &golden->expected[t], error)) return false;
    const struct npy *expected = &golden->expected[t];
    char element[200];
    for (int64_t i = 0; i < expected->count; i++)
        if (isnan(dtype_get(expected->dtype, expected->data, i)))
            return error_set(error, "%s: %s is NaN, expected a number: NaN is never right", path,
                             case_element_text(tensor->name, expected, i, element, sizeof element));

    join(path, sizeof path, dir, base, ".tol.npy");
    if (!dtype_epsilon(dtype) && !exists(path)) return true; // whole numbers must be exact
    struct npy *tolerance = &golden->tolerance[t];
    if (!npy_load(path, 1u << F32 | 1u << F64, tolerance, error)) return false;
    for (int64_t i = 0; i < tolerance->count; i++) {
        double value = dtype_get(tolerance->dtype, tolerance->data, i);
        if (!(value >= 0) || isinf(value))
            return error_set(error, "%s: %s is %g, expected a finite tolerance of at least 0", path,
                             case_element_text(tensor->name, tolerance, i, element, sizeof element), value);
    }
    return true;
}

// A dimension that is a bare name takes its size from the first array that has it.
static bool bind_dims(const struct chapter *chapter, const char *dir, struct golden *golden,
                      struct error *error)
{
    for (int t = 0; t < chapter_tensors(chapter); t++) {
        const struct tensor *tensor = &chapter->tensors[t];
        const struct npy *array = tensor->role == OUT ? &golden->expected[t] : &golden->input[t];
        if (!array->data) continue;
        if (tensor->role == PARAM && array->rank == 0) {
            int d = shape_find(chapter->dims, tensor->name, strlen(tensor->name));
            if (d >= 0) golden->dim[d] = (int64_t)dtype_get(array->dtype, array->data, 0);
            continue;
        }
        const char *p = tensor->shape;
        for (int i = 0; i < array->rank && *p; i++) {
            size_t length = strcspn(p, ",");
            int d = shape_find(chapter->dims, p, length);
            if (array->shape[i] > INT_MAX)
                return error_set(error, "%s: dimension %d of %s is %lld, expected at most %d", dir, i,
                                 tensor->name, (long long)array->shape[i], INT_MAX);
            if (d >= 0 && golden->dim[d] == 0) golden->dim[d] = array->shape[i];
            p += length + (p[length] == ',');
        }
    }
    return true;
}

// An array that is there must have the shape that the chapter declares; `file` is its name without the tensor's.
static bool check_array(const struct chapter *chapter, const char *dir, int t, const char *file,
                        const struct npy *array, const struct golden *golden, struct error *error)
{
    const struct tensor *tensor = &chapter->tensors[t];
    int64_t shape[NPY_MAX_RANK];
    if (!array->data) return true;
    int rank = chapter_tensor_shape(chapter, t, golden->dim, shape, error);
    if (rank < 0) return false;
    if (rank == array->rank && memcmp(shape, array->shape, (size_t)rank * sizeof *shape) == 0) return true;
    char found[200], expected[200];
    return error_set(error, "%s/%s%s: shape %s, expected (%s) = %s", dir, tensor->name, file,
                     npy_shape_text(array->rank, array->shape, found, sizeof found), tensor->shape,
                     npy_shape_text(rank, shape, expected, sizeof expected));
}

static bool check_shapes(const struct chapter *chapter, const char *dir, const struct golden *golden,
                         struct error *error)
{
    static const struct npy none;
    for (int t = 0; t < chapter_tensors(chapter); t++) {
        const struct tensor *tensor = &chapter->tensors[t];
        bool after = tensor->role == INOUT;
        const struct npy *tolerance = golden->tolerance[t].rank ? &golden->tolerance[t] : &none;
        const char *suffix = dtype_suffix(chapter_tensor_dtype(chapter, t, golden->f16));
        if (!check_array(chapter, dir, t, suffix, &golden->input[t], golden, error) ||
            !check_array(chapter, dir, t, after ? ".after.npy" : ".npy", &golden->expected[t], golden,
                         error) ||
            !check_array(chapter, dir, t, after ? ".after.tol.npy" : ".tol.npy", tolerance, golden, error))
            return false;
    }
    const char *needed = chapter->check_shape ? chapter->check_shape(golden->dim) : NULL;
    char text[200];
    return !needed || error_set(error, "%s: shape %s: %s", dir,
                                shape_write(chapter->dims, golden->dim, text, sizeof text), needed);
}

// Whether the case holds f16: its first bf16 input has a file of f16 and none of bf16.
static bool holds_f16(const struct chapter *chapter, const char *dir)
{
    char bf16[PATH_MAX], f16[PATH_MAX];
    for (const struct tensor *t = chapter->tensors; t->name && chapter->f16_too; t++) {
        if (t->role != IN || t->dtype != BF16) continue;
        join(bf16, sizeof bf16, dir, t->name, dtype_suffix(BF16));
        join(f16, sizeof f16, dir, t->name, dtype_suffix(F16));
        return !exists(bf16) && exists(f16);
    }
    return false;
}

bool case_load(const struct chapter *chapter, const char *dir, const char *name, struct golden *golden,
               struct error *error)
{
    char path[PATH_MAX];
    join(path, sizeof path, dir, name, "");
    if (strcmp(name, ".") == 0) *strrchr(path, '/') = 0;
    *golden = (struct golden){.name = strdup(name)};
    golden->f16 = holds_f16(chapter, path);
    bool ok = check_names(chapter, path, golden->f16, error);
    for (int t = 0; ok && t < chapter_tensors(chapter); t++)
        ok = load_tensor(chapter, path, t, golden, error);
    ok = ok && bind_dims(chapter, path, golden, error) && check_shapes(chapter, path, golden, error);
    if (!ok) case_free(golden);
    return ok;
}

void case_free(struct golden *golden)
{
    for (int t = 0; t < CHAPTER_MAX_TENSORS; t++) {
        npy_free(&golden->input[t]);
        npy_free(&golden->expected[t]);
        npy_free(&golden->tolerance[t]);
    }
    free(golden->name);
    *golden = (struct golden){0};
}

// Bytes of tensor t for the run's dimensions.
static size_t tensor_bytes(const struct chapter *chapter, const struct run *run, int t)
{
    struct error error;
    int64_t shape[NPY_MAX_RANK], bytes = (int64_t)dtype_bytes(chapter_tensor_dtype(chapter, t, run->f16));
    int rank = chapter_tensor_shape(chapter, t, run->dim, shape, &error);
    if (rank < 0) die_input("%s: %s", chapter->name, error.text);
    for (int i = 0; i < rank; i++)
        if (__builtin_mul_overflow(bytes, shape[i], &bytes))
            die_input("%s: tensor %s: the size overflows 64 bits", chapter->name, chapter->tensors[t].name);
    return (size_t)bytes;
}

void run_allocate(const struct chapter *chapter, struct run *run, const bool *with, size_t guard)
{
    for (int t = 0; t < chapter_tensors(chapter); t++) {
        enum role role = chapter->tensors[t].role;
        run->data[t] = NULL;
        if (role == PARAM || (role == IN_OPTIONAL && !with[t])) continue;
        size_t bytes = tensor_bytes(chapter, run, t) + guard;
        CUDA_CHECK(cudaMalloc(&run->data[t], bytes));
        CUDA_CHECK(cudaMemset(run->data[t], POISON, bytes));
    }
}

void run_free(struct run *run)
{
    for (int t = 0; t < CHAPTER_MAX_TENSORS; t++)
        if (run->data[t]) CUDA_CHECK(cudaFree(run->data[t]));
    *run = (struct run){0};
}

void case_upload(const struct chapter *chapter, const struct golden *golden, size_t guard, struct run *run)
{
    bool with[CHAPTER_MAX_TENSORS];
    *run = (struct run){0};
    memcpy(run->dim, golden->dim, sizeof run->dim);
    run->f16 = golden->f16;
    for (int t = 0; t < CHAPTER_MAX_TENSORS; t++) with[t] = golden->input[t].data != NULL;
    run_allocate(chapter, run, with, guard);
    for (int t = 0; t < chapter_tensors(chapter); t++) {
        const struct npy *input = &golden->input[t];
        if (!input->data) continue;
        if (chapter->tensors[t].role == PARAM)
            run->param[t] = dtype_get(input->dtype, input->data, 0);
        else
            CUDA_CHECK(
                cudaMemcpy(run->data[t], input->data, tensor_bytes(chapter, run, t), cudaMemcpyHostToDevice));
    }
}

struct npy run_download(const struct chapter *chapter, const struct run *run, int t)
{
    struct error error;
    struct npy array = {.dtype = chapter_tensor_dtype(chapter, t, run->f16)};
    size_t bytes = tensor_bytes(chapter, run, t);
    array.rank = chapter_tensor_shape(chapter, t, run->dim, array.shape, &error);
    array.count = (int64_t)(bytes / dtype_bytes(array.dtype));
    array.data = malloc(bytes);
    if (!array.data)
        die_input("%s: no memory for %zu bytes of %s", chapter->name, bytes, chapter->tensors[t].name);
    CUDA_CHECK(cudaMemcpy(array.data, run->data[t], bytes, cudaMemcpyDeviceToHost));
    return array;
}

char *case_element_text(const char *tensor, const struct npy *array, int64_t i, char *text, size_t size)
{
    int64_t index[NPY_MAX_RANK];
    for (int d = array->rank - 1; d >= 0; d--) {
        index[d] = i % array->shape[d];
        i /= array->shape[d];
    }
    if (array->rank == 2) {
        snprintf(text, size, "%s[row %lld, col %lld]", tensor, (long long)index[0], (long long)index[1]);
        return text;
    }
    size_t used = (size_t)snprintf(text, size, "%s", tensor);
    for (int d = 0; d < array->rank && used < size; d++)
        used += (size_t)snprintf(text + used, size - used, "[%lld]", (long long)index[d]);
    return text;
}

// Element by element: right is what equals the expected value or is within the tolerance of it, so never a NaN.
static void compare(const char *name, const struct npy *output, const struct npy *expected,
                    const struct npy *tolerance, struct verdict *verdict)
{
    int64_t wrong = 0, first = -1;
    for (int64_t i = 0; i < output->count; i++) {
        double got = dtype_get(output->dtype, output->data, i),
               want = dtype_get(expected->dtype, expected->data, i);
        double allowed =
            tolerance->data ? dtype_get(tolerance->dtype, tolerance->data, tolerance->rank ? i : 0) : 0;
        double difference = fabs(got - want), ratio = difference == 0 ? 0 : difference / allowed;
        if (got == want) ratio = 0; // two equal infinities
        if (!(ratio <= 1)) {
            if (first < 0) first = i;
            wrong++;
        }
        if (!(ratio <= verdict->worst)) verdict->worst = isnan(ratio) ? INFINITY : ratio;
    }
    if (!wrong || !verdict->right) return;
    char element[200];
    verdict->right = false;
    double allowed =
        tolerance->data ? dtype_get(tolerance->dtype, tolerance->data, tolerance->rank ? first : 0) : 0;
    snprintf(verdict->text, sizeof verdict->text,
             "%s: got %.9g, expected %.9g, tolerance %.3g; %lld of %lld elements are wrong",
             case_element_text(name, output, first, element, sizeof element),
             dtype_get(output->dtype, output->data, first), dtype_get(expected->dtype, expected->data, first),
             allowed, (long long)wrong, (long long)output->count);
}

static void check_input(const char *name, const struct npy *now, const struct npy *before,
                        struct verdict *verdict)
{
    size_t bytes = dtype_bytes(now->dtype);
    for (int64_t i = 0; i < now->count && verdict->right; i++) {
        if (memcmp((char *)now->data + (size_t)i * bytes, (char *)before->data + (size_t)i * bytes, bytes) ==
            0)
            continue;
        char element[200];
        verdict->right = false;
        snprintf(verdict->text, sizeof verdict->text, "%s was overwritten: an input must stay as it was",
                 case_element_text(name, now, i, element, sizeof element));
    }
}

static void check_guard(const char *name, const void *end, size_t guard, struct verdict *verdict)
{
    unsigned char bytes[guard + 1];
    CUDA_CHECK(cudaMemcpy(bytes, end, guard, cudaMemcpyDeviceToHost));
    for (size_t i = 0; i < guard && verdict->right; i++) {
        if (bytes[i] == POISON) continue;
        verdict->right = false;
        snprintf(verdict->text, sizeof verdict->text, "%s: byte %zu past its end was overwritten", name, i);
    }
}

struct verdict case_check(const struct chapter *chapter, const struct golden *golden, size_t guard,
                          const struct run *run)
{
    struct verdict verdict = {.right = true};
    for (int t = 0; t < chapter_tensors(chapter); t++) {
        const char *name = chapter->tensors[t].name;
        if (!run->data[t]) continue;
        struct npy now = run_download(chapter, run, t);
        if (golden->expected[t].data)
            compare(name, &now, &golden->expected[t], &golden->tolerance[t], &verdict);
        else
            check_input(name, &now, &golden->input[t], &verdict);
        if (guard)
            check_guard(name, (char *)run->data[t] + (size_t)now.count * dtype_bytes(now.dtype), guard,
                        &verdict);
        npy_free(&now);
    }
    return verdict;
}
