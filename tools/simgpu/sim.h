/* sim.h: the machine that the simulated GPU executes: types, instructions, warps, blocks, launches.
 *
 * Data flows one way. front/ turns PTX text into functions made of `struct inst`; exec/ holds, for each family of
 * instructions, the function that chooses an executor when the PTX is lowered and the executors themselves, each one
 * loop over 32 lanes; runtime/ is the CUDA runtime API and the scheduler that drives warps; report/ prints what was
 * counted and what went wrong.
 *
 * A register is an array of 32 lanes: 128 bytes for anything up to 32 bits (8- and 16-bit values are kept
 * zero-extended in a 32-bit lane), 256 bytes for 64-bit values, 512 for 128-bit ones. A predicate is one 32-bit word,
 * bit i for lane i. */
#ifndef SIM_H
#define SIM_H

#include <setjmp.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#ifdef __AVX512F__
#include <immintrin.h>
#endif

typedef uint8_t u8;
typedef uint16_t u16;
typedef uint32_t u32;
typedef uint64_t u64;
typedef int8_t s8;
typedef int16_t s16;
typedef int32_t s32;
typedef int64_t s64;

enum { LANES = 32, MAX_WARPS = 32, NUM_BARRIERS = 16, MAX_CLUSTER = 16 };
#define ALL_LANES 0xffffffffu

struct warp;
struct inst;
struct ptx_inst;
struct lowering;

/* ---- Operands ------------------------------------------------------------------------------------------------- */

/* Where an operand's 32 lanes lie: a byte offset from where the frame's registers begin, a multiple of 4. Below them, each frame
 * has the special registers, and below these the function's constants, the first one next to them. So registers, constants and
 * special registers are all read alike, and no executor has a case for immediates. */
typedef s32 operand;
#define NO_OPERAND (-1) /* a destination `_`, an absent operand */

/* ---- Instructions ---------------------------------------------------------------------------------------------- */

/* Executes `in` for the lanes in `mask` (never 0, a subset of w->active). w->pc already points past `in`; past the whole run
 * of plain instructions when it is in one. Of an instruction that can be in a run, it ends with GO_ON. */
typedef void (*exec_fn)(struct warp *w, const struct inst *in, u32 mask);

/* SPACE_SHARED is the block's own shared memory (.shared::cta), SPACE_CLUSTER that of all blocks of the cluster. */
enum space {
    SPACE_GENERIC,
    SPACE_GLOBAL,
    SPACE_SHARED,
    SPACE_CLUSTER,
    SPACE_LOCAL,
    SPACE_CONST,
    SPACE_PARAM
};

struct inst {
    exec_fn exec;
    operand d, a, b, c;  /* destination and sources; what an executor needs beyond these is in `more` */
    operand guard;       /* the guard predicate, or NO_OPERAND */
    u32 guard_flip;      /* ~0 for @!p */
    s64 imm;             /* address offset, or an immediate that is the same in all lanes */
    const operand *more; /* further operands: vector elements, fragments, call arguments */
    s32 target;          /* branch: index of the target instruction */
    s32 reconverge;      /* branch: index of the immediate post-dominator, where its lanes meet again */
    u16 flags, aux;      /* meaning belongs to the executor */
    u32 plain; /* so many instructions from here on compute or access memory, for all lanes; 0: it may do else */
    u8 space, bytes, count,
        addr64; /* memory: state space, bytes an element, elements, 64-bit address register */
    u32 site;   /* its number in its module: exec/race.c */
    const struct shared_variable *variable; /* memory: of which its address is one, NULL: it may be of any */
    const struct base *base;                /* the same of global memory */
    const void *data;                       /* call: the callee; others: what the executor's author likes */
};

/* A variable in shared memory: `bytes` bytes from `at` on in a block's. */
struct shared_variable {
    const char *name;
    u32 at, bytes;
};

/* A variable of global memory, at that address; or, that being 0, a pointer that the parameters have at byte `at`, in the one that is
 * `number`, counted from 0. */
struct base {
    u64 variable;
    u32 at, number;
};

/* Where an instruction came from: `line` in `file`, the kernel's own if it was inlined there. Then `inlined` is where it is
 * written, and whence that was called, up to the kernel's file. */
