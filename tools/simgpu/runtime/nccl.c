/* nccl.c: the collectives of NCCL that data-parallel training uses, between processes of this computer, each with a simulated GPU
 * of its own. (NCCL's user guide: what each call means, and what a program may rely on.)
 *
 * The processes share a piece of memory without a name: whoever makes the unique id holds it, and the id says where, so that
 * nothing is left behind whenever a process ends. In it each rank has a slot: what it is calling, how many meetings it has come
 * to, and room for a piece of data. A collective is, for each piece,
 *
 *      copy one's part into one's room -> meet -> read the others' rooms -> meet
 *
 * Sums are made rank by rank from 0 on, and rounded to the type each time: the same bits on all ranks and in every run. A GPU
 * adds in another order.
 *
 * What a GPU would wait for until the end of time is found out and said: a rank that has ended, and ranks that call different
 * collectives. The first is what ncclCommGetAsyncError reports; the second makes the device fail. */
#define _GNU_SOURCE
#include "nccl.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#include <cuda_runtime_api.h>

#include "blas.h"

enum {
    VERSION = 22803,
    COMM_MAGIC = 0x6e63636c,
    MAX_RANKS = 64,
    ROOM = 256 << 10,   /* bytes of a rank for a piece */
    PATIENCE = 10,      /* seconds until a remark that others are waited for */
    INIT_PATIENCE = 300 /* and until ncclCommInitRank gives up */
};

enum kind { ALL_REDUCE, REDUCE, REDUCE_SCATTER, ALL_GATHER, BROADCAST };
static const char *const kind_names[] = {"ncclAllReduce", "ncclReduce", "ncclReduceScatter", "ncclAllGather",
                                         "ncclBroadcast"};
static const struct {
    const char *name;
    size_t bytes;
} types[ncclNumTypes] = {
    [ncclInt8] = {"int8", 1},         [ncclUint8] = {"uint8", 1},     [ncclInt32] = {"int32", 4},
    [ncclUint32] = {"uint32", 4},     [ncclInt64] = {"int64", 8},     [ncclUint64] = {"uint64", 8},
    [ncclFloat16] = {"float16", 2},   [ncclFloat32] = {"float32", 4}, [ncclFloat64] = {"float64", 8},
    [ncclBfloat16] = {"bfloat16", 2},
};
static const char *const op_names[ncclNumOps] = {"sum", "prod", "max", "min", "avg"};

/* What all ranks must agree on; count is in elements, of one rank's part where ranks have different ones. */
struct call {
    u32 kind, type, op;
    int root;
    u64 count;
};

struct slot {
    _Alignas(64) _Atomic u64 meetings; /* that the rank has come to: 0, it has not joined */
    struct call call;
};

struct shared {
    u64 nonce;
    _Atomic int ranks; /* 0: nobody has said yet */
    struct slot slot[MAX_RANKS];
    _Alignas(4096) u8 room[][ROOM];
};

/* The unique id: the file descriptor of a process. */
struct place {
    u64 nonce;
    int process, file;
};
_Static_assert(sizeof(struct place) <= sizeof(ncclUniqueId), "the id has room for the place");

struct ncclComm {
    u32 magic; /* 0: destroyed; the struct stays, since streams and graphs may still name it */
    int rank, ranks, file;
    struct shared *shared;
    u64 meetings, calls;
    pthread_mutex_t busy; /* a collective is at work */
    _Atomic bool aborted;
    _Atomic int error;
    _Atomic u64 held; /* collectives that a stream has yet to do, or a graph has */
    bool submitted;   /* a collective has been; the last one is followed by the event */
    cudaEvent_t submitted_last;
};

static _Thread_local char last_error[512];

__attribute__((format(printf, 2, 3))) static ncclResult_t fail(ncclResult_t result, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(last_error, sizeof last_error, format, args);
    va_end(args);
    fprintf(stderr, "simgpu: %s\n", last_error);
    return result;
}

/* ---- Who is there ------------------------------------------------------------------------------------------------- */

/* Each rank holds a lock on a byte of the shared memory's file, which the system takes back when the process ends. */
static struct flock byte_of(int rank)
{
    return (struct flock){.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = rank, .l_len = 1};
}

