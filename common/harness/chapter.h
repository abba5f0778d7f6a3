// A chapter's main.c declares its operations (forward, backward, ...; most chapters have one), each with its tensors,
// types, steps and limits, as data and calls chapter_main, which is the command line, the check against golden files and the
// benchmark of every chapter.
#pragma once

#include <cuda_runtime_api.h>

#include "npy.h"
#include "shape.h"

enum { CHAPTER_MAX_TENSORS = 24, CHAPTER_MAX_STEPS = 13, CHAPTER_MAX_BENCH = 40, CHAPTER_MAX_TYPES = 4 };

// The dtype of a tensor that is of the run's type.
#define RUN_TYPE ((enum dtype)0)

struct run;

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
    enum dtype dtype; // or RUN_TYPE
    enum role role;
    const char *shape; // an expression for each dimension: "m,k", "b,(k+127)/128"; "" for rank 0
    const char *below; // integers: --bench draws them from 0 to this expression - 1; NULL: normal numbers
    // Integers that must fit together: writes those of --bench for the run's dimensions. NULL: `below`.
    void (*draw)(const struct run *run, int32_t *values);
    bool positive; // numbers that must not be negative: --bench draws absolute values
    // What --bench has for a PARAM (0: the dimension of its name, else 1), or for all numbers of an input (0: random ones).
    double bench;
};

// What one launch works on; indices are those of the operation's tensors[] and dims[].
struct run {
    const struct operation *op;
    enum dtype type;                       // one of the operation's types[]
    enum dtype dtype[CHAPTER_MAX_TENSORS]; // of each tensor
    void *data
        [CHAPTER_MAX_TENSORS]; // device memory, C order; NULL for PARAM and for an optional input left out
    double param[CHAPTER_MAX_TENSORS]; // the value of a PARAM
    int64_t dim[SHAPE_MAX_DIMS];       // each 1 to 2^31-1; 0 too when it is a PARAM of the same name
    void *copy_to, *copy_from;         // for device_copy: device memory of copy_bytes each, else NULL
    size_t copy_bytes;                 // half of what the operation's `bytes` says
    void *host; // of a case, its inputs in page-locked memory, from which a kernel copies them; else NULL
};

// A function in a .cu file, cast back to its own type by its operation's `launch`.
typedef void any_launcher(void);

struct step {
    int number;       // of its file, stepN_NAME.cu
    const char *name; // of the launcher, and of its file
    any_launcher *launcher;
    int needs; // the oldest GPU that it runs on, 90 for sm_90; 0: any that runs the chapter
};

// The step of a launcher, which must have the function type `type`: anything else does not compile. What else there is to say of
// it follows, as `.needs = 90`.
#define STEP(step_number, type, function, ...)                                \
    {                                                                         \
        .number = (step_number), .name = #function,                           \
        .launcher = (any_launcher *)(1 ? (function) : (type *)0), __VA_ARGS__ \
    }

// The steps of one operation, in the order of the ladder.
#define STEPS(...)        \
    (const struct step[]) \
    {                     \
        __VA_ARGS__, {0}, \
    }

// Defines launch_TYPE, the `launch` of an operation whose steps have that function type: what its launchers take, in
// order, from `run`, between the run's type and the stream.
#define LAUNCH(launcher_type, ...)                                                           \
    static cudaError_t launch_##launcher_type(any_launcher *launcher, const struct run *run, \
                                              cudaStream_t stream)                           \
    {                                                                                        \
        return ((launcher_type *)launcher)(run->type, __VA_ARGS__, stream);                  \
    }

// What the steps are measured beside; step 0 on the command line. `launch` starts its work in `stream` and returns the
// launch's error: cudaErrorNotSupported means that it has no counterpart of this case, which is then shown as skipped,
// cudaErrorSharedObjectInitFailed that its library is not here (it has said so). A benchmark goes on without it in both
// cases.
struct baseline {
    const char *name; // NULL: none
    cudaError_t (*launch)(const struct run *run, cudaStream_t stream);
    // For a library that allocates its outputs: copies those of the last launch to the run's. Never timed.
    cudaError_t (*fetch)(const struct run *run, cudaStream_t stream);
    bool other_work; // its outputs are not the operation's (a copy has none): never compared
};

