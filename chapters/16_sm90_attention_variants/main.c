// Chapter 16: chapter 15's attention, and what a model or a server asks of it: windows, softcap, sinks, other head dimensions,
// sequences of any lengths, packed heads, parts of the keys, pages, a cache that grows.
#include "../../common/harness/chapter.h"
#include "../../common/harness/sdpa_baseline.h"
#include "launchers.h"

// What the run has, by name; what its operation does not have is a variant left out.
static struct attention_variant variant(const struct run *run)
{
    struct attention_variant v = {
        .dtype = run->type,
        .batch = (int)run_dim(run, "b", 1),
        .q_len = (int)run_dim(run, "q", 1),
        .heads = (int)run_dim(run, "h", 1),
        .kv_heads = (int)run_dim(run, "g", 1),
        .head_dim = (int)run_dim(run, "d", 0),
        .v_head_dim = (int)run_dim(run, "v", 0),
        .left = (int)run_param(run, "left", ATTENTION_UNBOUNDED),
        .right = (int)run_param(run, "right", ATTENTION_UNBOUNDED),
        .softcap = (float)run_param(run, "softcap", 0),
        .Q = run_data(run, "Q"),
        .K = run_data(run, "K"),
        .V = run_data(run, "V"),
        .O = run_data(run, "O"),
        .LSE = run_data(run, "LSE"),
        .sinks = run_data(run, "sinks"),
        .cu_q = run_data(run, "cu_q"),
        .cu_k = run_data(run, "cu_k"),
        .q_total = (int)run_dim(run, "tq", 0),
        .k_total = (int)run_dim(run, "tk", 0),
        .used_k = run_data(run, "used_k"),
        .page_table = run_data(run, "page_table"),
        .pages = (int)run_dim(run, "p", 0),
        .page_size = (int)run_dim(run, "s", 0),
        .pages_per_sequence = (int)run_dim(run, "n", 0),
        .K_new = run_data(run, "K_new"),
        .V_new = run_data(run, "V_new"),
        .new_len = (int)run_dim(run, "new", 0),
        .rotary_cos = run_data(run, "rotary_cos"),
        .rotary_sin = run_data(run, "rotary_sin"),
        .rotary_dim = 2 * (int)run_dim(run, "half", 0),
        .rotary_len = (int)run_dim(run, "places", 0),
        .rotary_interleaved = run_param(run, "interleaved", 0) != 0,
    };
    // Without a table the pages of K and V are the sequences' caches.
    v.k_len =
        (int)run_dim(run, "k", v.page_table ? (int64_t)v.page_size * v.pages_per_sequence : v.page_size);
    return v;
}

// Kept between launches: a CUDA graph may have recorded it, and has then been launched without it before.
static cudaError_t set_workspace(struct attention_variant *v)
{
    static size_t bytes;
    static void *workspace;
    const size_t needed = attention_workspace_bytes(v);
    if (needed > bytes) {
        const cudaError_t error = cudaFree(workspace);
        if (error != cudaSuccess) return error;
        workspace = NULL;
        bytes = needed;
        if (cudaMalloc(&workspace, bytes) != cudaSuccess) return cudaErrorMemoryAllocation;
    }
    v->workspace = workspace;
    return cudaSuccess;
}

static cudaError_t launch(any_launcher *launcher, const struct run *run, cudaStream_t stream)
{
    struct attention_variant v = variant(run);
    const char *refused = attention_refused(&v);
    if (refused) fprintf(stderr, "refused: %s\n", refused);
    const cudaError_t error = set_workspace(&v);
    return error != cudaSuccess ? error : ((attention_variant_launcher *)launcher)(&v, stream);
}

// PyTorch's cuDNN backend, for the two windows that it has.
static cudaError_t launch_sdpa(const struct run *run, cudaStream_t stream)
{
    const struct attention_variant v = variant(run);
    const bool causal = v.right == 0;
    if (v.head_dim != v.v_head_dim || v.left < v.k_len - 1 || (!causal && v.right < v.k_len - 1))
        return cudaErrorNotSupported;
    const struct attention a = {v.dtype, v.Q,     v.K,     v.V,        v.O,        v.LSE, v.batch,
                                v.q_len, v.k_len, v.heads, v.kv_heads, v.head_dim, causal};
    return sdpa_cudnn(&a, stream);
}

static cudaError_t fetch_sdpa(const struct run *run, cudaStream_t stream)
{
    const struct attention_variant v = variant(run);
    const struct attention a = {v.dtype, v.Q,     v.K,     v.V,        v.O,        v.LSE, v.batch,
                                v.q_len, v.k_len, v.heads, v.kv_heads, v.head_dim, false};
    return sdpa_fetch(&a, stream);
}

