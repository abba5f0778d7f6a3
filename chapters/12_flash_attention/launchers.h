// The launchers of this chapter's steps: defined in the .cu files, called by main.c.
#pragma once

#include "../../common/device/attention.h"

#ifdef __cplusplus
extern "C" {
#endif

attention_launcher basic, swizzled, two_stage, wide_loads, large_tile, less_softmax, one_barrier;

#ifdef __cplusplus
}
#endif
