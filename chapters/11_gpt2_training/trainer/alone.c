// One process, one GPU.
#include "../../../common/harness/error.h"
#include "parallel.h"

struct place parallel_begin(void)
{
    return (struct place){0, 1};
}

void parallel_end(struct model *m)
{
    (void)m;
}

void parallel_check(void) {}

const char parallel_chapter[] = "11_gpt2_training";
const struct named_step parallel_steps[] = {
    {"layer_by_layer", layer_by_layer, layer_by_layer},
    {"fused", fused, fused},
    {"recorded", recorded, fused},
    {0},
};

struct model *parallel_model(const struct model_config *config, const struct named_step *step)
{
    (void)step;
    return model_create(config, 0);
}

void parallel_set(struct model *m, const float *parameters, const float *moments)
{
    const size_t bytes = 2 * m->parameters * sizeof(float);
    model_set_parameters(m, parameters);
    if (moments) CUDA_CHECK(cudaMemcpy(m->m, moments, bytes, cudaMemcpyHostToDevice));
}

void parallel_numbers(struct model *m, float *numbers, cudaStream_t stream)
{
    const size_t bytes = 3 * m->parameters * sizeof(float); // m and v lie behind master
    CUDA_CHECK(cudaMemcpyAsync(numbers, m->master, bytes, cudaMemcpyDeviceToHost, stream));
    CUDA_CHECK(cudaStreamSynchronize(stream));
}

void parallel_loss(struct model *m, cudaStream_t stream)
{
    (void)m, (void)stream;
}

void parallel_profile(struct model *m, int steps, bool with_times)
{
    (void)m, (void)steps, (void)with_times;
}
