#define _GNU_SOURCE
#include "bench.h"

#include <math.h>
#include <time.h>

#include "case.h"
#include "compare.h"

enum {
    BEST = -1,                          // stands for a step: the operation's best
    CONTENDERS = CHAPTER_MAX_STEPS + 2, // and the two baselines
    MAX_CANDIDATES = 64,                // of the best
    MIN_ROUNDS = 7,
    MAX_ROUNDS = 200,
    MAX_SETS = 64,
};
_Static_assert(CONTENDERS <= MAX_CANDIDATES, "a round's order has room for either");
static const double SLICE_MS = 4, BUDGET_MS = 1000;
// The host needs some microseconds for a launch. What takes less than this is launched as a CUDA graph, so that the GPU
// never waits for the host.
static const double HOST_MS = 0.1;

struct contender {
    const struct operation *op;
    int step;      // 0: the baseline; BEST
    int candidate; // of BEST
    int launches;  // in one slice
    int next_set;
    cudaGraphExec_t graph; // those launches; NULL: the host makes them one by one
    double ms[MAX_ROUNDS]; // of one launch, for each round
};

// Peak rates without sparsity, TFLOP/s and GB/s, from NVIDIA's data sheets: H200, H100 SXM (80 GB), A100 SXM
// (80 GB), L4, T4. A name is matched by what it contains, so the more special one comes first.
static const struct {
    const char *gpu;
    double fp32, bf16, fp8, gigabytes;
} PEAKS[] = {
    {"H200", 66.9, 989.4, 1978.9, 4800},    {"H100 80GB HBM3", 66.9, 989.4, 1978.9, 3350},
    {"A100-SXM4-80GB", 19.5, 312, 0, 2039}, {"L4", 30.3, 121, 242, 300},
    {"Tesla T4", 8.1, 0, 0, 320},
};

struct device device_open(void)
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

static int attribute(enum cudaDeviceAttr which)
{
    int value = 0;
    CUDA_CHECK(cudaDeviceGetAttribute(&value, which, 0));
    return value;
}

// An unknown GPU's fp32 and memory limits come from its SMs, bus and clocks (FP32 lanes an SM: CUDA C++ Programming Guide,
// compute capabilities).
double device_limit(const struct device *device, enum limit limit)
{
    for (size_t i = 0; i < sizeof PEAKS / sizeof *PEAKS; i++) {
        if (!strstr(device->name, PEAKS[i].gpu)) continue;
        switch (limit) {
        case LIMIT_NONE: return 0;
        case LIMIT_FP32: return PEAKS[i].fp32;
        case LIMIT_BF16_TENSOR: return PEAKS[i].bf16;
        case LIMIT_FP8_TENSOR: return PEAKS[i].fp8;
        case LIMIT_MEMORY: return PEAKS[i].gigabytes;
        }
    }
    int cc = device->major * 10 + device->minor, lanes = cc == 75 || cc == 80 ? 64 : 128;
    if (limit == LIMIT_FP32) return 2.0 * lanes * device->sms * attribute(cudaDevAttrClockRate) * 1e3 / 1e12;
    if (limit == LIMIT_MEMORY)
        return 2.0 * attribute(cudaDevAttrMemoryClockRate) * 1e3 *
               attribute(cudaDevAttrGlobalMemoryBusWidth) / 8 / 1e9;
    return 0;
}

static const char *limit_name(enum limit limit)
{
    static const char *const NAMES[] = {[LIMIT_NONE] = "",
                                        [LIMIT_FP32] = "fp32",
                                        [LIMIT_BF16_TENSOR] = "bf16 tensor core",
                                        [LIMIT_FP8_TENSOR] = "fp8 tensor core",
                                        [LIMIT_MEMORY] = "memory"};
    return NAMES[limit];
}

// An expression over the dimensions and `size`, the bytes of an element of the run's type.
static int64_t evaluate(const struct operation *op, const char *expression, enum dtype type,
                        const int64_t *dim)
{
    const char *names[SHAPE_MAX_DIMS + 1] = {0};
    int64_t values[SHAPE_MAX_DIMS + 1], value;
    struct error error;
    int count = 0;
    for (; count < SHAPE_MAX_DIMS - 1 && op->dims[count]; count++) {
        names[count] = op->dims[count];
        values[count] = dim[count];
    }
    names[count] = "size";
    values[count] = (int64_t)dtype_bytes(type);
    if (!shape_evaluate(expression, names, values, &value, &error))
        die_input("'%s': %s", expression, error.text);
    return value;
}

