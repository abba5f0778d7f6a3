// What a run of this chapter is to a launcher, what it is measured beside, and what --bench gives it.
#pragma once

#include "../../common/harness/attention.h"

// Launches a step, an attention_variant_launcher, with what the run's operation has, by name: dimensions b, q, k, h, g, d, v and
// others, parameters, tensors. The workspace is kept between launches.
cudaError_t variant_launch(any_launcher *launcher, const struct run *run, cudaStream_t stream);

// Baselines: PyTorch's cuDNN backend, for the two windows that it has; sequences of equal lengths with as many products as those
// of attention_draw_lengths; the same K and V without their page table.
cudaError_t variant_sdpa(const struct run *run, cudaStream_t stream);
cudaError_t variant_sdpa_fetch(const struct run *run, cudaStream_t stream);
cudaError_t variant_equal_lengths(const struct run *run, cudaStream_t stream);
cudaError_t variant_without_pages(const struct run *run, cudaStream_t stream);

// What --bench draws: pages far from their neighbours; caches that are full.
void draw_pages(const struct run *run, int32_t *values);
void draw_full(const struct run *run, int32_t *values);

// NULL, or what dimensions b,q,k,h,g,d,v,… and b,q,h,g,d,v,… would have to be.
const char *variant_check_shape(const int64_t *dim);
const char *variant_check_alike(const int64_t *dim); // of steps that have one head dimension
const char *variant_check_cache(const int64_t *dim);
