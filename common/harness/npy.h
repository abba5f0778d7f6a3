// NumPy's .npy files (format versions 1.0 to 3.0), read strictly, and the element types they hold (dtype.h).
// Format: https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "../device/dtype.h"
#include "error.h"

enum { NPY_MAX_RANK = 8 };

// An array in C order on the host; `data` is NULL when there is none.
struct npy {
    enum dtype dtype;
    int rank;
    int64_t shape[NPY_MAX_RANK];
    int64_t count; // elements: the product of shape, 1 for rank 0
    void *data;    // count * dtype_bytes(dtype) bytes, from malloc
};

// Short name ("f32", "bf16"), bytes of an element, and what follows NAME in its file's name (".npy", ".bf16.npy").
const char *dtype_name(enum dtype dtype);
size_t dtype_bytes(enum dtype dtype);
const char *dtype_suffix(enum dtype dtype);

// Distance from 1 to the next larger number of a floating-point type (2^-23 for F32); 0 for integers.
double dtype_epsilon(enum dtype dtype);

// The least number above 0 of a floating-point type, which is the distance of all its subnormal numbers (2^-24 for F16); 0 for integers.
double dtype_least(enum dtype dtype);

// Element i as a double, exactly (an I64 beyond 2^53 rounds); and the element nearest to value (ties to even).
double dtype_get(enum dtype dtype, const void *data, int64_t i);
void dtype_set(enum dtype dtype, void *data, int64_t i, double value);

// Reads `path` into *array, whose dtype becomes the first in `accepted` (bits 1u << dtype) that the file holds.
// Returns true, or false with the reason in *error and nothing allocated. Refused: another dtype, big-endian or
// Fortran order, a rank above NPY_MAX_RANK, a dimension of 0, sizes that overflow, and a file that is shorter or
// longer than its header says.
bool npy_load(const char *path, unsigned accepted, struct npy *array, struct error *error);

// Writes *array to `path` (version 1.0). Returns true, or false with the reason in *error.
bool npy_save(const char *path, const struct npy *array, struct error *error);

// Frees the data of an array and leaves it empty.
void npy_free(struct npy *array);

// "(3, 4)" as Python writes it; returns text.
char *npy_shape_text(int rank, const int64_t *shape, char *text, size_t size);
