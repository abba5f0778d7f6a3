// The training steps: defined in the .cu files, called by main.c and by the trainer.
#pragma once

#include "model.h"

#ifdef __cplusplus
extern "C" {
#endif

// One step of training on model->tokens, with *model->lr: loss of every position in LOSS, the gradient's norm in
// model->state.norm, the parameters updated unless it has overflowed. Everything is in `stream`, nothing is waited for.
// Returns the error of a launch that the step itself makes; layers.h's ran() exits on all others.
typedef cudaError_t training_step(struct model *model, cudaStream_t stream);
training_step layer_by_layer, fused, recorded;

// The parts of `fused`: logits of model->tokens; from these LOSS, and the logits' gradient in their place; from that the
// gradient of all parameters; from that its norm, and the parameters updated.
void forward_pass(struct model *model, cudaStream_t stream);
void loss_pass(struct model *model, cudaStream_t stream);
void backward_pass(struct model *model, cudaStream_t stream);
void update_pass(struct model *model, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
