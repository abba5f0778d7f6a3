// When the exchange went on and when the GPU waited for it: CUDA events, in the group's stream and in the computation's.
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include <cuda_runtime_api.h>

enum mark { EXCHANGE_BEGINS, EXCHANGE_ENDS, WAIT_BEGINS, WAIT_ENDS };
struct timeline;

// Notes the moment at which `stream` is there; the first mark makes *timeline. `bytes`: what the exchange that ends has reduced or
// gathered, the whole of it, not a rank's part.
void timeline_mark(struct timeline **timeline, enum mark mark, size_t bytes, cudaStream_t stream);

// Waits, prints a line for the mean of `steps` steps, and frees the timeline.
void timeline_print(struct timeline *timeline, int steps, bool with_times);