// What tensor t of the run is, without its data.
static struct npy describe(const struct operation *op, const struct run *run, int t)
{
    struct error error;
    struct npy array = {.dtype = run->dtype[t], .count = 1};
    array.rank = operation_shape(op, t, run->dim, array.shape, &error);
    if (array.rank < 0) die_input("%s: %s", op->tensors[t].name, error.text);
    for (int i = 0; i < array.rank; i++) array.count *= array.shape[i];
    return array;
}

static size_t array_bytes(const struct npy *array)
{
    return (size_t)array->count * dtype_bytes(array->dtype);
}

// A copy of tensor t of the run, in device memory.
static void *copy_of(const struct operation *op, const struct run *run, int t)
{
    struct npy array = describe(op, run, t);
    void *copy;
    CUDA_CHECK(cudaMalloc(&copy, array_bytes(&array)));
    CUDA_CHECK(cudaMemcpy(copy, run->data[t], array_bytes(&array), cudaMemcpyDeviceToDevice));
    return copy;
}

// Fills every input of the run with standard normal numbers (Box-Muller on a 48-bit generator, fixed seed) or with what
// `bench` of its tensor says, integers with what `below` or `draw` says, and lets the operation derive inputs from others. A pool of a few million is repeated over larger
// tensors, with a period that no power of two divides.
static void fill_inputs(const struct operation *op, const struct run *run)
{
    enum { POOL = 4194301 };
    static double pool[POOL], values[POOL]; // of any type, so of 8 bytes
    unsigned short seed[3] = {1, 2, 3};
    for (int i = 0; i < POOL && pool[POOL - 1] == 0; i++)
        pool[i] = sqrt(-2 * log(1 - erand48(seed))) * cos(2 * M_PI * erand48(seed));
    for (int t = 0, offset = 0; t < operation_tensors(op); t++) {
        enum role role = op->tensors[t].role;
        if (!run->data[t] || role == OUT) continue;
        struct npy array = describe(op, run, t);
        int64_t unique = array.count < POOL ? array.count : POOL;
        const char *below = op->tensors[t].below;
        int64_t limit = below ? evaluate(op, below, run->type, run->dim) : 0;
        size_t bytes = dtype_bytes(array.dtype), total = (size_t)array.count * bytes,
               period = (size_t)unique * bytes;
        char *data = run->data[t];
        if (op->tensors[t].draw) {
            int32_t *drawn = malloc(total);
            if (!drawn) die_input("no memory for %zu bytes of %s", total, op->tensors[t].name);
            op->tensors[t].draw(run, drawn);
            CUDA_CHECK(cudaMemcpy(data, drawn, total, cudaMemcpyHostToDevice));
            free(drawn);
            continue;
        }
        for (int64_t i = 0; i < unique; i++)
            dtype_set(array.dtype, values, i,
                      below                     ? floor((double)limit * erand48(seed))
                      : op->tensors[t].bench    ? op->tensors[t].bench
                      : op->tensors[t].positive ? fabs(pool[(i + offset) % POOL])
                                                : pool[(i + offset) % POOL]);
        CUDA_CHECK(cudaMemcpy(data, values, period, cudaMemcpyHostToDevice));
        for (size_t done = period; done < total; done += period)
            CUDA_CHECK(cudaMemcpy(data + done, data, total - done < period ? total - done : period,
                                  cudaMemcpyDeviceToDevice));
        offset += 1000003;
    }
    if (op->derive) CUDA_CHECK(op->derive(run, NULL));
    CUDA_CHECK(cudaDeviceSynchronize());
}

// A parameter is what its tensor says, else the dimension of its name, else 1.
static void set_parameters(const struct operation *op, struct run *run)
{
    for (int t = 0; t < operation_tensors(op); t++) {
        const char *name = op->tensors[t].name;
        int d = shape_find(op->dims, name, strlen(name));
        if (op->tensors[t].role != PARAM) continue;
        run->param[t] = op->tensors[t].bench ? op->tensors[t].bench : d >= 0 ? (double)run->dim[d] : 1;
    }
}