struct inlined {
    const char *file;
    u32 line;
    const struct inlined *up;
};
struct source_line {
    const char *file;
    u32 line;
    const struct inlined *inlined;
};

/* ---- Modules and functions -------------------------------------------------------------------------------------- */

struct param {
    const char *name;
    u32 offset, bytes;
};

/* A function or kernel, lowered. */
struct function {
    const char *name;
    struct module *module;
    bool is_kernel;
    struct inst *code;
    u32 code_count;
    u32 first_site;              /* the number of its first instruction in its module: exec/race.c */
    struct source_line *lines;   /* one for each instruction */
    const char **text;           /* the PTX of each instruction, for messages */
    const struct ptx_inst **ptx; /* what each instruction was lowered from */
    struct register_range {
        u32 offset, count, lane_bytes; /* lane_bytes 0: predicates */
    } * ranges;                        /* what lies where in a register frame */
    u32 range_count;
    u32 reg_bytes;       /* size of a register frame */
    u32 regs_per_thread; /* as cudaFuncGetAttributes would say: an estimate, PTX has no register allocation */
    u32 local_bytes;     /* .local bytes a thread */
    u32 shared_bytes;    /* static shared memory of a kernel */
    u32 shared_align;    /* alignment wanted for dynamic shared memory */
    u32 static_align;    /* ... and for the strictest of its static variables; 0: it has none */
    u32 param_bytes;     /* kernel: parameter buffer */
    u32 arg_bytes;       /* .param variables a thread: a function's formal ones, and those of its calls */
    struct param *params,
        *results; /* formal ones: offsets in the parameter buffer, or in the .param variables */
    u32 param_count, result_count;
    u32 max_threads;   /* .maxntid / .reqntid product, or 1024 */
    u32 min_blocks;    /* .minnctapersm, or 0 */
    u32 max_registers; /* .maxnreg, or 0 */
    u32 cluster[3];    /* .reqnctapercluster, or 0 */
    bool calls;        /* calls functions: needs stack */
    const struct touched *
        *touched;          /* registers of each instruction, when the function has wgmma: exec/wgmma.h */
    bool watches_fences;   /* a wgmma.fence may be missing: what comes before a wgmma is noted when it runs */
    bool uses_async_proxy; /* has instructions that reach shared memory through it */
    bool unreadable;       /* its body is not PTX: that has been said */
    bool refused;          /* lowering met something unsupported; `why` says what and where */
    char *why;
    struct counter **counters; /* with --profile: for each worker, one for each instruction */
    u8 *consts; /* the end of every immediate of the function, spread over 32 lanes: the first is the last */
    u32 consts_bytes;
    u8 *rank_consts
        [MAX_CLUSTER]; /* the same for the blocks of each rank in a cluster, while a launch needs them */
    struct shared_ref {
        operand at;
        s64 address; /* of a kernel's own variable; beyond where another, or dynamic memory, begins */
        bool is64;
        u32 number;  /* which other */
    } * shared_refs; /* constants that hold the address of a shared variable: it contains the block's rank */
    u32 shared_ref_count;
    u32 *
        shared_at; /* kernel: where, by number, the variables begin that others have, too; 0 if it cannot reach them */
};
#define SHARED_OWN     0xffffffffu
#define SHARED_DYNAMIC 0xfffffffeu

struct variable { /* a module-scope .global or .const variable */
    const char *name;
    u64 address, bytes;
    u32 align;
    bool is_const;
};

struct module {
    const char *ptx_target; /* "sm_90a" */
    struct function **functions;
    u32 function_count;
    struct variable *variables;
    u32 variable_count;
    struct parser *parser; /* front/: what the functions are lowered from */
    u32 sites;             /* instructions of the functions lowered so far */
};

/* What one source file became. */
struct ptx_text {
    const char *name; /* the file's, NULL if nobody knows */
    const char *text;
    size_t length;
};
/* Parses PTX texts, links them as one and lowers their device functions. Returns NULL and prints why when one is not PTX, or a name is
 * defined twice. */
struct module *module_load(const struct ptx_text *texts, u32 count);
/* A function of the module, NULL if there is none of that name. A kernel is parsed and lowered when it is first asked for, by
 * one caller at a time. One that is no PTX is marked `unreadable`, after printing why; one that uses an unsupported
 * instruction `refused`: it fails when it is launched. */
