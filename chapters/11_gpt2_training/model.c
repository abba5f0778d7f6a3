// GPT-2 on the device: sizes, places, memory.
#include "model.h"

#include <stdlib.h>
#include <string.h>

#include "../../common/harness/error.h"
#include "../../common/harness/npy.h"
#include "layers.h"

enum { ALIGNMENT = 256 }; // of arrays in an allocation, in bytes

const char *model_refuse(const struct model_config *c)
{
    if (c->layers < 1 || c->heads < 1 || c->vocabulary < 1 || c->batch < 1 || c->length < 1)
        return "layers, heads, vocabulary, batch and length must be at least 1";
    if (c->padded_vocabulary < c->vocabulary || c->padded_vocabulary % 8)
        return "the padded vocabulary must be a multiple of 8 and no less than the vocabulary";
    if (c->channels < 8 || c->channels % 8 || c->channels % c->heads)
        return "channels must be a multiple of 8 and of heads";
    if (c->length > c->positions || c->length > 16384) return "length must be at most positions, and 16384";
    if ((int64_t)c->batch * c->heads * c->length > INT32_MAX)
        return "batch * heads * length must be below 2^31";
    if ((int64_t)c->batch * c->length > INT32_MAX / 4 / c->channels)
        return "batch * length * channels must be below 2^29";
    const int head_dim = c->channels / c->heads;
    if (c->attention != ATTENTION_9 && (c->dtype != BF16 || (head_dim != 64 && head_dim != 128)))
        return "attention by chapter 12 or 17 needs bf16 and channels / heads = 64 or 128";
    if (c->products == PRODUCTS_14 && c->dtype != BF16) return "products by chapter 14 need bf16";
    return NULL;
}

static void plan_parameters(struct model *m)
{
    const struct model_config *c = &m->config;
    const int64_t C = c->channels, L = c->layers;
    const struct array parameters[NUM_PARAMETERS] = {
        [WTE] = {"wte", F32, m->config.padded_vocabulary * C, 1},
        [WPE] = {"wpe", F32, c->positions * C, 1},
        [QKV_W] = {"qkv_w", F32, 3 * C * C, L},
        [PROJ_W] = {"proj_w", F32, C * C, L},
        [FC_W] = {"fc_w", F32, 4 * C * C, L},
        [FC_PROJ_W] = {"fc_proj_w", F32, 4 * C * C, L},
        [LN1_W] = {"ln1_w", F32, C, L},
        [LN1_B] = {"ln1_b", F32, C, L},
        [QKV_B] = {"qkv_b", F32, 3 * C, L},
        [PROJ_B] = {"proj_b", F32, C, L},
        [LN2_W] = {"ln2_w", F32, C, L},
        [LN2_B] = {"ln2_b", F32, C, L},
        [FC_B] = {"fc_b", F32, 4 * C, L},
        [FC_PROJ_B] = {"fc_proj_b", F32, C, L},
        [LNF_W] = {"lnf_w", F32, C, 1},
        [LNF_B] = {"lnf_b", F32, C, 1},
    };
    memcpy(m->parameter, parameters, sizeof parameters);
    for (int i = 0; i < NUM_PARAMETERS; i++) {
        if (i == LN1_W) m->decayed = m->parameters;
        m->parameter[i].offset = m->parameters;
        m->parameters += (size_t)(m->parameter[i].elements * m->parameter[i].count);
    }
}