cudaError_t device_copy(const struct run *run, cudaStream_t stream)
{
    return cudaMemcpyAsync(run->copy_to, run->copy_from, run->copy_bytes, cudaMemcpyDeviceToDevice, stream);
}

// What device_copy moves, where that is the baseline: as much as the operation, down to whole COPY_UNITs, since copies of other than
// multiples of 4 KB take half as long again in a CUDA graph on an H200 (results/trials/copy_sizes.csv). The contents do not matter, but memory that
// nobody wrote yet might be quicker to read.
enum { COPY_UNIT = 64 << 10 };
static void allocate_copy(const struct operation *op, struct run *run)
{
    if (op->baseline.launch != device_copy) return;
    run->copy_bytes = (size_t)evaluate(op, op->bytes, run->type, run->dim) / 2;
    if (run->copy_bytes > COPY_UNIT) run->copy_bytes -= run->copy_bytes % COPY_UNIT;
    CUDA_CHECK(cudaMalloc(&run->copy_to, run->copy_bytes));
    CUDA_CHECK(cudaMalloc(&run->copy_from, run->copy_bytes));
    CUDA_CHECK(cudaMemset(run->copy_from, 0x55, run->copy_bytes));
}

void bench_inputs(const struct operation *op, enum dtype type, const int64_t *dim, struct run *run)
{
    const bool without_optionals[CHAPTER_MAX_TENSORS] = {false};
    run_begin(op, type, dim, run);
    set_parameters(op, run);
    run_allocate(op, run, without_optionals, 0);
    fill_inputs(op, run);
}

// Makes enough copies of the tensors that a launch finds none of them in the L2 from the launch before.
static int make_sets(const struct operation *op, enum dtype type, const int64_t *dim, struct run *sets)
{
    const bool without_optionals[CHAPTER_MAX_TENSORS] = {false};
    size_t free_bytes, total_bytes, before;
    CUDA_CHECK(cudaMemGetInfo(&before, &total_bytes));
    for (int i = 0; i < MAX_SETS; i++) {
        run_begin(op, type, dim, &sets[i]);
        set_parameters(op, &sets[i]);
    }
    run_allocate(op, &sets[0], without_optionals, 0);
    allocate_copy(op, &sets[0]);
    fill_inputs(op, &sets[0]);
    CUDA_CHECK(cudaMemGetInfo(&free_bytes, &total_bytes));
    size_t set_bytes = before > free_bytes ? before - free_bytes : 1,
           l2_bytes = (size_t)attribute(cudaDevAttrL2CacheSize);
    size_t wanted = 4 * l2_bytes / set_bytes + 2, most = free_bytes / 2 / set_bytes + 1;
    int count = (int)(wanted < most ? wanted : most);
    if (count > MAX_SETS) count = MAX_SETS;
    for (int i = 1; i < count; i++) {
        run_allocate(op, &sets[i], without_optionals, 0);
        allocate_copy(op, &sets[i]);
        for (int t = 0; t < operation_tensors(op); t++) {
            if (!sets[0].data[t] || op->tensors[t].role == OUT) continue;
            struct npy array = describe(op, &sets[0], t);
            CUDA_CHECK(
                cudaMemcpy(sets[i].data[t], sets[0].data[t], array_bytes(&array), cudaMemcpyDeviceToDevice));
        }
    }
    return count;
}

// Two right kernels differ by what fp32 sums in different orders differ by (at most 1e-4 of the output's RMS for
// standard normal inputs) and by one rounding to the output's type (one epsilon of the value, at least the type's least
// number). A tile or an index gone wrong is off by about the RMS itself. A chapter with a
// bench_difference is allowed that share of the RMS of each row (last dimension) besides. The share alone is too little
// for a row that is only what sums leave whose terms cancel, as dQ of a query that sees one key. Returns false with the
// first difference in *error.
static bool same_output(const char *name, const struct npy *array, const void *got, const void *baseline,
                        double share, struct error *error)
{
    int64_t row = share ? array->shape[array->rank - 1] : array->count;
    struct difference first;
    char element[200];
    CUDA_CHECK(compare_arrays(array->dtype, got, baseline, array->count, row, share, 1e-4, &first));
    if (first.index < 0) return true;
    return error_set(error, "%s: got %.9g, baseline %.9g, allowed difference %.3g",
                     case_element_text(name, array, first.index, element, sizeof element), first.value,
                     first.expected, first.allowed);
}

