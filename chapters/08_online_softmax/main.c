// Chapter 8: softmax in one pass, however long the row; its backward; and the classifier that needs both.
#include "../../common/harness/chapter.h"
#include "launchers.h"

enum { ROWS, COLS };                            // dimensions of forward and backward
enum { BATCH, T };                              // of the causal ones
enum { X, Y, SCALE };                           // tensors of forward and causal
enum { PROBABILITIES, DY, DX, BACKWARD_SCALE }; // of the backward ones
enum { LOGITS, TARGET, DLOSS, V_PARAM, LOSS };  // of the classifier
enum { CLASSIFIER_ROWS, V, VP };

LAUNCH(softmax_forward, run->data[X], run->data[Y], run->dim[ROWS], run->dim[COLS])
LAUNCH(softmax_causal, run->data[X], run->data[Y], run->param[SCALE], run->dim[BATCH], run->dim[T])
LAUNCH(softmax_backward, run->data[PROBABILITIES], run->data[DY], run->data[DX], run->dim[ROWS],
       run->dim[COLS])
LAUNCH(softmax_causal_backward, run->data[PROBABILITIES], run->data[DY], run->data[DX],
       run->param[BACKWARD_SCALE], run->dim[BATCH], run->dim[T])
LAUNCH(softmax_classifier, run->data[LOGITS], run->data[LOSS], run->data[TARGET], run->data[DLOSS],
       run->dim[CLASSIFIER_ROWS], run->dim[V], run->dim[VP])

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

// What all operations have alike, those on rows, and those on batches of squares.
#define SOFTMAX .types = {F32, BF16}, .baseline = DEVICE_COPY, .limit = LIMIT_MEMORY
#define SOFTMAX_ROWS                                                                            \
    SOFTMAX, .dims = {"rows", "cols"}, .check_shape = check_cols,                               \
             .bench = {"rows=131072,cols=1024", "rows=65536,cols=2048", "rows=32768,cols=4096", \
                       "rows=16384,cols=8192",  "rows=8192,cols=16384", "rows=4096,cols=32768", \
                       "rows=2048,cols=65536",  "rows=1024,cols=131072"}
#define SOFTMAX_SQUARES                                           \
    SOFTMAX, .dims = {"batch", "t"}, .check_shape = check_square, \
             .bench = {"batch=96,t=1024", "batch=8,t=4096"}

static const struct operation operations[] = {
    {
        .name = "forward",
        .title = "softmax of rows: y = exp(x - max) / sum, zeros for a row of nothing but -infinity",
        SOFTMAX_ROWS,
        .tensors = {[X] = {"x", RUN_TYPE, IN, "rows,cols"}, [Y] = {"y", RUN_TYPE, OUT, "rows,cols"}},
        .steps =
            STEPS(STEP(1, softmax_forward, three_pass), STEP(2, softmax_forward, online),
                  STEP(3, softmax_forward, vectorized), STEP(4, softmax_forward, registers),
                  STEP(5, softmax_forward, short_rows), STEP(6, softmax_forward, split),
                  STEP(7, softmax_forward, split_shared), STEP(19, softmax_forward, cluster, .needs = 90)),
        .launch = launch_softmax_forward,
        .bytes = "2*size*rows*cols",
    },
    {
        .name = "causal",
        .title = "softmax of scale * x over the columns 0 to i of row i, zeros after them",
        SOFTMAX_SQUARES,
        .tensors = {[X] = {"x", RUN_TYPE, IN, "batch,t,t"},
                    [Y] = {"y", RUN_TYPE, OUT, "batch,t,t"},
                    [SCALE] = {"scale", F32, PARAM, ""}},
        .steps = STEPS(STEP(8, softmax_causal, causal), STEP(9, softmax_causal, causal_skip),
                       STEP(10, softmax_causal, causal_reverse)),
        .launch = launch_softmax_causal,
        .bytes = "size*batch*(t*(t+1)/2+t*t)",
    },
    {
        .name = "backward",
        .title = "dx = y (dy - sum of y dy)",
        SOFTMAX_ROWS,
        .tensors = {[PROBABILITIES] = {"y", RUN_TYPE, IN, "rows,cols"},
                    [DY] = {"dy", RUN_TYPE, IN, "rows,cols"},
                    [DX] = {"dx", RUN_TYPE, OUT, "rows,cols"}},
        .steps =
            STEPS(STEP(11, softmax_backward, backward), STEP(12, softmax_backward, backward_registers),
                  STEP(13, softmax_backward, backward_split), STEP(14, softmax_backward, backward_shared),
                  STEP(20, softmax_backward, backward_cluster, .needs = 90)),
        .launch = launch_softmax_backward,
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
        .steps = STEPS(STEP(15, softmax_causal_backward, causal_backward)),
        .launch = launch_softmax_causal_backward,
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
        .steps =
            STEPS(STEP(16, softmax_classifier, classifier), STEP(17, softmax_classifier, classifier_shared),
                  STEP(18, softmax_classifier, classifier_split),
                  STEP(21, softmax_classifier, classifier_cluster, .needs = 90)),
        .launch = launch_softmax_classifier,
        .check_shape = check_vocabulary,
        .bytes = "size*rows*(v+vp)",
        .bench = {"rows=8192,v=50257,vp=50304", "rows=8192,v=50304,vp=50304", "rows=8192,v=128256,vp=128256"},
    },
};

CHAPTER(operations)