// Sequences of equal lengths that take as many products as those of draw_lengths: 5 of 9 are as long as the longest.
static cudaError_t launch_uniform(const struct run *run, cudaStream_t stream)
{
    struct attention_variant v = variant(run);
    v.batch = v.batch * 5 / 9;
    v.cu_q = v.cu_k = NULL;
    return varlen(&v, stream);
}

// The same K and V, taken in the order in which they lie in memory.
static cudaError_t launch_without_pages(const struct run *run, cudaStream_t stream)
{
    struct attention_variant v = variant(run);
    v.page_table = NULL;
    const cudaError_t error = set_workspace(&v);
    return error != cudaSuccess ? error : split_kv(&v, stream);
}

// Where sequences begin that have q queries, q / 3, q, q / 3, …
static void draw_lengths(const struct run *run, int32_t *values)
{
    const int64_t b = run_dim(run, "b", 0), q = run_dim(run, "q", 0);
    values[0] = 0;
    for (int64_t i = 0; i < b; i++) values[i + 1] = values[i] + (int32_t)(i % 2 ? q / 3 : q);
}

// A page for each of the table's places, none twice, neighbours far apart: 611953 is prime.
static void draw_pages(const struct run *run, int32_t *values)
{
    const int64_t count = run_dim(run, "b", 0) * run_dim(run, "n", 0), pages = run_dim(run, "p", 1);
    for (int64_t i = 0; i < count; i++) values[i] = (int32_t)(i * 611953 % pages);
}

static void draw_full(const struct run *run, int32_t *values)
{
    const int64_t k = run_dim(run, "k", run_dim(run, "n", 0) * run_dim(run, "s", 0)) - run_dim(run, "new", 0);
    for (int64_t i = 0; i < run_dim(run, "b", 0); i++) values[i] = (int32_t)k;
}

static const char *check_heads(int64_t h, int64_t g, int64_t d, int64_t v)
{
    if (h % g) return "h must be a multiple of g: every key/value head serves as many query heads";
    if (d == 192 ? v == 128 : d == 64 ? v == 64 || v == 256 : v == d && (d == 128 || d == 256)) return NULL;
    return "d and v must be 64, 128 or 256, or d=192 with v=128, or d=64 with v=256";
}

// Dimensions b,q,k,h,g,d,v and b,q,h,g,d,v, and others behind them.
static const char *check_shape(const int64_t *dim)
{
    return check_heads(dim[3], dim[4], dim[5], dim[6]);
}
static const char *check_cache(const int64_t *dim)
{
    return check_heads(dim[2], dim[3], dim[4], dim[5]);
}

#define WINDOW                  \
    {"left", I32, PARAM, ""},   \
    {                           \
        "right", I32, PARAM, "" \
    }
#define SOFTCAP                   \
    {                             \
        "softcap", F32, PARAM, "" \
    }
#define QUERIES                                                      \
    {"Q", RUN_TYPE, IN, "b,q,h,d"}, {"O", RUN_TYPE, OUT, "b,q,h,v"}, \
    {                                                                \
        "LSE", F32, OUT, "b,h,q"                                     \
    }
#define KEYS                         \
    {"K", RUN_TYPE, IN, "b,k,g,d"},  \
    {                                \
        "V", RUN_TYPE, IN, "b,k,g,v" \
    }
#define SHAPE    "b", "q", "k", "h", "g", "d", "v"
#define CACHE    "b", "q", "h", "g", "d", "v", "p", "s", "n"
#define LAUNCHED .launch = launch, .types = {BF16, F16}, .bench_difference = 0.02
#define FLOPS \
    .flops = "2*b*h*(d+v)*(q*(left+right+1)-(left*(left+1)+right*(right+1))/2)", .limit = LIMIT_BF16_TENSOR
#define CACHE_BYTES   "size*b*(n*s*g*(d+v)+q*h*(d+v))"
#define STEP_OF(name) STEP(attention_variant_launcher, name)