static cudaError_t contender_launch(const struct contender *contender, const struct run *run,
                                    cudaStream_t stream)
{
    const struct operation *op = contender->op;
    return contender->step == BEST ? op->best.launch(run, contender->candidate, stream)
                                   : operation_launch(op, contender->step, run, stream);
}

static const char *contender_name(const struct contender *contender)
{
    const struct operation *op = contender->op;
    return contender->step == BEST ? op->best.name : operation_step_name(op, contender->step);
}

// Runs the contender once on set 0, from poisoned outputs and from what initial[] has for tensors that it changes; its
// outputs must be those of reference[], or become it. All of them are in device memory.
static bool check_contender(const struct contender *contender, const struct run *run, cudaStream_t stream,
                            void *const *initial, void **reference, struct error *error)
{
    const struct operation *op = contender->op;
    bool ok = true;
    for (int t = 0; t < operation_tensors(op); t++) {
        struct npy array = describe(op, run, t);
        if (initial[t])
            CUDA_CHECK(cudaMemcpyAsync(run->data[t], initial[t], array_bytes(&array),
                                       cudaMemcpyDeviceToDevice, stream));
        if (op->tensors[t].role == OUT)
            CUDA_CHECK(cudaMemsetAsync(run->data[t], 0xff, array_bytes(&array), stream));
    }
    CUDA_CHECK(contender_launch(contender, run, stream));
    if (contender->step == 0 && op->baseline.fetch) CUDA_CHECK(op->baseline.fetch(run, stream));
    CUDA_CHECK(cudaStreamSynchronize(stream));
    for (int t = 0; t < operation_tensors(op); t++) {
        if (op->tensors[t].role != OUT && op->tensors[t].role != INOUT) continue;
        struct npy array = describe(op, run, t);
        if (!reference[t])
            reference[t] = copy_of(op, run, t);
        else
            ok = ok && same_output(op->tensors[t].name, &array, run->data[t], reference[t],
                                   op->bench_difference, error);
    }
    return ok;
}

static void launch(struct contender *contender, int launches, const struct run *sets, int set_count,
                   cudaStream_t stream)
{
    for (int i = 0; i < launches; i++) {
        CUDA_CHECK(contender_launch(contender, &sets[contender->next_set], stream));
        contender->next_set = (contender->next_set + 1) % set_count;
    }
}

static void make_graph(struct contender *contender, const struct run *sets, int set_count,
                       cudaStream_t stream)
{
    cudaGraph_t graph;
    CUDA_CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    launch(contender, contender->launches, sets, set_count, stream);
    CUDA_CHECK(cudaStreamEndCapture(stream, &graph));
    CUDA_CHECK(cudaGraphInstantiate(&contender->graph, graph, 0));
    CUDA_CHECK(cudaGraphDestroy(graph));
}

// Milliseconds of `launches` launches, or of the contender's graph if it has one, measured between two events.
static double time_slice(struct contender *contender, int launches, const struct run *sets, int set_count,
                         cudaStream_t stream, cudaEvent_t begin, cudaEvent_t end)
{
    float ms;
    CUDA_CHECK(cudaEventRecord(begin, stream));
    if (contender->graph)
        CUDA_CHECK(cudaGraphLaunch(contender->graph, stream));
    else
        launch(contender, launches, sets, set_count, stream);
    CUDA_CHECK(cudaEventRecord(end, stream));
    CUDA_CHECK(cudaEventSynchronize(end));
    CUDA_CHECK(cudaEventElapsedTime(&ms, begin, end));
    return ms;
}

// Puts 0 to count - 1 in another order: the next of those that the seed begins.
static void shuffle(int *order, int count, unsigned short seed[3])
{
    for (int i = count - 1; i > 0; i--) {
        const int other = (int)(nrand48(seed) % (i + 1)), taken = order[i];
        order[i] = order[other];
        order[other] = taken;
    }
}

