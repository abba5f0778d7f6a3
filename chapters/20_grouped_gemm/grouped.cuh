// What the steps of this chapter share: the tile and its room in shared memory, tensor maps, and how wide a tile is.
#pragma once
#include <algorithm>
#include <type_traits>

#include "../../common/device/tensor_map.h"
#include "../19_fp8_gemm/persistent.cuh"

constexpr int BLOCK_M = 128;                           // rows of D a block owns
constexpr int BLOCK_K = GROUP;                         // columns of A and B in shared memory at a time
constexpr int MMA_M = 64;                              // rows of a wgmma
constexpr int NUM_CONSUMERS = BLOCK_M / MMA_M;         // warpgroups that multiply, 64 rows each
constexpr int NUM_THREADS = (1 + NUM_CONSUMERS) * 128; // warpgroup 0 is the producer
constexpr int CLUSTER = 2;                             // blocks side by side, which share their rows of A
constexpr int GROUP_M = 8; // rows of cluster tiles that clusters of neighbouring numbers share

// Scales of A's rows in a stage. TMA reads from a multiple of 4 on, up to 3 too many, and each stage's begin at a multiple of 32.
constexpr int SCALES = BLOCK_M + 32;

constexpr int PRODUCER_REGS = 40;
constexpr int CONSUMER_REGS = 232;
constexpr int LAUNCH_REGS = 65536 / NUM_THREADS / 8 * 8; // what __launch_bounds__ makes of 65,536 registers
static_assert(PRODUCER_REGS + NUM_CONSUMERS * CONSUMER_REGS <= (1 + NUM_CONSUMERS) * LAUNCH_REGS,
              "setmaxnreg moves registers of the block, it makes none");

constexpr int PIECE_BYTES = BLOCK_M * STORE_ROW_BYTES; // of D's tile
constexpr int MAX_SMEM = 227 * 1024;                   // of a block

// As many stages as there is room for beside D's pieces and the barriers.
template <int BLOCK_N>
constexpr int NUM_STAGES = (MAX_SMEM - STORE_PIECES<BLOCK_N> * PIECE_BYTES - 256) /
                           ((BLOCK_M + BLOCK_N) * BLOCK_K + SCALES * (int)sizeof(float));

// The next tile of `tiles` for a whole warp, whose lanes have all come to the same: by the vote and the shuffles the compiler knows it.
// Else it must think that counts from memory may lead them different ways, and keeps nothing in uniform registers.
template <typename TILES, typename TILE>
__device__ inline bool next_of_warp(TILES &tiles, TILE &tile)
{
    if (!__any_sync(0xffffffff, tiles.next(tile))) return false;
    tile.row = __shfl_sync(0xffffffff, tile.row, 0);
    tile.col = __shfl_sync(0xffffffff, tile.col, 0);
    return true;
}

// Whether TMA can load these matrices, and the arguments are there.
static inline bool can_multiply_groups(const void *A, const void *B, const float *scale_A,
                                       const float *scale_B, const int *of_groups, const void *D, int M,
                                       int N, int K, int groups)
{
    return can_multiply(A, B, scale_A, scale_B, D, M, N, K) && (uintptr_t)scale_A % 16 == 0 && of_groups &&
           groups > 0 && N <= INT32_MAX / groups - 1024;
}

struct Maps {
    CUtensorMap A, B, scale_A, D;
    bool tma_store; // D's rows are multiples of 16 bytes
};

template <int BLOCK_N>
static cudaError_t make_maps(Maps &maps, const void *A, const void *B, const float *scale_A, __nv_bfloat16 *D,
                             int M, int N, int K, int groups)
{
    maps = {};
    maps.tma_store = N % 8 == 0 && (uintptr_t)D % 16 == 0;
    cudaError_t error =
        tensor_map_matrix(&maps.A, CU_TENSOR_MAP_DATA_TYPE_UINT8, A, M, K, BLOCK_M / CLUSTER, BLOCK_K);
    if (error == cudaSuccess)
        error = tensor_map_matrix(&maps.B, CU_TENSOR_MAP_DATA_TYPE_UINT8, B, groups * N, K, BLOCK_N, BLOCK_K);
    if (error == cudaSuccess)
        error = tensor_map_vectors(&maps.scale_A, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, scale_A,
                                   (K - 1) / BLOCK_K + 1, (M + 3) / 4 * 4, SCALES);
    if (error == cudaSuccess && maps.tma_store)
        error = tensor_map_matrix(&maps.D, tensor_map_type<__nv_bfloat16>(), D, M, N, BLOCK_M,
                                  STORE_COLS<BLOCK_N, __nv_bfloat16>);
    return error;
}

// Calls launch(width, clusters) with the width of a block's tile with which about likely_m tiles of rows are done first, if a round
// of the clusters takes as long as its steps of k; the wider of two. As chapter 19's step 4, but always 128 rows. Clusters for as many as most_m tiles of rows.
template <typename LAUNCH>
static cudaError_t with_width(long long likely_m, long long most_m, int N, LAUNCH launch)
{
    int device, sms, best = 0;
    long long best_time = INT64_MAX, clusters = 0;
    cudaError_t error = cudaGetDevice(&device);
    if (error == cudaSuccess) error = cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device);
    if (error != cudaSuccess) return error;
    for (const int block_n : {96, 128, 160, 192}) {
        const long long tiles_n = (N - 1) / (CLUSTER * block_n) + 1;
        if (most_m * tiles_n > INT32_MAX / 2) return cudaErrorInvalidConfiguration;
        const long long rounds = (likely_m * tiles_n - 1) / (sms / CLUSTER) + 1;
        const long long time = rounds * step_clocks(NUM_CONSUMERS, 1, block_n);
        if (time > best_time) continue;
        best = block_n;
        best_time = time;
        clusters = std::min(most_m * tiles_n, (long long)(sms / CLUSTER));
    }
    switch (best) {
    case 96: return launch(std::integral_constant<int, 96>(), (int)clusters);
    case 128: return launch(std::integral_constant<int, 128>(), (int)clusters);
    case 160: return launch(std::integral_constant<int, 160>(), (int)clusters);
    default: return launch(std::integral_constant<int, 192>(), (int)clusters);
    }
}
