// Chapter 11's trainer, on the GPUs of a group.
#include "../../11_gpt2_training/trainer/parallel.h"

#include "../../../common/harness/error.h"
#include "../../../common/harness/npy.h"
#include "../launchers.h"

static struct group *group;

struct place parallel_begin(void)
{
    const struct launch launch = group_choose_gpu();
    group = group_join(&launch);
    return (struct place){group->rank, group->ranks};
}

void parallel_end(struct model *m)
{
    model_forget_recording(m);
    group_leave(group);
}

void parallel_check(void)
{
    group_check(group);
}

const char parallel_chapter[] = "22_data_parallel_training";
const struct named_step parallel_steps[] = {
    {"replicate", replicate, replicate},
    {"buckets", buckets, buckets},
    {"sharded", sharded, sharded},
    {"one_graph", one_graph, sharded},
    {0},
};

struct model *parallel_model(const struct model_config *config, const struct named_step *step)
{
    struct model *m = exchange_model(group, config, step->launches == sharded);
    // Bytes of a parameter: weights and gradient; of one that this rank owns: master, m, v, and where these are sharded its gradient
    // and weight once more.
    const size_t weight = m->weights == m->master ? 0 : dtype_bytes(config->dtype), whole = weight + 4,
                 own = 12 + (exchange_of(m)->sharded ? 4 + (config->dtype == BF16 ? weight : 0) : 0);
    printf("%d GPUs, on each %.2f MB of weights and gradients, %.2f MB of the optimizer's state\n",
           group->ranks, (double)(whole * m->parameters) / 1e6, (double)(own * m->owned) / 1e6);
    return m;
}

void parallel_set(struct model *m, const float *parameters, const float *moments)
{
    exchange_set(m, parameters, moments);
}

void parallel_numbers(struct model *m, float *numbers, cudaStream_t stream)
{
    exchange_get(m, numbers, stream);
}

void parallel_loss(struct model *m, cudaStream_t stream)
{
    float *loss = activation(m, LOSS, 0);
    NCCL_CHECK(group, AllReduce(loss, loss, (size_t)m->rows, ncclFloat32, ncclAvg, group->comm, stream));
}

void parallel_profile(struct model *m, int steps, bool with_times)
{
    exchange_print(m, steps, with_times);
}
