// Chapter 8: softmax in one pass, however long the row; its backward; and the classifier that needs both.
#include "../../common/harness/chapter.h"
#include "launchers.h"

// Copies `bytes` on the device: what an operation that reads half of them and writes half cannot be faster than.
static cudaError_t copy(void *dst, const void *src, size_t bytes, cudaStream_t stream)
{
    return cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDeviceToDevice, stream);
}

// --- Forward --------------------------------------------------------------------------------------------------------

enum { X, Y };
enum { ROWS, COLS };

static cudaError_t launch_forward(enum dtype dtype, const struct step *step, const struct run *run,
                                  cudaStream_t stream)
{
    return ((forward_launcher *)step->kernel)(dtype, run->data[X], run->data[Y], (int)run->dim[ROWS],
                                              (int)run->dim[COLS], stream);
}

static cudaError_t launch_forward_f32(const struct step *step, const struct run *run, cudaStream_t stream)
{
    return launch_forward(F32, step, run, stream);
}

static cudaError_t launch_forward_bf16(const struct step *step, const struct run *run, cudaStream_t stream)
{
    return launch_forward(BF16, step, run, stream);
}

static size_t elements(const struct run *run)
{
    return (size_t)run->dim[ROWS] * (size_t)run->dim[COLS];
}

static cudaError_t copy_rows_f32(const struct step *step, const struct run *run, cudaStream_t stream)
{
    (void)step;
    return copy(run->data[Y], run->data[X], 4 * elements(run), stream);
}

static cudaError_t copy_rows_bf16(const struct step *step, const struct run *run, cudaStream_t stream)
{
    (void)step;
    return copy(run->data[Y], run->data[X], 2 * elements(run), stream);
}

static const char *check_cols(const int64_t *dim)
{
    return dim[COLS] > 131072 ? "cols must be at most 131072" : NULL;
}

// --- Causal: what is read is a triangle, what is written a square ---------------------------------------------------

enum { CAUSAL_X, CAUSAL_Y, CAUSAL_SCALE };
enum { BATCH, T };

static cudaError_t launch_causal(enum dtype dtype, const struct step *step, const struct run *run,
                                 cudaStream_t stream)
{
    return ((causal_launcher *)step->kernel)(dtype, run->data[CAUSAL_X], run->data[CAUSAL_Y],
                                             (float)run->param[CAUSAL_SCALE], (int)run->dim[BATCH],
                                             (int)run->dim[T], stream);
}

static cudaError_t launch_causal_f32(const struct step *step, const struct run *run, cudaStream_t stream)
{
    return launch_causal(F32, step, run, stream);
}

static cudaError_t launch_causal_bf16(const struct step *step, const struct run *run, cudaStream_t stream)
{
    return launch_causal(BF16, step, run, stream);
}

static size_t square(const struct run *run)
{
    return (size_t)run->dim[BATCH] * (size_t)run->dim[T] * (size_t)run->dim[T];
}

static size_t triangle(const struct run *run)
{
    return (square(run) + (size_t)run->dim[BATCH] * (size_t)run->dim[T]) / 2;
}

static cudaError_t copy_causal_f32(const struct step *step, const struct run *run, cudaStream_t stream)
{
    (void)step;
    return copy(run->data[CAUSAL_Y], run->data[CAUSAL_X], 4 * ((triangle(run) + square(run)) / 2), stream);
}

static cudaError_t copy_causal_bf16(const struct step *step, const struct run *run, cudaStream_t stream)
{
    (void)step;
    return copy(run->data[CAUSAL_Y], run->data[CAUSAL_X], 2 * ((triangle(run) + square(run)) / 2), stream);
}

static const char *check_square(const int64_t *dim)
{
    if (dim[T] > 16384) return "t must be at most 16384";
    return dim[BATCH] * dim[T] > INT32_MAX ? "batch * t must be below 2^31" : NULL;
}

// --- Backward -------------------------------------------------------------------------------------------------------

enum { BACKWARD_Y, BACKWARD_DY, BACKWARD_DX, BACKWARD_SCALE };

static cudaError_t launch_backward(enum dtype dtype, const struct step *step, const struct run *run,
                                   cudaStream_t stream)
{
    return ((backward_launcher *)step->kernel)(dtype, run->data[BACKWARD_Y], run->data[BACKWARD_DY],
                                               run->data[BACKWARD_DX], (int)run->dim[ROWS],
                                               (int)run->dim[COLS], stream);
}

