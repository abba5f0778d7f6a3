// Chapter 11, step 2: what is read again at once is not written before.
//
// Question: step 1 writes a residual for the layernorm behind it to read, and a product for GELU to read. Who has these numbers
// in registers already?
//
// Grows from: step 1 (layer_by_layer).
// The kernel that made them: chapter 7's step 3 adds and normalizes a row in one pass, its step 9 does the same backwards, and
// cuBLASLt's epilogue bends what it has just multiplied, and in bf16 unbends what comes back. A layernorm so belongs to the residual
// before it, and a layer ends with the next one's first layernorm, or the last one's with the final. That boundary is also where a
// layer can begin anew: with RESIDUAL and NORM1 kept, all else of a layer is a function of them, and --recompute computes it once
// more before its backward, instead of keeping it for all layers.
//
//      x[l], norm1[l] ── qkv ── att ── atty ── proj ── (+, norm2) ── fc, gelu ── fc_proj ── (+, norm1) ── x[l + 1], norm1[l + 1]
//
// Bytes saved a layer: one write and one read of (R, C) twice forward and twice backward, and a read of (R, 4 C); in bf16 a
// write and a read of it backward, too.
// Run: make chapter-11 STEP=fused
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

// RESIDUAL2 = RESIDUAL + BRANCH and its layernorm, or at a layer's end the next one's RESIDUAL and its.
static void add_and_normalize(model *m, const void *x, enum activation sum, int to, enum parameter w,
                              enum parameter b, int l, cudaStream_t stream)
{
    const bool middle = sum == RESIDUAL2;
    ran(m, "residual, layernorm forward", 0,
        layernorm_residual(m->config.dtype, x, activation(m, BRANCH, 0), weight(m, w, l), weight(m, b, l),
                           activation(m, sum, to), activation(m, middle ? NORM2 : NORM1, to),
                           numbers(m, middle ? MEAN2 : MEAN1, to), numbers(m, middle ? RSTD2 : RSTD1, to),
                           m->rows, m->config.channels, stream),
        stream);
}

// What `work` tensors of the layer have, from its RESIDUAL and NORM1.
static void forward_inside(model *m, int l, cudaStream_t stream)
{
    const int C = m->config.channels;
    linear_forward(m, activation(m, NORM1, l), weight(m, QKV_W, l), weight(m, QKV_B, l),
                   activation(m, QKV, l), C, 3 * C, attention_parts(m), stream);
    attend_forward(m, l, stream);
    linear_forward(m, activation(m, ATTY, l), weight(m, PROJ_W, l), weight(m, PROJ_B, l),
                   activation(m, BRANCH, 0), C, C, 1, stream);
    add_and_normalize(m, activation(m, RESIDUAL, l), RESIDUAL2, l, LN2_W, LN2_B, l, stream);
    linear_gelu_forward(m, activation(m, NORM2, l), weight(m, FC_W, l), weight(m, FC_B, l),
                        activation(m, FC, l), activation(m, GELU, l), C, 4 * C, stream);
}

static void forward_layer(model *m, int l, cudaStream_t stream)
{
    const int C = m->config.channels, next = l + 1;
    const bool last = next == m->config.layers;
    // GRADED 11.5: a layer, and the layernorm behind it
    forward_inside(m, l, stream);
    linear_forward(m, activation(m, GELU, l), weight(m, FC_PROJ_W, l), weight(m, FC_PROJ_B, l),
                   activation(m, BRANCH, 0), 4 * C, C, 1, stream);
    add_and_normalize(m, activation(m, RESIDUAL2, l), RESIDUAL, next, last ? LNF_W : LN1_W,
                      last ? LNF_B : LN1_B, last ? 0 : next, stream);
    // END
}

extern "C" void forward_pass(model *m, cudaStream_t stream)
{
    const enum dtype T = m->config.dtype;
    const int L = m->config.layers, R = m->rows, C = m->config.channels;
    ran(m, "encoder forward", 0,
        encoder_rows(T, m->tokens, weight(m, WTE, 0), weight(m, WPE, 0), activation(m, RESIDUAL, 0),
                     m->config.batch, m->config.length, C, stream),
        stream);
    ran(m, "layernorm forward", 0,
        layernorm_registers(T, activation(m, RESIDUAL, 0), weight(m, LN1_W, 0), weight(m, LN1_B, 0),
                            activation(m, NORM1, 0), numbers(m, MEAN1, 0), numbers(m, RSTD1, 0), R, C,
                            stream),
        stream);
    for (int l = 0; l < L; l++) forward_layer(m, l, stream);
    logits_forward(m, activation(m, NORM1, L), stream);
}

