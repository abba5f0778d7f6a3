// Chapter 17, step 7: the same bits in every run.
//
// Question: blocks add to dQ in the order in which they come, and fp32 sums depend on it. What does a fixed order cost, and how do blocks
// keep it without one waiting for a tile of keys that no block has begun?
//
// Every consumer's part of a tile of dQ has a counter of the blocks that have added to it. The warp that stores it waits until the
// counter says how many come before (wait_for_turn), adds, waits until the addition is complete and not only read, and counts on; at
// D = 256 the consumer does so itself (begin_turn). The last keys come first: behind a causal mask a
// block meets its first tile of queries there, where no other has been before it and those with fewer keys come later, so the blocks
// are in step without waiting. Works are numbered as they are taken, and a block does its own in that order: what one waits for has been
// taken before it, and the first that is not done waits for nobody.
//
//      keys                  tiles of queries, the time at which a block comes to each; causal, 2 tiles of queries a tile of keys
//      block 2               .  .  .  .  0  1
//      block 1               .  .  0  1  2  3
//      block 0               0  1  2  3  4  5      each column falls from top to bottom: nobody waits
//
// dK and dV are one block's, of all heads that share them: their order is fixed as it is.
//
// Grows from: step 6 (tiles).
// Code: kernel.cuh, wait_for_turn, store_dQ, begin_turn, the order in find_work, the number in take_work.
// New instructions: cp.async.bulk.wait_group without .read, fence.proxy.async.global.
// Run: make chapter-17 OP=attention STEP=deterministic
#include "launchers.h"
#include "plan.h"

extern "C" cudaError_t deterministic(const attention_backward *a, cudaStream_t stream)
{
    attention_variant_backward b = without_variants(*a);
    b.deterministic = true;
    return launch_backward(b, DETERMINISTIC, stream);
}
