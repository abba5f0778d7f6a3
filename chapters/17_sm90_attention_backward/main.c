// Chapter 17: the backward pass of attention: five products a tile, and sums that belong to different blocks; and of attention with
// a window, softcap, sequences of any lengths.
#include "../../common/device/scratch.h"
#include "../../common/harness/attention.h"
#include "../../common/harness/sdpa_baseline.h"
#include "../16_sm90_attention_variants/variants.h"
#include "launchers.h"

// The forward pass, chapter 16's: of a benchmark O and LSE are those of its Q, K and V. With others P would be no probabilities, and
// gradients overflow in 16 bits.
extern attention_variant_launcher pack_gqa;

static cudaError_t forward(const struct run *run, cudaStream_t stream)
{
    struct attention_variant v = attention_variant_of(run);
    if (run_param(run, "causal", 0) != 0) v.right = 0;
    return pack_gqa(&v, stream);
}

static cudaError_t launch(any_launcher *launcher, const struct run *run, cudaStream_t stream)
{
    struct attention_backward a = {
        .forward = attention_of(run),
        .dO = run_data(run, "dO"),
        .dQ = run_data(run, "dQ"),
        .dK = run_data(run, "dK"),
        .dV = run_data(run, "dV"),
    };
    const cudaError_t error = get_scratch(attention_backward_workspace_bytes(&a.forward), &a.workspace);
    return error != cudaSuccess ? error : ((attention_backward_launcher *)launcher)(&a, stream);
}

static cudaError_t cudnn(const struct run *run, cudaStream_t stream)
{
    const struct attention a = attention_of(run);
    return sdpa_cudnn_backward(&a, run_data(run, "dO"), stream);
}

static cudaError_t cudnn_fetch(const struct run *run, cudaStream_t stream)
{
    const struct attention a = attention_of(run);
    return sdpa_backward_fetch(&a, run_data(run, "dQ"), run_data(run, "dK"), run_data(run, "dV"), stream);
}

static cudaError_t launch_variant(any_launcher *launcher, const struct run *run, cudaStream_t stream)
{
    struct attention_variant_backward b = {
        .forward = attention_variant_of(run),
        .dO = run_data(run, "dO"),
        .dQ = run_data(run, "dQ"),
        .dK = run_data(run, "dK"),
        .dV = run_data(run, "dV"),
        .deterministic = run_param(run, "deterministic", 0) != 0,
    };
    const cudaError_t error = get_scratch(attention_backward_variant_bytes(&b), &b.workspace);
    return error != cudaSuccess ? error : ((attention_variant_backward_launcher *)launcher)(&b, stream);
}

static const char *check_shape(const int64_t *dim)
{
    const int64_t d = attention_head_dim(dim);
    return d == 64 || d == 128 || d == 256 ? attention_check_shape(dim)
                                           : "d, the head dimension, must be 64, 128 or 256";
}

#define STEP_OF(number, name) STEP(number, attention_variant_backward_launcher, name)
#define OPTIONS               {"left", I32, PARAM, ""}, {"right", I32, PARAM, ""}, {"deterministic", I32, PARAM, ""},
#define DENSE                                                                                       \
    {"Q", RUN_TYPE, IN, "b,q,h,d"}, {"K", RUN_TYPE, IN, "b,k,g,d"}, {"V", RUN_TYPE, IN, "b,k,g,d"}, \
        {"O", RUN_TYPE, IN, "b,q,h,d"}, {"dO", RUN_TYPE, IN, "b,q,h,d"}, {"LSE", F32, IN, "b,h,q"}, \
        {"dQ", RUN_TYPE, OUT, "b,q,h,d"}, {"dK", RUN_TYPE, OUT, "b,k,g,d"},                         \
        {"dV", RUN_TYPE, OUT, "b,k,g,d"},
// Of a row's RMS: P and dS are rounded, here and in the baseline; cuDNN's dK was once 2 % from ours (bf16, 512 keys, an H100).
#define DIFFERENCE 0.03
#define LAUNCHED                                                                                   \
    .launch = launch_variant, .types = {BF16, F16}, .derive = forward, .check_shape = check_shape, \
    .bench_difference = DIFFERENCE
// Two and a half times the forward pass: five products a tile, not two.
#define FLOPS \
    .flops = "10*b*h*d*(q*(left+right+1)-(left*(left+1)+right*(right+1))/2)", .limit = LIMIT_BF16_TENSOR

