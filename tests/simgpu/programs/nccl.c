/* Collectives between processes: nccl WHAT [RANKS]. The program starts its ranks itself, and ends with 0 when every rank has. Passes
 * on a machine with as many GPUs too, but for "different" and "recorded", which hang there. */
#include <cuda_runtime_api.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../../../tools/simgpu/runtime/nccl.h"

#define REQUIRE(condition)                                                                \
    do {                                                                                  \
        if (!(condition)) {                                                               \
            printf("%s:%d: rank %d: not so: %s\n", __FILE__, __LINE__, rank, #condition); \
            _exit(1);                                                                     \
        }                                                                                 \
    } while (0)
#define CUDA(call) REQUIRE((call) == cudaSuccess)
#define NCCL(call) REQUIRE((call) == ncclSuccess)

static int rank, ranks = 3;
static ncclUniqueId id;
static ncclComm_t comm;

static void init(void)
{
    int devices;
    CUDA(cudaGetDeviceCount(&devices));
    CUDA(cudaSetDevice(rank % devices));
    NCCL(ncclCommInitRank(&comm, ranks, id, rank));
}

/* ---- Values -------------------------------------------------------------------------------------------------------- */

static const size_t bytes_of[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2};

/* What rank r has at i: from 1 to 5, so that products of three are exact in every type. */
static int value(int r, size_t i)
{
    return 1 + (int)((i * 3 + i / 1000 + (size_t)r * 7) % 5);
}

static double get(ncclDataType_t type, const void *array, size_t i)
{
    switch (type) {
    case ncclInt8: return ((const int8_t *)array)[i];
    case ncclUint8: return ((const uint8_t *)array)[i];
    case ncclInt32: return ((const int32_t *)array)[i];
    case ncclUint32: return ((const uint32_t *)array)[i];
    case ncclInt64: return (double)((const int64_t *)array)[i];
    case ncclUint64: return (double)((const uint64_t *)array)[i];
    case ncclFloat16: return (double)((const _Float16 *)array)[i];
    case ncclFloat32: return ((const float *)array)[i];
    case ncclFloat64: return ((const double *)array)[i];
    default: {
        uint32_t bits = (uint32_t)((const uint16_t *)array)[i] << 16;
        float x;
        memcpy(&x, &bits, 4);
        return x;
    }
    }
}

static void set(ncclDataType_t type, void *array, size_t i, int x)
{
    const float as_float = (float)x;
    uint32_t bits;
    memcpy(&bits, &as_float, 4);
    switch (type) {
    case ncclInt8:
    case ncclUint8: ((uint8_t *)array)[i] = (uint8_t)x; break;
    case ncclInt32:
    case ncclUint32: ((int32_t *)array)[i] = x; break;
    case ncclInt64:
    case ncclUint64: ((int64_t *)array)[i] = x; break;
    case ncclFloat16: ((_Float16 *)array)[i] = (_Float16)x; break;
    case ncclFloat32: ((float *)array)[i] = as_float; break;
    case ncclFloat64: ((double *)array)[i] = x; break;
    default: ((uint16_t *)array)[i] = (uint16_t)(bits >> 16); /* exact */
    }
}

/* What the reduction of all ranks' element i is. */
static double reduced(ncclDataType_t type, ncclRedOp_t op, size_t i)
{
    double sum = 0, product = 1, least = 9, most = 0;
    for (int r = 0; r < ranks; r++) {
        const int x = value(r, i);
        sum += x, product *= x, least = fmin(least, x), most = fmax(most, x);
    }
    const double average = type < ncclFloat16 ? floor(sum / ranks) : sum / ranks;
    return op == ncclSum    ? sum
           : op == ncclProd ? product
           : op == ncclMax  ? most
           : op == ncclMin  ? least
                            : average;
}

/* n elements at `device` are those that expected(i) says, and what lies behind them is untouched. */
#define EXPECT(n, expected)                                                                                 \
    do {                                                                                                    \
        CUDA(cudaMemcpy(host, recv, room, cudaMemcpyDeviceToHost));                                         \
        for (size_t i = 0; i < (n); i++) {                                                                  \
            const double want = (expected), got = get(type, host, i);                                       \
            if (fabs(got - want) > (op == ncclAvg ? want / 64 : 0)) {                                       \
                printf("rank %d, line %d: type %d, operation %d, element %zu: got %g, expected %g\n", rank, \
                       __LINE__, (int)type, (int)op, i, got, want);                                         \
                _exit(1);                                                                                   \
            }                                                                                               \
        }                                                                                                   \
        for (size_t i = (n)*bytes_of[type]; i < room; i++) REQUIRE(((uint8_t *)host)[i] == 0x5a);           \
    } while (0)

static void collectives(ncclDataType_t type, ncclRedOp_t op, size_t count)
{
    const size_t all = count * (size_t)ranks, room = all * bytes_of[type] + 64;
    void *host = malloc(room);
    char *send, *recv;
    CUDA(cudaMalloc((void **)&send, room));
    CUDA(cudaMalloc((void **)&recv, room));
    memset(host, 0x5a, room);
    for (size_t i = 0; i < all; i++) set(type, host, i, value(rank, i));
    CUDA(cudaMemcpy(send, host, room, cudaMemcpyHostToDevice));
    CUDA(cudaMemset(recv, 0x5a, room));
    NCCL(ncclAllReduce(send, recv, all, type, op, comm, NULL));
    EXPECT(all, reduced(type, op, i));

    const size_t mine = (size_t)rank * count;
    CUDA(cudaMemset(recv, 0x5a, room));
    NCCL(ncclReduceScatter(send, recv, count, type, op, comm, NULL));
    EXPECT(count, reduced(type, op, mine + i));

    CUDA(cudaMemset(recv, 0x5a, room));
    NCCL(ncclAllGather(send, recv, count, type, comm, NULL));
    EXPECT(all, value((int)(i / count), i % count));

    const int root = ranks - 1;
    CUDA(cudaMemset(recv, 0x5a, room));
    NCCL(ncclBroadcast(send, recv, count, type, root, comm, NULL));
    EXPECT(count, value(root, i));
    CUDA(cudaMemset(recv, 0x5a, room));
    NCCL(ncclReduce(send, recv, count, type, op, root, comm, NULL));
    const size_t received = rank == root ? count : 0;
    EXPECT(received, reduced(type, op, i));

    /* In place: what NCCL's guide calls so. */
    CUDA(cudaMemcpy(recv, send, room, cudaMemcpyDeviceToDevice));
    NCCL(ncclAllReduce(recv, recv, all, type, op, comm, NULL));
    EXPECT(all, reduced(type, op, i));
    CUDA(cudaMemset(recv, 0x5a, room));
    CUDA(cudaMemcpy(recv + mine * bytes_of[type], send, count * bytes_of[type], cudaMemcpyDeviceToDevice));
    NCCL(ncclAllGather(recv + mine * bytes_of[type], recv, count, type, comm, NULL));
    EXPECT(all, value((int)(i / count), i % count));
    CUDA(cudaFree(send));
    CUDA(cudaFree(recv));
    free(host);
}

static void values(void)
{
    init();
    for (int type = ncclInt8; type < ncclNumTypes; type++)
        for (int op = ncclSum; op < ncclNumOps; op++) collectives((ncclDataType_t)type, (ncclRedOp_t)op, 77);
    collectives(ncclFloat32, ncclSum, 100003); /* in pieces */
    collectives(ncclBfloat16, ncclAvg, 100003);
    collectives(ncclFloat32, ncclSum, 0);
    NCCL(ncclCommDestroy(comm));
}

/* ---- Streams, groups, graphs --------------------------------------------------------------------------------------- */

static void streams(void)
{
    enum { N = 1000, REPLAYS = 3 };
    static float host[N];
    float *a, *b;
    cudaStream_t one, other;
    init();
    CUDA(cudaStreamCreateWithFlags(&one, cudaStreamNonBlocking));
    CUDA(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
    CUDA(cudaMalloc((void **)&a, sizeof host));
    CUDA(cudaMalloc((void **)&b, sizeof host));
    for (int i = 0; i < N; i++) host[i] = (float)(rank + 1);
    CUDA(cudaMemcpy(a, host, sizeof host, cudaMemcpyHostToDevice));
    CUDA(cudaMemcpy(b, host, sizeof host, cudaMemcpyHostToDevice));
    const int sum = ranks * (ranks + 1) / 2;
    /* Two streams of one communicator, and nothing but the order of the calls between them. */
    NCCL(ncclAllReduce(a, a, N, ncclFloat32, ncclSum, comm, one));
    NCCL(ncclAllReduce(b, b, N / 2, ncclFloat32, ncclSum, comm, other));
    NCCL(ncclGroupStart());
    NCCL(ncclBroadcast(b, b, N, ncclFloat32, 0, comm, other));
    NCCL(ncclGroupStart());
    NCCL(ncclAllReduce(a, a, N, ncclFloat32, ncclMax, comm, one));
    NCCL(ncclGroupEnd());
    NCCL(ncclGroupEnd());
    CUDA(cudaStreamSynchronize(one));
    CUDA(cudaStreamSynchronize(other));
    CUDA(cudaMemcpy(host, a, sizeof host, cudaMemcpyDeviceToHost));
    for (int i = 0; i < N; i++) REQUIRE(host[i] == (float)sum);
    CUDA(cudaMemcpy(host, b, sizeof host, cudaMemcpyDeviceToHost));
    for (int i = 0; i < N; i++) REQUIRE(host[i] == (i < N / 2 ? (float)sum : 1));

    cudaGraph_t graph;
    cudaGraphExec_t executable;
    CUDA(cudaStreamBeginCapture(one, cudaStreamCaptureModeThreadLocal));
    NCCL(ncclAllReduce(a, b, N, ncclFloat32, ncclSum, comm, one));
    NCCL(ncclAllReduce(b, a, N, ncclFloat32, ncclMax, comm, one));
    CUDA(cudaStreamEndCapture(one, &graph));
    CUDA(cudaGraphInstantiate(&executable, graph, 0));
    float expected = (float)sum;
    for (int i = 0; i < REPLAYS; i++, expected *= (float)ranks) CUDA(cudaGraphLaunch(executable, one));
    CUDA(cudaStreamSynchronize(one));
    CUDA(cudaMemcpy(host, a, sizeof host, cudaMemcpyDeviceToHost));
    for (int i = 0; i < N; i++) REQUIRE(host[i] == expected);
    ncclResult_t error;
    int count, me, device;
    NCCL(ncclCommGetAsyncError(comm, &error));
    NCCL(ncclCommCount(comm, &count));
    NCCL(ncclCommUserRank(comm, &me));
    NCCL(ncclCommCuDevice(comm, &device));
    REQUIRE(error == ncclSuccess && count == ranks && me == rank && device >= 0);
    CUDA(cudaGraphExecDestroy(executable));
    CUDA(cudaGraphDestroy(graph));
    NCCL(ncclCommFinalize(comm));
    NCCL(ncclCommDestroy(comm));
}

/* ---- What goes wrong ----------------------------------------------------------------------------------------------- */

static float *buffer(void)
{
    float *x;
    CUDA(cudaMalloc((void **)&x, 4096));
    CUDA(cudaMemset(x, 0, 4096));
    return x;
}

/* The last rank is killed; the others are told. */
static void dead(void)
{
    ncclResult_t error = ncclSuccess;
    init();
    float *x = buffer();
    NCCL(ncclAllReduce(x, x, 1024, ncclFloat32, ncclSum, comm, NULL));
    CUDA(cudaStreamSynchronize(NULL));
    if (rank == ranks - 1) raise(SIGKILL);
    ncclAllReduce(x, x, 1024, ncclFloat32, ncclSum, comm, NULL);
    while (cudaStreamQuery(NULL) == cudaErrorNotReady) NCCL(ncclCommGetAsyncError(comm, &error));
    NCCL(ncclCommGetAsyncError(comm, &error));
    REQUIRE(error == ncclRemoteError);
    REQUIRE(ncclAllReduce(x, x, 1024, ncclFloat32, ncclSum, comm, NULL) == ncclRemoteError);
    REQUIRE(strstr(ncclGetLastError(comm), "has ended"));
    NCCL(ncclCommAbort(comm));
}

static void *abort_soon(void *unused)
{
    (void)unused;
    usleep(200000);
    NCCL(ncclCommAbort(comm));
    return NULL;
}

/* Rank 0 waits for a collective that nobody else calls, until another thread ends that. */
static void aborted(void)
{
    pthread_t thread;
    init();
    float *x = buffer();
    if (rank > 0) {
        sleep(2);
        return;
    }
    REQUIRE(pthread_create(&thread, NULL, abort_soon, NULL) == 0);
    NCCL(ncclAllReduce(x, x, 1024, ncclFloat32, ncclSum, comm, NULL));
    CUDA(cudaStreamSynchronize(NULL));
    pthread_join(thread, NULL);
}

static void different(void)
{
    init();
    float *x = buffer();
    ncclAllReduce(x, x, rank ? 1000 : 1024, ncclFloat32, ncclSum, comm, NULL);
    REQUIRE(cudaStreamSynchronize(NULL) != cudaSuccess);
}

static void beyond(void)
{
    init();
    float *x = buffer();
    ncclAllGather(x, x, 1024, ncclFloat32, comm, NULL); /* 4096 bytes for each rank */
    REQUIRE(cudaStreamSynchronize(NULL) != cudaSuccess);
}

/* On a GPU the first ncclCommDestroy waits for ever. */
static void recorded(void)
{
    cudaGraph_t graph;
    cudaGraphExec_t executable;
    cudaStream_t stream;
    init();
    float *x = buffer();
    CUDA(cudaStreamCreate(&stream));
    CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    NCCL(ncclAllReduce(x, x, 1024, ncclFloat32, ncclSum, comm, stream));
    CUDA(cudaStreamEndCapture(stream, &graph));
    CUDA(cudaGraphInstantiate(&executable, graph, 0));
    CUDA(cudaGraphDestroy(graph));
    CUDA(cudaGraphLaunch(executable, stream));
    REQUIRE(ncclCommDestroy(comm) == ncclInvalidUsage);
    CUDA(cudaGraphExecDestroy(executable));
    NCCL(ncclCommDestroy(comm));
}

static void refused(void)
{
    ncclComm_t none;
    ncclUniqueId nothing;
    memset(&nothing, 0, sizeof nothing);
    REQUIRE(ncclCommInitRank(&none, 2, id, 2) == ncclInvalidArgument);
    REQUIRE(ncclCommInitRank(&none, 0, id, 0) == ncclInvalidArgument);
    REQUIRE(ncclCommInitRank(NULL, 1, id, 0) == ncclInvalidArgument);
    REQUIRE(ncclCommInitRank(&none, 1, nothing, 0) == ncclInvalidArgument);
    REQUIRE(ncclGroupEnd() == ncclInvalidUsage);
    ranks = 1;
    init();
    REQUIRE(ncclCommInitRank(&none, 1, id, 0) == ncclInvalidUsage);
    REQUIRE(ncclCommInitRank(&none, 2, id, 1) == ncclInvalidArgument);
    float *x = buffer();
    REQUIRE(ncclAllReduce(x, x, 1, (ncclDataType_t)99, ncclSum, comm, NULL) == ncclInvalidArgument);
    REQUIRE(ncclAllReduce(x, x, 1, ncclFloat32, (ncclRedOp_t)99, comm, NULL) == ncclInvalidArgument);
    REQUIRE(ncclBroadcast(x, x, 1, ncclFloat32, 1, comm, NULL) == ncclInvalidArgument);
    REQUIRE(ncclAllReduce(x, x, 1, ncclFloat32, ncclSum, NULL, NULL) == ncclInvalidArgument);
    NCCL(ncclCommDestroy(comm));
    REQUIRE(ncclAllReduce(x, x, 1, ncclFloat32, ncclSum, comm, NULL) == ncclInvalidArgument);
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        void (*run)(void);
    } what[] = {{"values", values},       {"streams", streams}, {"dead", dead},         {"aborted", aborted},
                {"different", different}, {"beyond", beyond},   {"recorded", recorded}, {"refused", refused}};
    int failed = 0, version;
    if (argc > 2) ranks = atoi(argv[2]);
    if (strcmp(argv[1], "refused") == 0) ranks = 1;
    NCCL(ncclGetVersion(&version));
    REQUIRE(version >= 22000);
    NCCL(ncclGetUniqueId(&id));
    for (rank = 0; rank < ranks; rank++)
        if (fork() == 0) {
            for (size_t i = 0; i < sizeof what / sizeof *what; i++)
                if (strcmp(argv[1], what[i].name) == 0) {
                    what[i].run();
                    fflush(stdout);
                    exit(0);
                }
            printf("no such test: %s\n", argv[1]);
            exit(1);
        }
    for (int r = 0, status; r < ranks; r++) {
        wait(&status);
        failed += status != 0 && !(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    }
    return failed != 0;
}
