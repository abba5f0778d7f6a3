// The training steps of this chapter: defined in the .cu files, called by main.c and by the trainer.
#pragma once

#include "exchange.h"

#ifdef __cplusplus
extern "C" {
#endif

// Each is a training step of chapter 11 for a model of exchange_model, on this rank's part of the batch: LOSS becomes the mean of all
// ranks' position by position, the gradients their mean, and all ranks update the parameters alike.
training_step replicate, buckets; // of a model whose state is whole
training_step sharded, one_graph; // of one whose state is sharded

#ifdef __cplusplus
}
#endif
