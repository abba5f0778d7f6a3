// Chapter 11: training GPT-2. Some steps of it, from given parameters and text, against the same in NumPy.
#include "../../common/harness/chapter.h"
#include "../../common/harness/error.h"
#include "launchers.h"
#include "run.h"

#define DATA(name) run_data(run, name)

static cudaError_t launch(any_launcher *launcher, const struct run *run, cudaStream_t stream)
{
    const struct model_config config = training_config(run);
    struct model *model = model_create(&config, 0);
    float *parameters = model_parameters(run->type, DATA("weights"), model->parameters);
    model_set_parameters(model, parameters);
    free(parameters);

    const size_t tokens = (size_t)model->rows;
    cudaError_t error = cudaSuccess;
    for (int step = 0; step < run->dim[TRAINING_STEPS] && error == cudaSuccess; step++) {
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

static const struct operation operations[] = {
    {
        .title = "steps of training GPT-2: loss and gradient norm of each, and the parameters after the last",
        .types = {F32, BF16},
        .dims = TRAINING_DIMS,
        .check_shape = training_check_shape,
        .tensors = TRAINING_TENSORS,
        .steps = STEPS(STEP(1, training_step, layer_by_layer), STEP(2, training_step, fused),
                       STEP(3, training_step, recorded)),
        .launch = launch,
    },
};

CHAPTER(operations)
