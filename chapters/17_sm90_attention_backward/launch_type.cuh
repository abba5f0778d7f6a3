// What the kernels of a type can be launched for.
#pragma once
#include "kernel.cuh"
#include "kernel_256.cuh"

// The table of what can be launched: head dimensions and tiles, each without and with softcap.
template <typename T>
static cudaError_t launch_type(const attention_variant_backward &b, const BackwardPlan &plan,
                               cudaStream_t stream)
{
    using launcher = cudaError_t(const attention_variant_backward &, const BackwardPlan &, cudaStream_t);
    static const struct {
        int head_dim, q_tile;
        launcher *plain, *softcap;
    } TABLE[] = {
        {64, TILE_Q_64, launch_tile<T, Tile<64, TILE_Q_64, false>>, nullptr},
        {64, TILE_Q_SOFTCAP, nullptr, launch_tile<T, Tile<64, TILE_Q_SOFTCAP, true>>},
        {128, TILE_Q_128, launch_tile<T, Tile<128, TILE_Q_128, false>>, nullptr},
        {128, TILE_Q_128_BOUNDED, launch_tile<T, Tile<128, TILE_Q_128_BOUNDED, false>>, nullptr},
        {128, TILE_Q_SOFTCAP, nullptr, launch_tile<T, Tile<128, TILE_Q_SOFTCAP, true>>},
        {256, TILE_Q_256, launch_cluster<T, ClusterTile<TILE_Q_256>>, nullptr},
        {256, TILE_Q_SOFTCAP, nullptr, launch_tile<T, Tile<256, TILE_Q_SOFTCAP, true>>},
    };
    for (const auto &row : TABLE) {
        launcher *launch = b.forward.softcap > 0 ? row.softcap : row.plain;
        if (launch && row.head_dim == b.forward.head_dim && row.q_tile == plan.q_tile)
            return launch(b, plan, stream);
    }
    return cudaErrorInvalidValue;
}
