#include "run.h"

static struct model_config config_of(enum dtype type, const int64_t *dim)
{
    return (struct model_config){
        .layers = (int)dim[TRAINING_LAYERS],
        .heads = (int)dim[TRAINING_HEADS],
        .channels = (int)dim[TRAINING_CHANNELS],
        .vocabulary = (int)dim[TRAINING_VOCABULARY],
        .padded_vocabulary = ((int)dim[TRAINING_VOCABULARY] + 7) / 8 * 8,
        .positions = (int)dim[TRAINING_LENGTH],
        .batch = (int)dim[TRAINING_BATCH],
        .length = (int)dim[TRAINING_LENGTH],
        .dtype = type,
        .attention = (enum attention_by)dim[TRAINING_ATTENTION],
        .products = PRODUCTS_CUBLAS,
    };
}

struct model_config training_config(const struct run *run)
{
    struct model_config config = config_of(run->type, run->dim);
    config.beta1 = (float)run_param(run, "beta1", 0);
    config.beta2 = (float)run_param(run, "beta2", 0);
    config.epsilon = (float)run_param(run, "epsilon", 0);
    config.weight_decay = (float)run_param(run, "weight_decay", 0);
    config.max_norm = (float)run_param(run, "max_norm", 0);
    return config;
}

const char *training_check_shape(const int64_t *dim)
{
    const int64_t attention = dim[TRAINING_ATTENTION];
    if (attention != 9 && attention != 12 && attention != 17) return "attention must be 9, 12 or 17";
    const struct model_config config = config_of(attention == 9 ? F32 : BF16, dim);
    return model_refuse(&config);
}