static const struct operation operations[] = {
    {
        .name = "attention",
        .title =
            "dQ, dK and dV of O = softmax(Q Kᵀ / sqrt(d)) V, causal (bottom right) or not, g of h heads have K and V",
        .types = {BF16, F16},
        .dims = ATTENTION_DIMS,
        .tensors = {{"causal", I32, PARAM, ""}, DENSE},
        .steps = STEPS(STEP(1, attention_backward_launcher, five_products),
                       STEP(2, attention_backward_launcher, producer),
                       STEP(3, attention_backward_launcher, bulk_reduction),
                       STEP(4, attention_backward_launcher, in_flight),
                       STEP(5, attention_backward_launcher, in_registers),
                       STEP(6, attention_backward_launcher, tiles),
                       STEP(7, attention_backward_launcher, deterministic)),
        .launch = launch,
        .baseline = {.name = "SDPA CUDNN", .launch = cudnn, .fetch = cudnn_fetch},
        .derive = forward,
        .check_shape = check_shape,
        // Two and a half times the forward pass: five products a tile, not two.
        .flops = "10*b*h*q*k*d/(1+causal)",
        .limit = LIMIT_BF16_TENSOR,
        .bench_difference = DIFFERENCE,
        .bench = {ATTENTION_BENCH(16, 128), ATTENTION_BENCH(32, 64), ATTENTION_BENCH(8, 256)},
    },
    {
        .name = "window",
        .title = "the same; each query sees the keys from `left` before its place to `right` behind it",
        .dims = {"b", "q", "k", "h", "g", "d", "left", "right"},
        .tensors = {OPTIONS DENSE},
        .steps = STEPS(STEP_OF(8, window)),
        LAUNCHED,
        FLOPS,
        .bench = {"b=1,q=16384,k=16384,h=16,g=16,d=128,left=1023,right=0",
                  "b=1,q=16384,k=16384,h=32,g=32,d=64,left=1023,right=0"},
    },
    {
        .name = "softcap",
        .title = "the same; scores s became softcap tanh(s / softcap)",
        .dims = {"b", "q", "k", "h", "g", "d", "left", "right", "softcap"},
        .tensors = {{"softcap", F32, PARAM, ""}, OPTIONS DENSE},
        .steps = STEPS(STEP_OF(9, softcap)),
        LAUNCHED,
        FLOPS,
        .bench = {"b=4,q=4096,k=4096,h=16,g=16,d=128,left=4095,right=0,softcap=50"},
    },
    {
        .name = "varlen",
        .title = "sequences of any lengths, at most q and k, one behind the other: rows cu[i] to cu[i + 1]",
        .dims = {"b", "q", "k", "h", "g", "d", "left", "right", "softcap", "tq", "tk"},
        .tensors = {{"b", I32, PARAM, ""},
                    {"q", I32, PARAM, ""},
                    {"k", I32, PARAM, ""},
                    {"softcap", F32, PARAM, ""},
                    {"cu_q", I32, IN, "b+1", .draw = attention_draw_lengths},
                    {"cu_k", I32, IN, "b+1", .draw = attention_draw_lengths},
                    {"Q", RUN_TYPE, IN, "tq,h,d"},
                    {"K", RUN_TYPE, IN, "tk,g,d"},
                    {"V", RUN_TYPE, IN, "tk,g,d"},
                    {"O", RUN_TYPE, IN, "tq,h,d"},
                    {"dO", RUN_TYPE, IN, "tq,h,d"},
                    {"LSE", F32, IN, "h,tq"},
                    {"dQ", RUN_TYPE, OUT, "tq,h,d"},
                    {"dK", RUN_TYPE, OUT, "tk,g,d"},
                    {"dV", RUN_TYPE, OUT, "tk,g,d"},
                    OPTIONS},
        .steps = STEPS(STEP_OF(10, varlen)),
        LAUNCHED,
        .flops = "10*b/18*h*10*d*(q*(left+right+1)-(left*(left+1)+right*(right+1))/2)",
        .limit = LIMIT_BF16_TENSOR,
        .bench = {"b=18,q=3072,k=3072,h=16,g=16,d=128,left=3071,right=0,softcap=0,tq=36864,tk=36864"},
    },
};

CHAPTER(operations)
