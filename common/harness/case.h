// A case: a folder of .npy files with a step's inputs, the outputs expected of it and how far off they may be.
#pragma once

#include "chapter.h"

// A case on the host. Arrays that it does not have are empty (data is NULL).
struct golden {
    char *name;
    int64_t dim[SHAPE_MAX_DIMS];
    enum dtype type;                           // one of the operation's types
    struct npy input[CHAPTER_MAX_TENSORS];     // IN, IN_OPTIONAL, PARAM, INOUT
    struct npy expected[CHAPTER_MAX_TENSORS];  // OUT, INOUT
    struct npy tolerance[CHAPTER_MAX_TENSORS]; // same shape as expected, or rank 0: one for all elements
};

// What came of one step on one case.
struct verdict {
    bool right;
    double worst;   // the largest |error| / tolerance of any element; infinity for a NaN
    char text[400]; // why it is not right: the first wrong element, the input that was written
};

// Names of the cases in folder `dir`, sorted: its folders, or "." when `dir` itself holds .npy files. Returns how
// many, or -1 with the reason in *error; *names and each name are from malloc.
int case_list(const char *dir, char ***names, struct error *error);

// Reads case `name` of folder `dir`: every file present, of its type, of one consistent shape that the operation
// takes, with finite tolerances and no NaN expected. Returns true, or false with the reason in *error.
bool case_load(const struct operation *op, const char *dir, const char *name, struct golden *golden,
               struct error *error);
void case_free(struct golden *golden);

// Sets the type of `run` and of its tensors, and its dimensions; nothing is allocated.
void run_begin(const struct operation *op, enum dtype type, const int64_t *dim, struct run *run);

// Allocates each tensor of `run`, with `guard` bytes behind it, and fills all of it with ones: NaN in
// every floating-point type. Optional tensors are left out unless `with` names them (with[t] true). Exits on
// CUDA errors, as the functions below do.
void run_allocate(const struct operation *op, struct run *run, const bool *with, size_t guard);
void run_free(struct run *run);

// Allocates `run` for the case, and lets a kernel copy its inputs there; outputs and guards stay poisoned.
void case_upload(const struct operation *op, const struct golden *golden, size_t guard, cudaStream_t stream,
                 struct run *run);

// Copies tensor t of a run to the host; the caller frees it with npy_free.
struct npy run_download(const struct operation *op, const struct run *run, int t);

// Compares every element of every output with what is expected, and checks that inputs and guards are untouched.
struct verdict case_check(const struct operation *op, const struct golden *golden, size_t guard,
                          const struct run *run);

// Writes "TENSOR[row R, col C]" for element i of an array.
char *case_element_text(const char *tensor, const struct npy *array, int64_t i, char *text, size_t size);
