// The backward pass: chapter 17's.
#include "../chapters/17_sm90_attention_backward/launchers.h"
#include "convert.h"

static struct attention_variant_backward backward_of(const struct cookbook_attention *a)
{
    return (struct attention_variant_backward){
        .forward = variant_of(a),
        .dO = a->dO,
        .dQ = a->dQ,
        .dK = a->dK,
        .dV = a->dV,
        .deterministic = a->deterministic != 0,
        .workspace = a->workspace,
    };
}

size_t backward_workspace_bytes(const struct cookbook_attention *a)
{
    const struct attention_variant_backward b = backward_of(a);
    return attention_backward_variant_bytes(&b);
}

const char *cookbook_attention_backward(const struct cookbook_attention *a, cudaStream_t stream)
{
    const struct attention_variant_backward b = backward_of(a);
    const char *refused = attention_backward_refused(&b);
    if (refused) return refused;
    int capability;
    const cudaError_t error = compute_capability(&capability);
    if (error != cudaSuccess) return named(error);
    if (capability != 90) return "the backward pass needs a GPU of compute capability 9.0";
    if (!b.workspace) return "workspace is missing";
    return named(varlen(&b, stream));
}
