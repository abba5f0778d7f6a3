// The launchers of this chapter's steps: defined in the .cu files, called by main.c.
#pragma once

#include "../../common/device/matmul.h"

#ifdef __cplusplus
extern "C" {
#endif

matmul_f32 smem_tile, register_tile, wide_copies, wide_fragments, prefetch, fragments_ahead, large_tile;

#ifdef __cplusplus
}
#endif
