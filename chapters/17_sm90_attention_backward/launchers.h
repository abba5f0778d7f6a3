// The launchers of this chapter's steps: defined in the .cu files, called by main.c.
#pragma once

#include "backward.h"

#ifdef __cplusplus
extern "C" {
#endif

attention_backward_launcher five_products, producer, bulk_reduction, in_flight, in_registers;

#ifdef __cplusplus
}
#endif
