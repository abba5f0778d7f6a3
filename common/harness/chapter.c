#define _GNU_SOURCE
#include "chapter.h"

#include <dlfcn.h>
#include <limits.h>
#include <math.h>
#include <sys/stat.h>

#include "bench.h"
#include "case.h"
#include "trace.h"

struct options {
    const char *golden, *op, *type, *step, *only_case, *out, *json, *shape, *trace;
    bool bench, list, no_guards;
};

int operation_tensors(const struct operation *op)
{
    int count = 0;
    while (count < CHAPTER_MAX_TENSORS && op->tensors[count].name) count++;
    return count;
}

int64_t run_dim(const struct run *run, const char *name, int64_t otherwise)
{
    const int d = shape_find(run->op->dims, name, strlen(name));
    return d < 0 ? otherwise : run->dim[d];
}

// Number of the tensor of this name, or -1.
static int find_tensor(const struct operation *op, const char *name)
{
    for (int t = 0; t < operation_tensors(op); t++)
        if (strcmp(op->tensors[t].name, name) == 0) return t;
    return -1;
}

double run_param(const struct run *run, const char *name, double otherwise)
{
    const int t = find_tensor(run->op, name);
    return t < 0 ? otherwise : run->param[t];
}

void *run_data(const struct run *run, const char *name)
{
    const int t = find_tensor(run->op, name);
    return t < 0 ? NULL : run->data[t];
}

int operation_steps(const struct operation *op)
{
    int count = 0;
    while (op->steps[count].name) count++;
    return count;
}

enum dtype operation_dtype(const struct operation *op, int t, enum dtype type)
{
    enum dtype dtype = op->tensors[t].dtype;
    return dtype == RUN_TYPE ? type : dtype;
}

int operation_shape(const struct operation *op, int t, const int64_t *dim, int64_t *shape,
                    struct error *error)
{
    int rank = 0;
    for (const char *p = op->tensors[t].shape; *p; p += *p == ',') {
        if (rank == NPY_MAX_RANK) return error_set(error, "%s: too many dimensions", op->tensors[t].name), -1;
        p = shape_evaluate(p, op->dims, dim, &shape[rank++], error);
        if (!p) return -1;
    }
    return rank;
}

cudaError_t operation_launch(const struct operation *op, int s, const struct run *run, cudaStream_t stream)
{
    return s ? op->launch(op->steps[s - 1].launcher, run, stream) : op->baseline.launch(run, stream);
}

const char *operation_step_name(const struct operation *op, int s)
{
    return s ? op->steps[s - 1].name : op->baseline.name;
}

int operation_step_number(const struct operation *op, int s)
{
    return s ? op->steps[s - 1].number : 0;
}

static void print_files(const struct operation *op)
{
    static const char *const ROLES[] = {[IN] = "input",
                                        [IN_OPTIONAL] = "input, may be left out",
                                        [PARAM] = "parameter, one number",
                                        [OUT] = "output",
                                        [INOUT] = "input and output"};
    bool several = op->types[1] != 0;
    for (const struct tensor *t = op->tensors; t->name; t++) {
        char file[80];
        enum dtype dtype = t->dtype == RUN_TYPE ? op->types[0] : t->dtype;
        bool run_type = t->dtype == RUN_TYPE && several;
        snprintf(file, sizeof file, "%s%s", t->name,
                 t->role == OUT || t->role == PARAM ? ".npy"
                 : run_type                         ? "SUFFIX"
                                                    : dtype_suffix(dtype));
        printf("  %-16s %s (%s), %s\n", file,
               t->role == OUT ? "f64 or f32"
               : run_type     ? "TYPE"
                              : dtype_name(dtype),
               t->shape, ROLES[t->role]);
        if (t->role == OUT)
            printf("  %s.tol.npy%*s f64 or f32 (%s) or (), how far it may be off\n", t->name,
                   (int)(8 - strlen(t->name)), "", t->shape);
        if (t->role == INOUT)
            printf("  %s.after.npy, %s.after.tol.npy: f64 or f32 (%s), what it must become, how far off\n",
                   t->name, t->name, t->shape);
    }
    if (!several) return;
    printf("  TYPE and its SUFFIX:");
    for (int i = 0; i < CHAPTER_MAX_TYPES && op->types[i]; i++)
        printf("%s %s in NAME%s", i ? " or" : "", dtype_name(op->types[i]), dtype_suffix(op->types[i]));
    printf("\n");
}

