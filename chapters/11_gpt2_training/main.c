// Chapter 11: training GPT-2. Some steps of it, from given parameters and text, against the same in NumPy.
#include "../../common/harness/chapter.h"
#include "../../common/harness/error.h"
#include "launchers.h"

enum { STEPS_DIM, BATCH, LENGTH, LAYERS, HEADS, CHANNELS, VOCABULARY, ATTENTION }; // dims

#define DATA(name)  run_data(run, name)
#define PARAM(name) (float)run_param(run, name, 0)

static struct model_config config_of(enum dtype type, const int64_t *dim)
{
    return (struct model_config){
        .layers = (int)dim[LAYERS],
        .heads = (int)dim[HEADS],
        .channels = (int)dim[CHANNELS],
        .vocabulary = (int)dim[VOCABULARY],
        .padded_vocabulary = ((int)dim[VOCABULARY] + 7) / 8 * 8,
        .positions = (int)dim[LENGTH],
        .batch = (int)dim[BATCH],
        .length = (int)dim[LENGTH],
        .dtype = type,
        .attention = (enum attention_by)dim[ATTENTION],
        .products = PRODUCTS_CUBLAS,
    };
}

static cudaError_t launch(any_launcher *launcher, const struct run *run, cudaStream_t stream)
{
    struct model_config config = config_of(run->type, run->dim);
    config.beta1 = PARAM("beta1"), config.beta2 = PARAM("beta2"), config.epsilon = PARAM("epsilon");
    config.weight_decay = PARAM("weight_decay"), config.max_norm = PARAM("max_norm");
    struct model *model = model_create(&config, 0);
    float *parameters = model_parameters(run->type, DATA("weights"), model->parameters);
    model_set_parameters(model, parameters);
    free(parameters);

    const size_t tokens = (size_t)model->rows;
    cudaError_t error = cudaSuccess;
    for (int step = 0; step < run->dim[STEPS_DIM] && error == cudaSuccess; step++) {
        const int *inputs = (int *)DATA("inputs") + step * tokens,
                  *targets = (int *)DATA("targets") + step * tokens;
        const float *lr = (float *)DATA("lr") + step;
        CUDA_CHECK(
            cudaMemcpyAsync(model->tokens, inputs, tokens * sizeof(int), cudaMemcpyDeviceToDevice, stream));
        CUDA_CHECK(
            cudaMemcpyAsync(model->targets, targets, tokens * sizeof(int), cudaMemcpyDeviceToDevice, stream));
        CUDA_CHECK(cudaMemcpyAsync(model->lr, lr, sizeof *lr, cudaMemcpyDeviceToDevice, stream));
        error = ((training_step *)launcher)(model, stream);
        CUDA_CHECK(cudaStreamSynchronize(stream));
        const float loss = model_mean_loss(model);
        CUDA_CHECK(cudaMemcpy((float *)DATA("loss") + step, &loss, sizeof loss, cudaMemcpyHostToDevice));
        CUDA_CHECK(cudaMemcpy((float *)DATA("norm") + step, model->state.norm, sizeof loss,
                              cudaMemcpyDeviceToDevice));
    }
    CUDA_CHECK(cudaMemcpy(DATA("after"), model->master, model->parameters * sizeof(float),
                          cudaMemcpyDeviceToDevice));
    model_free(model);
    return error;
}

static const char *check_shape(const int64_t *dim)
{
    const int64_t attention = dim[ATTENTION];
    if (attention != 9 && attention != 12 && attention != 17) return "attention must be 9, 12 or 17";
    const struct model_config config = config_of(attention == 9 ? F32 : BF16, dim);
    return model_refuse(&config);
}

#define PARAMETERS "((v+7)/8*8+t)*c+l*(12*c*c+13*c)+2*c"

static const struct operation operations[] = {
    {
        .title = "steps of training GPT-2: loss and gradient norm of each, and the parameters after the last",
        .types = {F32, BF16},
        .dims = {"steps", "b", "t", "l", "h", "c", "v", "attention"},
        .check_shape = check_shape,
        .tensors = {{"l", I32, PARAM, ""},
                    {"h", I32, PARAM, ""},
                    {"c", I32, PARAM, ""},
                    {"v", I32, PARAM, ""},
                    {"attention", I32, PARAM, ""},
                    {"weights", RUN_TYPE, IN, PARAMETERS},
                    {"inputs", I32, IN, "steps,b,t", .below = "v"},
                    {"targets", I32, IN, "steps,b,t", .below = "v"},
                    {"lr", F32, IN, "steps"},
                    {"beta1", F32, PARAM, ""},
                    {"beta2", F32, PARAM, ""},
                    {"epsilon", F32, PARAM, ""},
                    {"weight_decay", F32, PARAM, ""},
                    {"max_norm", F32, PARAM, ""},
                    {"loss", F32, OUT, "steps"},
                    {"norm", F32, OUT, "steps"},
                    {"after", F32, OUT, PARAMETERS}},
        .steps = STEPS(STEP(training_step, layer_by_layer), STEP(training_step, fused),
                       STEP(training_step, recorded)),
        .launch = launch,
    },
};

CHAPTER(operations)
