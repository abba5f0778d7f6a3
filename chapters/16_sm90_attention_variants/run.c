#include "run.h"

#include "../../common/device/scratch.h"
#include "../../common/harness/sdpa_baseline.h"
#include "launchers.h"

cudaError_t variant_launch(any_launcher *launcher, const struct run *run, cudaStream_t stream)
{
    struct attention_variant v = attention_variant_of(run);
    const char *refused = attention_refused(&v);
    if (refused) fprintf(stderr, "refused: %s\n", refused);
    const cudaError_t error = get_scratch(attention_workspace_bytes(&v), &v.workspace);
    return error != cudaSuccess ? error : ((attention_variant_launcher *)launcher)(&v, stream);
}

// PyTorch's cuDNN backend, for the two windows that it has.
cudaError_t variant_sdpa(const struct run *run, cudaStream_t stream)
{
    const struct attention_variant v = attention_variant_of(run);
    const bool causal = v.right == 0;
    if (v.head_dim != v.v_head_dim || v.left < v.k_len - 1 || (!causal && v.right < v.k_len - 1))
        return cudaErrorNotSupported;
    const struct attention a = {v.dtype, v.Q,     v.K,     v.V,        v.O,        v.LSE, v.batch,
                                v.q_len, v.k_len, v.heads, v.kv_heads, v.head_dim, causal};
    return sdpa_cudnn(&a, stream);
}

cudaError_t variant_sdpa_fetch(const struct run *run, cudaStream_t stream)
{
    const struct attention_variant v = attention_variant_of(run);
    const struct attention a = {v.dtype, v.Q,     v.K,     v.V,        v.O,        v.LSE, v.batch,
                                v.q_len, v.k_len, v.heads, v.kv_heads, v.head_dim, false};
    return sdpa_fetch(&a, stream);
}

// Sequences of equal lengths that take as many products as those of attention_draw_lengths: 5 of 9 are as long as the longest.
cudaError_t variant_equal_lengths(const struct run *run, cudaStream_t stream)
{
    struct attention_variant v = attention_variant_of(run);
    v.batch = v.batch * 5 / 9;
    v.cu_q = v.cu_k = NULL;
    return varlen(&v, stream);
}

// The same K and V, taken in the order in which they lie in memory.
cudaError_t variant_without_pages(const struct run *run, cudaStream_t stream)
{
    struct attention_variant v = attention_variant_of(run);
    v.page_table = NULL;
    const cudaError_t error = get_scratch(attention_workspace_bytes(&v), &v.workspace);
    return error != cudaSuccess ? error : split_kv(&v, stream);
}

// A page for each of the table's places, none twice, neighbours far apart: 611953 is prime.
void draw_pages(const struct run *run, int32_t *values)
{
    const int64_t count = run_dim(run, "b", 0) * run_dim(run, "n", 0), pages = run_dim(run, "p", 1);
    for (int64_t i = 0; i < count; i++) values[i] = (int32_t)(i * 611953 % pages);
}

void draw_full(const struct run *run, int32_t *values)
{
    const int64_t k = run_dim(run, "k", run_dim(run, "n", 0) * run_dim(run, "s", 0)) - run_dim(run, "new", 0);
    for (int64_t i = 0; i < run_dim(run, "b", 0); i++) values[i] = (int32_t)k;
}

static const char *check_heads(int64_t h, int64_t g, int64_t d, int64_t v)
{
    if (h % g) return "h must be a multiple of g: every key/value head serves as many query heads";
#define SERVES(D, DV) || (d == D && v == DV)
    if (false ATTENTION_HEAD_DIMS(SERVES)) return NULL;
    return "d and v must be 64, 128 or 256, or d=192 with v=128, or d=64 with v=256";
}

// Dimensions b,q,k,h,g,d,v and b,q,h,g,d,v, and others behind them.
const char *variant_check_shape(const int64_t *dim)
{
    return check_heads(dim[3], dim[4], dim[5], dim[6]);
}
const char *variant_check_alike(const int64_t *dim)
{
    if (dim[5] != dim[6]) return "d and v must be the same; others are what step head_dims brings";
    return variant_check_shape(dim);
}
const char *variant_check_cache(const int64_t *dim)
{
    return check_heads(dim[2], dim[3], dim[4], dim[5]);
}
