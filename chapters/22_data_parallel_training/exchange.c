#include "exchange.h"

#include <stdlib.h>

#include "../../common/harness/error.h"
#include "../../common/harness/npy.h"
#include "../11_gpt2_training/layers.h"
#include "timeline.h"

enum { ALIGNMENT = 8 }; // of parameters, where they begin: 16 bytes of bf16

struct exchange *exchange_of(const struct model *m)
{
    return m->exchange;
}

// --- Pieces -----------------------------------------------------------------------------------------------------------

size_t part_begin(const struct exchange *x, const struct piece *piece, int rank)
{
    return piece->count / (size_t)x->group->ranks * (size_t)rank;
}

size_t part_count(const struct exchange *x, const struct piece *piece, int rank)
{
    const size_t ranks = (size_t)x->group->ranks;
    return piece->count / ranks + (rank + 1 == x->group->ranks ? piece->count % ranks : 0);
}

// Of `layers` layers from `first` on; its gradients are there when those of layer `ready` are.
static void add_piece(struct exchange *x, const struct model *m, enum parameter which, int first, int layers,
                      int ready)
{
    const size_t elements = (size_t)m->parameter[which].elements;
    x->piece[x->pieces++] = (struct piece){.layer = ready,
                                           .first = m->parameter[which].offset + (size_t)first * elements,
                                           .count = (size_t)layers * elements};
}

// Matrices of groups of layers: of the last half of them, then of the last half of what is left, and so on. A large piece is exchanged
// faster, and what is short at the end of the backward is not waited for long.
static void plan_pieces(struct exchange *x, const struct model *m)
{
    const int layers = m->config.layers;
    x->piece = calloc((size_t)(layers + 1) * NUM_PARAMETERS, sizeof *x->piece);
    if (!x->piece) die_input("no memory for the pieces of %d layers", layers);
    for (int end = layers; end > 0; end /= 2)
        for (enum parameter p = QKV_W; p <= FC_PROJ_W; p++)
            add_piece(x, m, p, end / 2, end - end / 2, end / 2);
    for (enum parameter p = LN1_W; p <= LNF_B; p++) add_piece(x, m, p, 0, m->parameter[p].count, -1);
    add_piece(x, m, WTE, 0, 1, -1);
    add_piece(x, m, WPE, 0, 1, -1);
}

