// Chapter 8: softmax in one pass, however long the row; its backward; and the classifier that needs both.
#include "../../common/harness/chapter.h"
#include "launchers.h"

enum { ROWS, COLS };                            // dimensions of forward and backward
enum { BATCH, T };                              // of the causal ones
enum { X, Y, SCALE };                           // tensors of forward and causal
enum { PROBABILITIES, DY, DX, BACKWARD_SCALE }; // of the backward ones
enum { LOGITS, TARGET, DLOSS, V_PARAM, LOSS };  // of the classifier
enum { CLASSIFIER_ROWS, V, VP };

static cudaError_t launch_forward(any_launcher *launcher, const struct run *run, cudaStream_t stream)
{
    return ((softmax_forward *)launcher)(run->type, run->data[X], run->data[Y], (int)run->dim[ROWS],
                                         (int)run->dim[COLS], stream);
}

static cudaError_t launch_causal(any_launcher *launcher, const struct run *run, cudaStream_t stream)
{
    return ((softmax_causal *)launcher)(run->type, run->data[X], run->data[Y], (float)run->param[SCALE],
                                        (int)run->dim[BATCH], (int)run->dim[T], stream);
}

static cudaError_t launch_backward(any_launcher *launcher, const struct run *run, cudaStream_t stream)
{
    return ((softmax_backward *)launcher)(run->type, run->data[PROBABILITIES], run->data[DY], run->data[DX],
                                          (int)run->dim[ROWS], (int)run->dim[COLS], stream);
}

static cudaError_t launch_causal_backward(any_launcher *launcher, const struct run *run, cudaStream_t stream)
{
    return ((softmax_causal_backward *)launcher)(run->type, run->data[PROBABILITIES], run->data[DY],
                                                 run->data[DX], (float)run->param[BACKWARD_SCALE],
                                                 (int)run->dim[BATCH], (int)run->dim[T], stream);
}

static cudaError_t launch_classifier(any_launcher *launcher, const struct run *run, cudaStream_t stream)
{
    return ((softmax_classifier *)launcher)(run->type, run->data[LOGITS], run->data[LOSS], run->data[TARGET],
                                            run->data[DLOSS], (int)run->dim[CLASSIFIER_ROWS],
                                            (int)run->dim[V], (int)run->dim[VP], stream);
}

static const char *check_cols(const int64_t *dim)
{
    return dim[COLS] > 131072 ? "cols must be at most 131072" : NULL;
}

static const char *check_square(const int64_t *dim)
{
    if (dim[T] > 16384) return "t must be at most 16384";
    return dim[BATCH] * dim[T] > INT32_MAX ? "batch * t must be below 2^31" : NULL;
}

static const char *check_vocabulary(const int64_t *dim)
{
    if (dim[V] < 1 || dim[VP] < dim[V]) return "v must be at least 1 and vp at least v";
    return dim[VP] > 131072 ? "vp must be at most 131072" : NULL;
}

static const struct step forward_steps[] = {
    STEP(softmax_forward, three_pass),   STEP(softmax_forward, online),
    STEP(softmax_forward, vectorized),   STEP(softmax_forward, registers),
    STEP(softmax_forward, short_rows),   STEP(softmax_forward, split),
    STEP(softmax_forward, split_shared), {0}};
static const struct step causal_steps[] = {STEP(softmax_causal, causal),
                                           STEP(softmax_causal, causal_skip),
                                           STEP(softmax_causal, causal_reverse),
                                           {0}};
static const struct step backward_steps[] = {STEP(softmax_backward, backward),
                                             STEP(softmax_backward, backward_registers),
                                             STEP(softmax_backward, backward_split),
                                             STEP(softmax_backward, backward_shared),
                                             {0}};
static const struct step causal_backward_steps[] = {STEP(softmax_causal_backward, causal_backward), {0}};
static const struct step classifier_steps[] = {STEP(softmax_classifier, classifier),
                                               STEP(softmax_classifier, classifier_shared),
                                               STEP(softmax_classifier, classifier_split),
                                               {0}};

