// The launchers of this chapter's steps: defined in the .cu files, called by main.c.
#pragma once

#include "variants.h"

#ifdef __cplusplus
extern "C" {
#endif

// Each takes the variants of those before it and its own.
attention_variant_launcher window, softcap, sinks, head_dims, varlen, pack_gqa, split_kv, paged_kv, append_kv;

#ifdef __cplusplus
}
#endif
