// Chapter 15: attention forward with TMA and wgmma: a producer, and consumers whose softmax costs nothing.
#include "../../common/harness/attention.h"
#include "launchers.h"

static const char *check_shape(const int64_t *dim)
{
    const int64_t d = attention_head_dim(dim);
    return d == 64 || d == 128 || d == 256 ? attention_check_shape(dim)
                                           : "d, the head dimension, must be 64, 128 or 256";
}

static const struct step steps[] = {
    STEP(1, attention_launcher, producer_consumer),
    STEP(2, attention_launcher, more_consumers),
    STEP(3, attention_launcher, ping_pong),
    STEP(4, attention_launcher, overlapped),
    STEP(5, attention_launcher, lazy_rescale),
    STEP(6, attention_launcher, old_maximum),
    STEP(7, attention_launcher, packed_growth),
    STEP(8, attention_launcher, longest_first),
    STEP(9, attention_launcher, persistent),
    STEP(10, attention_launcher, tma_store),
    {0},
};

static const struct operation operations[] = {{
    .title = "O = softmax(Q Kᵀ / sqrt(d)) V and LSE, causal (bottom right) or not, g of h heads have K and V",
    .types = {BF16, F16},
    .dims = ATTENTION_DIMS,
    .tensors = ATTENTION_TENSORS,
    .steps = steps,
    .launch = attention_launch,
    .baseline = {.name = "SDPA CUDNN", .launch = attention_sdpa_cudnn, .fetch = attention_sdpa_fetch},
    .check_shape = check_shape,
    .flops = ATTENTION_FLOPS,
    .limit = LIMIT_BF16_TENSOR,
    .bench_difference = 0.02,
    .bench = {ATTENTION_BENCH(16, 128), ATTENTION_BENCH(32, 64), ATTENTION_BENCH(8, 256)},
}};

CHAPTER(operations)