static cudaError_t launch_backward_f32(const struct step *step, const struct run *run, cudaStream_t stream)
{
    return launch_backward(F32, step, run, stream);
}

static cudaError_t launch_backward_bf16(const struct step *step, const struct run *run, cudaStream_t stream)
{
    return launch_backward(BF16, step, run, stream);
}

static cudaError_t launch_causal_backward(enum dtype dtype, const struct step *step, const struct run *run,
                                          cudaStream_t stream)
{
    return ((causal_backward_launcher *)step->kernel)(
        dtype, run->data[BACKWARD_Y], run->data[BACKWARD_DY], run->data[BACKWARD_DX],
        (float)run->param[BACKWARD_SCALE], (int)run->dim[BATCH], (int)run->dim[T], stream);
}

static cudaError_t launch_causal_backward_f32(const struct step *step, const struct run *run,
                                              cudaStream_t stream)
{
    return launch_causal_backward(F32, step, run, stream);
}

static cudaError_t launch_causal_backward_bf16(const struct step *step, const struct run *run,
                                               cudaStream_t stream)
{
    return launch_causal_backward(BF16, step, run, stream);
}

// As many bytes as two arrays read and one written: y to dx, and half of dy to half of dx.
static cudaError_t copy_backward(const struct run *run, size_t bytes, cudaStream_t stream)
{
    cudaError_t error = copy(run->data[BACKWARD_DX], run->data[BACKWARD_Y], bytes, stream);
    return error ? error : copy(run->data[BACKWARD_DX], run->data[BACKWARD_DY], bytes / 2, stream);
}

static cudaError_t copy_backward_f32(const struct step *step, const struct run *run, cudaStream_t stream)
{
    (void)step;
    return copy_backward(run, 4 * elements(run), stream);
}

static cudaError_t copy_backward_bf16(const struct step *step, const struct run *run, cudaStream_t stream)
{
    (void)step;
    return copy_backward(run, 2 * elements(run), stream);
}

// Two triangles read, a square written: as many bytes as a square copied, but for t / 2 columns.
static cudaError_t copy_causal_backward_f32(const struct step *step, const struct run *run,
                                            cudaStream_t stream)
{
    (void)step;
    return copy(run->data[BACKWARD_DX], run->data[BACKWARD_Y], 4 * square(run), stream);
}

static cudaError_t copy_causal_backward_bf16(const struct step *step, const struct run *run,
                                             cudaStream_t stream)
{
    (void)step;
    return copy(run->data[BACKWARD_DX], run->data[BACKWARD_Y], 2 * square(run), stream);
}

// --- Classifier -----------------------------------------------------------------------------------------------------

enum { LOGITS, TARGET, DLOSS, V_PARAM, LOSS };
enum { CLASSIFIER_ROWS, V, VP };

static cudaError_t launch_classifier(enum dtype dtype, const struct step *step, const struct run *run,
                                     cudaStream_t stream)
{
    return ((classifier_launcher *)step->kernel)(dtype, run->data[LOGITS], run->data[LOSS], run->data[TARGET],
                                                 run->data[DLOSS], (int)run->dim[CLASSIFIER_ROWS],
                                                 (int)run->dim[V], (int)run->dim[VP], stream);
}

static cudaError_t launch_classifier_f32(const struct step *step, const struct run *run, cudaStream_t stream)
{
    return launch_classifier(F32, step, run, stream);
}

static cudaError_t launch_classifier_bf16(const struct step *step, const struct run *run, cudaStream_t stream)
{
    return launch_classifier(BF16, step, run, stream);
}

// In place, all logits are read once and written once: half of them to the other half, and back.
static cudaError_t copy_logits(const struct run *run, size_t element, cudaStream_t stream)
{
    size_t half = (size_t)run->dim[CLASSIFIER_ROWS] * (size_t)run->dim[VP] / 2 * element;
    char *logits = run->data[LOGITS];
    cudaError_t error = copy(logits + half, logits, half, stream);
    return error ? error : copy(logits, logits + half, half, stream);
}

static cudaError_t copy_logits_f32(const struct step *step, const struct run *run, cudaStream_t stream)
{
    (void)step;
    return copy_logits(run, 4, stream);
}

