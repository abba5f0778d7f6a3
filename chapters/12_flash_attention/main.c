// Chapter 12: attention forward on mma.sync, one algorithm in seven versions.
#include "../../common/harness/chapter.h"
#include "../../common/harness/sdpa_baseline.h"
#include "attention.h"

enum { CAUSAL_PARAM, Q, K, V, O, LSE };
enum { BATCH, Q_LEN, K_LEN, HEADS, KV_HEADS, HEAD_DIM, CAUSAL };

// The launchers in the .cu files.
typedef cudaError_t launcher(const struct attention *attention, cudaStream_t stream);
launcher tile_by_tile, basic, swizzled, two_stage, wide_loads, visible_tiles, large_tile, folded_scale,
    lazy_rescale, longest_first, wide_stores, one_barrier;

static cudaError_t launch(const struct step *step, const struct run *run, cudaStream_t stream)
{
    const struct attention attention = {
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
        .f16 = run->f16,
    };
    return ((launcher *)step->kernel)(&attention, stream);
}

static struct sdpa sdpa(const struct run *run)
{
    return (struct sdpa){
        .Q = run->data[Q],
        .K = run->data[K],
        .V = run->data[V],
        .O = run->data[O],
        .LSE = run->data[LSE],
        .batch = run->dim[BATCH],
        .q_len = run->dim[Q_LEN],
        .k_len = run->dim[K_LEN],
        .heads = run->dim[HEADS],
        .head_dim = run->dim[HEAD_DIM],
        .causal = run->param[CAUSAL_PARAM] != 0,
        .dtype = run->f16 ? F16 : BF16,
    };
}

static cudaError_t launch_sdpa(const struct step *step, const struct run *run, cudaStream_t stream)
{
    (void)step;
    const struct sdpa attention = sdpa(run);
    return run->dim[HEADS] == run->dim[KV_HEADS] ? sdpa_flash(&attention, stream) : cudaErrorNotSupported;
}

static cudaError_t fetch_sdpa(const struct step *step, const struct run *run, cudaStream_t stream)
{
    (void)step;
    const struct sdpa attention = sdpa(run);
    return sdpa_fetch(&attention, stream);
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

static const struct chapter chapter = {
    .name = "12_flash_attention",
    .title = "O = softmax(Q Kᵀ / sqrt(d)) V and LSE, causal (bottom right) or not, g of h heads have K and V",
    .dims = {"b", "q", "k", "h", "g", "d", "causal"},
    .tensors =
        {
            [CAUSAL_PARAM] = {"causal", I32, PARAM, ""},
            [Q] = {"Q", BF16, IN, "b,q,h,d"},
            [K] = {"K", BF16, IN, "b,k,g,d"},
            [V] = {"V", BF16, IN, "b,k,g,d"},
            [O] = {"O", BF16, OUT, "b,q,h,d"},
            [LSE] = {"LSE", F32, OUT, "b,h,q"},
        },
    .steps =
        {
            {"tile_by_tile", launch, (void (*)(void))tile_by_tile},
            {"basic", launch, (void (*)(void))basic},
            {"swizzled", launch, (void (*)(void))swizzled},
            {"two_stage", launch, (void (*)(void))two_stage},
            {"wide_loads", launch, (void (*)(void))wide_loads},
            {"visible_tiles", launch, (void (*)(void))visible_tiles},
            {"large_tile", launch, (void (*)(void))large_tile},
            {"folded_scale", launch, (void (*)(void))folded_scale},
            {"lazy_rescale", launch, (void (*)(void))lazy_rescale},
            {"longest_first", launch, (void (*)(void))longest_first},
            {"wide_stores", launch, (void (*)(void))wide_stores},
            {"one_barrier", launch, (void (*)(void))one_barrier},
        },
    .check_shape = check_shape,
    .flops = "4*b*h*q*k*d/(1+causal)",
    .limit = LIMIT_BF16_TENSOR,
    .f16_too = true,
    .bench_difference = 0.02,
    .baseline = {.name = "SDPA FLASH", .launch = launch_sdpa, .fetch = fetch_sdpa},
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
};

int main(int argc, char **argv)
{
    return chapter_main(&chapter, argc, argv);
}