struct function *module_function(struct module *m, const char *name);
struct variable *module_variable(struct module *m, const char *name);

/* ---- Warps ------------------------------------------------------------------------------------------------------- */

/* A call frame: one register file for the lanes that made the call together. */
struct frame {
    struct frame *up;
    const struct function *fn;
    u8 *regs;              /* fn->reg_bytes, and what operands find below */
    u8 *args;              /* .param variables: 32 lanes x fn->arg_bytes */
    u32 local_base;        /* where this frame's .local variables start in each thread's local memory */
    u32 return_pc;         /* in up->fn */
    s32 return_reconverge; /* the caller's pending reconvergence point */
    const struct inst *call;
    u32 refs; /* splits that use the frame */
};

/* Lanes that run together. A divergent branch turns the split into an inner node of a tree whose leaves run on
 * independently; a leaf that reaches its `reconverge` index dissolves into its parent, which runs again when no child is
 * left. So the lanes of a branch meet at its immediate post-dominator, and yet a leaf that waits (for a barrier, for
 * __syncwarp) never keeps its siblings from running. */
enum split_state {
    SPLIT_FREE,
    SPLIT_READY,
    SPLIT_INNER,
    SPLIT_WAIT_LANES,
    SPLIT_WAIT_BARRIER,
    SPLIT_WAIT_CLUSTER,
    SPLIT_WAIT_REGISTERS,
    SPLIT_WAIT_GROUP,
    SPLIT_WAIT_OTHER
};
struct split {
    enum split_state state;
    u32 pc;         /* next instruction, index into frame->fn->code */
    u32 mask;       /* lanes in this split and its children */
    u32 arrived;    /* inner: lanes that already wait at the reconvergence point */
    u32 children;   /* inner: leaves and inner nodes below */
    s32 reconverge; /* index at which this split dissolves into its parent, -1: never */
    s32 parent;
    struct frame *frame;
    u32 wait_mask; /* SPLIT_WAIT_LANES: the lanes it must be joined by */
    u32 barrier;   /* SPLIT_WAIT_BARRIER: which */
    u64 phase;     /* SPLIT_WAIT_CLUSTER: the phase of barrier.cluster that must be over */
};
enum { MAX_SPLITS = 64, HEAP_BOUNDS = 256, BULK_READS = 4, PASSED = 64 };

/* What --profile counts for an instruction; report/counters.c sums over workers and source lines. */
struct counter {
    u64 warps, lanes;                    /* executions, and active lanes in them */
    u64 diverged;                        /* branches whose lanes went different ways */
    u64 shared_wavefronts, shared_ideal; /* passes through the 32 banks, and how few the bytes need */
    u64 sectors, sectors_ideal;          /* 32-byte sectors of global memory, likewise */
    u64 flops;                           /* of tensor cores */
    u64 copied;                          /* bytes that bulk copies moved into or out of shared memory */
};

struct block;
struct worker;

