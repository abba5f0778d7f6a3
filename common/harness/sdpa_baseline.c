#include "sdpa_baseline.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>

#include "library.h"

// The few declarations of torch/csrc/inductor/aoti_torch/c/shim.h and generated/c_shim_cuda.h that are used here. A
// function returns 0, or else has printed why not.
typedef struct torch_tensor *torch_tensor;

static struct {
    bool tried, found;
    int (*make_guard)(void *stream, int32_t device, void **guard);
    int (*delete_guard)(void *guard);
    int (*wrap)(void *data, int64_t rank, const int64_t *sizes, const int64_t *strides, int64_t offset,
                int32_t dtype, int32_t device_type, int32_t device, torch_tensor *tensor);
    int (*delete_tensor)(torch_tensor);
    int (*data)(torch_tensor, void **data);
    int (*strides)(torch_tensor, int64_t **strides);
    int32_t (*bf16)(void), (*f16)(void), (*f32)(void), (*i64)(void), (*cuda)(void);
    int (*flash)(torch_tensor Q, torch_tensor K, torch_tensor V, double dropout, int32_t causal,
                 int32_t return_debug_mask, double *scale, torch_tensor *O, torch_tensor *LSE,
                 torch_tensor *cum_q, torch_tensor *cum_k, int64_t *max_q, int64_t *max_k, torch_tensor *seed,
                 torch_tensor *offset, torch_tensor *debug_mask);
    int (*cudnn)(torch_tensor Q, torch_tensor K, torch_tensor V, torch_tensor *bias, int32_t compute_LSE,
                 double dropout, int32_t causal, int32_t return_debug_mask, double *scale, torch_tensor *O,
                 torch_tensor *LSE, torch_tensor *cum_q, torch_tensor *cum_k, int64_t *max_q, int64_t *max_k,
                 torch_tensor *seed, torch_tensor *offset, torch_tensor *debug_mask);
    int (*empty)(torch_tensor *); // a tensor that is none
    int (*cudnn_backward)(torch_tensor dO, torch_tensor Q, torch_tensor K, torch_tensor V, torch_tensor O,
                          torch_tensor LSE, torch_tensor seed, torch_tensor offset, torch_tensor bias,
                          torch_tensor cum_q, torch_tensor cum_k, int64_t max_q, int64_t max_k,
                          double dropout, int32_t causal, double *scale, torch_tensor *dQ, torch_tensor *dK,
                          torch_tensor *dV);
    torch_tensor O, LSE, dQ, dK, dV; // of the last call
} torch;

enum backend { FLASH, CUDNN, CUDNN_BACKWARD };

// The one function that a program needs of them: the backend's.
static bool find_backend(void *library, enum backend backend)
{
    switch (backend) {
    case FLASH:
        return library_find(library, "aoti_torch_cuda__scaled_dot_product_flash_attention", &torch.flash);
    case CUDNN:
        return library_find(library, "aoti_torch_cuda__scaled_dot_product_cudnn_attention", &torch.cudnn);
    default:
        return library_find(library, "aoti_torch_dtype_float32", &torch.f32) &&
               library_find(library, "aoti_torch_dtype_int64", &torch.i64) &&
               library_find(library, "aoti_torch_new_uninitialized_tensor", &torch.empty) &&
               library_find(library, "aoti_torch_cuda__scaled_dot_product_cudnn_attention_backward",
                            &torch.cudnn_backward);
    }
}

// Finds PyTorch with the backend that this program asks for.
static bool open_torch(enum backend backend)
{
    char path[PATH_MAX];
    const char *folder = getenv("TORCH_LIB");
    if (torch.tried) return torch.found;
    torch.tried = true;
    snprintf(path, sizeof path, "%s%slibtorch_cuda.so", folder ? folder : "", folder && *folder ? "/" : "");
    void *library = dlopen(path, RTLD_NOW);
    if (!library) {
        fprintf(stderr, "PyTorch: no baseline: %s; TORCH_LIB is the folder that it is looked for in\n",
                dlerror());
        return false;
    }
    torch.found = library_find(library, "aoti_torch_create_cuda_stream_guard", &torch.make_guard) &&
                  library_find(library, "aoti_torch_delete_cuda_stream_guard", &torch.delete_guard) &&
                  library_find(library, "aoti_torch_create_tensor_from_blob", &torch.wrap) &&
                  library_find(library, "aoti_torch_delete_tensor_object", &torch.delete_tensor) &&
                  library_find(library, "aoti_torch_get_data_ptr", &torch.data) &&
                  library_find(library, "aoti_torch_get_strides", &torch.strides) &&
                  library_find(library, "aoti_torch_dtype_bfloat16", &torch.bf16) &&
                  library_find(library, "aoti_torch_dtype_float16", &torch.f16) &&
                  library_find(library, "aoti_torch_device_type_cuda", &torch.cuda) &&
                  find_backend(library, backend);
    return torch.found;
}