// Warms every contender up, then lets them take turns of about SLICE_MS, so that each sees the same clocks: a GPU
// at its power limit changes them within a fraction of a second. Whose turn comes first in a round, or behind whose, makes a per
// cent or two (results/trials/08_beside_quack.csv), so each round has an order of its own, in every run the same. Returns the
// number of rounds, min_rounds or as many more as the time allows.
static int time_contenders(struct contender *contenders, int count, int min_rounds, double budget_ms,
                           const struct run *sets, int set_count, cudaStream_t stream)
{
    cudaEvent_t begin, end;
    double round_ms = 0;
    CUDA_CHECK(cudaEventCreate(&begin));
    CUDA_CHECK(cudaEventCreate(&end));
    for (int c = 0; c < count; c++) {
        time_slice(&contenders[c], 2, sets, set_count, stream, begin, end);
        double once = time_slice(&contenders[c], 2, sets, set_count, stream, begin, end) / 2;
        contenders[c].launches = once < SLICE_MS ? (int)(SLICE_MS / once) + 1 : 1;
        round_ms += once * contenders[c].launches;
        // A baseline with memory of its own to fetch from allocates it when launched, which a graph cannot record.
        const bool allocates = contenders[c].step == 0 && contenders[c].op->baseline.fetch;
        if (once < HOST_MS && !allocates) {
            make_graph(&contenders[c], sets, set_count, stream);
            time_slice(&contenders[c], contenders[c].launches, sets, set_count, stream, begin, end);
        }
    }
    int rounds = (int)(budget_ms / round_ms);
    if (rounds < min_rounds) rounds = min_rounds;
    if (rounds > MAX_ROUNDS) rounds = MAX_ROUNDS;
    int order[MAX_CANDIDATES];
    unsigned short seed[3] = {0};
    for (int c = 0; c < count; c++) order[c] = c;
    for (int r = 0; r < rounds; r++) {
        shuffle(order, count, seed);
        for (int i = 0; i < count; i++) {
            struct contender *contender = &contenders[order[i]];
            contender->ms[r] =
                time_slice(contender, contender->launches, sets, set_count, stream, begin, end) /
                contender->launches;
        }
    }
    for (int c = 0; c < count; c++)
        if (contenders[c].graph) CUDA_CHECK(cudaGraphExecDestroy(contenders[c].graph));
    CUDA_CHECK(cudaEventDestroy(begin));
    CUDA_CHECK(cudaEventDestroy(end));
    return rounds;
}

