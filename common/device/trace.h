// What a kernel's marks are, and where they go: shared by the kernels (trace.cuh) and the harness that reads them.
#pragma once

#include <stdint.h>

// What a warp does from a mark on. X(name, as it is written in a timeline)
#define TRACE_EVENTS(X)                                                                                 \
    X(END, "end")               /* the warp's work is over: its last mark */                            \
    X(WAIT_FULL, "wait full")   /* for a stage's bytes to land */                                       \
    X(WAIT_EMPTY, "wait empty") /* for a stage to be given back */                                      \
    X(WAIT_TURN, "wait turn")   /* for the other warpgroup to let this one go on */                     \
    X(LOAD, "load")             /* starts copies */                                                     \
    X(MULTIPLY, "multiply")     /* issues products and waits for them; wgmma_fence marks it */          \
    X(SOFTMAX, "softmax")       /* exponentials, maxima, rescaling */                                   \
    X(EXCHANGE, "exchange")     /* sums sent to or taken from another block, waiting for it included */ \
    X(STORE, "store")           /* writes results */                                                    \
    X(PRODUCTS_DONE, "")        /* no change of that: no products are in flight, says wgmma_wait_group<0> */

#define TRACE_NAME(name, text) TRACE_##name,
enum trace_event { TRACE_EVENTS(TRACE_NAME) TRACE_EVENT_COUNT };
#undef TRACE_NAME

enum {
    TRACE_SMS = 2,             // marks of the blocks on SMs 0 to TRACE_SMS - 1 are kept,
    TRACE_RECORDS = 8192,      // of each of their warps so many,
    TRACE_MAX_TRACED = 1024,   // of so many warps,
    TRACE_MAX_WARPS = 1 << 18, // in a launch of so many
};

// A traced warp. Times in clock cycles of its SM and in nanoseconds of the GPU: its first mark's and its last one's.
struct trace_warp {
    uint32_t block, warp, sm, count;
    uint64_t first_clock, first_ns, last_clock, last_ns;
};

// Where a warp of the launch keeps its marks: 0, or 1 + its place among the traced ones; or TRACE_NOT: it is not traced.
#define TRACE_NOT 0xffffffffu
struct trace_place {
    uint32_t traced, count; // how many marks it has made
};

// All of it in device memory.
struct trace_log {
    struct trace_place *places; // [TRACE_MAX_WARPS]: (block, warp of the block); NULL: nothing is traced
    struct trace_warp *warps;   // [TRACE_MAX_TRACED]
    uint64_t *marks;            // [TRACE_MAX_TRACED][records]: clock << 8 | event
    uint32_t *traced, *lost;    // warps traced so far; warps for which there was no room
    uint32_t records;           // of each traced warp
    uint32_t simulated;         // the clock is to stand still while a mark is made
};
