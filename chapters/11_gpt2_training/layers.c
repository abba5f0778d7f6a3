// Layers that the configuration lets different chapters compute.
#include "layers.h"

#include "../../common/device/matmul.h"
#include "../../common/harness/error.h"
#include "../../common/harness/npy.h"
#include "../06_elementwise_layers/launchers.h"
#include "../09_cublas_attention/blas.h"
#include "../09_cublas_attention/launchers.h"
#include "attention.h"
#include "profile.h"

// Chapter 14's; its header has more, with names that chapter 15 has too.
matmul_16bit ping_pong;

void ran(struct model *m, const char *what, double flops, cudaError_t error, cudaStream_t stream)
{
    if (error != cudaSuccess) {
        fprintf(stderr, "%s: %s: %s\n", what, cudaGetErrorName(error), cudaGetErrorString(error));
        exit(EXIT_CUDA);
    }
    if (m->profile) profile_add(m->profile, what, flops, stream);
}

static const void *part_of(enum dtype dtype, const void *array, int64_t elements)
{
    return (const char *)array + elements * (int64_t)dtype_bytes(dtype);
}

void linear_forward(struct model *m, const void *inp, const void *weight, const void *bias, void *out, int C,
                    int OC, int parts, cudaStream_t stream)
{
    const enum dtype T = m->config.dtype;
    const int width = OC / parts;
    const double flops = 2.0 * m->rows * width * C;
    if (m->config.products == PRODUCTS_CUBLAS) {
        const cudaError_t error =
            blas_multiply_bias(T, inp, weight, bias, out, m->rows, width, C, parts, stream);
        ran(m, "product forward", parts * flops, error, stream);
        return;
    }
    for (int i = 0; i < parts; i++) {
        const void *W = part_of(T, weight, (int64_t)i * width * C), *b = part_of(T, bias, i * width);
        void *part = (void *)part_of(T, out, (int64_t)i * m->rows * width);
        ran(m, "product forward", flops, ping_pong(T, T, inp, W, b, part, m->rows, width, C, stream), stream);
    }
}

void linear_gelu_forward(struct model *m, const void *inp, const void *weight, const void *bias, void *fc,
                         void *gelu, int C, int OC, cudaStream_t stream)
{
    const enum dtype T = m->config.dtype;
    if (m->config.products == PRODUCTS_14) {
        linear_forward(m, inp, weight, bias, fc, C, OC, 1, stream);
        ran(m, "gelu forward", 0, gelu_exp2(T, fc, gelu, (size_t)m->rows * OC, stream), stream);
    } else {
        const cudaError_t error = blas_multiply_gelu(T, inp, weight, bias, fc, gelu, m->rows, OC, C, stream);
        ran(m, "product forward", 2.0 * m->rows * OC * C, error, stream);
    }
}

// dinp (rows, C) = dout (rows, OC) weight (OC, C), dweight = dout^T inp.
static void products_backward(struct model *m, const void *inp, const void *weight, const void *dout,
                              void *dinp, float *dweight, int C, int OC, cudaStream_t stream)
{
    const enum dtype T = m->config.dtype;
    const struct blas_matrix D = {dout, T, OC, 0, false}, turned = {dout, T, OC, 0, true},
                             X = {inp, T, C, 0, false}, W = {weight, T, C, 0, false},
                             dX = {dinp, T, C, 0, false}, dW = {dweight, F32, C, 0, false};
    const double flops = 2.0 * m->rows * OC * C;
    // EXERCISE 11.2: a product's two gradients, with blas_multiply of chapter 9's blas.h (about 2 lines)
    ran(m, "product backward", flops, blas_multiply(D, W, 1, 0, dX, m->rows, C, OC, 1, stream), stream);
    ran(m, "product backward", flops, blas_multiply(turned, X, 1, 0, dW, OC, C, m->rows, 1, stream), stream);
    // STUB (void)flops, (void)D, (void)turned, (void)W, (void)X, (void)dX, (void)dW, (void)stream;
    // END
}

// The same of `parts` matrices, one behind the other: dout (parts, rows, OC) and weight (parts, OC, C). Their dinp are added up.
static void parts_backward(struct model *m, const void *inp, const void *weight, const void *dout, void *dinp,
                           float *dweight, int C, int OC, int parts, cudaStream_t stream)
{
    const enum dtype T = m->config.dtype;
    const int64_t of_dout = (int64_t)m->rows * OC, of_weight = (int64_t)OC * C;
    const struct blas_matrix turned = {dout, T, OC, of_dout, true}, X = {inp, T, C, 0, false},
                             dX = {dinp, T, C, 0, false}, dW = {dweight, F32, C, of_weight, false};
    const double flops = 2.0 * m->rows * OC * C;
    for (int i = 0; i < parts; i++) {
        const struct blas_matrix D = {part_of(T, dout, i * of_dout), T, OC, 0, false},
                                 W = {part_of(T, weight, i * of_weight), T, C, 0, false};
        ran(m, "product backward", flops, blas_multiply(D, W, 1, i > 0, dX, m->rows, C, OC, 1, stream),
            stream);
    }
    ran(m, "product backward", parts * flops,
        blas_multiply(turned, X, 1, 0, dW, OC, C, m->rows, parts, stream), stream);
}

