// Chapter 21: attention of numbers of 8 bits.
#include "../../common/harness/attention.h"
#include "baseline.h"
#include "launchers.h"

static cudaError_t launch(any_launcher *launcher, const struct run *run, cudaStream_t stream)
{
    const struct fp8_attention f = {
        .a = attention_of(run),
        .scale_Q = run_data(run, "scale_Q"),
        .scale_K = run_data(run, "scale_K"),
        .scale_V = run_data(run, "scale_V"),
    };
    return ((fp8_attention_launcher *)launcher)(&f, stream);
}

static cudaError_t launch_bf16(const struct run *run, cudaStream_t stream)
{
    const struct attention a = attention_of(run);
    return attention_in_bf16(&a, stream);
}

static cudaError_t launch_rotation(any_launcher *launcher, const struct run *run, cudaStream_t stream)
{
    const struct rotation r = {
        .x = run_data(run, "x"),
        .signs = run_data(run, "signs"),
        .out = run_data(run, "out"),
        .scale = run_data(run, "scale"),
        .batch = (int)run_dim(run, "b", 0),
        .len = (int)run_dim(run, "s", 0),
        .heads = (int)run_dim(run, "h", 0),
        .head_dim = (int)run_dim(run, "d", 0),
        .rotate = run_param(run, "rotate", 0) != 0,
    };
    return ((rotation_launcher *)launcher)(&r, stream);
}

static const char *check_rotation(const int64_t *dim)
{
    enum { BATCH, LEN, HEADS, HEAD_DIM };
    if (dim[BATCH] > 65535 || dim[HEADS] > 65535) return "b and h must be at most 65535, the limit of a grid";
    if (dim[LEN] > 1 << 30) return "s must be at most 2^30";
    return dim[HEAD_DIM] == 64 || dim[HEAD_DIM] == 128 || dim[HEAD_DIM] == 256
               ? NULL
               : "d, the head dimension, must be 64, 128 or 256";
}

static const char *check_shape(const int64_t *dim)
{
    const int64_t d = attention_head_dim(dim);
    return d == 64 || d == 128 || d == 256 ? attention_check_shape(dim)
                                           : "d, the head dimension, must be 64, 128 or 256";
}

static const char *check_two_levels(const int64_t *dim)
{
    const int64_t d = attention_head_dim(dim);
    return d == 64 || d == 128 ? attention_check_shape(dim) : "d, the head dimension, must be 64 or 128";
}

#define ANY_HEAD_DIM                                                               \
    {                                                                              \
        ATTENTION_BENCH(16, 128), ATTENTION_BENCH(32, 64), ATTENTION_BENCH(8, 256) \
    }
#define SMALL_HEAD_DIMS                                   \
    {                                                     \
        ATTENTION_BENCH(16, 128), ATTENTION_BENCH(32, 64) \
    }
#define SCALES(name, shape)                                \
    {                                                      \
        name, F32, IN, shape, .positive = true, .bench = 1 \
    }
#define ATTENTION(v_shape, q_scales, k_scales)                                                        \
    .types = {E4M3}, .dims = ATTENTION_DIMS, .launch = launch, .flops = ATTENTION_FLOPS,              \
    .limit = LIMIT_FP8_TENSOR,                                                                        \
    .baseline = {.name = "chapter 15 in bf16", .launch = launch_bf16, .other_work = true},            \
    .tensors = {                                                                                      \
        {"causal", I32, PARAM, ""},   {"Q", RUN_TYPE, IN, "b,q,h,d"}, {"K", RUN_TYPE, IN, "b,k,g,d"}, \
        {"V", RUN_TYPE, IN, v_shape}, SCALES("scale_Q", q_scales),    SCALES("scale_K", k_scales),    \
        SCALES("scale_V", k_scales),  {"O", BF16, OUT, "b,q,h,d"},    {"LSE", F32, OUT, "b,h,q"}}

static const struct operation operations[] = {
    {
        .name = "transposed_v",
        .title = "O = softmax(scale_Q scale_K / sqrt(d) Q Kᵀ) scale_V V in e4m3, V with a row for each of d",
        ATTENTION("b,g,d,(k+15)/16*16", "b,g", "b,g"),
        .check_shape = check_shape,
        .bench = ANY_HEAD_DIM,
        .steps = STEPS(STEP(1, fp8_attention_launcher, transposed_v)),
    },
    {
        .name = "per_head",
        .title = "the same, V as K",
        ATTENTION("b,k,g,d", "b,g", "b,g"),
        .check_shape = check_shape,
        .bench = ANY_HEAD_DIM,
        .steps = STEPS(STEP(2, fp8_attention_launcher, transposed_inside)),
    },
    {
        .name = "two_levels",
        .title = "the same, 128 keys' sums in the tensor core, the others in fp32",
        ATTENTION("b,k,g,d", "b,g", "b,g"),
        .check_shape = check_two_levels,
        .bench = SMALL_HEAD_DIMS,
        .steps = STEPS(STEP(3, fp8_attention_launcher, two_levels)),
    },
    {
        .name = "per_block",
        .title = "the same, scales for each 128 queries of a head and each 128 keys",
        ATTENTION("b,k,g,d", "b,h,(q+127)/128", "b,g,(k+127)/128"),
        .check_shape = check_two_levels,
        .bench = SMALL_HEAD_DIMS,
        .steps = STEPS(STEP(4, fp8_attention_launcher, per_block)),
    },
    {
        .name = "rotation",
        .title =
            "x in e4m3, a scale for each 128 rows of a head, turned by signs and a Hadamard matrix or not",
        .types = {E4M3},
        .dims = {"b", "s", "h", "d"},
        .tensors = {{"x", BF16, IN, "b,s,h,d"},
                    {"signs", F32, IN, "d", .bench = 1},
                    {"rotate", I32, PARAM, ""},
                    {"out", RUN_TYPE, OUT, "b,s,h,d"},
                    {"scale", F32, OUT, "b,h,(s+127)/128"}},
        .launch = launch_rotation,
        .baseline = DEVICE_COPY,
        .check_shape = check_rotation,
        .bytes = "3*b*s*h*d",
        .limit = LIMIT_MEMORY,
        .bench = {"b=4,s=8192,h=16,d=128", "b=4,s=8192,h=32,d=64", "b=4,s=8192,h=8,d=256"},
        .steps = STEPS(STEP(5, rotation_launcher, rotated)),
    },
};

CHAPTER(operations)