static bool is_there(const struct ncclComm *c, int rank)
{
    struct flock lock = byte_of(rank);
    return rank == c->rank || fcntl(c->file, F_OFD_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* The ranks that have not come to this meeting, as text. */
static const char *missing(const struct ncclComm *c, char *text, size_t bytes)
{
    size_t at = 0;
    text[0] = 0;
    for (int r = 0; r < c->ranks && at < bytes; r++)
        if (c->shared->slot[r].meetings < c->meetings)
            at += (size_t)snprintf(text + at, bytes - at, "%s%d", at ? ", " : "", r);
    return text;
}

static const char *describe(const struct call *call, char *text, size_t bytes)
{
    int at = snprintf(text, bytes, "%s of %llu %s", kind_names[call->kind], (unsigned long long)call->count,
                      types[call->type].name);
    if (call->kind <= REDUCE_SCATTER)
        at += snprintf(text + at, bytes - (size_t)at, ", %s", op_names[call->op]);
    if (call->kind == REDUCE || call->kind == BROADCAST)
        snprintf(text + at, bytes - (size_t)at, ", root %d", call->root);
    return text;
}

/* Waits until every rank has come as far as this one. `call` is NULL while they join: then nobody is known to have ended. */
static ncclResult_t meet(struct ncclComm *c, const struct call *call)
{
    struct shared *shared = c->shared;
    char who[256], what[128];
    double began = 0, remark = PATIENCE;
    shared->slot[c->rank].meetings = ++c->meetings;
    for (int r = 0; r < c->ranks; r++)
        for (u32 tries = 0; shared->slot[r].meetings < c->meetings; tries++) {
            if (tries < 200) {
                sched_yield();
                continue;
            }
            nanosleep(&(struct timespec){.tv_nsec = 50000}, NULL);
            if (tries % 64) continue;
            if (c->aborted) return ncclInProgress;
            if (call && !is_there(c, r) && shared->slot[r].meetings < c->meetings)
                return fail(ncclRemoteError,
                            "rank %d of %d has ended, and rank %d waits for it in %s (its collective number "
                            "%llu): on a GPU the stream waits until ncclCommAbort",
                            r, c->ranks, c->rank, describe(call, what, sizeof what),
                            (unsigned long long)c->calls);
            if (began == 0) began = now();
            if (now() - began < remark) continue;
            remark += PATIENCE;
            if (!call && remark > INIT_PATIENCE)
                return fail(ncclSystemError, "ncclCommInitRank: rank %d of %d has waited %d s for rank %s",
                            c->rank, c->ranks, INIT_PATIENCE, missing(c, who, sizeof who));
            fprintf(stderr, "simgpu: rank %d of %d waits in %s for rank %s\n", c->rank, c->ranks,
                    call ? describe(call, what, sizeof what) : "ncclCommInitRank",
                    missing(c, who, sizeof who));
        }
    return ncclSuccess;
}

/* ---- Communicators ------------------------------------------------------------------------------------------------ */

EXPORT ncclResult_t ncclGetUniqueId(ncclUniqueId *id)
{
    if (!id) return fail(ncclInvalidArgument, "ncclGetUniqueId: id is NULL");
    struct place place = {.process = (int)getpid(), .file = memfd_create("nccl", MFD_CLOEXEC)};
    if (place.file < 0 || getrandom(&place.nonce, sizeof place.nonce, 0) != sizeof place.nonce ||
        pwrite(place.file, &place.nonce, sizeof place.nonce, 0) != sizeof place.nonce)
        return fail(ncclSystemError, "ncclGetUniqueId: no memory to share: %s", strerror(errno));
    memset(id, 0, sizeof *id);
    memcpy(id, &place, sizeof place);
    return ncclSuccess; /* the file stays open: the other processes find it by this one */
}

static ncclResult_t join(struct ncclComm *c, const struct place *place)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/fd/%d", place->process, place->file);
    c->file = open(path, O_RDWR | O_CLOEXEC);
    u64 nonce = 0;
    if (c->file < 0 || pread(c->file, &nonce, sizeof nonce, 0) != sizeof nonce || nonce != place->nonce)
        return fail(ncclInvalidArgument,
                    "ncclCommInitRank: the unique id is none of ncclGetUniqueId's, or the process that "
                    "called that has ended");
    size_t bytes = sizeof(struct shared) + (size_t)c->ranks * ROOM;
    if (ftruncate(c->file, (off_t)bytes) != 0)
        return fail(ncclSystemError, "ncclCommInitRank: %s", strerror(errno));
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, c->file, 0);
    if (at == MAP_FAILED) return fail(ncclSystemError, "ncclCommInitRank: %s", strerror(errno));
    c->shared = at;
    int said = 0;
    if (!atomic_compare_exchange_strong(&c->shared->ranks, &said, c->ranks) && said != c->ranks)
        return fail(ncclInvalidArgument, "ncclCommInitRank: rank %d says %d ranks, another one %d", c->rank,
                    c->ranks, said);
    struct flock lock = byte_of(c->rank);
    if (fcntl(c->file, F_OFD_SETLK, &lock) != 0 || c->shared->slot[c->rank].meetings)
        return fail(ncclInvalidUsage, "ncclCommInitRank: another process is rank %d already", c->rank);
    return meet(c, NULL);
}

