// Chapter 17: the backward pass of attention: five products a tile, and sums that belong to different blocks.
#include "../../common/harness/attention.h"
#include "launchers.h"

enum { CAUSAL_PARAM, Q, K, V, O, DO, LSE, DQ, DK, DV };
enum { BATCH, Q_LEN, K_LEN, HEADS, KV_HEADS, HEAD_DIM };

// The workspace is kept between launches: a CUDA graph may have recorded it, and has then been launched without it before.
static cudaError_t launch(any_launcher *launcher, const struct run *run, cudaStream_t stream)
{
    static size_t bytes;
    static void *workspace;
    struct attention_backward a = {
        .forward =
            {
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
            },
        .dO = run->data[DO],
        .dQ = run->data[DQ],
        .dK = run->data[DK],
        .dV = run->data[DV],
    };
    const size_t needed = attention_backward_workspace_bytes(&a.forward);
    if (needed > bytes) {
        const cudaError_t error = cudaFree(workspace);
        if (error != cudaSuccess) return error;
        workspace = NULL;
        bytes = 0;
        if (cudaMalloc(&workspace, needed) != cudaSuccess) return cudaErrorMemoryAllocation;
        bytes = needed;
    }
    a.workspace = workspace;
    return ((attention_backward_launcher *)launcher)(&a, stream);
}

static const char *check_shape(const int64_t *dim)
{
    const int64_t d = dim[HEAD_DIM];
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
              "b=2,q=8192,k=8192,h=32,g=32,d=64,causal=1",  "b=1,q=16384,k=16384,h=32,g=32,d=64,causal=1",
              "b=32,q=512,k=512,h=8,g=8,d=256,causal=0",    "b=16,q=1024,k=1024,h=8,g=8,d=256,causal=0",
              "b=8,q=2048,k=2048,h=8,g=8,d=256,causal=0",   "b=4,q=4096,k=4096,h=8,g=8,d=256,causal=0",
              "b=2,q=8192,k=8192,h=8,g=8,d=256,causal=0",   "b=1,q=16384,k=16384,h=8,g=8,d=256,causal=0",
              "b=32,q=512,k=512,h=8,g=8,d=256,causal=1",    "b=16,q=1024,k=1024,h=8,g=8,d=256,causal=1",
              "b=8,q=2048,k=2048,h=8,g=8,d=256,causal=1",   "b=4,q=4096,k=4096,h=8,g=8,d=256,causal=1",
              "b=2,q=8192,k=8192,h=8,g=8,d=256,causal=1",   "b=1,q=16384,k=16384,h=8,g=8,d=256,causal=1"},
}};

CHAPTER(operations)
