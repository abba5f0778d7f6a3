// Chapter 6: the layers of GPT-2 that compute each element by itself, and what bounds them: memory.
#include "../../common/harness/chapter.h"
#include "launchers.h"

enum { N };                         // dimension of residual and gelu
enum { B, T, C, V };                // of the encoder
enum { INP1, INP2, OUT_SUM };       // tensors of residual_forward
enum { DOUT, DINP1, DINP2 };        // of residual_backward
enum { INP, GELU_OUT };             // of gelu_forward
enum { GELU_INP, GELU_DOUT, DINP }; // of gelu_backward
enum { TOKENS, WTE, WPE, ENCODED };
enum { BACKWARD_TOKENS, DENCODED, DWTE, DWPE };

LAUNCH(residual_forward, run->data[INP1], run->data[INP2], run->data[OUT_SUM], run->dim[N])
LAUNCH(residual_backward, run->data[DOUT], run->data[DINP1], run->data[DINP2], run->dim[N])
LAUNCH(gelu_forward, run->data[INP], run->data[GELU_OUT], run->dim[N])
LAUNCH(gelu_backward, run->data[GELU_INP], run->data[GELU_DOUT], run->data[DINP], run->dim[N])
LAUNCH(encoder_forward, run->data[TOKENS], run->data[WTE], run->data[WPE], run->data[ENCODED], run->dim[B],
       run->dim[T], run->dim[C])
LAUNCH(encoder_backward, run->data[BACKWARD_TOKENS], run->data[DENCODED], run->data[DWTE], run->data[DWPE],
       run->dim[B], run->dim[T], run->dim[C], run->dim[V])

static const char *check_positions(const int64_t *dim)
{
    return dim[B] * dim[T] > INT32_MAX ? "b * t must be below 2^31" : NULL;
}

// 16384 and 32768 positions, of GPT-2's smallest and largest models and of one with 4096 channels.
#define LAYER .types = {F32, BF16}, .baseline = DEVICE_COPY, .limit = LIMIT_MEMORY
#define FLAT              \
    LAYER, .dims = {"n"}, \
           .bench = {"n=12582912", "n=26214400", "n=67108864", "n=25165824", "n=52428800", "n=134217728"}
#define ENCODER                                                                                            \
    LAYER,                                                                                                 \
        .dims = {"b", "t", "c", "v"}, .check_shape = check_positions,                                      \
        .bench = {"b=16,t=1024,c=768,v=50304", "b=16,t=1024,c=1600,v=50304", "b=16,t=1024,c=4096,v=50304", \
                  "b=32,t=1024,c=768,v=50304", "b=32,t=1024,c=1600,v=50304", "b=32,t=1024,c=4096,v=50304"}

static const struct operation operations[] = {
    {
        .name = "residual_forward",
        .title = "out = inp1 + inp2",
        FLAT,
        .tensors = {[INP1] = {"inp1", RUN_TYPE, IN, "n"},
                    [INP2] = {"inp2", RUN_TYPE, IN, "n"},
                    [OUT_SUM] = {"out", RUN_TYPE, OUT, "n"}},
        .steps = STEPS(STEP(1, residual_forward, residual), STEP(2, residual_forward, residual_packs),
                       STEP(3, residual_forward, residual_stream)),
        .launch = launch_residual_forward,
        .bytes = "3*size*n",
    },
    {
        .name = "residual_backward",
        .title = "dinp1 += dout, dinp2 += dout",
        FLAT,
        .tensors = {[DOUT] = {"dout", RUN_TYPE, IN, "n"},
                    [DINP1] = {"dinp1", RUN_TYPE, INOUT, "n"},
                    [DINP2] = {"dinp2", RUN_TYPE, INOUT, "n"}},
        .steps = STEPS(STEP(4, residual_backward, residual_gradient)),
        .launch = launch_residual_backward,
        .bytes = "5*size*n",
    },
    {
        .name = "gelu_forward",
        .title = "out = 0.5 inp (1 + tanh(sqrt(2 / pi) (inp + 0.044715 inp^3)))",
        FLAT,
        .tensors = {[INP] = {"inp", RUN_TYPE, IN, "n"}, [GELU_OUT] = {"out", RUN_TYPE, OUT, "n"}},
        .steps = STEPS(STEP(5, gelu_forward, gelu), STEP(6, gelu_forward, gelu_exp2)),
        .launch = launch_gelu_forward,
        .bytes = "2*size*n",
    },
    {
        .name = "gelu_backward",
        .title = "dinp = dout * the derivative of gelu_forward at inp",
        FLAT,
        .tensors = {[GELU_INP] = {"inp", RUN_TYPE, IN, "n"},
                    [GELU_DOUT] = {"dout", RUN_TYPE, IN, "n"},
                    [DINP] = {"dinp", RUN_TYPE, OUT, "n"}},
        .steps = STEPS(STEP(7, gelu_backward, gelu_gradient)),
        .launch = launch_gelu_backward,
        .bytes = "3*size*n",
    },
    {
        .name = "encoder_forward",
        .title = "out = the row of wte that the token names + the row of wpe of its position",
        ENCODER,
        .tensors = {[TOKENS] = {"inp", I32, IN, "b,t", .below = "v"},
                    [WTE] = {"wte", RUN_TYPE, IN, "v,c"},
                    [WPE] = {"wpe", RUN_TYPE, IN, "t,c"},
                    [ENCODED] = {"out", RUN_TYPE, OUT, "b,t,c"}},
        .steps = STEPS(STEP(8, encoder_forward, encoder), STEP(9, encoder_forward, encoder_rows)),
        .launch = launch_encoder_forward,
        .bytes = "4*b*t+size*c*(2*b*t+t)", // as if no token came twice
    },
    {
        .name = "encoder_backward",
        .title = "dwte and dwpe, in fp32, += what the rows of out hand back",
        ENCODER,
        .tensors = {[BACKWARD_TOKENS] = {"inp", I32, IN, "b,t", .below = "v"},
                    [DENCODED] = {"dout", RUN_TYPE, IN, "b,t,c"},
                    [DWTE] = {"dwte", F32, INOUT, "v,c"},
                    [DWPE] = {"dwpe", F32, INOUT, "t,c"}},
        .steps =
            STEPS(STEP(10, encoder_backward, encoder_atomics), STEP(11, encoder_backward, encoder_positions),
                  STEP(12, encoder_backward, encoder_buckets), STEP(13, encoder_backward, encoder_sorted),
                  STEP(14, encoder_backward, encoder_chunks), STEP(15, encoder_backward, encoder_ahead)),
        .launch = launch_encoder_backward,
        .bytes = "4*b*t+size*b*t*c+8*c*(b*t+t)", // the same: rows of dwte and dwpe are read and written once
    },
};

CHAPTER(operations)
