// Looking into a model from the host: where a loss became NaN, and what the model would write.
#pragma once

#include "settings.h"
#include "text.h"

// Runs the forward and the backward on model->tokens once more, without an update, and looks for the first tensor, in the order in
// which they are computed, that has a number which is none or infinite: parameters, activations, gradients. Writes its name, layer
// and element to `where` and returns true; false if all are finite.
bool find_non_finite(struct model *model, cudaStream_t stream, char *where, size_t size);

// Prints `count` tokens that the model draws, each from its probabilities to the power of 1 / temperature, after a separator
// between documents. Draws are those of `seed`.
void print_sample(struct model *model, const struct text *text, const struct vocabulary *vocabulary,
                  int count, float temperature, uint64_t seed, cudaStream_t stream);
