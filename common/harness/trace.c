#define _GNU_SOURCE
#include "trace.h"

#include <limits.h>
#include <unistd.h>

#include "../device/trace.h"

enum { MAX_FILES = CHAPTER_MAX_STEPS, MAX_LANES = TRACE_MAX_TRACED, LAUNCHES = 5 };

#define EVENT_TEXT(name, text) [TRACE_##name] = text,
static const char *const EVENTS[] = {TRACE_EVENTS(EVENT_TEXT)};

static const void *symbols[MAX_FILES]; // the trace_log of each kernel file
static int symbol_count;

void trace_register(const void *log_symbol)
{
    if (symbol_count < MAX_FILES) symbols[symbol_count++] = log_symbol;
}

bool trace_compiled_in(void)
{
    return symbol_count > 0;
}

// ---- The launch ---------------------------------------------------------------------------------------------------------

static void *allocate(size_t bytes)
{
    void *memory;
    CUDA_CHECK(cudaMalloc(&memory, bytes));
    return memory;
}

static void set_log(const struct trace_log *log)
{
    for (int i = 0; i < symbol_count; i++)
        CUDA_CHECK(cudaMemcpyToSymbol(symbols[i], log, sizeof *log, 0, cudaMemcpyHostToDevice));
}

// Launches it once, all of it timed by events, and waits. *ms is 0 on the simulated GPU.
static cudaError_t launch_once(const struct traced *traced, const struct operation *op, int s,
                               const struct run *run, cudaStream_t stream, float *ms)
{
    cudaEvent_t begin, end;
    CUDA_CHECK(cudaEventCreate(&begin));
    CUDA_CHECK(cudaEventCreate(&end));
    CUDA_CHECK(cudaEventRecord(begin, stream));
    cudaError_t error = operation_launch(op, s, run, stream);
    CUDA_CHECK(cudaEventRecord(end, stream));
    if (error == cudaSuccess) error = cudaStreamSynchronize(stream);
    if (error == cudaSuccess && !traced->device->simulated) error = cudaEventElapsedTime(ms, begin, end);
    CUDA_CHECK(cudaEventDestroy(begin));
    CUDA_CHECK(cudaEventDestroy(end));
    return error;
}

static float least(const float *ms, int count)
{
    float value = ms[0];
    for (int i = 1; i < count; i++) value = ms[i] < value ? ms[i] : value;
    return value;
}

// ---- Lanes of the picture -----------------------------------------------------------------------------------------------

// A role: a warp whose marks are shown. Of a warpgroup's warps that is the first, and those that do what it does not.
struct lane {
    struct trace_warp warp;
    const uint64_t *marks;
    uint32_t count, kinds; // a bit for each event that it marks
    char name[40];
};

static int by_block_and_warp(const void *a, const void *b)
{
    const struct trace_warp *x = &((const struct lane *)a)->warp, *y = &((const struct lane *)b)->warp;
    if (x->sm != y->sm) return x->sm < y->sm ? -1 : 1;
    if (x->block != y->block) return x->block < y->block ? -1 : 1;
    return (x->warp > y->warp) - (x->warp < y->warp);
}

static bool marks_event(const struct lane *lane, enum trace_event event)
{
    return lane->kinds >> event & 1;
}

// Names the lanes of a block: who loads and does not multiply is a producer; who multiplies and does not load, where others
// load for it, a consumer. A further warp of a warpgroup that has a name already is called after it.
static void name_lanes(struct lane *lanes, int count)
{
    bool specialized = true;
    int consumers = 0;
    for (int i = 0; i < count; i++)
        if (marks_event(&lanes[i], TRACE_LOAD) && marks_event(&lanes[i], TRACE_MULTIPLY)) specialized = false;
    for (int i = 0; i < count; i++) {
        struct lane *lane = &lanes[i], *before = i > 0 ? lane - 1 : lane;
        bool loads = marks_event(lane, TRACE_LOAD), multiplies = marks_event(lane, TRACE_MULTIPLY);
        if (before != lane && before->warp.warp / 4 == lane->warp.warp / 4)
            snprintf(lane->name, sizeof lane->name, "%.*s, warp %u", (int)strcspn(before->name, ","),
                     before->name, lane->warp.warp % 4);
        else if (specialized && loads)
            snprintf(lane->name, sizeof lane->name, "producer");
        else if (specialized && multiplies)
            snprintf(lane->name, sizeof lane->name, "consumer %d", consumers++);
        else if (multiplies)
            snprintf(lane->name, sizeof lane->name, "warpgroup %u", lane->warp.warp / 4);
        else
            snprintf(lane->name, sizeof lane->name, "warp %u", lane->warp.warp);
    }
}

