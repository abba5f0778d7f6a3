// Chapter 22: training GPT-2 on several GPUs. Chapter 11's steps, each rank on its part of every batch, against the same in NumPy.
#include "../../common/harness/chapter.h"
#include "../../common/harness/error.h"
#include "launchers.h"

enum { STEPS_DIM, BATCH, LENGTH, LAYERS, HEADS, CHANNELS, VOCABULARY, ATTENTION }; // dims

#define DATA(name)  run_data(run, name)
#define PARAM(name) (float)run_param(run, name, 0)

enum { BUCKET_BYTES = 5000 }; // so that models as small as the cases' have several

static struct launch launched;
static struct group *group; // NULL: not joined yet

// That of this rank's part.
static struct model_config config_of(enum dtype type, const int64_t *dim)
{
    return (struct model_config){
        .layers = (int)dim[LAYERS],
        .heads = (int)dim[HEADS],
        .channels = (int)dim[CHANNELS],
        .vocabulary = (int)dim[VOCABULARY],
        .padded_vocabulary = ((int)dim[VOCABULARY] + 7) / 8 * 8,
        .positions = (int)dim[LENGTH],
        .batch = (int)dim[BATCH] / launched.ranks,
        .length = (int)dim[LENGTH],
        .dtype = type,
        .attention = (enum attention_by)dim[ATTENTION],
        .products = PRODUCTS_CUBLAS,
    };
}

// Exits if the weights are not those of all ranks, to the bit.
static void check_replicas(const struct model *model)
{
    const size_t bytes = model->parameters * dtype_bytes(model->config.dtype);
    unsigned char *weights = malloc(bytes);
    uint64_t sum = 0xcbf29ce484222325u; // FNV-1a
    if (!weights) die_input("no memory for %zu weights", model->parameters);
    CUDA_CHECK(cudaMemcpy(weights, model->weights, bytes, cudaMemcpyDeviceToHost));
    for (size_t i = 0; i < bytes; i++) sum = (sum ^ weights[i]) * 0x100000001b3u;
    free(weights);
    if (group_agrees(group, sum)) return;
    fprintf(stderr, "rank %d of %d: the weights are not the same on all ranks\n", group->rank, group->ranks);
    group_leave(group);
    exit(EXIT_WRONG);
}

static cudaError_t launch(any_launcher *launcher, const struct run *run, cudaStream_t stream)
{
    training_step *const step = (training_step *)launcher;
    struct model_config config = config_of(run->type, run->dim);
    config.beta1 = PARAM("beta1"), config.beta2 = PARAM("beta2"), config.epsilon = PARAM("epsilon");
    config.weight_decay = PARAM("weight_decay"), config.max_norm = PARAM("max_norm");
    if (!group) group = group_join(&launched);
    struct model *model = exchange_model(group, &config, step == sharded || step == one_graph, BUCKET_BYTES);
    float *parameters = model_parameters(run->type, DATA("weights"), model->parameters);
    exchange_set(model, parameters, NULL);
    free(parameters);

    const size_t tokens = (size_t)model->rows, all = tokens * (size_t)group->ranks,
                 first = tokens * (size_t)group->rank;
    cudaError_t error = cudaSuccess;
    for (int i = 0; i < run->dim[STEPS_DIM] && error == cudaSuccess; i++) {
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
    check_replicas(model);
    exchange_free(model);
    return error;
}

static const char *check_shape(const int64_t *dim)
{
    static char refusal[100];
    const int64_t attention = dim[ATTENTION];
    if (attention != 9 && attention != 12 && attention != 17) return "attention must be 9, 12 or 17";
    if (dim[BATCH] % launched.ranks) {
        snprintf(refusal, sizeof refusal, "b must be a multiple of the %d ranks", launched.ranks);
        return refusal;
    }
    const struct model_config config = config_of(attention == 9 ? F32 : BF16, dim);
    return model_refuse(&config);
}

#define PARAMETERS "((v+7)/8*8+t)*c+l*(12*c*c+13*c)+2*c"

static const struct operation operations[] = {
    {
        .title =
            "steps of training GPT-2 on several GPUs: loss and gradient norm of each, and the parameters after the last",
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
        .steps = STEPS(STEP(training_step, replicate), STEP(training_step, buckets),
                       STEP(training_step, sharded), STEP(training_step, one_graph)),
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
