// Chapter 17, step 6: tiles by head dimension, and masks by consumer.
//
// Question: a tile of 64 queries takes as many barriers, waits and hand-overs at D = 64 as at D = 128, for half the products. What
// decides how many queries a tile can have?
//
// Registers. Of 240, dK and dV of 64 keys take D; S and dP take Q, and P in 16 bits Q / 4 more if dV is to run while dS is computed.
// At D = 64 there is room for Q = 128 without that, so dV begins when dS is there. At D = 128 Q = 64 is what fits. plan.h has the
// table.
//
//                      Q x keys   dQ: a consumer has         dV begins
//      D = 64          128 x 128  64 of the queries          behind dS
//      D = 128         64 x 128   64 of the columns          behind P
//      D = 256         64 x 64    128 of the columns         behind dS, as in step 4
//
// With any other Q dQ is computed transposed, dQᵀ = Kᵀ dSᵀ: 64 columns are then the rows of a wgmma, and Q its n.
//
// A consumer masks what its own 64 keys need (sees_all): the tile that crosses an edge for one need not for the other. Which tile a
// stage holds is written into shared memory by the producer, and the loop keeps one counter.
//
// Grows from: nothing.
// Code: kernel.cuh, a changed copy of step5_in_registers.cu (and, consume_shared, of step4_in_flight.cu): diff -w shows what is new.
// Run: make chapter-17 OP=attention STEP=tiles
#include "launchers.h"
#include "plan.h"

extern "C" cudaError_t tiles(const attention_backward *a, cudaStream_t stream)
{
    return launch_backward(without_variants(*a), TILES, stream);
}
