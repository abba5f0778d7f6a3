// Chapter 16, step 3: a score without a key.
//
// Question: a row of a softmax adds up to 1, so a head that finds nothing must look at something. An attention sink is a
// learned score of each head that takes part of the sum and has no value: where does it enter an online softmax?
//
// At its end, once a row (finish_sums): another state (m, l, O) = (sink, 1, 0) is merged, as two tiles are. Nothing in the loop
// knows of it. A row that sees no key then has O = 0 and LSE = sink.
//
// Grows from: step 2 (softcap).
// Code: kernel.cuh, finish_sums.
// Run: make chapter-16 OP=sinks
#include "launchers.h"
#include "plan.h"

extern "C" cudaError_t sinks(const struct attention_variant *v, cudaStream_t stream)
{
    return launch_attention(*v, SINKS, stream);
}
