#include "case.h"

#include <dirent.h>
#include <limits.h>
#include <math.h>
#include <sys/stat.h>

#include "upload.h"

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
static bool check_names(const struct operation *op, const char *dir, enum dtype type, struct error *error)
{
    DIR *folder = opendir(dir);
    if (!folder) return error_set(error, "%s: cannot read: %s", dir, strerror(errno));
    struct dirent *entry;
    bool ok = true;
    while (ok && (entry = readdir(folder))) {
        bool known = !ends_with(entry->d_name, ".npy");
        for (int t = 0; t < operation_tensors(op) && !known; t++) {
            const struct tensor *tensor = &op->tensors[t];
            size_t length = strlen(tensor->name);
            known = strncmp(entry->d_name, tensor->name, length) == 0 &&
                    has_file(tensor, operation_dtype(op, t, type), entry->d_name + length);
        }
        if (!known)
            ok = error_set(error, "%s/%s: no tensor has this file in a case of %s; --help lists them", dir,
                           entry->d_name, dtype_name(type));
    }
    closedir(folder);
    return ok;
}

static unsigned float_types(enum dtype dtype)
{
    return dtype_epsilon(dtype) ? 1u << F32 | 1u << F64 : 0;
}

// Reads the input files, the expected outputs and the tolerances of tensor t.
static bool load_tensor(const struct operation *op, const char *dir, int t, struct golden *golden,
                        struct error *error)
{
    const struct tensor *tensor = &op->tensors[t];
    enum dtype dtype = operation_dtype(op, t, golden->type);
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
static bool bind_dims(const struct operation *op, const char *dir, struct golden *golden, struct error *error)
{
    for (int t = 0; t < operation_tensors(op); t++) {
        const struct tensor *tensor = &op->tensors[t];
        const struct npy *array = tensor->role == OUT ? &golden->expected[t] : &golden->input[t];
        if (!array->data) continue;
        if (tensor->role == PARAM && array->rank == 0) {
            int d = shape_find(op->dims, tensor->name, strlen(tensor->name));
            if (d >= 0) golden->dim[d] = (int64_t)dtype_get(array->dtype, array->data, 0);
            continue;
        }
        const char *p = tensor->shape;
        for (int i = 0; i < array->rank && *p; i++) {
            size_t length = strcspn(p, ",");
            int d = shape_find(op->dims, p, length);
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
static bool check_array(const struct operation *op, const char *dir, int t, const char *file,
                        const struct npy *array, const struct golden *golden, struct error *error)
{
    const struct tensor *tensor = &op->tensors[t];
    int64_t shape[NPY_MAX_RANK];
    if (!array->data) return true;
    int rank = operation_shape(op, t, golden->dim, shape, error);
    if (rank < 0) return false;
    if (rank == array->rank && memcmp(shape, array->shape, (size_t)rank * sizeof *shape) == 0) return true;
    char found[200], expected[200];
    return error_set(error, "%s/%s%s: shape %s, expected (%s) = %s", dir, tensor->name, file,
                     npy_shape_text(array->rank, array->shape, found, sizeof found), tensor->shape,
                     npy_shape_text(rank, shape, expected, sizeof expected));
}

static bool check_shapes(const struct operation *op, const char *dir, const struct golden *golden,
                         struct error *error)
{
    static const struct npy none;
    for (int t = 0; t < operation_tensors(op); t++) {
        const struct tensor *tensor = &op->tensors[t];
        bool after = tensor->role == INOUT;
        const struct npy *tolerance = golden->tolerance[t].rank ? &golden->tolerance[t] : &none;
        const char *suffix = dtype_suffix(operation_dtype(op, t, golden->type));
        if (!check_array(op, dir, t, suffix, &golden->input[t], golden, error) ||
            !check_array(op, dir, t, after ? ".after.npy" : ".npy", &golden->expected[t], golden, error) ||
            !check_array(op, dir, t, after ? ".after.tol.npy" : ".tol.npy", tolerance, golden, error))
            return false;
    }
    const char *needed = op->check_shape ? op->check_shape(golden->dim) : NULL;
    char text[200];
    return !needed || error_set(error, "%s: shape %s: %s", dir,
                                shape_write(op->dims, golden->dim, text, sizeof text), needed);
}

// The type of the case: that of the first file of the run's type that it has, an expected output among them if its name says
// the type; the operation's first type where it has none.
static bool find_type(const struct operation *op, const char *dir, enum dtype *type, struct error *error)
{
    char path[PATH_MAX];
    *type = op->types[0];
    for (const struct tensor *t = op->tensors; t->name; t++) {
        if (t->dtype != RUN_TYPE || (t->role != IN && t->role != INOUT && t->role != OUT)) continue;
        unsigned plain = 0; // types whose files are NAME.npy: the file itself says which it holds
        for (int i = 0; i < CHAPTER_MAX_TYPES && op->types[i]; i++) {
            const char *suffix = dtype_suffix(op->types[i]);
            join(path, sizeof path, dir, t->name, suffix);
            if (strcmp(suffix, ".npy") == 0)
                plain |= 1u << op->types[i];
            else if (exists(path))
                return *type = op->types[i], true;
        }
        join(path, sizeof path, dir, t->name, ".npy");
        if (!plain || t->role == OUT || !exists(path)) continue; // NAME.npy of an output is of any type
        struct npy array = {0};
        if (!npy_load(path, plain, &array, error)) return false;
        *type = array.dtype;
        npy_free(&array);
        return true;
    }
    return true;
}

bool case_load(const struct operation *op, const char *dir, const char *name, struct golden *golden,
               struct error *error)
{
    char path[PATH_MAX];
    join(path, sizeof path, dir, name, "");
    if (strcmp(name, ".") == 0) *strrchr(path, '/') = 0;
    *golden = (struct golden){.name = strdup(name)};
    bool ok = find_type(op, path, &golden->type, error) && check_names(op, path, golden->type, error);
    for (int t = 0; ok && t < operation_tensors(op); t++) ok = load_tensor(op, path, t, golden, error);
    ok = ok && bind_dims(op, path, golden, error) && check_shapes(op, path, golden, error);
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
static size_t tensor_bytes(const struct operation *op, const struct run *run, int t)
{
    struct error error;
    int64_t shape[NPY_MAX_RANK], bytes = (int64_t)dtype_bytes(run->dtype[t]);
    int rank = operation_shape(op, t, run->dim, shape, &error);
    if (rank < 0) die_input("%s: %s", op->name, error.text);
    for (int i = 0; i < rank; i++)
        if (__builtin_mul_overflow(bytes, shape[i], &bytes))
            die_input("tensor %s: the size overflows 64 bits", op->tensors[t].name);
    return (size_t)bytes;
}

void run_begin(const struct operation *op, enum dtype type, const int64_t *dim, struct run *run)
{
    *run = (struct run){.op = op, .type = type};
    memcpy(run->dim, dim, sizeof run->dim);
    for (int t = 0; t < operation_tensors(op); t++) run->dtype[t] = operation_dtype(op, t, type);
}

void run_allocate(const struct operation *op, struct run *run, const bool *with, size_t guard)
{
    for (int t = 0; t < operation_tensors(op); t++) {
        enum role role = op->tensors[t].role;
        run->data[t] = NULL;
        if (role == PARAM || (role == IN_OPTIONAL && !with[t])) continue;
        size_t bytes = tensor_bytes(op, run, t) + guard;
        CUDA_CHECK(cudaMalloc(&run->data[t], bytes));
        CUDA_CHECK(cudaMemset(run->data[t], POISON, bytes));
    }
}

void run_free(struct run *run)
{
    for (int t = 0; t < CHAPTER_MAX_TENSORS; t++)
        if (run->data[t]) CUDA_CHECK(cudaFree(run->data[t]));
    CUDA_CHECK(cudaFree(run->copy_to)); // NULL is ignored
    CUDA_CHECK(cudaFree(run->copy_from));
    CUDA_CHECK(cudaFreeHost(run->host));
    *run = (struct run){0};
}

void case_upload(const struct operation *op, const struct golden *golden, size_t guard, cudaStream_t stream,
                 struct run *run)
{
    bool with[CHAPTER_MAX_TENSORS];
    struct upload upload = {0};
    size_t total = 0;
    run_begin(op, golden->type, golden->dim, run);
    for (int t = 0; t < CHAPTER_MAX_TENSORS; t++) with[t] = golden->input[t].data != NULL;
    run_allocate(op, run, with, guard);
    for (int t = 0; t < operation_tensors(op); t++) {
        const struct npy *input = &golden->input[t];
        if (!input->data) continue;
        if (op->tensors[t].role == PARAM) {
            run->param[t] = dtype_get(input->dtype, input->data, 0);
            continue;
        }
        size_t bytes = tensor_bytes(op, run, t);
        upload.inputs[upload.count++] = (struct input){run->data[t], input->data, bytes};
        total += (bytes + 15) / 16 * 16;
    }
    if (total == 0) return;
    CUDA_CHECK(cudaMallocHost(&run->host, total));
    char *place = run->host;
    for (int k = 0; k < upload.count; k++) {
        struct input *input = &upload.inputs[k];
        input->from = memcpy(place, input->from, input->bytes);
        place += (input->bytes + 15) / 16 * 16;
    }
    CUDA_CHECK(upload_inputs(&upload, stream));
}

struct npy run_download(const struct operation *op, const struct run *run, int t)
{
    struct error error;
    struct npy array = {.dtype = run->dtype[t]};
    size_t bytes = tensor_bytes(op, run, t);
    array.rank = operation_shape(op, t, run->dim, array.shape, &error);
    array.count = (int64_t)(bytes / dtype_bytes(array.dtype));
    array.data = malloc(bytes);
    if (!array.data) die_input("no memory for %zu bytes of %s", bytes, op->tensors[t].name);
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

struct verdict case_check(const struct operation *op, const struct golden *golden, size_t guard,
                          const struct run *run)
{
    struct verdict verdict = {.right = true};
    for (int t = 0; t < operation_tensors(op); t++) {
        const char *name = op->tensors[t].name;
        if (!run->data[t]) continue;
        struct npy now = run_download(op, run, t);
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