// Keeps of the lanes, which are in order, those to show, and names them; returns how many.
static int select_lanes(struct lane *lanes, int count)
{
    int kept = 0, block_begin = 0;
    for (int i = 0; i < count; i++) {
        bool shown = lanes[i].count > 1;
        if (kept > block_begin && lanes[kept - 1].warp.block != lanes[i].warp.block) {
            name_lanes(lanes + block_begin, kept - block_begin);
            block_begin = kept;
        }
        for (int k = block_begin; k < kept; k++)
            if (lanes[k].warp.warp / 4 == lanes[i].warp.warp / 4 && !(lanes[i].kinds & ~lanes[k].kinds))
                shown = false;
        if (shown) lanes[kept++] = lanes[i];
    }
    name_lanes(lanes + block_begin, kept - block_begin);
    return kept;
}

// ---- Times --------------------------------------------------------------------------------------------------------------

// From an SM's clock to microseconds since the first mark of all: by the GPU's timer, which was read with the first and the last
// mark of each warp. On the simulated GPU a clock is what it is.
struct timebase {
    uint64_t clock, ns;  // of the SM's first mark
    double ns_per_clock; // 0: the simulated GPU
    uint64_t first_ns;   // of all SMs
};

static struct timebase timebase_of(const struct lane *lanes, int count, uint32_t sm, bool simulated)
{
    struct timebase base = {.first_ns = UINT64_MAX};
    uint64_t last_clock = 0, last_ns = 0;
    bool any = false;
    for (int i = 0; i < count; i++) {
        const struct trace_warp *warp = &lanes[i].warp;
        if (warp->first_ns < base.first_ns) base.first_ns = warp->first_ns;
        if (warp->sm != sm) continue;
        if (!any || warp->first_clock < base.clock) base.clock = warp->first_clock, base.ns = warp->first_ns;
        if (warp->last_clock > last_clock) last_clock = warp->last_clock, last_ns = warp->last_ns;
        any = true;
    }
    if (!simulated && last_clock > base.clock)
        base.ns_per_clock = (double)(last_ns - base.ns) / (double)(last_clock - base.clock);
    return base;
}

static double time_of(const struct timebase *base, uint64_t mark)
{
    uint64_t clock = mark >> 8;
    if (base->ns_per_clock == 0) return (double)clock;
    return ((double)(base->ns - base->first_ns) + (double)(clock - base->clock) * base->ns_per_clock) / 1e3;
}

// ---- The file -----------------------------------------------------------------------------------------------------------

// Names a process or a thread. The first line of the file's events is such a one.
static void write_name(FILE *file, const char *what, uint32_t pid, int tid, const char *name, bool first)
{
    fprintf(file, "%s{\"ph\":\"M\",\"name\":\"%s\",\"pid\":%u,\"tid\":%d,\"args\":{\"name\":\"%s\"}}",
            first ? "" : ",\n", what, pid, tid, name);
}

static void write_span(FILE *file, const struct lane *lane, int tid, const char *name, double begin,
                       double end)
{
    fprintf(file, ",\n{\"ph\":\"X\",\"pid\":%u,\"tid\":%d,\"ts\":%.10g,\"dur\":%.4g,\"name\":\"%s\"}",
            lane->warp.block, tid, begin, end - begin, name);
}

// A mark's event lasts until the next mark; products are in flight from the first MULTIPLY to PRODUCTS_DONE.
static void write_lane(FILE *file, const struct lane *lane, const struct timebase *base)
{
    int tid = (int)lane->warp.warp * 2;
    enum trace_event event = TRACE_END;
    double begin = 0, issued = -1;
    for (uint32_t i = 0; i < lane->count; i++) {
        enum trace_event next = lane->marks[i] & 0xff;
        double now = time_of(base, lane->marks[i]);
        if (next == TRACE_MULTIPLY && issued < 0) issued = now;
        if (next == TRACE_PRODUCTS_DONE) {
            if (issued >= 0) write_span(file, lane, tid + 1, "in flight", issued, now);
            issued = -1;
            continue;
        }
        if (next == event) continue;
        if (event != TRACE_END) write_span(file, lane, tid, EVENTS[event], begin, now);
        event = next;
        begin = now;
    }
}