struct warp {
    /* what executors touch; valid while the warp runs, else saved in splits[current] */
    u8 *regs; /* of the frame: what operands are offsets from */
    const struct inst *pc;
    const struct inst *plain_end; /* of the run of plain instructions, NULL outside */
    u32 active;                   /* lanes of the current split */
    s32 budget;                   /* instructions left before other warps get a turn; set to 0 to stop now */
    struct counter *counters;     /* counters of the current function, NULL unless --profile */
    struct frame *frame, *root;   /* of the current split; the kernel's own */
    struct block *block;
    /* what a turn or a barrier touches: side by side, so that it is in few of the host's cache lines */
    u32 id;                   /* warp index in the block */
    u32 live;                 /* lanes that have not exited */
    u32 lanes_met;            /* when its lanes last synchronised, by the block's clock */
    u32 meeting_count;        /* of `meetings` */
    u32 time;                 /* of what it does now: later than its last release, by the block's clock */
    u32 passed_count;         /* of `passed` until now */
    u32 global_lanes;         /* have accessed global memory and not yet passed on what they did */
    bool parted;              /* ... while others had: exec/known.c keeps who passes on what */
    s32 current;              /* index of the running split */
    s32 split_count;          /* splits beyond this index were never used */
    u64 executed;             /* warp instructions until its turn began, or until it last stopped */
    u64 ahead;                /* of `executed` is its clock: warp_clock */
    s32 turn;                 /* the budget when its turn began, or when it last stopped */
    s32 unused_budget;        /* what was left of the budget when the warp stopped early, else -1 */
    u64 gathered;             /* splits that the last warp_gather moved on together with the current one */
    u64 heap_frees;           /* how many allocations had been freed when the first of `heap` was looked up */
    struct meeting *meetings; /* of some of its lanes since they all met: exec/order.c */
    struct suspect *suspects; /* a write that may be a race: exec/race.c */
    struct suspect_write *suspects_global; /* the same in global memory: exec/global.c */
    bool polled;         /* it has looked at memory that others change, since its turn began */
    bool waits;          /* the same look saw the same twice: until that has changed, others have its turns */
    u32 lost_turns;      /* one after the other in which it has polled */
    u32 wgmma_in_flight; /* products that have not been waited for */
    u32 undefined_registers; /* that hold bits which nobody has written: exec/undefined.c */
    struct split splits[MAX_SPLITS];
    struct passed {
        u32 time, lanes;
        bool met;
    } passed[PASSED]; /* which lanes released what they had done until when, and when all met: exec/order.h */
    struct bounds {
        u64 lo, hi;
        const struct base *base;
    } heap[HEAP_BOUNDS];   /* of global allocations touched lately, by the instruction that did */
    u32 early_count;       /* ... of which these are forgotten with the block: */
    u8 early[HEAP_BOUNDS]; /* its first read in each is written down (exec/global.c) */
    u32 bulk_reads;        /* the same of bulk loads: so many instructions have been */
    const struct inst *bulk_read[BULK_READS];
    u32 cluster_arrived;      /* lanes that have arrived at barrier.cluster and not waited yet */
    u64 cluster_phase[LANES]; /* the phase they arrived in */
    u32 cluster_released;     /* when it last arrived with .release, by the block's clock */
    struct warp_view *view;   /* what it knows of other blocks: exec/known.c */
    struct recent *recent;    /* of its accesses to global memory: exec/record.c */
    u8 *local;                /* local memory: 32 x block->launch->local_bytes, lane after lane */
    u64 clock_stopped;        /* what warp_clock was at the last pmevent 0 */
    struct poll {
        const struct inst *in; /* the last look at memory that others change */
        u32 lanes, bytes;
        u64 at[LANES], saw;
    } poll;
    struct async_state *async; /* cp.async groups and the like: exec/async.c */
    struct wgmma_state *wgmma; /* exec/wgmma.c */
    u32 registers;             /* a thread, once setmaxnreg has asked; 0: as launched */
    u32 register_changes;      /* how often it has */
    struct undefined *undefined;
    u8 *local_written; /* which of its local memory has been */
};

/* Special registers that are plain data. */
enum special {
    SR_TID_X,
    SR_TID_Y,
    SR_TID_Z,
    SR_LANEID,
    SR_LANEMASK_EQ,
    SR_LANEMASK_LE,
    SR_LANEMASK_LT,
    SR_LANEMASK_GE,
    SR_LANEMASK_GT,
    SR_WARPID,
    SR_NWARPID,
    SR_NTID_X,
    SR_NTID_Y,
    SR_NTID_Z,
    SR_CTAID_X,
    SR_CTAID_Y,
    SR_CTAID_Z,
    SR_NCTAID_X,
    SR_NCTAID_Y,
    SR_NCTAID_Z,
    SR_SMID,
    SR_NSMID,
    SR_DYNAMIC_SMEM,
    SR_TOTAL_SMEM,
    SR_CLUSTERID_X,
    SR_CLUSTERID_Y,
    SR_CLUSTERID_Z,
    SR_NCLUSTERID_X,
    SR_NCLUSTERID_Y,
    SR_NCLUSTERID_Z,
    SR_CLUSTER_CTAID_X,
    SR_CLUSTER_CTAID_Y,
    SR_CLUSTER_CTAID_Z,
    SR_CLUSTER_NCTAID_X,
    SR_CLUSTER_NCTAID_Y,
    SR_CLUSTER_NCTAID_Z,
    SR_CLUSTER_CTARANK,
    SR_CLUSTER_NCTARANK,
    SR_GRIDID,
    SR_WORKSPACE_HIGH, /* address of struct launch.workspace, where cooperative groups keep their grid barrier */
    SR_WORKSPACE_LOW,
    NUM_SPECIAL
};
enum { SPECIAL_BYTES = NUM_SPECIAL * 4 * LANES };
static inline operand special_operand(enum special which)
{
    return (operand)which * 4 * LANES - SPECIAL_BYTES;
}
static inline bool is_constant(operand o)
{
    return o < -SPECIAL_BYTES;
}