static int compare_doubles(const void *left, const void *right)
{
    double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

// The value below which the given fraction of values[0..count) lies.
static double quantile(const double *values, int count, double fraction)
{
    double sorted[MAX_ROUNDS];
    memcpy(sorted, values, (size_t)count * sizeof *values);
    qsort(sorted, (size_t)count, sizeof *sorted, compare_doubles);
    return sorted[(int)(fraction * (count - 1) + 0.5)];
}

// The fastest of the best's candidates that agree with the reference; false where none does or there is none.
static bool find_best(const struct operation *op, const struct run *sets, int set_count, cudaStream_t stream,
                      void *const *initial, void **reference, struct contender *fastest)
{
    enum { ROUNDS = 3 };
    static struct contender candidates[MAX_CANDIDATES];
    struct error error;
    int count = 0, named = op->best.candidates(&sets[0]);
    for (int i = 0; i < named && i < MAX_CANDIDATES; i++) {
        candidates[count] = (struct contender){.op = op, .step = BEST, .candidate = i};
        const cudaError_t launched = op->best.launch(&sets[0], i, stream);
        if (launched == cudaErrorNotSupported) continue;
        CUDA_CHECK(launched);
        count += check_contender(&candidates[count], &sets[0], stream, initial, reference, &error);
    }
    if (count == 0) return false;
    time_contenders(candidates, count, ROUNDS, 0, sets, set_count, stream);
    int best = 0;
    for (int i = 1; i < count; i++)
        if (quantile(candidates[i].ms, ROUNDS, 0.5) < quantile(candidates[best].ms, ROUNDS, 0.5)) best = i;
    printf("  %s: candidate %d of %d, %d of them right\n", op->best.name, candidates[best].candidate + 1,
           named, count);
    *fastest = (struct contender){.op = op, .step = BEST, .candidate = candidates[best].candidate};
    return true;
}

// The kernel driver's version, "580.65.06"; what CUDA calls driver version is the CUDA version that it supports.
static const char *driver_version(char *text, size_t size)
{
    FILE *file = fopen("/proc/driver/nvidia/version", "r");
    char line[300] = "", *p = line;
    if (file && !fgets(line, sizeof line, file)) line[0] = 0;
    if (file) fclose(file);
    while (*p && !(strspn(p, "0123456789") >= 3 && p[strspn(p, "0123456789")] == '.')) p++;
    snprintf(text, size, "%.*s", (int)strspn(p, "0123456789."), p);
    return text;
}

char *bench_circumstances(const struct device *device, const char *command, char *text, size_t size)
{
    char gpu[300], quoted_command[1200], driver[40], date[40];
    const char *commit = getenv("COOKBOOK_COMMIT");
    time_t now = time(NULL);
    int runtime;
    CUDA_CHECK(cudaRuntimeGetVersion(&runtime));
    strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%SZ", gmtime(&now));
    snprintf(text, size,
             "\"gpu\": %s, \"driver\": \"%s\", \"cuda\": \"%d.%d\", \"commit\": \"%s\", \"date\": \"%s\", "
             "\"command\": %s",
             results_quote(device->name, gpu, sizeof gpu), driver_version(driver, sizeof driver),
             runtime / 1000, runtime % 1000 / 10, commit ? commit : "unknown", date,
             results_quote(command, quoted_command, sizeof quoted_command));
    return text;
}

// How many times as fast a contender is as a rival, the median over the rounds, in each of which both saw the same clocks.
static double ratio_to(const struct contender *rival, const struct contender *contender, int rounds)
{
    double ratios[MAX_ROUNDS];
    for (int r = 0; r < rounds; r++) ratios[r] = rival->ms[r] / contender->ms[r];
    return quantile(ratios, rounds, 0.5);
}

// What both, the table and the records, say of one shape.
struct timed {
    const char *chapter, *metric, *command;
    const struct operation *op;
    const struct device *device;
    enum dtype type;
    char shape[200];
    const struct contender *baseline, *best; // or NULL
    int rounds;
    double work; // in the metric's unit when divided by milliseconds
    double limit;
};

static double speed(const struct timed *timed, const struct contender *contender)
{
    return timed->work / quantile(contender->ms, timed->rounds, 0.5);
}

static void add_record(const struct timed *timed, const struct contender *step, struct results *results)
{
    char key[600], value[3000], measured[2000], text[100], fraction[40] = "null", best_text[200] = "";
    char limit_text[100] = "null",
         baseline_text[200] = "\"baseline\": null, \"baseline_value\": null, \"ratio\": null";
    const double work = timed->work;
    if (timed->limit) {
        snprintf(fraction, sizeof fraction, "%.4f", speed(timed, step) / timed->limit);
        snprintf(limit_text, sizeof limit_text, "{\"name\": \"%s\", \"value\": %.1f}",
                 limit_name(timed->op->limit), timed->limit);
    }
    if (timed->baseline)
        snprintf(baseline_text, sizeof baseline_text,
                 "\"baseline\": %s, \"baseline_value\": %.5g, \"ratio\": %.4f",
                 results_quote(timed->op->baseline.name, text, sizeof text), speed(timed, timed->baseline),
                 ratio_to(timed->baseline, step, timed->rounds));
    if (timed->best)
        snprintf(best_text, sizeof best_text, "\"best\": {\"name\": %s, \"value\": %.5g, \"ratio\": %.4f}, ",
                 results_quote(timed->op->best.name, text, sizeof text), speed(timed, timed->best),
                 ratio_to(timed->best, step, timed->rounds));
    results_key(key, sizeof key, timed->chapter, timed->op->name, contender_name(step), timed->shape,
                dtype_name(timed->type), timed->metric);
    snprintf(value, sizeof value,
             "\"value\": %.5g, \"spread\": [%.5g, %.5g], %s, %s\"fraction_of_limit\": %s, \"limit\": %s, %s",
             speed(timed, step), work / quantile(step->ms, timed->rounds, 0.75),
             work / quantile(step->ms, timed->rounds, 0.25), baseline_text, best_text, fraction, limit_text,
             bench_circumstances(timed->device, timed->command, measured, sizeof measured));
    results_add(results, key, value);
}

// Prints the table; a line's spread is the distance of the quartiles as a share of the median.
static void report(const struct timed *timed, const struct contender *contenders, int count,
                   struct results *results)
{
    printf("  %-20s %-5s %-24s %10s %8s %10s", "step", "type", "shape", "ms", "spread", timed->metric);
    if (timed->baseline) printf(" %10s", "x baseline");
    if (timed->best) printf(" %10s", "x best");
    printf("%s\n", timed->limit ? " of limit" : "");
    for (int c = 0; c < count; c++) {
        const struct contender *contender = &contenders[c];
        const double median = quantile(contender->ms, timed->rounds, 0.5),
                     spread = (quantile(contender->ms, timed->rounds, 0.75) -
                               quantile(contender->ms, timed->rounds, 0.25)) /
                              median;
        printf("  %-20s %-5s %-24s %10.4f %7.1f%% %10.2f", contender_name(contender), dtype_name(timed->type),
               timed->shape, median, 100 * spread, speed(timed, contender));
        if (timed->baseline) printf(" %10.3f", ratio_to(timed->baseline, contender, timed->rounds));
        if (timed->best) printf(" %10.3f", ratio_to(timed->best, contender, timed->rounds));
        if (timed->limit) printf(" %7.1f%%", 100 * speed(timed, contender) / timed->limit);
        printf("\n");
        if (contender->step > 0) add_record(timed, contender, results);
    }
    printf("  %d interleaved rounds of about %.0f ms each", timed->rounds, SLICE_MS);
    if (timed->limit)
        printf("; limit: %s, %.1f %s", limit_name(timed->op->limit), timed->limit, timed->metric);
    printf("\n");
}

// Whether there is no baseline to time for this shape, or none on this machine.
static bool baseline_absent(const struct baseline *baseline, const struct run *run, cudaStream_t stream)
{
    cudaError_t error = baseline->launch(run, stream);
    if (error == cudaErrorNotSupported) printf("  %s: it does not have this shape\n", baseline->name);
    return error == cudaErrorNotSupported || error == cudaErrorSharedObjectInitFailed;
}

int bench_run(const char *chapter, const struct operation *op, const struct device *device,
              const bool *selected, enum dtype type, const int64_t *dim, const char *command,
              struct results *results)
{
    static struct contender contenders[CONTENDERS];
    static struct run sets[MAX_SETS];
    void *initial[CHAPTER_MAX_TENSORS] = {0}, *reference[CHAPTER_MAX_TENSORS] = {0};
    struct error error;
    // 1 TFLOP/s is 1e9 FLOP/ms, 1 GB/s is 1e6 byte/ms.
    struct timed timed = {.chapter = chapter,
                          .metric = op->flops ? "TFLOP/s" : "GB/s",
                          .command = command,
                          .op = op,
                          .device = device,
                          .type = type,
                          .work = op->flops ? (double)evaluate(op, op->flops, type, dim) / 1e9
                                            : (double)evaluate(op, op->bytes, type, dim) / 1e6,
                          .limit = device_limit(device, op->limit)};
    shape_write(op->dims, dim, timed.shape, sizeof timed.shape);
    int count = 0, wrong = 0, set_count = make_sets(op, type, dim, sets);
    cudaStream_t stream;
    CUDA_CHECK(cudaStreamCreate(&stream));
    for (int t = 0; t < operation_tensors(op); t++)
        if (op->tensors[t].role == INOUT) initial[t] = copy_of(op, &sets[0], t);
    for (int s = 0; s <= operation_steps(op); s++) {
        if (s == 1 && op->best.name &&
            find_best(op, sets, set_count, stream, initial, reference, &contenders[count]))
            timed.best = &contenders[count++];
        struct contender *next = &contenders[count];
        if (s > 0 ? !selected[s] : !op->baseline.name || baseline_absent(&op->baseline, &sets[0], stream))
            continue;
        *next = (struct contender){.op = op, .step = s};
        if ((s == 0 && op->baseline.other_work) ||
            check_contender(next, &sets[0], stream, initial, reference, &error)) {
            if (s == 0) timed.baseline = next;
            count++;
            continue;
        }
        printf("  %s: WRONG, so not timed: %s\n", contender_name(next), error.text);
        wrong++;
    }
    if (count > 0) {
        timed.rounds = time_contenders(contenders, count, MIN_ROUNDS, BUDGET_MS, sets, set_count, stream);
        report(&timed, contenders, count, results);
    }
    for (int t = 0; t < CHAPTER_MAX_TENSORS; t++) {
        CUDA_CHECK(cudaFree(initial[t])); // NULL is ignored
        CUDA_CHECK(cudaFree(reference[t]));
    }
    for (int i = 0; i < set_count; i++) run_free(&sets[i]);
    CUDA_CHECK(cudaStreamDestroy(stream));
    return wrong;
}