// What all operations have alike, those on rows, and those on batches of squares.
#define SOFTMAX .types = {F32, BF16}, .baseline = DEVICE_COPY, .limit = LIMIT_MEMORY
#define SOFTMAX_ROWS                                                                            \
    SOFTMAX, .dims = {"rows", "cols"}, .check_shape = check_cols,                               \
             .bench = {"rows=131072,cols=1024", "rows=32768,cols=4096", "rows=8192,cols=16384", \
                       "rows=4096,cols=32768",  "rows=2048,cols=65536", "rows=1024,cols=131072"}
#define SOFTMAX_SQUARES                                           \
    SOFTMAX, .dims = {"batch", "t"}, .check_shape = check_square, \
             .bench = {"batch=96,t=1024", "batch=8,t=4096"}

static const struct operation operations[] = {
    {
        .name = "forward",
        .title = "softmax of rows: y = exp(x - max) / sum, zeros for a row of nothing but -infinity",
        SOFTMAX_ROWS,
        .tensors = {[X] = {"x", RUN_TYPE, IN, "rows,cols"}, [Y] = {"y", RUN_TYPE, OUT, "rows,cols"}},
        .steps = forward_steps,
        .launch = launch_forward,
        .bytes = "2*size*rows*cols",
    },
    {
        .name = "causal",
        .title = "softmax of scale * x over the columns 0 to i of row i, zeros after them",
        SOFTMAX_SQUARES,
        .tensors = {[X] = {"x", RUN_TYPE, IN, "batch,t,t"},
                    [Y] = {"y", RUN_TYPE, OUT, "batch,t,t"},
                    [SCALE] = {"scale", F32, PARAM, ""}},
        .steps = causal_steps,
        .launch = launch_causal,
        .bytes = "size*batch*(t*(t+1)/2+t*t)",
    },
    {
        .name = "backward",
        .title = "dx = y (dy - sum of y dy)",
        SOFTMAX_ROWS,
        .tensors = {[PROBABILITIES] = {"y", RUN_TYPE, IN, "rows,cols"},
                    [DY] = {"dy", RUN_TYPE, IN, "rows,cols"},
                    [DX] = {"dx", RUN_TYPE, OUT, "rows,cols"}},
        .steps = backward_steps,
        .launch = launch_backward,
        .bytes = "3*size*rows*cols",
    },
    {
        .name = "causal_backward",
        .title = "dx = scale * y (dy - sum of y dy) over the columns 0 to i of row i, zeros after them",
        SOFTMAX_SQUARES,
        .tensors = {[PROBABILITIES] = {"y", RUN_TYPE, IN, "batch,t,t"},
                    [DY] = {"dy", RUN_TYPE, IN, "batch,t,t"},
                    [DX] = {"dx", RUN_TYPE, OUT, "batch,t,t"},
                    [BACKWARD_SCALE] = {"scale", F32, PARAM, ""}},
        .steps = causal_backward_steps,
        .launch = launch_causal_backward,
        .bytes = "size*batch*(t*(t+1)+t*t)",
    },
    {
        .name = "classifier",
        .title = "cross entropy: loss, and in place of the logits their gradient; vp - v columns of padding",
        SOFTMAX,
        .dims = {"rows", "v", "vp"},
        .tensors = {[LOGITS] = {"logits", RUN_TYPE, INOUT, "rows,vp"},
                    [TARGET] = {"target", I32, IN, "rows", .below = "v"},
                    [DLOSS] = {"dloss", F32, IN_OPTIONAL, "rows"},
                    [V_PARAM] = {"v", I32, PARAM, ""},
                    [LOSS] = {"loss", F32, OUT, "rows"}},
        .steps = classifier_steps,
        .launch = launch_classifier,
        .check_shape = check_vocabulary,
        .bytes = "size*rows*(v+vp)",
        .bench = {"rows=8192,v=50257,vp=50304", "rows=8192,v=50304,vp=50304", "rows=8192,v=128256,vp=128256"},
    },
};

CHAPTER(operations)
