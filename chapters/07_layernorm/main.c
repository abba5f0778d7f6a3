// Chapter 7: normalization of rows, and a backward that sums along the rows and across them.
#include "../../common/harness/chapter.h"
#include "launchers.h"

enum { ROWS, C };
enum { INP, WEIGHT, BIAS, OUTPUT, MEAN, RSTD }; // of layernorm_forward
enum { INP1, INP2, FUSED_WEIGHT, FUSED_BIAS, RESIDUAL, FUSED_OUTPUT, FUSED_MEAN, FUSED_RSTD };
enum { RMS_INP, RMS_WEIGHT, RMS_OUTPUT, RMS_RSTD };                     // of rmsnorm_forward
enum { X, DOUT, W, SAVED_MEAN, SAVED_RSTD, DINP, DWEIGHT, DBIAS };      // of layernorm_backward, fused too
enum { RMS_X, RMS_DOUT, RMS_W, RMS_SAVED_RSTD, RMS_DINP, RMS_DWEIGHT }; // of rmsnorm_backward

LAUNCH(layernorm_forward, run->data[INP], run->data[WEIGHT], run->data[BIAS], run->data[OUTPUT],
       run->data[MEAN], run->data[RSTD], run->dim[ROWS], run->dim[C])
LAUNCH(fused_residual_forward, run->data[INP1], run->data[INP2], run->data[FUSED_WEIGHT],
       run->data[FUSED_BIAS], run->data[RESIDUAL], run->data[FUSED_OUTPUT], run->data[FUSED_MEAN],
       run->data[FUSED_RSTD], run->dim[ROWS], run->dim[C])
LAUNCH(rmsnorm_forward, run->data[RMS_INP], run->data[RMS_WEIGHT], run->data[RMS_OUTPUT], run->data[RMS_RSTD],
       run->dim[ROWS], run->dim[C])
LAUNCH(layernorm_backward, run->data[X], run->data[DOUT], run->data[W], run->data[SAVED_MEAN],
       run->data[SAVED_RSTD], run->data[DINP], run->data[DWEIGHT], run->data[DBIAS], run->dim[ROWS],
       run->dim[C])
LAUNCH(fused_residual_backward, run->data[X], run->data[DOUT], run->data[W], run->data[SAVED_MEAN],
       run->data[SAVED_RSTD], run->data[DINP], run->data[DWEIGHT], run->data[DBIAS], run->dim[ROWS],
       run->dim[C])
LAUNCH(rmsnorm_backward, run->data[RMS_X], run->data[RMS_DOUT], run->data[RMS_W], run->data[RMS_SAVED_RSTD],
       run->data[RMS_DINP], run->data[RMS_DWEIGHT], run->dim[ROWS], run->dim[C])

// 16384 and 32768 positions, of GPT-2's smallest and largest models and of one with 4096 channels.
#define NORM                                                                                     \
    .types = {F32, BF16}, .dims = {"rows", "c"}, .baseline = DEVICE_COPY, .limit = LIMIT_MEMORY, \
    .bench = {"rows=16384,c=768", "rows=16384,c=1600", "rows=16384,c=4096",                      \
              "rows=32768,c=768", "rows=32768,c=1600", "rows=32768,c=4096"}

