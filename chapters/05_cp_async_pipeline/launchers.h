// The launchers of this chapter's steps: defined in the .cu files, called by main.c.
#pragma once

#include "../../common/device/matmul.h"

#ifdef __cplusplus
extern "C" {
#endif

matmul_bf16 two_stage, multi_stage, fragments_ahead, wide_loads, lean_loop, wide_block, grouped_tiles,
    wide_stores, persistent;

#ifdef __cplusplus
}
#endif
