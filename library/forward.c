// The forward pass: which chapter's kernel serves it on this GPU.
#include "../chapters/12_flash_attention/launchers.h"
#include "../chapters/15_sm90_attention_forward/launchers.h"
#include "../chapters/16_sm90_attention_variants/launchers.h"
#include "convert.h"

size_t forward_workspace_bytes(const struct cookbook_attention *a)
{
    const struct attention_variant v = variant_of(a);
    return attention_workspace_bytes(&v);
}

size_t cookbook_attention_workspace_bytes(const struct cookbook_attention *a)
{
    const size_t forward = forward_workspace_bytes(a), backward = a->dO ? backward_workspace_bytes(a) : 0;
    return forward > backward ? forward : backward;
}

// Whether chapters 12 and 15 know it: sequences of equal lengths, causal or without a mask.
static bool is_plain(const struct attention_variant *v)
{
    return !v->cu_q && v->softcap == 0 && v->left >= v->k_len - 1 &&
           (v->right == 0 || v->right == ATTENTION_UNBOUNDED);
}

const char *cookbook_attention_forward(const struct cookbook_attention *a, cudaStream_t stream)
{
    const struct attention_variant v = variant_of(a);
    const char *refused = attention_refused(&v);
    if (refused) return refused;
    const struct attention plain = {
        .dtype = v.dtype,
        .Q = v.Q,
        .K = v.K,
        .V = v.V,
        .O = v.O,
        .LSE = v.LSE,
        .batch = v.batch,
        .q_len = v.q_len,
        .k_len = v.k_len,
        .heads = v.heads,
        .kv_heads = v.kv_heads,
        .head_dim = v.head_dim,
        .causal = v.right == 0,
    };
    int capability;
    const cudaError_t error = compute_capability(&capability);
    if (error != cudaSuccess) return named(error);
    if (capability == 90) {
        if (is_plain(&v) && v.q_len > 64) return named(tma_store(&plain, stream));
        if (attention_workspace_bytes(&v) > 0 && !v.workspace) return "workspace is missing";
        return named(append_kv(&v, stream)); // Few queries: heads are packed, keys shared out.
    }
    if (capability < 80) return "a GPU of compute capability 8.0 or later is needed";
    if (!is_plain(&v) || v.head_dim == 256)
        return "windows, softcap, cu_q and head_dim 256 need a GPU of compute capability 9.0";
    return named(one_barrier(&plain, stream));
}