static void print_help(const char *chapter, const struct operation *operations, int count,
                       const char *program)
{
    printf(
        "%s: %s\n\n"
        "usage: %s [flags]\n"
        "  --list              print the steps and the cases\n"
        "%s"
        "  --type NAME         run only cases of this type, such as bf16; with --bench, time only this type\n"
        "  --step K|NAME       run only this step (0: the baseline)\n"
        "  --case NAME         run only this case\n"
        "  --golden DIR        folder of %s, or one case (build/golden/%s)\n"
        "  --out DIR           write each step's outputs as DIR/STEP/CASE/NAME.npy\n"
        "  --bench             time the steps and the baseline; needs a real GPU\n"
        "  --trace FILE        write the timeline of one step on one case or --shape to FILE, for Perfetto; needs a\n"
        "                      program with marks, which make trace-N builds\n",
        chapter, operations->title, program, count > 1 ? "  --op NAME           only this operation\n" : "",
        count > 1 ? "a folder of cases for each operation; with --op, of cases" : "cases", chapter);
    for (int o = 0; o < count; o++) {
        const struct operation *op = &operations[o];
        printf("  --shape");
        for (int i = 0; op->dims[i]; i++) printf("%c%s=…", i ? ',' : ' ', op->dims[i]);
        printf("  the shape to time%s%s, instead of:", op->name ? " of " : "", op->name ? op->name : "");
        for (int i = 0; i < CHAPTER_MAX_BENCH && op->bench[i]; i++) printf(" %s", op->bench[i]);
        printf("\n");
    }
    printf("  --json FILE         merge the results into FILE\n"
           "  --no-guards         allocate exactly the bytes of each tensor, for compute-sanitizer\n"
           "  --help              print this\n\n"
           "A case is a folder with these files (C order, little-endian):\n");
    for (int o = 0; o < count; o++) {
        if (operations[o].name) printf("%s: %s\n", operations[o].name, operations[o].title);
        print_files(&operations[o]);
    }
    printf("\nExit status: 0 right, 1 a step is wrong, 2 bad usage or input, 3 CUDA or device trouble.\n");
}

// Value of the flag at argv[*i], which is either its next argument or follows '='.
static const char *flag_value(int argc, char **argv, int *i, const char *expected)
{
    char *equals = strchr(argv[*i], '=');
    if (equals) return equals + 1;
    if (*i + 1 == argc || strncmp(argv[*i + 1], "--", 2) == 0)
        die_input("%s: no value, expected %s", argv[*i], expected);
    return argv[++*i];
}

static struct options read_options(const char *chapter, const struct operation *operations, int count,
                                   int argc, char **argv)
{
    struct options options = {0};
    struct {
        const char *name, *expected;
        const char **value;
        bool *set;
    } flags[] = {
        {"--list", NULL, NULL, &options.list},
        {"--step", "a step's number or name", &options.step, NULL},
        {"--case", "a case's name", &options.only_case, NULL},
        {"--op", "an operation's name", &options.op, NULL},
        {"--type", "a type such as bf16", &options.type, NULL},
        {"--golden", "a folder of cases", &options.golden, NULL},
        {"--out", "a folder", &options.out, NULL},
        {"--bench", NULL, NULL, &options.bench},
        {"--json", "a file", &options.json, NULL},
        {"--shape", "sizes such as m=64,n=64,k=64", &options.shape, NULL},
        {"--no-guards", NULL, NULL, &options.no_guards},
        {"--trace", "a file", &options.trace, NULL},
    };
    int known = sizeof flags / sizeof *flags;
    for (int i = 1; i < argc; i++) {
        size_t length = strcspn(argv[i], "=");
        int f = 0;
        if (strcmp(argv[i], "--help") == 0) {
            print_help(chapter, operations, count, argv[0]);
            exit(EXIT_RIGHT);
        }
        while (f < known && (strlen(flags[f].name) != length || strncmp(argv[i], flags[f].name, length) != 0))
            f++;
        if (f == known) die_input("%s: unknown argument; --help lists the flags", argv[i]);
        if (flags[f].set && argv[i][length]) die_input("%s: this flag takes no value", argv[i]);
        if (flags[f].set)
            *flags[f].set = true;
        else
            *flags[f].value = flag_value(argc, argv, &i, flags[f].expected);
    }
    if (options.shape && !options.bench && !options.trace)
        die_input("--shape: only with --bench or --trace; make chapter-N SHAPE=%s checks a shape",
                  options.shape);
    if (options.trace && (options.bench || (options.shape && options.only_case)))
        die_input("--trace %s: not with --bench; on one --case or on one --shape", options.trace);
    if (options.trace && !trace_compiled_in())
        die_input(
            "--trace %s: the kernels of this program make no marks; make trace-%d STEP=NAME builds one that does",
            options.trace, atoi(chapter));
    return options;
}