static void leave(struct ncclComm *c)
{
    if (c->shared) munmap(c->shared, sizeof(struct shared) + (size_t)c->ranks * ROOM);
    if (c->file >= 0) close(c->file);
    c->shared = NULL;
    c->magic = 0;
}

EXPORT ncclResult_t ncclCommInitRank(ncclComm_t *comm, int nranks, ncclUniqueId id, int rank)
{
    struct place place;
    memcpy(&place, &id, sizeof place);
    if (!comm) return fail(ncclInvalidArgument, "ncclCommInitRank: comm is NULL");
    if (nranks < 1 || nranks > MAX_RANKS || rank < 0 || rank >= nranks)
        return fail(ncclInvalidArgument, "ncclCommInitRank: rank %d of %d, expected 1 to %d ranks", rank,
                    nranks, MAX_RANKS);
    if (cudaFree(NULL) != cudaSuccess) return ncclUnhandledCudaError;
    struct ncclComm *c = calloc(1, sizeof *c);
    if (!c) return ncclSystemError;
    *c = (struct ncclComm){.magic = COMM_MAGIC, .rank = rank, .ranks = nranks, .file = -1};
    pthread_mutex_init(&c->busy, NULL);
    ncclResult_t result = join(c, &place);
    if (result == ncclSuccess &&
        cudaEventCreateWithFlags(&c->submitted_last, cudaEventDisableTiming) != cudaSuccess)
        result = ncclUnhandledCudaError;
    if (result != ncclSuccess) {
        leave(c);
        free(c);
        return result;
    }
    *comm = c;
    return ncclSuccess;
}

static ncclResult_t check_comm(const struct ncclComm *c, const char *caller)
{
    if (c && c->magic == COMM_MAGIC) return ncclSuccess;
    return fail(ncclInvalidArgument, "%s: %p is no communicator, or was destroyed", caller, (const void *)c);
}

/* What has been asked for is done when this returns, as NCCL's is when the stream has been waited for. */
EXPORT ncclResult_t ncclCommFinalize(ncclComm_t c)
{
    ncclResult_t result = check_comm(c, "ncclCommFinalize");
    if (result != ncclSuccess) return result;
    return cudaDeviceSynchronize() == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
}

EXPORT ncclResult_t ncclCommAbort(ncclComm_t c)
{
    ncclResult_t result = check_comm(c, "ncclCommAbort");
    if (result != ncclSuccess) return result;
    c->aborted = true;
    pthread_mutex_lock(&c->busy); /* the collective at work has seen it */
    leave(c);
    pthread_mutex_unlock(&c->busy);
    return ncclSuccess;
}

EXPORT ncclResult_t ncclCommDestroy(ncclComm_t c)
{
    ncclResult_t result = ncclCommFinalize(c);
    if (result == ncclSuccess && c->held)
        return fail(
            ncclInvalidUsage,
            "ncclCommDestroy: a graph still has %llu collectives of this communicator: on a GPU the call "
            "waits until cudaGraphDestroy and cudaGraphExecDestroy",
            (unsigned long long)c->held);
    return result == ncclInvalidArgument ? result : ncclCommAbort(c);
}

