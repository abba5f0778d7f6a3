// Chapter 11, step 1: a training step, layer by layer.
//
// Question: the formulas of GPT-2 and their gradients, each by a kernel of its chapter. In which order, and what must be kept
// from one to the other?
//
// Grows from: nothing.
// The forward keeps what a gradient is going to ask for: of a layernorm its input, mean and rstd; of a product its input; of
// GELU its input; of attention its probabilities. The backward walks back and adds two gradients wherever the forward used a
// number twice: at the beginning of every branch.
//
//      x[l] ──┬── norm1 ── qkv ── att ── atty ── proj ──(+)──┬── norm2 ── fc ── gelu ── fc_proj ──(+)── x[l + 1]
//             └───────────────────────────────────────────┘ └─────────────────────────────────────┘
//      dx   ──(+)─ dnorm1 ─ dqkv ─ datt ─ datty ─────────┬──(+)─ dnorm2 ─ dfc ─ dgelu ─────────────┬── dx
//             └──────────────────────────────────────────┘  └───────────────────────────────────────┘
//
// wte is used at both ends: tokens come in by it, and logits go out, so its gradient is a sum of two.
// Run: make chapter-11 STEP=layer_by_layer
#include "../06_elementwise_layers/launchers.h"
#include "../07_layernorm/launchers.h"
#include "../08_online_softmax/launchers.h"
#include "launchers.h"
#include "layers.h"

#include <cuda_runtime.h>

// An array of the activations, in fp32.
static float *numbers(const model *m, enum activation which, int l)
{
    return (float *)activation(m, which, l);
}

static void forward_layer(model *m, int l, cudaStream_t stream)
{
    const enum dtype T = m->config.dtype;
    const int R = m->rows, C = m->config.channels;
    void *x = activation(m, RESIDUAL, l), *x2 = activation(m, RESIDUAL2, l), *norm1 = activation(m, NORM1, l),
         *branch = activation(m, BRANCH, 0);

    ran(m, "layernorm forward", 0,
        layernorm_registers(T, x, weight(m, LN1_W, l), weight(m, LN1_B, l), norm1, numbers(m, MEAN1, l),
                            numbers(m, RSTD1, l), R, C, stream),
        stream);
    linear_forward(m, norm1, weight(m, QKV_W, l), weight(m, QKV_B, l), activation(m, QKV, l), C, 3 * C,
                   attention_parts(m), stream);
    attend_forward(m, l, stream);
    linear_forward(m, activation(m, ATTY, l), weight(m, PROJ_W, l), weight(m, PROJ_B, l), branch, C, C, 1,
                   stream);

    // EXERCISE 11.3: the middle of a layer, from attention's branch to the feed-forward's (about 11 lines)
    ran(m, "residual forward", 0, residual_stream(T, x, branch, x2, (size_t)R * C, stream), stream);
    ran(m, "layernorm forward", 0,
        layernorm_registers(T, x2, weight(m, LN2_W, l), weight(m, LN2_B, l), activation(m, NORM2, l),
                            numbers(m, MEAN2, l), numbers(m, RSTD2, l), R, C, stream),
        stream);
    linear_forward(m, activation(m, NORM2, l), weight(m, FC_W, l), weight(m, FC_B, l), activation(m, FC, l),
                   C, 4 * C, 1, stream);
    ran(m, "gelu forward", 0,
        gelu_exp2(T, activation(m, FC, l), activation(m, GELU, l), (size_t)R * 4 * C, stream), stream);
    linear_forward(m, activation(m, GELU, l), weight(m, FC_PROJ_W, l), weight(m, FC_PROJ_B, l), branch, 4 * C,
                   C, 1, stream);
    // STUB ran(m, "residual forward", 0, residual_stream(T, x, branch, x2, (size_t)R * C, stream), stream);
    // END

    ran(m, "residual forward", 0,
        residual_stream(T, x2, branch, activation(m, RESIDUAL, l + 1), (size_t)R * C, stream), stream);
}

static void forward(model *m, cudaStream_t stream)
{
    const enum dtype T = m->config.dtype;
    const int L = m->config.layers, R = m->rows, C = m->config.channels;
    ran(m, "encoder forward", 0,
        encoder_rows(T, m->tokens, weight(m, WTE, 0), weight(m, WPE, 0), activation(m, RESIDUAL, 0),
                     m->config.batch, m->config.length, C, stream),
        stream);
    for (int l = 0; l < L; l++) forward_layer(m, l, stream);
    ran(m, "layernorm forward", 0,
        layernorm_registers(T, activation(m, RESIDUAL, L), weight(m, LNF_W, 0), weight(m, LNF_B, 0),
                            activation(m, NORM1, L), numbers(m, MEAN1, L), numbers(m, RSTD1, L), R, C,
                            stream),
        stream);
    logits_forward(m, activation(m, NORM1, L), stream);
}

// The loss, and where the logits were their gradient.
static void classify(model *m, cudaStream_t stream)
{
    ran(m, "classifier", 0,
        classifier_shared(m->config.dtype, activation(m, LOGITS, 0), numbers(m, LOSS, 0), m->targets, NULL,
                          m->rows, m->config.vocabulary, m->config.padded_vocabulary, stream),
        stream);
}

