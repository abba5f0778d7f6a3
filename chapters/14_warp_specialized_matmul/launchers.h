// The launchers of this chapter's steps: defined in the .cu files, called by main.c.
#pragma once

#include "../../common/device/matmul.h"

#ifdef __cplusplus
extern "C" {
#endif

matmul_16bit producer_consumer, cluster_multicast, persistent, tma_store, ping_pong, stream_k, few_rows,
    few_tiles;

#ifdef __cplusplus
}
#endif
