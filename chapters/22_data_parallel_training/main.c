// Chapter 22: training GPT-2 on several GPUs. Chapter 11's steps, each rank on its part of every batch, against the same in NumPy.
#include "../../common/harness/chapter.h"
#include "../../common/harness/error.h"
#include "../11_gpt2_training/run.h"
#include "launchers.h"

#define DATA(name) run_data(run, name)

static struct launch launched;
static struct group *group; // NULL: not joined yet

// Whether the weights are those of all ranks, to the bit.
static bool same_on_all_ranks(const struct model *model)
{
    const size_t bytes = model->parameters * dtype_bytes(model->config.dtype);
    unsigned char *weights = malloc(bytes);
    uint64_t sum = 0xcbf29ce484222325u; // FNV-1a
    if (!weights) die_input("no memory for %zu weights", model->parameters);
    CUDA_CHECK(cudaMemcpy(weights, model->weights, bytes, cudaMemcpyDeviceToHost));
    for (size_t i = 0; i < bytes; i++) sum = (sum ^ weights[i]) * 0x100000001b3u;
    free(weights);
    return group_agrees(group, sum);
}

static cudaError_t launch(any_launcher *launcher, const struct run *run, cudaStream_t stream)
{
    training_step *const step = (training_step *)launcher;
    struct model_config config = training_config(run);
    config.batch /= launched.ranks; // this rank's part
    if (!group) group = group_join(&launched);
    struct model *model = exchange_model(group, &config, step == sharded || step == one_graph);
    float *parameters = model_parameters(run->type, DATA("weights"), model->parameters);
    exchange_set(model, parameters, NULL);
    free(parameters);

    const size_t tokens = (size_t)model->rows, all = tokens * (size_t)group->ranks,
                 first = tokens * (size_t)group->rank;
    cudaError_t error = cudaSuccess;
    for (int i = 0; i < run->dim[TRAINING_STEPS] && error == cudaSuccess; i++) {
        const int *inputs = (int *)DATA("inputs") + (size_t)i * all + first,
                  *targets = (int *)DATA("targets") + (size_t)i * all + first;
        const float *lr = (float *)DATA("lr") + i;
        CUDA_CHECK(
            cudaMemcpyAsync(model->tokens, inputs, tokens * sizeof(int), cudaMemcpyDeviceToDevice, stream));
        CUDA_CHECK(
            cudaMemcpyAsync(model->targets, targets, tokens * sizeof(int), cudaMemcpyDeviceToDevice, stream));
        CUDA_CHECK(cudaMemcpyAsync(model->lr, lr, sizeof *lr, cudaMemcpyDeviceToDevice, stream));
        error = step(model, stream);
        CUDA_CHECK(cudaStreamSynchronize(stream));
        group_check(group);
        const float loss = model_mean_loss(model);
        CUDA_CHECK(cudaMemcpy((float *)DATA("loss") + i, &loss, sizeof loss, cudaMemcpyHostToDevice));
        CUDA_CHECK(
            cudaMemcpy((float *)DATA("norm") + i, model->state.norm, sizeof loss, cudaMemcpyDeviceToDevice));
    }
    float *numbers = malloc(3 * model->parameters * sizeof *numbers);
    if (!numbers) die_input("no memory for %zu parameters", model->parameters);
    exchange_get(model, numbers, stream);
    CUDA_CHECK(cudaMemcpy(DATA("after"), numbers, model->parameters * sizeof(float), cudaMemcpyHostToDevice));
    free(numbers);
    const bool same = same_on_all_ranks(model);
    exchange_free(model);
    if (!same) {
        fprintf(stderr, "rank %d of %d: the weights are not the same on all ranks\n", group->rank,
                group->ranks);
        group_leave(group);
        exit(EXIT_WRONG);
    }
    return error;
}

static const char *check_shape(const int64_t *dim)
{
    static char refusal[100];
    int64_t part[NUM_TRAINING_DIMS];
    if (dim[TRAINING_BATCH] % launched.ranks) {
        snprintf(refusal, sizeof refusal, "b must be a multiple of the %d ranks", launched.ranks);
        return refusal;
    }
    memcpy(part, dim, sizeof part);
    part[TRAINING_BATCH] /= launched.ranks;
    return training_check_shape(part);
}

static const struct operation operations[] = {
    {
        .title =
            "steps of training GPT-2 on several GPUs: loss and gradient norm of each, and the parameters after the last",
        .types = {F32, BF16},
        .dims = TRAINING_DIMS,
        .check_shape = check_shape,
        .tensors = TRAINING_TENSORS,
        .steps = STEPS(STEP(1, training_step, replicate), STEP(2, training_step, buckets),
                       STEP(3, training_step, sharded), STEP(4, training_step, one_graph)),
        .launch = launch,
    },
};

int main(int argc, char **argv)
{
    launched = group_choose_gpu();
    const int status = chapter_main(__FILE__, operations, 1, argc, argv);
    if (group) group_leave(group);
    return status;
}