// The best that a library has for the shape at hand, a second baseline: of its candidates those whose outputs agree are timed, and
// the fastest takes part.
struct best {
    const char *name; // NULL: none
    // How many candidates there are for runs of these dimensions; 0 where there is no library (it has said so).
    int (*candidates)(const struct run *run);
    // Starts one of them. cudaErrorNotSupported: this one does not do it after all.
    cudaError_t (*launch)(const struct run *run, int candidate, cudaStream_t stream);
};

// A copy on the device of as many bytes as the operation moves, half of them read and half of them written: what it cannot
// be faster than.
#define DEVICE_COPY                                                       \
    {                                                                     \
        .name = "device copy", .launch = device_copy, .other_work = true, \
    }
cudaError_t device_copy(const struct run *run, cudaStream_t stream);

// What bounds the operation on an ideal machine; bench.c has the value for each GPU.
enum limit { LIMIT_NONE, LIMIT_FP32, LIMIT_BF16_TENSOR, LIMIT_FP8_TENSOR, LIMIT_MEMORY };

struct operation {
    const char *name;                           // "backward"; NULL where it is the chapter's only one
    const char *title;                          // what it computes, in one line
    enum dtype types[CHAPTER_MAX_TYPES];        // that a run may have, ended by 0
    const char *dims[SHAPE_MAX_DIMS];           // ended by NULL
    struct tensor tensors[CHAPTER_MAX_TENSORS]; // ended by one without a name
    const struct step *steps;                   // in the order of the ladder, ended by one without a name
    // Calls a step's launcher with what the run holds; returns its error.
    cudaError_t (*launch)(any_launcher *launcher, const struct run *run, cudaStream_t stream);
    struct baseline baseline;
    struct best best;
    // NULL, or what --bench calls once its inputs are drawn: overwrites those that follow from the others. Returns the error of a
    // launch in `stream`.
    cudaError_t (*derive)(const struct run *run, cudaStream_t stream);
    // NULL when the steps take these dimensions, else what they need, as "k must be a multiple of 8".
    const char *(*check_shape)(const int64_t *dim);
    // Of one launch, as expressions over dims and `size`, the bytes of an element of the run's type; flops NULL: it is
    // measured in bytes.
    const char *flops, *bytes;
    enum limit limit;
    // How far two right steps may be apart in a benchmark, as a share of a row's RMS, beyond the rounding of the
    // output and what fp32 sums in different orders differ by. Not 0 where 16-bit numbers are summed up within.
    double bench_difference;
    const char *bench[CHAPTER_MAX_BENCH]; // shapes of --bench, "m=4096,n=4096,k=4096"; ended by NULL
};

// The whole program; returns its exit status (enum exit_status). The chapter's name is that of the folder that `file`, its
// __FILE__, lies in. The cases of an operation with a name are in the folder of that name; --op takes one operation,
// and then --golden may be that folder itself.
int chapter_main(const char *file, const struct operation *operations, int count, int argc, char **argv);

// main() of a chapter with these operations, an array.
#define CHAPTER(operations)                                                                               \
    int main(int argc, char **argv)                                                                       \
    {                                                                                                     \
        return chapter_main(__FILE__, operations, sizeof(operations) / sizeof *(operations), argc, argv); \
    }

// Number of tensors and of steps.
int operation_tensors(const struct operation *op);
int operation_steps(const struct operation *op);

// A run's dimension, parameter and device memory by the name that its operation gives it: for launchers that serve several
// operations, some of which do not have it, which is `otherwise` (NULL) then.
int64_t run_dim(const struct run *run, const char *name, int64_t otherwise);
double run_param(const struct run *run, const char *name, double otherwise);
void *run_data(const struct run *run, const char *name);

// Type of tensor t in a run of type `type`.
enum dtype operation_dtype(const struct operation *op, int t, enum dtype type);

// Shape of tensor t for these dimensions. Returns its rank, or -1 with the reason in *error.
int operation_shape(const struct operation *op, int t, const int64_t *dim, int64_t *shape,
                    struct error *error);

// Starts step s of the operation (1 is its first, 0 the baseline) and returns its error; its name, and its number on the command
// line.
cudaError_t operation_launch(const struct operation *op, int s, const struct run *run, cudaStream_t stream);
const char *operation_step_name(const struct operation *op, int s);
int operation_step_number(const struct operation *op, int s);
