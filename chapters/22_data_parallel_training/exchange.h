// What the GPUs of a group exchange of a model: in which pieces, when each is ready, and which rank owns which numbers.
#pragma once

#include "../11_gpt2_training/launchers.h"
#include "group.h"

#ifdef __cplusplus
extern "C" {
#endif

// A matrix of a group of layers, a vector of all layers, or wte or wpe: numbers that lie side by side. Where the state is sharded, each
// rank owns a part: count / ranks numbers, rank 0 the first of them, and the last rank also what is left over.
struct piece {
    int layer;           // the backward has its gradients when it has those of this layer; -1: at the end
    size_t first, count; // in the model's parameters
    size_t at;           // where the part that this rank owns begins among all that it owns
};

struct exchange {
    struct group *group;
    struct piece *piece; // in the order in which the backward has their gradients
    int pieces, ready, sent;
    cudaEvent_t forked, joined;
    struct timeline *timeline; // of the exchange, while the model has a profile

    // Where the state is sharded: of the parameters that this rank owns those that decay come first, then, from a multiple of 8 on,
    // the others.
    bool sharded;
    size_t decayed, others, owned; // how many decay; where the others begin; where they end
    float *grad;                   // (owned), mean of all ranks
    void *weights;                 // (owned), in the model's type: model->master where that is F32
    float *norms;                  // (ranks), norm of what each owns
    struct update_state own;       // norm of what this rank owns
    void *memory_of_own;
};

// A model for this rank's part of the batch, with its exchange. Exits on errors, as all of these functions do.
struct model *exchange_model(struct group *group, const struct model_config *config, bool sharded);
void exchange_free(struct model *model);
struct exchange *exchange_of(const struct model *model);

// The part of a piece that a rank owns begins so far into it, and has so many numbers.
size_t part_begin(const struct exchange *x, const struct piece *piece, int rank);
size_t part_count(const struct exchange *x, const struct piece *piece, int rank);

// Marks the pieces of a layer, as model->ready names it, as ready to be sent.
void exchange_ready(struct model *model, int layer);
// Whether there is a bucket to send: a group of layers that is ready, or at the end all that is left.
bool exchange_bucket_full(const struct exchange *x);

// The group's stream waits for what `stream` has been asked for until now; and `stream` for the group's, which ends a collective or
// several.
void exchange_fork(struct model *model, cudaStream_t stream);
void exchange_sent(struct model *model, size_t bytes);
void exchange_join(struct model *model, cudaStream_t stream);

// Makes whole what ranks own parts of: numbers (parameters) of the model's order from own (owned), of type F32 or the model's.
void exchange_gather(struct model *model, const void *own, void *numbers, enum dtype dtype,
                     cudaStream_t stream);

// Sets the parameters, and m and v (2 * parameters; NULL: 0), from the host; copies master, m and v of all parameters to the host
// (3 * parameters; NULL: only takes part), for which the gradients are overwritten.
void exchange_set(struct model *model, const float *parameters, const float *moments);
void exchange_get(struct model *model, float *numbers, cudaStream_t stream);

// Waits, and prints of `steps` steps how much was exchanged; with times, how long that took, and how long the GPU waited for it.
void exchange_print(struct model *model, int steps, bool with_times);

#ifdef __cplusplus
}
#endif