EXPORT ncclResult_t ncclCommGetAsyncError(ncclComm_t c, ncclResult_t *error)
{
    ncclResult_t result = check_comm(c, "ncclCommGetAsyncError");
    if (result == ncclSuccess && !error)
        result = fail(ncclInvalidArgument, "ncclCommGetAsyncError: error is NULL");
    if (result == ncclSuccess) *error = (ncclResult_t)c->error;
    return result;
}

static ncclResult_t tell(const struct ncclComm *c, const char *caller, int *out, int value)
{
    ncclResult_t result = check_comm(c, caller);
    if (result == ncclSuccess && !out) result = fail(ncclInvalidArgument, "%s: nowhere to write to", caller);
    if (result == ncclSuccess) *out = value;
    return result;
}

EXPORT ncclResult_t ncclCommCount(ncclComm_t c, int *count)
{
    return tell(c, "ncclCommCount", count, c ? c->ranks : 0);
}

EXPORT ncclResult_t ncclCommUserRank(ncclComm_t c, int *rank)
{
    return tell(c, "ncclCommUserRank", rank, c ? c->rank : 0);
}

EXPORT ncclResult_t ncclCommCuDevice(ncclComm_t c, int *device)
{
    return tell(c, "ncclCommCuDevice", device, 0);
}

/* ---- Sums --------------------------------------------------------------------------------------------------------- */

/* to[i] = to[i] op from[i]. Integers are added and multiplied as unsigned ones, which wrap. */
#define REDUCE_CASES(SUM, PROD)                                                   \
    switch (op) {                                                                 \
    case ncclAvg:                                                                 \
    case ncclSum:                                                                 \
        for (size_t i = 0; i < n; i++) to[i] = SUM;                               \
        break;                                                                    \
    case ncclProd:                                                                \
        for (size_t i = 0; i < n; i++) to[i] = PROD;                              \
        break;                                                                    \
    case ncclMax:                                                                 \
        for (size_t i = 0; i < n; i++) to[i] = to[i] < from[i] ? from[i] : to[i]; \
        break;                                                                    \
    default:                                                                      \
        for (size_t i = 0; i < n; i++) to[i] = from[i] < to[i] ? from[i] : to[i]; \
    }
#define REDUCE_INTEGERS(T)                                                           \
    static void reduce_##T(T *to, const T *from, size_t n, u32 op)                   \
    {                                                                                \
        REDUCE_CASES((T)((u64)to[i] + (u64)from[i]), (T)((u64)to[i] * (u64)from[i])) \
    }
#define REDUCE_FLOATS(T)                                           \
    static void reduce_##T(T *to, const T *from, size_t n, u32 op) \
    {                                                              \
        REDUCE_CASES(to[i] + from[i], to[i] * from[i])             \
    }
REDUCE_INTEGERS(s8)
REDUCE_INTEGERS(u8)
REDUCE_INTEGERS(s32)
REDUCE_INTEGERS(u32)
REDUCE_INTEGERS(s64)
REDUCE_INTEGERS(u64)
REDUCE_FLOATS(float)
REDUCE_FLOATS(double)

static data_type narrow(u32 type)
{
    return type == ncclFloat16 ? R_16F : R_16BF;
}

/* 16-bit floats: in fp32, rounded back. */
static void reduce_16(u32 type, void *to, const void *from, size_t n, u32 op)
{
    for (size_t i = 0; i < n; i++) {
        float sum = element_read(narrow(type), to, i), next = element_read(narrow(type), from, i);
        reduce_float(&sum, &next, 1, op);
        element_write(narrow(type), to, i, sum);
    }
}

static void reduce(u32 type, void *to, const void *from, size_t n, u32 op)
{
    switch (type) {
    case ncclInt8: reduce_s8(to, from, n, op); break;
    case ncclUint8: reduce_u8(to, from, n, op); break;
    case ncclInt32: reduce_s32(to, from, n, op); break;
    case ncclUint32: reduce_u32(to, from, n, op); break;
    case ncclInt64: reduce_s64(to, from, n, op); break;
    case ncclUint64: reduce_u64(to, from, n, op); break;
    case ncclFloat32: reduce_float(to, from, n, op); break;
    case ncclFloat64: reduce_double(to, from, n, op); break;
    default: reduce_16(type, to, from, n, op);
    }
}

