// Chapter 12: attention forward on mma.sync, one algorithm in twelve versions.
#include "../../common/harness/chapter.h"
#include "../../common/harness/sdpa_baseline.h"
#include "launchers.h"

enum { CAUSAL_PARAM, Q, K, V, O, LSE };
enum { BATCH, Q_LEN, K_LEN, HEADS, KV_HEADS, HEAD_DIM, CAUSAL };

static struct attention attention(const struct run *run)
{
    return (struct attention){
        .dtype = run->type,
        .Q = run->data[Q],
        .K = run->data[K],
        .V = run->data[V],
        .O = run->data[O],
        .LSE = run->data[LSE],
        .batch = (int)run->dim[BATCH],
        .q_len = (int)run->dim[Q_LEN],
        .k_len = (int)run->dim[K_LEN],
        .heads = (int)run->dim[HEADS],
        .kv_heads = (int)run->dim[KV_HEADS],
        .head_dim = (int)run->dim[HEAD_DIM],
        .causal = run->param[CAUSAL_PARAM] != 0,
    };
}

static cudaError_t launch(any_launcher *launcher, const struct run *run, cudaStream_t stream)
{
    const struct attention a = attention(run);
    return ((attention_launcher *)launcher)(&a, stream);
}

static cudaError_t launch_sdpa(const struct run *run, cudaStream_t stream)
{
    const struct attention a = attention(run);
    return sdpa_flash(&a, stream);
}

static cudaError_t fetch_sdpa(const struct run *run, cudaStream_t stream)
{
    const struct attention a = attention(run);
    return sdpa_fetch(&a, stream);
}

static const char *check_shape(const int64_t *dim)
{
    if (dim[HEAD_DIM] != 64 && dim[HEAD_DIM] != 128) return "d, the head dimension, must be 64 or 128";
    if (dim[HEADS] % dim[KV_HEADS])
        return "h must be a multiple of g: every key/value head serves as many query heads";
    if (dim[BATCH] > 65535 || dim[HEADS] > 65535) return "b and h must be at most 65535, the limit of a grid";
    if (dim[Q_LEN] > 1 << 30 || dim[K_LEN] > 1 << 30)
        return "q and k must be at most 2^30: their sum is an int";
    return NULL;
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
    .dims = {"b", "q", "k", "h", "g", "d", "causal"},
    .tensors =
        {
            [CAUSAL_PARAM] = {"causal", I32, PARAM, ""},
            [Q] = {"Q", RUN_TYPE, IN, "b,q,h,d"},
            [K] = {"K", RUN_TYPE, IN, "b,k,g,d"},
            [V] = {"V", RUN_TYPE, IN, "b,k,g,d"},
            [O] = {"O", RUN_TYPE, OUT, "b,q,h,d"},
            [LSE] = {"LSE", F32, OUT, "b,h,q"},
        },
    .steps = steps,
    .launch = launch,
    .baseline = {.name = "SDPA FLASH", .launch = launch_sdpa, .fetch = fetch_sdpa},
    .check_shape = check_shape,
    .flops = "4*b*h*q*k*d/(1+causal)",
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