static size_t aligned(size_t parameters)
{
    return (parameters + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

static void plan_parts(struct exchange *x, const struct model *m)
{
    for (int decays = 1; decays >= 0; decays--) {
        for (int i = 0; i < x->pieces; i++) {
            struct piece *piece = &x->piece[i];
            if ((piece->first < m->decayed) != decays) continue;
            piece->at = x->owned;
            x->owned += part_count(x, piece, x->group->rank);
        }
        if (decays) x->decayed = x->owned, x->others = x->owned = aligned(x->owned);
    }
}

// --- The model --------------------------------------------------------------------------------------------------------

static void *allocate(size_t bytes)
{
    void *memory;
    CUDA_CHECK(cudaMalloc(&memory, bytes));
    CUDA_CHECK(cudaMemset(memory, 0, bytes));
    return memory;
}

// Gradients and norms of what this rank owns. The gap before `others` stays 0.
static void allocate_shares(struct exchange *x, struct model *m)
{
    struct {
        float scale;
        int good_steps, steps;
        float norm, control[3];
    } *own = x->memory_of_own = allocate(sizeof *own);
    const float one = 1;
    x->own = (struct update_state){&own->scale, &own->good_steps, &own->steps, &own->norm, own->control};
    CUDA_CHECK(cudaMemcpy(&own->scale, &one, sizeof one, cudaMemcpyHostToDevice));
    x->grad = allocate(m->owned * sizeof(float));
    x->weights = m->config.dtype == F32 ? m->master : allocate(m->owned * dtype_bytes(m->config.dtype));
    x->norms = allocate((size_t)x->group->ranks * sizeof(float));
}

struct model *exchange_model(struct group *group, const struct model_config *config, bool sharded)
{
    struct exchange *x = calloc(1, sizeof *x);
    if (!x) die_input("no memory for an exchange");
    const struct model plan = model_plan(config);
    x->group = group;
    x->sharded = sharded;
    plan_pieces(x, &plan);
    plan_parts(x, &plan);
    // One more than its own: a model that owns exactly as many as there are has them in their own order, not piece by piece.
    struct model *m = model_create(config, sharded ? aligned(x->owned + 1) : 0);
    m->exchange = x;
    if (sharded) allocate_shares(x, m);
    CUDA_CHECK(cudaEventCreateWithFlags(&x->forked, cudaEventDisableTiming));
    CUDA_CHECK(cudaEventCreateWithFlags(&x->joined, cudaEventDisableTiming));
    return m;
}

void exchange_free(struct model *m)
{
    struct exchange *x = exchange_of(m);
    if (x->sharded) {
        if (x->weights != m->master) CUDA_CHECK(cudaFree(x->weights));
        CUDA_CHECK(cudaFree(x->grad));
        CUDA_CHECK(cudaFree(x->norms));
        CUDA_CHECK(cudaFree(x->memory_of_own));
    }
    CUDA_CHECK(cudaEventDestroy(x->forked));
    CUDA_CHECK(cudaEventDestroy(x->joined));
    model_free(m);
    free(x->piece);
    free(x);
}

// --- In a step --------------------------------------------------------------------------------------------------------

void exchange_ready(struct model *m, int layer)
{
    struct exchange *x = exchange_of(m);
    while (x->ready < x->pieces && x->piece[x->ready].layer >= layer) x->ready++;
}

bool exchange_bucket_full(const struct exchange *x)
{
    return x->ready > x->sent;
}

void exchange_fork(struct model *m, cudaStream_t stream)
{
    struct exchange *x = exchange_of(m);
    CUDA_CHECK(cudaEventRecord(x->forked, stream));
    CUDA_CHECK(cudaStreamWaitEvent(x->group->stream, x->forked, 0));
    if (m->profile) timeline_mark(&x->timeline, EXCHANGE_BEGINS, 0, x->group->stream);
}

void exchange_sent(struct model *m, size_t bytes)
{
    struct exchange *x = exchange_of(m);
    if (m->profile) timeline_mark(&x->timeline, EXCHANGE_ENDS, bytes, x->group->stream);
}

void exchange_join(struct model *m, cudaStream_t stream)
{
    struct exchange *x = exchange_of(m);
    if (m->profile) timeline_mark(&x->timeline, WAIT_BEGINS, 0, stream);
    CUDA_CHECK(cudaEventRecord(x->joined, x->group->stream));
    CUDA_CHECK(cudaStreamWaitEvent(stream, x->joined, 0));
    if (m->profile) timeline_mark(&x->timeline, WAIT_ENDS, 0, stream);
    ran(m, "wait for other GPUs", 0, cudaSuccess, stream);
}

void exchange_print(struct model *m, int steps, bool with_times)
{
    timeline_print(exchange_of(m)->timeline, steps, with_times);
    exchange_of(m)->timeline = NULL;
}

// --- Parts and the whole ----------------------------------------------------------------------------------------------

static void *element(const void *array, enum dtype dtype, size_t i)
{
    return (char *)array + i * dtype_bytes(dtype);
}

void exchange_gather(struct model *m, const void *own, void *numbers, enum dtype dtype, cudaStream_t stream)
{
    struct exchange *x = exchange_of(m);
    struct group *g = x->group;
    const int type = dtype == F32 ? ncclFloat32 : ncclBfloat16, last = g->ranks - 1;
    NCCL_CHECK(g, GroupStart());
    for (int i = 0; i < x->pieces; i++) {
        const struct piece *piece = &x->piece[i];
        const size_t each = part_count(x, piece, 0), rest = part_count(x, piece, last) - each;
        const void *part = element(own, dtype, piece->at);
        NCCL_CHECK(g, AllGather(part, element(numbers, dtype, piece->first), each, type, g->comm, stream));
        if (rest > 0)
            NCCL_CHECK(g, Broadcast(element(part, dtype, each),
                                    element(numbers, dtype, piece->first + piece->count - rest), rest, type,
                                    last, g->comm, stream));
    }
    NCCL_CHECK(g, GroupEnd());
}

// Copies what this rank owns of `numbers`, on the host, to `own`, on the device.
static void set_own(struct model *m, const float *numbers, float *own)
{
    struct exchange *x = exchange_of(m);
    float *parts = calloc(m->owned, sizeof *parts);
    if (!parts) die_input("no memory for %zu parameters", m->owned);
    for (int i = 0; i < x->pieces; i++) {
        const struct piece *piece = &x->piece[i];
        memcpy(parts + piece->at, numbers + piece->first + part_begin(x, piece, x->group->rank),
               part_count(x, piece, x->group->rank) * sizeof *parts);
    }
    CUDA_CHECK(cudaMemcpy(own, parts, m->owned * sizeof *parts, cudaMemcpyHostToDevice));
    free(parts);
}

void exchange_set(struct model *m, const float *parameters, const float *moments)
{
    model_set_parameters(m, parameters);
    if (exchange_of(m)->sharded) {
        set_own(m, parameters, m->master);
        if (moments) set_own(m, moments, m->m);
        if (moments) set_own(m, moments + m->parameters, m->v);
    } else if (moments)
        CUDA_CHECK(cudaMemcpy(m->m, moments, 2 * m->parameters * sizeof(float), cudaMemcpyHostToDevice));
}

void exchange_get(struct model *m, float *numbers, cudaStream_t stream)
{
    const float *const state[] = {m->master, m->m, m->v};
    for (size_t i = 0; i < sizeof state / sizeof *state; i++) {
        const float *whole = state[i];
        if (exchange_of(m)->sharded) {
            exchange_gather(m, state[i], m->grad, F32, stream);
            whole = m->grad;
        }
        if (numbers)
            CUDA_CHECK(cudaMemcpyAsync(numbers + i * m->parameters, whole, m->parameters * sizeof(float),
                                       cudaMemcpyDeviceToHost, stream));
    }
    CUDA_CHECK(cudaStreamSynchronize(stream));
}