/* The average: as NCCL does it, floats are multiplied by 1 / ranks before they are added, integers' sums are divided. */
static void scale(u32 type, void *data, size_t n, int ranks, bool before)
{
    const double factor = 1.0 / ranks;
    for (size_t i = 0; i < n; i++) switch (before ? type : type | 0x80) {
        case ncclFloat32: ((float *)data)[i] *= (float)factor; break;
        case ncclFloat64: ((double *)data)[i] *= factor; break;
        case ncclFloat16:
        case ncclBfloat16:
            element_write(narrow(type), data, i, element_read(narrow(type), data, i) * (float)factor);
            break;
        case 0x80 | ncclInt8: ((s8 *)data)[i] /= (s8)ranks; break;
        case 0x80 | ncclUint8: ((u8 *)data)[i] /= (u8)ranks; break;
        case 0x80 | ncclInt32: ((s32 *)data)[i] /= ranks; break;
        case 0x80 | ncclUint32: ((u32 *)data)[i] /= (u32)ranks; break;
        case 0x80 | ncclInt64: ((s64 *)data)[i] /= ranks; break;
        case 0x80 | ncclUint64: ((u64 *)data)[i] /= (u64)ranks; break;
        default: return;
        }
}

/* ---- Collectives -------------------------------------------------------------------------------------------------- */

struct operation {
    struct ncclComm *comm;
    struct call call;
    const u8 *send;
    u8 *recv;
    cudaStream_t stream;
};

