// Chapter 17: the backward pass of attention: five products a tile, and sums that belong to different blocks.
#include "../../common/device/scratch.h"
#include "../../common/harness/attention.h"
#include "launchers.h"

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

static const char *check_shape(const int64_t *dim)
{
    const int64_t d = attention_head_dim(dim);
    return d == 64 || d == 128 || d == 256 ? attention_check_shape(dim)
                                           : "d, the head dimension, must be 64, 128 or 256";
}

static const struct step steps[] = {
    STEP(attention_backward_launcher, five_products),  STEP(attention_backward_launcher, producer),
    STEP(attention_backward_launcher, bulk_reduction), STEP(attention_backward_launcher, in_flight),
    STEP(attention_backward_launcher, in_registers),   {0},
};

static const struct operation operations[] = {{
    .title =
        "dQ, dK and dV of O = softmax(Q Kᵀ / sqrt(d)) V, causal (bottom right) or not, g of h heads have K and V",
    .types = {BF16, F16},
    .dims = ATTENTION_DIMS,
    .tensors = {{"causal", I32, PARAM, ""},
                {"Q", RUN_TYPE, IN, "b,q,h,d"},
                {"K", RUN_TYPE, IN, "b,k,g,d"},
                {"V", RUN_TYPE, IN, "b,k,g,d"},
                {"O", RUN_TYPE, IN, "b,q,h,d"},
                {"dO", RUN_TYPE, IN, "b,q,h,d"},
                {"LSE", F32, IN, "b,h,q"},
                {"dQ", RUN_TYPE, OUT, "b,q,h,d"},
                {"dK", RUN_TYPE, OUT, "b,k,g,d"},
                {"dV", RUN_TYPE, OUT, "b,k,g,d"}},
    .steps = steps,
    .launch = launch,
    .check_shape = check_shape,
    .flops = "10*b*h*q*k*d/(1+causal)",
    .limit = LIMIT_BF16_TENSOR,
    .bench_difference = 0.02,
    .bench = {ATTENTION_BENCH(16, 128), ATTENTION_BENCH(32, 64), ATTENTION_BENCH(8, 256)},
}};

CHAPTER(operations)