// Adds an entry to a list for a message, unless it is there already: several operations may have the same step.
static void add_once(char *list, size_t size, const char *entry)
{
    const size_t length = strlen(entry), used = strlen(list);
    for (const char *at = list; (at = strstr(at, entry)); at++)
        if ((at == list || at[-1] == ' ') && (at[length] == ',' || !at[length])) return;
    snprintf(list + used, size - used, "%s%s", used ? ", " : "", entry);
}

// Marks in selected[] the steps to run; index 0 is the baseline, which runs only when it is asked for. Returns whether
// there are any; if not, known[] gets the names there are.
static bool select_steps(const struct operation *op, const char *wanted, bool *selected, char *known,
                         size_t size)
{
    int steps = operation_steps(op);
    char *end;
    for (int s = 0; s <= steps; s++) selected[s] = !wanted && s > 0;
    if (!wanted) return true;
    long number = strtol(wanted, &end, 10);
    bool is_number = *wanted && !*end;
    for (int s = 0; s <= steps; s++) {
        const char *name = operation_step_name(op, s);
        if (!name) continue;
        if (is_number ? number == operation_step_number(op, s) : strcmp(name, wanted) == 0)
            selected[s] = true;
        if (selected[s]) return true;
        char entry[100];
        snprintf(entry, sizeof entry, "%d %s", operation_step_number(op, s), name);
        add_once(known, size, entry);
    }
    return false;
}

// One operation of a run: its cases and which of its steps to run.
struct part {
    const struct operation *op;
    char dir[PATH_MAX];
    bool selected[CHAPTER_MAX_STEPS + 1];
    struct golden *cases;
    int count;
};

// Loads every case to run before the first launch, so that a bad file is named before anything else happens. Names
// that --case does not ask for are added to known[].
static void load_cases(struct part *part, const struct options *options, char *known, size_t size)
{
    struct error error;
    char **names;
    int count = case_list(part->dir, &names, &error);
    if (count < 0) die_input("--golden %s", error.text);
    part->cases = calloc((size_t)count, sizeof *part->cases);
    for (int i = 0; i < count; i++) {
        struct golden *golden = &part->cases[part->count];
        add_once(known, size, names[i]);
        if (!options->only_case || strcmp(options->only_case, names[i]) == 0) {
            if (!case_load(part->op, part->dir, names[i], golden, &error)) die_input("%s", error.text);
            if (options->type && strcmp(options->type, dtype_name(golden->type)) != 0)
                case_free(golden);
            else
                part->count++;
        }
        free(names[i]);
    }
    free(names);
}

static void print_list(const struct part *part)
{
    const struct operation *op = part->op;
    struct error error;
    char **names;
    if (op->name) printf("%s, ", op->name);
    printf("steps:\n");
    if (op->baseline.name) printf("  0 %s (baseline)\n", op->baseline.name);
    for (const struct step *step = op->steps; step->name; step++)
        printf("  %d %s\n", step->number, step->name);
    int count = case_list(part->dir, &names, &error);
    if (count < 0) die_input("--golden %s", error.text);
    printf("cases in %s:\n", part->dir);
    for (int i = 0; i < count; i++) {
        printf("  %s\n", names[i]);
        free(names[i]);
    }
    free(names);
}