/* ---- Blocks and launches ------------------------------------------------------------------------------------------ */

struct barrier {
    u32 expected;           /* threads, fixed by the first to arrive; 0: idle */
    u32 arrived, waiting;   /* threads, and those of them that wait */
    u32 warps;              /* that have arrived, whole */
    u32 popc, all, any;     /* bar.red */
    const char *first_text; /* the instruction that opened this phase, for messages */
};

enum {
    SHARED_BASE = 0x400,
    GROUPS_SCRATCH = 288
}; /* shared addresses start here, as on an H200: the first KiB is the system's */

struct block {
    struct launch *launch;
    struct worker *worker; /* the host thread that runs it */
    u32 index, ctaid[3];
    u32 threads, warp_count;
    u8 *shared; /* shared memory; shared address a is shared[a - shared_base] */
    u32 shared_base, shared_bytes;
    _Alignas(16) u8
        reserved[GROUPS_SCRATCH]; /* %reserved_smem_offset_1: at shared address 0, for cooperative groups */
    struct barrier barriers[NUM_BARRIERS];
    struct warp *warps;
    u32 live_warps; /* warps with a lane that has not exited */
    u32 live_threads;
    u32 cluster_rank;
    struct cluster *cluster;
    u32 register_pool;         /* registers that setmaxnreg.dec has freed */
    u32 visitors;              /* ranks that have read this block's shared memory since they last met it */
    struct block_async *async; /* mbarriers: exec/async.c */
    u32 in_flight;             /* bulk copies into its shared memory that have not landed */
    u32 *stamps, clock, last_sync, covered, init_fence, last_barrier,
        fenced[MAX_WARPS];     /* who wrote shared memory when: exec/proxy.h */
    u32 *lanes, *fenced_lanes; /* ... and which of its lanes; when each lane of each warp fenced alone */
    struct block_order *order; /* what has happened before what: exec/order.h; NULL: nobody asks */
    struct races *races;       /* accesses to its shared memory: exec/race.h; NULL: it has none */
    struct finding *unwritten; /* of shared memory that nobody had written: exec/undefined.c */
};

/* Blocks that run together, on one worker, and see each other's shared memory. Without clusters each block is one. */
struct cluster {
    u32 size;
    struct block *block[MAX_CLUSTER]; /* by rank */
    u32 live_threads;                 /* of all its blocks */
    u32 arrived;                      /* threads at barrier.cluster in this phase */
    u64 phase;                        /* completed phases */
    u32 number;                       /* in the grid */
    struct cluster_view *view;        /* what its warps know of other clusters: exec/known.c */
    struct cluster_stores *stores;    /* their strong ones: exec/strong.c */
};

struct launch {
    const struct function *kernel;
    u32 grid[3], block[3], cluster[3];
    u32 shared_bytes; /* static + dynamic */
    u32 dynamic_bytes;
    u32 shared_base;  /* where they begin: SHARED_BASE or, with a seed, behind it: runtime/scheduler.c */
    u32 displaced;    /* bytes left out before the dynamic ones: the same */
    u32 local_bytes;  /* local memory a thread */
    u8 *params;       /* the kernel's parameter buffer */
    const char *step; /* what it is counted for: report/counters.c */
    u64 grid_id;
    bool cooperative;
    bool dependent;      /* may have started before the launch before it has ended */
    bool chained;        /* ... which may end before the launch before that one does */
    bool clustered;      /* launched with a cluster size, be it 1 */
    u64 map_releases;    /* fence.proxy.tensormap::generic.release so far */
    u64 workspace;       /* cooperative launches: 8 bytes of zeros in global memory, else 0 */
    u32 resident_blocks; /* how many blocks the whole device holds at once */
    _Atomic int error;   /* set by fault() */
};

