#include "attention.h"

#include "sdpa_baseline.h"

enum { BATCH, Q_LEN, K_LEN, HEADS, KV_HEADS, HEAD_DIM };

struct attention attention_of(const struct run *run)
{
    return (struct attention){
        .dtype = run->type,
        .Q = run_data(run, "Q"),
        .K = run_data(run, "K"),
        .V = run_data(run, "V"),
        .O = run_data(run, "O"),
        .LSE = run_data(run, "LSE"),
        .batch = (int)run->dim[BATCH],
        .q_len = (int)run->dim[Q_LEN],
        .k_len = (int)run->dim[K_LEN],
        .heads = (int)run->dim[HEADS],
        .kv_heads = (int)run->dim[KV_HEADS],
        .head_dim = (int)run->dim[HEAD_DIM],
        .causal = run_param(run, "causal", 0) != 0,
    };
}

cudaError_t attention_launch(any_launcher *launcher, const struct run *run, cudaStream_t stream)
{
    const struct attention a = attention_of(run);
    return ((attention_launcher *)launcher)(&a, stream);
}

cudaError_t attention_sdpa_flash(const struct run *run, cudaStream_t stream)
{
    const struct attention a = attention_of(run);
    return sdpa_flash(&a, stream);
}

cudaError_t attention_sdpa_cudnn(const struct run *run, cudaStream_t stream)
{
    const struct attention a = attention_of(run);
    return sdpa_cudnn(&a, stream);
}

cudaError_t attention_sdpa_fetch(const struct run *run, cudaStream_t stream)
{
    const struct attention a = attention_of(run);
    return sdpa_fetch(&a, stream);
}

int64_t attention_head_dim(const int64_t *dim)
{
    return dim[HEAD_DIM];
}

const char *attention_check_shape(const int64_t *dim)
{
    if (dim[HEADS] % dim[KV_HEADS])
        return "h must be a multiple of g: every key/value head serves as many query heads";
    if (dim[BATCH] > 65535 || dim[HEADS] > 65535) return "b and h must be at most 65535, the limit of a grid";
    if (dim[Q_LEN] > 1 << 30 || dim[K_LEN] > 1 << 30)
        return "q and k must be at most 2^30: their sum is an int";
    return NULL;
}
