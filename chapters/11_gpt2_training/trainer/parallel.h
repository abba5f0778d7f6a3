// The processes that train one model together, each with a GPU, a part of every batch, and maybe only a share of the optimizer's
// state. build/gpt2 is one process with one GPU (alone.c); build/gpt2_parallel has chapter 22's group.
#pragma once

#include "../launchers.h"

struct place {
    int rank, ranks; // this process's number, from 0 on, and how many there are
};

// Begins, before anything else is asked of CUDA: finds the others, chooses the GPU. Exits with one line if that cannot be.
struct place parallel_begin(void);

// Says that this process has done its part, of whatever step of the model. One that ends without it takes all others with it.
void parallel_end(struct model *model);

// Exits, and says why, if what has been waited for may be wrong, since another process has ended.
void parallel_check(void);

// The training steps, ended by one without a name; the last is the usual one. `launches` is the same step launch by launch.
struct named_step {
    const char *name;
    training_step *step, *launches;
};
extern const struct named_step parallel_steps[];
extern const char parallel_chapter[]; // theirs

// A model for that step, with this process's part of the batch, config->batch, and its share of the state.
struct model *parallel_model(const struct model_config *config, const struct named_step *step);

// Sets all parameters, and m and v (2 * parameters, NULL: 0), from the host.
void parallel_set(struct model *model, const float *parameters, const float *moments);

// Master, m and v of all parameters, in the order of enum parameter, to `numbers` (3 * parameters) on the host of rank 0. All
// processes call it; theirs is not written.
void parallel_numbers(struct model *model, float *numbers, cudaStream_t stream);

// LOSS becomes its mean over all processes.
void parallel_loss(struct model *model, cudaStream_t stream);

// Prints what the processes exchanged while the model had a profile, of `steps` steps; nothing where there is one process.
void parallel_profile(struct model *model, int steps, bool with_times);
