// Chapter 22, step 1: every GPU has the whole model, and a part of the batch.
//
// Question: the loss is a mean over the batch, and so is its gradient. What must GPUs that each have a part of the batch tell each
// other, and when?
//
// Grows from: chapter 11, step 2 (fused).
// The mean of the GPUs' gradients, before the update, and nothing else: parameters that began alike and take the same update stay
// alike, to the bit. ncclAllReduce sums up what all ranks have at a place and leaves it to all of them; ncclAvg divides by their
// number. The loss of each position becomes a mean as well, so that the host reads that of the whole batch wherever it looks.
//
//      rank 0:  forward ── loss ── backward ──┐                ┌── norm, update
//      rank 1:  forward ── loss ── backward ──┴── all-reduce ──┴── norm, update
//
// 4 bytes a parameter, reduced and handed out again, while every GPU waits.
// Run: make chapter-22 STEP=replicate
#include "launchers.h"

#include <cuda_runtime.h>

extern "C" cudaError_t replicate(struct model *m, cudaStream_t stream)
{
    exchange *x = exchange_of(m);
    group *g = x->group;
    float *loss = (float *)activation(m, LOSS, 0);
    if (x->sharded) return cudaErrorInvalidValue;

    forward_pass(m, stream);
    loss_pass(m, stream);
    backward_pass(m, stream);

    // EXERCISE 22.1: losses and gradients become the ranks' means before the update (about 5 lines)
    exchange_fork(m, stream);
    NCCL_CHECK(g, GroupStart());
    NCCL_CHECK(g, AllReduce(loss, loss, m->rows, ncclFloat32, ncclAvg, g->comm, g->stream));
    NCCL_CHECK(g, AllReduce(m->grad, m->grad, m->parameters, ncclFloat32, ncclAvg, g->comm, g->stream));
    NCCL_CHECK(g, GroupEnd());
    // STUB NCCL_CHECK(g, AllReduce(loss, loss, m->rows, ncclFloat32, ncclAvg, g->comm, g->stream));
    // END
    exchange_sent(m, (m->rows + m->parameters) * sizeof(float));
    exchange_join(m, stream);

    update_pass(m, stream);
    return cudaSuccess;
}
