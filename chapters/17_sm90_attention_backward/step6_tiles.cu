// Chapter 17, step 6: tiles by head dimension, and an order of the products for each.
//
// Question: at D = 64 a tile of 64 queries has half the products, and as many waits. At D = 128 both consumers wait for each other's dS
// with nothing to multiply. At D = 256 registers and shared memory are too few for more than 64 keys. What does each need?
//
//                Q x keys   a consumer has                 order
//      D = 64    128 x 128  64 keys                        as step 5, but dV behind storing dS (multiply)
//      D = 128   64 x 128   64 keys                        dQ behind S of the next tile (multiply_ahead)
//      D = 256   64 x 128,  P and dV, or dS and dK,        P goes from one to the other, P and dS to the other block, dQ to
//                a cluster  of half the columns            memory by red (kernel_256.cuh)
//
// What a running wgmma leaves of shared memory decides where to read the statistics. Of its 128 bytes a clock S, dP and dQ with 64
// queries take all (64 x 16 twice in 32 clocks), dV and dK with A from registers half. So at D = 128 LSE_log2 is read as S is issued, behind
// dK, and dPsum as dP is. At D = 64 a lane reads what the warp then shuffles, LSE_log2 before S is issued, and dS is stored before dV reads.
//
// dK and dV leave by the copy engine, from shared memory that nobody reads any more. At D = 64 there is room for K and V of two works: a
// block stays, and takes the next work (take_work) while it has tiles of this one. At D = 64 and 128 dQ of short sequences is not
// cleared before: the first block to have a part of it stores that, the others add theirs (store_dQ).
// At D = 256 a cluster of two blocks has the tile of keys: a block the scores of 64 of them, and of all 128 half the columns of dK, dV
// and dQ. So as many bytes of dQ are added to memory for twice the keys, from registers.
//
// Grows from: nothing.
// Code: kernel.cuh, which began as a copy of step5_in_registers.cu, and kernel_256.cuh.
// New instructions: cp.async.bulk to global memory, atom.acquire.
// Run: make chapter-17 OP=attention STEP=tiles
#include "launchers.h"
#include "plan.h"

extern "C" cudaError_t tiles(const attention_backward *a, cudaStream_t stream)
{
    return launch_backward(without_variants(*a), TILES, stream);
}
