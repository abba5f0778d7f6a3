// Chapter 8: softmax in one pass, however long the row; its backward; and the classifier that needs both.
#include "../../common/harness/chapter.h"

// The launchers in the .cu files; arrays in device memory, float for F32 and __nv_bfloat16 for BF16.
// Rows of x, y, dy and dx are (rows, cols); batch of (t, t) matrices; logits are (rows, vp), of which v columns count.
typedef cudaError_t forward(const void *x, void *y, int rows, int cols, cudaStream_t stream);
typedef cudaError_t causal(const void *x, void *y, float scale, int batch, int t, cudaStream_t stream);
typedef cudaError_t backward(const void *y, const void *dy, void *dx, int rows, int cols,
                             cudaStream_t stream);
typedef cudaError_t causal_backward(const void *y, const void *dy, void *dx, float scale, int batch, int t,
                                    cudaStream_t stream);
typedef cudaError_t classifier(void *logits, float *loss, const int *target, const float *dloss, int rows,
                               int v, int vp, cudaStream_t stream);
forward softmax_three_pass_f32, softmax_online_f32, softmax_registers_f32, softmax_split_f32;
forward softmax_three_pass_bf16, softmax_online_bf16, softmax_registers_bf16, softmax_split_bf16;
causal softmax_causal_f32, softmax_causal_bf16;
backward softmax_backward_f32, softmax_backward_bf16;
causal_backward softmax_causal_backward_f32, softmax_causal_backward_bf16;
classifier classifier_f32, classifier_bf16;

// Copies `bytes` on the device: what an operation that reads half of them and writes half cannot be faster than.
static cudaError_t copy(void *dst, const void *src, size_t bytes, cudaStream_t stream)
{
    return cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDeviceToDevice, stream);
}

// --- Forward --------------------------------------------------------------------------------------------------------

enum { X, Y };
enum { ROWS, COLS };

static cudaError_t launch_forward(const struct step *step, const struct run *run, cudaStream_t stream)
{
    return ((forward *)step->kernel)(run->data[X], run->data[Y], (int)run->dim[ROWS], (int)run->dim[COLS],
                                     stream);
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

static cudaError_t launch_causal(const struct step *step, const struct run *run, cudaStream_t stream)
{
    return ((causal *)step->kernel)(run->data[CAUSAL_X], run->data[CAUSAL_Y], (float)run->param[CAUSAL_SCALE],
                                    (int)run->dim[BATCH], (int)run->dim[T], stream);
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

static cudaError_t launch_backward(const struct step *step, const struct run *run, cudaStream_t stream)
{
    return ((backward *)step->kernel)(run->data[BACKWARD_Y], run->data[BACKWARD_DY], run->data[BACKWARD_DX],
                                      (int)run->dim[ROWS], (int)run->dim[COLS], stream);
}

static cudaError_t launch_causal_backward(const struct step *step, const struct run *run, cudaStream_t stream)
{
    return ((causal_backward *)step->kernel)(run->data[BACKWARD_Y], run->data[BACKWARD_DY],
                                             run->data[BACKWARD_DX], (float)run->param[BACKWARD_SCALE],
                                             (int)run->dim[BATCH], (int)run->dim[T], stream);
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

static cudaError_t launch_classifier(const struct step *step, const struct run *run, cudaStream_t stream)
{
    return ((classifier *)step->kernel)(run->data[LOGITS], run->data[LOSS], run->data[TARGET],
                                        run->data[DLOSS], (int)run->dim[CLASSIFIER_ROWS], (int)run->dim[V],
                                        (int)run->dim[VP], stream);
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

#define KERNEL(function) ((void (*)(void))(function))

// NAME is f32 or bf16, BYTES what an element of it has.
#define OPERATIONS(NAME, DTYPE, BYTES, FORWARD_BENCH, CAUSAL_BENCH, BACKWARD_BENCH, CLASSIFIER_BENCH)        \
    {                                                                                                        \
        .name = "08_online_softmax",                                                                         \
        .operation = "forward_" #NAME,                                                                       \
        .title = "softmax of rows: y = exp(x - max) / sum, zeros for a row of nothing but -infinity",        \
        .dims = {"rows", "cols"},                                                                            \
        .tensors = {[X] = {"x", DTYPE, IN, "rows,cols", NULL}, [Y] = {"y", DTYPE, OUT, "rows,cols", NULL}},  \
        .steps = {{"three_pass", launch_forward, KERNEL(softmax_three_pass_##NAME), false},                  \
                  {"online", launch_forward, KERNEL(softmax_online_##NAME), false},                          \
                  {"registers", launch_forward, KERNEL(softmax_registers_##NAME), false},                    \
                  {"split", launch_forward, KERNEL(softmax_split_##NAME), false}},                           \
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
            .steps = {{"causal", launch_causal, KERNEL(softmax_causal_##NAME), false}},                      \
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
            .steps = {{"backward", launch_backward, KERNEL(softmax_backward_##NAME), false}},                \
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
            .steps = {{"causal_backward", launch_causal_backward, KERNEL(softmax_causal_backward_##NAME),    \
                       false}},                                                                              \
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
        .steps = {{"classifier", launch_classifier, KERNEL(classifier_##NAME), false}},                      \
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