static const struct operation operations[] = {
    {
        .name = "window",
        .title =
            "each query sees the keys from `left` before its place to `right` behind it; right = 0: causal",
        .dims = {SHAPE, "left", "right"},
        .tensors = {WINDOW, QUERIES, KEYS},
        .steps = STEPS(STEP_OF(window)),
        .check_shape = check_shape,
        .baseline = {.name = "SDPA CUDNN", .launch = launch_sdpa, .fetch = fetch_sdpa},
        LAUNCHED,
        FLOPS,
        .bench = {"b=4,q=4096,k=4096,h=16,g=16,d=128,v=128,left=4095,right=4095",
                  "b=4,q=4096,k=4096,h=16,g=16,d=128,v=128,left=4095,right=0",
                  "b=1,q=16384,k=16384,h=16,g=16,d=128,v=128,left=1023,right=0",
                  "b=1,q=16384,k=16384,h=16,g=16,d=128,v=128,left=128,right=127",
                  "b=4,q=4096,k=4096,h=32,g=32,d=64,v=64,left=4095,right=0",
                  "b=4,q=4096,k=4096,h=8,g=8,d=256,v=256,left=4095,right=0"},
    },
    {
        .name = "softcap",
        .title = "scores s become softcap tanh(s / softcap)",
        .dims = {SHAPE, "left", "right", "softcap"},
        .tensors = {WINDOW, SOFTCAP, QUERIES, KEYS},
        .steps = STEPS(STEP_OF(softcap)),
        .check_shape = check_shape,
        LAUNCHED,
        FLOPS,
        .bench = {"b=4,q=4096,k=4096,h=16,g=16,d=128,v=128,left=4095,right=0,softcap=50",
                  "b=4,q=4096,k=4096,h=8,g=8,d=256,v=256,left=4095,right=0,softcap=50"},
    },
    {
        .name = "sinks",
        .title = "a score of each head that has no value takes part in the sum",
        .dims = {SHAPE, "left", "right"},
        .tensors = {WINDOW, {"sinks", F32, IN, "h"}, QUERIES, KEYS},
        .steps = STEPS(STEP_OF(sinks)),
        .check_shape = check_shape,
        LAUNCHED,
        FLOPS,
        .bench = {"b=4,q=4096,k=4096,h=64,g=8,d=64,v=64,left=127,right=0"},
    },
    {
        .name = "head_dims",
        .title = "d numbers in a head of Q and K, v in one of V and O",
        .dims = {SHAPE, "left", "right"},
        .tensors = {WINDOW, QUERIES, KEYS},
        .steps = STEPS(STEP_OF(head_dims)),
        .check_shape = check_shape,
        LAUNCHED,
        FLOPS,
        .bench = {"b=4,q=4096,k=4096,h=16,g=16,d=192,v=128,left=4095,right=0",
                  "b=4,q=4096,k=4096,h=16,g=16,d=64,v=256,left=4095,right=0"},
    },
    {
        .name = "varlen",
        .title = "sequences of any lengths, at most q and k, one behind the other: rows cu[i] to cu[i + 1]",
        .dims = {SHAPE, "left", "right", "softcap", "tq", "tk"},
        .tensors = {WINDOW,
                    SOFTCAP,
                    {"b", I32, PARAM, ""},
                    {"q", I32, PARAM, ""},
                    {"k", I32, PARAM, ""},
                    {"sinks", F32, IN_OPTIONAL, "h"},
                    {"cu_q", I32, IN, "b+1", .draw = draw_lengths},
                    {"cu_k", I32, IN, "b+1", .draw = draw_lengths},
                    {"Q", RUN_TYPE, IN, "tq,h,d"},
                    {"K", RUN_TYPE, IN, "tk,g,d"},
                    {"V", RUN_TYPE, IN, "tk,g,v"},
                    {"O", RUN_TYPE, OUT, "tq,h,v"},
                    {"LSE", F32, OUT, "h,tq"}},
        .steps = STEPS(STEP_OF(varlen), STEP_OF(append_kv)),
        .check_shape = check_shape,
        .baseline = {.name = "equal lengths", .launch = launch_uniform, .other_work = true},
        LAUNCHED,
        .flops = "10*b/18*h*2*(d+v)*(q*(left+right+1)-(left*(left+1)+right*(right+1))/2)",
        .limit = LIMIT_BF16_TENSOR,
        .bench = {"b=18,q=3072,k=3072,h=16,g=16,d=128,v=128,left=3071,right=3071,softcap=0,tq=36864,tk=36864",
                  "b=18,q=3072,k=3072,h=16,g=16,d=128,v=128,left=3071,right=0,softcap=0,tq=36864,tk=36864"},
    },
    {
        .name = "pack_gqa",
        .title = "the query heads of a K/V head share a block",
        .dims = {SHAPE, "left", "right"},
        .tensors = {WINDOW, QUERIES, KEYS},
        .steps = STEPS(STEP_OF(varlen), STEP_OF(pack_gqa)),
        .check_shape = check_shape,
        .baseline = DEVICE_COPY,
        LAUNCHED,
        .bytes = "size*b*(k*g*(d+v)+q*h*(d+v))",
        .limit = LIMIT_MEMORY,
        .bench = {"b=64,q=1,k=4096,h=128,g=8,d=128,v=128,left=4095,right=0"},
    },
    {
        .name = "split_kv",
        .title = "the keys of a query are shared out; used_k[i] of k keys are there",
        .dims = {SHAPE, "left", "right"},
        .tensors = {WINDOW, {"used_k", I32, IN_OPTIONAL, "b"}, QUERIES, KEYS},
        .steps = STEPS(STEP_OF(pack_gqa), STEP_OF(split_kv)),
        .check_shape = check_shape,
        .baseline = DEVICE_COPY,
        LAUNCHED,
        .bytes = "size*b*(k*g*(d+v)+q*h*(d+v))",
        .limit = LIMIT_MEMORY,
        .bench = {"b=1,q=1,k=65536,h=128,g=8,d=128,v=128,left=65535,right=0",
                  "b=4,q=1,k=16384,h=128,g=8,d=128,v=128,left=16383,right=0",
                  "b=16,q=1,k=8192,h=128,g=8,d=128,v=128,left=8191,right=0",
                  "b=64,q=1,k=8192,h=128,g=8,d=128,v=128,left=8191,right=0",
                  "b=1,q=1,k=65536,h=128,g=128,d=128,v=128,left=65535,right=0",
                  "b=16,q=1,k=2048,h=128,g=128,d=128,v=128,left=2047,right=0"},
    },
    {
        .name = "paged_kv",
        .title = "K and V in p pages of s keys; page_table says where those of a sequence are, n at most",
        .dims = {CACHE, "left", "right", "softcap"},
        .tensors = {WINDOW,
                    SOFTCAP,
                    {"sinks", F32, IN_OPTIONAL, "h"},
                    {"used_k", I32, IN, "b", .draw = draw_full},
                    {"page_table", I32, IN, "b,n", .draw = draw_pages},
                    QUERIES,
                    {"K", RUN_TYPE, IN, "p,s,g,d"},
                    {"V", RUN_TYPE, IN, "p,s,g,v"}},
        .steps = STEPS(STEP_OF(paged_kv)),
        .check_shape = check_cache,
        .baseline = {.name = "without pages", .launch = launch_without_pages, .other_work = true},
        LAUNCHED,
        .bytes = CACHE_BYTES,
        .limit = LIMIT_MEMORY,
        .bench = {"b=16,q=1,h=128,g=8,d=128,v=128,p=8192,s=16,n=512,left=8191,right=0,softcap=0",
                  "b=16,q=1,h=128,g=8,d=128,v=128,p=2048,s=64,n=128,left=8191,right=0,softcap=0",
                  "b=16,q=1,h=128,g=8,d=128,v=128,p=131072,s=1,n=8192,left=8191,right=0,softcap=0",
                  "b=4,q=4096,h=16,g=16,d=128,v=128,p=1024,s=16,n=256,left=4095,right=0,softcap=0",
                  "b=4,q=4096,h=16,g=16,d=128,v=128,p=256,s=64,n=64,left=4095,right=0,softcap=0"},
    },
    {
        .name = "append_kv",
        .title =
            "`new` keys and values of each sequence go behind its used_k in the cache, turned by their places",
        .dims = {CACHE, "new", "places", "half", "left", "right"},
        .tensors = {WINDOW,
                    {"interleaved", I32, PARAM, ""},
                    {"used_k", I32, IN, "b", .draw = draw_full},
                    {"page_table", I32, IN_OPTIONAL, "b,n"},
                    QUERIES,
                    {"K", RUN_TYPE, INOUT, "p,s,g,d"},
                    {"V", RUN_TYPE, INOUT, "p,s,g,v"},
                    {"K_new", RUN_TYPE, IN, "b,new,g,d"},
                    {"V_new", RUN_TYPE, IN, "b,new,g,v"},
                    {"rotary_cos", F32, IN, "places,half"},
                    {"rotary_sin", F32, IN, "places,half"}},
        .steps = STEPS(STEP_OF(append_kv)),
        .check_shape = check_cache,
        .baseline = DEVICE_COPY,
        LAUNCHED,
        .bytes = "size*b*(s*g*(d+v)+q*h*(d+v)+2*new*g*(d+v))",
        .limit = LIMIT_MEMORY,
        .bench =
            {"b=16,q=1,h=128,g=8,d=128,v=128,p=16,s=8192,n=1,new=1,places=8192,half=64,left=8191,right=0"},
    },
};

CHAPTER(operations)
