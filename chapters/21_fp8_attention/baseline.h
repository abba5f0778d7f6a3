// What the steps are measured beside: the last step of chapter 15, on the same numbers in bf16.
#pragma once

#include "../../common/device/attention.h"

#ifdef __cplusplus
extern "C" {
#endif

// Chapter 15's tma_store on copies of Q, K and V in bf16 (of a V that is transposed, of its bytes), which are made at the first
// call with these sizes and kept; O and LSE go nowhere. Returns the error of the allocation or of a launch.
attention_launcher attention_in_bf16;

#ifdef __cplusplus
}
#endif
