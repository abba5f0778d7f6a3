/* blas.h: what libcublas.so.13 and libcublasLt.so.13 share. The toolkit's headers are not used, since a machine without a GPU may
 * have a toolkit without cuBLAS; the numbers are those of cublas_api.h and library_types.h. */
#ifndef BLAS_H
#define BLAS_H

#include "cublas.h"

#define EXPORT __attribute__((visibility("default")))

/* X(value, name, text) */
#define STATUSES(X)                                                                                    \
    X(0, CUBLAS_STATUS_SUCCESS, "success")                                                             \
    X(1, CUBLAS_STATUS_NOT_INITIALIZED, "the library was not initialized")                             \
    X(3, CUBLAS_STATUS_ALLOC_FAILED, "the resource allocation failed")                                 \
    X(7, CUBLAS_STATUS_INVALID_VALUE, "an unsupported value or parameter was passed to the function")  \
    X(8, CUBLAS_STATUS_ARCH_MISMATCH, "the function requires a feature that the device does not have") \
    X(11, CUBLAS_STATUS_MAPPING_ERROR, "an access to GPU memory space failed")                         \
    X(13, CUBLAS_STATUS_EXECUTION_FAILED, "the function failed to launch on the GPU")                  \
    X(14, CUBLAS_STATUS_INTERNAL_ERROR, "an internal operation failed")                                \
    X(15, CUBLAS_STATUS_NOT_SUPPORTED, "the functionality requested is not supported")                 \
    X(16, CUBLAS_STATUS_LICENSE_ERROR, "the functionality requested requires a licence")
typedef enum {
#define STATUS(value, name, text) name = value,
    STATUSES(STATUS)
#undef STATUS
} status;
const char *status_name(status s);
const char *status_text(status s);
/* Says what was wrong, in one line; returns the status. */
__attribute__((format(printf, 2, 3))) status blas_fail(status s, const char *format, ...);

typedef enum { POINTER_MODE_HOST, POINTER_MODE_DEVICE } pointer_mode;
typedef enum { R_32F = 0, R_64F = 1, R_16F = 2, R_16BF = 14, R_8F_E4M3 = 28 } data_type;
typedef enum {
    COMPUTE_32F = 68,
    COMPUTE_32F_PEDANTIC = 69,
    COMPUTE_64F = 70,
    COMPUTE_64F_PEDANTIC = 71,
    COMPUTE_32F_FAST_16F = 74,
    COMPUTE_32F_FAST_16BF = 75,
    COMPUTE_32F_FAST_TF32 = 77
} compute_type;

size_t element_bytes(data_type t);
const char *type_name(data_type t);
/* One element as f32, and back, rounded to nearest. Not f64; e4m3 is only read. */
float element_read(data_type t, const void *array, size_t index);
void element_write(data_type t, void *array, size_t index, float value);

/* A column-major matrix in device memory; with `by_rows`, a row-major one. */
struct matrix {
    const char *name; /* "A", for messages */
    void *data;
    data_type type;
    int rows, columns, ld;
    bool by_rows;
};

/* As f32, densely packed and column-major; malloc'ed. Ends the program when the host has no memory for it. */
float *matrix_dense(const struct matrix *m);
void matrix_store(const struct matrix *m, const float *dense);
/* False, said, and the context broken as by a kernel's illegal access: the matrix does not lie inside one allocation. */
bool matrix_in_bounds(const char *caller, const char *verb, const struct matrix *m);
/* A product that is done now reads or writes it. */
void matrix_touch(const struct matrix *m, bool writes);

#endif