static void write_outputs(const struct operation *op, const struct run *run, const char *dir,
                          const char *step, const char *case_name)
{
    char path[PATH_MAX];
    struct error error;
    snprintf(path, sizeof path, "%s/%s/%s/", dir, step, case_name);
    for (char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = 0;
        if (mkdir(path, 0777) != 0 && errno != EEXIST)
            die_input("--out %s: cannot make the folder: %s", path, strerror(errno));
        *slash = '/';
    }
    size_t length = strlen(path);
    for (int t = 0; t < operation_tensors(op); t++) {
        if (op->tensors[t].role != OUT && op->tensors[t].role != INOUT) continue;
        struct npy array = run_download(op, run, t);
        snprintf(path + length, sizeof path - length, "%s%s", op->tensors[t].name, dtype_suffix(array.dtype));
        if (!npy_save(path, &array, &error)) die_input("--out %s", error.text);
        npy_free(&array);
    }
}

static void add_check_record(const char *chapter, const struct operation *op, const struct device *device,
                             const char *step, const struct golden *golden, const struct verdict *verdict,
                             struct results *results)
{
    char key[600], value[900], gpu[300], reason[900];
    results_key(key, sizeof key, chapter, op->name, step, golden->name, dtype_name(golden->type),
                "error/tolerance");
    // JSON has no infinity, which is what a NaN output counts as.
    char worst[40] = "null";
    if (isfinite(verdict->worst)) snprintf(worst, sizeof worst, "%.6g", verdict->worst);
    snprintf(value, sizeof value, "\"value\": %s, \"right\": %s, \"reason\": %s, \"gpu\": %s", worst,
             verdict->right ? "true" : "false", results_quote(verdict->text, reason, sizeof reason / 2),
             results_quote(device->name, gpu, sizeof gpu));
    results_add(results, key, value);
}

// Tells the simulated GPU, if that is what runs this, whose work follows: its profile is by step. NULL: nobody's; "": it is not counted.
static void profile_step(const char *name)
{
    void (*mark)(const char *) = NULL;
    *(void **)&mark = dlsym(RTLD_DEFAULT, "simgpu_step");
    if (mark) mark(name);
}

static cudaError_t trace_step(const char *chapter, const struct operation *op, const struct device *device,
                              const struct options *options, int s, const struct run *run,
                              cudaStream_t stream)
{
    char shape[200];
    const struct traced traced = {chapter, operation_step_name(op, s),
                                  shape_write(op->dims, run->dim, shape, sizeof shape), dtype_name(run->type),
                                  device};
    return trace_run(&traced, op, s, run, stream, options->trace);
}

// Runs one step on one case and prints its line. Returns 1 when it is wrong, else 0.
static int check_step(const char *chapter, const struct operation *op, const struct device *device,
                      const struct options *options, int s, const struct golden *golden, cudaStream_t stream,
                      struct results *results)
{
    // Exact allocations let the simulated GPU and compute-sanitizer see the first byte past the end by themselves.
    size_t guard = device->simulated || options->no_guards ? 0 : 1024;
    const char *step = operation_step_name(op, s);
    char label[100], shape[200], where[600];
    if (s == 0 && op->baseline.other_work)
        die_input("--step %s: it does other work, so that its outputs say nothing; expected a step", step);
    struct run run;
    cudaError_t error = cudaSuccess;
    profile_step(""); // The upload is no step's.
    case_upload(op, golden, guard, stream, &run);
    if (options->trace) error = trace_step(chapter, op, device, options, s, &run, stream);
    snprintf(label, sizeof label, "%d %s", operation_step_number(op, s), step);
    printf("  %-20s %-18s %-24s ", label, golden->name,
           shape_write(op->dims, golden->dim, shape, sizeof shape));
    fflush(stdout);
    profile_step(step);
    if (!options->trace) error = operation_launch(op, s, &run, stream);
    if (error == cudaSuccess && s == 0 && op->baseline.fetch) error = op->baseline.fetch(&run, stream);
    if (s == 0 && error == cudaErrorNotSupported) {
        printf("skipped: the baseline does not have it\n");
        run_free(&run);
        return 0;
    }
    snprintf(where, sizeof where, "step %s, case %s, launch", label, golden->name);
    if (error != cudaSuccess) printf("failed\n");
    cuda_check(error, where, __FILE__, __LINE__);
    error = cudaStreamSynchronize(stream);
    profile_step(NULL);
    if (error != cudaSuccess) printf("failed\n");
    snprintf(where, sizeof where, "step %s, case %s, kernel", label, golden->name);
    cuda_check(error, where, __FILE__, __LINE__);

