// The launchers of this chapter's steps: defined in the .cu files, called by main.c.
#pragma once

#include "../../common/device/attention.h"

#ifdef __cplusplus
extern "C" {
#endif

// head_dim is 64, 128 or 256.
attention_launcher producer_consumer, more_consumers, ping_pong, overlapped, lazy_rescale, old_maximum,
    packed_growth, longest_first, persistent, tma_store;

#ifdef __cplusplus
}
#endif