/* A host thread that runs blocks (runtime/scheduler.c). */
struct worker {
    u32 index;
    struct launch *launch;
    jmp_buf on_fault; /* fault() comes back here */
    u64 executed;
    bool changed;              /* in this round, one of its warps has changed memory */
    bool busy;                 /* ... has run on without a look at memory that others change */
    bool quiet;                /* in the last round, none of both */
    u64 longest;               /* the most instructions that one of them has executed in this round */
    _Atomic u64 idle;          /* runtime/scheduler.c: check_idle */
    struct early_reads *early; /* of memory that the launch had not written to: exec/global.c */
    struct cluster **clusters; /* resident ones */
    u32 cluster_count, cluster_capacity;
};
enum { MAX_WORKERS = 64 };

/* A warp of b stores, arrives or starts a copy: its launch gets somewhere. */
static inline void note_change(struct block *b)
{
    b->worker->changed = true;
}

/* Runs a kernel to its end. Returns 0, or the cudaError_t that the fault it met would have caused. */
int launch_run(struct launch *l);

/* ---- Options (set by simgpu's command line through the environment) -------------------------------------------------- */

struct options {
    u32 threads; /* host threads; 0: one for each core */
    u64 seed;    /* order in which blocks start and warps run; 0: in order */
    u32 sms;     /* multiprocessors of the device reported */
    bool profile;
    u32 profile_lines;  /* source lines a kernel in the table */
    const char *json;   /* --json FILE */
    const char *dump;   /* --dump NAME: functions whose names hold it are printed as they are executed */
    int faults;         /* a pipe that is to hear of a fault, or -1 */
    bool faults_report; /* what hardware most often lets pass is only reported */
    bool explain;       /* a fault names the section of a note that teaches it */
    bool exact_mma;     /* tensor cores accumulate in exact f32 instead of as an H200 does */
    bool verbose;
    u64 max_instructions; /* a launch that executes more warp instructions is stopped; 0: no limit */
    u64 max_idle; /* the same for those of a warp while no memory changes; runtime/scheduler.c says how counted */
    u64 memory; /* bytes of device memory */
};
extern struct options options;

/* ---- Faults (report/faults.c) ---------------------------------------------------------------------------------------- */

/* The CUDA error codes a fault turns into (driver_types.h). */
enum {
    ERR_OUT_OF_MEMORY = 2,
    ERR_ILLEGAL_INSTRUCTION = 715,
    ERR_MISALIGNED = 716,
    ERR_INVALID_ADDRESS_SPACE = 717,
    ERR_ILLEGAL_ADDRESS = 700,
    ERR_LAUNCH_FAILURE = 719,
    ERR_ASSERT = 710,
    ERR_LAUNCH_TIMEOUT = 702,
    ERR_NOT_SUPPORTED = 801,
    ERR_HARDWARE_STACK = 714,
    ERR_OUT_OF_RESOURCES = 701,
    ERR_INVALID_PTX = 218
};

/* Stops the launch: prints the message with kernel, source line, block and thread (the lowest lane of `lanes`), and makes
 * the launch return `error`. Does not return. */
_Noreturn void fault(struct warp *w, const struct inst *in, u32 lanes, int error, const char *format, ...)
    __attribute__((format(printf, 5, 6)));

/* As fault(), and names the instruction of `other` that it collides with, when that is known. */
_Noreturn void fault_against(struct warp *w, const struct inst *in, u32 lanes, int error,
                             const struct function *other, const struct inst *with, const char *format, ...)
    __attribute__((format(printf, 7, 8)));

