// Chapter 22, step 3: each GPU updates a share of the parameters, and has the optimizer's state of that share only.
//
// Question: every GPU keeps master, m and v of all parameters, 12 bytes each, and computes the same update as all others. Must it?
//
// Grows from: step 2 (buckets).
// No (ZeRO, stage 1): of each piece a rank owns a part. It needs the mean of that part's gradient alone, so ncclReduceScatter leaves
// it no more; it updates its part; then ncclAllGather hands the new weights out. An all-reduce is these two, one behind the other, so
// that the links carry no more than before, and less where weights are bf16:
//
//      step 2:  all-reduce 4 bytes                             update all
//      here:    reduce-scatter 4 bytes  ──  norm of norms  ──  update 1/N  ──  all-gather 2 bytes (fp32: 4)
//
//      piece:   | rank 0 | rank 1 | rank 2 : rest |      count / 3 each; what is left over is the last rank's, by itself
//
// What a rank owns lies side by side, decaying parameters first, so that its update is two launches as before. The norm of all
// gradients is that of the ranks' norms.
// Run: make chapter-22 STEP=sharded
#include "../11_gpt2_training/layers.h"
#include "launchers.h"

#include <cuda_runtime.h>

// This rank's part of all that is ready becomes the mean over all ranks, behind what the stream has been asked for.
static void reduce_bucket(model *m, cudaStream_t stream)
{
    exchange *x = exchange_of(m);
    group *g = x->group;
    const int last = g->ranks - 1;
    size_t bytes = 0;
    exchange_fork(m, stream);
    NCCL_CHECK(g, GroupStart());
    for (; x->sent < x->ready; x->sent++) {
        const piece *piece = &x->piece[x->sent];
        const size_t each = part_count(x, piece, 0), rest = part_count(x, piece, last) - each;
        const float *grad = m->grad + piece->first, *grad_rest = grad + piece->count - rest;
        float *own = x->grad + piece->at, *own_rest = own + each;
        // EXERCISE 22.3: each rank gets the mean of its part, the last one also that of the rest (about 4 lines)
        NCCL_CHECK(g, ReduceScatter(grad, own, each, ncclFloat32, ncclAvg, g->comm, g->stream));
        if (rest > 0)
            NCCL_CHECK(g, Reduce(grad_rest, own_rest, rest, ncclFloat32, ncclAvg, last, g->comm, g->stream));
        // STUB NCCL_CHECK(g, AllReduce(grad, own, each, ncclFloat32, ncclAvg, g->comm, g->stream));
        // STUB if (rest > 0) NCCL_CHECK(g, AllReduce(grad_rest, own_rest, rest, ncclFloat32, ncclAvg, g->comm, g->stream));
        // END
        bytes += piece->count * sizeof(float);
    }
    NCCL_CHECK(g, GroupEnd());
    exchange_sent(m, bytes);
}

static void layer_ready(model *m, int layer, cudaStream_t stream)
{
    exchange_ready(m, layer);
    if (exchange_bucket_full(exchange_of(m))) reduce_bucket(m, stream);
}

// The norm of all gradients, and what follows from it, in model->state. One that has overflowed anywhere is infinite everywhere. The
// losses come along.
static void norm_of_norms(model *m, cudaStream_t stream)
{
    exchange *x = exchange_of(m);
    group *g = x->group;
    const model_config &c = m->config;
    ran(m, "gradient norm", 0,
        loss_scale(F32, x->grad, m->owned, c.max_norm, c.beta1, c.beta2, 0, x->own, stream), stream);
    float *loss = (float *)activation(m, LOSS, 0);
    exchange_fork(m, stream);
    NCCL_CHECK(g, GroupStart());
    NCCL_CHECK(g, AllGather(x->own.norm, x->norms, 1, ncclFloat32, g->comm, g->stream));
    NCCL_CHECK(g, AllReduce(loss, loss, m->rows, ncclFloat32, ncclAvg, g->comm, g->stream));
    NCCL_CHECK(g, GroupEnd());
    exchange_sent(m, (g->ranks + m->rows) * sizeof(float));
    // GRADED 22.4: what follows from the norms of all ranks
    exchange_join(m, stream);
    ran(m, "gradient norm", 0,
        loss_scale(F32, x->norms, g->ranks, c.max_norm, c.beta1, c.beta2, 0, m->state, stream), stream);
    // END
}

// AdamW on what this rank owns, from `first` to before `last`.
static void update_some(model *m, size_t first, size_t last, float weight_decay, cudaStream_t stream)
{
    exchange *x = exchange_of(m);
    const model_config &c = m->config;
    const adamw_settings settings = {0, c.beta1, c.beta2, c.epsilon, weight_decay};
    void *rounded = c.dtype == BF16 ? (char *)x->weights + first * 2 : NULL;
    if (first == last) return;
    ran(m, "update", 0,
        update_as_controlled(F32, x->grad + first, rounded, m->master + first, m->m + first, m->v + first,
                             last - first, m->lr, settings, m->state.control, stream),
        stream);
}

extern "C" cudaError_t sharded(struct model *m, cudaStream_t stream)
{
    exchange *x = exchange_of(m);
    if (!x->sharded) return cudaErrorInvalidValue;

    forward_pass(m, stream);
    loss_pass(m, stream);
    x->ready = x->sent = 0;
    m->ready = layer_ready;
    backward_pass(m, stream);
    exchange_join(m, stream);

    norm_of_norms(m, stream);
    update_some(m, 0, x->decayed, m->config.weight_decay, stream);
    update_some(m, x->others, x->owned, 0, stream);
    exchange_fork(m, stream);
    exchange_gather(m, x->weights, m->weights, m->config.dtype, x->group->stream);
    exchange_sent(m, m->parameters * (m->config.dtype == BF16 ? 2 : 4));
    exchange_join(m, stream);
    return cudaSuccess;
}
