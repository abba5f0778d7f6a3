// Where the time of a training step goes: an event behind every launch.
#pragma once

#include <cuda_runtime_api.h>

struct profile;

// Starts a profile in the stream; notes that `what` (a string that stays) has been launched since the last call.
struct profile *profile_begin(cudaStream_t stream);
void profile_add(struct profile *profile, const char *what, double flops, cudaStream_t stream);

// Waits, prints a table by what was launched, in milliseconds for each of `steps` steps, most first, and frees the profile. Without
// times, which the simulated GPU has not, there are launches and FLOPs.
void profile_print(struct profile *profile, int steps, int with_times);
