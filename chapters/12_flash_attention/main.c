// Chapter 12: attention forward on mma.sync, one algorithm in thirteen versions.
#include "../../common/harness/attention.h"
#include "launchers.h"

static const char *check_shape(const int64_t *dim)
{
    const int64_t d = attention_head_dim(dim);
    return d == 64 || d == 128 ? attention_check_shape(dim) : "d, the head dimension, must be 64 or 128";
}

static const struct step steps[] = {
    STEP(1, attention_launcher, tile_by_tile), STEP(2, attention_launcher, basic),
    STEP(3, attention_launcher, swizzled),     STEP(4, attention_launcher, two_stage),
    STEP(5, attention_launcher, wide_loads),   STEP(6, attention_launcher, visible_tiles),
    STEP(7, attention_launcher, large_tile),   STEP(8, attention_launcher, folded_scale),
    STEP(9, attention_launcher, lazy_rescale), STEP(10, attention_launcher, longest_first),
    STEP(11, attention_launcher, wide_stores), STEP(12, attention_launcher, one_barrier),
    STEP(13, attention_launcher, two_halves),  {0},
};

static const struct operation operations[] = {{
    .title = "O = softmax(Q Kᵀ / sqrt(d)) V and LSE, causal (bottom right) or not, g of h heads have K and V",
    .types = {BF16, F16},
    .dims = ATTENTION_DIMS,
    .tensors = ATTENTION_TENSORS,
    .steps = steps,
    .launch = attention_launch,
    .baseline = {.name = "SDPA FLASH", .launch = attention_sdpa_flash, .fetch = attention_sdpa_fetch},
    .check_shape = check_shape,
    .flops = ATTENTION_FLOPS,
    .limit = LIMIT_BF16_TENSOR,
    .bench_difference = 0.02,
    .bench = {ATTENTION_BENCH(16, 128), ATTENTION_BENCH(32, 64)},
}};

CHAPTER(operations)
