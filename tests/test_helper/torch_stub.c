// Stands in for libtorch_cuda.so: the functions that common/harness/sdpa_baseline.c takes from it, with attention computed in
// double on the host from whatever strides it is handed.
#include <cuda_runtime_api.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { BF16 = 15, F16 = 5, CUDA = 1 }; // PyTorch's own numbers

struct tensor {
    char *data;
    int64_t sizes[4], strides[4];
    int32_t dtype;
    int owned;
};

int32_t aoti_torch_dtype_bfloat16(void)
{
    return BF16;
}
int32_t aoti_torch_dtype_float16(void)
{
    return F16;
}
int32_t aoti_torch_device_type_cuda(void)
{
    return CUDA;
}

int32_t aoti_torch_dtype_float32(void)
{
    return 6;
}
int32_t aoti_torch_dtype_int64(void)
{
    return 4;
}

int aoti_torch_new_uninitialized_tensor(struct tensor **tensor)
{
    *tensor = calloc(1, sizeof **tensor);
    return 0;
}

int aoti_torch_create_cuda_stream_guard(void *stream, int32_t device, void **guard)
{
    *guard = malloc(1);
    return !stream || device != 0;
}

int aoti_torch_delete_cuda_stream_guard(void *guard)
{
    free(guard);
    return 0;
}

int aoti_torch_create_tensor_from_blob(void *data, int64_t rank, const int64_t *sizes, const int64_t *strides,
                                       int64_t offset, int32_t dtype, int32_t device_type, int32_t device,
                                       struct tensor **tensor)
{
    if (rank != 4 || offset != 0 || device_type != CUDA || device != 0) return 1;
    *tensor = calloc(1, sizeof **tensor);
    (*tensor)->data = data;
    (*tensor)->dtype = dtype;
    memcpy((*tensor)->sizes, sizes, sizeof(*tensor)->sizes);
    memcpy((*tensor)->strides, strides, sizeof(*tensor)->strides);
    return 0;
}

int aoti_torch_delete_tensor_object(struct tensor *tensor)
{
    if (tensor->owned) cudaFree(tensor->data);
    free(tensor);
    return 0;
}

int aoti_torch_get_data_ptr(struct tensor *tensor, void **data)
{
    *data = tensor->data;
    return 0;
}

int aoti_torch_get_strides(struct tensor *tensor, int64_t **strides)
{
    *strides = tensor->strides;
    return 0;
}

// Elements of a tensor that is dense in some order, in memory on the host.
static uint16_t *download(const struct tensor *t)
{
    size_t bytes = (size_t)(t->sizes[0] * t->sizes[1] * t->sizes[2] * t->sizes[3]) * 2;
    uint16_t *host = malloc(bytes);
    cudaDeviceSynchronize();
    cudaMemcpy(host, t->data, bytes, cudaMemcpyDeviceToHost);
    return host;
}