static void write_file(FILE *file, const struct traced *traced, const struct lane *lanes, int count)
{
    char text[400], quoted[800];
    bool simulated = traced->device->simulated;
    fprintf(file, "{\"displayTimeUnit\":\"ns\",\n\"otherData\":{");
    fprintf(file, "\"chapter\":\"%s\",\"step\":\"%s\",\"shape\":\"%s\",\"type\":\"%s\",\"device\":%s,",
            traced->chapter, traced->step, traced->shape, traced->type,
            results_quote(traced->device->name, quoted, sizeof quoted));
    fprintf(file, "\"unit\":\"%s\"},\n\"traceEvents\":[\n",
            simulated ? "executed warp instructions, not time" : "us");
    for (int i = 0; i < count; i++) {
        const struct lane *lane = &lanes[i];
        struct timebase base = timebase_of(lanes, count, lane->warp.sm, simulated);
        snprintf(text, sizeof text, "block %u on SM %u%s", lane->warp.block, lane->warp.sm,
                 simulated ? " (a microsecond stands for an executed warp instruction, not for time)" : "");
        if (i == 0 || lanes[i - 1].warp.block != lane->warp.block)
            write_name(file, "process_name", lane->warp.block, 0, text, i == 0);
        write_name(file, "thread_name", lane->warp.block, (int)lane->warp.warp * 2, lane->name, false);
        if (marks_event(lane, TRACE_MULTIPLY)) {
            snprintf(text, sizeof text, "%s: products in flight", lane->name);
            write_name(file, "thread_name", lane->warp.block, (int)lane->warp.warp * 2 + 1, text, false);
        }
        write_lane(file, lane, &base);
    }
    fprintf(file, "\n]}\n");
}

// ---- The summary --------------------------------------------------------------------------------------------------------

// The share of each event in the time of all lanes of this name, from their first mark to their last.
static void print_role(const struct lane *lanes, int count, const char *name)
{
    double spent[TRACE_EVENT_COUNT] = {0}, in_flight = 0, total = 0;
    for (int k = 0; k < count; k++) {
        const struct lane *lane = &lanes[k];
        if (strcmp(lane->name, name) != 0) continue;
        enum trace_event event = TRACE_END;
        uint64_t begin = 0, issued = 0;
        bool flying = false;
        for (uint32_t i = 0; i < lane->count; i++) {
            enum trace_event next = lane->marks[i] & 0xff;
            uint64_t now = lane->marks[i] >> 8;
            if (next == TRACE_MULTIPLY && !flying) flying = true, issued = now;
            if (next == TRACE_PRODUCTS_DONE && flying) in_flight += (double)(now - issued), flying = false;
            if (next == TRACE_PRODUCTS_DONE) continue;
            if (i > 0 && event != TRACE_END) spent[event] += (double)(now - begin);
            event = next;
            begin = now;
        }
        total += (double)((lane->marks[lane->count - 1] >> 8) - (lane->marks[0] >> 8));
    }
    printf("    %-12s", name);
    for (int event = 0; event < TRACE_EVENT_COUNT; event++)
        if (spent[event] > 0) printf(" %s %.1f %%,", EVENTS[event], 100 * spent[event] / total);
    printf(in_flight > 0 ? " products in flight %.1f %%\n" : "\n", 100 * in_flight / total);
}

static void print_summary(const struct lane *lanes, int count)
{
    for (int i = 0; i < count; i++) {
        bool seen = false;
        for (int k = 0; k < i; k++) seen |= strcmp(lanes[k].name, lanes[i].name) == 0;
        if (!seen) print_role(lanes, count, lanes[i].name);
    }
}

// ---- All of it ----------------------------------------------------------------------------------------------------------

