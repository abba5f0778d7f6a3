// What steps 1 to 4 share: the sizes that they have in common.
#pragma once
#include "../19_fp8_gemm/persistent.cuh"

constexpr int BLOCK_K = GROUP;       // columns of A and B in shared memory at a time
constexpr int MMA_M = 64;            // rows of a wgmma
constexpr int CLUSTER = 2;           // blocks that share rows of A or of B
constexpr int GROUP_M = 8;           // rows of cluster tiles that clusters of neighbouring numbers share
constexpr int MAX_SMEM = 227 * 1024; // of a block