void linear_backward(struct model *m, const void *inp, const void *weight, const void *dout, void *dinp,
                     float *dweight, float *dbias, int C, int OC, int parts, cudaStream_t stream)
{
    const enum dtype T = m->config.dtype;
    const int width = OC / parts;
    if (parts == 1)
        products_backward(m, inp, weight, dout, dinp, dweight, C, OC, stream);
    else
        parts_backward(m, inp, weight, dout, dinp, dweight, C, width, parts, stream);
    ran(m, "bias backward", 0, bias_partials_of_each(T, dout, dbias, parts, m->rows, width, stream), stream);
}

void linear_gelu_backward(struct model *m, const void *fc, const void *gelu, const void *weight,
                          const void *dout, void *dfc, float *dweight, float *dbias, int C, int OC,
                          cudaStream_t stream)
{
    const enum dtype T = m->config.dtype;
    const struct blas_matrix turned = {dout, T, OC, 0, true}, X = {gelu, T, C, 0, false},
                             dW = {dweight, F32, C, 0, false};
    const double flops = 2.0 * m->rows * OC * C;
    if (T == F32) { // where tanh.approx, as an epilogue may have it, would be seen
        linear_backward(m, gelu, weight, dout, dfc, dweight, dbias, C, OC, 1, stream);
        ran(m, "gelu backward", 0, gelu_gradient(T, fc, dfc, dfc, (size_t)m->rows * C, stream), stream);
        return;
    }
    ran(m, "product backward", flops,
        blas_multiply_gelu_backward(T, dout, weight, fc, dfc, m->rows, C, OC, stream), stream);
    ran(m, "product backward", flops, blas_multiply(turned, X, 1, 0, dW, OC, C, m->rows, 1, stream), stream);
    ran(m, "bias backward", 0, bias_partials(T, dout, dbias, m->rows, OC, stream), stream);
}

void logits_forward(struct model *m, const void *norm, cudaStream_t stream)
{
    const enum dtype T = m->config.dtype;
    const int C = m->config.channels, V = m->config.padded_vocabulary;
    const struct blas_matrix X = {norm, T, C, 0, false}, W = {weight(m, WTE, 0), T, C, 0, true},
                             out = {activation(m, LOGITS, 0), T, V, 0, false};
    ran(m, "logits forward", 2.0 * m->rows * V * C, blas_multiply(X, W, 1, 0, out, m->rows, V, C, 1, stream),
        stream);
}

void logits_backward(struct model *m, const void *norm, void *dnorm, cudaStream_t stream)
{
    products_backward(m, norm, weight(m, WTE, 0), activation(m, LOGITS, 0), dnorm, gradient(m, WTE, 0),
                      m->config.channels, m->config.padded_vocabulary, stream);
}

int attention_parts(const struct model *m)
{
    return m->config.attention == ATTENTION_9 ? 1 : 3;
}

void attend_forward(struct model *m, int layer, cudaStream_t stream)
{
    const struct model_config *c = &m->config;
    const int D = c->channels / c->heads;
    const double flops = 4.0 * m->rows * c->length * c->channels;
    const void *qkv = activation(m, QKV, layer);
    void *att = activation(m, ATT, layer), *atty = activation(m, ATTY, layer);
    const cudaError_t error =
        c->attention == ATTENTION_9
            ? attention_reverse(c->dtype, qkv, att, atty, NULL, c->batch, c->length, c->heads, D, stream)
            : flash_forward(c, qkv, att, atty, stream);
    ran(m, "attention forward", flops, error, stream);
}

void attend_backward(struct model *m, int layer, const void *dout, cudaStream_t stream)
{
    const struct model_config *c = &m->config;
    const int D = c->channels / c->heads;
    const double flops = 8.0 * m->rows * c->length * c->channels;
    const void *qkv = activation(m, QKV, layer), *att = activation(m, ATT, layer);
    void *datt = activation(m, D_ATT, 0), *dqkv = activation(m, D_QKV, 0);
    const cudaError_t error =
        c->attention == ATTENTION_9
            ? gradient_in_place(c->dtype, qkv, att, dout, datt, dqkv, NULL, c->batch, c->length, c->heads, D,
                                stream)
            : flash_backward(c, qkv, activation(m, ATTY, layer), att, dout, datt, dqkv, stream);
    ran(m, "attention backward", flops, error, stream);
}

size_t attention_workspace_bytes(const struct model *m)
{
    return m->config.attention == ATTENTION_9 ? 0 : flash_workspace_bytes(&m->config);
}