    struct verdict verdict = case_check(op, golden, guard, &run);
    printf("%-6s %15.3f\n", verdict.right ? "right" : "WRONG", verdict.worst);
    if (!verdict.right) printf("      %s\n", verdict.text);
    if (options->json) add_check_record(chapter, op, device, step, golden, &verdict, results);
    if (options->out) write_outputs(op, &run, options->out, step, golden->name);
    run_free(&run);
    return !verdict.right;
}

// Takes out the steps that need a newer GPU than the device, and says so; exits when one of them was asked for.
static void leave_out_newer(struct part *part, const struct device *device, const char *wanted)
{
    const int arch = 10 * device->major + device->minor;
    for (int s = 1; s <= operation_steps(part->op); s++) {
        const struct step *step = &part->op->steps[s - 1];
        if (!part->selected[s] || step->needs <= arch) continue;
        if (wanted)
            die_input("--step %s: needs sm_%d, and %s is sm_%d", wanted, step->needs, device->name, arch);
        printf("left out: %d %s needs sm_%d\n", step->number, step->name, step->needs);
        part->selected[s] = false;
    }
}

static int check_all(const char *chapter, const struct part *parts, int count, const struct device *device,
                     const struct options *options, struct results *results)
{
    int runs = 0, wrong = 0;
    cudaStream_t stream;
    CUDA_CHECK(cudaStreamCreate(&stream));
    printf("  %-20s %-18s %-24s %-6s %s\n", "step", "case", "shape", "result", "error/tolerance");
    for (const struct part *part = parts; part < parts + count; part++) {
        if (part->op->name && part->count > 0) printf("%s:\n", part->op->name);
        for (int s = 0; s <= operation_steps(part->op); s++)
            for (int c = 0; part->selected[s] && c < part->count; c++, runs++)
                wrong += check_step(chapter, part->op, device, options, s, &part->cases[c], stream, results);
    }
    CUDA_CHECK(cudaStreamDestroy(stream));
    if (wrong)
        printf("%s: WRONG in %d of %d runs\n", chapter, wrong, runs);
    else
        printf("%s: all %d runs right\n", chapter, runs);
    return wrong;
}

// Reads the shapes to time, the one of --shape or the operation's own, into dim[]; returns how many.
static int read_bench_shapes(const struct operation *op, const char *shape, int64_t dim[][SHAPE_MAX_DIMS])
{
    struct error error;
    int count = 0, smallest[SHAPE_MAX_DIMS];
    for (int d = 0; d < SHAPE_MAX_DIMS && op->dims[d]; d++) {
        smallest[d] = 1;
        for (const struct tensor *t = op->tensors; t->name; t++)
            if (t->role == PARAM && strcmp(t->name, op->dims[d]) == 0) smallest[d] = 0;
    }
    for (; count < CHAPTER_MAX_BENCH && (shape ? count < 1 : op->bench[count] != NULL); count++) {
        const char *text = shape ? shape : op->bench[count];
        if (!shape_read(text, op->dims, smallest, dim[count], &error)) die_input("--shape %s", error.text);
        const char *needed = op->check_shape ? op->check_shape(dim[count]) : NULL;
        if (needed) die_input("--shape '%s': %s", text, needed);
    }
    return count;
}

// Names of the operation's types, "f32, bf16"; returns text.
static char *type_names(const struct operation *op, char *text, size_t size)
{
    size_t used = 0;
    for (int i = 0; i < CHAPTER_MAX_TYPES && op->types[i] && used < size; i++)
        used += (size_t)snprintf(text + used, size - used, "%s%s", i ? ", " : "", dtype_name(op->types[i]));
    return text;
}

static bool has_type(const struct operation *op, const char *type)
{
    for (int i = 0; i < CHAPTER_MAX_TYPES && op->types[i]; i++)
        if (strcmp(type, dtype_name(op->types[i])) == 0) return true;
    return false;
}

