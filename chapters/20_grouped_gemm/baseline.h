// What --bench draws for the groups, and the baseline: a product of cuBLASLt for each of them.
#pragma once

#include <stdint.h>

#include "../../common/harness/chapter.h"

// The tensors of counts in a benchmark, as `draw` of struct tensor: groups of equal numbers of tiles; counts around the mean, no
// multiples of 128; counts around e; counts of columns, whole blocks of 128 but for a few zeros.
void draw_row_group(const struct run *run, int32_t *values);
void draw_counts(const struct run *run, int32_t *values);
void draw_masked(const struct run *run, int32_t *values);
void draw_columns(const struct run *run, int32_t *values);

// cuBLASLt's e4m3 product (chapter 19's baseline: one scale for A, one for B) of each group that a benchmark draws, one call after the
// other. The host knows their sizes, and rounds them up to what cuBLASLt takes: less work than ours, and rows of others are written.
// Errors as chapter 19's.
cudaError_t launch_one_by_one(const struct run *run, cudaStream_t stream);
