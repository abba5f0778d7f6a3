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

struct attention_variant attention_variant_of(const struct run *run)
{
    struct attention_variant v = {
        .dtype = run->type,
        .batch = (int)run_dim(run, "b", 1),
        .q_len = (int)run_dim(run, "q", 1),
        .heads = (int)run_dim(run, "h", 1),
        .kv_heads = (int)run_dim(run, "g", 1),
        .head_dim = (int)run_dim(run, "d", 0),
        .v_head_dim = (int)run_dim(run, "v", run_dim(run, "d", 0)),
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

void attention_draw_lengths(const struct run *run, int32_t *values)
{
    const int64_t b = run_dim(run, "b", 0), q = run_dim(run, "q", 0);
    values[0] = 0;
    for (int64_t i = 0; i < b; i++) values[i + 1] = values[i] + (int32_t)(i % 2 ? q / 3 : q);
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