// Chooses the operations, their steps and their folders of cases; returns how many operations.
static int make_parts(const char *chapter, const struct operation *operations, int count,
                      const struct options *options, struct part *parts)
{
    char known[1000] = "", names[1000] = "", types[100];
    struct stat info;
    int chosen = 0, named = 0;
    for (int o = 0; o < count; o++) {
        const struct operation *op = &operations[o];
        struct part *part = &parts[chosen];
        *part = (struct part){.op = op};
        if (options->op && (!op->name || strcmp(options->op, op->name) != 0)) {
            add_once(names, sizeof names, op->name ? op->name : "one operation");
            continue;
        }
        named++;
        if (options->type && !has_type(op, options->type))
            die_input("--type %s: no such type, expected one of %s", options->type,
                      type_names(op, types, sizeof types));
        if (!select_steps(op, options->step, part->selected, known, sizeof known)) continue;
        if (options->golden)
            snprintf(part->dir, sizeof part->dir, "%s", options->golden);
        else
            snprintf(part->dir, sizeof part->dir, "build/golden/%s", chapter);
        size_t length = strlen(part->dir);
        if (op->name) {
            snprintf(part->dir + length, sizeof part->dir - length, "/%s", op->name);
            if (options->golden && stat(part->dir, &info) != 0) {
                if (!options->op) continue;
                part->dir[length] = 0; // the folder of the operation itself
            }
        }
        chosen++;
    }
    if (!named) die_input("--op %s: no such operation; %s has %s", options->op, chapter, names);
    if (!chosen && options->step && *known)
        die_input("--step %s: no such step; %s has %s", options->step, chapter, known);
    if (!chosen)
        die_input("--golden %s: no folder named after an operation; --op says whose cases these are",
                  options->golden);
    return chosen;
}

// The one step that --trace is to show.
static int traced_step(const struct part *part, const struct options *options)
{
    int selected = 0, step = 0;
    for (int s = 0; s <= operation_steps(part->op); s++)
        if (part->selected[s]) selected++, step = s;
    if (selected != 1 || step == 0)
        die_input("--trace %s: %d steps are selected, expected one: --step", options->trace, selected);
    return step;
}

// --trace with --shape: the timeline of one step on random inputs, which is not checked.
static void trace_shape(const char *chapter, const struct part *part, const struct device *device,
                        const struct options *options, const int64_t *dim)
{
    const struct operation *op = part->op;
    enum dtype type = op->types[0];
    struct run run;
    cudaStream_t stream;
    int step = traced_step(part, options);
    for (int i = 0; options->type && i < CHAPTER_MAX_TYPES && op->types[i]; i++)
        if (strcmp(options->type, dtype_name(op->types[i])) == 0) type = op->types[i];
    CUDA_CHECK(cudaStreamCreate(&stream));
    bench_inputs(op, type, dim, &run);
    printf("  %d %-18s %s, %s, not checked\n", operation_step_number(op, step), operation_step_name(op, step),
           options->shape, dtype_name(type));
    CUDA_CHECK(trace_step(chapter, op, device, options, step, &run, stream));
    run_free(&run);
    CUDA_CHECK(cudaStreamDestroy(stream));
}

// The name of the folder that the file lies in: "01_naive_matmul" of "chapters/01_naive_matmul/main.c".
static const char *folder_name(const char *file, char *name, size_t size)
{
    const char *end = strrchr(file, '/'), *begin = end;
    while (begin && begin > file && begin[-1] != '/') begin--;
    snprintf(name, size, "%.*s", begin ? (int)(end - begin) : 0, begin ? begin : "");
    return name;
}

// The command that measures the same again: it names no file of this machine.
static void write_command(const char *chapter, const struct options *options, char *text, size_t size)
{
    const char *const flags[] = {"--op",   options->op,   "--type",  options->type,
                                 "--step", options->step, "--shape", options->shape};
    size_t used = (size_t)snprintf(text, size, "build/chapters/%s --bench", chapter);
    for (size_t i = 0; i < sizeof flags / sizeof *flags && used < size; i += 2)
        if (flags[i + 1])
            used += (size_t)snprintf(text + used, size - used, " %s %s", flags[i], flags[i + 1]);
}

