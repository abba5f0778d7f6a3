// The launchers of this chapter's steps: defined in the .cu files, called by main.c.
#pragma once

#include "../../common/device/matmul.h"

#ifdef __cplusplus
extern "C" {
#endif

matmul_16bit tma_wgmma, multi_stage, large_tile;

#ifdef __cplusplus
}
#endif
