#include "chapter.h"

#include <limits.h>
#include <math.h>
#include <sys/stat.h>

#include "bench.h"
#include "case.h"

struct options {
    const char *golden, *op, *step, *only_case, *out, *json, *shape;
    bool bench, list, no_guards;
};

int chapter_tensors(const struct chapter *chapter)
{
    int count = 0;
    while (count < CHAPTER_MAX_TENSORS && chapter->tensors[count].name) count++;
    return count;
}

int chapter_steps(const struct chapter *chapter)
{
    int count = 0;
    while (count < CHAPTER_MAX_STEPS && chapter->steps[count].name) count++;
    return count;
}

enum dtype chapter_tensor_dtype(const struct chapter *chapter, int t, bool f16)
{
    enum dtype dtype = chapter->tensors[t].dtype;
    return f16 && dtype == BF16 ? F16 : dtype;
}

enum dtype chapter_dtype(const struct chapter *chapter, bool f16)
{
    int t = 0;
    while (chapter->tensors[t].role == PARAM && chapter->tensors[t + 1].name) t++;
    return chapter_tensor_dtype(chapter, t, f16);
}

int chapter_tensor_shape(const struct chapter *chapter, int t, const int64_t *dim, int64_t *shape,
                         struct error *error)
{
    int rank = 0;
    for (const char *p = chapter->tensors[t].shape; *p; p += *p == ',') {
        if (rank == NPY_MAX_RANK)
            return error_set(error, "%s: too many dimensions", chapter->tensors[t].name), -1;
        p = shape_evaluate(p, chapter->dims, dim, &shape[rank++], error);
        if (!p) return -1;
    }
    return rank;
}

static void print_files(const struct chapter *chapter)
{
    static const char *const ROLES[] = {[IN] = "input",
                                        [IN_OPTIONAL] = "input, may be left out",
                                        [PARAM] = "parameter, one number",
                                        [OUT] = "output",
                                        [INOUT] = "input and output"};
    for (const struct tensor *t = chapter->tensors; t->name; t++) {
        char file[80];
        snprintf(file, sizeof file, "%s%s", t->name,
                 t->role == OUT || t->role == PARAM ? ".npy" : dtype_suffix(t->dtype));
        printf("  %-16s %s (%s), %s\n", file, t->role == OUT ? "f64 or f32" : dtype_name(t->dtype), t->shape,
               ROLES[t->role]);
        if (t->role == OUT)
            printf("  %s.tol.npy%*s f64 or f32 (%s) or (), how far it may be off\n", t->name,
                   (int)(8 - strlen(t->name)), "", t->shape);
        if (t->role == INOUT)
            printf("  %s.after.npy, %s.after.tol.npy: f64 or f32 (%s), what it must become, how far off\n",
                   t->name, t->name, t->shape);
    }
    if (chapter->f16_too) printf("  or all of bf16 as f16, in NAME.npy\n");
}

