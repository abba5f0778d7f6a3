// What a case of training is, for the chapters that train: its dimensions and tensors, and the model that they ask for.
#pragma once

#include "../../common/harness/chapter.h"
#include "model.h"

enum training_dim {
    TRAINING_STEPS,
    TRAINING_BATCH,
    TRAINING_LENGTH,
    TRAINING_LAYERS,
    TRAINING_HEADS,
    TRAINING_CHANNELS,
    TRAINING_VOCABULARY,
    TRAINING_ATTENTION,
    NUM_TRAINING_DIMS
};
#define TRAINING_DIMS                                      \
    {                                                      \
        "steps", "b", "t", "l", "h", "c", "v", "attention" \
    }
#define TRAINING_PARAMETERS "((v+7)/8*8+t)*c+l*(12*c*c+13*c)+2*c"
#define TRAINING_TENSORS                                                                                     \
    {                                                                                                        \
        {"l", I32, PARAM, ""}, {"h", I32, PARAM, ""}, {"c", I32, PARAM, ""}, {"v", I32, PARAM, ""},          \
            {"attention", I32, PARAM, ""}, {"weights", RUN_TYPE, IN, TRAINING_PARAMETERS},                   \
            {"inputs", I32, IN, "steps,b,t", .below = "v"}, {"targets", I32, IN, "steps,b,t", .below = "v"}, \
            {"lr", F32, IN, "steps"}, {"beta1", F32, PARAM, ""}, {"beta2", F32, PARAM, ""},                  \
            {"epsilon", F32, PARAM, ""}, {"weight_decay", F32, PARAM, ""}, {"max_norm", F32, PARAM, ""},     \
            {"loss", F32, OUT, "steps"}, {"norm", F32, OUT, "steps"},                                        \
        {                                                                                                    \
            "after", F32, OUT, TRAINING_PARAMETERS                                                           \
        }                                                                                                    \
    }

// The model of a run, with what AdamW is told.
struct model_config training_config(const struct run *run);

// NULL, or what the dimensions would have to be.
const char *training_check_shape(const int64_t *dim);
