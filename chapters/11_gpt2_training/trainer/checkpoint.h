// A training on disk: settings, how far it is, parameters, and what AdamW remembers of each.
#pragma once

#include "settings.h"

#include "../../../common/harness/error.h"

struct checkpoint {
    struct settings settings;
    int step; // steps done
    float scale;
    int good_steps, updates; // of model->state
    float *numbers;          // master, m, v: 3 * parameters
    size_t parameters;
};

// Writes the training after `step` steps to `path`, with the numbers that parallel_numbers gave: at once or not at all, even if the
// machine stops meanwhile. Returns false with the reason in *error, and then the file is what it was.
bool checkpoint_save(const char *path, const struct settings *settings, int step, const struct model *model,
                     const float *numbers, struct error *error);

// Reads it; checkpoint_free frees it. Returns false with the reason in *error for a file that is not a checkpoint, of another
// version, shorter or longer than it should be, or of which any bit has changed.
bool checkpoint_load(const char *path, struct checkpoint *checkpoint, struct error *error);
void checkpoint_free(struct checkpoint *checkpoint);

// Memory for the numbers of a checkpoint of so many parameters, to be freed. Exits where there is none.
float *checkpoint_numbers(size_t parameters);

// Puts it into a model of as many parameters.
void checkpoint_restore(const struct checkpoint *checkpoint, struct model *model);

// llm.c's gpt2_124M.bin and its like (versions 3, fp32, and 5, bf16): sets what the file says of settings->model, and returns the
// parameters in the order of enum parameter, to be freed; NULL with the reason in *error.
float *llmc_load(const char *path, struct model_config *config, struct error *error);
