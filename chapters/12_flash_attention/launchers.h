// The launchers of this chapter's steps: defined in the .cu files, called by main.c.
#pragma once

#include "../../common/device/attention.h"

#ifdef __cplusplus
extern "C" {
#endif

attention_launcher tile_by_tile, basic, swizzled, two_stage, wide_loads, visible_tiles, large_tile,
    folded_scale, lazy_rescale, longest_first, wide_stores, one_barrier, two_halves;

#ifdef __cplusplus
}
#endif
