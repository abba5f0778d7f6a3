// Chapter 12: attention forward on mma.sync, one algorithm in twelve versions.
#include "../../common/harness/attention.h"
#include "launchers.h"

static const char *check_shape(const int64_t *dim)
{
    const int64_t d = attention_head_dim(dim);
    return d == 64 || d == 128 ? attention_check_shape(dim) : "d, the head dimension, must be 64 or 128";
}

static const struct step steps[] = {
    STEP(attention_launcher, tile_by_tile),
    STEP(attention_launcher, basic),
    STEP(attention_launcher, swizzled),
    STEP(attention_launcher, two_stage),
    STEP(attention_launcher, wide_loads),
    STEP(attention_launcher, visible_tiles),
    STEP(attention_launcher, large_tile),
    STEP(attention_launcher, folded_scale),
    STEP(attention_launcher, lazy_rescale),
    STEP(attention_launcher, longest_first),
    STEP(attention_launcher, wide_stores),
    STEP(attention_launcher, one_barrier),
    {0},
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
    .bench = {"b=32,q=512,k=512,h=16,g=16,d=128,causal=0",  "b=16,q=1024,k=1024,h=16,g=16,d=128,causal=0",
              "b=8,q=2048,k=2048,h=16,g=16,d=128,causal=0", "b=4,q=4096,k=4096,h=16,g=16,d=128,causal=0",
              "b=2,q=8192,k=8192,h=16,g=16,d=128,causal=0", "b=1,q=16384,k=16384,h=16,g=16,d=128,causal=0",
              "b=32,q=512,k=512,h=16,g=16,d=128,causal=1",  "b=16,q=1024,k=1024,h=16,g=16,d=128,causal=1",
              "b=8,q=2048,k=2048,h=16,g=16,d=128,causal=1", "b=4,q=4096,k=4096,h=16,g=16,d=128,causal=1",
              "b=2,q=8192,k=8192,h=16,g=16,d=128,causal=1", "b=1,q=16384,k=16384,h=16,g=16,d=128,causal=1",
              "b=32,q=512,k=512,h=32,g=32,d=64,causal=0",   "b=16,q=1024,k=1024,h=32,g=32,d=64,causal=0",
              "b=8,q=2048,k=2048,h=32,g=32,d=64,causal=0",  "b=4,q=4096,k=4096,h=32,g=32,d=64,causal=0",
              "b=2,q=8192,k=8192,h=32,g=32,d=64,causal=0",  "b=1,q=16384,k=16384,h=32,g=32,d=64,causal=0",
              "b=32,q=512,k=512,h=32,g=32,d=64,causal=1",   "b=16,q=1024,k=1024,h=32,g=32,d=64,causal=1",
              "b=8,q=2048,k=2048,h=32,g=32,d=64,causal=1",  "b=4,q=4096,k=4096,h=32,g=32,d=64,causal=1",
              "b=2,q=8192,k=8192,h=32,g=32,d=64,causal=1",  "b=1,q=16384,k=16384,h=32,g=32,d=64,causal=1"},
}};

CHAPTER(operations)
