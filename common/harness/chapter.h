// A chapter's main.c declares its tensors, steps and limits as data and calls chapter_main, which is the command
// line, the check against golden files and the benchmark of every chapter. A chapter of several operations (forward,
// backward, ...) declares each of them so and calls chapter_main_operations.
#pragma once

#include <cuda_runtime_api.h>

#include "npy.h"
#include "shape.h"

enum { CHAPTER_MAX_TENSORS = 24, CHAPTER_MAX_STEPS = 12, CHAPTER_MAX_BENCH = 24 };

// What a tensor is to a step, and the files that a case has for it (SUFFIX as in npy.h).
enum role {
    IN,          // NAMESUFFIX; never written by a step
    IN_OPTIONAL, // the same; NULL when the file is missing
    PARAM,       // NAME.npy, rank 0: one number, given to the step on the host
    OUT,         // NAME.npy or NAMESUFFIX: what the step must write; NAME.tol.npy: how far off it may be
    INOUT,       // NAMESUFFIX before, NAME.after.npy and NAME.after.tol.npy after
};

struct tensor {
    const char *name;
    enum dtype dtype;
    enum role role;
    const char *shape; // an expression for each dimension: "m,k", "b,(k+127)/128"; "" for rank 0
    const char *below; // integers: --bench draws them from 0 to this expression - 1; NULL: normal numbers
};

// What one launch works on; indices are those of the chapter's tensors[] and dims[].
struct run {
    void *data
        [CHAPTER_MAX_TENSORS]; // device memory, C order; NULL for PARAM and for an optional input left out
    double param[CHAPTER_MAX_TENSORS]; // the value of a PARAM
    int64_t dim[SHAPE_MAX_DIMS];       // each 1 to 2^31-1; 0 too when it is a PARAM of the same name
    bool f16;                          // BF16 tensors hold F16 in this run: see chapter.f16_too
};

struct step {
    const char *name;
    // Starts the step's work in `stream`. Returns the launch's error; cudaErrorNotSupported from a baseline means
    // that it has no counterpart of this case, which is then shown as skipped; cudaErrorSharedObjectInitFailed, that
    // its library is not here (it has said so). A benchmark goes on without it in both cases.
    cudaError_t (*launch)(const struct step *step, const struct run *run, cudaStream_t stream);
    void (*kernel)(void); // the .cu file's launcher, cast back to its own type by `launch`
    bool only_moves;      // a baseline that moves the bytes and computes nothing: never compared
    // A baseline whose library allocates its outputs: copies those of the last launch to the run's. Never timed.
    cudaError_t (*fetch)(const struct step *step, const struct run *run, cudaStream_t stream);
};

// What bounds the chapter on an ideal machine; bench.c has the value for each GPU.
enum limit { LIMIT_NONE, LIMIT_FP32, LIMIT_BF16_TENSOR, LIMIT_FP8_TENSOR, LIMIT_MEMORY };

struct chapter {
    const char *name;                           // its folder: "01_naive_matmul"
    const char *operation;                      // "backward_f32", of a chapter of several; else NULL
    const char *title;                          // what it computes, in one line
    const char *dims[SHAPE_MAX_DIMS];           // ended by NULL
    struct tensor tensors[CHAPTER_MAX_TENSORS]; // ended by one without a name
    struct step steps[CHAPTER_MAX_STEPS];       // in the order of the ladder, ended by one without a name
    struct step baseline;                       // measured beside the steps; step 0 on the command line
    // NULL when the steps take these dimensions, else what they need, as "k must be a multiple of 8".
    const char *(*check_shape)(const int64_t *dim);
    const char *flops, *bytes; // of one launch, as expressions over dims; flops NULL: measured in bytes
    enum limit limit;
    // Cases may hold F16 where the tensors say BF16 (files NAME.npy instead of NAME.bf16.npy), all of them or none.
    bool f16_too;
    // How far two right steps may be apart in a benchmark, as a share of a row's RMS, beyond the rounding of the
    // output; 0: what fp32 sums in different orders differ by. Larger where 16-bit numbers are summed up within.
    double bench_difference;
    const char *bench[CHAPTER_MAX_BENCH]; // shapes of --bench, "m=4096,n=4096,k=4096"; ended by NULL
};

// The whole program; returns its exit status (enum exit_status).
int chapter_main(const struct chapter *chapter, int argc, char **argv);

// The same for a chapter of `count` operations, each with its own tensors, steps, cases and shapes. The cases of an
// operation are in the folder of its name; --op takes one operation, and then --golden may be that folder itself.
int chapter_main_operations(const struct chapter *operations, int count, int argc, char **argv);

// Number of tensors and of steps.
int chapter_tensors(const struct chapter *chapter);
int chapter_steps(const struct chapter *chapter);

// Type of tensor t in a case or run of bf16 or of f16.
enum dtype chapter_tensor_dtype(const struct chapter *chapter, int t, bool f16);

// The type that results are recorded under: that of the first tensor that is no parameter.
enum dtype chapter_dtype(const struct chapter *chapter, bool f16);

// Shape of tensor t for these dimensions. Returns its rank, or -1 with the reason in *error.
int chapter_tensor_shape(const struct chapter *chapter, int t, const int64_t *dim, int64_t *shape,
                         struct error *error);