static double get(const struct tensor *t, const uint16_t *host, int64_t b, int64_t h, int64_t row, int64_t d)
{
    uint32_t bits =
        (uint32_t)host[b * t->strides[0] + h * t->strides[1] + row * t->strides[2] + d * t->strides[3]] << 16;
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

static int attend(struct tensor *Q, struct tensor *K, struct tensor *V, int32_t causal, struct tensor **O,
                  struct tensor **LSE)
{
    const int64_t B = Q->sizes[0], H = Q->sizes[1], M = Q->sizes[2], N = K->sizes[2], D = Q->sizes[3];
    if (Q->dtype != BF16) return 1;
    uint16_t *q = download(Q), *k = download(K), *v = download(V), *o = calloc((size_t)(B * H * M * D), 2);
    float *lse = calloc((size_t)(B * H * M), 4);
    double *P = malloc((size_t)N * sizeof *P);
    for (int64_t b = 0; b < B; b++)
        for (int64_t h = 0; h < H; h++)
            for (int64_t i = 0; i < M; i++) {
                const int64_t keys = causal ? i + 1 : N;
                double sum = 0;
                for (int64_t j = 0; j < keys; j++) {
                    double s = 0;
                    for (int64_t d = 0; d < D; d++) s += get(Q, q, b, h, i, d) * get(K, k, b, h, j, d);
                    sum += P[j] = exp(s / sqrt((double)D));
                }
                lse[(b * H + h) * M + i] = sum > 0 ? (float)log(sum) : -INFINITY;
                for (int64_t d = 0; d < D; d++) {
                    double value = 0;
                    for (int64_t j = 0; j < keys; j++) value += P[j] / sum * get(V, v, b, h, j, d);
                    float rounded = (float)value;
                    uint32_t bits;
                    memcpy(&bits, &rounded, 4);
                    o[b * Q->strides[0] + h * Q->strides[1] + i * Q->strides[2] + d] =
                        (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
                }
            }
    aoti_torch_create_tensor_from_blob(NULL, 4, Q->sizes, Q->strides, 0, BF16, CUDA, 0,
                                       O); // like Q: as PyTorch
    const int64_t strides[4] = {H * M, M, 1, 1};
    aoti_torch_create_tensor_from_blob(NULL, 4, Q->sizes, strides, 0, 0, CUDA, 0, LSE);
    (*O)->owned = (*LSE)->owned = 1;
    cudaMalloc((void **)&(*O)->data, (size_t)(B * H * M * D) * 2);
    cudaMalloc((void **)&(*LSE)->data, (size_t)(B * H * M) * 4);
    cudaMemcpy((*O)->data, o, (size_t)(B * H * M * D) * 2, cudaMemcpyHostToDevice);
    cudaMemcpy((*LSE)->data, lse, (size_t)(B * H * M) * 4, cudaMemcpyHostToDevice);
    free(q), free(k), free(v), free(o), free(lse), free(P);
    return 0;
}

int aoti_torch_cuda__scaled_dot_product_flash_attention(struct tensor *Q, struct tensor *K, struct tensor *V,
                                                        double dropout, int32_t causal, int32_t debug_mask,
                                                        double *scale, struct tensor **O, struct tensor **LSE,
                                                        struct tensor **cum_q, struct tensor **cum_k,
                                                        int64_t *max_q, int64_t *max_k, struct tensor **seed,
                                                        struct tensor **offset, struct tensor **mask)
{
    *cum_q = *cum_k = *seed = *offset = *mask = NULL;
    *max_q = Q->sizes[2];
    *max_k = K->sizes[2];
    return dropout != 0 || debug_mask || scale || attend(Q, K, V, causal, O, LSE);
}

int aoti_torch_cuda__scaled_dot_product_cudnn_attention(struct tensor *Q, struct tensor *K, struct tensor *V,
                                                        struct tensor **bias, int32_t compute_LSE,
                                                        double dropout, int32_t causal, int32_t debug_mask,
                                                        double *scale, struct tensor **O, struct tensor **LSE,
                                                        struct tensor **cum_q, struct tensor **cum_k,
                                                        int64_t *max_q, int64_t *max_k, struct tensor **seed,
                                                        struct tensor **offset, struct tensor **mask)
{
    return bias || !compute_LSE ||
           aoti_torch_cuda__scaled_dot_product_flash_attention(Q, K, V, dropout, causal, debug_mask, scale, O,
                                                               LSE, cum_q, cum_k, max_q, max_k, seed, offset,
                                                               mask);
}

static struct tensor *upload(const struct tensor *like, const double *values)
{
    const size_t count = (size_t)(like->sizes[0] * like->sizes[1] * like->sizes[2] * like->sizes[3]);
    uint16_t *host = malloc(count * 2);
    struct tensor *t;
    for (size_t i = 0; i < count; i++) {
        const float rounded = (float)values[i];
        uint32_t bits;
        memcpy(&bits, &rounded, 4);
        host[i] = (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
    }
    aoti_torch_create_tensor_from_blob(NULL, 4, like->sizes, like->strides, 0, BF16, CUDA, 0, &t);
    t->owned = 1;
    cudaMalloc((void **)&t->data, count * 2);
    cudaMemcpy(t->data, host, count * 2, cudaMemcpyHostToDevice);
    free(host);
    return t;
}

int aoti_torch_cuda__scaled_dot_product_cudnn_attention_backward(
    struct tensor *dO, struct tensor *Q, struct tensor *K, struct tensor *V, struct tensor *O,
    struct tensor *LSE, struct tensor *seed, struct tensor *offset, struct tensor *bias, struct tensor *cum_q,
    struct tensor *cum_k, int64_t max_q, int64_t max_k, double dropout, int32_t causal, double *scale,
    struct tensor **dQ, struct tensor **dK, struct tensor **dV)
{
    const int64_t B = Q->sizes[0], H = Q->sizes[1], M = Q->sizes[2], N = K->sizes[2], D = Q->sizes[3];
    if (Q->dtype != BF16 || LSE->dtype != 6 || seed->dtype != 4 || offset->dtype != 4 || bias->data ||
        cum_q->data || cum_k->data || max_q != M || max_k != N || dropout != 0 || scale)
        return 1;
    uint16_t *q = download(Q), *k = download(K), *v = download(V), *o = download(O), *g = download(dO);
    double *dq = calloc((size_t)(B * H * M * D), 8), *dk = calloc((size_t)(B * H * N * D), 8),
           *dv = calloc((size_t)(B * H * N * D), 8);
    float *lse = malloc((size_t)(B * H * M) * 4);
    cudaMemcpy(lse, LSE->data, (size_t)(B * H * M) * 4, cudaMemcpyDeviceToHost);
    const double c = 1 / sqrt((double)D);
    for (int64_t b = 0; b < B; b++)
        for (int64_t h = 0; h < H; h++)
            for (int64_t i = 0; i < M; i++)
                for (int64_t j = 0; j < (causal ? i + 1 : N); j++) {
                    double s = 0, dP = 0;
                    for (int64_t d = 0; d < D; d++) {
                        s += get(Q, q, b, h, i, d) * get(K, k, b, h, j, d);
                        dP += get(dO, g, b, h, i, d) * (get(V, v, b, h, j, d) - get(O, o, b, h, i, d));
                    }
                    const double P = exp(s * c - lse[(b * H + h) * M + i]), dS = P * dP * c;
                    for (int64_t d = 0; d < D; d++) {
                        const int64_t at_q = b * Q->strides[0] + h * Q->strides[1] + i * Q->strides[2] + d,
                                      at_k = b * K->strides[0] + h * K->strides[1] + j * K->strides[2] + d;
                        dq[at_q] += dS * get(K, k, b, h, j, d);
                        dk[at_k] += dS * get(Q, q, b, h, i, d);
                        dv[at_k] += P * get(dO, g, b, h, i, d);
                    }
                }
    *dQ = upload(Q, dq), *dK = upload(K, dk), *dV = upload(V, dv);
    free(q), free(k), free(v), free(o), free(g), free(dq), free(dk), free(dv), free(lse);
    return 0;
}
