#include "inspect.h"

#include <math.h>
#include <stdlib.h>

#include "../../../common/harness/error.h"
#include "../../../common/harness/npy.h"
#include "../launchers.h"

// The index of the first of `count` numbers in device memory that is not finite; -1: all are.
static int64_t first_non_finite(const void *data, enum dtype dtype, int64_t count)
{
    const size_t bytes = (size_t)count * dtype_bytes(dtype);
    void *copy = malloc(bytes);
    int64_t i = 0;
    if (!copy) die_input("no memory to look at %zu bytes", bytes);
    CUDA_CHECK(cudaMemcpy(copy, data, bytes, cudaMemcpyDeviceToHost));
    while (i < count && isfinite(dtype_get(dtype, copy, i))) i++;
    free(copy);
    return i < count ? i : -1;
}

static bool found(const char *kind, const struct array *a, enum dtype dtype, int layer, const void *data,
                  char *where, size_t size)
{
    const int64_t i = first_non_finite(data, dtype, a->elements);
    if (i < 0) return false;
    int used = snprintf(where, size, "%s %s", kind, a->name);
    if (a->count > 1) used += snprintf(where + used, size - (size_t)used, " of layer %d", layer);
    snprintf(where + used, size - (size_t)used, ", element %lld of %lld", (long long)i,
             (long long)a->elements);
    return true;
}

static bool look(struct model *m, enum activation which, int layer, char *where, size_t size)
{
    const struct array *a = &m->activation[which];
    return found("activation", a, a->dtype, layer, activation(m, which, layer), where, size);
}

// In the order of the forward. What is kept for one layer at a time (recompute) is that of the last layer.
static bool look_at_activations(struct model *m, char *where, size_t size)
{
    for (int l = 0; l < m->config.layers; l++) {
        if (look(m, RESIDUAL, l, where, size) || look(m, NORM1, l, where, size)) return true;
        if (m->config.recompute && l + 1 < m->config.layers) continue;
        for (enum activation a = QKV; a <= GELU; a++)
            if (look(m, a, l, where, size)) return true;
    }
    return look(m, RESIDUAL, m->config.layers, where, size) ||
           look(m, NORM1, m->config.layers, where, size) || look(m, LOGITS, 0, where, size);
}

bool find_non_finite(struct model *m, cudaStream_t stream, char *where, size_t size)
{
    for (int p = 0; p < NUM_PARAMETERS; p++)
        for (int l = 0; l < m->parameter[p].count; l++)
            if (found("parameter", &m->parameter[p], m->config.dtype, l, weight(m, p, l), where, size))
                return true;
    forward_pass(m, stream);
    CUDA_CHECK(cudaStreamSynchronize(stream));
    if (look_at_activations(m, where, size)) return true;
    loss_pass(m, stream);
    CUDA_CHECK(cudaStreamSynchronize(stream));
    if (look(m, LOSS, 0, where, size)) return true;
    m->ready = NULL; // nothing is exchanged any more
    backward_pass(m, stream);
    CUDA_CHECK(cudaStreamSynchronize(stream));
    // Backward: the last layer's gradients come first, and of a layer those of its end.
    static const enum parameter order[] = {LNF_W,  FC_PROJ_W, FC_PROJ_B, FC_W,  FC_B,  LN2_W, LN2_B, PROJ_W,
                                           PROJ_B, QKV_W,     QKV_B,     LN1_W, LN1_B, WTE,   WPE,   LNF_B};
    for (int l = m->config.layers - 1; l >= 0; l--)
        for (size_t i = 0; i < sizeof order / sizeof *order; i++)
            if ((m->parameter[order[i]].count > 1 || l == 0 || order[i] == LNF_W) &&
                found("gradient", &m->parameter[order[i]], F32, l, gradient(m, order[i], l), where, size))
                return true;
    return false;
}

// A token, by its probability: u from 0 to below 1 of the sum of exp((logit - largest) / temperature).
static int draw(const void *logits, enum dtype dtype, int count, float temperature, double u)
{
    double largest = -INFINITY, sum = 0, below = 0;
    int token = 0;
    for (int i = 0; i < count; i++) largest = fmax(largest, dtype_get(dtype, logits, i));
    for (int i = 0; i < count; i++) sum += exp((dtype_get(dtype, logits, i) - largest) / temperature);
    for (int i = 0; i < count; i++) {
        const double part = exp((dtype_get(dtype, logits, i) - largest) / temperature);
        if (part > 0) token = i; // the last with a probability, should rounding leave u beyond the sum
        below += part;
        if (below > u * sum) break;
    }
    return token;
}

void print_sample(struct model *m, const struct text *text, const struct vocabulary *vocabulary, int count,
                  float temperature, uint64_t seed, cudaStream_t stream)
{
    const int T = m->config.length;
    const size_t width = (size_t)m->config.padded_vocabulary * dtype_bytes(m->config.dtype);
    int *window = calloc((size_t)m->rows, sizeof *window); // only the first sequence is looked at
    char *logits = malloc(width);
    if (!window || !logits) die_input("no memory for a sample");
    window[0] = text->separator;
    for (int i = 0, last = 0; i < count; i++) {
        CUDA_CHECK(cudaMemcpy(m->tokens, window, (size_t)m->rows * sizeof *window, cudaMemcpyHostToDevice));
        forward_pass(m, stream);
        CUDA_CHECK(cudaStreamSynchronize(stream));
        CUDA_CHECK(cudaMemcpy(logits, (char *)activation(m, LOGITS, 0) + (size_t)last * width, width,
                              cudaMemcpyDeviceToHost));
        const double u = (double)(random_bits(seed, (uint64_t)i) >> 11) * 0x1p-53;
        const int token = draw(logits, m->config.dtype, m->config.vocabulary, temperature, u);
        vocabulary_print(vocabulary, token);
        if (last + 1 == T) // The window is full: half of it goes.
            memmove(window, window + (T + 1) / 2, (size_t)(T - (T + 1) / 2) * sizeof *window),
                last -= (T + 1) / 2;
        window[++last] = token;
    }
    print_rest();
    printf("\n");
    free(window);
    free(logits);
}
