// Attention by chapters 12, 15 and 17.
#include "attention.h"

#include "../12_flash_attention/launchers.h"
#include "../15_sm90_attention_forward/launchers.h"
#include "../17_sm90_attention_backward/launchers.h"

static struct attention sizes(const struct model_config *c)
{
    return (struct attention){
        .dtype = c->dtype,
        .batch = c->batch,
        .q_len = c->length,
        .k_len = c->length,
        .heads = c->heads,
        .kv_heads = c->heads,
        .head_dim = c->channels / c->heads,
        .causal = true,
    };
}

// The forward's tensors; O and LSE are const to a backward.
static struct attention tensors(const struct model_config *c, const void *qkv, const float *LSE,
                                const void *atty)
{
    const size_t part_bytes = (size_t)c->batch * c->length * c->channels * 2; // bf16
    struct attention a = sizes(c);
    a.Q = qkv;
    a.K = (const char *)qkv + part_bytes;
    a.V = (const char *)qkv + 2 * part_bytes;
    a.O = (void *)atty;
    a.LSE = (float *)LSE;
    return a;
}

cudaError_t flash_forward(const struct model_config *c, const void *qkv, float *LSE, void *atty,
                          cudaStream_t stream)
{
    const struct attention a = tensors(c, qkv, LSE, atty);
    return c->attention == ATTENTION_12 ? one_barrier(&a, stream) : tma_store(&a, stream);
}

cudaError_t flash_backward(const struct model_config *c, const void *qkv, const void *atty, const float *LSE,
                           const void *dout, void *workspace, void *dqkv, cudaStream_t stream)
{
    const size_t part_bytes = (size_t)c->batch * c->length * c->channels * 2;
    const struct attention_backward a = {
        .forward = tensors(c, qkv, LSE, atty),
        .dO = dout,
        .dQ = dqkv,
        .dK = (char *)dqkv + part_bytes,
        .dV = (char *)dqkv + 2 * part_bytes,
        .workspace = workspace,
    };
    return c->deterministic ? deterministic(&a, stream) : tiles(&a, stream);
}

size_t flash_workspace_bytes(const struct model_config *c)
{
    const struct attention a = sizes(c);
    return attention_backward_workspace_bytes(&a);
}