static size_t min_size(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* Parts of `send` and of `recv`, of call.count elements each. */
static int parts_sent(const struct operation *o)
{
    return o->call.kind == REDUCE_SCATTER ? o->comm->ranks : 1;
}
static int parts_received(const struct operation *o)
{
    return o->call.kind == ALL_GATHER ? o->comm->ranks : 1;
}
static bool sends(const struct operation *o)
{
    return o->call.kind != BROADCAST || o->call.root == o->comm->rank;
}
static bool receives(const struct operation *o)
{
    return o->call.kind != REDUCE || o->call.root == o->comm->rank;
}

/* All ranks' part `part` of a piece of n elements, reduced into `to`; the parts lie n elements apart. */
static void reduce_rooms(const struct operation *o, int part, void *to, size_t n)
{
    const struct call *call = &o->call;
    const size_t bytes = n * types[call->type].bytes, at = (size_t)part * bytes;
    memcpy(to, o->comm->shared->room[0] + at, bytes);
    for (int r = 1; r < o->comm->ranks; r++)
        reduce(call->type, to, o->comm->shared->room[r] + at, n, call->op);
    if (call->op == ncclAvg) scale(call->type, to, n, o->comm->ranks, false);
}

/* Elements [first, first + n) of every part. */
static ncclResult_t do_piece(const struct operation *o, size_t first, size_t n)
{
    struct ncclComm *c = o->comm;
    const struct call *call = &o->call;
    const size_t element = types[call->type].bytes, bytes = n * element, part = call->count * element;
    u8 *room = c->shared->room[c->rank];
    for (int p = 0; p < parts_sent(o) && sends(o); p++)
        memcpy(room + (size_t)p * bytes, o->send + (size_t)p * part + first * element, bytes);
    if (call->kind <= REDUCE_SCATTER && call->op == ncclAvg)
        scale(call->type, room, n * (size_t)parts_sent(o), c->ranks, true);
    ncclResult_t result = meet(c, call);
    if (result != ncclSuccess) return result;
    u8 *to = o->recv + first * element;
    switch ((enum kind)call->kind) {
    case ALL_REDUCE: reduce_rooms(o, 0, to, n); break;
    case REDUCE:
        if (receives(o)) reduce_rooms(o, 0, to, n);
        break;
    case REDUCE_SCATTER: reduce_rooms(o, c->rank, to, n); break;
    case ALL_GATHER:
        for (int r = 0; r < c->ranks; r++) memcpy(to + (size_t)r * part, c->shared->room[r], bytes);
        break;
    case BROADCAST: memcpy(to, c->shared->room[call->root], bytes); break;
    }
    return meet(c, call);
}

/* Every rank's call is in its slot; they must be one. */
static ncclResult_t compare_calls(const struct operation *o)
{
    const struct ncclComm *c = o->comm;
    char mine[128], other[128];
    for (int r = 0; r < c->ranks; r++)
        if (memcmp(&c->shared->slot[r].call, &o->call, sizeof o->call) != 0)
            return fail(
                ncclInvalidUsage,
                "rank %d calls %s where rank %d calls %s (its collective number %llu): on a GPU they hang, or "
                "exchange garbage",
                r, describe(&c->shared->slot[r].call, other, sizeof other), c->rank,
                describe(&o->call, mine, sizeof mine), (unsigned long long)c->calls);
    return ncclSuccess;
}

static ncclResult_t do_operation(const struct operation *o)
{
    struct ncclComm *c = o->comm;
    const size_t element = types[o->call.type].bytes, bytes = o->call.count * element;
    const char *caller = kind_names[o->call.kind];
    c->calls++;
    if (bytes && sends(o) && !simgpu_check_access(caller, "reads", o->send, bytes * (size_t)parts_sent(o)))
        return ncclUnhandledCudaError;
    if (bytes && receives(o) &&
        !simgpu_check_access(caller, "writes", o->recv, bytes * (size_t)parts_received(o)))
        return ncclUnhandledCudaError;
    if (sends(o)) simgpu_touches(false, o->send, bytes * (size_t)parts_sent(o));
    if (receives(o)) simgpu_touches(true, o->recv, bytes * (size_t)parts_received(o));
    c->shared->slot[c->rank].call = o->call;
    ncclResult_t result = meet(c, &o->call);
    if (result == ncclSuccess) result = compare_calls(o);
    if (result == ncclSuccess)
        result = meet(c, &o->call); /* nobody has gone on to another call before all have looked */
    if (result == ncclInvalidUsage) simgpu_fail_device();
    const size_t piece = ROOM / element / (size_t)parts_sent(o);
    for (size_t first = 0; first < o->call.count && result == ncclSuccess; first += piece)
        result = do_piece(o, first, min_size(piece, o->call.count - first));
    return result;
}

/* In the stream's turn. */
static void run_operation(const void *arguments)
{
    const struct operation *o = arguments;
    struct ncclComm *c = o->comm;
    pthread_mutex_lock(&c->busy);
    if (c->magic == COMM_MAGIC && !c->aborted && !c->error) {
        ncclResult_t result = do_operation(o);
        if (result != ncclInProgress) c->error = result;
    }
    pthread_mutex_unlock(&c->busy);
}

static void release_operation(const void *arguments)
{
    ((const struct operation *)arguments)->comm->held--;
}

/* Collectives of a communicator happen in the order of the calls, whatever their streams. What is captured is ordered by its
 * graph. */
static ncclResult_t submit(const struct operation *o)
{
    struct ncclComm *c = o->comm;
    enum cudaStreamCaptureStatus capture;
    cudaError_t error = cudaStreamIsCapturing(o->stream, &capture);
    const bool by_calls = capture == cudaStreamCaptureStatusNone;
    if (!error && by_calls && c->submitted) error = cudaStreamWaitEvent(o->stream, c->submitted_last, 0);
    c->held += !error;
    if (!error &&
        !simgpu_do(kind_names[o->call.kind], o->stream, run_operation, release_operation, o, sizeof *o))
        error = cudaErrorUnknown;
    if (!error && by_calls) error = cudaEventRecord(c->submitted_last, o->stream);
    c->submitted |= by_calls;
    return error ? ncclUnhandledCudaError : ncclSuccess;
}

/* ---- Groups ------------------------------------------------------------------------------------------------------- */

/* Of this thread: what it has called since ncclGroupStart. */
static _Thread_local struct {
    int depth;
    size_t count, room;
    struct operation *operation;
} group;

static ncclResult_t enqueue(const struct operation *o)
{
    const struct call *call = &o->call;
    const char *caller = kind_names[call->kind];
    ncclResult_t result = check_comm(o->comm, caller);
    if (result != ncclSuccess) return result;
    if (o->comm->error) return (ncclResult_t)o->comm->error;
    if (call->type >= ncclNumTypes)
        return fail(ncclInvalidArgument, "%s: type %u, expected one of nccl.h's below %d", caller, call->type,
                    ncclNumTypes);
    if (call->op >= ncclNumOps)
        return fail(ncclInvalidArgument, "%s: operation %u, expected one of nccl.h's below %d", caller,
                    call->op, ncclNumOps);
    if (call->root < 0 || call->root >= o->comm->ranks)
        return fail(ncclInvalidArgument, "%s: root %d of %d ranks", caller, call->root, o->comm->ranks);
    if (!group.depth) return submit(o);
    if (group.count == group.room) {
        size_t room = group.room ? 2 * group.room : 16;
        struct operation *grown = realloc(group.operation, room * sizeof *grown);
        if (!grown) return fail(ncclSystemError, "%s: no memory for a group", caller);
        group.operation = grown;
        group.room = room;
    }
    group.operation[group.count++] = *o;
    return ncclSuccess;
}

EXPORT ncclResult_t ncclGroupStart(void)
{
    group.depth++;
    return ncclSuccess;
}

EXPORT ncclResult_t ncclGroupEnd(void)
{
    if (!group.depth) return fail(ncclInvalidUsage, "ncclGroupEnd: there was no ncclGroupStart");
    if (--group.depth) return ncclSuccess;
    ncclResult_t result = ncclSuccess;
    for (size_t i = 0; i < group.count && result == ncclSuccess; i++) result = submit(&group.operation[i]);
    group.count = 0;
    return result;
}

#define CALL(...) (&(struct operation){comm, {__VA_ARGS__}, send, recv, stream})

EXPORT ncclResult_t ncclAllReduce(const void *send, void *recv, size_t count, ncclDataType_t type,
                                  ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream)
{
    return enqueue(CALL(ALL_REDUCE, type, op, 0, count));
}

EXPORT ncclResult_t ncclReduce(const void *send, void *recv, size_t count, ncclDataType_t type,
                               ncclRedOp_t op, int root, ncclComm_t comm, cudaStream_t stream)
{
    return enqueue(CALL(REDUCE, type, op, root, count));
}

EXPORT ncclResult_t ncclReduceScatter(const void *send, void *recv, size_t recvcount, ncclDataType_t type,
                                      ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream)
{
    return enqueue(CALL(REDUCE_SCATTER, type, op, 0, recvcount));
}

EXPORT ncclResult_t ncclAllGather(const void *send, void *recv, size_t sendcount, ncclDataType_t type,
                                  ncclComm_t comm, cudaStream_t stream)
{
    return enqueue(CALL(ALL_GATHER, type, 0, 0, sendcount));
}

EXPORT ncclResult_t ncclBroadcast(const void *send, void *recv, size_t count, ncclDataType_t type, int root,
                                  ncclComm_t comm, cudaStream_t stream)
{
    return enqueue(CALL(BROADCAST, type, 0, root, count));
}

/* ---- What it is --------------------------------------------------------------------------------------------------- */

EXPORT ncclResult_t ncclGetVersion(int *version)
{
    if (!version) return fail(ncclInvalidArgument, "ncclGetVersion: version is NULL");
    *version = VERSION;
    return ncclSuccess;
}

EXPORT const char *ncclGetErrorString(ncclResult_t result)
{
    switch (result) {
    case ncclSuccess: return "no error";
    case ncclUnhandledCudaError: return "a CUDA call failed";
    case ncclSystemError: return "a call of the operating system failed";
    case ncclInternalError: return "internal error";
    case ncclInvalidArgument: return "an argument is wrong";
    case ncclInvalidUsage: return "the calls do not fit together";
    case ncclRemoteError: return "another process has ended or failed";
    case ncclInProgress: return "not done yet";
    }
    return "unknown result";
}

EXPORT const char *ncclGetLastError(ncclComm_t comm)
{
    (void)comm;
    return last_error;
}
