// The speed of a training, as results/ has it.
#pragma once

#include "../../../common/harness/bench.h"
#include "options.h"

// Adds what each of `steps` steps took, in seconds, to the file options->record: median and quartiles of tokens/s, without the first
// steps, which allocate, record and warm up; `took` is sorted. Exits where there are too few, or the file cannot be written.
void record_speed(const struct options *options, const struct device *device, const struct model *model,
                  double *took, int steps);
