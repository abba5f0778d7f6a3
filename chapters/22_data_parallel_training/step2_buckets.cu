// Chapter 22, step 2: gradients are exchanged while the backward goes on.
//
// Question: in step 1 the links idle during the backward, and the GPU during the exchange. The last layer's gradients are there
// long before the first layer's. What keeps them?
//
// Grows from: step 1 (replicate).
// Only the order of the calls. The backward says when a layer's gradients have been launched; an event then lets the group's stream
// begin. Layer by layer these would be many short exchanges, and a large array is exchanged faster. So a bucket is half of the layers
// that are left: large where much time is left to hide it, small at the end. A matrix of all of a bucket's layers is one array, and
// ncclGroupStart and ncclGroupEnd make one launch of its four.
//
//      stream:        forward ── loss ── layer 3 ── layer 2 ── layer 1 ── layer 0 ── wte ──┐                ┌── norm, update
//      group's:                          ·· loss ··           ·· 3, 2 ·· ··· 1 ··· ··· 0 ··· wte, vectors ──┘
//
// Only what comes last is waited for: wte, which gets its last gradient at the very end, and what is too small to matter.
// Run: make chapter-22 STEP=buckets
#include "launchers.h"

#include <cuda_runtime.h>

// All that is ready becomes the mean over all ranks, behind what the stream has been asked for.
static void reduce_bucket(model *m, cudaStream_t stream)
{
    exchange *x = exchange_of(m);
    group *g = x->group;
    size_t bytes = 0;
    exchange_fork(m, stream);
    NCCL_CHECK(g, GroupStart());
    for (; x->sent < x->ready; x->sent++) {
        const piece *piece = &x->piece[x->sent];
        float *grad = m->grad + piece->first;
        NCCL_CHECK(g, AllReduce(grad, grad, piece->count, ncclFloat32, ncclAvg, g->comm, g->stream));
        bytes += piece->count * sizeof(float);
    }
    NCCL_CHECK(g, GroupEnd());
    exchange_sent(m, bytes);
}

static void layer_ready(model *m, int layer, cudaStream_t stream)
{
    // EXERCISE 22.2: what is ready is noted, and leaves when it fills a bucket (about 2 lines)
    exchange_ready(m, layer);
    if (exchange_bucket_full(exchange_of(m))) reduce_bucket(m, stream);
    // STUB if (layer < 0) reduce_bucket(m, stream);
    // END
}

static void reduce_loss(model *m, cudaStream_t stream)
{
    group *g = exchange_of(m)->group;
    float *loss = (float *)activation(m, LOSS, 0);
    exchange_fork(m, stream);
    NCCL_CHECK(g, AllReduce(loss, loss, m->rows, ncclFloat32, ncclAvg, g->comm, g->stream));
    exchange_sent(m, m->rows * sizeof(float));
}

extern "C" cudaError_t buckets(struct model *m, cudaStream_t stream)
{
    exchange *x = exchange_of(m);
    if (x->sharded) return cudaErrorInvalidValue;

    forward_pass(m, stream);
    loss_pass(m, stream);
    reduce_loss(m, stream);
    x->ready = x->sent = 0;
    m->ready = layer_ready;
    backward_pass(m, stream);
    exchange_join(m, stream);

    update_pass(m, stream);
    return cudaSuccess;
}
