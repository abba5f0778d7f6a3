// The speed of a training, as results/ has it.
#pragma once

#include "../../../common/harness/bench.h"
#include "options.h"

// Adds what each of `steps` steps took, in seconds, to the file options->record: median and quartiles of tokens/s of all `gpus`, without
// the first steps, which allocate, record and warm up; `took` is sorted. model->config is one GPU's. COOKBOOK_BASELINE may hold what it is
// measured beside, as "833000 PyTorch DDP". Exits where there are too few steps, or the file cannot be written.
void record_speed(const struct options *options, const struct device *device, const struct model *model,
                  int gpus, double *took, int steps);