// d_residual += the gradient that comes back through the branch, from behind its layernorm (BRANCH).
static void layernorm_of_branch(model *m, const void *x, enum parameter w, enum parameter b, int l,
                                float *mean, float *rstd, cudaStream_t stream)
{
    const enum dtype T = m->config.dtype;
    const int R = m->rows, C = m->config.channels;
    void *dx = activation(m, D_RESIDUAL, 0), *d_norm = activation(m, D_NORM, 0);
    ran(m, "layernorm backward", 0,
        gradient_ahead(T, x, activation(m, BRANCH, 0), weight(m, w, l), mean, rstd, d_norm, gradient(m, w, l),
                       gradient(m, b, l), R, C, stream),
        stream);
    ran(m, "residual backward", 0, residual_stream(T, dx, d_norm, dx, (size_t)R * C, stream), stream);
}

static void backward_layer(model *m, int l, cudaStream_t stream)
{
    const enum dtype T = m->config.dtype;
    const int C = m->config.channels;
    void *dx = activation(m, D_RESIDUAL, 0), *branch = activation(m, BRANCH, 0),
         *wide = activation(m, D_WIDE, 0);

    linear_backward(m, activation(m, GELU, l), weight(m, FC_PROJ_W, l), dx, wide, gradient(m, FC_PROJ_W, l),
                    gradient(m, FC_PROJ_B, l), 4 * C, C, 1, stream);
    ran(m, "gelu backward", 0,
        gelu_gradient(T, activation(m, FC, l), wide, wide, (size_t)m->rows * 4 * C, stream), stream);
    linear_backward(m, activation(m, NORM2, l), weight(m, FC_W, l), wide, branch, gradient(m, FC_W, l),
                    gradient(m, FC_B, l), C, 4 * C, 1, stream);
    layernorm_of_branch(m, activation(m, RESIDUAL2, l), LN2_W, LN2_B, l, numbers(m, MEAN2, l),
                        numbers(m, RSTD2, l), stream);

    // EXERCISE 11.4: back through attention's branch, to dx at the layer's beginning (about 7 lines)
    linear_backward(m, activation(m, ATTY, l), weight(m, PROJ_W, l), dx, branch, gradient(m, PROJ_W, l),
                    gradient(m, PROJ_B, l), C, C, 1, stream);
    attend_backward(m, l, branch, stream);
    linear_backward(m, activation(m, NORM1, l), weight(m, QKV_W, l), activation(m, D_QKV, 0), branch,
                    gradient(m, QKV_W, l), gradient(m, QKV_B, l), C, 3 * C, attention_parts(m), stream);
    layernorm_of_branch(m, activation(m, RESIDUAL, l), LN1_W, LN1_B, l, numbers(m, MEAN1, l),
                        numbers(m, RSTD1, l), stream);
    // END
}

// What gradients are added to. Those of the other matrices are products, which write what they find anew.
static void zero_gradients(model *m, size_t first, size_t last, cudaStream_t stream)
{
    ran(m, "gradients to 0", 0, cudaMemsetAsync(m->grad + first, 0, (last - first) * sizeof(float), stream),
        stream);
}

static void backward(model *m, cudaStream_t stream)
{
    const enum dtype T = m->config.dtype;
    const int L = m->config.layers, C = m->config.channels;
    void *dx = activation(m, D_RESIDUAL, 0), *branch = activation(m, BRANCH, 0);
    zero_gradients(m, m->parameter[WPE].offset, m->parameter[QKV_W].offset, stream);
    zero_gradients(m, m->decayed, m->parameters, stream);
    logits_backward(m, activation(m, NORM1, L), branch, stream);
    ran(m, "layernorm backward", 0,
        gradient_ahead(T, activation(m, RESIDUAL, L), branch, weight(m, LNF_W, 0), numbers(m, MEAN1, L),
                       numbers(m, RSTD1, L), dx, gradient(m, LNF_W, 0), gradient(m, LNF_B, 0), m->rows, C,
                       stream),
        stream);
    for (int l = L - 1; l >= 0; l--) backward_layer(m, l, stream);
    ran(m, "encoder backward", 0,
        encoder_chunks(T, m->tokens, dx, gradient(m, WTE, 0), gradient(m, WPE, 0), m->config.batch,
                       m->config.length, C, m->config.padded_vocabulary, stream),
        stream);
}

// AdamW on the parameters from `first` to before `last`, as the norm that was computed before controls it.
static void update_some(model *m, size_t first, size_t last, float weight_decay, cudaStream_t stream)
{
    const model_config &c = m->config;
    const adamw_settings settings = {0, c.beta1, c.beta2, c.epsilon, weight_decay};
    void *rounded = c.dtype == BF16 ? (char *)m->weights + first * 2 : NULL;
    ran(m, "update", 0,
        update_as_controlled(F32, m->grad + first, rounded, m->master + first, m->m + first, m->v + first,
                             last - first, m->lr, settings, m->state.control, stream),
        stream);
}

static void update(model *m, cudaStream_t stream)
{
    const model_config &c = m->config;
    ran(m, "gradient norm", 0,
        loss_scale(F32, m->grad, m->parameters, c.max_norm, c.beta1, c.beta2, 0, m->state, stream), stream);
    update_some(m, 0, m->decayed, c.weight_decay, stream);
    update_some(m, m->decayed, m->parameters, 0, stream);
}

extern "C" cudaError_t layer_by_layer(struct model *m, cudaStream_t stream)
{
    forward(m, stream);
    classify(m, stream);
    backward(m, stream);
    update(m, stream);
    return cudaSuccess;
}
