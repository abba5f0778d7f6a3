// GPT-2 on the device: what it is made of, and where each array lies.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cuda_runtime_api.h>

#include "../10_adamw_mixed_precision/launchers.h"

#ifdef __cplusplus
extern "C" {
#endif

// Who computes attention, by chapter, and who the forward products.
enum attention_by {
    ATTENTION_9 = 9,   // cuBLAS and a softmax; keeps all probabilities
    ATTENTION_12 = 12, // mma.sync forward; it has no backward: chapter 17's
    ATTENTION_17 = 17, // chapter 15 forward, chapter 17 backward
};
enum products_by { PRODUCTS_CUBLAS = 9, PRODUCTS_14 = 14 };

struct model_config {
    int layers, heads, channels;
    int vocabulary, padded_vocabulary; // tokens, and rows of wte: a multiple of 8
    int positions;                     // rows of wpe
    int batch, length;
    enum dtype dtype; // of weights and activations: F32 or BF16
    enum attention_by attention;
    enum products_by products;
    bool deterministic; // attention 12 and 17: dQ is summed up in one order, too; all else is in any case
    bool recompute;     // activations are kept for one layer at a time, and computed again for the backward
    float beta1, beta2, epsilon, weight_decay, max_norm;
};

// The parameters in the order in which they lie in memory and in files: first those that weight decay takes hold of.
enum parameter {
    WTE, // (padded vocabulary, C)
    WPE, // (positions, C)
    QKV_W,
    PROJ_W,
    FC_W,
    FC_PROJ_W, // of layers from here on: (layers, …)
    LN1_W,
    LN1_B,
    QKV_B,
    PROJ_B,
    LN2_W,
    LN2_B,
    FC_B,
    FC_PROJ_B,
    LNF_W, // (C)
    LNF_B,
    NUM_PARAMETERS
};

// What the forward leaves for the backward, and what lies there in between; R = batch * length rows, H heads.
enum activation {
    RESIDUAL, // (R, C) at each layer's beginning, and at the end of the last
    NORM1,    // its layernorm: the layer's first, or behind the last layer the final one
    MEAN1,
    RSTD1,
    QKV,       // (R, 3 C); with attention 12 or 17 (3, R, C)
    ATT,       // (batch, H, length, length), probabilities; with 12 or 17 (batch, H, length), LSE
    ATTY,      // (R, C), what attention makes of it
    RESIDUAL2, // (R, C), in the middle of a layer
    NORM2,
    MEAN2,
    RSTD2,
    FC,   // (R, 4 C), before GELU
    GELU, // and behind it
    LOGITS,
    LOSS,   // (R), fp32
    BRANCH, // (R, C): what a branch adds to the residual, and its gradient
    D_RESIDUAL,
    D_NORM,
    D_WIDE, // (R, 4 C)
    D_QKV,
    D_ATT, // attention's backward: as ATT, or chapter 17's workspace
    NUM_ACTIVATIONS
};

// An array, or one for each layer.
struct array {
    const char *name;
    enum dtype dtype;
    int64_t elements; // of one
    int count;        // 1, the layers, or one more
    size_t offset;    // bytes (activations) or elements (parameters) from the beginning of all
};

struct profile;

struct model {
    struct model_config config;
    int rows;
    size_t parameters, decayed; // how many numbers; those that decay come first
    struct array parameter[NUM_PARAMETERS], activation[NUM_ACTIVATIONS];
    size_t owned;          // of the parameters, how many are updated here: all, or with several GPUs a share
    float *grad;           // (parameters)
    float *master, *m, *v; // (owned)
    void *weights;         // (parameters), in config.dtype: master itself if that is F32 and has all
    char *activations;
    size_t activation_bytes;
    int *tokens, *targets; // (batch, length)
    float *lr;             // (1): of the next update
    struct update_state state;
    void *memory_of_state;    // where lr and state are
    bool launched;            // a step has been, so that all has its memory
    cudaGraphExec_t recorded; // the step; NULL: not yet
    struct profile *profile;  // NULL: none is taken
    // Called by the backward, if not NULL, when the gradients of a layer have been launched: `layers` stands for those behind the
    // last layer, -1 for those of wte and wpe. `exchange` is the caller's.
    void (*ready)(struct model *model, int layer, cudaStream_t stream);
    void *exchange;
};

// NULL, or what the configuration would have to be.
const char *model_refuse(const struct model_config *config);

// How many parameters and bytes of activations it has, and where each array lies; nothing is allocated.
struct model model_plan(const struct model_config *config);

// Allocates everything, with master, m and v for `owned` parameters, a multiple of 8 (0: for all, in the order of enum parameter);
// the parameters are not set. The configuration is one that model_refuse takes. Exits on CUDA errors, as the functions below do.
struct model *model_create(const struct model_config *config, size_t owned);
void model_free(struct model *model);

// Destroys the graph in which a step was recorded, if there is one; the next such step records anew.
void model_forget_recording(struct model *model);

// The parameters from the host (fp32, in the order of enum parameter): weights, and master where that has all; m, v, the counts
// become 0.
void model_set_parameters(struct model *model, const float *parameters);

// `count` parameters of a type on the device, as fp32 on the host, for the caller to free. Exits on errors.
float *model_parameters(enum dtype dtype, const void *weights, size_t count);

// The mean of the losses of the last loss_pass. Exits on errors.
float model_mean_loss(const struct model *model);

// A parameter or its gradient, an activation, of a layer (0 where there is one only).
void *weight(const struct model *model, enum parameter which, int layer);
float *gradient(const struct model *model, enum parameter which, int layer);
void *activation(const struct model *model, enum activation which, int layer);

// FLOPs of a training step, as they are usually counted: 6 for each token and parameter of a matrix, and attention's products
// without the half that the causal mask saves (PaLM, appendix B).
double model_flops(const struct model *model);

#ifdef __cplusplus
}
#endif