static void print_help(const struct chapter *operations, int count, const char *program)
{
    printf("%s: %s\n\n"
           "usage: %s [flags]\n"
           "  --list              print the steps and the cases\n"
           "%s"
           "  --step K|NAME       run only this step (0: the baseline)\n"
           "  --case NAME         run only this case\n"
           "  --golden DIR        folder of %s, or one case (build/golden/%s)\n"
           "  --out DIR           write each step's outputs as DIR/STEP/CASE/NAME.npy\n"
           "  --bench             time the steps and the baseline; needs a real GPU\n",
           operations->name, operations->title, program,
           count > 1 ? "  --op NAME           only this operation\n" : "",
           count > 1 ? "a folder of cases for each operation; with --op, of cases" : "cases",
           operations->name);
    for (int o = 0; o < count; o++) {
        const struct chapter *chapter = &operations[o];
        printf("  --shape");
        for (int i = 0; chapter->dims[i]; i++) printf("%c%s=…", i ? ',' : ' ', chapter->dims[i]);
        printf("  the shape to time%s%s, instead of:", chapter->operation ? " of " : "",
               chapter->operation ? chapter->operation : "");
        for (int i = 0; i < CHAPTER_MAX_BENCH && chapter->bench[i]; i++) printf(" %s", chapter->bench[i]);
        printf("\n");
    }
    printf("  --json FILE         merge the results into FILE\n"
           "  --no-guards         allocate exactly the bytes of each tensor, for compute-sanitizer\n"
           "  --help              print this\n\n"
           "A case is a folder with these files (C order, little-endian):\n");
    for (int o = 0; o < count; o++) {
        if (operations[o].operation) printf("%s: %s\n", operations[o].operation, operations[o].title);
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

static struct options read_options(const struct chapter *operations, int count, int argc, char **argv)
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
        {"--golden", "a folder of cases", &options.golden, NULL},
        {"--out", "a folder", &options.out, NULL},
        {"--bench", NULL, NULL, &options.bench},
        {"--json", "a file", &options.json, NULL},
        {"--shape", "sizes such as m=64,n=64,k=64", &options.shape, NULL},
        {"--no-guards", NULL, NULL, &options.no_guards},
    };
    int known = sizeof flags / sizeof *flags;
    for (int i = 1; i < argc; i++) {
        size_t length = strcspn(argv[i], "=");
        int f = 0;
        if (strcmp(argv[i], "--help") == 0) {
            print_help(operations, count, argv[0]);
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
    if (options.shape && !options.bench)
        die_input("--shape: only with --bench; make chapter-N SHAPE=%s checks a shape", options.shape);
    return options;
}

// Marks in selected[] the steps to run; index 0 is the baseline, which runs only when it is asked for. Returns whether
// there are any; if not, known[] gets the names there are.
static bool select_steps(const struct chapter *chapter, const char *wanted, bool *selected, char *known,
                         size_t size)
{
    int steps = chapter_steps(chapter);
    char *end;
    for (int s = 0; s <= steps; s++) selected[s] = !wanted && s > 0;
    if (!wanted) return true;
    long number = strtol(wanted, &end, 10);
    bool is_number = *wanted && !*end;
    for (int s = 0; s <= steps; s++) {
        const char *name = s ? chapter->steps[s - 1].name : chapter->baseline.name;
        if (!name) continue;
        if (is_number ? number == s : strcmp(name, wanted) == 0) selected[s] = true;
        if (selected[s]) return true;
        size_t used = strlen(known);
        snprintf(known + used, size - used, "%s%d %s", used ? ", " : "", s, name);
    }
    return false;
}

// One operation of a run: its cases and which of its steps to run.
struct part {
    const struct chapter *chapter;
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
        size_t used = strlen(known);
        snprintf(known + used, size - used, "%s%s", used ? ", " : "", names[i]);
        if ((!options->only_case || strcmp(options->only_case, names[i]) == 0) &&
            !case_load(part->chapter, part->dir, names[i], &part->cases[part->count++], &error))
            die_input("%s", error.text);
        free(names[i]);
    }
    free(names);
}

static void print_list(const struct part *part)
{
    const struct chapter *chapter = part->chapter;
    struct error error;
    char **names;
    if (chapter->operation) printf("%s, ", chapter->operation);
    printf("steps:\n");
    if (chapter->baseline.name) printf("  0 %s (baseline)\n", chapter->baseline.name);
    for (int s = 0; s < chapter_steps(chapter); s++) printf("  %d %s\n", s + 1, chapter->steps[s].name);
    int count = case_list(part->dir, &names, &error);
    if (count < 0) die_input("--golden %s", error.text);
    printf("cases in %s:\n", part->dir);
    for (int i = 0; i < count; i++) {
        printf("  %s\n", names[i]);
        free(names[i]);
    }
    free(names);
}

static struct device open_device(void)
{
    struct cudaDeviceProp properties;
    struct device device = {0};
    int count = 0;
    cudaError_t error = cudaGetDeviceCount(&count);
    if (error != cudaSuccess || count == 0) {
        fprintf(stderr,
                "%s:%d: cudaGetDeviceCount: %s: no GPU that this program can use; the simulated GPU runs it: "
                "build/simgpu/simgpu PROGRAM\n",
                __FILE__, __LINE__, cudaGetErrorName(error ? error : cudaErrorNoDevice));
        exit(EXIT_CUDA);
    }
    CUDA_CHECK(cudaGetDeviceProperties(&properties, 0));
    snprintf(device.name, sizeof device.name, "%s", properties.name);
    device.major = properties.major;
    device.minor = properties.minor;
    device.sms = properties.multiProcessorCount;
    device.simulated = strncmp(properties.name, "Simulated GPU", 13) == 0;
    return device;
}

static void write_outputs(const struct chapter *chapter, const struct run *run, const char *dir,
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
    for (int t = 0; t < chapter_tensors(chapter); t++) {
        if (chapter->tensors[t].role != OUT && chapter->tensors[t].role != INOUT) continue;
        struct npy array = run_download(chapter, run, t);
        snprintf(path + length, sizeof path - length, "%s%s", chapter->tensors[t].name,
                 dtype_suffix(array.dtype));
        if (!npy_save(path, &array, &error)) die_input("--out %s", error.text);
        npy_free(&array);
    }
}

static void add_check_record(const struct chapter *chapter, const struct device *device, const char *step,
                             const struct golden *golden, const struct verdict *verdict,
                             struct results *results)
{
    char key[600], value[900], gpu[300], reason[900];
    snprintf(
        key, sizeof key,
        "\"chapter\": \"%s\", \"step\": \"%s\", \"case\": \"%s\", \"dtype\": \"%s\", \"metric\": \"error/tolerance\"",
        chapter->name, step, golden->name, dtype_name(chapter_dtype(chapter, golden->f16)));
    // JSON has no infinity, which is what a NaN output counts as.
    char worst[40] = "null";
    if (isfinite(verdict->worst)) snprintf(worst, sizeof worst, "%.6g", verdict->worst);
    snprintf(value, sizeof value, "\"value\": %s, \"right\": %s, \"reason\": %s, \"gpu\": %s", worst,
             verdict->right ? "true" : "false", results_quote(verdict->text, reason, sizeof reason / 2),
             results_quote(device->name, gpu, sizeof gpu));
    results_add(results, key, value);
}

// Runs one step on one case and prints its line. Returns 1 when it is wrong, else 0.
static int check_step(const struct chapter *chapter, const struct device *device,
                      const struct options *options, int s, const struct golden *golden, cudaStream_t stream,
                      struct results *results)
{
    // Exact allocations let the simulated GPU and compute-sanitizer see the first byte past the end by themselves.
    size_t guard = device->simulated || options->no_guards ? 0 : 1024;
    const struct step *step = s ? &chapter->steps[s - 1] : &chapter->baseline;
    char shape[200], where[600];
    if (step->only_moves)
        die_input("--step %s: it moves bytes and computes nothing, expected a step", step->name);
    struct run run;
    printf("  %d %-18s %-18s %-24s ", s, step->name, golden->name,
           shape_write(chapter->dims, golden->dim, shape, sizeof shape));
    fflush(stdout);
    case_upload(chapter, golden, guard, &run);
    cudaError_t error = step->launch(step, &run, stream);
    if (error == cudaSuccess && step->fetch) error = step->fetch(step, &run, stream);
    if (s == 0 && error == cudaErrorNotSupported) {
        printf("skipped: the baseline does not have it\n");
        run_free(&run);
        return 0;
    }
    snprintf(where, sizeof where, "step %d %s, case %s, launch", s, step->name, golden->name);
    if (error != cudaSuccess) printf("failed\n");
    cuda_check(error, where, __FILE__, __LINE__);
    error = cudaStreamSynchronize(stream);
    if (error != cudaSuccess) printf("failed\n");
    snprintf(where, sizeof where, "step %d %s, case %s, kernel", s, step->name, golden->name);
    cuda_check(error, where, __FILE__, __LINE__);

    struct verdict verdict = case_check(chapter, golden, guard, &run);
    printf("%-6s %15.3f\n", verdict.right ? "right" : "WRONG", verdict.worst);
    if (!verdict.right) printf("      %s\n", verdict.text);
    if (options->json) add_check_record(chapter, device, step->name, golden, &verdict, results);
    if (options->out) write_outputs(chapter, &run, options->out, step->name, golden->name);
    run_free(&run);
    return !verdict.right;
}

static int check_all(const struct part *parts, int count, const struct device *device,
                     const struct options *options, struct results *results)
{
    int runs = 0, wrong = 0;
    cudaStream_t stream;
    CUDA_CHECK(cudaStreamCreate(&stream));
    printf("  %-20s %-18s %-24s %-6s %s\n", "step", "case", "shape", "result", "error/tolerance");
    for (const struct part *part = parts; part < parts + count; part++) {
        if (part->chapter->operation && part->count > 0) printf("%s:\n", part->chapter->operation);
        for (int s = 0; s <= chapter_steps(part->chapter); s++)
            for (int c = 0; part->selected[s] && c < part->count; c++, runs++)
                wrong += check_step(part->chapter, device, options, s, &part->cases[c], stream, results);
    }
    CUDA_CHECK(cudaStreamDestroy(stream));
    if (wrong)
        printf("%s: WRONG in %d of %d runs\n", parts->chapter->name, wrong, runs);
    else
        printf("%s: all %d runs right\n", parts->chapter->name, runs);
    return wrong;
}

// Reads the shapes to time, the one of --shape or the chapter's own, into dim[]; returns how many.
static int read_bench_shapes(const struct chapter *chapter, const char *shape, int64_t dim[][SHAPE_MAX_DIMS])
{
    struct error error;
    int count = 0, smallest[SHAPE_MAX_DIMS];
    for (int d = 0; d < SHAPE_MAX_DIMS && chapter->dims[d]; d++) {
        smallest[d] = 1;
        for (const struct tensor *t = chapter->tensors; t->name; t++)
            if (t->role == PARAM && strcmp(t->name, chapter->dims[d]) == 0) smallest[d] = 0;
    }
    for (; count < CHAPTER_MAX_BENCH && (shape ? count < 1 : chapter->bench[count] != NULL); count++) {
        const char *text = shape ? shape : chapter->bench[count];
        if (!shape_read(text, chapter->dims, smallest, dim[count], &error))
            die_input("--shape %s", error.text);
        const char *needed = chapter->check_shape ? chapter->check_shape(dim[count]) : NULL;
        if (needed) die_input("--shape '%s': %s", text, needed);
    }
    return count;
}

// Chooses the operations, their steps and their folders of cases; returns how many operations.
static int make_parts(const struct chapter *operations, int count, const struct options *options,
                      struct part *parts)
{
    char known[1000] = "", names[1000] = "";
    struct stat info;
    int chosen = 0, named = 0;
    for (int o = 0; o < count; o++) {
        const struct chapter *chapter = &operations[o];
        size_t used = strlen(names);
        struct part *part = &parts[chosen];
        *part = (struct part){.chapter = chapter};
        if (options->op && (!chapter->operation || strcmp(options->op, chapter->operation) != 0)) {
            snprintf(names + used, sizeof names - used, "%s%s", used ? ", " : "",
                     chapter->operation ? chapter->operation : "one operation");
            continue;
        }
        named++;
        if (!select_steps(chapter, options->step, part->selected, known, sizeof known)) continue;
        if (options->golden)
            snprintf(part->dir, sizeof part->dir, "%s", options->golden);
        else
            snprintf(part->dir, sizeof part->dir, "build/golden/%s", chapter->name);
        size_t length = strlen(part->dir);
        if (chapter->operation) {
            snprintf(part->dir + length, sizeof part->dir - length, "/%s", chapter->operation);
            if (options->golden && stat(part->dir, &info) != 0) {
                if (!options->op) continue;
                part->dir[length] = 0; // the folder of the operation itself
            }
        }
        chosen++;
    }
    if (!named) die_input("--op %s: no such operation; %s has %s", options->op, operations->name, names);
    if (!chosen && options->step && *known)
        die_input("--step %s: no such step; %s has %s", options->step, operations->name, known);
    if (!chosen)
        die_input("--golden %s: no folder named after an operation; --op says whose cases these are",
                  options->golden);
    return chosen;
}

int chapter_main_operations(const struct chapter *operations, int count, int argc, char **argv)
{
    struct options options = read_options(operations, count, argc, argv);
    struct results results = {0};
    struct error error;
    char command[1000] = "", known[1000] = "";
    for (int i = 0; i < argc; i++) {
        size_t used = strlen(command);
        snprintf(command + used, sizeof command - used, "%s%s", i ? " " : "", argv[i]);
    }
    struct part *parts = calloc((size_t)count, sizeof *parts);
    count = make_parts(operations, count, &options, parts);
    if (options.list) {
        printf("%s: %s\n", operations->name, operations->title);
        for (int p = 0; p < count; p++) print_list(&parts[p]);
        return EXIT_RIGHT;
    }
    // --bench alone measures; what it measures is still checked, against the first of the steps.
    bool check = options.golden || options.only_case || !options.bench;
    int loaded = 0, wrong = 0;
    for (int p = 0; check && p < count; p++) {
        load_cases(&parts[p], &options, known, sizeof known);
        loaded += parts[p].count;
    }
    if (check && !loaded)
        die_input("--case %s: no such case in %s, which has %s", options.only_case, parts->dir, known);
    if (options.shape && count > 1)
        die_input("--shape: needs --op, one of the operations that --list prints");
    int64_t bench_dim[CHAPTER_MAX_BENCH][SHAPE_MAX_DIMS];
    for (int p = 0; options.bench && p < count; p++)
        read_bench_shapes(parts[p].chapter, options.shape, bench_dim);
    struct device device = open_device();
    if (options.bench && device.simulated)
        die_input("--bench: %s has no speed to measure, expected a real GPU; simgpu --profile counts instead",
                  device.name);
    printf("%s on %s (sm_%d%d, %d SMs)\n", operations->name, device.name, device.major, device.minor,
           device.sms);
    if (check) wrong += check_all(parts, count, &device, &options, &results);
    for (int p = 0; p < count; p++) {
        int shapes = options.bench ? read_bench_shapes(parts[p].chapter, options.shape, bench_dim) : 0;
        for (int i = 0; i < shapes && !wrong; i++)
            wrong += bench_run(parts[p].chapter, &device, parts[p].selected, bench_dim[i], command, &results);
        for (int c = 0; c < parts[p].count; c++) case_free(&parts[p].cases[c]);
        free(parts[p].cases);
    }
    free(parts);
    if (options.json && !results_merge(&results, options.json, &error)) die_input("--json %s", error.text);
    return wrong ? EXIT_WRONG : EXIT_RIGHT;
}

int chapter_main(const struct chapter *chapter, int argc, char **argv)
{
    return chapter_main_operations(chapter, 1, argc, argv);
}