// A tensor of PyTorch's around memory of ours.
static bool wrap_any(const void *data, const int64_t *sizes, const int64_t *strides, int32_t dtype,
                     torch_tensor *tensor)
{
    int device = 0;
    return cudaGetDevice(&device) == cudaSuccess &&
           torch.wrap((void *)data, 4, sizes, strides, 0, dtype, torch.cuda(), device, tensor) == 0;
}

// PyTorch's view (batch, heads, rows, head_dim) of our (batch, rows, heads, head_dim).
static bool wrap(const struct attention *a, const void *data, int64_t rows, torch_tensor *tensor)
{
    const int64_t sizes[] = {a->batch, a->heads, rows, a->head_dim};
    const int64_t row = (int64_t)a->heads * a->head_dim, strides[] = {rows * row, a->head_dim, row, 1};
    return wrap_any(data, sizes, strides, a->dtype == F16 ? torch.f16() : torch.bf16(), tensor);
}

static void release(torch_tensor *tensor)
{
    if (*tensor) torch.delete_tensor(*tensor);
    *tensor = NULL;
}

static cudaError_t sdpa(const struct attention *a, enum backend backend, cudaStream_t stream)
{
    torch_tensor Q = NULL, K = NULL, V = NULL, unused[5] = {NULL};
    int64_t max_q, max_k;
    void *guard = NULL;
    int device = 0;
    if ((a->causal && a->q_len != a->k_len) || a->heads != a->kv_heads) return cudaErrorNotSupported;
    if (!open_torch(backend)) return cudaErrorSharedObjectInitFailed;
    release(&torch.O);
    release(&torch.LSE);
    bool ok = cudaGetDevice(&device) == cudaSuccess && torch.make_guard(stream, device, &guard) == 0 &&
              wrap(a, a->Q, a->q_len, &Q) && wrap(a, a->K, a->k_len, &K) && wrap(a, a->V, a->k_len, &V) &&
              (backend == CUDNN
                   ? torch.cudnn(Q, K, V, NULL, 1, 0, a->causal, 0, NULL, &torch.O, &torch.LSE, &unused[0],
                                 &unused[1], &max_q, &max_k, &unused[2], &unused[3], &unused[4])
                   : torch.flash(Q, K, V, 0, a->causal, 0, NULL, &torch.O, &torch.LSE, &unused[0], &unused[1],
                                 &max_q, &max_k, &unused[2], &unused[3], &unused[4])) == 0;
    release(&Q);
    release(&K);
    release(&V);
    for (int i = 0; i < 5; i++) release(&unused[i]);
    if (guard) torch.delete_guard(guard);
    return ok ? cudaGetLastError() : cudaErrorUnknown;
}

cudaError_t sdpa_flash(const struct attention *a, cudaStream_t stream)
{
    return sdpa(a, FLASH, stream);
}

cudaError_t sdpa_cudnn(const struct attention *a, cudaStream_t stream)
{
    return sdpa(a, CUDNN, stream);
}

// Copies a tensor of PyTorch's to `to` if it is in C order once its dimensions are taken in the order given.
static cudaError_t fetch(torch_tensor tensor, const int64_t *sizes, const int *order, int rank, void *to,
                         int64_t element_bytes, cudaStream_t stream)
{
    int64_t *strides, count = 1;
    void *data;
    if (!tensor || torch.strides(tensor, &strides) != 0 || torch.data(tensor, &data) != 0)
        return cudaErrorUnknown;
    for (int i = rank - 1; i >= 0; i--) {
        const int64_t size = sizes[order[i]], stride = strides[order[i]];
        if (size > 1 && stride != count) {
            fprintf(stderr, "PyTorch: an output's stride %d is %lld, expected %lld\n", order[i],
                    (long long)stride, (long long)count);
            return cudaErrorUnknown;
        }
        count *= size;
    }
    return cudaMemcpyAsync(to, data, (size_t)(count * element_bytes), cudaMemcpyDeviceToDevice, stream);
}