/* Says as much, but once for an instruction, and goes on: what is worth to know and stops nothing. */
void remark(struct warp *w, const struct inst *in, u32 lanes, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* What PTX forbids and hardware most often lets pass: a fault, or with --faults=report a remark, after which the caller goes on
 * as hardware would. */
void breach(struct warp *w, const struct inst *in, u32 lanes, int error, const char *format, ...)
    __attribute__((format(printf, 5, 6)));
void breach_against(struct warp *w, const struct inst *in, u32 lanes, int error, const struct function *other,
                    const struct inst *with, const char *format, ...) __attribute__((format(printf, 7, 8)));

/* ---- Operand access for executors --------------------------------------------------------------------------------- */

static inline void *lanes_of(struct warp *w, operand o)
{
    return w->regs + o;
}
static inline u32 predicate_of(struct warp *w, operand o)
{
    return *(u32 *)lanes_of(w, o);
}
static inline void set_predicate(struct warp *w, operand o, u32 mask, u32 bits)
{
    u32 *p = lanes_of(w, o);
    *p = (*p & ~mask) | (bits & mask);
}
static inline u32 first_lane(u32 mask)
{
    return (u32)__builtin_ctz(mask);
}

/* The end of an executor: the next plain instruction, if the run has one more. So each executor has a jump of its own to what
 * follows, which the host foresees far better than a single one for all. Builds without tail calls do without: exec/warp.c. */
#if defined(SANITIZER) || !defined(__OPTIMIZE__)
#define GO_ON(w, in, mask) ((void)(w), (void)(in), (void)(mask))
#else
#define GO_ON(w, in, mask)                       \
    do {                                         \
        if ((in) + 1 < (w)->plain_end)           \
            (in)[1].exec((w), (in) + 1, (mask)); \
        else                                     \
            (w)->plain_end = NULL;               \
    } while (0)
#endif

/* An executor that does `work`, a function with variables in memory, and goes on: with these it could not jump. Another executor
 * may leave to it what is rare: a jump as well. */
#define EXECUTOR_GOES_ON(name, work)                                                            \
    static __attribute__((noinline)) void name(struct warp *w, const struct inst *in, u32 mask) \
    {                                                                                           \
        work(w, in, mask);                                                                      \
        GO_ON(w, in, mask);                                                                     \
    }

/* Runs `statement` for each lane i in `mask`; when all are on, without a mask. No lane reads what another one wrote: that
 * lets the compiler turn the loop into vector instructions even when source and destination are one register. */
#ifdef __clang__
#define LANES_INDEPENDENT /* clang has no such promise that it may also decline */
#else
#define LANES_INDEPENDENT _Pragma("GCC ivdep")
#endif
#define FOR_LANES(mask, statement)                      \
    do {                                                \
        if (__builtin_expect((mask) == ALL_LANES, 1)) { \
            FOR_ALL_LANES(statement)                    \
        } else {                                        \
            FOR_SOME_LANES(mask, statement)             \
        }                                               \
    } while (0)
#define FOR_ALL_LANES(...) LANES_INDEPENDENT for (int i = 0; i < LANES; i++) __VA_ARGS__
#define FOR_SOME_LANES(mask, ...) \
    LANES_INDEPENDENT for (int i = 0; i < LANES; i++) if ((mask) >> i & 1) __VA_ARGS__

/* An executor that is one such loop over `operands`, and `settled`. With all lanes on it needs so few of the host's registers that
 * it has nothing to save: what runs for some is another function. */
#define EXECUTOR_OF_LANES(name, operands, settled, ...)                                                \
    static __attribute__((noinline)) void name##_some(struct warp *w, const struct inst *in, u32 mask) \
    {                                                                                                  \
        operands;                                                                                      \
        FOR_SOME_LANES(mask, __VA_ARGS__)                                                              \
        settled;                                                                                       \
        GO_ON(w, in, mask);                                                                            \
    }                                                                                                  \
    static void name(struct warp *w, const struct inst *in, u32 mask)                                  \
    {                                                                                                  \
        if (__builtin_expect(mask != ALL_LANES, 0)) {                                                  \
            name##_some(w, in, mask);                                                                  \
        } else {                                                                                       \
            operands;                                                                                  \
            FOR_ALL_LANES(__VA_ARGS__)                                                                 \
            settled;                                                                                   \
            GO_ON(w, in, mask);                                                                        \
        }                                                                                              \
    }

/* The bits of `truth[i] != 0`. */
static inline u32 mask_of_lanes(const u32 truth[LANES])
{
#ifdef __AVX512F__
    __m512i low = _mm512_loadu_si512(truth), high = _mm512_loadu_si512(truth + 16);
    return _mm512_test_epi32_mask(low, low) | (u32)_mm512_test_epi32_mask(high, high) << 16;
#else
    u32 m = 0;
    for (int i = 0; i < LANES; i++) m |= (u32)(truth[i] != 0) << i;
    return m;
#endif
}

#endif
