// The launchers of this chapter's steps: defined in the .cu files, called by main.c.
#pragma once

#include "variants.h"

#ifdef __cplusplus
extern "C" {
#endif

attention_backward_launcher five_products, producer, bulk_reduction, in_flight, in_registers, tiles,
    deterministic;

// Each takes the variants of those before it and its own.
attention_variant_backward_launcher window, softcap, varlen;

#ifdef __cplusplus
}
#endif
