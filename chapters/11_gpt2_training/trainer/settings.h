// What a training is: with the same settings, text and GPU it gives the same bits. A checkpoint keeps them.
#pragma once

#include "../model.h"

struct settings {
    struct model_config model; // its batch is that of all GPUs
    int steps,
        warmup; // the rate rises for `warmup` steps, then falls along half a cosine towards final_lr * lr
    float lr, final_lr;
    bool tf32;     // products of fp32 may round to it
    uint64_t seed; // of the parameters at the beginning, of the batches and of the sample
};