cudaError_t sdpa_fetch(const struct attention *a, cudaStream_t stream)
{
    const int64_t sizes[] = {a->batch, a->heads, a->q_len, a->head_dim};
    const int by_rows[] = {0, 2, 1, 3}, as_is[] = {0, 1, 2};
    cudaError_t error = fetch(torch.O, sizes, by_rows, 4, a->O, 2, stream);
    return error ? error : fetch(torch.LSE, sizes, as_is, 3, a->LSE, sizeof *a->LSE, stream);
}

cudaError_t sdpa_cudnn_backward(const struct attention *a, const void *dO, cudaStream_t stream)
{
    // Without dropout nothing is drawn at random: seed and offset are zeros that nobody reads.
    static int64_t *zeros;
    enum { IN_DO, IN_Q, IN_K, IN_V, IN_O, IN_LSE, SEED, OFFSET, BIAS, CUM_Q, CUM_K, COUNT };
    torch_tensor in[COUNT] = {NULL};
    void *guard = NULL;
    int device = 0;
    if ((a->causal && a->q_len != a->k_len) || a->heads != a->kv_heads) return cudaErrorNotSupported;
    if (!open_torch(CUDNN_BACKWARD)) return cudaErrorSharedObjectInitFailed;
    if (!zeros) {
        cudaError_t error = cudaMalloc((void **)&zeros, 2 * sizeof *zeros);
        if (error == cudaSuccess) error = cudaMemset(zeros, 0, 2 * sizeof *zeros);
        if (error != cudaSuccess) return error;
    }
    release(&torch.dQ);
    release(&torch.dK);
    release(&torch.dV);
    const int64_t LSE_sizes[] = {a->batch, a->heads, a->q_len, 1}, one[] = {1, 1, 1, 1};
    const int64_t LSE_strides[] = {(int64_t)a->heads * a->q_len, a->q_len, 1, 1};
    bool ok = cudaGetDevice(&device) == cudaSuccess && torch.make_guard(stream, device, &guard) == 0 &&
              wrap(a, dO, a->q_len, &in[IN_DO]) && wrap(a, a->Q, a->q_len, &in[IN_Q]) &&
              wrap(a, a->K, a->k_len, &in[IN_K]) && wrap(a, a->V, a->k_len, &in[IN_V]) &&
              wrap(a, a->O, a->q_len, &in[IN_O]) &&
              wrap_any(a->LSE, LSE_sizes, LSE_strides, torch.f32(), &in[IN_LSE]) &&
              wrap_any(zeros, one, one, torch.i64(), &in[SEED]) &&
              wrap_any(zeros + 1, one, one, torch.i64(), &in[OFFSET]) && torch.empty(&in[BIAS]) == 0 &&
              torch.empty(&in[CUM_Q]) == 0 && torch.empty(&in[CUM_K]) == 0 &&
              torch.cudnn_backward(in[IN_DO], in[IN_Q], in[IN_K], in[IN_V], in[IN_O], in[IN_LSE], in[SEED],
                                   in[OFFSET], in[BIAS], in[CUM_Q], in[CUM_K], a->q_len, a->k_len, 0,
                                   a->causal, NULL, &torch.dQ, &torch.dK, &torch.dV) == 0;
    for (int i = 0; i < COUNT; i++) release(&in[i]);
    if (guard) torch.delete_guard(guard);
    return ok ? cudaGetLastError() : cudaErrorUnknown;
}

cudaError_t sdpa_backward_fetch(const struct attention *a, void *dQ, void *dK, void *dV, cudaStream_t stream)
{
    const int by_rows[] = {0, 2, 1, 3};
    const int64_t q_sizes[] = {a->batch, a->heads, a->q_len, a->head_dim},
                  k_sizes[] = {a->batch, a->heads, a->k_len, a->head_dim};
    cudaError_t error = fetch(torch.dQ, q_sizes, by_rows, 4, dQ, 2, stream);
    if (error == cudaSuccess) error = fetch(torch.dK, k_sizes, by_rows, 4, dK, 2, stream);
    return error == cudaSuccess ? fetch(torch.dV, k_sizes, by_rows, 4, dV, 2, stream) : error;
}
