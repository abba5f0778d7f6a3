// Chapter 18: what becomes of numbers that are to be 8 bits wide, and of their scales.
#include "../../common/harness/chapter.h"
#include "launchers.h"

enum { N, LENGTH };  // dimensions of per_tensor and delayed
enum { ROWS, COLS }; // of the others

#define DATA(name)  run_data(run, name)
#define PARAM(name) run_param(run, name, 0)
#define SQUARE      (int)run->dim[ROWS], (int)run->dim[COLS]

static struct delayed_state state(const struct run *run)
{
    return (struct delayed_state){
        .scale = DATA("scale"),
        .history = DATA("history"),
        .position = DATA("position"),
        .length = (int)run->dim[LENGTH],
    };
}

LAUNCH(per_tensor, DATA("x"), DATA("out"), DATA("scale"), run->dim[N])
LAUNCH(delayed_scaling, DATA("x"), DATA("out"), DATA("used"), run->dim[N], state(run), PARAM("margin"),
       PARAM("most_recent") != 0)
LAUNCH(activations, DATA("x"), DATA("out"), DATA("scale"), SQUARE, PARAM("pow2") != 0)
LAUNCH(weights, DATA("x"), DATA("out"), DATA("scale"), SQUARE, PARAM("pow2") != 0)
LAUNCH(both_ways, DATA("x"), DATA("out"), DATA("scale"), DATA("out_t"), DATA("scale_t"), SQUARE,
       PARAM("pow2") != 0)
typedef activation_function swiglu_function, gelu_function;
LAUNCH(swiglu_function, DATA("x"), DATA("out"), DATA("scale"), SQUARE, true, PARAM("pow2") != 0)
LAUNCH(gelu_function, DATA("x"), DATA("out"), DATA("scale"), SQUARE, false, PARAM("pow2") != 0)

static const char *check_rows(const int64_t *dim)
{
    if (dim[ROWS] > INT32_MAX - 127 || dim[COLS] > INT32_MAX - 127)
        return "rows and columns must be at most 2147483520, so that those of a square are ints";
    return dim[COLS] % 16
               ? "k must be a multiple of 16, so that every row of out begins at a multiple of 16 bytes"
               : NULL;
}

// Two right steps may round to neighbours, which the comparison allows without a share of the RMS.
#define FP8  .types = {E4M3, E5M2}, .baseline = DEVICE_COPY, .limit = LIMIT_MEMORY
#define FLAT FP8, .dims = {"n"}, .bench = {"n=29360128", "n=117440512", "n=469762048"}
#define MATRIX                                          \
    FP8, .dims = {"m", "k"}, .check_shape = check_rows, \
         .bench = {"m=4096,k=7168", "m=16384,k=7168", "m=65536,k=7168"}
#define POW2                   \
    {                          \
        "pow2", I32, PARAM, "" \
    }
#define OUT_MK                                     \
    {"out", RUN_TYPE, OUT, "m,k"},                 \
    {                                              \
        "scale", F32, OUT, "(k+127)/128,(m+3)/4*4" \
    }
#define SCALES "4*((k+127)/128)*((m+3)/4*4)"

static const struct operation operations[] = {
    {
        .name = "per_tensor",
        .title = "x in 8 bits, and one scale, of x itself",
        FLAT,
        .tensors = {{"x", BF16, IN, "n"}, {"out", RUN_TYPE, OUT, "n"}, {"scale", F32, OUT, "1"}},
        .steps = STEPS(STEP(1, per_tensor, two_passes)),
        .launch = launch_per_tensor,
        .bytes = "5*n", // x twice: before all of it has been read, nobody knows the first number's scale
    },
    {
        .name = "delayed",
        .title = "x in 8 bits with the scale of the calls before, and the scale of the next",
        FP8,
        .dims = {"n", "h"},
        .bench = {"n=29360128,h=16", "n=117440512,h=16", "n=469762048,h=1024"},
        .tensors = {{"x", BF16, IN, "n"},
                    {"out", RUN_TYPE, OUT, "n"},
                    {"used", F32, OUT, "1"},
                    {"scale", F32, INOUT, "1", .positive = true},
                    {"history", F32, INOUT, "h", .positive = true},
                    {"position", I32, INOUT, "1", .below = "h"},
                    {"margin", I32, PARAM, ""},
                    {"most_recent", I32, PARAM, ""}},
        .steps = STEPS(STEP(2, delayed_scaling, delayed)),
        .launch = launch_delayed_scaling,
        .bytes = "3*n",
    },
    {
        .name = "activations",
        .title = "x in 8 bits, and a scale for each 128 neighbours of a row",
        MATRIX,
        .tensors = {{"x", BF16, IN, "m,k"}, OUT_MK, POW2},
        .steps = STEPS(STEP(3, activations, groups_of_128)),
        .launch = launch_activations,
        .bytes = "3*m*k+" SCALES,
    },
    {
        .name = "weights",
        .title = "x in 8 bits, and a scale for each square of 128 x 128",
        FP8,
        .dims = {"n", "k"},
        .check_shape = check_rows,
        .bench = {"n=4096,k=7168", "n=24576,k=1536", "n=7168,k=16384", "n=32768,k=16384"},
        .tensors = {{"x", BF16, IN, "n,k"},
                    {"out", RUN_TYPE, OUT, "n,k"},
                    {"scale", F32, OUT, "(n+127)/128,(k+127)/128"},
                    POW2},
        .steps = STEPS(STEP(4, weights, squares_of_128)),
        .launch = launch_weights,
        .bytes = "3*n*k",
    },
    {
        .name = "transposed",
        .title = "what activations makes of x, and what it makes of x transposed",
        MATRIX,
        .tensors = {{"x", BF16, IN, "m,k"},
                    OUT_MK,
                    {"out_t", RUN_TYPE, OUT, "k,(m+15)/16*16"},
                    {"scale_t", F32, OUT, "(m+127)/128,k"},
                    POW2},
        .steps = STEPS(STEP(5, both_ways, transposed)),
        .launch = launch_both_ways,
        .bytes = "4*m*k+2*" SCALES,
    },
    {
        .name = "swiglu",
        .title = "silu of the left half of x times its right half, in 8 bits with scales as in activations",
        MATRIX,
        .tensors = {{"x", BF16, IN, "m,2*k"}, OUT_MK, POW2},
        .steps = STEPS(STEP(6, swiglu_function, fused)),
        .launch = launch_swiglu_function,
        .bytes = "5*m*k+" SCALES,
    },
    {
        .name = "gelu",
        .title = "GELU of x in 8 bits with scales as in activations",
        MATRIX,
        .tensors = {{"x", BF16, IN, "m,k"}, OUT_MK, POW2},
        .steps = STEPS(STEP(6, gelu_function, fused)),
        .launch = launch_gelu_function,
        .bytes = "3*m*k+" SCALES,
    },
};

CHAPTER(operations)
