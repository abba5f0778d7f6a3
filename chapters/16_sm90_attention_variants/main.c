// Chapter 16: chapter 15's attention, and what a model or a server asks of it: windows, softcap, sinks, other head dimensions,
// sequences of any lengths, packed heads, parts of the keys, pages, a cache that grows.
#include "launchers.h"
#include "run.h"

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
#define LAUNCHED .launch = variant_launch, .types = {BF16, F16}, .bench_difference = 0.02
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
        .check_shape = variant_check_shape,
        .baseline = {.name = "SDPA CUDNN", .launch = variant_sdpa, .fetch = variant_sdpa_fetch},
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
        .check_shape = variant_check_shape,
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
        .check_shape = variant_check_shape,
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
        .check_shape = variant_check_shape,
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
        .check_shape = variant_check_shape,
        .baseline = {.name = "equal lengths", .launch = variant_equal_lengths, .other_work = true},
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
        .check_shape = variant_check_shape,
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
        .check_shape = variant_check_shape,
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
        .check_shape = variant_check_cache,
        .baseline = {.name = "without pages", .launch = variant_without_pages, .other_work = true},
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
        .check_shape = variant_check_cache,
        .baseline = DEVICE_COPY,
        LAUNCHED,
        .bytes = "size*b*(s*g*(d+v)+q*h*(d+v)+2*new*g*(d+v))",
        .limit = LIMIT_MEMORY,
        .bench =
            {"b=16,q=1,h=128,g=8,d=128,v=128,p=16,s=8192,n=1,new=1,places=8192,half=64,left=8191,right=0"},
    },
};

CHAPTER(operations)