// Times every shape in every type of the part; each shape's records are in the file before the next one is timed.
static int bench_part(const char *chapter, const struct part *part, const struct device *device,
                      const struct options *options)
{
    const struct operation *op = part->op;
    struct results results = {0};
    struct error error;
    char command[1000];
    int64_t dim[CHAPTER_MAX_BENCH][SHAPE_MAX_DIMS];
    int wrong = 0, shapes = read_bench_shapes(op, options->shape, dim);
    write_command(chapter, options, command, sizeof command);
    for (int i = 0; i < CHAPTER_MAX_TYPES && op->types[i]; i++) {
        if (options->type && strcmp(options->type, dtype_name(op->types[i])) != 0) continue;
        for (int s = 0; s < shapes; s++) {
            wrong += bench_run(chapter, op, device, part->selected, op->types[i], dim[s], command, &results);
            if (options->json && !results_merge(&results, options->json, &error))
                die_input("--json %s", error.text);
        }
    }
    return wrong;
}

int chapter_main(const char *file, const struct operation *operations, int count, int argc, char **argv)
{
    char name[100], known[1000] = "";
    const char *chapter = folder_name(file, name, sizeof name);
    struct options options = read_options(chapter, operations, count, argc, argv);
    struct results results = {0};
    struct error error;
    for (int o = 0; o < count; o++)
        if (operation_steps(&operations[o]) > CHAPTER_MAX_STEPS)
            die_input("%s: an operation has %d steps, expected at most %d", file,
                      operation_steps(&operations[o]), CHAPTER_MAX_STEPS);
    struct part *parts = calloc((size_t)count, sizeof *parts);
    count = make_parts(chapter, operations, count, &options, parts);
    if (options.list) {
        printf("%s: %s\n", chapter, operations->title);
        for (int p = 0; p < count; p++) print_list(&parts[p]);
        return EXIT_RIGHT;
    }
    // --bench alone measures; what it measures is still checked, against the first of the steps.
    bool check = options.golden || options.only_case || !(options.bench || (options.trace && options.shape));
    int loaded = 0, wrong = 0;
    for (int p = 0; check && p < count; p++) {
        load_cases(&parts[p], &options, known, sizeof known);
        loaded += parts[p].count;
    }
    if (check && !loaded && !options.only_case)
        die_input("--type %s: no case of this type in %s, which has %s", options.type, parts->dir, known);
    if (check && !loaded)
        die_input("--case %s: no such case%s%s in %s, which has %s", options.only_case,
                  options.type ? " of type " : "", options.type ? options.type : "", parts->dir, known);
    if (options.shape && count > 1)
        die_input("--shape: needs --op, one of the operations that --list prints");
    int64_t dim[CHAPTER_MAX_BENCH][SHAPE_MAX_DIMS];
    for (int p = 0; (options.bench || options.shape) && p < count; p++)
        read_bench_shapes(parts[p].op, options.shape, dim);
    if (options.trace && check && traced_step(parts, &options) && (count > 1 || loaded != 1))
        die_input("--trace %s: %d cases are selected, expected one: --case", options.trace, loaded);
    struct device device = device_open();
    if (options.bench && device.simulated)
        die_input("--bench: %s has no speed to measure, expected a real GPU; simgpu --profile counts instead",
                  device.name);
    printf("%s on %s (sm_%d%d, %d SMs)\n", chapter, device.name, device.major, device.minor, device.sms);
    for (int p = 0; p < count; p++) leave_out_newer(&parts[p], &device, options.step);
    if (check) wrong += check_all(chapter, parts, count, &device, &options, &results);
    const bool bench =
        options.bench && !wrong; // all of it, though a step may turn out wrong on a larger shape
    if (options.trace && options.shape) trace_shape(chapter, parts, &device, &options, dim[0]);
    if (options.json && !results_merge(&results, options.json, &error)) die_input("--json %s", error.text);
    for (int p = 0; p < count; p++) {
        if (bench) wrong += bench_part(chapter, &parts[p], &device, &options);
        for (int c = 0; c < parts[p].count; c++) case_free(&parts[p].cases[c]);
        free(parts[p].cases);
    }
    free(parts);
    return wrong ? EXIT_WRONG : EXIT_RIGHT;
}