// Copies the traced warps and their marks to the host; returns how many. The marks are from malloc.
static int download(const struct trace_log *log, struct lane *lanes, uint64_t **marks)
{
    static struct trace_warp warps[TRACE_MAX_TRACED];
    uint32_t traced, lost;
    uint64_t overflow = 0;
    CUDA_CHECK(cudaMemcpy(&traced, log->traced, sizeof traced, cudaMemcpyDeviceToHost));
    CUDA_CHECK(cudaMemcpy(&lost, log->lost, sizeof lost, cudaMemcpyDeviceToHost));
    if (traced > TRACE_MAX_TRACED) traced = TRACE_MAX_TRACED;
    CUDA_CHECK(cudaMemcpy(warps, log->warps, traced * sizeof *warps, cudaMemcpyDeviceToHost));
    *marks = malloc((size_t)traced * log->records * sizeof **marks + 1);
    if (!*marks) die_input("--trace: out of memory");
    CUDA_CHECK(cudaMemcpy(*marks, log->marks, (size_t)traced * log->records * sizeof **marks,
                          cudaMemcpyDeviceToHost));
    for (uint32_t i = 0; i < traced; i++) {
        struct lane *lane = &lanes[i];
        *lane = (struct lane){
            .warp = warps[i], .marks = *marks + (size_t)i * log->records, .count = warps[i].count};
        if (lane->count > log->records) {
            overflow += lane->count - log->records;
            lane->count = log->records;
        }
        for (uint32_t k = 0; k < lane->count; k++) lane->kinds |= 1u << (lane->marks[k] & 0xff);
    }
    if (overflow)
        printf("  trace: %llu marks did not fit and are missing: %u of each warp are kept, the first\n",
               (unsigned long long)overflow, log->records);
    if (lost)
        printf("  trace: %u warps are missing: there is room for %d of them, in launches of %d\n", lost,
               TRACE_MAX_TRACED, TRACE_MAX_WARPS);
    return (int)traced;
}

cudaError_t trace_run(const struct traced *traced, const struct operation *op, int s, const struct run *run,
                      cudaStream_t stream, const char *path)
{
    static struct lane lanes[MAX_LANES];
    char temporary[PATH_MAX];
    snprintf(temporary, sizeof temporary, "%s.tmp%d", path, (int)getpid());
    FILE *file = fopen(temporary, "w");
    if (!file) die_input("--trace %s: cannot write: %s", path, strerror(errno));
    float with[LAUNCHES] = {0}, without[LAUNCHES] = {0};
    uint64_t *marks;
    size_t places_bytes = TRACE_MAX_WARPS * sizeof(struct trace_place);
    const struct trace_log nothing = {0},
                           log = {
                               .places = allocate(places_bytes),
                               .warps = allocate(TRACE_MAX_TRACED * sizeof(struct trace_warp)),
                               .marks = allocate((size_t)TRACE_MAX_TRACED * TRACE_RECORDS * sizeof(uint64_t)),
                               .traced = allocate(sizeof(uint32_t)),
                               .lost = allocate(sizeof(uint32_t)),
                               .records = TRACE_RECORDS,
                               .simulated = traced->device->simulated,
                           };
    cudaError_t error = cudaSuccess;
    int launches = log.simulated ? 1 : LAUNCHES;
    for (int i = 0; i < 2 * launches && error == cudaSuccess;
         i++) { // in turn, so that both see the same clocks
        bool on = log.simulated || i % 2;
        CUDA_CHECK(cudaMemset(log.places, 0, places_bytes));
        CUDA_CHECK(cudaMemset(log.traced, 0, sizeof(uint32_t)));
        CUDA_CHECK(cudaMemset(log.lost, 0, sizeof(uint32_t)));
        set_log(on ? &log : &nothing);
        error = launch_once(traced, op, s, run, stream, &(on ? with : without)[i / 2]);
        if (log.simulated) break;
    }
    if (error != cudaSuccess) {
        unlink(temporary);
        return error;
    }
    int count = download(&log, lanes, &marks);
    qsort(lanes, (size_t)count, sizeof *lanes, by_block_and_warp);
    count = select_lanes(lanes, count);
    if (count > 0) write_file(file, traced, lanes, count);
    bool wrote = count > 0 && !ferror(file);
    if (fclose(file) != 0 || !wrote || rename(temporary, path) != 0) {
        int reason = errno;
        unlink(temporary);
        if (count == 0)
            die_input("--trace %s: step %s makes no marks on this shape, or was not compiled with them", path,
                      traced->step);
        die_input("--trace %s: cannot write: %s", path, strerror(reason));
    }
    printf("  trace: %s, in %s:\n", path,
           log.simulated ? "executed warp instructions, not time" : "shares of time");
    print_summary(lanes, count);
    if (!log.simulated)
        printf("  trace: the least of %d launches took %.4f ms with marks, %.4f ms with marks switched off\n",
               launches, least(with, launches), least(without, launches));
    free(marks);
    set_log(&nothing);
    void *const memory[] = {log.places, log.warps, log.marks, log.traced, log.lost};
    for (size_t i = 0; i < sizeof memory / sizeof *memory; i++) CUDA_CHECK(cudaFree(memory[i]));
    return cudaSuccess;
}