static const struct operation operations[] = {
    {
        .name = "layernorm_forward",
        .title = "out = (inp - mean) rstd weight + bias of every row",
        NORM,
        .tensors = {[INP] = {"inp", RUN_TYPE, IN, "rows,c"},
                    [WEIGHT] = {"weight", RUN_TYPE, IN, "c"},
                    [BIAS] = {"bias", RUN_TYPE, IN, "c"},
                    [OUTPUT] = {"out", RUN_TYPE, OUT, "rows,c"},
                    [MEAN] = {"mean", F32, OUT, "rows"},
                    [RSTD] = {"rstd", F32, OUT, "rows"}},
        .steps =
            STEPS(STEP(1, layernorm_forward, layernorm), STEP(2, layernorm_forward, layernorm_registers)),
        .launch = launch_layernorm_forward,
        .bytes = "2*size*rows*c+2*size*c+8*rows",
    },
    {
        .name = "fused_residual_forward",
        .title = "residual = inp1 + inp2, and the layernorm of it",
        NORM,
        .tensors = {[INP1] = {"inp1", RUN_TYPE, IN, "rows,c"},
                    [INP2] = {"inp2", RUN_TYPE, IN, "rows,c"},
                    [FUSED_WEIGHT] = {"weight", RUN_TYPE, IN, "c"},
                    [FUSED_BIAS] = {"bias", RUN_TYPE, IN, "c"},
                    [RESIDUAL] = {"residual", RUN_TYPE, OUT, "rows,c"},
                    [FUSED_OUTPUT] = {"out", RUN_TYPE, OUT, "rows,c"},
                    [FUSED_MEAN] = {"mean", F32, OUT, "rows"},
                    [FUSED_RSTD] = {"rstd", F32, OUT, "rows"}},
        .steps = STEPS(STEP(3, fused_residual_forward, layernorm_residual)),
        .launch = launch_fused_residual_forward,
        .bytes = "4*size*rows*c+2*size*c+8*rows",
    },
    {
        .name = "rmsnorm_forward",
        .title = "out = inp rstd weight of every row",
        NORM,
        .tensors = {[RMS_INP] = {"inp", RUN_TYPE, IN, "rows,c"},
                    [RMS_WEIGHT] = {"weight", RUN_TYPE, IN, "c"},
                    [RMS_OUTPUT] = {"out", RUN_TYPE, OUT, "rows,c"},
                    [RMS_RSTD] = {"rstd", F32, OUT, "rows"}},
        .steps = STEPS(STEP(4, rmsnorm_forward, rmsnorm)),
        .launch = launch_rmsnorm_forward,
        .bytes = "2*size*rows*c+size*c+4*rows",
    },
    {
        .name = "layernorm_backward",
        .title = "dinp of layernorm_forward, and dweight and dbias, in fp32, += their sums over the rows",
        NORM,
        .tensors = {[X] = {"inp", RUN_TYPE, IN, "rows,c"},
                    [DOUT] = {"dout", RUN_TYPE, IN, "rows,c"},
                    [W] = {"weight", RUN_TYPE, IN, "c"},
                    [SAVED_MEAN] = {"mean", F32, IN, "rows"},
                    [SAVED_RSTD] = {"rstd", F32, IN, "rows"},
                    [DINP] = {"dinp", RUN_TYPE, OUT, "rows,c"},
                    [DWEIGHT] = {"dweight", F32, INOUT, "c"},
                    [DBIAS] = {"dbias", F32, INOUT, "c"}},
        .steps = STEPS(
            STEP(5, layernorm_backward, gradient_atomics), STEP(6, layernorm_backward, gradient_registers),
            STEP(7, layernorm_backward, gradient_partials), STEP(8, layernorm_backward, gradient_ahead)),
        .launch = launch_layernorm_backward,
        .bytes = "3*size*rows*c+size*c+16*c+8*rows",
    },
    {
        .name = "fused_residual_backward",
        .title =
            "dresidual += dinp of layernorm_forward, and dweight and dbias, in fp32, += their sums over the rows",
        NORM,
        .tensors = {[X] = {"inp", RUN_TYPE, IN, "rows,c"},
                    [DOUT] = {"dout", RUN_TYPE, IN, "rows,c"},
                    [W] = {"weight", RUN_TYPE, IN, "c"},
                    [SAVED_MEAN] = {"mean", F32, IN, "rows"},
                    [SAVED_RSTD] = {"rstd", F32, IN, "rows"},
                    [DINP] = {"dresidual", RUN_TYPE, INOUT, "rows,c"},
                    [DWEIGHT] = {"dweight", F32, INOUT, "c"},
                    [DBIAS] = {"dbias", F32, INOUT, "c"}},
        .steps = STEPS(STEP(9, fused_residual_backward, gradient_residual)),
        .launch = launch_fused_residual_backward,
        .bytes = "4*size*rows*c+size*c+16*c+8*rows",
    },
    {
        .name = "rmsnorm_backward",
        .title = "dinp of rmsnorm_forward, and dweight, in fp32, += its sum over the rows",
        NORM,
        .tensors = {[RMS_X] = {"inp", RUN_TYPE, IN, "rows,c"},
                    [RMS_DOUT] = {"dout", RUN_TYPE, IN, "rows,c"},
                    [RMS_W] = {"weight", RUN_TYPE, IN, "c"},
                    [RMS_SAVED_RSTD] = {"rstd", F32, IN, "rows"},
                    [RMS_DINP] = {"dinp", RUN_TYPE, OUT, "rows,c"},
                    [RMS_DWEIGHT] = {"dweight", F32, INOUT, "c"}},
        .steps = STEPS(STEP(10, rmsnorm_backward, rmsnorm_gradient)),
        .launch = launch_rmsnorm_backward,
        .bytes = "3*size*rows*c+size*c+8*c+4*rows",
    },
};

CHAPTER(operations)