static cudaError_t copy_logits_bf16(const struct step *step, const struct run *run, cudaStream_t stream)
{
    (void)step;
    return copy_logits(run, 2, stream);
}

static const char *check_vocabulary(const int64_t *dim)
{
    if (dim[V] < 1 || dim[VP] < dim[V]) return "v must be at least 1 and vp at least v";
    return dim[VP] > 131072 ? "vp must be at most 131072" : NULL;
}

// --- The chapter ----------------------------------------------------------------------------------------------------

#define STEP(launcher, launch)                               \
    {                                                        \
#launcher, launch, (void (*)(void))(launcher), false \
    }

// NAME is f32 or bf16, BYTES what an element of it has.
#define OPERATIONS(NAME, DTYPE, BYTES, FORWARD_BENCH, CAUSAL_BENCH, BACKWARD_BENCH, CLASSIFIER_BENCH)        \
    {                                                                                                        \
        .name = "08_online_softmax",                                                                         \
        .operation = "forward_" #NAME,                                                                       \
        .title = "softmax of rows: y = exp(x - max) / sum, zeros for a row of nothing but -infinity",        \
        .dims = {"rows", "cols"},                                                                            \
        .tensors = {[X] = {"x", DTYPE, IN, "rows,cols", NULL}, [Y] = {"y", DTYPE, OUT, "rows,cols", NULL}},  \
        .steps = {STEP(three_pass, launch_forward_##NAME), STEP(online, launch_forward_##NAME),              \
                  STEP(vectorized, launch_forward_##NAME), STEP(registers, launch_forward_##NAME),           \
                  STEP(short_rows, launch_forward_##NAME), STEP(split, launch_forward_##NAME),               \
                  STEP(split_shared, launch_forward_##NAME)},                                                \
        .baseline = {"device copy", copy_rows_##NAME, NULL, true},                                           \
        .check_shape = check_cols,                                                                           \
        .bytes = #BYTES "*2*rows*cols",                                                                      \
        .limit = LIMIT_MEMORY,                                                                               \
        .bench = FORWARD_BENCH,                                                                              \
    },                                                                                                       \
        {                                                                                                    \
            .name = "08_online_softmax",                                                                     \
            .operation = "causal_" #NAME,                                                                    \
            .title = "softmax of scale * x over the columns 0 to i of row i, zeros after them",              \
            .dims = {"batch", "t"},                                                                          \
            .tensors = {[CAUSAL_X] = {"x", DTYPE, IN, "batch,t,t", NULL},                                    \
                        [CAUSAL_Y] = {"y", DTYPE, OUT, "batch,t,t", NULL},                                   \
                        [CAUSAL_SCALE] = {"scale", F32, PARAM, "", NULL}},                                   \
            .steps = {STEP(causal, launch_causal_##NAME), STEP(causal_skip, launch_causal_##NAME),           \
                      STEP(causal_reverse, launch_causal_##NAME)},                                           \
            .baseline = {"device copy", copy_causal_##NAME, NULL, true},                                     \
            .check_shape = check_square,                                                                     \
            .bytes = #BYTES "*batch*(t*(t+1)/2+t*t)",                                                        \
            .limit = LIMIT_MEMORY,                                                                           \
            .bench = CAUSAL_BENCH,                                                                           \
        },                                                                                                   \
        {                                                                                                    \
            .name = "08_online_softmax",                                                                     \
            .operation = "backward_" #NAME,                                                                  \
            .title = "dx = y (dy - sum of y dy)",                                                            \
            .dims = {"rows", "cols"},                                                                        \
            .tensors = {[BACKWARD_Y] = {"y", DTYPE, IN, "rows,cols", NULL},                                  \
                        [BACKWARD_DY] = {"dy", DTYPE, IN, "rows,cols", NULL},                                \
                        [BACKWARD_DX] = {"dx", DTYPE, OUT, "rows,cols", NULL}},                              \
            .steps = {STEP(backward, launch_backward_##NAME),                                                \
                      STEP(backward_registers, launch_backward_##NAME),                                      \
                      STEP(backward_split, launch_backward_##NAME),                                          \
                      STEP(backward_shared, launch_backward_##NAME)},                                        \
            .baseline = {"device copy", copy_backward_##NAME, NULL, true},                                   \
            .check_shape = check_cols,                                                                       \
            .bytes = #BYTES "*3*rows*cols",                                                                  \
            .limit = LIMIT_MEMORY,                                                                           \
            .bench = BACKWARD_BENCH,                                                                         \
        },                                                                                                   \
        {                                                                                                    \
            .name = "08_online_softmax",                                                                     \
            .operation = "causal_backward_" #NAME,                                                           \
            .title = "dx = scale * y (dy - sum of y dy) over the columns 0 to i of row i, zeros after them", \
            .dims = {"batch", "t"},                                                                          \
            .tensors = {[BACKWARD_Y] = {"y", DTYPE, IN, "batch,t,t", NULL},                                  \
                        [BACKWARD_DY] = {"dy", DTYPE, IN, "batch,t,t", NULL},                                \
                        [BACKWARD_DX] = {"dx", DTYPE, OUT, "batch,t,t", NULL},                               \
                        [BACKWARD_SCALE] = {"scale", F32, PARAM, "", NULL}},                                 \
            .steps = {STEP(causal_backward, launch_causal_backward_##NAME)},                                 \
            .baseline = {"device copy", copy_causal_backward_##NAME, NULL, true},                            \
            .check_shape = check_square,                                                                     \
            .bytes = #BYTES "*batch*(t*(t+1)+t*t)",                                                          \
            .limit = LIMIT_MEMORY,                                                                           \
            .bench = CAUSAL_BENCH,                                                                           \
        },                                                                                                   \
    {                                                                                                        \
        .name = "08_online_softmax", .operation = "classifier_" #NAME,                                       \
        .title =                                                                                             \
            "cross entropy: loss, and in place of the logits their gradient; vp - v columns of padding",     \
        .dims = {"rows", "v", "vp"},                                                                         \
        .tensors = {[LOGITS] = {"logits", DTYPE, INOUT, "rows,vp", NULL},                                    \
                    [TARGET] = {"target", I32, IN, "rows", "v"},                                             \
                    [DLOSS] = {"dloss", F32, IN_OPTIONAL, "rows", NULL},                                     \
                    [V_PARAM] = {"v", I32, PARAM, "", NULL},                                                 \
                    [LOSS] = {"loss", F32, OUT, "rows", NULL}},                                              \
        .steps = {STEP(classifier, launch_classifier_##NAME),                                                \
                  STEP(classifier_shared, launch_classifier_##NAME),                                         \
                  STEP(classifier_split, launch_classifier_##NAME)},                                         \
        .baseline = {"device copy", copy_logits_##NAME, NULL, true}, .check_shape = check_vocabulary,        \
        .bytes = #BYTES "*rows*(v+vp)", .limit = LIMIT_MEMORY, .bench = CLASSIFIER_BENCH,                    \
    }

#define LIST(...)   \
    {               \
        __VA_ARGS__ \
    }

static const struct chapter operations[] = {
    OPERATIONS(f32, F32, 4,
               LIST("rows=131072,cols=1024", "rows=32768,cols=4096", "rows=8192,cols=16384",
                    "rows=4096,cols=32768", "rows=2048,cols=65536", "rows=1024,cols=131072"),
               LIST("batch=96,t=1024", "batch=8,t=4096"),
               LIST("rows=131072,cols=1024", "rows=32768,cols=4096", "rows=8192,cols=16384",
                    "rows=4096,cols=32768", "rows=2048,cols=65536", "rows=1024,cols=131072"),
               LIST("rows=8192,v=50257,vp=50304")),
    OPERATIONS(
        bf16, BF16, 2,
        LIST("rows=262144,cols=1024", "rows=65536,cols=4096", "rows=16384,cols=16384", "rows=8192,cols=32768",
             "rows=4096,cols=65536", "rows=2048,cols=131072"),
        LIST("batch=192,t=1024", "batch=16,t=4096"),
        LIST("rows=262144,cols=1024", "rows=65536,cols=4096", "rows=16384,cols=16384", "rows=8192,cols=32768",
             "rows=4096,cols=65536", "rows=2048,cols=131072"),
        LIST("rows=16384,v=50257,vp=50304", "rows=16384,v=50304,vp=50304", "rows=8192,v=128256,vp=128256")),
};

int main(int argc, char **argv)
{
    return chapter_main_operations(operations, sizeof operations / sizeof *operations, argc, argv);
}