static void plan_activations(struct model *m)
{
    const struct model_config *c = &m->config;
    const enum dtype T = c->dtype;
    const int64_t R = m->rows, RC = R * c->channels;
    const int once = c->layers + 1, work = c->recompute ? 1 : c->layers;
    const int64_t lse = R * c->heads, att = c->attention == ATTENTION_9 ? lse * c->length : lse;
    const struct array activations[NUM_ACTIVATIONS] = {
        [RESIDUAL] = {"residual", T, RC, once},
        [NORM1] = {"norm1", T, RC, once},
        [MEAN1] = {"mean1", F32, R, once},
        [RSTD1] = {"rstd1", F32, R, once},
        [QKV] = {"qkv", T, 3 * RC, work},
        [ATT] = {"att", c->attention == ATTENTION_9 ? T : F32, att, work},
        [ATTY] = {"atty", T, RC, work},
        [RESIDUAL2] = {"residual2", T, RC, work},
        [NORM2] = {"norm2", T, RC, work},
        [MEAN2] = {"mean2", F32, R, work},
        [RSTD2] = {"rstd2", F32, R, work},
        [FC] = {"fc", T, 4 * RC, work},
        [GELU] = {"gelu", T, 4 * RC, work},
        [LOGITS] = {"logits", T, R * m->config.padded_vocabulary, 1},
        [LOSS] = {"loss", F32, R, 1},
        [BRANCH] = {"branch", T, RC, 1},
        [D_RESIDUAL] = {"d_residual", T, RC, 1},
        [D_NORM] = {"d_norm", T, RC, 1},
        [D_WIDE] = {"d_wide", T, 4 * RC, 1},
        [D_QKV] = {"d_qkv", T, 3 * RC, 1},
        [D_ATT] = {"d_att", c->attention == ATTENTION_9 ? T : F32,
                   c->attention == ATTENTION_9 ? att : (int64_t)attention_workspace_bytes(m) / 4, 1},
    };
    memcpy(m->activation, activations, sizeof activations);
    for (int i = 0; i < NUM_ACTIVATIONS; i++) {
        const size_t bytes = (size_t)m->activation[i].elements * dtype_bytes(m->activation[i].dtype);
        m->activation[i].offset = m->activation_bytes;
        m->activation_bytes +=
            (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT * (size_t)m->activation[i].count;
    }
}

static void *allocate(size_t bytes)
{
    void *memory;
    CUDA_CHECK(cudaMalloc(&memory, bytes));
    return memory;
}

// What lies on the device of model->lr and model->state.
struct in_memory {
    float lr, scale;
    int good_steps, steps;
    float norm, control[3];
};

struct model model_plan(const struct model_config *config)
{
    struct model m = {.config = *config, .rows = config->batch * config->length};
    plan_parameters(&m);
    plan_activations(&m);
    return m;
}

struct model *model_create(const struct model_config *config, size_t owned)
{
    struct model *m = malloc(sizeof *m);
    if (!m) die_input("no memory for a model");
    *m = model_plan(config);
    m->owned = owned ? owned : m->parameters;
    m->grad = allocate(m->parameters * sizeof(float));
    m->master = allocate(3 * m->owned * sizeof(float));
    m->m = m->master + m->owned;
    m->v = m->m + m->owned;
    m->weights =
        config->dtype == BF16 || owned ? allocate(m->parameters * dtype_bytes(config->dtype)) : m->master;
    m->activations = allocate(m->activation_bytes);
    m->tokens = allocate(2 * (size_t)m->rows * sizeof(int));
    m->targets = m->tokens + m->rows;
    struct in_memory *state = m->memory_of_state = allocate(sizeof *state);
    m->lr = &state->lr;
    m->state = (struct update_state){
        &state->scale, &state->good_steps, &state->steps, &state->norm, state->control,
    };
    return m;
}

void model_forget_recording(struct model *m)
{
    if (m->recorded) CUDA_CHECK(cudaGraphExecDestroy(m->recorded));
    m->recorded = NULL;
}

void model_free(struct model *m)
{
    model_forget_recording(m);
    if (m->weights != m->master) CUDA_CHECK(cudaFree(m->weights));
    CUDA_CHECK(cudaFree(m->master));
    CUDA_CHECK(cudaFree(m->grad));
    CUDA_CHECK(cudaFree(m->activations));
    CUDA_CHECK(cudaFree(m->tokens));
    CUDA_CHECK(cudaFree(m->memory_of_state));
    free(m);
}

void model_set_parameters(struct model *m, const float *parameters)
{
    const size_t bytes = m->parameters * sizeof(float);
    const float one = 1;
    if (m->owned == m->parameters)
        CUDA_CHECK(cudaMemcpy(m->master, parameters, bytes, cudaMemcpyHostToDevice));
    CUDA_CHECK(cudaMemset(m->m, 0, 2 * m->owned * sizeof(float)));
    CUDA_CHECK(cudaMemset(m->memory_of_state, 0, sizeof(struct in_memory)));
    CUDA_CHECK(cudaMemcpy(m->state.scale, &one, sizeof one, cudaMemcpyHostToDevice));
    if (m->config.dtype == F32) {
        if (m->weights != m->master)
            CUDA_CHECK(cudaMemcpy(m->weights, parameters, bytes, cudaMemcpyHostToDevice));
        return;
    }
    uint16_t *rounded = malloc(m->parameters * sizeof *rounded);
    if (!rounded) die_input("no memory for %zu parameters", m->parameters);
    for (size_t i = 0; i < m->parameters; i++) dtype_set(BF16, rounded, (int64_t)i, parameters[i]);
    CUDA_CHECK(cudaMemcpy(m->weights, rounded, m->parameters * sizeof *rounded, cudaMemcpyHostToDevice));
    free(rounded);
}

static size_t parameter_place(const struct model *m, enum parameter which, int layer)
{
    return m->parameter[which].offset + (size_t)(layer * m->parameter[which].elements);
}

void *weight(const struct model *m, enum parameter which, int layer)
{
    return (char *)m->weights + parameter_place(m, which, layer) * dtype_bytes(m->config.dtype);
}

float *gradient(const struct model *m, enum parameter which, int layer)
{
    return m->grad + parameter_place(m, which, layer);
}

void *activation(const struct model *m, enum activation which, int layer)
{
    const struct array *t = &m->activation[which];
    const size_t bytes = (size_t)t->elements * dtype_bytes(t->dtype);
    return m->activations + t->offset +
           (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT * (size_t)(t->count > 1 ? layer : 0);
}

double model_flops(const struct model *m)
{
    const struct model_config *c = &m->config;
    const double matrices =
        12.0 * c->layers * c->channels * c->channels + (double)m->config.padded_vocabulary * c->channels;
    return m->rows * (6 * matrices + 12.0 * c->layers * c->channels * c->length);
}

float *model_parameters(enum dtype dtype, const void *weights, size_t count)
{
    const size_t bytes = count * dtype_bytes(dtype);
    void *stored = malloc(bytes);
    float *parameters = malloc(count * sizeof *parameters);
    if (!stored || !parameters) die_input("no memory for %zu parameters", count);
    CUDA_CHECK(cudaMemcpy(stored, weights, bytes, cudaMemcpyDeviceToHost));
    for (size_t i = 0; i < count; i++) parameters[i] = (float)dtype_get(dtype, stored, (int64_t)i);
    free(stored);
    return parameters;
}

float model_mean_loss(const struct model *m)
{
    double sum = 0;
    float *loss = malloc((size_t)m->rows * sizeof *loss);
    if (!loss) die_input("no memory for %d losses", m->rows);
    CUDA_CHECK(
        cudaMemcpy(loss, activation(m, LOSS, 0), (size_t)m->rows * sizeof *loss, cudaMemcpyDeviceToHost));
    for (int i = 0; i < m->rows; i++) sum += loss[i];
    free(loss);
    return (float)(sum / m->rows);
}