// The loss, and where the logits were their gradient.
extern "C" void loss_pass(model *m, cudaStream_t stream)
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
    ran(m, "residual, layernorm backward", 0,
        gradient_residual(m->config.dtype, x, activation(m, BRANCH, 0), weight(m, w, l), mean, rstd,
                          activation(m, D_RESIDUAL, 0), gradient(m, w, l), gradient(m, b, l), m->rows,
                          m->config.channels, stream),
        stream);
}

static void backward_layer(model *m, int l, cudaStream_t stream)
{
    const int C = m->config.channels;
    void *dx = activation(m, D_RESIDUAL, 0), *branch = activation(m, BRANCH, 0),
         *wide = activation(m, D_WIDE, 0);
    if (m->config.recompute) forward_inside(m, l, stream);

    linear_gelu_backward(m, activation(m, FC, l), activation(m, GELU, l), weight(m, FC_PROJ_W, l), dx, wide,
                         gradient(m, FC_PROJ_W, l), gradient(m, FC_PROJ_B, l), 4 * C, C, stream);
    linear_backward(m, activation(m, NORM2, l), weight(m, FC_W, l), wide, branch, gradient(m, FC_W, l),
                    gradient(m, FC_B, l), C, 4 * C, 1, stream);
    layernorm_of_branch(m, activation(m, RESIDUAL2, l), LN2_W, LN2_B, l, numbers(m, MEAN2, l),
                        numbers(m, RSTD2, l), stream);

    linear_backward(m, activation(m, ATTY, l), weight(m, PROJ_W, l), dx, branch, gradient(m, PROJ_W, l),
                    gradient(m, PROJ_B, l), C, C, 1, stream);
    attend_backward(m, l, branch, stream);
    linear_backward(m, activation(m, NORM1, l), weight(m, QKV_W, l), activation(m, D_QKV, 0), branch,
                    gradient(m, QKV_W, l), gradient(m, QKV_B, l), C, 3 * C, attention_parts(m), stream);
    layernorm_of_branch(m, activation(m, RESIDUAL, l), LN1_W, LN1_B, l, numbers(m, MEAN1, l),
                        numbers(m, RSTD1, l), stream);
}

// What gradients are added to. Those of the other matrices are products, which write what they find anew.
static void zero_gradients(model *m, size_t first, size_t last, cudaStream_t stream)
{
    ran(m, "gradients to 0", 0, cudaMemsetAsync(m->grad + first, 0, (last - first) * sizeof(float), stream),
        stream);
}

// The gradients of this layer are in the stream: whoever exchanges them with other GPUs (chapter 22) may begin.
static void gradients_ready(model *m, int layer, cudaStream_t stream)
{
    if (m->ready) m->ready(m, layer, stream);
}

extern "C" void backward_pass(model *m, cudaStream_t stream)
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
    gradients_ready(m, L, stream);
    for (int l = L - 1; l >= 0; l--) {
        backward_layer(m, l, stream);
        gradients_ready(m, l, stream);
    }
    ran(m, "encoder backward", 0,
        encoder_chunks(T, m->tokens, dx, gradient(m, WTE, 0), gradient(m, WPE, 0), m->config.batch,
                       m->config.length, C, m->config.padded_vocabulary, stream),
        stream);
    gradients_ready(m, -1, stream);
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

extern "C" void update_pass(model *m, cudaStream_t stream)
{
    const model_config &c = m->config;
    ran(m, "gradient norm", 0,
        loss_scale(F32, m->grad, m->parameters, c.max_norm, c.beta1, c.beta2, 0, m->state, stream), stream);
    update_some(m, 0, m->decayed, c.weight_decay, stream);
    update_some(m, m->decayed, m->parameters, 0, stream);
}

extern "C" cudaError_t fused(struct model *m, cudaStream_t stream)
{
    forward_pass(m, stream);
    loss_pass(m, stream);
    backward_pass(m, stream);
    update_pass(m, stream);
    return cudaSuccess;
}
